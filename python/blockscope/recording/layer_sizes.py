"""Layers that differ in KV heads, channels or how far they see (ragged layers), and their arrays in a trace."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..errors import UsageError
from .model import NUM_HEADS
from .settings import config_value


@dataclass(frozen=True)
class LayerSizes:
    """Of every layer of the model."""

    kv_heads: tuple[int, ...]
    channels: tuple[int, ...]
    windows: tuple[int, ...]  # W: the newest W - 1 keys before a block are seen; 0: all

    @property
    def of_one_shape(self) -> bool:
        return len(set(zip(self.kv_heads, self.channels))) == 1

    @property
    def alike(self) -> bool:
        return self.of_one_shape and not any(self.windows)

    def read_by(self, heads: Sequence[int], num_heads: int, layers: Sequence[int]) -> list[int]:
        """The KV heads that these query heads read in any of these layers."""
        return sorted({head // (num_heads // self.kv_heads[layer]) for layer in layers for head in heads})


def configured_sizes(model: Any, num_layers: int, windows: bool) -> LayerSizes | None:
    """From a configuration with a part for each layer, as transformers has it. windows: whether those count, which is
    so where every query of a block sees the same keys before it. None: it says nothing of single layers."""
    config = getattr(model, "config", None)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    try:
        of_layers = [text.per_layer_config[layer] for layer in range(num_layers)]
        kv_heads = tuple(int(one.num_key_value_heads) for one in of_layers)
        channels = tuple(int(one.head_dim) for one in of_layers)
    except (AttributeError, IndexError, KeyError, TypeError):
        return None
    heads = config_value(model, *NUM_HEADS)
    if heads is None or any(one < 1 or heads % one for one in kv_heads):
        return None
    kinds = getattr(text, "layer_types", None) or [""] * num_layers
    window = getattr(text, "sliding_window", None) if windows else None
    return LayerSizes(kv_heads, channels, tuple(int(window or 0) if kind == "sliding_attention" else 0
                                                for kind in kinds[:num_layers]))


def stack_padded(values: list[torch.Tensor]) -> torch.Tensor:
    """[L, ...]: values of each layer, smaller ones followed by NaN, or by -1 where they are integers."""
    if len({value.shape for value in values}) == 1:
        return torch.stack(values)
    size = [max(lengths) for lengths in zip(*(value.shape for value in values))]
    fill = math.nan if values[0].is_floating_point() else -1
    stacked = values[0].new_full((len(values), *size), fill)
    for into, value in zip(stacked, values):
        into[tuple(slice(length) for length in value.shape)] = value
    return stacked


def require_window(window: int, seen: int, context: int, where: str) -> None:
    """Whether every query of a canvas sees the newest window - 1 of the `context` keys before it, as a trace says."""
    expected = min(context, window - 1) if window else context
    if seen != expected:
        raise UsageError(f"{where}: sees {seen} keys before the canvas, expected {expected} of {context}"
                         + (f", as its window of {window} says" if window else "")
                         + ". HINT: generate(...) without cache_implementation=, whose caches keep others")
