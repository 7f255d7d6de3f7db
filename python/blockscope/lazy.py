"""The datasets of a trace as an xarray.DataTree that reads only what is used, when it is used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
from xarray.backends import BackendArray
from xarray.core import indexing

if TYPE_CHECKING:
    from . import _core

_TYPES = {"u8": np.uint8, "i32": np.int32, "i64": np.int64, "f32": np.float32}
_TEXTS = ("/model/json", "/run/json")  # Trace.model and Trace.run


class StoredArray(BackendArray):
    """One dataset of an open trace. Reads the bounding box of the requested elements. Along the first axis, it reads
    only the requested rows."""

    def __init__(self, trace: _core.Trace, path: str, shape: tuple[int, ...], dtype: np.dtype) -> None:
        self._trace = trace
        self._path = path
        self.shape = shape
        self.dtype = dtype

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        return indexing.explicit_indexing_adapter(key, self.shape, indexing.IndexingSupport.OUTER, self._outer)

    def _outer(self, key: tuple[Any, ...]) -> np.ndarray:
        picks = [_indices(part, length) for part, length in zip(key, self.shape)]
        starts = [_start(pick) for pick in picks]
        counts = [_span(pick) for pick in picks]
        if _in_order(picks[0]):
            values = np.empty(counts, self.dtype)
            self._read(starts, values)
        else:
            values = self._rows(np.asarray(picks[0]), starts, counts)
        for axis in range(1, len(picks)):
            if not _in_order(picks[axis]):
                values = values.take(np.asarray(picks[axis]) - starts[axis], axis=axis)
        scalars = tuple(axis for axis, part in enumerate(key) if isinstance(part, (int, np.integer)))
        return values.squeeze(axis=scalars) if scalars else values

    def _rows(self, rows: np.ndarray, starts: list[int], counts: list[int]) -> np.ndarray:
        distinct, place = np.unique(rows, return_inverse=True)
        values = np.empty((distinct.size, *counts[1:]), self.dtype)
        ends = np.flatnonzero(np.diff(distinct) != 1) + 1  # runs of consecutive rows
        for first, end in zip([0, *ends], [*ends, distinct.size]):
            self._read([int(distinct[first]), *starts[1:]], values[first:end])
        return values[place.reshape(-1)]

    def _read(self, start: list[int], values: np.ndarray) -> None:
        if values.size:
            self._trace.read(self._path, start, list(values.shape), values)


def _indices(part: Any, length: int) -> range | np.ndarray:
    if isinstance(part, slice):  # not an array, because datasets of bytes are long
        return range(*part.indices(length))
    return np.atleast_1d(np.asarray(part, dtype=np.int64))


def _start(pick: range | np.ndarray) -> int:
    """The smallest index."""
    if len(pick) == 0:
        return 0
    return min(pick[0], pick[-1]) if isinstance(pick, range) else int(pick.min())


def _span(pick: range | np.ndarray) -> int:
    """Elements from the smallest index to the largest."""
    if len(pick) == 0:
        return 0
    if isinstance(pick, range):
        return abs(pick[-1] - pick[0]) + 1
    return int(pick.max() - pick.min()) + 1


def _in_order(pick: range | np.ndarray) -> bool:
    """Whether the indices are consecutive."""
    if isinstance(pick, range):
        return pick.step == 1 or len(pick) < 2
    return pick.size < 2 or bool(np.all(np.diff(pick) == 1))


def tree_of(trace: _core.Trace, attrs: dict[str, Any]) -> xr.DataTree:
    """The datasets in their groups. Datasets at the root are the coordinates of the axes with the same names."""
    coordinates: dict[str, Any] = {}
    groups: dict[str, dict[str, Any]] = {}
    for array in trace.arrays():
        path, shape = array["path"], tuple(array["shape"])
        if path in _TEXTS:
            continue
        stored = StoredArray(trace, path, shape, np.dtype(_TYPES[array["type"]]))
        about = {"description": array["description"], "stored_type": array["stored_type"]}
        lazy = xr.Variable(array["axes"], indexing.LazilyIndexedArray(stored), about)
        group, _, name = path.rpartition("/")
        if group:
            groups.setdefault(group, {})[name] = lazy
        else:
            coordinates[name] = lazy
    nodes = {"/": xr.Dataset(coords=coordinates, attrs=attrs)}
    nodes.update((group, xr.Dataset(variables)) for group, variables in groups.items())
    return xr.DataTree.from_dict(nodes)
