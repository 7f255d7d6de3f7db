"""Block-diffusion decoding written again from its published rules, as the judge of our decoder.

It shares nothing with the runtime: no KV cache, no split attention. Every step runs the whole
prefix through transformers' Qwen3 with a 4-D block-causal mask and reads the block's logits.
It also measures how near each decision was to another one, so that a test can insist on seeds
without near ties instead of loosening its comparison.
"""

import dataclasses

import torch
from checkpoints import block_causal_mask

PREFILL, DENOISE, COMMIT = 0, 1, 2


@dataclasses.dataclass
class Options:
    strategy: str
    mask_id: int
    block_length: int
    steps: int
    gen_length: int
    threshold: float = 0.85
    eb_threshold: float = 0.35
    factor: float = 1.0
    stop_ids: tuple = ()


@dataclasses.dataclass
class Row:
    kind: int
    block: int
    step: int
    context_length: int
    changed: int
    masks_left: int
    positions: list  # absolute, ascending
    tokens: list
    confidence: list
    top1: list = dataclasses.field(default_factory=list)
    top1_confidence: list = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Outcome:
    rows: list            # denoising steps and commit passes
    tokens: list          # prompt and generated
    reason: str           # "stop" or "length"
    logit_margin: float   # smallest gap between the best and the second token of a position
    choice_margin: float  # smallest distance of a selection from another one


class _Margin:
    """Remembers the smallest distance between what was compared."""

    def __init__(self):
        self.value = float("inf")

    def of(self, *distances):
        self.value = min([self.value, *[abs(d) for d in distances]])


def _select(options, step, masked, confidence, entropy, margin):
    """-> the positions in the block that the strategy chooses."""
    base, rest = divmod(options.block_length, options.steps)
    due = base + (1 if step < rest else 0)
    left = len(masked)
    if options.strategy == "sequential":
        end = min(masked[0] + due, options.block_length)
        return [p for p in masked if p < end]
    if options.strategy == "entropy_bounded":
        ranked = sorted(masked, key=lambda p: (entropy[p], p))
        sums = torch.cumsum(torch.tensor([entropy[p] for p in ranked], dtype=torch.float64), 0)
        count = max(1, int((sums < options.eb_threshold).sum()))
        margin.of(*[float(s) - options.eb_threshold for s in sums])
        score = entropy
    else:
        ranked = sorted(masked, key=lambda p: (-confidence[p], p))
        score = confidence
        if options.strategy == "low_confidence_static":
            count = min(due, left)
        elif options.strategy == "low_confidence_dynamic":
            sure = sum(confidence[p] > options.threshold for p in masked)
            count = sure if sure >= due else min(due, left)
            margin.of(*[confidence[p] - options.threshold for p in masked])
        elif options.strategy == "threshold":
            count = max(1, sum(confidence[p] >= options.threshold for p in masked))
            margin.of(*[confidence[p] - options.threshold for p in masked])
        elif options.strategy == "factor":
            needed = [-1.0] + [1.0 - options.factor / (n + 1) for n in range(2, left + 1)]
            failing = [i for i in range(left) if confidence[ranked[i]] < needed[i]]
            count = failing[0] if failing else left - 1
            if count in (0, left - 1):
                count += 1
            margin.of(*[confidence[p] - n for p, n in list(zip(ranked, needed))[1:]])
        else:
            raise ValueError(options.strategy)
    if count < left:
        margin.of(score[ranked[count - 1]] - score[ranked[count]])
    return sorted(ranked[:count])


def _block_logits(model, tokens, begin, end, block_length):
    ids = torch.tensor([tokens[:end]])
    with torch.no_grad():
        logits = model(ids, attention_mask=block_causal_mask(end, block_length),
                       position_ids=torch.arange(end)[None]).logits
    return logits[0, begin:end].float()


def decode(model, prompt, options):
    size = options.block_length
    return decode_with(
        lambda tokens, begin, step: _block_logits(model, tokens, begin, begin + size, size),
        prompt, options)


def decode_with(logits_of, prompt, options, replay=None):
    """`logits_of(tokens, begin, step)`: [B, V] of the block from `begin` on at its step, from 1.
    `replay`, {(block, step): (positions in the block, tokens)}, replaces the decoder's choices."""
    size = options.block_length
    num_blocks = -(-(len(prompt) + options.gen_length) // size)
    tokens = list(prompt) + [options.mask_id] * (num_blocks * size - len(prompt))
    first_block = len(prompt) // size
    rows, reason = [], "length"
    logit_margin, choice_margin = _Margin(), _Margin()
    for block in range(first_block, num_blocks):
        begin, end = block * size, (block + 1) * size
        before = None  # the input of the step before
        for step in range(options.steps + 1):
            now = tokens[begin:end]
            changed = 0 if before is None else sum(a != b for a, b in zip(now, before))
            before = now
            masked = [p for p in range(size) if now[p] == options.mask_id]
            if not masked or step == options.steps:
                rows.append(Row(COMMIT, block, 0, begin, changed, len(masked), [], [], []))
                break
            logits = logits_of(tokens, begin, step + 1)
            best = logits.topk(2, -1).values
            logit_margin.of(float((best[:, 0] - best[:, 1]).min()))
            probability = logits.softmax(-1)
            confidence, top1 = [x.tolist() for x in probability.max(-1)]
            clamped = probability.clamp_min(1e-12)
            entropy = (-(clamped * clamped.log()).sum(-1)).tolist()
            chosen = _select(options, step, masked, confidence, entropy, choice_margin)
            chosen = [p for p in chosen if top1[p] != options.mask_id]
            taken = [top1[p] for p in chosen]
            if replay is not None:
                chosen, taken = replay[block, step + 1]
            for p, token in zip(chosen, taken):
                tokens[begin + p] = token
            rows.append(Row(DENOISE, block, step + 1, begin, changed, len(masked),
                            [begin + p for p in chosen], taken,
                            [confidence[p] for p in chosen], top1, confidence))
        if any(t in options.stop_ids for t in tokens[len(prompt):]):
            reason = "stop"
            break
    return Outcome(rows, tokens, reason, logit_margin.value, choice_margin.value)
