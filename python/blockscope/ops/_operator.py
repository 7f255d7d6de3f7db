"""Shared parts of the operators' files: an operator of the library with its gradient, defaults of arguments, and
arithmetic of gradients that may be missing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Optional

import torch
from torch import Tensor

from . import _library

Grad = Optional[Tensor]


def _choice(ctx: Any, *grads: Grad) -> None:
    raise AssertionError("a result that is marked not differentiable got a gradient")


def _choice_setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """An operator that only chooses keys has no gradient: its results don't require one, like those of torch.argmax."""
    ctx.mark_non_differentiable(*(output if isinstance(output, tuple) else (output,)))


def _any_device(name: str) -> Callable[..., Any]:
    """The C++ Meta kernel of an operator, also for FakeTensor. FakeTensor itself calls it only with tensors of one
    device, but lengths and masks stay on the CPU. The kernel uses only shapes and makes empty tensors like its first
    argument, so it accepts fake tensors unchanged."""
    kernel = torch.library.get_kernel(f"blockscope::{name}", "Meta")
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.Meta)
    arguments = getattr(torch.ops.blockscope, name).default._schema.arguments

    def fake(*args: Any, **named: Any) -> Any:
        # Arguments with default values were left out on the way here, but a boxed call needs all of them.
        rest = (named.get(argument.name, argument.default_value) for argument in arguments[len(args):])
        return kernel.call_boxed(keys, *args, *rest)

    return fake


def operator(name: str, backward: Callable[..., Any] = _choice, setup: Callable[..., None] = _choice_setup) -> Any:
    """Registers the gradient of ``torch.ops.blockscope.<name>`` with torch.library.register_autograd and returns the
    operator. Called once per process and name, when the file of the operator is imported."""
    found = _library.operator(torch, name)
    torch.library.register_fake(f"blockscope::{name}", _any_device(name), allow_override=True)
    torch.library.register_autograd(f"blockscope::{name}", backward, setup_context=setup)
    return found


# --- arguments


def scale_of(q: Tensor, scale: float | None) -> float:
    return q.shape[-1] ** -0.5 if scale is None else scale


def lengths_of(ext_len: Tensor | int | None, sequences: int, keys: int) -> Tensor:
    if isinstance(ext_len, Tensor):
        return ext_len
    return torch.full((sequences,), keys if ext_len is None else ext_len, dtype=torch.int64, device="cpu")


# --- gradients


def widened(tensor: Tensor) -> Tensor:
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def plus(a: Grad, b: Grad) -> Grad:
    return b if a is None else a if b is None else a + b


def cast(gradient: Grad, like: Tensor) -> Grad:
    return None if gradient is None else gradient.to(like.dtype)
