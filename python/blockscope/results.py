"""The result of a metric, as an xarray.Dataset of means with their numbers of terms."""

from __future__ import annotations

import math
import os
from typing import Any

import numpy as np
import xarray as xr

from . import _core
from ._paths import PathLike
from .errors import UsageError
from .figures import Figure, draw

# Axes of the model and of the run, which can be averaged. All others are parameters of a metric.
PLACES = ("layer", "head", "kv_head", "step", "sequence", "block", "position")

# Arrays with terms that are not means: quantiles, entropies, and ratios of sums. Their value for two traces
# together can't be computed from the values of each.
_NO_MEANS = {
    "draft": ("speedup", "length_by_sequence", "symptoms", "symptom_seen"),
    "kept_pair": ("kept_error",),
    "reuse_error": ("relative_l2", "cosine"),
    "router": ("entropy",),
    "union_size": ("union_quantiles",),
}
LEFT_OUT = "left out: "
_NOT_ADDED = "not added"


def _coordinate(axis: dict[str, Any]) -> np.ndarray:
    index = axis["index"]
    if not index and axis["labels"]:  # an axis with both gets the numbers, which are better to select and draw
        return np.array(axis["labels"])
    if all(math.isfinite(value) and value == int(value) for value in index):
        return np.array(index, dtype=np.int64)
    return np.array(index, dtype=np.float64)


class Analysis(xr.Dataset):
    """A metric of one or more traces.

    For every array of the metric there are two variables of the same shape: ``<array>``, means (float64, NaN
    without terms), and ``<array>_terms``, the number of terms of each (int64). Arrays of counts have no terms.
    ``attrs`` has the metric's title, formula and source, the datasets it was computed from, and how many
    terms were left out of the means and why.

    ``a + b`` is the result of both traces together, weighted by terms. ``sum(results)`` works, too. All other
    arithmetic is xarray's, element by element.
    """

    __slots__ = ()

    @classmethod
    def of(cls, result: dict[str, Any], facts: dict[str, str]) -> Analysis:
        """Converts a result of the extension module."""
        axes: dict[str, np.ndarray] = {}
        labels: dict[str, list[str]] = {}
        variables: dict[str, Any] = {}
        for array in result["arrays"]:
            dims = []
            for axis in array["axes"]:
                name, values = axis["name"], _coordinate(axis)
                if name in axes and not np.array_equal(axes[name], values):
                    name = f"{name}_of_{array['name']}"  # as in the files of --hdf5
                axes.setdefault(name, values)
                if axis["labels"] and axis["index"]:
                    labels[name] = axis["labels"]
                dims.append(name)
            shape = [len(axes[name]) for name in dims]
            values = np.frombuffer(array["values"], np.float64).reshape(shape)
            attrs = {"units": array["unit"], "long_name": array["description"]}
            variables[array["name"]] = (dims, values, attrs)
            if array["terms"] is not None:
                terms = np.frombuffer(array["terms"], np.int64).reshape(shape)
                attrs = {"units": "terms", "long_name": f"number of terms of {array['name']}"}
                variables[f"{array['name']}_terms"] = (dims, terms, attrs)
        attrs = {key: result[key] for key in ("metric", "title", "formula", "source", "computed_from")}
        attrs.update((LEFT_OUT + reason, count) for reason, count in result["left_out"].items())
        coords = {name: (name, values, {"labels": labels[name]} if name in labels else {})
                  for name, values in axes.items()}
        return cls(variables, coords=coords, attrs={**attrs, **facts})

    def arrays(self) -> list[str]:
        """Names of the metric's arrays, without their terms."""
        return [str(name) for name in self.data_vars if self[name].attrs.get("units") != "terms"]

    def has_terms(self, array: str) -> bool:
        """Whether the array holds means."""
        return f"{array}_terms" in self.data_vars

    def sums(self) -> xr.Dataset:
        """``<array>_sum`` of every array of means: mean times terms, 0 without terms."""
        found = {}
        for name in filter(self.has_terms, self.arrays()):
            terms = self[f"{name}_terms"]
            found[f"{name}_sum"] = self[name].where(terms > 0, 0.0) * terms
        return xr.Dataset(found)

    def by(self, *axes: str) -> Analysis:
        """Means over all places (layer, head, step, ...) except `axes`, weighted by terms. Arrays without these
        axes are left out. Arrays of counts stay unchanged."""
        variables: dict[str, Any] = {}
        for name in self.arrays():
            mean = self[name]
            if not set(axes) <= set(map(str, mean.dims)):
                continue
            if not self.has_terms(name):
                variables[name] = mean
                continue
            terms = self[f"{name}_terms"]
            over = [dim for dim in mean.dims if dim in PLACES and dim not in axes]
            total = terms.sum(over)
            sums = (mean.where(terms > 0, 0.0) * terms).sum(over)
            variables[name] = (sums / total.where(total > 0)).assign_attrs(mean.attrs)
            variables[f"{name}_terms"] = total.assign_attrs(terms.attrs)
        if not variables:
            raise UsageError(f"by: no array has {', '.join(axes)}; the axes are {', '.join(map(str, self.dims))}")
        return Analysis(variables, attrs=self.attrs)

    def save(self, path: PathLike, *, force: bool = False) -> None:
        """Writes the result as ``blockscope analyze`` does: ``.csv`` (which ``blockscope view --metrics`` shows),
        ``.json``, or ``.h5``. Replaces an existing file only with `force`."""
        traces = [os.fsencode(trace) for trace in str(self.attrs["traces"]).splitlines()]
        _core.write_results(os.fsencode(path), force, [self._result()], str(self.attrs["program"]).encode(), traces,
                            str(self.attrs["model_digest"]).encode())

    def figures(self) -> dict[str, Figure]:
        """The report's drawings of this metric, by name. A notebook shows each as a picture. Empty for metrics that
        the report shows as tables, and if there is nothing to draw.

        Raises:
            Error: gnuplot is missing, or `by` has removed axes that the drawing needs.
        """
        return draw(self._result())

    def _result(self) -> dict[str, Any]:
        """What the extension module takes."""
        arrays = []
        for name in self.arrays():
            array = self[name]
            terms = self[f"{name}_terms"].values if self.has_terms(name) else None
            arrays.append({
                "name": name, "unit": array.attrs["units"], "description": array.attrs["long_name"],
                "axes": [self._axis(name, str(dim)) for dim in array.dims],
                "values": np.ascontiguousarray(array.values, np.float64).tobytes(),
                "terms": None if terms is None else np.ascontiguousarray(terms, np.int64).tobytes(),
            })
        words = ("metric", "title", "formula", "source", "computed_from")
        left_out = {str(key).removeprefix(LEFT_OUT): int(value) for key, value in self.attrs.items()
                    if str(key).startswith(LEFT_OUT)}
        return {"arrays": arrays, "left_out": left_out, **{word: str(self.attrs[word]) for word in words}}

    def _axis(self, array: str, dim: str) -> dict[str, Any]:
        values = self[dim].values
        named = values.dtype.kind not in "iuf"
        labels = list(values) if named else self[dim].attrs.get("labels", [])
        return {
            "name": dim.removesuffix(f"_of_{array}"),
            "index": [] if named else values.astype(np.float64).tolist(),
            "labels": [str(label) for label in labels] if len(labels) == values.size else [],
        }

    def __add__(self, other: Any) -> Any:
        return _add(self, other) if isinstance(other, Analysis) else super().__add__(other)

    def __radd__(self, other: Any) -> Any:
        return self if isinstance(other, int) and other == 0 else super().__radd__(other)  # sum()

    def __iadd__(self, other: Any) -> Any:
        return _add(self, other) if isinstance(other, Analysis) else super().__iadd__(other)


def _mean_of_both(a: Analysis, b: Analysis, name: str) -> dict[str, xr.DataArray]:
    terms_name = f"{name}_terms"
    mean_a, mean_b = xr.align(a[name], b[name], join="outer")
    terms_a, terms_b = xr.align(a[terms_name], b[terms_name], join="outer", fill_value=0)
    terms = terms_a + terms_b
    sums = mean_a.where(terms_a > 0, 0.0) * terms_a + mean_b.where(terms_b > 0, 0.0) * terms_b
    mean = sums / terms.where(terms > 0)
    # If only one has terms, its mean stays bit for bit.
    mean = mean.where(terms_a > 0, mean_b).where(terms_b > 0, mean_a.where(terms_a > 0, mean_b))
    return {name: mean.assign_attrs(a[name].attrs), terms_name: terms.assign_attrs(a[terms_name].attrs)}


def _count_of_both(a: Analysis, b: Analysis, name: str) -> dict[str, xr.DataArray]:
    count_a, count_b = xr.align(a[name], b[name], join="outer", fill_value=0.0)
    return {name: (count_a + count_b).assign_attrs(a[name].attrs)}


def _add(a: Analysis, b: Analysis) -> Analysis:
    metric = a.attrs.get("metric")
    for what in ("metric", "formula", "model_digest", "plugin_sha256"):
        if a.attrs.get(what) != b.attrs.get(what):
            raise UsageError(f"a + b: expected results with one {what}, got {a.attrs.get(what)!r} and "
                             f"{b.attrs.get(what)!r}")
    variables: dict[str, xr.DataArray] = {}
    not_added = []
    for name in a.arrays():
        if name not in b:
            not_added.append(name)
            continue
        if a[name].dims != b[name].dims:
            raise UsageError(f"a + b: {name}: expected the axes {a[name].dims}, got {b[name].dims}. HINT: use "
                             "the same `by` for both")
        no_mean = name.startswith(_NO_MEANS.get(str(metric), ()))
        if a.has_terms(name) and b.has_terms(name) and not no_mean:
            variables.update(_mean_of_both(a, b, name))
        elif a[name].attrs.get("units") == "count":
            variables.update(_count_of_both(a, b, name))
        else:
            not_added.append(name)
    not_added += [name for name in b.arrays() if name not in a]
    if not variables:
        raise UsageError(f"a + b: no array of {metric} adds up. HINT: analyse the traces together: "
                         "blockscope.analyze([a, b], ...)")
    attrs = dict(a.attrs)
    for key, value in b.attrs.items():
        if str(key).startswith(LEFT_OUT):
            attrs[key] = attrs.get(key, 0) + value
    for key in ("traces", "computed_from"):
        if a.attrs.get(key) != b.attrs.get(key):
            attrs[key] = f"{a.attrs.get(key, '')}\n{b.attrs.get(key, '')}"
    earlier = [str(x.attrs[_NOT_ADDED]) for x in (a, b) if _NOT_ADDED in x.attrs]
    if not_added or earlier:
        known = sorted(set(not_added) | {name for text in earlier for name in text.split(", ")})
        attrs[_NOT_ADDED] = ", ".join(known)
    return Analysis(variables, attrs=attrs)
