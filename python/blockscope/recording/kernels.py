"""The operators of a recording, under one set of names. On a CPU, they are the C++ operators that the runtime's own
recorder calls, ``torch.ops.blockscope``. On other devices, :mod:`.torch_operators` replaces them."""

from __future__ import annotations

import functools
from typing import Any

import torch

from ..errors import OperatorsUnavailable, UsageError
from . import torch_operators

FLOATS = (torch.float32, torch.float16, torch.bfloat16)


@functools.cache
def loaded() -> bool:
    """Whether torch.ops.blockscope is available."""
    try:
        from .. import ops  # noqa: F401
    except OperatorsUnavailable:
        return False
    return True


def require(model: torch.nn.Module, attention: str) -> None:
    """Raises an error if a recording with this choice of ``attention`` can't use the library for the model."""
    from .. import ops  # noqa: F401 - OperatorsUnavailable says what is missing

    devices = {parameter.device.type for parameter in model.parameters()}
    if devices - {"cpu"}:
        raise UsageError(f"attention: {attention} is for models on a CPU, got one on {', '.join(sorted(devices))}. "
                         "HINT: attention=\"observe\"")


def taken(x: torch.Tensor) -> bool:
    """Whether the library takes tensors like this one."""
    return x.device.type == "cpu" and x.dtype in FLOATS and loaded()


def fit(q: torch.Tensor, *others: torch.Tensor) -> bool:
    """Whether the library's attention takes these queries, keys and values."""
    return taken(q) and all(x.dtype == q.dtype and x.shape[-1] == q.shape[-1] and x.stride(-1) == 1
                            for x in (q, *others))


def operators(library: bool) -> Any:
    """The operators, of the library or of torch."""
    return torch.ops.blockscope if library else torch_operators


def of(x: torch.Tensor) -> Any:
    """The operators for tensors like this one."""
    return operators(taken(x))
