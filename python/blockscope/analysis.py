"""The metrics of ``blockscope analyze``, as xarray."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypedDict, Union, overload

from . import _core
from ._paths import PathLike, encode_all, telling_missing, text
from ._progress import Progress, Shown
from .errors import UsageError

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .results import Analysis
    from .trace import Trace

Traces = Union[PathLike, "Trace", Iterable[Union[PathLike, "Trace"]]]
Indices = Union[int, slice, Iterable[int], None]


class Choices(TypedDict, total=False):
    """What `analyze` takes beside traces and metrics; described there."""

    layers: Indices
    heads: Indices
    steps: Indices
    blocks: Indices
    sequences: Indices
    by: Union[str, Iterable[str], None]
    taus: Union[Iterable[float], None]
    set_sizes: Indices
    from_summary: bool
    threads: int
    memory_mib: int
    progress: Progress


class Analyses(dict[str, "Analysis"]):
    """Results by the metric's name. ``unavailable`` says why other metrics are not among them."""

    unavailable: dict[str, str]

    def __init__(self, results: dict[str, Analysis], unavailable: dict[str, str]) -> None:
        super().__init__(results)
        self.unavailable = unavailable

    def __reduce__(self) -> tuple[Any, ...]:
        return Analyses, (dict(self), self.unavailable)


def metrics() -> dict[str, str]:
    """The metrics there are, each with one line that says what it is and the ``--record`` level it needs."""
    return {m["name"]: f"{m['description']} (level {m['level']})" for m in _core.metrics()}


def indices(name: str, given: Indices, least: int) -> list[int] | None:
    """Distinct indices, ascending: of 3, [0, 3], range(4), a NumPy array, or slice(0, 4) with both ends."""
    if given is None:
        return None
    if isinstance(given, slice):
        if given.start is None or given.stop is None:
            raise UsageError(f"{name}: expected a slice with both ends, got {given}")
        given = range(given.start, given.stop, 1 if given.step is None else given.step)
    try:
        found = [operator.index(given)]  # type: ignore[arg-type]
    except TypeError:
        if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
            raise UsageError(f"{name}: expected an index or indices, got {given!r}") from None
        try:
            found = sorted({operator.index(index) for index in given})
        except TypeError:
            raise UsageError(f"{name}: expected whole numbers, got {given!r}") from None
    if not found or found[0] < least:
        raise UsageError(f"{name}: expected indices of at least {least}, got {given!r}")
    if found[-1] > 2**62:
        raise UsageError(f"{name}: {found[-1]} is out of range")
    return found


def whole(name: str, given: int, least: int, most: int = 2**31) -> int:
    try:
        value = operator.index(given)
    except TypeError:
        raise UsageError(f"{name}: expected a whole number, got {given!r}") from None
    if not least <= value <= most:
        raise UsageError(f"{name}: expected {least} to {most}, got {value}")
    return value


def names(name: str, given: Union[str, Iterable[str], None]) -> list[str]:
    if given is None:
        return []
    found = [given] if isinstance(given, str) else list(given)
    if not found or not all(isinstance(one, str) for one in found):
        raise UsageError(f"{name}: expected a name or names, got {given!r}")
    return found


def taus_of(given: Iterable[float] | None) -> list[float]:
    found = [float(tau) for tau in given] if given is not None else []
    if any(not tau > 0 for tau in found):
        raise UsageError(f"taus: expected numbers above 0 or inf, got {found}")
    return found


@overload  # a name is an iterable of names too, and the first that fits counts
def analyze(traces: Traces, metric: str, **choices: Unpack[Choices]) -> Analysis: ...  # type: ignore[overload-overlap]
@overload
def analyze(traces: Traces, metric: Iterable[str] | None = None, **choices: Unpack[Choices]) -> Analyses: ...
def analyze(
    traces: Traces,
    metric: Union[str, Iterable[str], None] = None,
    *,
    layers: Indices = None,
    heads: Indices = None,
    steps: Indices = None,
    blocks: Indices = None,
    sequences: Indices = None,
    by: Union[str, Iterable[str], None] = None,
    taus: Iterable[float] | None = None,
    set_sizes: Indices = None,
    from_summary: bool = False,
    threads: int = 0,
    memory_mib: int = 256,
    progress: Progress = None,
) -> Union[Analysis, Analyses]:
    """Computes metrics over one or more traces of one model, in one pass that reads every array once.

    Args:
        traces: a path, a `Trace`, or several; each sequence once.
        metric: a name (see `metrics()`), names, or None for all that the traces have the data for.
        layers, heads: the model's indices: 3, [0, 3], range(4). KV heads of sets, keys and values are those
            that the query heads use.
        steps: denoising steps of a block, from 1.
        blocks, sequences: of each trace, from 0.
        by: axes to keep. Means over the other axes of the model and the run ("layer", "head", "kv_head",
            "step", "sequence", "block", "position") are weighted by terms; parameters of a metric (k, tau)
            always stay. Arrays without these axes are left out. None keeps everything.
        taus: of the reuse error; float("inf") too.
        set_sizes: k of recall.
        from_summary: reads what the recorder summed up, even where the arrays are there.
        threads: 0 for one per core.
        memory_mib: MiB for arrays held at one time.
        progress: None shows a bar in notebooks and on terminals, False nothing; or a function that is called
            with rows done and rows in all, at most ten times a second.

    Returns:
        An `Analysis` for one name: an xarray.Dataset with, for every array of the metric, the mean in each
        cell (NaN without terms) and ``<array>_terms``, the number of terms behind it. The means are those of
        ``blockscope analyze --json``, bit for bit. Several names or None: a dict of these by name.
        Results of disjoint traces add up: ``a + b``.

    Raises:
        UsageError: an unknown metric (the message lists them), or a choice that matches nothing.
        TraceError: a trace that can't be read, or lacks what a metric needs.
    """
    from .results import Analysis  # here, because xarray takes longer to import than a trace to open

    paths = encode_all(traces)
    sizes = indices("set_sizes", set_sizes, 1)
    with telling_missing(paths), Shown(progress) as shown:
        answer = _core.analyze(
            paths,
            names("metric", metric),
            indices("layers", layers, 0),
            indices("heads", heads, 0),
            indices("steps", steps, 1),
            indices("blocks", blocks, 0),
            indices("sequences", sequences, 0),
            names("by", by),
            taus_of(taus),
            sizes or [],
            bool(from_summary),
            whole("threads", threads, 0, 4096),
            whole("memory_mib", memory_mib, 1, 2**20),
            shown,
        )
    facts = {
        "traces": "\n".join(text(path) for path in answer["traces"]),
        "model_digest": text(answer["model_digest"]),
        "program": _core.program,
    }
    results = {result["metric"]: Analysis.of(result, facts) for result in answer["results"]}
    if isinstance(metric, str):
        return results[metric]
    return Analyses(results, {name: text(why) for name, why in answer["unavailable"].items()})
