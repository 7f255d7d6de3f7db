"""What a loop's own cache says of the positions that a pass computes, where the model is handed the whole sequence and
leaves rows out inside. Known: the caches of d2Cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

Positions = list[list[int]]  # [S][R], rising, counted from the pass's first token


@dataclass(frozen=True)
class LayerRows:
    """Of one layer; keys are computed at the rows of the queries."""

    query: Positions  # in the order of the call, which needn't rise
    value: Positions


def selected_rows(cache: Any) -> Positions | None:
    """Rows that all layers of the pass compute; asked within the pass or right behind it. None: all."""
    mask = getattr(cache, "active_q_mask", None)
    if not isinstance(mask, torch.Tensor) or mask.dim() != 2:
        return None
    return [row.nonzero()[:, 0].tolist() for row in mask]


def selects_by_layer(cache: Any) -> bool:
    """Whether each layer of a pass chooses rows of its own (dLLM-Cache)."""
    return hasattr(cache, "refresh_response")


def layer_rows(cache: Any) -> LayerRows | None:
    """Of the layer that attends now, where each chooses its own."""
    index = getattr(cache, "_refresh_index", None)
    if not selects_by_layer(cache) or not isinstance(index, torch.Tensor):
        return None
    query = index.tolist()
    # Values of the whole answer are computed to choose among its rows.
    answer = range(cache._prompt_length, cache.key_cache[0].shape[1]) if cache.rou > 0 else range(0)
    return LayerRows(query, [sorted({*row, *answer}) for row in query])
