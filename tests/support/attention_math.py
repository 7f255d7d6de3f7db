"""Attention, its top-k sets and its masks in float64, from the definitions of the papers (FlashBlock eqs. 3-9, MAGE
eqs. 2-4, Quest): the one oracle of all judges, which shares nothing with the product. H query heads, K KV heads,
G = H / K; query head h reads KV head h // G. Numpy arrays, or torch tensors where a caller needs gradients."""

import sys

import numpy as np


def _library(x):
    return np if isinstance(x, np.ndarray) else sys.modules["torch"]


def _groups(x, num_kv_heads):
    """[..., H, B, N] -> [..., K, G, B, N]"""
    return x.reshape(*x.shape[:-3], num_kv_heads, x.shape[-3] // num_kv_heads, *x.shape[-2:])


def _logsumexp(x, axis):
    """-inf of nothing."""
    return np.logaddexp.reduce(x, axis) if isinstance(x, np.ndarray) else x.logsumexp(axis)


def scores_of(query, key, scale):
    """query [..., H, B, D], key [..., K, N, D] -> [..., H, B, N]"""
    scores = _groups(query, key.shape[-3]) @ key.swapaxes(-1, -2)[..., None, :, :] * scale
    return scores.reshape(*query.shape[:-1], key.shape[-2])


def attention(scores, value, seen=True):
    """scores [..., H, B, N], value [..., K, N, D] -> output [..., H, B, D], lse [..., H, B] over the keys of `seen`, a
    mask that fits [..., K, G, B, N]. Rows without a key: 0 and -inf."""
    xp = _library(scores)
    grouped = _groups(scores, value.shape[-3])
    if seen is not True:
        grouped = xp.where(seen, grouped, -np.inf)
    keys = (grouped != -np.inf).any(-1)
    # A row without keys must not make NaN, not even in a branch that is thrown away: autograd follows both.
    lse = _logsumexp(xp.where(keys[..., None], grouped, 0.0), -1)
    output = xp.exp(grouped - lse[..., None]) @ value[..., None, :, :]
    lse = xp.where(keys, lse, -np.inf)
    return output.reshape(*scores.shape[:-1], value.shape[-1]), lse.reshape(scores.shape[:-1])


def attend(query, key, value, scale, seen=True):
    return attention(scores_of(query, key, scale), value, seen)


def merge(parts):
    """(output, lse) over disjoint keys -> the pair over all of them. A part of lse -inf has no key."""
    xp = _library(parts[0][1])
    lse = _logsumexp(xp.stack([one for _, one in parts]), 0)
    total = xp.where(lse == -np.inf, 0.0, lse)
    return sum(xp.exp(one - total)[..., None] * output for output, one in parts), lse


def mean_probability(scores, lse, num_kv_heads, per_token=False):
    """Mean softmax probability of every key over the G * B queries of a KV head [..., K, N], or over the G queries of
    one token [..., K, B, N]."""
    probability = _groups(_library(scores).exp(scores - lse[..., None]), num_kv_heads)
    return probability.mean(-3) if per_token else probability.mean((-3, -2))


def best(values, count):
    """Indices of the largest values, falling; of equal ones the lower index first."""
    return np.argsort(-values, axis=-1, kind="stable")[..., :count]


def members(sets, count):
    """sets [K][...] of key indices, -1 for none -> [K, count] bool"""
    found = np.zeros((len(sets), count + 1), bool)
    for row, index in zip(found, sets):
        row[index] = True
    return found[:, :count]


def page_keys(pages, page, count):
    return np.concatenate([np.arange(0), *(np.arange(p * page, min((p + 1) * page, count)) for p in pages)])


def page_bounds(key, page):
    """key [..., K, N, D] -> the largest and the least value of every page, [..., K, P, D] each."""
    if key.shape[-2] == 0:
        return key, key
    xp = _library(key)
    pages = [key[..., begin:begin + page, :] for begin in range(0, key.shape[-2], page)]
    return tuple(xp.stack([extreme(one, -2) for one in pages], -2) for extreme in (xp.amax, xp.amin))


def page_scores(query, bounds):
    """Mean over the G queries of a token of Quest's bound, sum_d max(q_d max_d, q_d min_d) -> [..., K, B, P]"""
    most, least = (x[..., None, None, :, :] for x in bounds)
    rows = _groups(query, bounds[0].shape[-3])[..., None, :]
    return _library(query).maximum(rows * most, rows * least).sum(-1).mean(-3)


def unit(x):
    norm = np.linalg.norm(x, axis=-1, keepdims=True)
    return np.divide(x, norm, out=np.zeros_like(x), where=norm != 0)


def cosine(a, b):
    return (unit(a) * unit(b)).sum(-1)


def error_sums(source, now, internal):
    """One-step reuse error of (output, lse) pairs -> [..., H, 4]: sum e^2, |e|, ref^2, ref * got. NaN is left out."""
    got, true = merge([source, internal])[0], merge([now, internal])[0]
    error = got - true
    true = np.where(np.isnan(error), np.nan, true)
    return np.stack([np.nansum(x, (-2, -1)) for x in (error**2, np.abs(error), true**2, true * got)], -1)
