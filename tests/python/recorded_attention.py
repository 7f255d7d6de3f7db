"""Ways in which users write attention themselves, as functions of q [S, H, T, D] and k, v [S, K, N, D], and what each
makes of the scores."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import recorded_models as models

LAYERS, SCALE = 2, 48 ** -0.5  # of the plain model, cut down


def small_model(name="needle"):
    model = models.PlainModel(name)
    model.layers = model.layers[:LAYERS]
    model.config.num_hidden_layers = LAYERS
    return model


def repeated(q, k, v):
    group = q.shape[1] // k.shape[1]
    return k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)


def seen(rows, keys):
    """A mask within the block: each row misses a key that its neighbour sees, of the prefix and of the block."""
    row, key = torch.arange(rows)[:, None], torch.arange(keys)
    return (key + row) % 5 != 0


def hides(s, h, row, key, rows):
    return np.where((key + row) % 5 != 0, s, -np.inf)


def plain(s, h, row, key, rows):
    return s


# --- ways to write it -------------------------------------------------------------------------------------------------


def packed(q, k, v):
    k, v = repeated(q, k, v)
    return (x.reshape(-1, *x.shape[2:]) for x in (q, k, v))


def bmm(q, k, v):
    a, b, c = packed(q, k, v)
    return torch.bmm(torch.softmax(torch.bmm(a * SCALE, b.transpose(1, 2)), -1), c).view(q.shape)


def bmm_viewed(q, k, v):
    """As fairseq and OPT: a mask in four dimensions between products in three."""
    a, b, c = packed(q, k, v)
    scores = torch.bmm(a, b.transpose(1, 2)) / math.sqrt(48)
    mask = torch.zeros(q.shape[2], k.shape[2]).masked_fill(~seen(q.shape[2], k.shape[2]), torch.finfo(q.dtype).min)
    scores = scores.view(*q.shape[:2], q.shape[2], -1) + mask
    weights = F.dropout(F.softmax(scores.view(len(a), q.shape[2], -1), dim=-1), p=0.1, training=False)
    return torch.bmm(weights, c).view(q.shape)


def baddbmm(q, k, v):
    """As BLOOM."""
    a, b, c = packed(q, k, v)
    bias = torch.arange(k.shape[2]).mul(0.1).expand(len(a), 1, -1)
    return torch.bmm(torch.baddbmm(bias, a, b.mT, beta=0.5, alpha=SCALE).softmax(2), c).view(q.shape)


def baddbmm_of_nothing(q, k, v):
    """As Megatron: what is added is empty memory."""
    a, b, c = packed(q, k, v)
    empty = torch.full((len(a), q.shape[2], k.shape[2]), math.nan)
    return torch.baddbmm(empty, a, b.transpose(1, 2), beta=0.0, alpha=SCALE).softmax(2).bmm(c).view(q.shape)


def einsum(q, k, v):
    k, v = repeated(q, k, v)
    scores = torch.einsum("bhqd, bhkd -> bhqk", q, k) * SCALE
    return torch.einsum("bhqk,bhkd->bhqd", scores.softmax(-1), v)


def einsum_of_rows(q, k, v):
    """Heads after rows, and the product with the values in another order."""
    k, v = (x.transpose(1, 2) for x in repeated(q, k, v))
    scores = torch.einsum("bqhd,bkhd->bqhk", q.transpose(1, 2), k) * SCALE
    scores = scores.masked_fill(~seen(q.shape[2], k.shape[1])[:, None], -1e9)
    return torch.einsum("bkhd,bqhk->bqhd", v, scores.softmax(-1)).transpose(1, 2)


def einsum_of_groups(q, k, v):
    grouped = q.unflatten(1, (k.shape[1], -1))
    scores = torch.einsum("bkgqd,bknd->bkgqn", grouped, k) * SCALE
    return torch.einsum("bkgqn,bknd->bkgqd", torch.softmax(scores, -1), v).flatten(1, 2)


def einsum_of_dots(q, k, v):
    k, v = repeated(q, k, v)
    return torch.einsum("...qk,...kd->...qd", torch.einsum("...qd,...kd->...qk", q, k).mul(SCALE).softmax(3), v)


def einsum_of_keys_first(q, k, v):
    k, v = repeated(q, k, v)
    scores = torch.einsum("bhkd,bhqd->bhkq", k, q) * SCALE
    return torch.einsum("bhkq,bhkd->bhqd", scores.softmax(2), v)


def grouped(q, k, v):
    """Five dimensions: the keys of a KV head are broadcast to its query heads."""
    q, k, v = q.unflatten(1, (k.shape[1], -1)), k.unsqueeze(2), v.unsqueeze(2)
    return ((q @ k.mT * SCALE).softmax(-1) @ v).flatten(1, 2)


def where(q, k, v):
    k, v = repeated(q, k, v)
    scores = q @ k.transpose(-1, -2) * torch.tensor(SCALE)
    hidden = torch.tensor(-torch.inf)
    return torch.where(seen(q.shape[2], k.shape[2]), scores, hidden).softmax(-1) @ v


def where_hidden(q, k, v):
    k, v = repeated(q, k, v)
    scores = q @ k.transpose(-1, -2) / torch.sqrt(torch.tensor([48.0]))
    scores = torch.where(~seen(q.shape[2], k.shape[2])[None, None], torch.finfo(q.dtype).min, scores)
    return torch.softmax(scores.float(), dim=-1).to(q.dtype) @ v


def written(q, k, v):
    """Masks by index and in place, and one that is subtracted."""
    k, v = repeated(q, k, v)
    scores = torch.matmul(q, k.transpose(2, 3)).div_(math.sqrt(48))
    hidden = ~seen(q.shape[2], k.shape[2])
    scores[:, :, hidden] = -torch.inf
    scores.masked_fill_(hidden, torch.finfo(q.dtype).min)
    scores -= hidden * 1e9
    return torch.matmul(scores.softmax(-1).nan_to_num(), v)


def raised(q, k, v):
    """As XGLM: nothing stays -inf. As CodeGen: the scale comes after the mask."""
    k, v = repeated(q, k, v)
    mask = torch.zeros(q.shape[2], k.shape[2]).masked_fill(~seen(q.shape[2], k.shape[2]), torch.finfo(q.dtype).min)
    lowest = torch.tensor(torch.finfo(q.dtype).min)
    return (torch.max(torch.matmul(q, k.mT) + mask, lowest) / math.sqrt(48)).clamp(min=-1e30).softmax(-1) @ v


def multi_query(q, k, v):
    """As GPTBigCode: rows and query heads of one KV head in one dimension."""
    k, v = k[:, :1], v[:, :1]
    rows = q.transpose(1, 2).flatten(1, 2)
    scores = torch.baddbmm(torch.empty(1), rows, k[:, 0].mT, beta=0, alpha=SCALE)
    scores = scores.view(len(q), q.shape[2], q.shape[1], -1)
    scores = torch.where(seen(q.shape[2], k.shape[2])[:, None], scores, torch.full([], -torch.inf))
    return torch.bmm(scores.softmax(-1).view(rows.shape[0], rows.shape[1], -1), v[:, 0]).view(
        len(q), q.shape[2], q.shape[1], -1).transpose(1, 2)


def by_hand(q, k, v):
    k, v = repeated(q, k, v)
    weights = torch.exp(q @ k.mT * SCALE)
    return weights / weights.sum(-1, keepdim=True) @ v


def by_hand_stable(q, k, v):
    k, v = repeated(q, k, v)
    scores = (q @ k.mT * SCALE).masked_fill(~seen(q.shape[2], k.shape[2]), -torch.inf)
    weights = (scores - scores.max(dim=-1, keepdim=True).values.detach()).exp()
    return (weights / (weights.sum(dim=-1)[..., None] + 1e-9)) @ v


def by_hand_late(q, k, v):
    """Divided after the product with the values."""
    k, v = repeated(q, k, v)
    scores = q @ k.mT * SCALE
    weights = torch.exp(scores - torch.amax(scores, -1, True))
    weights = weights.masked_fill(~seen(q.shape[2], k.shape[2]), 0)
    return (weights @ v) / weights.sum(-1).unsqueeze(-1).clamp_min(1e-9)


def by_logarithms(q, k, v):
    k, v = repeated(q, k, v)
    scores = q @ k.mT * SCALE
    return torch.exp(scores - torch.logsumexp(scores, -1, keepdim=True)) @ v


def log_softmax(q, k, v):
    k, v = repeated(q, k, v)
    return F.log_softmax(q @ k.mT * SCALE, dim=-1).exp() @ v


def ours(q, k, v):
    ops = pytest.importorskip("blockscope.ops", exc_type=ImportError)
    external = k.shape[2] - q.shape[2]
    return ops.split_attention(q, k[:, :, :external], v[:, :, :external], k[:, :, external:], v[:, :, external:]).out


def bias(s, h, row, key, rows):
    return s + 0.05 * key


WAYS = {way.__name__: (way, change) for way, change in (
    (bmm, plain), (bmm_viewed, hides), (baddbmm, bias), (baddbmm_of_nothing, plain), (einsum, plain),
    (einsum_of_rows, hides), (einsum_of_groups, plain), (einsum_of_dots, plain), (einsum_of_keys_first, plain),
    (grouped, plain), (where, hides), (where_hidden, hides), (written, hides), (raised, hides), (by_hand, plain),
    (by_hand_stable, hides), (by_hand_late, hides), (by_logarithms, plain), (log_softmax, plain), (ours, plain))}


def as_sdpa(change):
    def attend(q, k, v, mask):
        mask = seen(q.shape[2], k.shape[2]) if change is hides else None
        if change is bias:
            mask = torch.arange(k.shape[2]).mul(0.05).expand(q.shape[2], -1)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
    return attend


# --- sequences and heads in one dimension -----------------------------------------------------------------------------


def batch_first(q, k, v):
    k, v = repeated(q, k, v)
    a, b, c = (x.flatten(0, 1).mul(1.0) for x in (q, k, v))  # the product shows them no longer
    scores = torch.bmm(a, b.transpose(1, 2)) * SCALE
    weights = scores.view(*q.shape[:2], *scores.shape[1:]).softmax(-1)
    return torch.bmm(weights.view(scores.shape), c).view(q.shape)


def heads_first(q, k, v):
    """As some translations of the first transformer: n * b instead of b * n."""
    k, v = repeated(q, k, v)
    a, b, c = (x.transpose(0, 1).contiguous().view(-1, *x.shape[2:]) for x in (q, k, v))
    out = torch.bmm(torch.bmm(a, b.transpose(1, 2)).mul(SCALE).softmax(-1), c)
    return out.view(q.shape[1], q.shape[0], *q.shape[2:]).transpose(0, 1)


def rows_first(q, k, v):
    """As fairseq: [T, S * H, D], transposed."""
    k, v = repeated(q, k, v)
    a, b, c = (x.permute(2, 0, 1, 3).contiguous().view(x.shape[2], -1, x.shape[3]).transpose(0, 1) for x in (q, k, v))
    out = torch.bmm(torch.bmm(a, b.transpose(1, 2)).mul(SCALE).softmax(-1), c)
    return out.view(q.shape)


def einsum_heads_first(q, k, v):
    k, v = repeated(q, k, v)
    weights = torch.einsum("hbqd,bhkd->hbqk", q.transpose(0, 1), k).mul(SCALE).softmax(-1)
    return torch.einsum("hbqk,bhkd->bhqd", weights, v)
