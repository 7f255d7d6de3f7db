"""Compares two traces, dataset by dataset: ``blockscope diff``."""

from __future__ import annotations

import os
from typing import Any, Union

from . import _core
from ._paths import PathLike, telling_missing, text
from .errors import UsageError


class Comparison:
    """The differences between two traces.

    Attributes:
        equal: whether they are equal within the tolerance.
        datasets: per dataset a dict: `path`, `equal`, `problem` (why it was not compared element by element,
            else empty), `elements` compared, `different` beyond the tolerance, `largest` absolute
            difference of finite values, `at` (index of the first element that differs).
        aborted: sequences of each trace that a kill cut and a resume decoded again.
    """

    def __init__(self, found: dict[str, Any]) -> None:
        self.equal: bool = found["equal"]
        self.datasets: list[dict[str, Any]] = [
            {**dataset, "problem": text(dataset["problem"])} for dataset in found["datasets"]
        ]
        self.aborted: tuple[int, int] = found["aborted"]

    def __repr__(self) -> str:
        if self.equal:
            return f"<blockscope.Comparison: equal, {len(self.datasets)} datasets>"
        lines = [f"<blockscope.Comparison: {sum(not d['equal'] for d in self.datasets)} of "
                 f"{len(self.datasets)} datasets differ>"]
        for dataset in self.datasets:
            if not dataset["equal"]:
                lines.append(f"  {dataset['path']}: " + (dataset["problem"] or (
                    f"{dataset['different']} of {dataset['elements']} elements, largest "
                    f"{dataset['largest']:.3g}, first at {dataset['at']}")))
        return "\n".join(lines)


def compare(
    a: Union[PathLike, Any],
    b: Union[PathLike, Any],
    *,
    absolute: float = 0.0,
    relative: float = 0.0,
    ignore_timing: bool = False,
    ignore_aborted: bool = False,
) -> Comparison:
    """Compares everything that two traces decoded and recorded. Model, run and vocabulary may differ.

    Args:
        a, b: paths or `Trace`.
        absolute, relative: floats are equal if |a - b| <= absolute + relative * |b|.
        ignore_timing: leaves out the time of passes.
        ignore_aborted: compares only sequences that were not aborted, at any index.
    """
    if not (absolute >= 0 and relative >= 0):
        raise UsageError(f"absolute, relative: expected numbers of at least 0, got {absolute}, {relative}")
    first, second = os.fsencode(a), os.fsencode(b)
    with telling_missing([first, second]):
        return Comparison(_core.compare(first, second, float(absolute), float(relative), bool(ignore_timing),
                                        bool(ignore_aborted)))
