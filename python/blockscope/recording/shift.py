"""A model's inputs don't show whether the logits of position p predict p or p + 1. The decisions of the first steps
show if it was stated wrongly, or not stated for a model that needs it (Dream)."""

from __future__ import annotations

from ..errors import UsageError
from .passes import RunningPass
from .settings import Settings
from .statistics import Predictions
from .steps import Change, Kind

ENOUGH = 4  # decided tokens that the two readings tell apart


class ShiftCheck:
    """Counts which reading's best token the loop took; greedy loops take it always, others mostly."""

    def __init__(self, settings: Settings) -> None:
        self._shift = settings.logit_shift
        self._open = not settings.autoregressive and not settings.canvas
        self._best: list[Predictions] = []  # of the last pass
        self._counts = {self._shift: 0, 1 - self._shift: 0}

    def take(self, running: RunningPass, predictions: list[Predictions | None]) -> None:
        """Called after a pass with the predictions of each sequence."""
        found = [one for one in predictions if one is not None]
        denoises = any(one.kind is Kind.DENOISE for one in running.passes)
        self._best = found if (self._open and denoises and running.computed is None
                               and len(found) == len(predictions)) else []

    def decided(self, changes: list[Change]) -> None:
        """Called with the decisions of that pass, from the next pass's input."""
        if not self._best or not any(change.changed for change in changes):
            return
        for predictions, change in zip(self._best, changes):
            best = predictions.best[0].tolist()  # by the row of logits, of which 0 predicts .first
            for position, token in change.changed:
                row = position - predictions.first + self._shift  # of the logits of this position
                if 1 <= row < len(best) and best[row] != best[row - 1]:
                    for shift, predicted in ((0, best[row]), (1, best[row - 1])):
                        self._counts[shift] += token == predicted
        mine, other = self._counts[self._shift], self._counts[1 - self._shift]
        if mine == 0 and other >= ENOUGH:
            raise UsageError(
                f"logit_shift: {self._shift}, but all {other} tokens that count are the best ones of the logits of "
                f"{'the position before' if self._shift == 0 else 'their own position'}. HINT: "
                f"record(..., logit_shift={1 - self._shift})")
        self._open = mine < ENOUGH
