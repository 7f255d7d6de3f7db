"""Decoding of bidirectional models written again from its published rules, in float64: the judge of our
canvas decoder and its caches. It shares nothing with the runtime: one state of keys, values and layer
outputs by absolute position, and every rule in the order in which its paper or code states it.
"""

import dataclasses
import itertools

import attention_math as am
import numpy as np
import torch
from oracle_rules import Margin, Rules


@dataclasses.dataclass
class Cache:
    kind: str
    prompt_interval: int = 50
    answer_interval: int = 2
    transfer_ratio: float = 0.25
    current_k: int = 32
    sigma: float = 10.0
    rollout_p: float = 0.1
    inflate_window: int = 4
    as_released: bool = False


@dataclasses.dataclass
class Step:
    block: int
    step: int
    positions: list   # absolute, decided
    tokens: list
    predicted: list   # of the block: whether this pass predicts the position
    top1: list
    confidence: list
    rows: list        # computed positions, of the last layer
    unseen: int       # masks of the block that the pass does not predict


@dataclasses.dataclass
class Outcome:
    steps: list
    tokens: list
    margin: float        # smallest distance of a choice from another one
    logit_margin: float


class Model:
    """Neutral weights in float64: `embed`, `norm`, `head`, and by layer a dict."""

    def __init__(self, spec, weights):
        self.spec, self.w = spec, weights
        half = spec["head_dim"] // 2
        self.frequency = spec["theta"] ** (-torch.arange(half, dtype=torch.float64) / half)

    def rms(self, x, weight):
        return x / torch.sqrt((x**2).mean(-1, keepdim=True) + self.spec["eps"]) * weight

    def heads(self, layer, name, x, positions=None):
        """x [R, hidden] -> [heads, R, D], rotated at `positions`."""
        rows = x @ layer[name].T + layer.get(name + "_bias", 0.0)
        rows = rows.view(len(x), -1, self.spec["head_dim"]).transpose(0, 1)
        if positions is None:
            return rows
        angle = torch.tensor(positions, dtype=torch.float64)[:, None] * self.frequency
        a, b = rows.chunk(2, -1)
        return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)

    def mlp(self, layer, x):
        return (torch.nn.functional.silu(x @ layer["gate"].T) * (x @ layer["up"].T)) @ layer["down"].T

    def logits(self, hidden):
        return self.rms(hidden, self.w["norm"]) @ self.w["head"].T


class State:
    """What earlier passes left, by layer and absolute position."""

    def __init__(self, model, length):
        spec = model.spec
        self.k = [torch.zeros(spec["kv_heads"], length, spec["head_dim"], dtype=torch.float64)
                  for _ in range(spec["layers"])]
        self.v = [x.clone() for x in self.k]
        self.attention = [torch.zeros(length, spec["hidden"], dtype=torch.float64) for _ in self.k]
        self.ffn = [x.clone() for x in self.attention]
        self.log = []  # of the last pass, by layer: rows of queries, keys, values; z of the queries


def attend(model, state, index, q):
    """-> z [R, H * D] and the mean attention map [R, L]."""
    scores = am.scores_of(q, state.k[index], model.spec["head_dim"] ** -0.5)
    z, lse = am.attention(scores, state.v[index])
    return z.transpose(0, 1).flatten(1), am.mean_probability(scores, lse, 1, per_token=True)[0]


def forward_rows(model, state, tokens, rows):
    """The rows go through all layers; everything else is as earlier passes left it."""
    hidden = model.w["embed"][torch.tensor(tokens)[rows]]
    maps = []
    state.log = []
    for index, layer in enumerate(model.w["layers"]):
        x = model.rms(hidden, layer["norm1"])
        state.k[index][:, rows] = model.heads(layer, "k", x, rows)
        state.v[index][:, rows] = model.heads(layer, "v", x)
        z, attention = attend(model, state, index, model.heads(layer, "q", x, rows))
        maps.append(attention)
        state.log.append((rows, rows, rows, z))
        hidden = hidden + z @ layer["o"].T
        hidden = hidden + model.mlp(layer, model.rms(hidden, layer["norm2"]))
    return model.logits(hidden), maps


def forward_dllm(model, state, tokens, cache, step, prompt, margin):
    """dLLM-Cache: every row's residual stream, refreshed parts of the layers. -> logits, computed rows."""
    length = len(tokens)
    hidden = model.w["embed"][torch.tensor(tokens)]
    state.log = []
    for index, layer in enumerate(model.w["layers"]):
        refresh_prompt = index == 0 or step % cache.prompt_interval == 0
        refresh_answer = index == 0 or step % cache.answer_interval == 0
        x = model.rms(hidden, layer["norm1"])
        rows = list(range(prompt)) if refresh_prompt else []
        fresh = model.heads(layer, "v", x)
        if refresh_prompt:
            state.v[index][:, :prompt] = fresh[:, :prompt]
        if refresh_answer:
            rows += range(prompt, length)
            state.v[index][:, prompt:] = fresh[:, prompt:]
        elif cache.transfer_ratio > 0:
            new, old = (v[:, prompt:].transpose(0, 1).flatten(1) for v in (fresh, state.v[index]))
            cosine = torch.cosine_similarity(new, old, dim=-1)
            order = cosine.argsort()
            count = int((length - prompt) * cache.transfer_ratio)
            if 0 < count < len(order):
                margin.of(float(cosine[order[count]] - cosine[order[count - 1]]))
            rows += sorted((order[:count] + prompt).tolist())
            state.v[index][:, prompt:] = fresh[:, prompt:]
        whole = refresh_answer or cache.transfer_ratio > 0
        z, answer = None, list(range(prompt, length)) if whole else []
        if rows:
            state.k[index][:, rows] = model.heads(layer, "k", x[rows], rows)
            z, _ = attend(model, state, index, model.heads(layer, "q", x[rows], rows))
            state.attention[index][rows] = z @ layer["o"].T
        values = (list(range(prompt)) if refresh_prompt else []) + answer
        state.log.append((rows, rows, values, z))
        hidden = hidden + state.attention[index]
        if rows:
            state.ffn[index][rows] = model.mlp(layer, model.rms(hidden[rows], layer["norm2"]))
        hidden = hidden + state.ffn[index]
    return model.logits(hidden), rows


def certainty_density(known, sigma):
    length = len(known)
    canvas = np.concatenate([np.ones(length), known, np.full(length, float(known[-1]))])
    kernel = lambda d: np.exp(-(d.astype(float) ** 2) / (2 * sigma**2))
    whole = kernel(np.arange(-3 * length, 3 * length)).sum()
    at = np.arange(length, 2 * length)
    return (kernel(at[:, None] - np.arange(3 * length)) * canvas).sum(1) / whole


def d2_rows(cache, maps, rows, prompt, length, begin, size, masks, confidence, selected, shift, margin):
    """The rows of the next pass. masks, confidence: [G]; begin: the block's first position in G."""
    answer = length - prompt
    flow = torch.eye(length, dtype=torch.float64)
    for attention in maps:
        whole = torch.eye(length, dtype=torch.float64)
        whole[rows] = attention
        whole = whole + torch.eye(length, dtype=torch.float64)
        flow = (whole / whole.sum(-1, keepdim=True)) @ flow
    importance = flow.sum(0).numpy()
    score = confidence * certainty_density(~masks, cache.sigma)
    reached = np.flatnonzero(np.cumsum(masks) >= cache.current_k)
    last = reached[0] if len(reached) else answer - 1
    window = np.arange(begin, min(answer, (last // size + 1) * size))
    inside = (np.arange(answer) >= begin) & (np.arange(answer) < begin + size)
    score = score + np.where(inside, np.nanmax(score), 0.0)  # where scores are negative, a malus
    ranked = sorted((i for i in window if masks[i]), key=lambda i: -score[i])
    certain = ranked[:cache.current_k]
    if len(ranked) > len(certain) > 0:
        margin.of(score[certain[-1]] - score[ranked[len(certain)]])
    chosen = np.zeros(length, bool)
    for i in certain:
        if i - shift >= 0:
            chosen[prompt + i - shift] = True
    chosen[list(selected)] = True
    others = sorted(np.flatnonzero(~chosen), key=lambda r: -importance[r])
    total, covered = importance[others].sum() + 1e-9, 0.0
    for rank, row in enumerate(others):
        covered += importance[row] / total
        margin.of(covered - cache.rollout_p)
        if rank and covered > cache.rollout_p:
            margin.of(importance[others[rank - 1]] - importance[row])
            break
        chosen[row] = True
    if shift:
        chosen[prompt - 1] = 0 in certain
    at = np.flatnonzero(chosen)
    for a, b in zip(at, at[1:]):
        if b - a <= cache.inflate_window:
            chosen[a:b] = True
    return np.flatnonzero(chosen).tolist()


def rows_of_pass(cache, step, planned, block, length):
    """What a pass computes: the whole canvas, unless the cache keeps the rest. `planned`: d2cache's rows."""
    if cache.kind in ("prefix", "dual") and step:
        return list(range(block.start, block.stop if cache.kind == "dual" else length))
    return planned if cache.kind == "d2cache" and planned is not None else list(range(length))


def probabilities(best, positions, logits):
    """[positions, vocabulary]; where no row predicts one, all tokens alike."""
    nothing = torch.full_like(logits[0], 1 / logits.shape[-1])
    return torch.stack([best[p].softmax(-1) if p in best else nothing for p in positions])


def decode(model, prompt, options, cache, shift, watch=lambda state, tokens: None):
    size, start = options.block_length, len(prompt)
    tokens = list(prompt) + [options.mask_id] * options.gen_length
    length = len(tokens)
    state, margin, logit_margin = State(model, length), Margin(), Margin()
    steps, planned = [], None
    certainty = np.full(options.gen_length, np.nan)
    tracks = {}  # of KLASS
    for block in range(options.gen_length // size):
        begin, end = start + block * size, start + (block + 1) * size
        rules = Rules(options, margin, begin, tracks)
        answer = lambda p, sigma: ([t != options.mask_id for t in tokens[start:]], sigma, begin + p - start)
        for step in itertools.count():
            if options.mask_id not in tokens[begin:end] or not rules.goes_on(step):
                break
            rules.begin_step(step, tokens[begin:end].count(options.mask_id))
            rows = rows_of_pass(cache, step, planned, range(begin, end), length)
            if cache.kind == "dllm-cache":
                logits, computed = forward_dllm(model, state, tokens, cache, len(steps), start, margin)
            else:
                logits, maps = forward_rows(model, state, tokens, rows)
                computed = rows
            watch(state, tokens)
            place = {row: i for i, row in enumerate(rows)}
            predicts = lambda p: p - shift in place
            best = {p: logits[place[p - shift]] for p in range(start, length) if predicts(p)}
            top = {p: x.softmax(-1).max(-1) for p, x in best.items()}
            block_positions = range(begin, end)
            eligible = [p - begin for p in block_positions
                        if tokens[p] == options.mask_id and p in top]
            for p in eligible:
                two = best[begin + p].topk(2).values
                logit_margin.of(float(two[0] - two[1]))
            confidence = [float(top[p].values) if p in top else float("nan") for p in block_positions]
            top1 = [int(top[p].indices) if p in top else -1 for p in block_positions]
            unseen = tokens[begin:end].count(options.mask_id) - len(eligible)
            rows_of_block = probabilities(best, block_positions, logits)
            picked = rules.select(step, eligible, rows_of_block, top1, answer,
                                  [p - begin for p in block_positions if p in best],
                                  {p: x.softmax(-1) for p, x in best.items()
                                   if p >= end and tokens[p] == options.mask_id},
                                  unseen)
            if shift and step == 0 and cache.kind in ("prefix", "dual"):
                picked = [p for p in eligible if p == 0]
            rules.end_step(len(picked))
            chosen = [p for p in picked if top1[p] != options.mask_id]
            if cache.kind == "d2cache" and not (cache.as_released and steps):
                for p, x in best.items():
                    if tokens[p] == options.mask_id:
                        certainty[p - start] = rules.certainty(x.softmax(-1))
            for p in chosen:
                tokens[begin + p] = top1[p]
            if cache.kind == "d2cache":
                masks = np.array([t == options.mask_id for t in tokens[start:]])
                planned = d2_rows(cache, maps, rows, start, length, begin - start, size, masks,
                                  certainty, [begin + p for p in picked], shift, margin)
            steps.append(Step(block, step + 1, [begin + p for p in chosen], [top1[p] for p in chosen],
                              [p in top for p in block_positions], top1, confidence, computed, unseen))
    return Outcome(steps, tokens, margin.value, logit_margin.value)
