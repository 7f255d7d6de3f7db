"""Follows the axes of attention in each dimension of a tensor through views. Computes nothing: the names of axes move
with the dimensions."""

from __future__ import annotations

import math
import weakref
from dataclasses import dataclass
from typing import Any

import torch

Dims = tuple[tuple[str, ...], ...]  # the axes in each dimension, outer ones first, without those of size 1

IN_ORDER = frozenset(("view", "reshape", "flatten", "unflatten", "unsqueeze", "squeeze", "view_as", "reshape_as",
                      "_unsafe_view"))
PERMUTED = frozenset(("transpose", "permute", "swapaxes", "swapdims", "movedim", "moveaxis", "t", "adjoint",
                      "__get__"))  # the last one is Tensor.mT and Tensor.T
SAME = frozenset(("to", "type_as", "float", "half", "bfloat16", "double", "type", "contiguous", "clone", "detach"))


class Axes:
    """Axes by name, with their sizes. A view may split one in two."""

    def __init__(self) -> None:
        self.sizes: dict[str, int] = {}
        self._parts: dict[str, tuple[str, str]] = {}

    def add(self, name: str, size: int) -> tuple[str, ...]:
        """The parts of this axis in a dimension."""
        if size == 1:
            return ()
        self.sizes[name] = size
        return (name,)

    def split(self, axis: str, outer: int) -> tuple[str, str]:
        parts = axis + "<", axis + ">"
        self.sizes[parts[0]], self.sizes[parts[1]] = outer, self.sizes[axis] // outer
        self._parts[axis] = parts
        return parts

    def leaves(self, held: tuple[str, ...]) -> tuple[str, ...]:
        """The axes with their current splits."""
        found: list[str] = []
        for axis in held:
            parts = self._parts.get(axis)
            found += [axis] if parts is None else self.leaves(parts)
        return tuple(found)

    def size(self, held: tuple[str, ...]) -> int:
        return math.prod(self.sizes[axis] for axis in held)

    def reshaped(self, dims: Dims, shape: tuple[int, ...]) -> Dims | None:
        """The same elements in another shape; None if that would cut an axis in a wrong place."""
        rest = [axis for dim in dims for axis in self.leaves(dim)]
        found = []
        for size in shape:
            held: list[str] = []
            while size > 1:
                if not rest:
                    return None
                axis = rest.pop(0)
                if self.sizes[axis] > size:
                    if self.sizes[axis] % size:
                        return None
                    axis, inner = self.split(axis, size)
                    rest.insert(0, inner)
                if size % self.sizes[axis]:
                    return None
                size //= self.sizes[axis]
                held.append(axis)
            found.append(tuple(held))
        return None if rest or 0 in shape else tuple(found)

    def spread(self, dims: Dims, shape: tuple[int, ...]) -> Dims | None:
        """What the dimensions of a tensor hold that is broadcast to one that holds dims."""
        if len(shape) > len(dims):
            return None
        own = dims[len(dims) - len(shape):]
        if any(size not in (1, self.size(self.leaves(dim))) for size, dim in zip(shape, own)):
            return None
        return tuple(() if size == 1 else dim for size, dim in zip(shape, own))

    def arranged(self, x: torch.Tensor, dims: Dims, wanted: Dims, whole: bool) -> torch.Tensor | None:
        """x with dimensions that hold the wanted axes. A dimension of which x has no axis is of size 1, unless it is
        to be whole. None: x has an axis that isn't wanted."""
        dims, wanted = (tuple(self.leaves(dim) for dim in one) for one in (dims, wanted))
        if dims == wanted:
            return x
        held = [axis for dim in dims for axis in dim]
        order = [axis for dim in wanted for axis in dim]
        if not set(held) <= set(order):
            return None
        x = x.reshape([self.sizes[axis] for axis in held]).permute([held.index(axis) for axis in order if axis in held])
        x = x.reshape([self.sizes[axis] if axis in held else 1 for axis in order])
        full = [whole or bool(set(dim) & set(held)) for dim in wanted]
        x = x.expand([self.sizes[axis] if there else 1 for dim, there in zip(wanted, full) for axis in dim])
        return x.reshape([self.size(dim) if there else 1 for dim, there in zip(wanted, full)])


def viewed(axes: Axes, dims: Dims, name: str, function: Any, rest: tuple[Any, ...], kwargs: dict[str, Any],
           shape: tuple[int, ...]) -> Dims | None:
    """What the result of a view holds; rest: its arguments after the tensor."""
    if name in SAME:
        return dims if len(shape) == len(dims) else None
    if name in IN_ORDER or name == "__getitem__":  # one that adds dimensions
        return axes.reshaped(dims, shape)
    try:  # The same view of a tensor whose sizes tell its dimensions apart.
        found = function(torch.empty(list(range(2, len(dims) + 2)), device="meta"), *rest,
                         **{key: value for key, value in kwargs.items() if key not in ("input", "self")})
    except (TypeError, RuntimeError, IndexError):
        return None
    if not isinstance(found, torch.Tensor) or sorted(found.shape) != list(range(2, len(dims) + 2)):
        return None
    return tuple(dims[size - 2] for size in found.shape)


@dataclass
class _View:
    result: weakref.ref[torch.Tensor]
    source: _View | None  # None: the tensor that it is a view of is unknown
    source_shape: tuple[int, ...]
    shape: tuple[int, ...]
    function: Any
    rest: tuple[Any, ...]
    kwargs: dict[str, Any]


class Views:
    """Remembers which tensor is a view of which, to separate sequences and heads in one dimension. It sees every view
    of a forward pass, so it only takes notes."""

    def __init__(self) -> None:
        self._views: dict[int, _View] = {}

    def note(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        source = args[0] if args else None
        if not isinstance(source, torch.Tensor) or not isinstance(result, torch.Tensor) or result is source:
            return
        rest = tuple(value.shape if isinstance(value, torch.Tensor) else value for value in args[1:])
        self._views[id(result)] = _View(weakref.ref(result), self._of(source), tuple(source.shape),
                                        tuple(result.shape), function, rest, kwargs)

    def _of(self, x: torch.Tensor) -> _View | None:
        view = self._views.get(id(x))
        return view if view is not None and view.result() is x else None

    def origin(self, x: torch.Tensor, axes: Axes) -> Dims | None:
        """What the dimensions of x hold of the tensor that it is a view of: axes "0", "1", ..., of its dimensions,
        which it adds. None: x isn't known as a view."""
        chain, view = [], self._of(x)
        while view is not None:
            chain.append(view)
            view = view.source
        if not chain:
            return None
        dims: Dims | None = tuple(axes.add(str(i), size) for i, size in enumerate(chain[-1].source_shape))
        for view in reversed(chain):
            name = getattr(view.function, "__name__", "")
            if dims is not None:
                dims = viewed(axes, dims, name, view.function, view.rest, view.kwargs, view.shape)
        return dims
