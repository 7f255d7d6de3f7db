"""The operators of a recording in terms of torch operators. They have the names, arguments and results of
``torch.ops.blockscope``. A recording uses them if the library can't be loaded, and for tensors that the library doesn't
take, such as those of a GPU. Sums are float32.

They take more arguments than the library: softcap, and biases [S or 1, H or 1, B or 1, N] float32 that are added to the
scores. The definitions are those of kernels/step_operators.h, docs/trace_format.md and docs/glossary.md."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch
from torch import Tensor

MOST_BYTES = 64 << 20  # of probabilities at a time
LEAST_LOGIT = -1e30  # for -inf, which times 0 would be NaN


def _fused(q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor] | None:
    """PyTorch's own attention with its LSE; q [S, K, R, D] -> out, lse [S, K, R]; None if it is not available."""
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


def scaled_scores(q: Tensor, k: Tensor, scale: float, softcap: float = 0.0, bias: Tensor | None = None) -> Tensor:
    """q [S, H, B, D], k [S, K, N, D], bias that H, B, N broadcast with -> [S, H, B, N] float32."""
    sequences, heads, rows, dim = q.shape
    kv_heads = k.shape[1]
    folded = q.float().reshape(sequences, kv_heads, heads // kv_heads * rows, dim)
    scores = (folded @ k.float().transpose(-1, -2)).mul_(scale).view(sequences, heads, rows, k.shape[2])
    if softcap:
        scores = (scores / softcap).tanh_().mul_(softcap)
    return scores if bias is None else scores + bias


def _by_length(ext_len: Tensor, of: Callable[..., tuple[Tensor, ...]], queries: list[Tensor], keys: list[Tensor],
               bias: Tensor | None, rows: Tensor | None = None) -> tuple[Tensor, ...]:
    """of(queries, keys, bias) without the keys that don't count. One sequence at a time if their lengths differ, or if
    only some rows [S, B] of the queries count."""
    lengths = ext_len.tolist()
    if rows is None and len(set(lengths)) == 1:
        return of(*queries, *(x[:, :, :lengths[0]] for x in keys), None if bias is None else bias[..., :lengths[0]])
    found = []
    for slot, length in enumerate(lengths):
        one = slice(slot, slot + 1)
        chosen = slice(None) if rows is None else rows[slot]
        own = bias if bias is None or bias.shape[0] == 1 else bias[one]
        if own is not None:
            own = (own if own.shape[2] == 1 else own[:, :, chosen])[..., :length]
        found.append(of(*(x[one, :, chosen] for x in queries), *(x[one, :, :length] for x in keys), own))
    return tuple(torch.cat(results) for results in zip(*found))


def _attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float,
               softcap: float) -> tuple[Tensor, Tensor]:
    """Attention over only these keys: [S, H, B, D], [S, H, B]; 0 and -inf without keys."""
    sequences, heads, rows, dim = q.shape
    kv_heads, keys = k.shape[1], k.shape[2]
    if keys == 0:
        return (q.new_zeros(sequences, heads, rows, v.shape[-1], dtype=torch.float32),
                q.new_full((sequences, heads, rows), -math.inf, dtype=torch.float32))
    if bias is None and not softcap:
        folded = q.reshape(sequences, kv_heads, heads // kv_heads * rows, dim)
        fused = _fused(folded, k, v, scale)
        if fused is not None:
            return fused[0].float().reshape(sequences, heads, rows, dim), fused[1].reshape(q.shape[:3]).float()
    scores = scaled_scores(q, k, scale, softcap, bias)
    lse = scores.logsumexp(-1)
    # A query that sees no key gets zeros, as one of a block without a prefix does.
    weights = (scores - lse.masked_fill(lse == -math.inf, 0.0).unsqueeze(-1)).exp_()
    folded = weights.view(sequences, kv_heads, heads // kv_heads * rows, keys) @ v.float()
    return folded.view(sequences, heads, rows, v.shape[-1]), lse


def merged(external: Tensor, lse_external: Tensor, internal: Tensor, lse_internal: Tensor) -> Tensor:
    return internal + torch.sigmoid(lse_external - lse_internal).unsqueeze(-1) * (external - internal)


def split_attention(
    q: Tensor, k_ext: Tensor, v_ext: Tensor, ext_len: Tensor, k_in: Tensor, v_in: Tensor, scale: float,
    softcap: float = 0.0, bias_ext: Tensor | None = None, bias_in: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """out, external, lse_external, internal, lse_internal"""
    of = functools.partial(_attention, scale=scale, softcap=softcap)
    external = _by_length(ext_len, of, [q], [k_ext, v_ext], bias_ext)
    internal = of(q, k_in, v_in, bias_in)
    return merged(*external, *internal).to(q.dtype), *external, *internal


def recorded_attention(
    q: Tensor, k_ext: Tensor, v_ext: Tensor, ext_len: Tensor, k_in: Tensor, v_in: Tensor, scale: float, ends: Tensor,
    set_size: int = 0, with_block: bool = False, softcap: float = 0.0, bias_ext: Tensor | None = None,
    bias_in: Tensor | None = None,
) -> list[Tensor]:
    """The results of split_attention and weight_spread; with a set_size also index, probability, union_size"""
    found = [*split_attention(q, k_ext, v_ext, ext_len, k_in, v_in, scale, softcap, bias_ext, bias_in)]

    def spread(q: Tensor, k_in: Tensor, ends: Tensor, *others: Tensor | None) -> tuple[Tensor, ...]:
        *bias_in, k_ext, bias_ext = others
        return weight_spread(q, k_ext, k_in, scale, ends[:, 0], softcap, bias_ext, *bias_in)

    inside = [] if bias_in is None else [bias_in.expand(len(q), -1, -1, -1)]
    found += _by_length(ext_len, spread, [q, k_in, ends.unsqueeze(1), *inside], [k_ext], bias_ext)
    if set_size:
        lse = torch.logaddexp(found[2], found[4]) if with_block else found[2]
        found += topk_sets(q, k_ext, ext_len, lse, set_size, scale, False, softcap, bias_ext)
    return found


def _exact_topk(values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest along the last axis, with the lowest index among equal ones: values, indices, sorted."""
    kth = values.topk(k, -1).values[..., -1:]
    above = values > kth
    equal = values == kth
    chosen = above | equal & (equal.cumsum(-1) <= k - above.sum(-1, keepdim=True))
    index = torch.where(chosen, 1, 0).topk(k, -1).indices.sort(-1).values
    found, order = torch.sort(values.gather(-1, index), dim=-1, descending=True, stable=True)
    return found, index.gather(-1, order)


def topk_sets(
    q: Tensor, k_ext: Tensor, ext_len: Tensor, lse: Tensor, k: int, scale: float, with_tokens: bool,
    softcap: float = 0.0, bias: Tensor | None = None, rows: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """The keys with the largest mean of exp(score - lse) over a KV head's queries (topk_sets of kernels/ops.h): index
    [S, K, k] int32, probability [S, K, k], union_size [S, K] int32; with_tokens: token_index [S, K, B, k] int32 too.

    rows [S, B] bool: the queries that count. A sequence without such queries gets -1 and NaN."""
    of = functools.partial(_sets, size=k, scale=scale, with_tokens=with_tokens, softcap=softcap)
    return _by_length(ext_len, of, [q, lse], [k_ext], bias, rows)


def _sets(q: Tensor, lse: Tensor, k_ext: Tensor, bias: Tensor | None, size: int, scale: float, with_tokens: bool,
          softcap: float) -> tuple[Tensor, ...]:
    sequences, heads, rows, _ = q.shape
    kv_heads, keys = k_ext.shape[1], k_ext.shape[2]
    group, kept = heads // kv_heads, min(size, keys)
    index = torch.full((sequences, kv_heads, size), -1, dtype=torch.int32, device=q.device)
    probability = torch.full((sequences, kv_heads, size), 0.0 if rows else math.nan, device=q.device)
    union = torch.full((sequences, kv_heads), 0 if rows else -1, dtype=torch.int32, device=q.device)
    of_tokens = index.unsqueeze(2).repeat(1, 1, rows, 1)
    step = max(1, MOST_BYTES // max(1, sequences * group * rows * keys * 4))
    for begin in range(0, kv_heads if kept and rows else 0, step):
        part = slice(begin, min(begin + step, kv_heads))
        queries = slice(part.start * group, part.stop * group)
        mine = bias[:, queries] if bias is not None and bias.shape[1] > 1 else bias
        scores = scaled_scores(q[:, queries], k_ext[:, part], scale, softcap, mine)
        norm = lse[:, queries].unsqueeze(-1)
        weights = (scores - norm.masked_fill(norm == -math.inf, 0.0)).exp_()
        tokens = weights.view(sequences, part.stop - begin, group, rows, keys).mean(2)  # [S, K', B, N]
        found, order = _exact_topk(tokens.mean(2), kept)
        index[:, part, :kept] = order.int()
        probability[:, part, :kept] = found
        own = _exact_topk(tokens, kept)[1] if with_tokens else tokens.topk(kept, -1).indices
        of_tokens[:, part, :, :kept] = own.int()
        marks = torch.zeros(*tokens.shape[:2], keys, dtype=torch.bool, device=q.device)
        union[:, part] = marks.scatter_(-1, own.flatten(2), True).sum(-1, dtype=torch.int32)
    return (index, probability, union, of_tokens) if with_tokens else (index, probability, union)


def weight_spread(
    q: Tensor, k_ext: Tensor, k_in: Tensor, scale: float, ends: Tensor, softcap: float = 0.0,
    bias_ext: Tensor | None = None, bias_in: Tensor | None = None, rows: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """How the weights are spread over all N external keys and the block's, as WeightSpread of kernels/ops.h: entropy
    and largest weight [S, H, 3], mean weight of each range of external keys [S, H, R], which end at ends [S, R], and of
    each key of the block [S, H, B], and of the block's keys by offset [S, H, 2 B - 1]. Means over the queries of rows
    [S, B] bool; NaN without any."""
    sequences, heads, block, _ = q.shape
    kv_heads, outside, inside = k_ext.shape[1], k_ext.shape[2], k_in.shape[2]
    group = heads // kv_heads
    step = max(1, MOST_BYTES // max(1, sequences * group * block * (outside + inside) * 4))
    counts = q.new_ones(sequences, block, dtype=torch.float32) if rows is None else rows.float()
    share = (counts / counts.sum(-1, keepdim=True))[:, None, :, None]  # NaN without rows
    place = torch.arange(inside, device=q.device)
    offset = (place - torch.arange(block, device=q.device).unsqueeze(-1) + block - 1).flatten()
    key = torch.arange(outside, device=q.device).expand(sequences, -1).contiguous()
    of_range = torch.searchsorted(ends.to(q.device), key, right=True)  # [S, N]
    found = []
    for begin in range(0, kv_heads, step):
        part = slice(begin, min(begin + step, kv_heads))
        queries = slice(part.start * group, part.stop * group)
        biases = [bias[:, queries] if bias is not None and bias.shape[1] > 1 else bias for bias in (bias_ext, bias_in)]
        scores = torch.cat([scaled_scores(q[:, queries], k[:, part], scale, softcap, bias)
                            for k, bias in zip((k_ext, k_in), biases)], -1)
        entropies, most = [], []
        for side in (scores[..., :outside], scores[..., outside:], scores):
            lse = side.logsumexp(-1, keepdim=True)
            log = side - lse.masked_fill(lse == -math.inf, 0.0)  # a query may see no key of a side
            weights = log.exp()
            entropies.append(-(weights * log.masked_fill(log == -math.inf, 0.0)).sum(-1))
            most.append(weights.amax(-1) if side.shape[-1] else weights.new_zeros(weights.shape[:-1]))
        values = [torch.stack(x, -1) for x in (entropies, most)]
        if rows is not None:
            missing = ~rows[:, None, :, None]
            values, weights = [x.masked_fill(missing, 0.0) for x in values], weights.masked_fill(missing, 0.0)
        mean = (weights * share).sum(2)
        own = (weights[..., outside:] * share).flatten(2)
        by_offset = own.new_zeros(*own.shape[:2], block + inside - 1).index_add_(2, offset, own)
        by_range = mean.new_zeros(*mean.shape[:2], ends.shape[1] + 1).scatter_add_(  # the last: after all ends
            2, of_range.unsqueeze(1).expand(-1, mean.shape[1], -1), mean[..., :outside])[..., :-1]
        found.append([*((x * share).sum(2) for x in values), by_range, mean[..., outside:], by_offset])
    return tuple(torch.cat(parts, 1) for parts in zip(*found))


# --- statistics of a step ---------------------------------------------------------------------------------------------


def _similarity(a: Tensor, b: Tensor) -> Tensor:
    """Mean over the block of cos(a, b), [H, B, D] -> [H]. Rows with NaN were not computed by a pass."""
    norms = (a * a).sum(-1) * (b * b).sum(-1)
    return ((a * b).sum(-1) * norms.clamp_min(1e-37).rsqrt()).nanmean(-1)


def step_statistics(
    external: Tensor | None, lse_external: Tensor | None, internal: Tensor, lse_internal: Tensor,
    last_external: Tensor | None, last_internal: Tensor | None, sources: list[Tensor], source_lses: list[Tensor],
    source_kinds: list[Tensor], row: int,
) -> tuple[Tensor, ...]:
    """external_mass, similarity_external, similarity_internal, errors, kept"""
    none = internal.new_empty(0)
    inside = internal[row], lse_internal[row]
    similarity_internal = none if last_internal is None else _similarity(inside[0], last_internal[row])
    if external is None or lse_external is None:
        shape = 0, internal.shape[1]
        return none, none, similarity_internal, internal.new_empty(*shape, 4), internal.new_empty(*shape, 3, 5)
    outside = external[row], lse_external[row]
    mass = torch.sigmoid(outside[1] - inside[1]).nanmean(-1)
    similarity_external = none if last_external is None else _similarity(outside[0], last_external[row])
    true = merged(*outside, *inside)
    sums: dict[int, tuple[Tensor, Tensor]] = {}  # most rules usually hold the same pair
    for source, lse, kinds in zip(sources, source_lses, source_kinds):
        if source.data_ptr() in sums:
            continue
        got = true if source.data_ptr() == external.data_ptr() else merged(source[row], lse[row], *inside)
        kept = internal.new_full((internal.shape[1], 3, 5), math.nan)
        if kinds.numel():
            kept = _kept_sums((source[row], lse[row]), outside, got, true, kinds.to(internal.device))
        sums[source.data_ptr()] = _error_sums(got, true), kept
    errors, kept_sums = zip(*(sums[x.data_ptr()] for x in sources))
    return mass, similarity_external, similarity_internal, torch.stack(errors), torch.stack(kept_sums)


def _error_sums(got: Tensor, true: Tensor) -> Tensor:
    """[H, 4] of [H, B, D]: e^2, |e|, reference^2, dot product, over the rows that both steps computed."""
    there = ~(got - true).isnan()
    got, true = (torch.where(there, x, 0.0) for x in (got, true))
    error = got - true
    return torch.stack([x.sum((-2, -1)) for x in (error * error, error.abs(), true * true, true * got)], -1)


def _kept_sums(source: tuple[Tensor, Tensor], now: tuple[Tensor, Tensor], got: Tensor, true: Tensor,
               kinds: Tensor) -> Tensor:
    """[H, kind, 5]: rows, cosine, change of L_out, e^2, reference^2, over the rows where both have a finite L_out.
    source, now: A_out [H, B, D] and L_out [H, B]."""
    change = (source[1] - now[1]).abs()
    there = change.isfinite() & ~(got - true).isnan().any(-1)
    a, b = source[0], now[0]
    squares = (a * a).sum(-1) * (b * b).sum(-1)
    values = torch.stack([torch.ones_like(change), (a * b).sum(-1) * squares.clamp_min(1e-37).rsqrt(), change,
                          (got - true).square().sum(-1), true.square().sum(-1)], -1)  # [H, B, 5]
    values = torch.where(there.unsqueeze(-1), values, 0.0)
    return torch.stack([values[:, kinds == kind].sum(1) for kind in range(3)], 1)


def step_gaps(x: Tensor, first: Tensor, row: int) -> tuple[Tensor, Tensor]:
    """gap, block_gap"""
    def unit(x: Tensor) -> Tensor:
        x = x[row].float()
        return x / x.norm(dim=-1, keepdim=True).clamp_min(1e-30)

    difference = unit(x) - unit(first)
    return difference.norm(dim=-1).nanmean(-1), difference.nanmean(-2).norm(dim=-1)


# --- predictions ------------------------------------------------------------------------------------------------------


def row_log_sum_exp(x: Tensor) -> Tensor:
    """[R], float32 here: some devices have no float64."""
    return x.float().logsumexp(-1)


def row_divergence(first: Tensor, first_lse: Tensor, now: Tensor, wanted: Tensor) -> Tensor:
    first, now = (x.float().clamp_min(LEAST_LOGIT) for x in (first, now))
    log = first - first_lse.float().unsqueeze(-1)
    probability = log.exp()
    cross = torch.linalg.vecdot(probability, now) - now.logsumexp(-1)
    return (torch.linalg.vecdot(probability, log) - cross).clamp_min_(0.0).masked_fill_(~wanted, math.nan)


def best_token_rows(logits: Tensor) -> tuple[Tensor, Tensor]:
    """token, probability"""
    logits = logits.float()
    best = logits.max(-1)
    return best.indices.int(), (best.values - logits.logsumexp(-1)).exp_()
