"""The attention operators of Blockscope for PyTorch: ``torch.ops.blockscope`` with types, defaults and names.

    from blockscope import ops

    a = ops.split_attention(q, k_ext, v_ext, k_in, v_in)      # a.out, a.external, a.lse_external, a.internal, ...

Importing this module imports torch and loads the compiled operators; where one of the two is missing, or torch has
another version than they were built with, :class:`blockscope.OperatorsUnavailable` (an ImportError) says what to do.
``BLOCKSCOPE_KERNELS`` names another library, such as build/release/lib/libblockscope_kernels.so.

Dimensions: S sequences, H query heads, K KV heads (H = K * G; query head h reads KV head h // G), T query tokens, N
room for external keys, D head_dim (up to 256 on a GPU). Tensors q, k, v share one dtype, float32, float16 or bfloat16,
and one device, CPU or CUDA; they may be views whose last dimension is contiguous. Sums are float32. An ``lse`` is
float32, the natural logarithm of sum(exp(q . k * scale)).

Common arguments. scale: None is D ** -0.5. ext_len: how many external keys of each sequence count, [S] int64 on the
CPU, or one number for all, or None for all N; nothing behind it is read. Without keys a side is 0 and its lse -inf.

All operators work under torch.compile, torch.export and FakeTensor. Those with gradients say so; gradients of gradients
are errors. A cache that is saved for the backward pass must not be written before it, not even behind ext_len: autograd
sees one tensor and says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from . import _library

#: The library that was loaded; None where torch.ops.load_library had done so before.
library: str | None = _library.load()

import torch  # noqa: E402 - after the library, whose messages say what is missing
from torch import Tensor  # noqa: E402

from . import _autograd  # noqa: E402

_autograd.register()
_ops = torch.ops.blockscope


class SplitAttention(NamedTuple):
    out: Tensor  #: [S, H, T, D] dtype of q: attention over all keys
    external: Tensor  #: [S, H, T, D] float32: A_out, over the external keys alone
    lse_external: Tensor  #: [S, H, T] float32: L_out
    internal: Tensor  #: [S, H, T, D] float32: A_in, over the internal keys alone
    lse_internal: Tensor  #: [S, H, T] float32: L_in


class SourcedAttention(NamedTuple):
    """As :class:`SplitAttention`, with the external pair that was used."""

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


class TopK(NamedTuple):
    index: Tensor  #: [S, K, k] int32, falling probability, ties to the lower position; -1 where ext_len < k
    probability: Tensor  #: [S, K, k] float32, 0 where index is -1


class TokenTopK(NamedTuple):
    index: Tensor  #: [S, K, T, k] int32, as in TopK
    probability: Tensor  #: [S, K, T, k] float32
    union_size: Tensor  #: [S, K] int32: distinct positions in the T sets


class PageBounds(NamedTuple):
    max: Tensor  #: [S, K, P, D] dtype of the keys: the largest value of each channel; 0 in pages behind ext_len
    min: Tensor  #: [S, K, P, D]: the least


class SumAndNorm(NamedTuple):
    sum: Tensor  #: [..., W]: x + y
    norm: Tensor  #: [..., W]: its RMS norm


class RotatedHeads(NamedTuple):
    q: Tensor  #: [S, H, T, D]
    k: Tensor  #: [S, K, T, D]


def _scale(q: Tensor, scale: float | None) -> float:
    return q.shape[-1] ** -0.5 if scale is None else scale


def _lengths(ext_len: Tensor | int | None, sequences: int, keys: int) -> Tensor:
    if isinstance(ext_len, Tensor):
        return ext_len
    return torch.full((sequences,), keys if ext_len is None else ext_len, dtype=torch.int64, device="cpu")


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
    return SplitAttention(*_ops.split_attention(
        q, k_ext, v_ext, _lengths(ext_len, q.shape[0], k_ext.shape[2]), k_in, v_in, _scale(q, scale)))


def reuse_attention(
    q: Tensor, k_ext: Tensor, v_ext: Tensor, k_in: Tensor, v_in: Tensor, cached_external: Tensor, cached_lse: Tensor,
    reuse_mask: Tensor, *, ext_len: Tensor | int | None = None, scale: float | None = None,
) -> SourcedAttention:
    """:func:`split_attention` in which some query heads take their external pair from an earlier step (FlashBlock,
    section 4.2). A KV head's prefix is read only if one of its query heads needs it; keys_read is 0 elsewhere.

    cached_external [S, H, T, D], cached_lse [S, H, T]: float32; reuse_mask [H] or [S, H] bool on the CPU.

    Gradients: as of split_attention; where a head reuses they go to cached_external and cached_lse, and none to the
    external keys and values.
    """
    return SourcedAttention(*_ops.reuse_attention(
        q, k_ext, v_ext, _lengths(ext_len, q.shape[0], k_ext.shape[2]), k_in, v_in, cached_external, cached_lse,
        reuse_mask, _scale(q, scale)))


def gather_attention(
    q: Tensor, k_ext: Tensor, v_ext: Tensor, index: Tensor, k_in: Tensor, v_in: Tensor, *,
    ext_len: Tensor | int | None = None, scale: float | None = None, dense: Tensor | None = None,
    residual: Tensor | None = None, lse_residual: Tensor | None = None,
) -> SourcedAttention:
    """:func:`split_attention` over a set of the external keys (MAGE, algorithm 1, phase 2): every query of a KV head
    sees the keys of its set and all internal keys; nothing else is read.

    index [S, K, k] int32, in any order, no key twice, -1 for none, such as block_topk's, on the device of q. dense [S]
    bool on the CPU: sequences that read their whole prefix. residual [S, H, T, D], lse_residual [S, H, T], float32:
    attention over keys outside the set, merged into ``out`` as a third part (FlashBlock, appendix D); lse -inf: none.

    Gradients: as of split_attention, to the keys and values that were read, and to both residuals. index has none.
    """
    return SourcedAttention(*_ops.gather_attention(
        q, k_ext, v_ext, _lengths(ext_len, q.shape[0], k_ext.shape[2]), index, k_in, v_in, _scale(q, scale), dense,
        residual, lse_residual))


def unselected_attention(
    q: Tensor, k_ext: Tensor, v_ext: Tensor, index: Tensor, *, ext_len: Tensor | int | None = None,
    scale: float | None = None,
) -> PartialAttention:
    """Attention over the external keys outside the set: the residual that :func:`gather_attention` takes at later
    steps. Shapes and index as there. Gradients: of q and the keys and values that were read."""
    return PartialAttention(*_ops.unselected_attention(
        q, k_ext, v_ext, _lengths(ext_len, q.shape[0], k_ext.shape[2]), index, _scale(q, scale)))


def prefill_attention(
    q: Tensor, k: Tensor, v: Tensor, *, block_length: int, lengths: Tensor | int | None = None, query_start: int = 0,
    scale: float | None = None,
) -> Tensor:
    """Block-causal attention over a sequence's own keys -> [S, H, T, D], dtype of q.

    q [S, H, T, D]; k, v [S, K, N, D]; lengths as ext_len. The query at position p = query_start + t sees keys
    [0, min(lengths[s], (p // block_length + 1) * block_length)); block_length 1 is causal. Without keys: 0.

    Gradients: of q, k and v; scores are made anew, as no LSE is kept.
    """
    return _ops.prefill_attention(
        q, k, v, _lengths(lengths, q.shape[0], k.shape[2]), block_length, _scale(q, scale), query_start)


def merge_attention(outputs: Sequence[Tensor], lses: Sequence[Tensor]) -> MergedAttention:
    """Merges attention over disjoint key sets (FlashBlock, eqs. 8-9): any number of them, up to 64 on a GPU.

    outputs: [..., D] of one dtype; lses: [...] float32, one for each. A part whose lse is -inf is left out, whatever
    its output holds. Gradients: of all parts, through both results.
    """
    return MergedAttention(*_ops.merge_attention(list(outputs), list(lses)))


def block_topk(
    q: Tensor, k_ext: Tensor, lse: Tensor, k: int, *, ext_len: Tensor | int | None = None, scale: float | None = None,
) -> TopK:
    """The k external keys with the largest mean softmax probability over the G * T queries of a KV head (MAGE, eqs.
    2-3).

    q [S, H, T, D]; k_ext [S, K, N, D]; lse [S, H, T] float32: lse_external normalises over the prefix alone, the merged
    lse over prefix and block. No gradient: results are as if detached.
    """
    return TopK(*_ops.block_topk(q, k_ext, _lengths(ext_len, q.shape[0], k_ext.shape[2]), lse, k, _scale(q, scale)))


def token_topk(
    q: Tensor, k_ext: Tensor, lse: Tensor, k: int, *, ext_len: Tensor | int | None = None, scale: float | None = None,
) -> TokenTopK:
    """:func:`block_topk` for each query token alone (mean over its G queries). No gradient either."""
    return TokenTopK(*_ops.token_topk(
        q, k_ext, _lengths(ext_len, q.shape[0], k_ext.shape[2]), lse, k, _scale(q, scale)))


def page_bounds(k_ext: Tensor, page_size: int, *, ext_len: Tensor | int | None = None) -> PageBounds:
    """Bounds of each channel in pages of page_size keys (Quest, arXiv 2406.10774, section 3.3). k_ext [S, K, N, D];
    P = ceil(N / page_size) pages. No gradient: results are as if detached."""
    return PageBounds(*_ops.page_bounds(k_ext, _lengths(ext_len, k_ext.shape[0], k_ext.shape[2]), page_size))


def page_scores(q: Tensor, bounds: PageBounds, page_size: int, *, ext_len: Tensor | int | None = None) -> Tensor:
    """Upper bounds of the scores in a page, [S, K, P] float32: the mean over the G * T queries of a KV head of
    sum_d max(q_d * max_d, q_d * min_d), not scaled; -inf in pages behind ext_len. q [S, H, T, D]; ext_len None: all
    pages count. No gradient: results are as if detached."""
    keys = bounds.max.shape[2] * page_size
    return _ops.page_scores(q, bounds.max, bounds.min, _lengths(ext_len, q.shape[0], keys), page_size)


def token_page_scores(q: Tensor, bounds: PageBounds, page_size: int, *, ext_len: Tensor | int | None = None) -> Tensor:
    """:func:`page_scores` of each query token alone, [S, K, T, P]: the mean over its G queries. No gradient either."""
    keys = bounds.max.shape[2] * page_size
    return _ops.token_page_scores(q, bounds.max, bounds.min, _lengths(ext_len, q.shape[0], keys), page_size)


def cross_step_similarity(a: Tensor, b: Tensor) -> Tensor:
    """Cosine [...] float32 between a and b [..., D] of one dtype (FlashBlock, figure 5), accumulated in float64 on the
    CPU; 0 where either is exactly zero. Gradients: of both; 0 where the cosine is 0 by definition."""
    return _ops.cross_step_similarity(a, b)


def rms_norm_rows(x: Tensor, weight: Tensor, *, eps: float = 1e-6, weight_first: bool = False) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight: x [..., W] of up to 4 dimensions, weight [W] of x's dtype -> like x,
    contiguous. Half-precision results are rounded once, behind the weight (weight_first), or before it too. Gradients:
    of both."""
    return _ops.rms_norm_rows(x, weight, eps, weight_first)


def add_rms_norm_rows(
    x: Tensor, y: Tensor, weight: Tensor, *, eps: float = 1e-6, weight_first: bool = False,
) -> SumAndNorm:
    """x + y and its :func:`rms_norm_rows`; x, y [..., W] of one dtype. Gradients: of all three, through both
    results."""
    return SumAndNorm(*_ops.add_rms_norm_rows(x, y, weight, eps, weight_first))


def norm_rotate_rows(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *, q_weight: Tensor | None = None, k_weight: Tensor | None = None,
    eps: float = 1e-6, weight_first: bool = False,
) -> RotatedHeads:
    """Rotate-half RoPE of queries and keys, each behind its RMS norm over D if it has a weight [D].

    q [S, H, T, D], k [S, K, T, D]; cos, sin [S or 1, 1, T, R], float32 (nothing is rounded before the rotation) or of
    q's dtype; channels behind the first R (even) are copied. Gradients: of all tensors.
    """
    return RotatedHeads(*_ops.norm_rotate_rows(q, k, q_weight, k_weight, cos, sin, eps, weight_first))


def silu_multiply(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up, both of one shape (up to 4 dimensions) and dtype -> contiguous. Gradients: of both."""
    return _ops.silu_multiply(gate, up)


__all__ = [
    "MergedAttention", "PageBounds", "PartialAttention", "RotatedHeads", "SourcedAttention", "SplitAttention",
    "SumAndNorm", "TokenTopK", "TopK", "library", *_library.NAMES,
]
