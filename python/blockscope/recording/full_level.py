"""The additional arrays of level ``full``: hidden states, the block's keys and values, each token's own sets, and the
keys and values that a pass stored, for /prefix of the format."""

from __future__ import annotations

import weakref

import torch

from ..errors import UsageError
from .layer_sizes import stack_padded
from .passes import RunningPass
from .settings import Settings
from .split import LayerAttention
from .steps import Kind, Pass, Sequence


def arrays_of(layers: list[LayerAttention], slot: int, hidden: torch.Tensor | None) -> dict[str, torch.Tensor]:
    """Arrays of a denoising row; hidden [L, B, hidden_size]."""
    if hidden is None:
        raise UsageError("level full: the input of the layers can't be seen: their first argument isn't the hidden "
                         "states [S, T, hidden_size]. HINT: record(..., level=\"outputs\")")
    return {"/hidden/hidden": hidden,
            "/kv/key": stack_padded([layer.key[slot] for layer in layers]),
            "/kv/value": stack_padded([layer.value[slot] for layer in layers]),
            "/sets/topk_token": stack_padded([layer.sets.token_index[slot] for layer in layers])}


class StoredKeys:
    """The keys that the rows of each sequence have stored so far."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        # Positions [0, end) are stored. Those of a canvas aren't counted, because they are stored repeatedly.
        self._end: weakref.WeakKeyDictionary[Sequence, int] = weakref.WeakKeyDictionary()

    def take(self, sequence: Sequence, one: Pass, running: RunningPass, layers: list[int],
             slot: int) -> tuple[int, int, dict[str, torch.Tensor]]:
        """The first position that this pass's row stores, the number of positions, and their /prefix arrays [N, L, K,
        D]."""
        first, end = self._range(sequence, one)
        if first == end:
            return first, 0, {}

        def stacked(part: int) -> torch.Tensor:
            all_ = stack_padded([running.stored[layer][part][slot] for layer in layers])  # [L, K, T, D]
            return all_[:, :, first - one.start:end - one.start].permute(2, 0, 1, 3)

        return first, end - first, {"/prefix/key": stacked(0), "/prefix/value": stacked(1)}

    def _range(self, sequence: Sequence, one: Pass) -> tuple[int, int]:
        stop = one.start + one.length
        if sequence.bidirectional:
            # Later rows take the block's own keys from their own pass.
            outside = one.kind is not Kind.DENOISE or one.length > self._settings.block_length
            return (one.start, stop) if outside else (one.start, one.start)
        stored = self._end.get(sequence, 0)
        if one.kind is Kind.DENOISE:
            if one.context_length > stored:
                raise UsageError(
                    f"level full: the pass over block {one.block} reads the keys of positions {stored} to "
                    f"{one.context_length - 1}, which no pass before it stored: a loop without a cache, or one that "
                    "stores keys while it denoises. HINT: record(..., level=\"outputs\")")
            stop = one.block_start + 1 if self._settings.autoregressive else stored
        first = max(stored, one.start)
        if first > stored:
            raise UsageError(f"level full: the pass stores keys from position {first}, and those from {stored} on "
                             "were never stored. HINT: record(..., level=\"outputs\")")
        self._end[sequence] = max(stored, stop)
        return first, max(first, stop)
