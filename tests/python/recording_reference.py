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
        self.q, self.k, self.outside, self.scale = q, k, [~one for one in inside], scale
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
        sources = [next((one for one, moved in zip(steps[:0:-1], changed[:0:-1]) if not moved < tau), steps[0])
                   for tau in TAUS]
        pair = lambda one: (one.external, one.lse_external)
        values["reuse_error"] = np.stack([am.error_sums(pair(source), pair(now), (now.internal, now.lse_internal))
                                          for source in sources])
    if last is not None:
        values["similarity_internal"] = mean_of_rows(am.cosine(now.internal, last.internal))
        if prefix:
            values["similarity_external"] = mean_of_rows(am.cosine(now.external, last.external))
        difference = am.unit(now.q) - am.unit(first.q)
        values["query_gap"] = mean_of_rows(np.linalg.norm(difference, axis=-1))
        values["query_block_gap"] = np.linalg.norm(mean_of_rows(difference, -2), axis=-1)
    return values
