"""Attention over an external and an internal side of the keys, and its gradients (see :mod:`._backward`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor

from ._backward import attention_backward, prefill_backward, set_backward
from ._operator import Grad, cast, lengths_of, operator, plus, scale_of, widened


__all__ = [
    "SplitAttention", "SourcedAttention", "PartialAttention", "MergedAttention", "split_attention", "reuse_attention",
    "gather_attention", "unselected_attention", "prefill_attention", "merge_attention",
]


class SplitAttention(NamedTuple):
    out: Tensor  #: [S, H, T, D] dtype of q: attention over all keys
    external: Tensor  #: [S, H, T, D] float32: A_out, only over the external keys
    lse_external: Tensor  #: [S, H, T] float32: L_out
    internal: Tensor  #: [S, H, T, D] float32: A_in, only over the internal keys
    lse_internal: Tensor  #: [S, H, T] float32: L_in


class SourcedAttention(NamedTuple):
    """Like :class:`SplitAttention`; the external pair is the one that was used."""

    out: Tensor  #: [S, H, T, D] dtype of q
    external: Tensor  #: [S, H, T, D] float32
    lse_external: Tensor  #: [S, H, T] float32
    internal: Tensor  #: [S, H, T, D] float32
    lse_internal: Tensor  #: [S, H, T] float32
    keys_read: Tensor  #: [S, K] int64: external keys read


class PartialAttention(NamedTuple):
    output: Tensor  #: [S, H, T, D] float32
    lse: Tensor  #: [S, H, T] float32


class MergedAttention(NamedTuple):
    out: Tensor  #: [..., D] dtype of the parts
    lse: Tensor  #: [...] float32


# --- gradients: a pair of functions before each operator, in the order of the schema's arguments


def _shares(parts: Sequence[tuple[Tensor, Tensor]], grad_out: Grad, grad_lse: Grad) -> list[tuple[Grad, Grad]]:
    """The gradients of the output and the lse of each part (output [..., D], lse [...]) of a merge. A part with lse
    -inf has weight 0, whatever its output is."""
    if grad_out is None and grad_lse is None:
        return [(None, None)] * len(parts)
    lses = torch.stack([lse for _, lse in parts])
    weights = (lses - torch.logsumexp(lses, 0)).exp().masked_fill(lses == -torch.inf, 0).unsqueeze(-1)
    outputs = [widened(output).masked_fill(weight == 0, 0) for (output, _), weight in zip(parts, weights)]
    if grad_out is None:
        return [(None, weight.squeeze(-1) * grad_lse) for weight in weights]
    merged = sum(output * weight for output, weight in zip(outputs, weights))
    grad_out = widened(grad_out)
    shares = []
    for output, weight in zip(outputs, weights):
        through_lse = (grad_out * (output - merged)).sum(-1)
        if grad_lse is not None:
            through_lse = through_lse + grad_lse
        shares.append((grad_out * weight, through_lse * weight.squeeze(-1)))
    return shares


def _given(grads: tuple[Grad, Grad], output: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """Zeros for a missing gradient, because loops over keys need both."""
    return (torch.zeros_like(output) if grads[0] is None else grads[0],
            torch.zeros_like(lse) if grads[1] is None else grads[1])


class _Sides:
    """The two key sets of an attention operator over a block, from the tensors that its forward pass saved."""

    def __init__(self, ctx: Any, grads: Sequence[Grad], residual: tuple[Grad, Grad] = (None, None)) -> None:
        (self.q, self.k_ext, self.v_ext, self.ext_len, self.k_in, self.v_in, self.external, self.lse_external,
         self.internal, self.lse_internal) = ctx.saved_tensors[:10]
        self.scale = ctx.scale
        grad_out, grad_external, grad_lse_external, grad_internal, grad_lse_internal = grads[:5]
        parts = [(self.external, self.lse_external), (self.internal, self.lse_internal)]
        if residual[0] is not None:
            parts.append(residual)  # type: ignore[arg-type]
        shares = _shares(parts, grad_out, None)
        self.of_external = (plus(shares[0][0], grad_external), plus(shares[0][1], grad_lse_external))
        self.of_internal = (plus(shares[1][0], grad_internal), plus(shares[1][1], grad_lse_internal))
        self.of_residual = shares[2] if len(parts) == 3 else (None, None)

    @staticmethod
    def save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...], *more: Optional[Tensor]) -> None:
        """inputs: q, k_ext, v_ext, ext_len, k_in, v_in; output: as from split_attention."""
        ctx.save_for_backward(*inputs, *output[1:5], *more)
        ctx.set_materialize_grads(False)

    def internal_gradients(self, with_keys: bool) -> tuple[Grad, Grad, Grad]:
        if self.of_internal == (None, None):
            return None, None, None
        grads = _given(self.of_internal, self.internal, self.lse_internal)
        return attention_backward(self.q, self.k_in, self.v_in, None, None, self.internal, self.lse_internal, *grads,
                                  self.scale, with_keys)

    def external_gradients(self, reused: Optional[Tensor], with_keys: bool) -> tuple[Grad, Grad, Grad]:
        if self.of_external == (None, None):
            return None, None, None
        grads = _given(self.of_external, self.external, self.lse_external)
        return attention_backward(self.q, self.k_ext, self.v_ext, self.ext_len, reused, self.external,
                                  self.lse_external, *grads, self.scale, with_keys)

    def set_gradients(self, index: Tensor, dense: Optional[Tensor], with_keys: bool) -> tuple[Grad, Grad, Grad]:
        if self.of_external == (None, None):
            return None, None, None
        grads = _given(self.of_external, self.external, self.lse_external)
        return set_backward(self.q, self.k_ext, self.v_ext, self.ext_len, index, dense, False, self.external,
                            self.lse_external, *grads, self.scale, with_keys)

    def query(self, external: Grad, internal: Grad) -> Grad:
        return cast(plus(external, internal), self.q)


def _keys(wanted: bool, dk: Grad, dv: Grad) -> tuple[Grad, Grad]:
    return (dk, dv) if wanted else (None, None)


def _split_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.scale = inputs[6]
    _Sides.save(ctx, inputs[:6], output)


def _split(ctx: Any, *grads: Grad) -> tuple[Grad, ...]:
    sides, need = _Sides(ctx, grads), ctx.needs_input_grad
    outer, inner = need[1] or need[2], need[4] or need[5]
    dq_ext, *d_ext = sides.external_gradients(None, outer)
    dq_in, *d_in = sides.internal_gradients(inner)
    return (sides.query(dq_ext, dq_in), *_keys(outer, *d_ext), None, *_keys(inner, *d_in), None)


_split_attention = operator("split_attention", _split, _split_setup)


def split_attention(
    q: Tensor, k_ext: Tensor, v_ext: Tensor, k_in: Tensor, v_in: Tensor, *, ext_len: Tensor | int | None = None,
    scale: float | None = None,
) -> SplitAttention:
    """Attention split at the block boundary (FlashBlock, arXiv 2602.05305, eqs. 3-7), in one pass over the keys and
    without subtraction.

    q [S, H, T, D]; k_ext, v_ext [S, K, N, D]: the prefix; k_in, v_in [S, K, T_in, D]: the block. Every query sees
    the first ext_len external keys and all internal ones.

    Gradients: of q and all keys and values, through all five results.
    """
    return SplitAttention(*_split_attention(
        q, k_ext, v_ext, lengths_of(ext_len, q.shape[0], k_ext.shape[2]), k_in, v_in, scale_of(q, scale)))


def _reuse_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    mask, ctx.scale, refresh_rows = inputs[8:]
    _Sides.save(ctx, inputs[:6], output, mask, refresh_rows)


def _reuse(ctx: Any, *grads: Grad) -> tuple[Grad, ...]:
    sides, need = _Sides(ctx, grads), ctx.needs_input_grad
    outer, inner = need[1] or need[2], need[4] or need[5]
    mask, refresh_rows = ctx.saved_tensors[10:]
    reused = mask.unsqueeze(-1).expand(sides.q.shape[:3])  # the same for all sequences where it is [H]
    if refresh_rows is not None:
        reused = reused & ~refresh_rows.unsqueeze(1)
    reused = reused.contiguous()
    dq_ext, *d_ext = sides.external_gradients(reused, outer)
    dq_in, *d_in = sides.internal_gradients(inner)
    taken = reused.to(sides.q.device)
    cached, cached_lse = sides.of_external
    if cached is not None:
        cached = torch.where(taken.unsqueeze(-1), cached, 0)
    if cached_lse is not None:
        cached_lse = torch.where(taken, cached_lse, 0)
    return (sides.query(dq_ext, dq_in), *_keys(outer, *d_ext), None, *_keys(inner, *d_in), cached, cached_lse, None,
            None, None)


_reuse_attention = operator("reuse_attention", _reuse, _reuse_setup)


def reuse_attention(
    q: Tensor, k_ext: Tensor, v_ext: Tensor, k_in: Tensor, v_in: Tensor, cached_external: Tensor, cached_lse: Tensor,
    reuse_mask: Tensor, *, ext_len: Tensor | int | None = None, scale: float | None = None,
    refresh_rows: Tensor | None = None,
) -> SourcedAttention:
    """:func:`split_attention` in which some query heads take their external pair from an earlier step (FlashBlock,
    section 4.2). A KV head's prefix is read only if one of its rows needs it; else its keys_read is 0.

    cached_external [S, H, T, D], cached_lse [S, H, T]: float32; reuse_mask [H] or [S, H] bool on the CPU.
    refresh_rows [S, T] bool on the CPU: in the heads that reuse, these queries compute their external pair from the
    whole prefix, too; ``external`` and ``lse_external`` are then the cached pair, updated in these rows.

    Gradients: like split_attention. For a row that takes the cached pair, they go to cached_external and cached_lse
    instead of the external keys and values.
    """
    return SourcedAttention(*_reuse_attention(
        q, k_ext, v_ext, lengths_of(ext_len, q.shape[0], k_ext.shape[2]), k_in, v_in, cached_external, cached_lse,
        reuse_mask, scale_of(q, scale), refresh_rows))


def _gather_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    q, k_ext, v_ext, ext_len, index, k_in, v_in, ctx.scale, dense, residual, lse_residual = inputs
    _Sides.save(ctx, (q, k_ext, v_ext, ext_len, k_in, v_in), output, index, dense, residual, lse_residual)


def _gather(ctx: Any, *grads: Grad) -> tuple[Grad, ...]:
    index, dense, residual, lse_residual = ctx.saved_tensors[10:]
    sides, need = _Sides(ctx, grads, (residual, lse_residual)), ctx.needs_input_grad
    outer, inner = need[1] or need[2], need[5] or need[6]
    dq_ext, *d_ext = sides.set_gradients(index, dense, outer)
    dq_in, *d_in = sides.internal_gradients(inner)
    return (sides.query(dq_ext, dq_in), *_keys(outer, *d_ext), None, None, *_keys(inner, *d_in), None, None,
            *sides.of_residual)


_gather_attention = operator("gather_attention", _gather, _gather_setup)


def gather_attention(
    q: Tensor, k_ext: Tensor, v_ext: Tensor, index: Tensor, k_in: Tensor, v_in: Tensor, *,
    ext_len: Tensor | int | None = None, scale: float | None = None, dense: Tensor | None = None,
    residual: Tensor | None = None, lse_residual: Tensor | None = None,
) -> SourcedAttention:
    """:func:`split_attention` over a set of the external keys (MAGE, algorithm 1, phase 2): every query of a KV head
    sees the keys of its set and all internal keys. Nothing else is read.

    index [S, K, k] int32, in any order, no key twice, -1 for none, such as block_topk's, on the device of q. dense [S]
    bool on the CPU: sequences that read their whole prefix. residual [S, H, T, D], lse_residual [S, H, T], float32:
    attention over keys outside the set, merged into ``out`` as a third part (FlashBlock, appendix D); lse -inf: none.

    Gradients: like split_attention, of the keys and values that were read, and of both residuals. index has none.
    """
    return SourcedAttention(*_gather_attention(
        q, k_ext, v_ext, lengths_of(ext_len, q.shape[0], k_ext.shape[2]), index, k_in, v_in, scale_of(q, scale), dense,
        residual, lse_residual))


def _unselected_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.scale = inputs[5]
    ctx.save_for_backward(*inputs[:5], *output)
    ctx.set_materialize_grads(False)


def _unselected(ctx: Any, *grads: Grad) -> tuple[Grad, ...]:
    q, k_ext, v_ext, ext_len, index, output, lse = ctx.saved_tensors
    outer = ctx.needs_input_grad[1] or ctx.needs_input_grad[2]
    dq, dk, dv = set_backward(q, k_ext, v_ext, ext_len, index, None, True, output, lse,
                              *_given(grads, output, lse), ctx.scale, outer)  # type: ignore[arg-type]
    return (cast(dq, q), *_keys(outer, dk, dv), None, None, None)


_unselected_attention = operator("unselected_attention", _unselected, _unselected_setup)


def unselected_attention(
    q: Tensor, k_ext: Tensor, v_ext: Tensor, index: Tensor, *, ext_len: Tensor | int | None = None,
    scale: float | None = None,
) -> PartialAttention:
    """Attention over the external keys outside the set: the residual for :func:`gather_attention` at later steps.
    Shapes and index are the same. Gradients: of q and the keys and values that were read."""
    return PartialAttention(*_unselected_attention(
        q, k_ext, v_ext, lengths_of(ext_len, q.shape[0], k_ext.shape[2]), index, scale_of(q, scale)))


def _prefill_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    q, k, v, length, ctx.block_length, ctx.scale, ctx.query_start = inputs
    ctx.save_for_backward(q, k, v, length)


def _prefill(ctx: Any, grad: Tensor) -> tuple[Grad, ...]:
    q, k, v, length = ctx.saved_tensors
    dq, dk, dv = prefill_backward(q, k, v, length, grad, ctx.block_length, ctx.scale, ctx.query_start)
    return dq.to(q.dtype), dk, dv, None, None, None, None


_prefill_attention = operator("prefill_attention", _prefill, _prefill_setup)


def prefill_attention(
    q: Tensor, k: Tensor, v: Tensor, *, block_length: int, lengths: Tensor | int | None = None, query_start: int = 0,
    scale: float | None = None,
) -> Tensor:
    """Block-causal attention over a sequence's own keys -> [S, H, T, D] in the dtype of q.

    q [S, H, T, D]; k, v [S, K, N, D]; lengths is like ext_len. The query at position p = query_start + t sees the
    keys [0, min(lengths[s], (p // block_length + 1) * block_length)). block_length 1 is causal. Rows without keys: 0.

    Gradients: of q, k and v. Scores are recomputed, because no LSE is kept.
    """
    return _prefill_attention(
        q, k, v, lengths_of(lengths, q.shape[0], k.shape[2]), block_length, scale_of(q, scale), query_start)


def _merge_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.parts = len(inputs[0])
    ctx.save_for_backward(*inputs[0], *inputs[1])
    ctx.set_materialize_grads(False)


def _merge(ctx: Any, grad_out: Grad, grad_lse: Grad) -> tuple[list[Grad], list[Grad]]:
    outputs, lses = ctx.saved_tensors[:ctx.parts], ctx.saved_tensors[ctx.parts:]
    shares = _shares(list(zip(outputs, lses)), grad_out, grad_lse)
    return [cast(share[0], output) for share, output in zip(shares, outputs)], [share[1] for share in shares]


_merge_attention = operator("merge_attention", _merge, _merge_setup)


def merge_attention(outputs: Sequence[Tensor], lses: Sequence[Tensor]) -> MergedAttention:
    """Merges attention over any number of disjoint key sets (FlashBlock, eqs. 8-9); up to 64 on a GPU.

    outputs: [..., D] of one dtype; lses: [...] float32, one for each. A part with lse -inf is left out, whatever its
    output is. Gradients: of all parts, through both results.
    """
    return MergedAttention(*_merge_attention(list(outputs), list(lses)))
