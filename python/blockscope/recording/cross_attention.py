"""Names the attention calls of a continuous model that aren't its self-attention: those inside a module with a name of
cross-attention, and those over fewer keys than the pass has tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .calls import AttentionCall

NAMES = ("cross_attn", "cross_attention", "crossattn", "attn2", "encoder_attn", "text_attn", "image_attn")


def watch_cross_attention(model: torch.nn.Module, enter: Callable[[str], None]) -> list[Any]:
    """Hooks that call enter(name) when such a module begins, and enter("") when it ends. One may be inside another."""
    hooks = []
    for name, module in model.named_modules():
        if name.rpartition(".")[2] in NAMES:
            hooks.append(module.register_forward_pre_hook(lambda _, args, name=name: enter(name)))
            hooks.append(module.register_forward_hook(lambda _, args, output: enter(""), always_call=True))
    return hooks


class SkippedCalls:
    """The calls of one pass that aren't self-attention."""

    def __init__(self, length: int | None) -> None:
        """length: tokens of the pass; None: of a model of tokens, which skips nothing."""
        self._length = length
        self._inside: list[str] = []  # modules of cross-attention that run now, the innermost last
        self.skipped: dict[str, None] = {}  # names of the calls, in order

    @property
    def cross_attention(self) -> str:
        """The module that runs now. Setting a name enters that module, and setting "" leaves the innermost one."""
        return self._inside[-1] if self._inside else ""

    @cross_attention.setter
    def cross_attention(self, name: str) -> None:
        if name:
            self._inside.append(name)
        else:
            del self._inside[-1:]

    def skips(self, call: AttentionCall) -> bool:
        if self._length is None or call.stated:
            return False
        keys, queries = call.k.shape[2], call.q.shape[2]
        if not self._inside and keys >= min(queries, self._length):
            return False
        self.skipped[f"{self.cross_attention or f'{keys} keys for {queries} queries'}: {call.function}"] = None
        return True
