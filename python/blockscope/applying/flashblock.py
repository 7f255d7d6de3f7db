"""FlashBlock's reuse of the external pair (arXiv 2602.05305, section 4.2, and its released code), as
probe/policies/flashblock_policy.cpp."""

from __future__ import annotations

import math
import os
import warnings
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .. import _core
from ..errors import CalibrationError, UsageError
from .policy import Attention, ModelShape, Parts, Policy, Step, exact_attention, refuse_token_by_token


@dataclass(frozen=True)
class ReuseFile:
    """What a calibration file decides; the default lets every head reuse."""

    first_steps: tuple[int, ...] = (1,)  # of the ranges of steps
    masks: torch.Tensor | None = None  # [ranges, layers, heads] bool
    tau: int | None = None
    count: str = "since_read"
    row_errors: tuple[tuple[float, ...], ...] = ()  # [ranges][masks, known, decided]
    digest: str = ""

    @classmethod
    def read(cls, path: str, shape: ModelShape) -> ReuseFile:
        found = _core.read_reuse(os.fsencode(path), shape.num_layers, shape.num_heads, shape.num_kv_heads)
        return cls(tuple(found["first_steps"]), torch.tensor(found["reuse"], dtype=torch.bool), found["tau"],
                   found["tau_counts"], tuple(found["row_errors"]), found["digest"])

    def range_of(self, step: int) -> int:
        return max(bisect_right(self.first_steps, max(step, 1)) - 1, 0)

    def predicted_error(self, step: Step) -> float:
        """Of the attention output, relative L2, if the step reuses (ErrorBound of schema/reuse_masks.h)."""
        rows, masks = len(step.masked_rows), step.masks_left
        decided = sum(not mask and unread for mask, unread in zip(step.masked_rows, step.unread))
        errors = self.row_errors[self.range_of(step.step)]
        squared = sum(count * error for count, error in zip((masks, rows - masks - decided, decided), errors) if count)
        return math.sqrt(squared / rows)  # NaN: a kind of rows that was not measured


def refreshed_rows(refresh: str, step: Step) -> list[bool]:
    """The rows that read the prefix at a pass that may not reuse (schema/reuse_rule.cpp)."""
    rows = list(step.unread)
    if refresh == "near":
        for place, unread in enumerate(step.unread):
            for near in (place - 1, place + 1):
                if unread and 0 <= near < len(rows) and step.masked_rows[near]:
                    rows[near] = True
    return rows


class FlashBlock(Policy):
    def __init__(self, values: dict[str, Any]) -> None:
        self._values = values
        self._file = ReuseFile()
        self._tau, self._count = values["tau"] or 2, values["count"] or "since_read"
        self._pairs: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # the batch's, by layer: [S, H, B, D], [S, H, B]
        self._kept: list[bool] = []  # by slot: heads that may reuse keep their pair, but for some rows
        self._rows_read: list[int] = []
        self._ranges: list[int] = []
        self._refresh_rows: torch.Tensor | None = None
        self._masks: torch.Tensor | None = None  # [S, layers, heads] of this pass
        self._shape: ModelShape | None = None

    @property
    def needs_predictions(self) -> bool:  # type: ignore[override]
        return self._values["sure"] is not None

    def setup(self, shape: ModelShape) -> None:
        self._shape = shape
        path = self._values["reuse"]
        if path is not None:
            self._file = ReuseFile.read(path, shape)
            if shape.digest and shape.digest != self._file.digest:
                warnings.warn(f"{path}: model.digest: the file was made for other weights than this model's, so its "
                              "masks may not fit. HINT: calibrate with a recording of this model", stacklevel=5)
        if self._values["bound"] is not None and not self._file.row_errors:
            raise CalibrationError(f"{path}: row_errors: expected the errors of rows, which bound predicts with, got "
                                   "none. HINT: calibrate with traces of `--record outputs`")
        self._tau = self._values["tau"] or self._file.tau or 2
        self._count = self._values["count"] or self._file.count
        if self._values["bound"] is None:
            self.settings = {**self.settings, "tau": self._tau, "count": self._count}

    def check(self, bidirectional: bool, autoregressive: bool, continuous: bool) -> None:
        if autoregressive:
            refuse_token_by_token(self)
        if not continuous:
            return
        own = {"tau": None, "count": None, "refresh": "all", "bound": None, "sure": None}
        given = [name for name, initial in own.items() if self._values[name] != initial]
        if given:
            raise UsageError(f"policy {self.text}: {given[0]}: counts decided tokens, and a continuous model decides "
                             "none. HINT: leave it out; reuse=FILE says which heads reuse at which step")
        self.settings = {name: value for name, value in self.settings.items() if name not in own}

    def begin_pass(self, steps: Sequence[Step]) -> None:
        self._kept, self._rows_read, self._ranges, self._refresh_rows = [], [], [], None
        self._masks = None
        self._pairs = steps[0].memory.setdefault("pairs", {})  # batches may take turns, as branches of guidance do
        for slot, step in enumerate(steps):
            self._add(slot, step, len(steps))

    def _reuses(self, step: Step) -> bool:
        # The released video code lets the clean pass reuse, too, with a mask of its own.
        follows = step.denoises or step.clean and self._file.masks is not None
        if not follows or step.step <= 1 or step.sure_left < (self._values["sure"] or 0.0):
            return False
        if self._values["bound"] is not None:
            return self._file.predicted_error(step) < self._values["bound"]
        return (step.decided if self._count == "step" else step.since_read) < self._tau

    def _add(self, slot: int, step: Step, sequences: int) -> None:
        reuses, refresh = self._reuses(step), self._values["refresh"]
        sure = step.sure_left >= (self._values["sure"] or 0.0)
        by_rows = refresh != "all" and step.denoises and sure and not reuses and not step.first
        rows = refreshed_rows(refresh, step) if by_rows else []
        self._kept.append(reuses or by_rows)
        self._ranges.append(self._file.range_of(step.step))
        self._rows_read.append(sum(rows))
        if any(rows):
            if self._refresh_rows is None:
                self._refresh_rows = torch.zeros(sequences, len(rows), dtype=torch.bool)
            self._refresh_rows[slot] = torch.tensor(rows)

    def end_sequences(self) -> None:
        self._pairs = {}

    def rows_read(self, slot: int, rows: int) -> int:
        return self._rows_read[slot] if self._kept[slot] else rows

    def _mask(self, layer: int) -> torch.Tensor:
        """[S, H] bool: heads that take their kept pair."""
        if self._masks is None:
            whole = torch.ones(1, self._shape.num_layers, self._shape.num_heads, dtype=torch.bool)
            masks = whole if self._file.masks is None else self._file.masks
            self._masks = masks[self._ranges] & torch.tensor(self._kept).view(-1, 1, 1)
        return self._masks[:, layer]

    def attend(self, given: Attention) -> Parts:
        mask = self._mask(given.layer)
        if not mask.any():
            parts = exact_attention(given)
        else:
            external, lse = self._pairs[given.layer]
            found = given.operators.reuse_attention(
                given.q, given.k_ext, given.v_ext, given.lengths, given.k_in, given.v_in, external, lse, mask,
                given.scale, self._refresh_rows)
            parts = Parts(*found, reused=mask, refreshed=self._refresh_rows)
        # The pair that was used is the kept one from now on: the old one where rows reused it.
        self._pairs[given.layer] = parts.external, parts.lse_external
        return parts
