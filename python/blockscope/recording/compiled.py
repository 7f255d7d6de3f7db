"""Code behind ``torch.compile``: no mode and no hook sees into it. It runs as it is, or, where users ask for that,
as if it weren't compiled while a recording is open."""

from __future__ import annotations

import threading
from typing import Any

import torch

_lock = threading.Lock()
_users = 0
_stance: Any = None


def uncompiled(model: torch.nn.Module) -> torch.nn.Module:
    """The model that torch.compile(model) was called with."""
    return getattr(model, "_orig_mod", model)


def run_eagerly() -> None:
    """Sets PyTorch's stance, which the whole process shares, until as many run_as_compiled()."""
    global _users, _stance
    with _lock:
        if _users == 0:
            _stance = torch.compiler.set_stance("force_eager")
        _users += 1


def run_as_compiled() -> None:
    global _users, _stance
    with _lock:
        _users -= 1
        if _users == 0:
            _stance.__exit__(None, None, None)
            _stance = None
