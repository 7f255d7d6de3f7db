"""Names the attention calls of a continuous model that aren't its self-attention: those inside a module with a name of
cross-attention, and those over fewer keys than the pass has tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .calls import AttentionCall

NAMES = ("cross_attn", "cross_attention", "crossattn", "attn2", "encoder_attn", "text_attn", "image_attn")


def watch_cross_attention(model: torch.nn.Module, enter: Callable[[str], None]) -> list[Any]:
    """Hooks that call enter(name) when such a module begins, and enter("") when it ends."""
    hooks = []
    for name, module in model.named_modules():
        if name.rpartition(".")[2] in NAMES:
            hooks.append(module.register_forward_pre_hook(lambda _, args, name=name: enter(name)))
            hooks.append(module.register_forward_hook(lambda _, args, output: enter(""), always_call=True))
    return hooks


def other_attention(call: AttentionCall, inside: str, length: int) -> str:
    """The name of a call that isn't self-attention; "": it is. inside: the module of cross-attention that runs; length:
    tokens of the pass."""
    keys, queries = call.k.shape[2], call.q.shape[2]
    if call.stated or not (inside or keys < min(queries, length)):
        return ""
    return f"{inside or f'{keys} keys for {queries} queries'}: {call.function}"
