"""What a trace must hold, from queries, keys and values in float64 with numpy loops over heads: the definitions of
docs/trace_format.md once more. A row of a block that a pass didn't compute is NaN in its queries."""

import warnings

import numpy as np

TAUS = (2, 3, 4, np.inf)


def attend(q, k, v, scale, visible=None):
    """q [B, D], k, v [N, D] -> output [B, D], lse [B]."""
    if len(k) == 0:
        missing = np.isnan(q[:, :1])
        return np.where(missing, np.nan, np.zeros((len(q), v.shape[1]))), np.where(missing[:, 0], np.nan, -np.inf)
    scores = q @ k.T * scale
    if visible is not None:
        scores = np.where(visible, scores, -np.inf)
    top = scores.max(-1, keepdims=True)
    top = np.where(top == -np.inf, 0.0, top)
    weights = np.exp(scores - top)
    total = weights.sum(-1, keepdims=True)
    with np.errstate(divide="ignore"):
        return weights @ v / np.maximum(total, 1e-300), (np.log(total) + top)[:, 0]


class Step:
    """One denoising pass of one sequence: q [L, H, B, D], k, v [L, K, N, D], `inside` [N] marks the block's keys. Where
    layers have windows, k, v and inside are lists by layer, and first[layer] is the position of its first key."""

    def __init__(self, q, k, v, inside, visible=None, first=None, scale=None):
        layers, heads, block, dim = q.shape
        group = heads // k[0].shape[0]
        scale = dim ** -0.5 if scale is None else scale
        inside = [inside] * layers if isinstance(inside, np.ndarray) else inside
        self.first = [0] * layers if first is None else first
        self.q, self.k, self.outside, self.group, self.scale = q, k, [~one for one in inside], group, scale
        parts = {name: np.zeros((layers, heads, block, dim)) for name in ("external", "internal")}
        lses = {name: np.zeros((layers, heads, block)) for name in ("external", "internal")}
        for layer in range(layers):
            for head in range(heads):
                for name, chosen in (("external", ~inside[layer]), ("internal", inside[layer])):
                    parts[name][layer, head], lses[name][layer, head] = attend(
                        q[layer, head], k[layer][head // group][chosen], v[layer][head // group][chosen], scale,
                        None if visible is None else visible[:, chosen])
        self.external, self.internal = parts["external"], parts["internal"]
        self.lse_external, self.lse_internal = lses["external"], lses["internal"]

    def merged(self, source=None):
        source = source or self
        top = np.maximum(source.lse_external, self.lse_internal)
        a, b = np.exp(source.lse_external - top)[..., None], np.exp(self.lse_internal - top)[..., None]
        return (a * source.external + b * self.internal) / (a + b)

    def sets(self, size):
        """-> index, probability [L, K, k], union [L, K]"""
        layers, heads, block, _ = self.q.shape
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
            for kv in range(kv_heads):
                mean = np.zeros((block, keys))
                for head in range(kv * self.group, (kv + 1) * self.group):
                    scores = self.q[layer, head] @ self.k[layer][kv][self.outside[layer]].T * self.scale
                    mean += np.exp(scores - self.lse_external[layer, head][:, None]) / self.group
                mean = mean[there[layer]]
                order = np.argsort(-mean.mean(0), kind="stable")[:kept]
                index[layer, kv, :kept] = order + self.first[layer]
                probability[layer, kv, :kept] = mean.mean(0)[order]
                own = np.argsort(-mean, axis=-1, kind="stable")[:, :kept]
                union[layer, kv] = len(set(own.ravel().tolist()))
        return index, probability, union


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def cosine(a, b):
    return mean_of_rows((unit(a) * unit(b)).sum(-1))


def mean_of_rows(x, axis=-1):
    """Over the rows that are there; NaN of none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return np.nanmean(x, axis)


def summary(steps, changed):
    """/summary of the last of a block's steps; changed: M of each."""
    now, last, first = steps[-1], steps[-2] if len(steps) > 1 else None, steps[0]
    prefix = any(outside.any() for outside in now.outside)
    values = {}
    if prefix:
        values["external_mass"] = mean_of_rows(1 / (1 + np.exp(now.lse_internal - now.lse_external)))
        true = now.merged()
        rows = []
        for tau in TAUS:
            source = steps[0]
            for i in range(1, len(steps)):
                if not changed[i] < tau:
                    source = steps[i]
            got = now.merged(source)
            e = got - true
            both = np.where(np.isnan(e), np.nan, true)
            rows.append(np.stack([np.nansum(x, (-2, -1)) for x in (e * e, np.abs(e), both * both, both * got)], -1))
        values["reuse_error"] = np.stack(rows)
    if last is not None:
        values["similarity_internal"] = cosine(now.internal, last.internal)
        if prefix:
            values["similarity_external"] = cosine(now.external, last.external)
        difference = unit(now.q) - unit(first.q)
        values["query_gap"] = mean_of_rows(np.linalg.norm(difference, axis=-1))
        values["query_block_gap"] = np.linalg.norm(mean_of_rows(difference, -2), axis=-1)
    return values
