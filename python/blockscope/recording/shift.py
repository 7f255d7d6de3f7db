"""A model's inputs don't show whether the logits of position p predict p or p + 1. The decisions of the first steps
show if it was stated wrongly, or not stated for a model that needs it (Dream)."""

from __future__ import annotations

import torch

from ..errors import UsageError
from .passes import RunningPass
from .settings import Settings
from .steps import Change, Kind

ENOUGH = 4  # decided tokens that the two readings tell apart


class ShiftCheck:
    """Counts which reading's best token the loop took; greedy loops take it always, others mostly."""

    def __init__(self, settings: Settings) -> None:
        self._shift = settings.logit_shift
        self._open = not settings.autoregressive and not settings.canvas
        self._best: torch.Tensor | None = None  # [S, R] of the last pass
        self._first = 0  # position of row 0
        self._counts = {self._shift: 0, 1 - self._shift: 0}

    def take(self, running: RunningPass, logits: torch.Tensor | None) -> None:
        """Called after a pass with logits [S, R, V]."""
        self._best = None
        given = running.given
        if not self._open or logits is None or running.computed is not None or logits.shape[1] != given.length:
            return
        if any(one.kind is Kind.DENOISE for one in running.passes):
            self._best, self._first = logits.argmax(-1), given.start

    def decided(self, changes: list[Change]) -> None:
        """Called with the decisions of that pass, from the next pass's input."""
        if self._best is None or not any(change.changed for change in changes):
            return
        best = self._best.tolist()
        for rows, change in zip(best, changes):
            for position, token in change.changed:
                row = position - self._first
                if 1 <= row < len(rows) and rows[row] != rows[row - 1]:
                    for shift, predicted in ((0, rows[row]), (1, rows[row - 1])):
                        self._counts[shift] += token == predicted
        mine, other = self._counts[self._shift], self._counts[1 - self._shift]
        if mine == 0 and other >= ENOUGH:
            raise UsageError(
                f"logit_shift: {self._shift}, but all {other} tokens that count are the best ones of the logits of "
                f"{'the position before' if self._shift == 0 else 'their own position'}. HINT: "
                f"record(..., logit_shift={1 - self._shift})")
        self._open = mine < ENOUGH
