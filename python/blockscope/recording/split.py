"""The two parts of a block's attention, and the keys that it looks at most: the definitions of docs/glossary.md with
torch operators, on whatever device the tensors are. Numbers are accumulated in float32."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

MOST_BYTES = 64 << 20  # of probabilities at a time


@dataclass
class Part:
    output: torch.Tensor  # [S, H, B, D]
    lse: torch.Tensor  # [S, H, B] float32, natural; -inf: no key


def _fused(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> tuple[torch.Tensor, torch.Tensor] | None:
    """PyTorch's own attention with its LSE; q [S, K, R, D] -> out, lse [S, K, R]; None where there is none."""
    aten = torch.ops.aten
    if q.shape[-1] != v.shape[-1] or k.stride(-1) != 1 or v.stride(-1) != 1:
        return None
    if q.device.type == "cpu":
        return aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, False, scale=scale)[:2]
    if q.device.type != "cuda" or q.shape[-1] % 8 != 0:
        return None
    if q.dtype in (torch.float16, torch.bfloat16) and q.shape[-1] <= 256:
        return aten._scaled_dot_product_flash_attention(q, k, v, 0.0, False, False, scale=scale)[:2]
    out, lse, *_ = aten._scaled_dot_product_efficient_attention(q, k, v, None, True, 0.0, False, scale=scale)
    return out, lse[..., :q.shape[2]]


def _scores(q: torch.Tensor, k: torch.Tensor, scale: float, softcap: float, bias: torch.Tensor | None) -> torch.Tensor:
    """q [S, H, B, D], k [S, K, N, D], bias that H, B, N broadcast with -> [S, H, B, N] float32."""
    sequences, heads, rows, dim = q.shape
    kv_heads = k.shape[1]
    folded = q.float().reshape(sequences, kv_heads, heads // kv_heads * rows, dim)
    scores = (folded @ k.float().transpose(-1, -2)).mul_(scale).view(sequences, heads, rows, k.shape[2])
    if softcap:
        scores = (scores / softcap).tanh_().mul_(softcap)
    return scores if bias is None else scores + bias


def scaled_scores(q: torch.Tensor, k: torch.Tensor, scale: float) -> torch.Tensor:
    """q [S, H, B, D], k [S, K, N, D] -> [S, H, B, N] float32."""
    return _scores(q, k, scale, 0.0, None)


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, softcap: float = 0.0,
           bias: torch.Tensor | None = None) -> Part:
    """Attention of q [S, H, B, D] over k, v [S, K, N, D] alone."""
    sequences, heads, rows, dim = q.shape
    kv_heads, keys = k.shape[1], k.shape[2]
    if keys == 0:
        return Part(q.new_zeros(sequences, heads, rows, v.shape[-1]),
                    q.new_full((sequences, heads, rows), -math.inf, dtype=torch.float32))
    if bias is None and not softcap:
        folded = q.reshape(sequences, kv_heads, heads // kv_heads * rows, dim)
        fused = _fused(folded, k, v, scale)
        if fused is not None:
            out = fused[0].float() if q.device.type == "cpu" else fused[0]  # as everything that is computed of it there
            return Part(out.reshape(sequences, heads, rows, dim), fused[1].reshape(sequences, heads, rows).float())
    scores = _scores(q, k, scale, softcap, bias)
    lse = scores.logsumexp(-1)
    # A query that sees no key gets zeros, as one of a block without a prefix does.
    weights = (scores - lse.masked_fill(lse == -math.inf, 0.0).unsqueeze(-1)).exp_()
    folded = weights.view(sequences, kv_heads, heads // kv_heads * rows, keys) @ v.float()
    return Part(folded.view(sequences, heads, rows, v.shape[-1]), lse)


def merge(external: Part, internal: Part) -> torch.Tensor:
    """[S, H, B, D] float32 of both parts together."""
    weight = torch.sigmoid(external.lse - internal.lse).unsqueeze(-1)
    inside = internal.output.float()
    return inside + weight * (external.output.float() - inside)


@dataclass
class Sets:
    index: torch.Tensor  # [S, K, k] int32 by falling probability, then by rising index; -1: fewer keys
    probability: torch.Tensor  # [S, K, k] float32, mean over the queries; 0 where -1
    union_size: torch.Tensor  # [S, K] int32, of the tokens' own sets
    token_index: torch.Tensor | None = None  # [S, K, B, k] int32, each token's own set, ordered as index is


@dataclass
class LayerAttention:
    external: Part
    internal: Part
    query: torch.Tensor  # [S, H, B, D]
    sets: Sets | None
    key: torch.Tensor  # [S, K, B, D], of the block
    value: torch.Tensor


def _exact_topk(values: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The k largest along the last axis, and of equal ones those of the lowest index: values, indices, sorted."""
    kth = values.topk(k, -1).values[..., -1:]
    above = values > kth
    equal = values == kth
    chosen = above | equal & (equal.cumsum(-1) <= k - above.sum(-1, keepdim=True))
    index = torch.where(chosen, 1, 0).topk(k, -1).indices.sort(-1).values
    found, order = torch.sort(values.gather(-1, index), dim=-1, descending=True, stable=True)
    return found, index.gather(-1, order)


def topk_sets(q: torch.Tensor, k: torch.Tensor, lse: torch.Tensor, size: int, scale: float, softcap: float = 0.0,
              bias: torch.Tensor | None = None, with_tokens: bool = False) -> Sets:
    """The keys of k [S, K, N, D] with the largest mean of exp(score - lse) over a KV head's queries."""
    sequences, heads, rows, _ = q.shape
    kv_heads, keys = k.shape[1], k.shape[2]
    group, kept = heads // kv_heads, min(size, keys)
    index = torch.full((sequences, kv_heads, size), -1, dtype=torch.int32, device=q.device)
    probability = torch.zeros(sequences, kv_heads, size, device=q.device)
    union = torch.zeros(sequences, kv_heads, dtype=torch.int32, device=q.device)
    of_tokens = index.unsqueeze(2).repeat(1, 1, rows, 1) if with_tokens else None
    if kept == 0:
        return Sets(index, probability, union, of_tokens)
    step = max(1, MOST_BYTES // (sequences * group * rows * keys * 4))
    for begin in range(0, kv_heads, step):
        part = slice(begin, min(begin + step, kv_heads))
        queries = slice(part.start * group, part.stop * group)
        mine = bias[:, queries] if bias is not None and bias.shape[1] > 1 else bias
        scores = _scores(q[:, queries], k[:, part], scale, softcap, mine)
        norm = lse[:, queries].unsqueeze(-1)
        weights = (scores - norm.masked_fill(norm == -math.inf, 0.0)).exp_()
        tokens = weights.view(sequences, part.stop - begin, group, rows, keys).mean(2)  # [S, K', B, N]
        found, order = _exact_topk(tokens.mean(2), kept)
        index[:, part, :kept] = order.int()
        probability[:, part, :kept] = found
        own = _exact_topk(tokens, kept)[1] if with_tokens else tokens.topk(kept, -1).indices
        if with_tokens:
            of_tokens[:, part, :, :kept] = own.int()
        marks = torch.zeros(*tokens.shape[:2], keys, dtype=torch.bool, device=q.device)
        marks.scatter_(-1, own.flatten(2), True)
        union[:, part] = marks.sum(-1, dtype=torch.int32)
    return Sets(index, probability, union, of_tokens)


def topk_sets_of(there: torch.Tensor, q: torch.Tensor, k: torch.Tensor, lse: torch.Tensor, size: int, scale: float,
                 softcap: float = 0.0, bias: torch.Tensor | None = None) -> Sets:
    """The same over the queries that are there [S, B]; -1 and NaN of a sequence without any."""
    found = []
    for slot, rows in enumerate(there):
        one = slice(slot, slot + 1)
        mine = bias if bias is None or bias.shape[0] == 1 else bias[one]
        if mine is not None and mine.shape[-2] > 1:
            mine = mine[:, :, rows]
        if not bool(rows.any()):
            kv_heads = k.shape[1]
            found.append(Sets(torch.full((1, kv_heads, size), -1, dtype=torch.int32, device=q.device),
                              torch.full((1, kv_heads, size), math.nan, device=q.device),
                              torch.full((1, kv_heads), -1, dtype=torch.int32, device=q.device)))
        else:
            found.append(topk_sets(q[one, :, rows], k[one], lse[one, :, rows], size, scale, softcap, mine))
    names = ("index", "probability", "union_size")
    return Sets(*(torch.cat([getattr(sets, name) for sets in found]) for name in names))
