"""Attention that a model spells out: a product of queries and keys, scaled, capped, masked, its softmax, and the
product with the values. The scores are followed by identity from one operation to the next; whatever isn't known here
ends the trail, so such attention counts as not seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

# q [S, H, T, D], k [S, K, N, D], v, mask [S, H, T, N] or None, scale, softcap, dropout, out
Found = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, "torch.Tensor | None", float, float, float, torch.Tensor],
                 None]
_MATMUL = ("matmul", "__matmul__", "bmm")
_ADD = ("add", "__add__", "__radd__", "__iadd__", "add_")
_MULTIPLY = ("mul", "__mul__", "__rmul__", "__imul__", "mul_", "multiply")
_DIVIDE = ("div", "__truediv__", "__itruediv__", "div_", "true_divide", "divide")
_SAME = ("to", "type_as", "float", "type", "contiguous")
_KNOWN = frozenset((*_MATMUL, *_ADD, *_MULTIPLY, *_DIVIDE, *_SAME, "masked_fill", "masked_fill_", "softmax", "dropout",
                    "dropout_", "tanh", "tanh_"))


@dataclass
class _Trail:
    scores: torch.Tensor  # what is followed
    q: torch.Tensor
    k: torch.Tensor
    scale: float = 1.0
    softcap: float = 0.0
    capped: bool = False  # behind tanh
    mask: torch.Tensor | None = None
    softmax: bool = False
    dropout: float = 0.0


class SpelledOut:
    """Told of every operation of a forward pass, so what it does with those it doesn't look for has to be cheap."""

    def __init__(self, found: Found) -> None:
        self._found = found
        self._trail: _Trail | None = None

    def see(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        name = getattr(function, "__name__", "")
        if name not in _KNOWN:
            self._ends_with(name, args)
            return
        if not isinstance(result, torch.Tensor):
            return
        if name in _MATMUL:
            self._product(args, kwargs, result)
            return
        trail = self._trail
        if trail is None or not any(value is trail.scores for value in (*args[:2], *kwargs.values())):
            return
        self._trail = trail if self._follow(trail, name, args, kwargs) else None
        trail.scores = result

    def _ends_with(self, name: str, args: tuple[Any, ...]) -> None:
        """Something unknown that writes into the scores."""
        writes = name.endswith("_") and not name.startswith("__") or name == "__setitem__" or (
            name.startswith("__i") and name != "__init__")
        if writes and self._trail is not None and args and args[0] is self._trail.scores:
            self._trail = None

    def _product(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: torch.Tensor) -> None:
        if kwargs or len(args) != 2 or any(x.dim() != 4 for x in args):
            return
        a, b = args
        trail = self._trail
        if trail is not None and trail.softmax and a is trail.scores:
            self._trail = None
            self._found(trail.q, trail.k, b, trail.mask, trail.scale, trail.softcap, trail.dropout, result)
        elif a.shape[:1] == b.shape[:1]:
            self._trail = _Trail(result, a, b.transpose(-1, -2))

    def _follow(self, trail: _Trail, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether the operation is one of attention's, at a place where attention has it."""
        if name in _SAME:
            return True
        if name in ("dropout", "dropout_"):
            training = kwargs.get("training", args[2] if len(args) > 2 else True)
            trail.dropout = float(kwargs.get("p", args[1] if len(args) > 1 else 0.5)) if training else 0.0
            return trail.softmax
        if trail.softmax:
            return False
        if name == "softmax":
            dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
            trail.softmax = dim in (-1, 3)
            return trail.softmax and (not trail.capped or trail.softcap > 0)
        if name in _ADD:
            other = next((x for x in args[:2] if x is not trail.scores), None)
            return not set(kwargs) & {"alpha", "out"} and self._mask(trail, other)
        if name.startswith("masked_fill"):
            hidden, value = args[1], args[2] if len(args) > 2 else kwargs.get("value")
            if not isinstance(value, (int, float)):
                return False
            return self._mask(trail, torch.zeros(hidden.shape, device=hidden.device).masked_fill(hidden, value))
        if trail.mask is not None:
            return False
        if name.startswith("tanh"):
            trail.capped = True
            return trail.softcap == 0
        return self._scale(trail, name, args, kwargs)

    @staticmethod
    def _mask(trail: _Trail, mask: Any) -> bool:
        if not isinstance(mask, torch.Tensor) or mask.dim() > 4:
            return False
        mask = mask[(None,) * (4 - mask.dim())]
        trail.mask = mask if trail.mask is None else trail.mask + mask
        return not trail.capped or trail.softcap > 0

    @staticmethod
    def _scale(trail: _Trail, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        factor = next((x for x in args[:2] if x is not trail.scores), None)
        if kwargs or not isinstance(factor, (int, float)) or factor == 0 or name in _DIVIDE and factor is args[0]:
            return False
        factor = 1 / factor if name in _DIVIDE else float(factor)
        if trail.capped:
            first = trail.softcap == 0
            trail.softcap = factor
            trail.scale *= factor
            return first
        trail.scale *= factor
        return True
