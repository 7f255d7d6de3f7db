"""The metrics of ``blockscope analyze``, as xarray."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypedDict, Union, overload

from . import _core, own_metrics
from ._arguments import Indices, Traces, above_zero, indices, names, taus_of, whole
from ._paths import PathLike, encode_all, telling_missing, text
from ._progress import Progress, Shown
from .errors import UsageError

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .results import Analysis


class Choices(TypedDict, total=False):
    """The arguments of `analyze` in addition to traces and metrics; see `analyze`."""

    layers: Indices
    heads: Indices
    steps: Indices
    blocks: Indices
    sequences: Indices
    by: Union[str, Iterable[str], None]
    taus: Union[Iterable[float], None]
    count: str
    set_sizes: Indices
    sink_factor: float
    from_summary: bool
    threads: int
    memory_mib: int
    progress: Progress


class Analyses(dict[str, "Analysis"]):
    """Results by the metric's name. ``unavailable`` says why other metrics are missing."""

    unavailable: dict[str, str]

    def __init__(self, results: dict[str, Analysis], unavailable: dict[str, str]) -> None:
        super().__init__(results)
        self.unavailable = unavailable

    def __reduce__(self) -> tuple[Any, ...]:
        return Analyses, (dict(self), self.unavailable)


def metrics() -> dict[str, str]:
    """All metrics, each with a line that describes it and names the ``--record`` level that it needs. Your own come
    last."""
    found = {m["name"]: f"{m['description']} (level {m['level']})" for m in _core.metrics()}
    return {**found, **{own.name: f"{own.title} (level {own.level})" for own in own_metrics.known()}}


def _results(answer: dict[str, Any]) -> dict[str, Analysis]:
    """Converts the results of the extension module, by the metric's name."""
    from .results import Analysis  # here, because xarray takes longer to import than a trace to open

    facts = {
        "traces": "\n".join(text(path) for path in answer["traces"]),
        "model_digest": text(answer["model_digest"]),
        "program": _core.program,
    }
    return {result["metric"]: Analysis.of(result, facts) for result in answer["results"]}


@overload  # a name is also an iterable of names, so the first fitting overload counts
def analyze(traces: Traces, metric: str, **choices: Unpack[Choices]) -> Analysis: ...  # type: ignore[overload-overlap]
@overload
def analyze(traces: Traces, metric: Iterable[str] | None = None, **choices: Unpack[Choices]) -> Analyses: ...
def analyze(
    traces: Traces,
    metric: Union[str, Callable[..., Any], Iterable[Union[str, Callable[..., Any]]], None] = None,
    *,
    layers: Indices = None,
    heads: Indices = None,
    steps: Indices = None,
    blocks: Indices = None,
    sequences: Indices = None,
    by: Union[str, Iterable[str], None] = None,
    taus: Iterable[float] | None = None,
    count: str = "since_read",
    set_sizes: Indices = None,
    sink_factor: float = 3.0,
    from_summary: bool = False,
    threads: int = 0,
    memory_mib: int = 256,
    progress: Progress = None,
) -> Union[Analysis, Analyses]:
    """Computes metrics over one or more traces of one model, in one pass that reads every array once.

    Args:
        traces: a path, a `Trace`, or several. Each sequence must occur only once.
        metric: a name (see `metrics()`), a function with `blockscope.metric`, several of these, or None for all
            metrics that the traces have the data for.
        layers, heads: the model's indices: 3, [0, 3], range(4). Sets, keys and values are those of the KV heads
            that these query heads use.
        steps: denoising steps of a block, from 1.
        blocks, sequences: indices in each trace, from 0.
        by: axes to keep. The other axes of the model and the run ("layer", "head", "kv_head", "step",
            "sequence", "block", "position") are averaged, weighted by terms. Parameters of a metric (k, tau)
            always stay. Arrays without these axes are left out. None keeps everything.
        taus: tau of the reuse error; may include float("inf").
        count: what these tau count: "since_read", tokens decided since the block's last pass that read the prefix,
            or "step", tokens that this step changed.
        set_sizes: k of recall.
        sink_factor: a key that receives more than this times the mean is a sink.
        from_summary: reads the recorder's summaries even if the trace has the arrays.
        threads: 0 for one per core.
        memory_mib: MiB for arrays in memory at one time.
        progress: None shows a bar in notebooks and on terminals, False shows nothing. A function is called with
            the rows done and all rows, at most ten times a second.

    Returns:
        For one name, an `Analysis`, which is an xarray.Dataset. For every array of the metric, it has the mean of
        each cell (NaN without terms) and ``<array>_terms``, the number of terms. The means equal those of
        ``blockscope analyze --json`` bit for bit. For several names or None, a dict of these by name.
        Results of disjoint traces can be added: ``a + b``.

    Raises:
        UsageError: an unknown metric (the message lists them), or a choice that matches nothing.
        TraceError: a trace that can't be read, or lacks what a metric needs.
    """
    paths = encode_all(traces)
    mine, metric, alone = _own_of(metric)
    if mine:
        narrowed = {"layers": layers, "steps": steps, "blocks": blocks, "sequences": sequences}
        if heads is not None:
            raise UsageError(f"heads: does nothing for {mine[0].name}. HINT: select them in the result: "
                             ".sel(head=[0, 1])")
        for name, given, initial in (("taus", taus, None), ("count", count, "since_read"), ("set_sizes", set_sizes, None),
                                     ("sink_factor", sink_factor, 3.0), ("from_summary", from_summary, False),
                                     ("memory_mib", memory_mib, 256)):
            if given != initial and not metric:
                raise UsageError(f"{name}: does nothing for {mine[0].name}. HINT: leave it out")
        with telling_missing(paths):
            own = {one.name: own_metrics.analyze_own(paths, one, narrowed, names("by", by),
                                                     whole("threads", threads, 0, 4096), progress) for one in mine}
        if alone:
            return own[mine[0].name]
        if not metric:
            return Analyses(own, {})
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
            count,
            sizes or [],
            above_zero("sink_factor", sink_factor),
            bool(from_summary),
            whole("threads", threads, 0, 4096),
            whole("memory_mib", memory_mib, 1, 2**20),
            shown,
        )
    results = _results(answer)
    if isinstance(metric, str):
        return results[metric]
    if mine:
        results.update(own)
    return Analyses(results, {name: text(why) for name, why in answer["unavailable"].items()})


def _own_of(metric: Any) -> tuple[list[own_metrics.Metric], Any, bool]:
    """The metrics of Python among those asked for, the other ones, and whether one of Python is asked for alone."""
    if metric is None or isinstance(metric, str) or callable(metric):
        own = own_metrics.named(metric) if metric is not None else None
        if own is None and callable(metric):
            raise UsageError(f"metric: expected a function with @blockscope.metric, got {metric!r}")
        return ([own], None, True) if own is not None else ([], metric, False)
    mine, others = [], []
    for one in metric:
        found, other, _ = _own_of(one)
        mine += found
        others += [other] if other is not None else []
    return mine, others, False


def compare_backbone(
    trace: PathLike,
    backbone: PathLike,
    *,
    layers: Indices = None,
    heads: Indices = None,
    steps: Indices = None,
    blocks: Indices = None,
    sequences: Indices = None,
    from_summary: bool = False,
    threads: int = 0,
    memory_mib: int = 256,
    progress: Progress = None,
) -> Analysis:
    """Compares the five stages of a trained model's queries with those of its autoregressive backbone (MAGE, Table 2),
    over the steps that both traces have. Same as ``blockscope analyze TRACE --backbone BACKBONE``.

    Args:
        trace: trace of the trained model.
        backbone: trace of the backbone, captured with ``--replay`` of `trace`, so both saw the same tokens.
        layers, heads, steps, blocks, sequences, from_summary, threads, memory_mib, progress: as in `analyze`.

    Returns:
        Arrays over ``model`` (trained, backbone): `stages` [stage, model] and their `relative_change` [stage],
        `kl` [model, step], `hidden_gap`, `query_gap`, `query_block_gap` and `recall` [model, layer].

    Raises:
        UsageError: traces that don't pair, or a choice that matches nothing.
        TraceError: a trace that can't be read, or lacks queries.
    """
    first, second = os.fsencode(trace), os.fsencode(backbone)
    with telling_missing([first, second]), Shown(progress) as shown:
        answer = _core.compare_backbone(
            first,
            second,
            indices("layers", layers, 0),
            indices("heads", heads, 0),
            indices("steps", steps, 1),
            indices("blocks", blocks, 0),
            indices("sequences", sequences, 0),
            bool(from_summary),
            whole("threads", threads, 0, 4096),
            whole("memory_mib", memory_mib, 1, 2**20),
            shown,
        )
    return _results(answer)["query_comparison"]


def similarity_matrix(
    trace: PathLike,
    kind: str,
    *,
    field: str = "external",
    layer: int | None = None,
    head: int | None = None,
    steps: Indices = None,
    rows: tuple[int, int] | None = None,
    blocks: Indices = None,
    sequences: Indices = None,
) -> Analysis:
    """One matrix of cosines (FlashBlock, Fig. 1). Same as ``blockscope analyze --matrix``.

    Args:
        kind: "token" compares every position of the block at one step with every position at another. "step"
            compares every two steps of a block, as a mean over positions.
        field: "external" (A_out), "internal" (A_in), "query", "hidden", "key" or "value".
        layer: the model's index; None: the first recorded layer.
        head: the model's query head; None: heads concatenated (token), their mean (step).
        steps: for a token matrix: two steps, or one step and its next one; None: the first two recorded steps.
        rows: two rows of the trace, instead of steps, blocks and sequences.
        blocks, sequences: the first of these blocks that has the steps is used.

    Returns:
        One array with the name of the field: [position_a, position_b] or [step_a, step_b], float64 cosines, NaN
        without a vector. It is for one place, so it has no terms.

    Raises:
        UsageError: a choice that matches nothing. TraceError: the trace lacks the field.
    """
    if kind not in ("token", "step"):
        raise UsageError(f"kind: expected token or step, got {kind!r}")
    if kind == "step" and not (steps is None and rows is None):
        raise UsageError("steps, rows: a matrix of steps has all steps of a block. HINT: kind='token' takes two steps")
    pair = [] if rows is None else [whole("rows", row, 0, 2**62) for row in rows]
    beside = any(choice is not None for choice in (steps, blocks, sequences))
    if rows is not None and (len(pair) != 2 or beside):
        raise UsageError(f"rows: expected two rows without steps, blocks or sequences, got {rows!r}")
    path = os.fsencode(trace)
    with telling_missing([path]):
        answer = _core.matrix(
            path, kind, str(field), None if layer is None else whole("layer", layer, 0),
            None if head is None else whole("head", head, 0), indices("steps", steps, 1) or [], pair,
            indices("blocks", blocks, 0), indices("sequences", sequences, 0))
    return _results(answer)[f"{kind}_similarity"]


def attention_map(
    trace: PathLike,
    *,
    layer: int | None = None,
    head: int | None = None,
    step: int | None = None,
    block: int | None = None,
    sequence: int | None = None,
) -> Analysis:
    """The attention weights of one step: which keys each position of the block looks at.

    Same as ``blockscope analyze --matrix attention``. The weights are computed again from the queries and keys of a
    trace of level ``full``, or read from a trace recorded with ``maps=`` or ``--record-maps``: exact attention over
    all keys, under every policy.

    Args:
        layer: the model's index; None: the first recorded layer.
        head: the model's query head; None: the mean of the recorded heads.
        step: the denoising step of the block, from 1; None: the first recorded one, or the first one with recorded
            weights.
        block, sequence: None: the first one that has the step.

    Returns:
        One array ``attention`` [position, key], float64: the position in the block, and the absolute position of
        the key. A row adds up to 1. It is NaN if the step did not compute the position.

    Raises:
        UsageError: a choice that matches nothing. TraceError: the trace lacks the queries or the keys.
    """
    path = os.fsencode(trace)
    block, sequence = (None if given is None else whole(name, given, 0)
                       for name, given in (("block", block), ("sequence", sequence)))
    with telling_missing([path]):
        if step is None:
            step, block, sequence = _first_map(path, block, sequence)
        answer = _core.matrix(
            path, "attention", "external", None if layer is None else whole("layer", layer, 0),
            None if head is None else whole("head", head, 0), [] if step is None else [whole("step", step, 1)], [],
            None if block is None else [block], None if sequence is None else [sequence])
    return _results(answer)["attention"]


def _first_map(path: bytes, block: int | None, sequence: int | None) -> tuple[int | None, int | None, int | None]:
    """Step, block and sequence of the first row with recorded weights, in a trace that has those of some steps only.
    Without such a row: no step, and what was given."""
    from .trace import open

    with open(path) as trace:
        steps = trace.run.get("map_steps")
        if not steps or trace.level == "full":
            return None, block, sequence
        rows = trace.tree["steps"]
        there = (rows["kind"] == 1) & (rows["recorded"] == 1) & rows["step"].isin(steps)
        for name, chosen in (("block", block), ("sequence", sequence)):
            if chosen is not None:
                there &= rows[name] == chosen
        if not there.any():
            return None, block, sequence
        row = int(there.values.argmax())
        return tuple(int(rows[name][row]) for name in ("step", "block", "sequence"))  # type: ignore[return-value]
