"""The operators that policies use, in terms of torch operators: names, arguments and results are those of
``torch.ops.blockscope``. They serve tensors that the library doesn't take, and Pythons without it. Sums are float32."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..recording.torch_operators import merged, split_attention, topk_sets

__all__ = ["block_topk", "gather_attention", "page_bounds", "page_scores", "reuse_attention", "split_attention",
           "unselected_attention"]


def reuse_attention(
    q: Tensor, k_ext: Tensor, v_ext: Tensor, ext_len: Tensor, k_in: Tensor, v_in: Tensor, cached_external: Tensor,
    cached_lse: Tensor, reuse_mask: Tensor, scale: float, refresh_rows: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """out, external, lse_external, internal, lse_internal, keys_read. KV heads that nobody reads are left out."""
    sequences, heads, rows, _ = q.shape
    kv_heads = k_ext.shape[1]
    group = heads // kv_heads
    mask = reuse_mask.to(q.device).expand(sequences, heads)
    kept = mask.unsqueeze(-1).expand(sequences, heads, rows)
    if refresh_rows is not None:
        kept = kept & ~refresh_rows.to(q.device).unsqueeze(1)
    read = (~kept).view(sequences, kv_heads, group * rows).any(-1)  # [S, K]
    some = read.any(0).nonzero()[:, 0]
    external, lse = cached_external, cached_lse
    if len(some):
        queries = (some.unsqueeze(-1) * group + torch.arange(group, device=q.device)).flatten()
        found = split_attention(q[:, queries], k_ext[:, some], v_ext[:, some], ext_len, k_in[:, some, :0],
                                v_in[:, some, :0], scale)
        new, new_lse = external.clone(), lse.clone()
        new[:, queries], new_lse[:, queries] = found[1], found[2]
        external = torch.where(kept.unsqueeze(-1), external, new)
        lse = torch.where(kept, lse, new_lse)
    internal, lse_internal = split_attention(q, k_ext[:, :, :0], v_ext[:, :, :0], torch.zeros_like(ext_len), k_in,
                                             v_in, scale)[3:]
    out = merged(external, lse, internal, lse_internal).to(q.dtype)
    return out, external, lse, internal, lse_internal, ext_len.to(q.device).unsqueeze(-1) * read


def _over_sets(q: Tensor, k: Tensor, v: Tensor, seen: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Attention [S, H, B, D] and its LSE over the keys where seen [S, K, N] is true."""
    bias = torch.zeros(seen.shape, device=q.device).masked_fill_(~seen, -math.inf)
    bias = bias.repeat_interleave(q.shape[1] // k.shape[1], 1).unsqueeze(2)  # [S, H, 1, N]
    length = torch.full((q.shape[0],), k.shape[2], dtype=torch.int64)
    return split_attention(q, k, v, length, k[:, :, :0], v[:, :, :0], scale, 0.0, bias)[1:3]


def _chosen(index: Tensor, k_ext: Tensor, ext_len: Tensor) -> tuple[Tensor, Tensor]:
    """[S, K, N] bool: the keys that a set names, and those that count."""
    place = torch.arange(k_ext.shape[2], device=k_ext.device)
    counts = (place < ext_len.to(k_ext.device).view(-1, 1, 1)).expand(*k_ext.shape[:2], -1)
    marks = torch.zeros(*k_ext.shape[:2], k_ext.shape[2] + 1, dtype=torch.bool, device=k_ext.device)
    marks.scatter_(-1, torch.where(index < 0, k_ext.shape[2], index).long(), True)
    return marks[..., :-1] & counts, counts


def gather_attention(
    q: Tensor, k_ext: Tensor, v_ext: Tensor, ext_len: Tensor, index: Tensor, k_in: Tensor, v_in: Tensor, scale: float,
    dense: Tensor | None = None, residual: Tensor | None = None, lse_residual: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """out, external, lse_external, internal, lse_internal, keys_read"""
    chosen, counts = _chosen(index, k_ext, ext_len)
    if dense is not None:
        chosen = torch.where(dense.to(q.device).view(-1, 1, 1), counts, chosen)
    external, lse = _over_sets(q, k_ext, v_ext, chosen, scale)
    internal, lse_internal = split_attention(q, k_ext[:, :, :0], v_ext[:, :, :0], torch.zeros_like(ext_len), k_in,
                                             v_in, scale)[3:]
    outer, lse_outer = external, lse
    if residual is not None and lse_residual is not None:
        share = torch.sigmoid(lse_residual - lse).nan_to_num_(0.0).unsqueeze(-1)  # NaN: neither has a key
        outer = external + torch.where(share > 0, share * (residual - external), 0.0)
        lse_outer = torch.logaddexp(lse, lse_residual)
    out = merged(outer, lse_outer, internal, lse_internal).to(q.dtype)
    return out, external, lse, internal, lse_internal, chosen.sum(-1)


def unselected_attention(q: Tensor, k_ext: Tensor, v_ext: Tensor, ext_len: Tensor, index: Tensor,
                         scale: float) -> tuple[Tensor, Tensor]:
    """output, lse over the keys outside the set"""
    chosen, counts = _chosen(index, k_ext, ext_len)
    return _over_sets(q, k_ext, v_ext, counts & ~chosen, scale)


def block_topk(q: Tensor, k_ext: Tensor, ext_len: Tensor, lse: Tensor, k: int, scale: float) -> tuple[Tensor, Tensor]:
    """index [S, K, k] int32, probability [S, K, k]"""
    return topk_sets(q, k_ext, ext_len, lse, k, scale, False)[:2]


def page_bounds(k_ext: Tensor, ext_len: Tensor, page_size: int) -> tuple[Tensor, Tensor]:
    """max, min [S, K, P, D]; 0 in pages after ext_len"""
    sequences, kv_heads, keys, dim = k_ext.shape
    pages = -(-keys // page_size)
    counts = torch.arange(pages * page_size, device=k_ext.device) < ext_len.to(k_ext.device).view(-1, 1)
    padded = torch.nn.functional.pad(k_ext, (0, 0, 0, pages * page_size - keys))
    of_pages = padded.view(sequences, kv_heads, pages, page_size, dim)
    counts = counts.view(sequences, 1, pages, page_size, 1)
    most = of_pages.masked_fill(~counts, -math.inf).amax(3)
    least = of_pages.masked_fill(~counts, math.inf).amin(3)
    some = counts.any(3)
    return most.masked_fill(~some, 0.0), least.masked_fill(~some, 0.0)


def page_scores(q: Tensor, most: Tensor, least: Tensor, ext_len: Tensor, page_size: int) -> Tensor:
    """[S, K, P] float32; -inf in pages after ext_len"""
    sequences, kv_heads, pages, dim = most.shape
    queries = q.float().reshape(sequences, kv_heads, -1, dim)
    # sum_d max(q_d max_d, q_d min_d) = q+ . max + q- . min, so that the mean query is enough.
    scores = ((queries.clamp_min(0).mean(2, keepdim=True) * most.float()).sum(-1)
              + (queries.clamp_max(0).mean(2, keepdim=True) * least.float()).sum(-1))
    first = torch.arange(pages, device=q.device) * page_size
    return scores.masked_fill(first >= ext_len.to(q.device).view(-1, 1, 1), -math.inf)
