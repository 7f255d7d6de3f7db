"""Which positions of a canvas without masks are accepted, and which hold noise. The tokens don't show it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from .settings import Settings
from .statistics import Predictions
from .steps import PassInput

_PREPARE = "_prepare_sampler"  # of transformers' DiffusionGemma: its loop asks it for the sampler


class Acceptance:
    """Looks at the sampler that the model's own loop made: its ``accepted_token_mask`` [S, B] tells what the last step
    accepted. In another loop, a position counts as accepted if its token is the most probable one of the last step."""

    def __init__(self, model: Any, settings: Settings) -> None:
        self._model = model if settings.canvas and hasattr(model, _PREPARE) else None
        self._sampler: Any = None
        self._before: Any = None  # the model's own attribute, or that of another recording
        self._best: list[list[int] | None] = []  # of the last decoder pass, by sequence: [B] tokens

    def open(self) -> list[Any]:
        """-> handles with remove()."""
        if self._model is None:
            return []
        own, self._before = getattr(self._model, _PREPARE), self._model.__dict__.get(_PREPARE)

        def prepare(*args: Any, **kwargs: Any) -> Any:
            self._sampler = own(*args, **kwargs)
            return self._sampler

        self._model.__dict__[_PREPARE] = prepare
        return [self]

    def remove(self) -> None:
        if self._before is None:
            self._model.__dict__.pop(_PREPARE, None)
        else:
            self._model.__dict__[_PREPARE] = self._before
        self._sampler = None

    def add_to(self, given: PassInput) -> PassInput:
        """The inputs of a decoder's pass with the positions that the step before accepted."""
        if given.role != "decoder":
            self._best = []
            return given
        mask = getattr(self._sampler, "accepted_token_mask", None)
        if mask is not None and mask.shape[-1] == given.length:
            rows = mask.tolist()
            return replace(given, accepted=rows if given.rows is None else [rows[row] for row in given.rows])
        if len(self._best) != len(given.ids) or any(best is None for best in self._best):
            return given
        return replace(given, accepted=[[token == likely for token, likely in zip(ids, best)]
                                        for ids, best in zip(given.ids, self._best)])

    def take(self, given: PassInput, predictions: list[Predictions | None]) -> None:
        """The predictions of a pass that ended."""
        if given.role == "decoder" and self._sampler is None:
            self._best = [None if one is None else one.best[0].tolist() for one in predictions]
