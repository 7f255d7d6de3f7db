"""float64 numpy recomputation of what a trace records about attention, from the definitions of the
papers (FlashBlock eqs. 3-9, MAGE eqs. 2-4), sharing nothing with the runtime. One layer at a time.
H query heads, K KV heads, G = H/K; query head h reads KV head h // G."""

import numpy as np


def scores_of(query, key, scale):
    """query [H, B, D], key [K, N, D] -> [H, B, N]"""
    group = query.shape[0] // key.shape[0]
    return np.einsum("hbd,hnd->hbn", query, np.repeat(key, group, axis=0)) * scale


def attention(scores, value):
    """scores [H, B, N], value [K, N, D] -> output [H, B, D], lse [H, B]; empty: 0 and -inf."""
    heads, block, count = scores.shape
    if count == 0:
        return np.zeros((heads, block, value.shape[-1])), np.full((heads, block), -np.inf)
    top = scores.max(-1, keepdims=True)
    weight = np.exp(scores - top)
    total = weight.sum(-1)
    group = heads // value.shape[0]
    output = np.einsum("hbn,hnd->hbd", weight, np.repeat(value, group, axis=0)) / total[..., None]
    return output, np.log(total) + top[..., 0]


def merge(external, lse_external, internal, lse_internal):
    top = np.maximum(lse_external, lse_internal)
    out_weight = np.exp(lse_external - top)[..., None]
    in_weight = np.exp(lse_internal - top)[..., None]
    return (out_weight * external + in_weight * internal) / (out_weight + in_weight)


def mean_probability(scores, lse, num_kv_heads, per_token=False):
    """Mean softmax probability of every key over the G * B queries of a KV head [K, N], or over
    the G queries of one token [K, B, N]."""
    probability = np.exp(scores - lse[..., None])
    heads, block, count = scores.shape
    grouped = probability.reshape(num_kv_heads, heads // num_kv_heads, block, count)
    return grouped.mean(1) if per_token else grouped.mean((1, 2))


def unit(x):
    norm = np.linalg.norm(x, axis=-1, keepdims=True)
    return np.divide(x, norm, out=np.zeros_like(x), where=norm > 0)


def cosine(a, b):
    return (unit(a) * unit(b)).sum(-1)


def error_sums(source, now, internal):
    """One-step reuse error of (output, lse) pairs -> [H, 4]: sum e^2, |e|, ref^2, ref * got."""
    reference = merge(*now, *internal)
    got = merge(*source, *internal)
    error = got - reference
    return np.stack([(error**2).sum((1, 2)), np.abs(error).sum((1, 2)),
                     (reference**2).sum((1, 2)), (reference * got).sum((1, 2))], -1)
