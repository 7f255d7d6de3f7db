"""Rows of a decoder between its products, and cosines of rows."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ._operator import Grad, operator, widened


__all__ = [
    "SumAndNorm", "RotatedHeads", "cross_step_similarity", "rms_norm_rows", "add_rms_norm_rows", "norm_rotate_rows",
    "silu_multiply",
]


class SumAndNorm(NamedTuple):
    sum: Tensor  #: [..., W]: x + y
    norm: Tensor  #: [..., W]: its RMS norm


class RotatedHeads(NamedTuple):
    q: Tensor  #: [S, H, T, D]
    k: Tensor  #: [S, K, T, D]


def _similarity_setup(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _similarity(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
    a, b = (widened(x) for x in ctx.saved_tensors)
    norms = [torch.linalg.vector_norm(x, dim=-1, keepdim=True) for x in (a, b)]
    none = (norms[0] == 0) | (norms[1] == 0)  # the cosine is 0 there by definition, and stays 0
    a, b = (x / norm for x, norm in zip((a, b), norms))
    cosine, grad = (a * b).sum(-1, keepdim=True), grad.unsqueeze(-1)
    found = [grad * (other - cosine * one) / norm for one, other, norm in ((a, b, norms[0]), (b, a, norms[1]))]
    d_a, d_b = (x.masked_fill(none, 0).to(like.dtype) for x, like in zip(found, ctx.saved_tensors))
    return d_a, d_b


_cross_step_similarity = operator("cross_step_similarity", _similarity, _similarity_setup)


def cross_step_similarity(a: Tensor, b: Tensor) -> Tensor:
    """Cosine [...] float32 between a and b [..., D] of one dtype (FlashBlock, figure 5), accumulated in float64 on the
    CPU. 0 if a vector is exactly zero. Gradients: of both; 0 where the cosine is 0 by definition."""
    return _cross_step_similarity(a, b)


def _norm_gradients(x: Tensor, weight: Tensor, eps: float, grad: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of x / sqrt(mean(x^2) + eps) * weight, for x and grad [..., W] wide: dx, and dweight [W] wide."""
    inverse = (x.square().mean(-1, keepdim=True) + eps).rsqrt()
    normed, weighted = x * inverse, grad * weight.to(x.dtype)
    dx = inverse * (weighted - normed * (weighted * normed).mean(-1, keepdim=True))
    return dx, (grad * normed).flatten(0, -2).sum(0)


def _norm_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, ctx.eps, _ = inputs
    ctx.save_for_backward(x, weight)


def _norm(ctx: Any, grad: Tensor) -> tuple[Grad, ...]:
    x, weight = ctx.saved_tensors
    dx, dweight = _norm_gradients(widened(x), weight, ctx.eps, widened(grad))
    return dx.to(x.dtype), dweight.to(weight.dtype), None, None


_rms_norm_rows = operator("rms_norm_rows", _norm, _norm_setup)


def rms_norm_rows(x: Tensor, weight: Tensor, *, eps: float = 1e-6, weight_first: bool = False) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight: x [..., W] of up to 4 dimensions, weight [W] of x's dtype -> like x,
    contiguous. Half-precision results are rounded after the weight; without weight_first, also before it. Gradients:
    of both."""
    return _rms_norm_rows(x, weight, eps, weight_first)


def _add_norm_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.eps = inputs[3]
    ctx.save_for_backward(output[0], inputs[2])


def _add_norm(ctx: Any, grad_sum: Tensor, grad_norm: Tensor) -> tuple[Grad, ...]:
    total, weight = ctx.saved_tensors
    dx, dweight = _norm_gradients(widened(total), weight, ctx.eps, widened(grad_norm))
    dx = (dx + widened(grad_sum)).to(total.dtype)
    return dx, dx, dweight.to(weight.dtype), None, None


_add_rms_norm_rows = operator("add_rms_norm_rows", _add_norm, _add_norm_setup)


def add_rms_norm_rows(
    x: Tensor, y: Tensor, weight: Tensor, *, eps: float = 1e-6, weight_first: bool = False,
) -> SumAndNorm:
    """x + y and its :func:`rms_norm_rows`. x, y [..., W] have one dtype. Gradients: of all three, through
    both results."""
    return SumAndNorm(*_add_rms_norm_rows(x, y, weight, eps, weight_first))


def _rotate_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, q_weight, k_weight, cos, sin, ctx.eps, _ = inputs
    ctx.save_for_backward(q, k, q_weight, k_weight, cos, sin)


def _rotate_one(x: Tensor, weight: Grad, cos: Tensor, sin: Tensor, eps: float, grad: Tensor) -> tuple[Any, ...]:
    """dx, dweight, dcos and dsin for q or k, with y = x cos + rotate_half(x) sin over the first R channels."""
    turning = cos.shape[-1]
    grad, cos, sin = widened(grad), widened(cos), widened(sin)
    head, tail = grad[..., :turning], grad[..., turning:]
    by_sine = head * sin
    low, high = by_sine.chunk(2, -1)
    d_normed = torch.cat([head * cos + torch.cat([high, -low], -1), tail], -1)
    wide = widened(x)
    normed = wide
    if weight is not None:
        normed = wide * (wide.square().mean(-1, keepdim=True) + eps).rsqrt() * weight.to(wide.dtype)
    low, high = normed[..., :turning].chunk(2, -1)
    d_cos, d_sin = (z.sum_to_size(cos.shape)
                    for z in (head * normed[..., :turning], head * torch.cat([-high, low], -1)))
    if weight is None:
        return d_normed.to(x.dtype), None, d_cos, d_sin
    dx, dweight = _norm_gradients(wide, weight, eps, d_normed)
    return dx.to(x.dtype), dweight.to(weight.dtype), d_cos, d_sin


def _rotate(ctx: Any, grad_q: Tensor, grad_k: Tensor) -> tuple[Grad, ...]:
    q, k, q_weight, k_weight, cos, sin = ctx.saved_tensors
    dq, d_q_weight, *by_q = _rotate_one(q, q_weight, cos, sin, ctx.eps, grad_q)
    dk, d_k_weight, *by_k = _rotate_one(k, k_weight, cos, sin, ctx.eps, grad_k)
    d_cos, d_sin = ((one + other).to(cos.dtype) for one, other in zip(by_q, by_k))
    return dq, dk, d_q_weight, d_k_weight, d_cos, d_sin, None, None


_norm_rotate_rows = operator("norm_rotate_rows", _rotate, _rotate_setup)


def norm_rotate_rows(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *, q_weight: Tensor | None = None, k_weight: Tensor | None = None,
    eps: float = 1e-6, weight_first: bool = False,
) -> RotatedHeads:
    """Rotate-half RoPE of queries and keys, each after its RMS norm over D if it has a weight [D].

    q [S, H, T, D], k [S, K, T, D]; cos, sin [S or 1, 1, T, R], float32 (nothing is rounded before the rotation) or q's
    dtype. R is even; the channels after the first R are copied. Gradients: of all tensors.
    """
    return RotatedHeads(*_norm_rotate_rows(q, k, q_weight, k_weight, cos, sin, eps, weight_first))


def _gate_setup(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _gate(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
    gate, up = ctx.saved_tensors
    wide, grad = widened(gate), widened(grad)
    sigmoid = wide.sigmoid()
    return ((grad * widened(up) * sigmoid * (1 + wide * (1 - sigmoid))).to(gate.dtype),
            (grad * wide * sigmoid).to(up.dtype))


_silu_multiply = operator("silu_multiply", _gate, _gate_setup)


def silu_multiply(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up -> contiguous. Both have one shape (up to 4 dimensions) and dtype. Gradients: of both."""
    return _silu_multiply(gate, up)
