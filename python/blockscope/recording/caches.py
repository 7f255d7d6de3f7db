"""The contents of a loop's cache, and the positions that a pass computes. If the model gets the whole sequence and
skips rows inside, the cache says which. Supported for this: the caches of d2Cache."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

Positions = list[list[int]]  # [S][R], rising, counted from the pass's first token


@dataclass(frozen=True)
class LayerRows:
    """Rows of one layer; keys are computed at the rows of the queries."""

    query: Positions  # in the order of the call, which may not be ascending
    value: Positions

    def positions(self, slot: int, start: int) -> tuple[list[int], list[int]]:
        """Rows of a sequence, counted from its beginning."""
        return [start + row for row in self.query[slot]], [start + row for row in self.value[slot]]


def tells_rows(cache: Any) -> bool:
    """Whether the model gets the whole sequence at each pass, and the cache says which rows are computed."""
    return hasattr(cache, "active_q_mask")


def selected_rows(cache: Any) -> Positions | None:
    """Rows that all layers of the pass compute; called during the pass or right after it. None: all."""
    mask = getattr(cache, "active_q_mask", None)
    if not isinstance(mask, torch.Tensor) or mask.dim() != 2:
        return None
    return [row.nonzero()[:, 0].tolist() for row in mask]


def selects_by_layer(cache: Any) -> bool:
    """Whether each layer of a pass chooses its own rows (dLLM-Cache)."""
    return hasattr(cache, "refresh_response")


def layer_rows(cache: Any) -> LayerRows | None:
    """Rows of the layer that attends now, if each layer chooses its own."""
    index = getattr(cache, "_refresh_index", None)
    if not selects_by_layer(cache) or not isinstance(index, torch.Tensor):
        return None
    query = index.tolist()
    # Values of the whole answer are computed to choose among its rows.
    answer = range(cache._prompt_length, cache.key_cache[0].shape[1]) if cache.rou > 0 else range(0)
    return LayerRows(query, [sorted({*row, *answer}) for row in query])


def cache_length(past: Any) -> int:
    """Number of keys in a cache: one of transformers' caches, or tuples of keys and values by layer."""
    if past is None:
        return 0
    if hasattr(past, "get_seq_length"):
        return int(past.get_seq_length())
    try:
        key = past[0][0]
        return int(key.shape[-2]) if isinstance(key, torch.Tensor) else 0
    except (IndexError, KeyError, TypeError):
        return 0


def stored_keys(cache: Any) -> torch.Tensor | None:
    """Keys [S, K, N, D] of the last layer that has any, in the same caches; None: unknown."""
    layers = getattr(cache, "layers", cache)
    for layer in reversed(layers if isinstance(layers, (list, tuple)) else []):
        keys = layer[0] if isinstance(layer, (list, tuple)) and layer else getattr(layer, "keys", None)
        if isinstance(keys, torch.Tensor) and keys.dim() == 4:
            return keys
    return None


def ranges_of(positions: Iterable[int]) -> list[tuple[int, int]]:
    """[begin, end) of runs of consecutive ascending positions."""
    found: list[tuple[int, int]] = []
    for position in sorted(positions):
        if found and found[-1][1] == position:
            found[-1] = (found[-1][0], position + 1)
        else:
            found.append((position, position + 1))
    return found


def valid_of(block: range, computed: list[int], by_layer: list[tuple[list[int], list[int]]]) -> list[int]:
    """/steps/valid: 1 for each position of the block that some layer computed; none if all are."""
    there = set(computed).union(*(query for query, _ in by_layer))
    return [] if there.issuperset(block) else [int(position in there) for position in block]
