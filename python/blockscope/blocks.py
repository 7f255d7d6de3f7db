"""The blocks and steps of a trace, one after the other, with their arrays: for your own loops and metrics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from ._arguments import Indices, indices
from .errors import UsageError
from .sequences import Changes, changes_of

if TYPE_CHECKING:
    import xarray as xr

    from .trace import Trace

_SMALL = 1 << 18  # bytes of a row; smaller ones cost less together
_TYPES = {"u8": np.uint8, "i32": np.int32, "i64": np.int64, "f32": np.float32}
# Groups whose datasets have short names; the first one with a name has it.
_GROUPS = ("attention", "query", "hidden", "kv", "sets", "prediction", "spread", "summary", "steps", "shadow")
_COLUMNS = ("sequence", "block", "step", "recorded")


class Step:
    """One denoising step of a block. An array is read when it is used first; small ones for the whole block at once.

    ``step.external`` is the array ``/attention/external`` of this step, as NumPy: [layer, head, position, channel].
    ``step["shadow/external"]`` takes the name with its group, ``step.array("external")`` gives an xarray.DataArray with
    named axes. ``step.names`` lists what there is. ``step.step`` counts from 1; ``row`` is the row of the trace.
    """

    def __init__(self, block: Block, place: int) -> None:
        self._block, self._place = block, place
        self._large: dict[str, np.ndarray] = {}  # arrays of this step alone
        self.row = int(block.rows[place])
        self.step = int(block.numbers[place])

    @property
    def names(self) -> list[str]:
        """The arrays of a step, with their groups."""
        return list(self._block._arrays)

    def __getitem__(self, name: str) -> Any:
        values = self._values(name)
        return values if values.ndim else values.item()

    def _values(self, name: str) -> np.ndarray:
        about = self._block._about(name)
        path = about["path"]
        if path in self._large:
            return self._large[path]
        small = np.prod(about["shape"][1:], dtype=np.int64) * 4 < _SMALL
        if small or path in self._block._read:
            return self._block[name][self._place]  # type: ignore[no-any-return]
        self._large[path] = self._block._rows_of(about, self._block.rows[self._place:self._place + 1])[0]
        return self._large[path]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return self[name]
        except UsageError as error:
            raise AttributeError(str(error)) from None

    def array(self, name: str) -> xr.DataArray:
        """The array with named axes and coordinates."""
        import xarray as xr

        about = self._block._about(name)
        dims = about["axes"][1:]
        values = self._values(name)
        coords = {dim: self._block._coordinates[dim][:length] for dim, length in zip(dims, values.shape)
                  if dim in self._block._coordinates}
        return xr.DataArray(values, dims=dims, coords=coords, name=about["path"].rpartition("/")[2])

    def __repr__(self) -> str:
        return f"<blockscope.Step {self.step} of block {self._block.index}, sequence {self._block.sequence}>"


class Block:
    """The denoising steps of one block.

    Attributes:
        sequence, index: which one; the block's number counts as in ``/steps/block``.
        rows: the rows of its steps, int64 [steps].
        numbers: their numbers, from 1.
    """

    def __init__(self, trace: Any, arrays: dict[str, Any], short: dict[str, str], coordinates: dict[str, Any],
                 sequence: int, index: int, rows: np.ndarray, numbers: np.ndarray, layers: np.ndarray | None,
                 sizes: tuple[int, int] | None) -> None:
        self._trace, self._arrays, self._short, self._coordinates = trace, arrays, short, coordinates
        self._layers, self._sizes = layers, sizes
        self._read: dict[str, np.ndarray] = {}
        self.sequence, self.index, self.rows, self.numbers = sequence, index, rows, numbers

    @property
    def steps(self) -> list[Step]:
        """The block's steps."""
        return [Step(self, place) for place in range(len(self.rows))]  # not kept: a cycle would keep the arrays

    @property
    def changes(self) -> list[Changes]:
        """What each of the block's steps did to the tokens (`Changes`)."""
        of_row = {one.row: one for one in changes_of(self._trace, self.sequence)}
        return [of_row[int(row)] for row in self.rows]

    def pairs(self) -> Iterator[tuple[Step, Step]]:
        """Each step with the one before it. A step after a gap in the recording has none."""
        before: Step | None = None
        for after in self:
            if before is not None and after.step == before.step + 1:
                yield before, after
            before = after

    def _about(self, name: str) -> dict[str, Any]:
        path = name.strip("/")
        about = self._arrays.get(self._short.get(path, path))
        if about is None:
            raise UsageError(f"{name}: the trace has no such array of a step. HINT: step.names lists them")
        return about  # type: ignore[no-any-return]

    def __getitem__(self, name: str) -> np.ndarray:
        """An array of all steps: [steps, ...]."""
        about = self._about(name)
        path = about["path"]
        if path not in self._read:
            self._read[path] = self._rows_of(about, self.rows)
        return self._read[path]

    def _rows_of(self, about: dict[str, Any], rows: np.ndarray) -> np.ndarray:
        shape, dtype = about["shape"], np.dtype(_TYPES[about["type"]])
        picked = self._layers is not None and "layer" in about["axes"]
        start, count = [0] * (len(shape) - 1), list(shape[1:])
        if picked:
            axis = about["axes"].index("layer") - 1
            start[axis] = int(self._layers.min())  # type: ignore[union-attr]
            count[axis] = int(self._layers.max()) - start[axis] + 1  # type: ignore[union-attr]
        values = np.empty((len(rows), *count), dtype)
        ends = np.flatnonzero(np.diff(rows) != 1) + 1  # runs of consecutive rows
        for first, end in zip([0, *ends], [*ends, len(rows)]):
            part = values[first:end]
            if part.size:
                self._trace.read(about["path"], [int(rows[first]), *start], list(part.shape), part)
        if picked and len(self._layers) != count[axis]:  # type: ignore[arg-type]
            values = values.take(self._layers - start[axis], axis=axis + 1)  # type: ignore[operator]
        if self._sizes is not None and "layer" in about["axes"]:  # without padding
            own = dict(zip(("kv_head", "channel"), self._sizes))
            values = values[tuple(slice(own.get(name)) for name in about["axes"])]
        return values

    def __iter__(self) -> Iterator[Step]:
        # One after the other, so that the arrays of a step can be freed before the next ones are read.
        return (Step(self, place) for place in range(len(self.rows)))

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        return f"<blockscope.Block {self.index} of sequence {self.sequence}: {len(self)} steps>"


def blocks(trace: Trace, *, layers: Indices = None, steps: Indices = None, blocks: Indices = None,
           sequences: Indices = None) -> Iterator[Block]:
    """The blocks of a trace with their recorded denoising steps, ordered by sequence and block. Sequences that a kill cut
    and a resume decoded again are left out.

        for block in trace.blocks(layers=[0, 3]):
            for before, after in block.pairs():
                print(block.sequence, block.index, after.step, abs(after.external - before.external).mean())

    Args:
        layers: the model's indices; arrays have only these. Where layers differ in KV heads or channels (ragged
            layers), arrays of layers of one size have this size. Those of several sizes are padded, as in the file:
            NaN, or -1 in integers.
        steps: denoising steps of a block, from 1.
        blocks, sequences: indices, from 0.

    Raises:
        UsageError: a layer that was not recorded.
    """
    core = trace._core
    about = {array["path"].strip("/"): array for array in core.arrays() if array["axes"][:1] == ["row"]}
    short: dict[str, str] = {}
    for group in _GROUPS:
        for path in about:
            if path.startswith(group + "/"):
                short.setdefault(path.rpartition("/")[2], path)
    coordinates: dict[str, Any] = {"layer": np.array(trace.layers), "head": np.array(trace.heads),
                                   "kv_head": np.array(trace.kv_heads)}
    wanted = indices("layers", layers, 0)
    places = None
    if wanted is not None:
        missing = [layer for layer in wanted if layer not in trace.layers]
        if missing:
            raise UsageError(f"layers: {missing[0]} was not recorded. HINT: the trace has {trace.layers}")
        places = np.array([trace.layers.index(layer) for layer in wanted])
        coordinates["layer"] = np.array(wanted)

    columns = {name: np.empty(trace.num_rows, _TYPES[about[f"steps/{name}"]["type"]]) for name in _COLUMNS}
    for name, values in columns.items():
        if values.size:
            core.read(f"/steps/{name}", [0], [values.size], values)
    keep = (columns["step"] > 0) & (columns["recorded"] == 1)
    for name, given, least in (("step", steps, 1), ("block", blocks, 0), ("sequence", sequences, 0)):
        chosen = indices(name + "s", given, least)
        if chosen is not None:
            keep &= np.isin(columns[name], chosen)
    aborted = [sequence.index for sequence in trace.sequences if sequence.aborted]
    keep &= ~np.isin(columns["sequence"], aborted)
    rows = np.flatnonzero(keep)
    order = np.lexsort((columns["step"][rows], columns["block"][rows], columns["sequence"][rows]))
    rows = rows[order]
    keys = np.stack([columns["sequence"][rows], columns["block"][rows]], axis=1)
    ends = np.flatnonzero((np.diff(keys, axis=0) != 0).any(axis=1)) + 1
    for first, end in zip([0, *ends], [*ends, rows.size]):
        if first == end:
            continue
        yield Block(core, about, short, coordinates, int(keys[first][0]), int(keys[first][1]), rows[first:end],
                    columns["step"][rows[first:end]], places, trace._sizes_of(wanted or trace.layers))
