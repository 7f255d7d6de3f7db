"""Compares two traces (``blockscope diff``): dataset by dataset, or what two implementations computed. Or a loop with
and without a policy."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from typing import Any, Literal, Union, overload

from . import _core
from ._paths import PathLike, telling_missing, text
from ._progress import Progress, Shown
from .errors import UsageError
from .loop_comparison import LoopComparison
from .teacher_comparison import TeacherComparison


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


@overload
def compare(
    a: Union[PathLike, Any], b: Union[PathLike, Any], *, absolute: float = 0.0, relative: float = 0.0,
    ignore_timing: bool = False, ignore_aborted: bool = False,
) -> Comparison: ...
@overload
def compare(
    a: Union[PathLike, Any], b: Union[PathLike, Any], *, teacher: Literal[True], tolerance: float | None = None,
    progress: Progress = None,
) -> TeacherComparison: ...
@overload
def compare(
    a: Any, b: Callable[..., Any], prompts: Iterable[Any], *, policy: Any = None, reuse: PathLike | None = None,
    score: Callable[[Any, Any], float] | None = None, frames: Callable[[Any], Any] | None = None, repeats: int = 3,
    seed: int = 0, replay: bool = True, propagated: bool = True, **observed: Any,
) -> LoopComparison: ...
def compare(a: Any, b: Any, prompts: Any = None, **options: Any) -> Any:
    """Compares everything that two traces decoded and recorded. Model, run and vocabulary may differ.

        compare("a.h5", "b.h5", ignore_timing=True)

    Args:
        a, b: paths or `Trace`.
        absolute, relative: floats are equal if |a - b| <= absolute + relative * |b|.
        ignore_timing: leaves out the time of passes.
        ignore_aborted: compares only sequences that were not aborted, at any index.

    Or finds where two implementations of one model first differ at the same tokens, as ``blockscope diff --teacher``:

        compare("ours.h5", "engine.h5", teacher=True).first

    Args:
        tolerance: values are equal if |a - b| <= tolerance * range. None: by the traces' element types.
        progress: as in `analyze`.

    Or compares your own loop with and without a policy, as ``blockscope verify`` compares the runtime's:

        compare(model, loop, prompts, policy="flashblock,tau=2", block_length=16)

    Args:
        a: a torch.nn.Module.
        b: loop(model, prompt) decodes a prompt with it and returns what it made: token ids, a text, a tensor. If it has
            a parameter ``run``, it gets an object with the methods ``step``, ``begin_sequence`` and ``paused``.
        prompts: a list of what the loop takes, one each.
        policy: as in `apply`. Or reuse: a calibration file, for ``flashblock,reuse=FILE``.
        score: score(output, prompt) is a number; larger is better.
        frames: frames(output) are pictures of a video, uint8 [frames, height, width, 3]; the result has at
            most 24 of each prompt.
        repeats: free runs of each side. seed: torch.manual_seed before every run.
        replay: also give the inputs of each pass of the exact run again with the policy. It copies these inputs, caches
            included, before each pass.
        propagated: compare with the exact run's attention, too, which is kept for a pass.
        observed: further arguments of `apply`, such as ``block_length`` and ``gen_length``.

    Returns:
        A `Comparison`, with ``teacher`` a `TeacherComparison`, or for a loop a `LoopComparison`: a table, with ``data``
        and ``save("compare.json")``.
    """
    if "torch" in sys.modules and isinstance(a, sys.modules["torch"].nn.Module):
        from .applying import compare_loops

        return compare_loops(a, b, prompts, **options)
    if prompts is not None:
        raise UsageError(f"compare: expected a torch.nn.Module with a loop and prompts, got {type(a).__name__}")
    if options.pop("teacher", False):
        return _compare_teacher(a, b, **options)
    return _compare_traces(a, b, **options)


def _compare_teacher(
    a: Union[PathLike, Any], b: Union[PathLike, Any], *, tolerance: float | None = None, progress: Progress = None
) -> TeacherComparison:
    if tolerance is not None and not 0 <= tolerance < float("inf"):
        raise UsageError(f"tolerance: expected a number of at least 0, got {tolerance}")
    first, second = os.fsencode(a), os.fsencode(b)
    with telling_missing([first, second]), Shown(progress) as shown:
        return TeacherComparison(_core.compare_teacher(
            first, second, None if tolerance is None else float(tolerance), shown))


def _compare_traces(
    a: Union[PathLike, Any],
    b: Union[PathLike, Any],
    *,
    absolute: float = 0.0,
    relative: float = 0.0,
    ignore_timing: bool = False,
    ignore_aborted: bool = False,
) -> Comparison:
    if not (absolute >= 0 and relative >= 0):
        raise UsageError(f"absolute, relative: expected numbers of at least 0, got {absolute}, {relative}")
    first, second = os.fsencode(a), os.fsencode(b)
    with telling_missing([first, second]):
        return Comparison(_core.compare(first, second, float(absolute), float(relative), bool(ignore_timing),
                                        bool(ignore_aborted)))
