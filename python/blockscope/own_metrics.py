"""Metrics that are written in Python: a function of a step and the step before it, of a step, a block or a sequence."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import os
import re
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar, Union

from . import _core
from ._arguments import Indices, indices
from ._paths import text
from ._progress import Progress, Shown
from ._source import check_file, digest, file_of, meaning
from .errors import Error, Interrupted, TraceError, UsageError

if TYPE_CHECKING:
    import numpy as np

    from .results import Analysis
    from .trace import Trace

Function = TypeVar("Function", bound=Callable[..., Any])
LEVELS = ("trajectory", "summary", "sets", "outputs", "full")
_KINDS = ("pair", "step", "block", "sequence")
_NOT_FINITE = "values that are NaN or infinite"  # as the built-in metrics say
_PLACES = ("sequence", "block", "step")  # axes that the engine counts; all others are those of the values


@dataclasses.dataclass(frozen=True)
class Metric:
    """A function of Python under the name of a metric."""

    name: str
    level: str
    dims: tuple[str, ...]
    of: str  # "pair", "step", "block" or "sequence"
    function: Callable[..., Any]
    title: str
    formula: str
    source: str
    unit: str
    file: str
    digest: str

    @property
    def description(self) -> str:
        return self.title


_metrics: dict[str, Metric] = {}


def metric(name: Union[str, Function, None] = None, *, level: str = "outputs", dims: Iterable[str] = ("layer", "head"),
           of: str | None = None, unit: str = "1", formula: str = "", source: str = "a plugin") -> Any:
    """Makes a function a metric, for ``trace.analyze(function)``.

        @blockscope.metric(level="outputs", dims=["layer", "head"])
        def drift(before, after):
            \"\"\"Mean distance of A_out from one step to the next.\"\"\"
            return abs(after.external - before.external).mean(axis=(2, 3))

    Args:
        name: the metric's name; None: the function's.
        level: the ``--record`` level that it needs.
        dims: the axes of its values, such as "layer", "head", "kv_head", "block_position". "sequence", "block" and
            "step" are counted for it: those that are named stay, and the means go over all others. A pair has the
            number of its first step, as in the built-in metrics.
        of: what it gets: "pair" (a step and the step before it), "step", "block" or "sequence" (its blocks, a list).
            None: "pair" for two parameters, else the parameter's name. See `blockscope.Step` and `blockscope.Block`.
        unit, formula, source: words for reports. The docstring's first line is the title.

    The function returns the values of one call as an array over ``dims`` (without sequence, block and step), or
    ``(values, terms)`` with the number of terms of each mean, or a dict of either by the array's name. Values that are
    not finite have no terms. None leaves the call out.

    Raises:
        UsageError: an unknown level, or a function whose parameters say nothing about `of`.
    """

    axes = tuple(dims)

    def register(function: Function) -> Function:
        own_name = name if isinstance(name, str) else function.__name__
        _check_name("metric", own_name)
        if own_name in {known["name"] for known in _core.metrics()}:
            raise UsageError(f"metric {own_name}: expected another name, because a built-in metric has it")
        if level not in LEVELS:
            raise UsageError(f"metric {own_name}: level: expected {', '.join(LEVELS)}, got {level!r}")
        if of is not None and of not in _KINDS:
            raise UsageError(f"metric {own_name}: of: expected {', '.join(_KINDS)}, got {of!r}")
        if isinstance(dims, str) or len(set(axes)) < len(axes):
            raise UsageError(f"metric {own_name}: dims: expected a list of different names, got {dims!r}")
        file, before = file_of(function), _metrics.get(own_name)
        check_file("metric", own_name, file, None if before is None else before.file)
        found = Metric(own_name, level, axes, of or _kind_of(own_name, function), function, meaning(function),
                       formula or f"{own_name}()", source, unit, file, digest(function, file))
        _metrics[own_name] = found
        function._blockscope_metric = found  # type: ignore[attr-defined]
        return function

    return register(name) if callable(name) else register


def _check_name(what: str, name: str) -> None:
    """Names become those of figures, columns and files."""
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name):
        raise UsageError(f"{what}: expected a name of letters, digits and _, got {name!r}")


def _kind_of(name: str, function: Callable[..., Any]) -> str:
    parameters = list(inspect.signature(function).parameters)
    if len(parameters) == 2:
        return "pair"
    if len(parameters) == 1 and parameters[0] in ("step", "block", "sequence"):
        return parameters[0]
    raise UsageError(f"metric {name}: expected a function of (before, after), (step), (block) or (sequence), got "
                     f"({', '.join(parameters)}). HINT: or say of=\"pair\"")


def named(given: Any) -> Metric | None:
    """The metric of a function, or of a name the last one with it; None: no own one."""
    return _metrics.get(given) if isinstance(given, str) else getattr(given, "_blockscope_metric", None)


def known() -> list[Metric]:
    return list(_metrics.values())


class _Sums:
    """Sums of one array by sequence, block and step, as far as its axes have them."""

    def __init__(self) -> None:
        self.cells: dict[tuple[int, ...], list[Any]] = {}
        self.left_out = 0  # terms of values that are not finite

    def add(self, place: tuple[int, ...], values: np.ndarray, terms: np.ndarray) -> None:
        import numpy as np

        self.left_out += int(terms[~np.isfinite(values)].sum())
        terms = np.where(np.isfinite(values), terms, 0)
        total = np.where(terms > 0, values, 0.0) * terms
        cell = self.cells.get(place)
        if cell is None:
            self.cells[place] = [total, terms.astype(np.int64)]
            return
        if cell[0].shape != total.shape:
            raise UsageError(f"expected values of one shape, got {list(cell[0].shape)} and {list(total.shape)}")
        cell[0] += total
        cell[1] += terms


class _Run:
    """One pass over one trace."""

    def __init__(self, metric: Metric, steps: set[int] | None) -> None:
        self.metric = metric
        self.steps = steps  # first steps of pairs; None: all
        self.places = [dim for dim in metric.dims if dim in _PLACES]
        self.own = [dim for dim in metric.dims if dim not in _PLACES]
        self.sums: dict[str, _Sums] = {}

    def call(self, unit: Any) -> list[tuple[dict[str, int], Any]]:
        """What the function returns for each call of a block (or of a sequence's blocks), with its place."""
        kind, function = self.metric.of, self.metric.function
        if kind == "sequence":
            return [({"sequence": unit[0].sequence}, self._checked(function, unit))]
        place = {"sequence": unit.sequence, "block": unit.index}
        if kind == "block":
            return [(place, self._checked(function, unit))]
        if kind == "step":
            return [({**place, "step": step.step}, self._checked(function, step)) for step in unit]
        return [({**place, "step": before.step}, self._checked(function, before, after)) for before, after in unit.pairs()
                if self.steps is None or before.step in self.steps]

    def _checked(self, function: Callable[..., Any], *given: Any) -> Any:
        try:
            return function(*given)
        except Error:
            raise
        except Exception as error:
            raise Error(f"metric {self.metric.name}: {given[-1]!r}: {type(error).__name__}: {error}") from error

    def add(self, results: list[tuple[dict[str, int], Any]]) -> None:
        import numpy as np

        for place, result in results:
            if result is None:
                continue
            named = result if isinstance(result, Mapping) else {self.metric.name: result}
            for name, given in named.items():
                _check_name(f"metric {self.metric.name}: array", name)
                own = self.metric.name if name == self.metric.name else f"{self.metric.name}: {name}"
                where = f"metric {own}: {', '.join(f'{axis} {index}' for axis, index in place.items())}"
                if name in (*self.metric.dims, *_PLACES) or name.endswith("_terms"):
                    raise UsageError(f"metric {own}: expected the name of an array, got that of "
                                     f"{'terms' if name.endswith('_terms') else 'an axis'}. HINT: give it another name")
                values, terms = given if isinstance(given, tuple) and len(given) == 2 else (given, None)
                values, terms = self._numbers(where, values, terms)
                missing = [dim for dim in self.places if dim not in place]
                if missing:
                    raise UsageError(f"metric {self.metric.name}: a function of a {self.metric.of} has no axis {missing[0]}")
                try:
                    self.sums.setdefault(name, _Sums()).add(tuple(place[dim] for dim in self.places), values, terms)
                except UsageError as error:
                    raise UsageError(f"{where}: {error}") from None

    def _numbers(self, where: str, values: Any, terms: Any) -> tuple[np.ndarray, np.ndarray]:
        """float64 values and int64 terms of one shape, an axis for each of the metric's own."""
        import numpy as np

        if np.iscomplexobj(values):
            raise UsageError(f"{where}: expected numbers, got complex ones")
        try:
            found = np.asarray(values, np.float64)
        except (TypeError, ValueError) as error:
            raise UsageError(f"{where}: expected numbers: {error}") from None
        if found.ndim != len(self.own):
            raise UsageError(f"{where}: expected an axis for each of {self.own}, got {list(found.shape)}")
        if terms is None:
            return found, np.ones(found.shape, np.int64)
        counts = np.asarray(terms)
        if counts.dtype.kind not in "iubf" or not (counts >= 0).all() or (counts != np.trunc(counts)).any():
            raise UsageError(f"{where}: terms: expected whole numbers from 0, got {terms!r}")
        if counts.ndim and counts.shape != found.shape:
            raise UsageError(f"{where}: terms: expected the shape of the values {list(found.shape)}, got "
                             f"{list(counts.shape)}")
        return found, np.broadcast_to(counts.astype(np.int64), found.shape)

    def check_dims(self, coordinates: Mapping[str, Any]) -> None:
        """The axes of the model have the sizes of the trace's; another name must not be close to one of them."""
        for dim in self.own:
            near = difflib.get_close_matches(dim, [*coordinates, *_PLACES, "block_position"], 1, 0.7)
            if near and dim not in (*coordinates, *_PLACES, "block_position"):
                raise UsageError(f"metric {self.metric.name}: dims: {dim}: expected {near[0]}, or a name that is not close to "
                                 "one of the trace's axes")

    def variables(self, coordinates: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """The means and their terms, and the coordinates."""
        import numpy as np

        variables: dict[str, Any] = {}
        coords: dict[str, Any] = {}
        for name, sums in self.sums.items():
            labels = [sorted({place[axis] for place in sums.cells}) for axis in range(len(self.places))]
            shape = [len(label) for label in labels]
            first = next(iter(sums.cells.values()))[0]
            total = np.zeros((*shape, *first.shape))
            terms = np.zeros(total.shape, np.int64)
            for place, (one, count) in sums.cells.items():
                at = tuple(label.index(value) for label, value in zip(labels, place))
                total[at] += one
                terms[at] += count
            mean = np.divide(total, terms, out=np.full(total.shape, np.nan), where=terms > 0)
            dims = [*self.places, *self.own]
            own_coords = {dim: coordinates.get(dim, range(length)) for dim, length in zip(self.own, first.shape)}
            for dim, values in {**dict(zip(self.places, labels)), **own_coords}.items():
                values = np.asarray(list(values))
                if len(values) != total.shape[dims.index(dim)]:
                    raise UsageError(f"metric {self.metric.name}: {name}: axis {dim}: expected {len(values)} values, got "
                                     f"{total.shape[dims.index(dim)]}")
                coords[dim] = values
            variables[name] = (dims, mean, {"units": self.metric.unit, "long_name": self.metric.title})
            variables[f"{name}_terms"] = (dims, terms, {"units": "terms", "long_name": f"number of terms of {name}"})
        return variables, coords


def _units(trace: Trace, metric: Metric, choices: Mapping[str, Any]) -> Iterator[Any]:
    found = trace.blocks(**choices)
    if metric.of != "sequence":
        yield from found
        return
    blocks: list[Any] = []
    for block in found:
        if blocks and blocks[-1].sequence != block.sequence:
            yield blocks
            blocks = []
        blocks.append(block)
    if blocks:
        yield blocks


def _ahead(pool: ThreadPoolExecutor, run: _Run, units: Iterator[Any], many: int) -> Iterator[tuple[Any, Any]]:
    """Results in the order of the units, a few computed ahead. So sums don't depend on the number of threads."""
    waiting: deque[tuple[Any, Future[Any]]] = deque()
    for unit in units:
        waiting.append((unit, pool.submit(run.call, unit)))
        if len(waiting) >= many:
            done, future = waiting.popleft()
            yield done, future.result()
    while waiting:
        done, future = waiting.popleft()
        yield done, future.result()


def _one(path: bytes, metric: Metric, choices: Mapping[str, Any], threads: int, update: Any) -> Analysis:
    from .blocks import Block
    from .results import LEFT_OUT, Analysis
    from .trace import open

    with open(path) as trace:
        if LEVELS.index(trace.level) < LEVELS.index(metric.level):
            raise TraceError(f"{os.fsdecode(path)}: metric {metric.name} needs --record {metric.level} or above, and the "
                             f"trace has {trace.level}")
        steps = indices("steps", choices.get("steps"), 1) if metric.of == "pair" else None
        if steps is not None:  # a pair has the number of its first step
            choices = {**choices, "steps": sorted({step + more for step in steps for more in (0, 1)})}
        run = _Run(metric, None if steps is None else set(steps))
        coordinates: dict[str, Any] = {}
        done = 0
        with ThreadPoolExecutor(threads) as pool:
            for unit, results in _ahead(pool, run, _units(trace, metric, choices), 2 * threads):
                first = unit if isinstance(unit, Block) else unit[0]
                coordinates = first._coordinates
                run.add(results)
                done += sum(len(block) for block in ([unit] if isinstance(unit, Block) else unit))
                update(done, trace.num_rows)
        run.check_dims(coordinates)
        variables, coords = run.variables(coordinates)
        if not variables:
            what = "two steps in a row" if metric.of == "pair" else f"a {metric.of}"
            raise TraceError(f"metric {metric.name}: {os.fsdecode(path)}: expected {what} to compute it from, found none "
                             "in what is selected")
        left_out = sum(one.left_out for one in run.sums.values())
        attrs = {"metric": metric.name, "title": metric.title, "formula": metric.formula, "source": metric.source,
                 "computed_from": f"level {metric.level}", "plugin_sha256": metric.digest,
                 **({LEFT_OUT + _NOT_FINITE: left_out} if left_out else {}),
                 "traces": text(path), "model_digest": str(trace.model.get("digest", "")), "program": _core.program}
        return Analysis(variables, coords=coords, attrs=attrs)


def analyze_own(paths: list[bytes], metric: Metric, choices: Mapping[str, Any], by: list[str], threads: int,
                progress: Progress) -> Analysis:
    """The metric over all traces together."""
    with Shown(progress) as shown:
        update = shown or (lambda done, total: None)
        total: Analysis | None = None
        for path in paths:
            one = _one(path, metric, choices, threads or os.cpu_count() or 1, update)
            total = one if total is None else total + one
    assert total is not None
    return total.by(*by) if by else total


def pass_on(core: Any) -> None:
    """Gives the commands of the extension module the metrics."""
    for metric in known():
        core.add_metric(metric.name, metric.title, metric.level, _computer(metric))


def _computer(metric: Metric) -> Callable[..., dict[str, Any]]:
    def compute(traces: list[bytes], layers: Any, steps: Any, blocks: Any, sequences: Any, threads: int,
                progress: Callable[[int, int], object]) -> dict[str, Any]:
        choices = {"layers": layers, "steps": steps, "blocks": blocks, "sequences": sequences}
        try:
            return analyze_own(traces, metric, choices, [], threads, progress)._result()
        except Error as error:
            if error.__cause__ is not None:
                traceback.print_exception(error.__cause__)
            raise
        except KeyboardInterrupt:
            raise Interrupted("nothing was written") from None
        except BaseException as error:  # such as SystemExit
            raise Error(f"metric {metric.name}: {type(error).__name__}: {error}") from error

    return compute
