"""What autograd and FakeTensor have to know of the operators: gradients, and results on tensors without data."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Optional

import torch
from torch import Tensor

from ._backward import attention_backward, prefill_backward, set_backward
from ._library import NAMES

Grad = Optional[Tensor]

def _wide(tensor: Tensor) -> Tensor:
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def _plus(a: Grad, b: Grad) -> Grad:
    return b if a is None else a if b is None else a + b


def _cast(gradient: Grad, like: Tensor) -> Grad:
    return None if gradient is None else gradient.to(like.dtype)


def _shares(parts: Sequence[tuple[Tensor, Tensor]], grad_out: Grad, grad_lse: Grad) -> list[tuple[Grad, Grad]]:
    """Of each part (output [..., D], lse [...]) of a merge: the gradients of its output and of its lse. A part with lse
    -inf has weight 0, whatever its output holds."""
    if grad_out is None and grad_lse is None:
        return [(None, None)] * len(parts)
    lses = torch.stack([lse for _, lse in parts])
    weights = (lses - torch.logsumexp(lses, 0)).exp().masked_fill(lses == -torch.inf, 0).unsqueeze(-1)
    outputs = [_wide(output).masked_fill(weight == 0, 0) for (output, _), weight in zip(parts, weights)]
    if grad_out is None:
        return [(None, weight.squeeze(-1) * grad_lse) for weight in weights]
    merged = sum(output * weight for output, weight in zip(outputs, weights))
    grad_out = _wide(grad_out)
    shares = []
    for output, weight in zip(outputs, weights):
        through_lse = (grad_out * (output - merged)).sum(-1)
        if grad_lse is not None:
            through_lse = through_lse + grad_lse
        shares.append((grad_out * weight, through_lse * weight.squeeze(-1)))
    return shares


def _given(grads: tuple[Grad, Grad], output: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """Zeros for what is not there: loops over keys need both."""
    return (torch.zeros_like(output) if grads[0] is None else grads[0],
            torch.zeros_like(lse) if grads[1] is None else grads[1])


class _Sides:
    """The two key sets of an attention operator over a block, out of the tensors that its forward pass saved."""

    def __init__(self, ctx: Any, grads: Sequence[Grad], residual: tuple[Grad, Grad] = (None, None)) -> None:
        (self.q, self.k_ext, self.v_ext, self.ext_len, self.k_in, self.v_in, self.external, self.lse_external,
         self.internal, self.lse_internal) = ctx.saved_tensors[:10]
        self.scale = ctx.scale
        grad_out, grad_external, grad_lse_external, grad_internal, grad_lse_internal = grads[:5]
        parts = [(self.external, self.lse_external), (self.internal, self.lse_internal)]
        if residual[0] is not None:
            parts.append(residual)  # type: ignore[arg-type]
        shares = _shares(parts, grad_out, None)
        self.of_external = (_plus(shares[0][0], grad_external), _plus(shares[0][1], grad_lse_external))
        self.of_internal = (_plus(shares[1][0], grad_internal), _plus(shares[1][1], grad_lse_internal))
        self.of_residual = shares[2] if len(parts) == 3 else (None, None)

    @staticmethod
    def save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...], *more: Optional[Tensor]) -> None:
        """inputs: q, k_ext, v_ext, ext_len, k_in, v_in; output: as of split_attention."""
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
        return _cast(_plus(external, internal), self.q)


def _keys(wanted: bool, dk: Grad, dv: Grad) -> tuple[Grad, Grad]:
    return (dk, dv) if wanted else (None, None)


# --- attention: one pair of functions for each operator, in the order of the schema's arguments


def _split_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.scale = inputs[6]
    _Sides.save(ctx, inputs[:6], output)


def _split(ctx: Any, *grads: Grad) -> tuple[Grad, ...]:
    sides, need = _Sides(ctx, grads), ctx.needs_input_grad
    outer, inner = need[1] or need[2], need[4] or need[5]
    dq_ext, *d_ext = sides.external_gradients(None, outer)
    dq_in, *d_in = sides.internal_gradients(inner)
    return (sides.query(dq_ext, dq_in), *_keys(outer, *d_ext), None, *_keys(inner, *d_in), None)


def _reuse_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.scale = inputs[9]
    _Sides.save(ctx, inputs[:6], output, inputs[8])


def _reuse(ctx: Any, *grads: Grad) -> tuple[Grad, ...]:
    sides, need = _Sides(ctx, grads), ctx.needs_input_grad
    outer, inner = need[1] or need[2], need[4] or need[5]
    sequences, heads = sides.q.shape[:2]
    mask = ctx.saved_tensors[10]
    reused = mask.expand(sequences, heads).contiguous()  # the same for all sequences where it is [H]
    dq_ext, *d_ext = sides.external_gradients(reused, outer)
    dq_in, *d_in = sides.internal_gradients(inner)
    taken = reused.to(sides.q.device).unsqueeze(-1)
    cached, cached_lse = sides.of_external
    if cached is not None:
        cached = torch.where(taken.unsqueeze(-1), cached, 0)
    if cached_lse is not None:
        cached_lse = torch.where(taken, cached_lse, 0)
    return (sides.query(dq_ext, dq_in), *_keys(outer, *d_ext), None, *_keys(inner, *d_in), cached, cached_lse, None,
            None)


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


def _unselected_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.scale = inputs[5]
    ctx.save_for_backward(*inputs[:5], *output)
    ctx.set_materialize_grads(False)


def _unselected(ctx: Any, *grads: Grad) -> tuple[Grad, ...]:
    q, k_ext, v_ext, ext_len, index, output, lse = ctx.saved_tensors
    outer = ctx.needs_input_grad[1] or ctx.needs_input_grad[2]
    dq, dk, dv = set_backward(q, k_ext, v_ext, ext_len, index, None, True, output, lse,
                              *_given(grads, output, lse), ctx.scale, outer)  # type: ignore[arg-type]
    return (_cast(dq, q), *_keys(outer, dk, dv), None, None, None)


def _prefill_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    q, k, v, length, ctx.block_length, ctx.scale, ctx.query_start = inputs
    ctx.save_for_backward(q, k, v, length)


def _prefill(ctx: Any, grad: Tensor) -> tuple[Grad, ...]:
    q, k, v, length = ctx.saved_tensors
    dq, dk, dv = prefill_backward(q, k, v, length, grad, ctx.block_length, ctx.scale, ctx.query_start)
    return dq.to(q.dtype), dk, dv, None, None, None, None


def _merge_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.parts = len(inputs[0])
    ctx.save_for_backward(*inputs[0], *inputs[1])
    ctx.set_materialize_grads(False)


def _merge(ctx: Any, grad_out: Grad, grad_lse: Grad) -> tuple[list[Grad], list[Grad]]:
    outputs, lses = ctx.saved_tensors[:ctx.parts], ctx.saved_tensors[ctx.parts:]
    shares = _shares(list(zip(outputs, lses)), grad_out, grad_lse)
    return [_cast(share[0], output) for share, output in zip(shares, outputs)], [share[1] for share in shares]


# --- rows


def _similarity_setup(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _similarity(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
    a, b = (_wide(x) for x in ctx.saved_tensors)
    norms = [torch.linalg.vector_norm(x, dim=-1, keepdim=True) for x in (a, b)]
    none = (norms[0] == 0) | (norms[1] == 0)  # the cosine is 0 there by definition, and stays 0
    a, b = (x / norm for x, norm in zip((a, b), norms))
    cosine, grad = (a * b).sum(-1, keepdim=True), grad.unsqueeze(-1)
    found = [grad * (other - cosine * one) / norm for one, other, norm in ((a, b, norms[0]), (b, a, norms[1]))]
    d_a, d_b = (x.masked_fill(none, 0).to(like.dtype) for x, like in zip(found, ctx.saved_tensors))
    return d_a, d_b


def _norm_gradients(x: Tensor, weight: Tensor, eps: float, grad: Tensor) -> tuple[Tensor, Tensor]:
    """Of x / sqrt(mean(x^2) + eps) * weight, x and grad [..., W] wide: dx, and dweight [W] wide."""
    inverse = (x.square().mean(-1, keepdim=True) + eps).rsqrt()
    normed, weighted = x * inverse, grad * weight.to(x.dtype)
    dx = inverse * (weighted - normed * (weighted * normed).mean(-1, keepdim=True))
    return dx, (grad * normed).flatten(0, -2).sum(0)


def _norm_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, ctx.eps, _ = inputs
    ctx.save_for_backward(x, weight)


def _norm(ctx: Any, grad: Tensor) -> tuple[Grad, ...]:
    x, weight = ctx.saved_tensors
    dx, dweight = _norm_gradients(_wide(x), weight, ctx.eps, _wide(grad))
    return dx.to(x.dtype), dweight.to(weight.dtype), None, None


def _add_norm_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.eps = inputs[3]
    ctx.save_for_backward(output[0], inputs[2])


def _add_norm(ctx: Any, grad_sum: Tensor, grad_norm: Tensor) -> tuple[Grad, ...]:
    total, weight = ctx.saved_tensors
    dx, dweight = _norm_gradients(_wide(total), weight, ctx.eps, _wide(grad_norm))
    dx = (dx + _wide(grad_sum)).to(total.dtype)
    return dx, dx, dweight.to(weight.dtype), None, None


def _rotate_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, q_weight, k_weight, cos, sin, ctx.eps, _ = inputs
    ctx.save_for_backward(q, k, q_weight, k_weight, cos, sin)


def _rotate_one(x: Tensor, weight: Grad, cos: Tensor, sin: Tensor, eps: float, grad: Tensor) -> tuple[Any, ...]:
    """dx, dweight, dcos and dsin of one of the two; y = x cos + rotate_half(x) sin over the first R channels."""
    turning = cos.shape[-1]
    grad, cos, sin = _wide(grad), _wide(cos), _wide(sin)
    head, tail = grad[..., :turning], grad[..., turning:]
    by_sine = head * sin
    low, high = by_sine.chunk(2, -1)
    d_normed = torch.cat([head * cos + torch.cat([high, -low], -1), tail], -1)
    wide = _wide(x)
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


def _gate_setup(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _gate(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
    gate, up = ctx.saved_tensors
    wide, grad = _wide(gate), _wide(grad)
    sigmoid = wide.sigmoid()
    return ((grad * _wide(up) * sigmoid * (1 + wide * (1 - sigmoid))).to(gate.dtype),
            (grad * wide * sigmoid).to(up.dtype))


_GRADIENTS: dict[str, tuple[Callable[..., Any], Callable[..., None]]] = {
    "split_attention": (_split, _split_setup),
    "reuse_attention": (_reuse, _reuse_setup),
    "gather_attention": (_gather, _gather_setup),
    "unselected_attention": (_unselected, _unselected_setup),
    "prefill_attention": (_prefill, _prefill_setup),
    "merge_attention": (_merge, _merge_setup),
    "cross_step_similarity": (_similarity, _similarity_setup),
    "rms_norm_rows": (_norm, _norm_setup),
    "add_rms_norm_rows": (_add_norm, _add_norm_setup),
    "norm_rotate_rows": (_rotate, _rotate_setup),
    "silu_multiply": (_gate, _gate_setup),
}


def _choice(ctx: Any, *grads: Grad) -> None:
    raise AssertionError("a result that is marked not differentiable got a gradient")


def _choice_setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """What only chooses keys has no gradient: its results don't require one, as those of torch.argmax."""
    ctx.mark_non_differentiable(*(output if isinstance(output, tuple) else (output,)))


def _any_device(name: str) -> Callable[..., Any]:
    """The C++ Meta kernel of an operator, for FakeTensor too. FakeTensor by itself calls it with tensors of one device
    only, and lengths and masks stay on the CPU. It looks at shapes and makes empty tensors like its first argument, so
    fake tensors can be handed to it as they are."""
    kernel = torch.library.get_kernel(f"blockscope::{name}", "Meta")
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.Meta)
    arguments = getattr(torch.ops.blockscope, name).default._schema.arguments

    def fake(*args: Any, **named: Any) -> Any:
        # What equals its default was left out on the way here; a boxed call takes everything.
        rest = (named.get(argument.name, argument.default_value) for argument in arguments[len(args):])
        return kernel.call_boxed(keys, *args, *rest)

    return fake


@functools.cache
def register() -> None:
    """After the library is loaded; once per process, also where the package is imported again."""
    for name in NAMES:
        torch.library.register_fake(f"blockscope::{name}", _any_device(name), allow_override=True)
        backward, setup = _GRADIENTS.get(name, (_choice, _choice_setup))
        torch.library.register_autograd(f"blockscope::{name}", backward, setup_context=setup)
