"""What a trace must hold, from queries, keys and values in float64 with numpy loops over heads: the definitions of
docs/trace_format.md once more."""

import numpy as np

TAUS = (2, 3, 4, np.inf)


def attend(q, k, v, scale, visible=None):
    """q [B, D], k, v [N, D] -> output [B, D], lse [B]."""
    if len(k) == 0:
        return np.zeros((len(q), v.shape[1])), np.full(len(q), -np.inf)
    scores = q @ k.T * scale
    if visible is not None:
        scores = np.where(visible, scores, -np.inf)
    top = scores.max(-1, keepdims=True)
    top = np.where(np.isfinite(top), top, 0.0)
    weights = np.exp(scores - top)
    total = weights.sum(-1, keepdims=True)
    with np.errstate(divide="ignore"):
        return weights @ v / np.maximum(total, 1e-300), (np.log(total) + top)[:, 0]


class Step:
    """One denoising pass of one sequence: q [L, H, B, D], k, v [L, K, N, D], `inside` [N] marks the block's keys."""

    def __init__(self, q, k, v, inside, visible=None):
        layers, heads, block, dim = q.shape
        group = heads // k.shape[1]
        scale = dim ** -0.5
        self.q, self.k, self.outside, self.group, self.scale = q, k, ~inside, group, scale
        parts = {name: np.zeros((layers, heads, block, dim)) for name in ("external", "internal")}
        lses = {name: np.zeros((layers, heads, block)) for name in ("external", "internal")}
        for layer in range(layers):
            for head in range(heads):
                for name, chosen in (("external", ~inside), ("internal", inside)):
                    parts[name][layer, head], lses[name][layer, head] = attend(
                        q[layer, head], k[layer, head // group][chosen], v[layer, head // group][chosen], scale,
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
        kv_heads, keys = self.k.shape[1], int(self.outside.sum())
        kept = min(size, keys)
        index = np.full((layers, kv_heads, size), -1)
        probability, union = np.zeros((layers, kv_heads, size)), np.zeros((layers, kv_heads), int)
        for layer in range(layers):
            for kv in range(kv_heads):
                mean = np.zeros((block, keys))
                for head in range(kv * self.group, (kv + 1) * self.group):
                    scores = self.q[layer, head] @ self.k[layer, kv][self.outside].T * self.scale
                    mean += np.exp(scores - self.lse_external[layer, head][:, None]) / self.group
                order = np.argsort(-mean.mean(0), kind="stable")[:kept]
                index[layer, kv, :kept] = order
                probability[layer, kv, :kept] = mean.mean(0)[order]
                own = np.argsort(-mean, axis=-1, kind="stable")[:, :kept]
                union[layer, kv] = len(set(own.ravel().tolist()))
        return index, probability, union


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def cosine(a, b):
    return (unit(a) * unit(b)).sum(-1).mean(-1)


def summary(steps, changed):
    """/summary of the last of a block's steps; changed: M of each."""
    now, last, first = steps[-1], steps[-2] if len(steps) > 1 else None, steps[0]
    prefix = now.outside.any()
    values = {}
    if prefix:
        values["external_mass"] = (1 / (1 + np.exp(now.lse_internal - now.lse_external))).mean(-1)
        true = now.merged()
        rows = []
        for tau in TAUS:
            source = steps[0]
            for i in range(1, len(steps)):
                if not changed[i] < tau:
                    source = steps[i]
            got = now.merged(source)
            e = got - true
            rows.append(np.stack([(e * e).sum((-2, -1)), np.abs(e).sum((-2, -1)), (true * true).sum((-2, -1)),
                                  (true * got).sum((-2, -1))], -1))
        values["reuse_error"] = np.stack(rows)
    if last is not None:
        values["similarity_internal"] = cosine(now.internal, last.internal)
        if prefix:
            values["similarity_external"] = cosine(now.external, last.external)
        difference = unit(now.q) - unit(first.q)
        values["query_gap"] = np.linalg.norm(difference, axis=-1).mean(-1)
        values["query_block_gap"] = np.linalg.norm(difference.mean(-2), axis=-1)
    return values
