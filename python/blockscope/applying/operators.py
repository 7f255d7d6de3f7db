"""The operators that policies use, under one set of names: the library's, ``torch.ops.blockscope``, on a CPU and a GPU,
else :mod:`.torch_operators`."""

from __future__ import annotations

from typing import Any

import torch

from ..recording import kernels
from . import torch_operators


def of(q: torch.Tensor, *others: torch.Tensor) -> Any:
    """The operators for these queries, keys and values."""
    library = q.device.type in ("cpu", "cuda") and q.dtype in kernels.FLOATS and kernels.loaded() and all(
        x.dtype == q.dtype and x.shape[-1] == q.shape[-1] and x.stride(-1) == 1 for x in (q, *others))
    return torch.ops.blockscope if library else torch_operators


def public() -> Any:
    """What an own policy's attend() gets: ``blockscope.ops``."""
    from .. import ops  # OperatorsUnavailable says what is missing

    return ops
