"""Code of ``torch.compile``. No mode and no hook can see into it. It runs unchanged, or without compilation while a
recording is open, if the user asks for that."""

from __future__ import annotations

import threading
from typing import Any

import torch

_lock = threading.Lock()
_users = 0
_stance: Any = None


def uncompiled(model: torch.nn.Module) -> torch.nn.Module:
    """The original model of a torch.compile(model)."""
    return getattr(model, "_orig_mod", model)


def run_eagerly() -> None:
    """Sets PyTorch's stance for the whole process, until run_as_compiled() was called as often."""
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
