"""Turns a product of queries and keys and a product with values into an attention call: finds the axes of sequences,
heads, groups of query heads, rows and keys."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch

from .axes import Axes, Dims, Views
from .calls import AttentionCall
from .products import Product


@dataclass(frozen=True, eq=False)
class Mask:
    tensor: torch.Tensor
    dims: Dims
    kind: str  # "added" to the scores, or True where a key is "hidden" or "seen"
    factor: float = 1.0  # of what is added

    def bias(self, x: torch.Tensor) -> torch.Tensor:
        """What is added to the scores where the mask, arranged, is x."""
        if self.kind == "added":
            x = x if x.is_floating_point() else x.float()
            if self.factor == 1.0:
                return x
            if self.factor > 0:  # what libraries write for -inf stays that
                x = x.masked_fill(x <= torch.finfo(x.dtype).min / 2, -torch.inf)
            return x * self.factor
        hidden = x if self.kind == "hidden" else ~x
        return torch.zeros(x.shape, device=x.device).masked_fill(hidden, -torch.inf)


@dataclass(frozen=True, eq=False)
class Operand:
    tensor: torch.Tensor
    dims: Dims


@dataclass(frozen=True, eq=False)
class Sides:
    """The operands of a product of queries and keys. The softmax shows which is which."""

    axes: Axes
    operands: tuple[Operand, Operand]
    only: tuple[tuple[str, ...], tuple[str, ...]]  # axes of the left one alone, of the right one alone
    rows: tuple[tuple[str, ...], tuple[str, ...]] | None  # of a product of matrices: those of its last two dimensions
    contracted: tuple[str, ...]
    result: Dims

    @classmethod
    def of(cls, product: Product) -> Sides | None:
        left, right, result = product.labels
        sizes: dict[str, int] = {}
        for tensor, labels in ((product.left, left), (product.right, right)):
            for size, label in zip(tensor.shape, labels):
                if sizes.get(label, 1) != 1 and size not in (1, sizes[label]):
                    return None
                sizes[label] = max(size, sizes.get(label, 1))
        contracted = [label for label in left if label in right and label not in result]
        if len(contracted) != 1 or set(left + right) != set(result) | set(contracted) or 0 in sizes.values():
            return None
        axes = Axes()
        held = {label: axes.add(label, size) for label, size in sizes.items()}
        dims = [tuple(held[label] if size == sizes[label] else () for size, label in zip(tensor.shape, labels))
                for tensor, labels in ((product.left, left), (product.right, right))]
        there = [{axis for dim in one for axis in dim} for one in dims]
        only = [tuple(axis for dim in one for axis in dim if axis not in there[1 - i]) for i, one in enumerate(dims)]
        rows = (held[left[-2]], held[right[-1]]) if product.plain else None
        return cls(axes, (Operand(product.left, dims[0]), Operand(product.right, dims[1])), (only[0], only[1]), rows,
                   held[contracted[0]], tuple(held[label] for label in result))

    def of_keys(self, held: tuple[str, ...]) -> int | None:
        """The operand that are the keys, where the softmax goes along this axis."""
        return next((side for side in (1, 0) if self.axes.leaves(self.only[side]) == held), None)


def call_of(sides: Sides, keys: tuple[str, ...], values: Operand, out: Operand, masks: tuple[Mask, ...], views: Views,
            sequences: int, length: int) -> AttentionCall | str:
    """The call, or why it can't be determined. keys: the axis of the softmax. sequences, length: those of the pass."""
    axes, side = sides.axes, sides.of_keys(sides.axes.leaves(keys))
    q, k = sides.operands[1 - side], sides.operands[side]
    batch = _batch(axes, q, sides, (q, k, values), views, sequences)
    if isinstance(batch, str):
        return batch
    # The order is that of the queries. A later view of the scores may have split an axis.
    order = [axis for dim in q.dims for axis in axes.leaves(dim)]
    heads = tuple(axis for axis in order if axis in axes.leaves(_shared(sides, q)) and axis not in batch)
    rows = _rows(sides, 1 - side, heads, order, length)
    if isinstance(rows, str):
        return rows
    groups = tuple(axis for axis in axes.leaves(sides.only[1 - side]) if axis not in rows)
    if groups and heads and max(map(order.index, heads)) > min(map(order.index, groups)):
        return "the query heads of a KV head don't follow one another"
    query_heads, contracted = heads + groups, sides.contracted
    value = tuple(axis for dim in values.dims for axis in axes.leaves(dim)
                  if axis not in (*batch, *query_heads, *axes.leaves(keys)))
    of_keys = [axes.arranged(x.tensor, x.dims, (batch, heads, keys, channels), True)
               for x, channels in ((k, contracted), (values, value))]
    of_rows = [axes.arranged(x.tensor, x.dims, (batch, query_heads, rows, channels), True)
               for x, channels in ((q, contracted), (out, value))]
    found = [axes.arranged(mask.tensor, mask.dims, (batch, query_heads, rows, keys), False) for mask in masks]
    if any(x is None for x in (*of_keys, *of_rows, *found)):
        return "its operands have more axes than sequences, heads, rows, keys and channels"
    mask = _together(masks, found, axes.size(axes.leaves(keys)))
    return AttentionCall("matmul and softmax", of_rows[0], of_keys[0], of_keys[1], mask, "", (-1, -1), 1.0, 0.0, 0.0,
                         of_rows[1])


def _shared(sides: Sides, q: Operand) -> tuple[str, ...]:
    """The axes of sequences and KV heads."""
    alone = (*sides.only[0], *sides.only[1], *sides.contracted)
    return tuple(axis for dim in q.dims for axis in dim if axis not in alone)


def _batch(axes: Axes, q: Operand, sides: Sides, operands: tuple[Operand, ...], views: Views,
           sequences: int) -> tuple[str, ...] | str:
    """The axis of the sequences. It may be packed with the heads in one dimension."""
    if sequences == 1:
        return ()
    shared = _shared(sides, q)
    if q.dims[0] and q.dims[0][0] not in shared and axes.sizes[q.dims[0][0]] == sequences:
        return "the keys of one sequence stand for all of them"
    whole = [axis for axis in shared if axes.sizes[axis] == sequences]
    if whole:  # the first one, unless the tensor that it is a view of shows another one
        told = [(int(part), axis) for operand in operands for axis, (part, *more) in _origins(operand, views)
                if axis in whole and not more and part.isdigit()] if len(whole) > 1 else []
        return axes.leaves((min(told)[1] if told else whole[0],))
    packed = next((axis for axis in shared if axes.sizes[axis] % sequences == 0), None)
    if packed is None:
        return f"no dimension holds the {sequences} sequences of the pass"
    return _unpacked(axes, packed, operands, views, sequences) or (
        f"one dimension holds {sequences} sequences and {axes.sizes[packed] // sequences} heads, and which is the "
        "outer one can't be determined")


def _origins(operand: Operand, views: Views) -> list[tuple[str, tuple[str, ...]]]:
    """For each axis that is a dimension, its parts in the tensor that the operand is a view of."""
    before = Axes()
    origin = views.origin(operand.tensor, before)
    return [(held[0], before.leaves(parts)) for held, parts in zip(operand.dims, origin or ()) if held and parts]


def _unpacked(axes: Axes, axis: str, operands: tuple[Operand, ...], views: Views,
              sequences: int) -> tuple[str, ...] | None:
    """Determined by the tensor that an operand is a view of, else by views of the scores."""
    for operand in operands:
        before = Axes()
        origin = views.origin(operand.tensor, before)
        if origin is None or (axis,) not in operand.dims:
            continue
        parts = before.leaves(origin[operand.dims.index((axis,))])
        # Sequences are a separate dimension even where heads may still be channels.
        whole = [part for part in parts if part.isdigit() and before.sizes[part] == sequences]
        if len(parts) > 1 and whole:
            split = axes.reshaped(((axis,),), tuple(before.sizes[part] for part in parts))
            return None if split is None else split[parts.index(min(whole, key=int))]
    leaves = axes.leaves((axis,))
    return next(((leaf,) for leaf in leaves if len(leaves) > 1 and axes.sizes[leaf] == sequences), None)


def _rows(sides: Sides, side: int, heads: tuple[str, ...], order: list[str],
          length: int) -> tuple[str, ...] | str:
    """The axis of the queries' rows among those that the keys don't have."""
    axes = sides.axes
    if sides.rows is not None and len(axes.leaves(sides.rows[side])) <= 1:
        return axes.leaves(sides.rows[side])
    candidates = axes.leaves(sides.only[side] if sides.rows is None else sides.rows[side])
    if length == 1 or not candidates:  # the others are query heads
        return ()
    fitting = [axis for axis in candidates if axes.sizes[axis] == length]
    if len(fitting) == 1 or len(candidates) == 1:
        return (fitting or list(candidates))[0],
    behind = [axis for axis in candidates if order.index(axis) > 0 and order[order.index(axis) - 1] in heads]
    others = [axis for axis in candidates if axis not in behind]
    if len(behind) == 1 and len(others) == 1:  # query heads come after their KV head
        return others[0],
    return "which dimension holds the rows of the queries can't be determined"


def _together(masks: tuple[Mask, ...], arranged: list[torch.Tensor], keys: int) -> torch.Tensor | None:
    """[S or 1, H or 1, T or 1, N]: True where seen, or what is added to the scores."""
    wide = [x.expand(*x.shape[:-1], keys) for x in arranged]
    if len(masks) == 1 and masks[0].kind != "added":
        return wide[0] if masks[0].kind == "seen" else ~wide[0]
    biases = [mask.bias(x) for mask, x in zip(masks, wide)]
    return functools.reduce(torch.add, biases) if biases else None
