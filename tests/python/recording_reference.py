"""What a trace must hold, from queries, keys and values in float64: the definitions of
docs/trace_format.md once more. A row of a block that a pass didn't compute is NaN in its queries."""

import warnings

import attention_math as am
import numpy as np

TAUS = (2, 3, 4, np.inf)


class Step:
    """One denoising pass of one sequence: q [L, H, B, D], k, v [L, K, N, D], `inside` [N] marks the block's keys. Where
    layers have windows, k, v and inside are lists by layer, and first[layer] is the position of its first key."""

    def __init__(self, q, k, v, inside, visible=None, first=None, scale=None):
        layers, heads, block, dim = q.shape
        scale = dim ** -0.5 if scale is None else scale
        inside = [inside] * layers if isinstance(inside, np.ndarray) else inside
        self.first = [0] * layers if first is None else first
        self.q, self.k, self.v, self.scale = q, k, v, scale
        self.outside = [~one for one in inside]
        parts = {name: np.zeros((layers, heads, block, dim)) for name in ("external", "internal")}
        lses = {name: np.zeros((layers, heads, block)) for name in ("external", "internal")}
        for layer in range(layers):
            for name, chosen in (("external", ~inside[layer]), ("internal", inside[layer])):
                seen = True if visible is None else visible[:, chosen]
                output, lse = am.attend(q[layer], k[layer][:, chosen], v[layer][:, chosen], scale, seen)
                missing = np.isnan(q[layer, ..., 0])
                output[missing] = lse[missing] = np.nan
                parts[name][layer], lses[name][layer] = output, lse
        self.external, self.internal = parts["external"], parts["internal"]
        self.lse_external, self.lse_internal = lses["external"], lses["internal"]

    def spread(self, prompt, masked, bins, both_sides):
        """{name: [L, H, ...]}"""
        layers = []
        for q, k, outside, first in zip(self.q, self.k, self.outside, self.first):
            start, size = first + int(np.argmin(outside)), int((~outside).sum())
            layers.append(spread(am.scores_of(q, k, self.scale), first + np.arange(len(outside)), start, size, prompt,
                                 masked, bins, both_sides))
        return {name: np.stack([layer[name] for layer in layers]) for name in layers[0]}

    def sets(self, size):
        """-> index, probability [L, K, k], union [L, K]"""
        layers = len(self.q)
        kv_heads = self.k[0].shape[0]
        there = ~np.isnan(self.q[:, 0, :, 0])  # [L, B]
        index = np.full((layers, kv_heads, size), -1)
        probability, union = np.zeros((layers, kv_heads, size)), np.zeros((layers, kv_heads), int)
        for layer in range(layers):
            keys = int(self.outside[layer].sum())
            kept = min(size, keys)
            if not there[layer].any():
                probability[layer], union[layer] = np.nan, -1
                continue
            scores = am.scores_of(self.q[layer], self.k[layer][:, self.outside[layer]], self.scale)
            tokens = am.mean_probability(scores, self.lse_external[layer], kv_heads, per_token=True)[:, there[layer]]
            mean = tokens.mean(1)
            best = am.best(mean, kept)
            index[layer, :, :kept] = best + self.first[layer]
            probability[layer, :, :kept] = np.take_along_axis(mean, best, -1)
            union[layer] = [len(set(own.ravel().tolist())) for own in am.best(tokens, kept)]
        return index, probability, union


def spread(scores, positions, start, size, prompt, masked, bins, both_sides):
    """/spread of a layer from scores [H, B, N] of the keys at positions [N] and the block [start, start + size). Rows of
    NaN don't count. masked [size]: the block's masks. bins: on each side of the block."""
    heads, end = len(scores), start + size
    rows = np.flatnonzero(~np.isnan(scores).any((0, 2)))
    inside = (positions >= start) & (positions < end)
    shapes = {"entropy": 3, "largest": 3, "distance": bins * (2 if both_sides else 1), "offset": 2 * size - 1, "region": 6}
    if not len(rows):
        return {name: np.full((heads, count), np.nan) for name, count in shapes.items()}
    found = {name: np.zeros((heads, count)) for name, count in shapes.items()}
    for side, part in enumerate((~inside, inside, inside | True)):
        chosen = scores[:, rows][..., part]
        lse = np.logaddexp.reduce(chosen, -1)
        weights = np.exp(chosen - np.where(lse == -np.inf, 0, lse)[..., None])
        logs = np.log(np.where(weights > 0, weights, 1))
        found["entropy"][:, side] = -(weights * logs).sum(-1).mean(1)
        found["largest"][:, side] = weights.max(-1, initial=0).mean(1)
    for key, position in enumerate(positions):
        weight = weights[..., key].mean(1)
        if inside[key]:
            region = 4 if masked[position - start] else 3
            for i, row in enumerate(rows):
                found["offset"][:, position - start - row + size - 1] += weights[:, i, key] / len(rows)
        else:
            after = position >= end
            power = min(int(position - end + 1 if after else start - position).bit_length() - 1, bins - 1)
            found["distance"][:, bins + power if after else bins - 1 - power] += weight
            region = 5 if after else 0 if position < 4 else 1 if position < prompt else 2
        found["region"][:, region] += weight
    return found


def mean_of_rows(x, axis=-1):
    """Over the rows that are there; NaN of none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return np.nanmean(x, axis)


def last_read(changed, tau):
    """Index of the last of a block's steps that reads the prefix under the rule of tau; changed: M of each."""
    read = since = 0
    for step, moved in enumerate(changed[1:], 1):
        since += moved
        if not since < tau:
            read, since = step, 0
    return read


def kept(now, source, inputs, masked):
    """/summary/kept_pair of one tau, [L, H, kind, 5]; inputs: of the block's steps from the source's on; masked [B]: of
    the last one."""
    shape = now.lse_external.shape
    since = np.any([a != b for a, b in zip(inputs, inputs[1:])], 0)
    kinds = np.where(masked, 0, np.where(since, 2, 1))
    inside = (now.internal, now.lse_internal)
    true, got = (am.merge([(one.external, one.lse_external), inside])[0] for one in (now, source))
    change = np.abs(now.lse_external - source.lse_external)
    with np.errstate(invalid="ignore"):
        values = np.stack([np.ones(shape), am.cosine(now.external, source.external), change,
                           ((got - true) ** 2).sum(-1), (true**2).sum(-1)], -1)
    values = np.where(np.isfinite(change)[..., None], values, 0.0)
    return np.stack([values[:, :, kinds == kind].sum(2) for kind in range(3)], 2)


def summary(steps, changed, inputs=None, mask=None, masked=None):
    """/summary of the last of a block's steps; changed: M of each. inputs: [B] of each, for `kept_pair`. masked [B]: of
    the last step's input; None: where it is the mask."""
    now, last, first = steps[-1], steps[-2] if len(steps) > 1 else None, steps[0]
    prefix = any(outside.any() for outside in now.outside)
    values = {}
    if prefix:
        values["external_mass"] = mean_of_rows(1 / (1 + np.exp(now.lse_internal - now.lse_external)))
        reads = [last_read(changed[:len(steps)], tau) for tau in TAUS]
        sources = [steps[read] for read in reads]
        pair = lambda one: (one.external, one.lse_external)
        values["reuse_error"] = np.stack([am.error_sums(pair(source), pair(now), (now.internal, now.lse_internal))
                                          for source in sources])
        if inputs is not None:
            inputs = [np.array(one) for one in inputs[:len(steps)]]
            masked = inputs[-1] == mask if masked is None else np.array(masked)
            values["kept_pair"] = np.stack([np.full((*now.lse_external.shape[:2], 3, 5), np.nan) if read == len(steps) - 1
                                       else kept(now, steps[read], inputs[read:], masked) for read in reads])
    if last is not None:
        values["similarity_internal"] = mean_of_rows(am.cosine(now.internal, last.internal))
        if prefix:
            values["similarity_external"] = mean_of_rows(am.cosine(now.external, last.external))
        difference = am.unit(now.q) - am.unit(first.q)
        values["query_gap"] = mean_of_rows(np.linalg.norm(difference, axis=-1))
        values["query_block_gap"] = np.linalg.norm(mean_of_rows(difference, -2), axis=-1)
    return values
