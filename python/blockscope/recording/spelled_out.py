"""Attention that a model spells out: a product of queries and keys (scaled, capped, masked), its softmax, and the
product with the values. The scores are followed by identity from one operation to the next. An unknown operation ends
the trail. Such attention counts as not seen, and the operation is kept for the error."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Union

import torch

from . import axes as views_of
from .axes import Views, viewed
from .calls import AttentionCall
from .operands import Mask, Operand, Sides, call_of
from .products import NAMES as PRODUCTS, Product, product_of
from .trails import STAGES, Lost, Node, Trail

LOWEST = -1e4  # What is filled in below this hides a key; half precision's masks begin here.
_EPSILON = 1e-6  # what a sum may be kept from 0 with

_ADD = frozenset(("add", "__add__", "__radd__", "__iadd__", "add_"))
_SUBTRACT = frozenset(("sub", "__sub__", "__isub__", "sub_", "subtract"))
_MULTIPLY = frozenset(("mul", "__mul__", "__rmul__", "__imul__", "mul_", "multiply"))
_DIVIDE = frozenset(("div", "__truediv__", "__itruediv__", "div_", "true_divide", "divide"))
_VIEWS = views_of.SAME | views_of.IN_ORDER | views_of.PERMUTED
_IN_PLACE = frozenset(("__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__", "__ifloordiv__", "__imod__",
                       "__ipow__", "__iand__", "__ior__", "__ixor__"))
_REDUCE = {"max": "largest", "amax": "largest", "logsumexp": "log of the sum", "sum": "sum"}
_Made = Union[Node, str, None]  # what an operation makes; why it ends the trail; None: it completes the attention


def kind_of(function: Any) -> str:
    """``product``, ``view`` or nothing."""
    name = getattr(function, "__name__", "")
    return "product" if name in PRODUCTS else "view" if name in _VIEWS else ""


class SpelledOut:
    """Sees the operations of a forward pass that it wants."""

    def __init__(self, found: Callable[[AttentionCall], None], lost: Callable[[Lost], None], sequences: int,
                 length: int) -> None:
        self._found, self._lost = found, lost
        self._sequences, self._length = sequences, length  # of the pass
        self._nodes: dict[int, tuple[weakref.ref[torch.Tensor], Node]] = {}
        self._views = Views()

    def wants(self, kind: str) -> bool:
        """Whether an operation of this kind can matter now. Without scores to follow, few can."""
        return bool(self._nodes) or kind == "product" or kind == "view" and self._sequences > 1

    def see(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        name = getattr(function, "__name__", "")
        if name in _VIEWS and self._sequences > 1:  # a single one is in no dimension
            self._views.note(function, args, kwargs, result)
        if not self._nodes and name not in PRODUCTS:
            return
        inputs = [node for node in map(self._node, _flat(args, kwargs)) if node is not None]
        made: _Made = ""
        if name in PRODUCTS:
            product = product_of(name, args, kwargs)
            if product is not None and isinstance(result, torch.Tensor):
                made = self._product(product, result)
        elif inputs:
            made = self._step(name, function, args, kwargs, result)
        self._keep(function, args, inputs, result, made)

    def _node(self, x: Any) -> Node | None:
        found = self._nodes.get(id(x))
        return found[1] if found is not None and found[0]() is x else None

    def _keep(self, function: Any, args: tuple[Any, ...], inputs: list[Node], result: Any, made: _Made) -> None:
        name = getattr(function, "__name__", "")
        target = args[0] if name == "__setitem__" else result
        if isinstance(target, tuple) and target and isinstance(target[0], torch.Tensor):
            target = target[0]  # of max: values and indices
        if not isinstance(target, torch.Tensor):
            return  # a shape, a number
        if name in _IN_PLACE or name.endswith("_") and not name.startswith("__"):
            self._forget_written(function, target)
        self._nodes.pop(id(target), None)
        if isinstance(made, Node):
            axes = made.trail.axes
            if tuple(target.shape) == tuple(axes.size(axes.leaves(held)) for held in made.dims):
                self._follow(target, made)
                return
            made = "it has another shape"
        if made is not None and inputs and not name.endswith("_like") and not name.startswith("new_"):
            furthest = max(inputs, key=lambda node: STAGES[node.kind][0])
            self._lost(Lost(function, *STAGES[furthest.kind], made))

    def _follow(self, x: torch.Tensor, node: Node) -> None:
        """As long as x lives. Without any, other operations cost nothing."""
        nodes, key = self._nodes, id(x)

        def gone(found: weakref.ref[torch.Tensor]) -> None:
            if key in nodes and nodes[key][0] is found:
                del nodes[key]

        nodes[key] = weakref.ref(x, gone), node

    def _forget_written(self, function: Any, target: torch.Tensor) -> None:
        """Other tensors that share the written memory."""
        for key, (found, node) in list(self._nodes.items()):
            x = found()
            if x is not None and x is not target and x.untyped_storage().data_ptr() == \
                    target.untyped_storage().data_ptr():
                del self._nodes[key]
                self._lost(Lost(function, *STAGES[node.kind], "it writes through a view"))

    # --- products -----------------------------------------------------------------------------------------------------

    def _product(self, product: Product, result: torch.Tensor) -> _Made:
        for weights, values, labels in ((product.left, product.right, product.labels),
                                        (product.right, product.left, (product.labels[1], product.labels[0],
                                                                       product.labels[2]))):
            node = self._node(weights)
            if node is not None and node.kind in ("weights", "exponentials"):
                if product.scale != 1.0 or product.added is not None:
                    return "the product with the values is scaled or added to"
                return self._with_values(node, values, labels, result)
        sides = Sides.of(product)
        if sides is None:
            return ""
        node = Node("scores", Trail(sides, product.scale), sides.result)
        if product.added is None:
            return node
        return self._masked(node, product.added, "added", product.share)

    def _with_values(self, node: Node, values: torch.Tensor, labels: tuple[str, str, str],
                     result: torch.Tensor) -> _Made:
        axes, held = node.trail.axes, dict(zip(labels[0], node.dims))
        contracted = [label for label in labels[0] if label in labels[1] and label not in labels[2]]
        own = [label for label in labels[1] if label not in labels[0]]
        if len(contracted) != 1 or len(own) != 1 or own[0] not in labels[2] or set(labels[0]) - set(labels[2]) != set(
                contracted):
            return "no product with values"
        trail = node.trail.over(held[contracted[0]])
        if trail is None:
            return "the product doesn't go over the keys"
        held[own[0]] = axes.add(f"value{len(axes.sizes)}", values.shape[labels[1].index(own[0])])
        if any(size not in (1, axes.size(axes.leaves(held[label]))) for size, label in zip(values.shape, labels[1])):
            return "the values have more axes than the scores"
        dims = tuple(() if size == 1 else held[label] for size, label in zip(values.shape, labels[1]))
        trail = replace(trail, values=Operand(values, dims))
        made = Node("not yet divided", trail, tuple(held[label] for label in labels[2]), held[own[0]], node.trail)
        return made if node.kind == "exponentials" else self._complete(made, result)

    def _complete(self, node: Node, out: torch.Tensor) -> str | None:
        trail = node.trail
        call = call_of(trail.sides, trail.keys, trail.values, Operand(out, node.dims), trail.masks, self._views,
                       self._sequences, self._length)
        if isinstance(call, str):
            return call
        call.scale, call.softcap, call.dropout = trail.scale, trail.softcap, trail.dropout
        self._found(call)
        return None

    # --- between them -------------------------------------------------------------------------------------------------

    def _step(self, name: str, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any],
              result: Any) -> _Made:
        first = args[0] if args else kwargs.get("input")
        node = self._node(first)
        if name == "where":
            return self._where(args, kwargs)
        if name in _ADD or name in _MULTIPLY:
            other = args[1] if len(args) > 1 else kwargs.get("other")
            node, other = (node, other) if node is not None else (self._node(other), first)
        else:
            other = args[1] if len(args) > 1 else kwargs.get("other")
        if node is None:
            return None if name in _VIEWS else ""  # x.type_as(scores)
        if name in _VIEWS or name == "__getitem__" and _adds_dimensions(args[1]):
            if not isinstance(result, torch.Tensor):
                return ""
            dims = viewed(node.trail.axes, node.dims, name, function, args[1:], kwargs, tuple(result.shape))
            return "" if dims is None else replace(node, dims=dims)
        if name in ("softmax", "special_softmax", "log_softmax", "special_log_softmax"):
            return self._softmax(node, args, kwargs, "log of the weights" if "log" in name else "weights")
        if node.kind == "scores" and (name in ("clamp", "clamp_min", "maximum")
                                      or name == "max" and torch.is_tensor(other)):
            alone = len(args) < 3 and not set(kwargs) - {"min", "other"}
            return node if alone and _largest(kwargs.get("min", other)) <= LOWEST else ""  # only hidden keys are raised
        if name in _REDUCE:
            return self._reduced(node, _REDUCE[name], args, kwargs)
        if name in ("dropout", "dropout_") and node.kind == "weights":
            training = kwargs.get("training", kwargs.get("train", args[2] if len(args) > 2 else True))
            share = float(kwargs.get("p", args[1] if len(args) > 1 else 0.5)) if training else 0.0
            return replace(node, trail=replace(node.trail, dropout=share))
        if name == "nan_to_num" and node.kind == "weights":  # rows that see no key
            return node
        if name in ("exp", "exp_"):
            return self._exponential(node)
        if name in ("masked_fill", "masked_fill_"):
            return self._filled(node, args[1] if len(args) > 1 else kwargs.get("mask"),
                                args[2] if len(args) > 2 else kwargs.get("value"), "hidden")
        if name == "__setitem__":
            return self._set(node, args)
        if set(kwargs) - {"input", "other", "out", "min"}:
            return ""
        if name in ("clamp", "clamp_min", "clamp_", "clamp_min_"):
            other = kwargs.get("min", other)
        if node.kind == "sum":
            small = isinstance(other, float) and 0 <= other <= _EPSILON and (name in _ADD or name.startswith("clamp"))
            return node if small and len(args) < 3 else ""
        if name in ("tanh", "tanh_") and node.kind == "scores":
            trail = node.trail
            bare = not trail.masks and trail.shift is None and not trail.capped
            return replace(node, trail=replace(trail, capped=True)) if bare else ""
        if name in _DIVIDE and self._node(other) is not None:
            return self._divided(node, self._node(other), result)
        if name in _MULTIPLY or name in _DIVIDE:
            return self._scaled(node, other, name in _DIVIDE)
        if name in _SUBTRACT and self._node(other) is not None:
            return self._shifted(node, self._node(other))
        if (name in _ADD or name in _SUBTRACT) and isinstance(other, torch.Tensor) and node.kind == "scores" \
                and self._node(other) is None:
            return self._masked(node, other, "added", 1.0 if name in _ADD else -1.0)
        return ""

    @staticmethod
    def _masked(node: Node, mask: torch.Tensor, kind: str, factor: float = 1.0) -> _Made:
        dims = node.trail.axes.spread(node.dims, tuple(mask.shape))
        if dims is None:
            return f"a mask of shape {list(mask.shape)} isn't broadcast to the scores"
        if node.trail.capped and not node.trail.softcap:
            return "a mask directly after tanh"
        return replace(node, trail=replace(node.trail, masks=(*node.trail.masks, Mask(mask, dims, kind, factor))))

    def _filled(self, node: Node, mask: Any, value: Any, kind: str) -> _Made:
        """kind: whether the mask is True where a key is "hidden" or "seen"."""
        if not isinstance(mask, torch.Tensor) or mask.dtype != torch.bool:
            return "its mask isn't a tensor of bool"
        if node.kind == "exponentials":
            return self._masked(node, mask, kind) if not torch.is_tensor(value) and value == 0 else ""
        if node.kind != "scores":
            return ""
        largest = _largest(value)
        if not largest <= LOWEST:
            return f"fills in {largest:g}, expected {LOWEST:g} or less, which hides a key"
        return self._masked(node, mask, kind)

    def _where(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Made:
        """torch.where(condition, a, b) and a.where(condition, b)."""
        given = {**dict(zip(("condition", "input", "other"), args)), **kwargs}
        condition, a, b = (given.get(name) for name in ("condition", "input", "other"))
        if self._node(condition) is not None:
            condition, a = a, condition
        node, value, kind = (self._node(a), b, "seen") if self._node(a) is not None else (self._node(b), a, "hidden")
        if node is None:
            return ""
        return self._filled(node, condition, value, kind)

    def _set(self, node: Node, args: tuple[Any, ...]) -> _Made:
        """scores[mask] = value, with full slices before the mask."""
        index = args[1] if isinstance(args[1], tuple) else (args[1],)
        mask = index[-1]
        if any(part != slice(None) for part in index[:-1] if not isinstance(part, torch.Tensor)) or any(
                isinstance(part, torch.Tensor) for part in index[:-1]) or not isinstance(mask, torch.Tensor):
            return ""
        after = len(node.dims) - len(index) + 1 - mask.dim()
        return "" if after < 0 else self._filled(node, mask[(..., *[None] * after)], args[2], "hidden")

    @staticmethod
    def _scaled(node: Node, factor: Any, divides: bool) -> _Made:
        trail = node.trail
        if node.kind == "exponentials" and isinstance(factor, torch.Tensor) and factor.dtype == torch.bool:
            return SpelledOut._masked(node, factor, "seen") if not divides else ""
        if node.kind != "scores":
            return ""
        if isinstance(factor, torch.Tensor):
            if factor.numel() != 1:
                return f"scaled by a tensor of shape {list(factor.shape)}, expected one number"
            factor = factor.item()
        if not isinstance(factor, (int, float)) or factor == 0:
            return ""
        factor = 1 / factor if divides else float(factor)
        if trail.masks and (factor < 0 or trail.capped):
            return "scaled after the mask"
        if not trail.capped:
            masks = tuple(replace(mask, factor=mask.factor * factor) for mask in trail.masks)
            return replace(node, trail=replace(trail, scale=trail.scale * factor, masks=masks))
        if trail.softcap:
            return "scaled twice after tanh"
        return replace(node, trail=replace(trail, scale=trail.scale * factor, softcap=factor))

    # --- the softmax, at once or by hand ------------------------------------------------------------------------------

    @staticmethod
    def _softmax(node: Node, args: tuple[Any, ...], kwargs: dict[str, Any], kind: str) -> _Made:
        dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
        if node.kind != "scores" or not isinstance(dim, int):
            return ""
        trail = node.trail.over(node.dims[dim])
        return "not along the keys" if trail is None else Node(kind, trail, node.dims)

    @staticmethod
    def _reduced(node: Node, kind: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Made:
        if node.kind != ("exponentials" if kind == "sum" else "scores"):
            return ""
        dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
        keep = bool(kwargs.get("keepdim", args[2] if len(args) > 2 else False))
        dim = [dim] if isinstance(dim, int) else list(range(len(node.dims))) if dim is None else dim
        if not isinstance(dim, (list, tuple)) or kind != "largest" and len(dim) != 1:
            return ""
        gone = [one % len(node.dims) for one in dim]
        dims = tuple(() if i in gone else held for i, held in enumerate(node.dims) if keep or i not in gone)
        return Node(kind, node.trail, dims, node.dims[gone[0]])

    @staticmethod
    def _fits(part: Node, whole: Node, but: tuple[str, ...]) -> bool:
        """Whether a row's number is broadcast to that very row: along all axes but one."""
        axes = whole.trail.axes
        if len(part.dims) > len(whole.dims):
            return False
        pairs = zip([()] * (len(whole.dims) - len(part.dims)) + list(part.dims), whole.dims)
        return all(axes.leaves(a) == axes.leaves(b) or not a and axes.leaves(b) == axes.leaves(but) for a, b in pairs)

    def _shifted(self, node: Node, by: Node) -> _Made:
        """Adding the same number for all keys changes no weight."""
        axes = node.trail.axes
        if node.kind != "scores" or by.trail.axes is not axes:
            return ""
        if by.kind == "log of the sum" and by.trail is node.trail and self._fits(by, node, by.over):
            trail = node.trail.over(by.over)
            return "not along the keys" if trail is None else Node("log of the weights", trail, node.dims)
        own = [()] * (len(node.dims) - len(by.dims)) + list(by.dims)
        if by.kind not in ("largest", "log of the sum") or len(own) != len(node.dims) or any(
                held and axes.leaves(held) != axes.leaves(dim) for held, dim in zip(own, node.dims)):
            return ""
        varies = tuple(axis for held in own for axis in held)
        return replace(node, trail=replace(node.trail, shift=(*(node.trail.shift or ()), *varies)))

    @staticmethod
    def _exponential(node: Node) -> _Made:
        if node.kind == "log of the weights":
            return replace(node, kind="weights")
        if node.kind != "scores" or node.trail.capped and not node.trail.softcap:
            return ""
        return replace(node, kind="exponentials")

    def _divided(self, node: Node, by: Node, result: torch.Tensor) -> _Made:
        if by.kind != "sum":
            return ""
        if node.kind == "exponentials" and by.trail is node.trail and self._fits(by, node, by.over):
            trail = node.trail.over(by.over)
            return "not along the keys" if trail is None else Node("weights", trail, node.dims)
        if node.kind == "not yet divided" and by.trail is node.exponentials and self._fits(by, node, node.over):
            axes = node.trail.axes
            same = axes.leaves(by.over) == axes.leaves(node.trail.keys)
            return self._complete(node, result) if same else "not along the keys"
        return ""


def _largest(value: Any) -> float:
    """NaN if it is not a number."""
    if isinstance(value, torch.Tensor):
        return float(value.max())
    return float(value) if isinstance(value, (int, float)) else math.nan


def _flat(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    found = []
    for value in (*args, *kwargs.values()):
        found += value if isinstance(value, (list, tuple)) else [value]
    return found


def _adds_dimensions(index: Any) -> bool:
    """Whether it leaves every element at its place."""
    return all(part is None or part is Ellipsis or isinstance(part, slice) and part == slice(None)
               for part in (index if isinstance(index, tuple) else (index,)))
