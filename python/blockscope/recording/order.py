"""Checks that the sequences of a batch keep their order in the cache. Beam search, and loops that select rows of a
cache themselves, change the order between passes, and no input of the model shows it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ..errors import UsageError
from .batch import refuse_order
from .caches import cache_length, selects_by_layer, stored_keys
from .steps import PassInput


@dataclass(frozen=True)
class _Keys:
    """Keys of the last layer that attended: [S, K, N, D], for positions [offset, offset + N)."""

    values: torch.Tensor
    offset: int


class BatchOrder:
    """Compares the keys that a pass reads but did not compute with those that the previous pass read. A row with
    another row's keys was moved by the loop."""

    def __init__(self) -> None:
        self._last: _Keys | None = None

    def follow(self, given: PassInput, read: torch.Tensor | None, computed: list[list[int]] | None,
               output: Any) -> None:
        """After a pass. read: keys [S, K, N, D] of its last attention, None: unseen; computed: the positions that it
        computed [S][R], None: all of its tokens'; output: the model's."""
        if given.batch < 2 or given.timestep is not None:  # nobody reorders videos
            return
        last, self._last = self._last, None
        now = _of_call(given, read) or _of_cache(given, given.cache or getattr(output, "past_key_values", None))
        if not given.reads_kept_keys:
            self._last = now
            return
        if now is None or last is None:
            raise UsageError(
                f"the keys of a batch of {given.batch} sequences can't be seen, so nothing shows whether the loop "
                "keeps their order (beam search doesn't). HINT: decode one sequence at a time. If the code is "
                "compiled, record(..., compiled=\"eager\")")
        self._last = now
        if not selects_by_layer(given.cache):  # each layer computed other rows
            done = given.positions_of(0) if computed is None else [p for row in computed for p in row]
            _compare(last, now, set(done))


def _of_call(given: PassInput, read: torch.Tensor | None) -> _Keys | None:
    if read is None or read.dim() != 4 or read.shape[0] != given.batch:
        return None
    return _Keys(read.detach().clone(), max(given.end - read.shape[2], 0))  # a copy: caches may be written in place


def _of_cache(given: PassInput, cache: Any) -> _Keys | None:
    """Where attention runs in compiled code."""
    stored = stored_keys(cache)
    if stored is None or stored.shape[0] != given.batch:
        return None
    return _Keys(stored.detach().clone(), max(cache_length(cache) - stored.shape[2], 0))


def _compare(last: _Keys, now: _Keys, computed: set[int]) -> None:
    begin = max(last.offset, now.offset)
    end = min(last.offset + last.values.shape[2], now.offset + now.values.shape[2])
    kept = [position for position in range(begin, end) if position not in computed]
    index = torch.tensor(kept, dtype=torch.long, device=now.values.device)
    # A model may repeat its KV heads for some passes and not for others.
    fewer = min(last.values.shape[1], now.values.shape[1])
    before, after = (keys.values[:, ::keys.values.shape[1] // fewer][:, :, index - keys.offset]
                     for keys in (last, now))
    moved = ~(after == before).all(-1).all(1)  # [S, N]
    for slot in moved.any(1).nonzero()[:, 0].tolist():
        for source in range(len(before)):
            from_there = (after[slot] == before[source]).all(-1).all(0)
            if source != slot and bool((from_there & moved[slot]).any()):
                refuse_order(slot, source)
