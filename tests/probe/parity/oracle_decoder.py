"""Block-diffusion decoding written again from its published rules, as the judge of our decoder.

It shares nothing with the runtime: no KV cache, no split attention. Every step runs the whole
prefix through transformers' Qwen3 with a 4-D block-causal mask and reads the block's logits.
It also measures how near each decision was to another one, so that a test can insist on seeds
without near ties instead of loosening its comparison.
"""

import dataclasses
import itertools

import torch
from checkpoints import block_causal_mask
from oracle_rules import Margin, Rules

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
    rank_by: str = "confidence"
    quota: str = "even"
    density_sigma: float = 0.0
    kl_threshold: float = 0.01
    kl_history: int = 2
    klass_choose: str = "all"
    pc_lambda: float = 0.25
    pc_alpha: float = 10.0
    frequencies: str = ""       # a file
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
    logit_margin, choice_margin = Margin(), Margin()
    for block in range(first_block, num_blocks):
        begin, end = block * size, (block + 1) * size
        before = None  # the input of the step before
        rules = Rules(options, choice_margin, known=max(len(prompt) - begin, 0))

        def answer(p, sigma):
            if begin + p < len(prompt):
                return None
            decided = [token != options.mask_id for token in tokens[len(prompt):]]
            return decided, sigma, begin + p - len(prompt)

        for step in itertools.count():
            now = tokens[begin:end]
            changed = 0 if before is None else sum(a != b for a, b in zip(now, before))
            before = now
            masked = [p for p in range(size) if now[p] == options.mask_id]
            if not masked or not rules.goes_on(step):
                rows.append(Row(COMMIT, block, 0, begin, changed, len(masked), [], [], []))
                break
            rules.begin_step(step, len(masked))
            logits = logits_of(tokens, begin, step + 1)
            best = logits.topk(2, -1).values
            logit_margin.of(float((best[:, 0] - best[:, 1]).min()))
            probability = logits.softmax(-1)
            confidence, top1 = [x.tolist() for x in probability.max(-1)]
            picked = rules.select(step, masked, probability, top1, answer)
            rules.end_step(len(picked))
            chosen = [p for p in picked if top1[p] != options.mask_id]
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
