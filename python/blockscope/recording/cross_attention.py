"""Names the attention calls of a continuous model that aren't its self-attention: those inside a module with a name of
cross-attention, and those over fewer keys than the pass has tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

NAMES = ("cross_attn", "cross_attention", "crossattn", "attn2", "encoder_attn", "text_attn", "image_attn")


def watch_cross_attention(model: torch.nn.Module, enter: Callable[[str], None]) -> list[Any]:
    """Hooks that call enter(name) when such a module begins, and enter("") when it ends."""
    hooks = []
    for name, module in model.named_modules():
        if name.rpartition(".")[2] in NAMES:
            hooks.append(module.register_forward_pre_hook(lambda _, args, name=name: enter(name)))
            hooks.append(module.register_forward_hook(lambda _, args, output: enter(""), always_call=True))
    return hooks
