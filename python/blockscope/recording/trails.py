"""The trail of spelled-out attention: what a tensor holds of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from .axes import Axes, Dims
from .operands import Mask, Operand, Sides

STAGES = {"scores": (0, "the product of queries and keys"), "largest": (0, "the largest score of a row"),
           "log of the sum": (0, "the logsumexp"), "exponentials": (1, "the exponential"), "sum": (1, "the sum"),
           "log of the weights": (2, "the log_softmax"), "weights": (2, "the softmax"),
           "not yet divided": (3, "the product with the values")}


@dataclass(frozen=True)
class Lost:
    """The end of a trail."""

    function: Any
    stage: int
    after: str
    why: str


@dataclass(frozen=True, eq=False)
class Trail:
    sides: Sides
    scale: float = 1.0
    softcap: float = 0.0
    capped: bool = False  # after tanh
    masks: tuple[Mask, ...] = ()
    shift: tuple[str, ...] | None = None  # the axes along which the scores were shifted by different numbers
    keys: tuple[str, ...] | None = None  # the axis of the softmax, once it is known
    dropout: float = 0.0
    values: Operand | None = None

    @property
    def axes(self) -> Axes:
        return self.sides.axes

    def over(self, held: tuple[str, ...]) -> Trail | None:
        """With a softmax along this axis, if it is the keys'."""
        axes = self.axes
        held = axes.leaves(held)
        if self.sides.of_keys(held) is None or set(held) & set(axes.leaves(self.shift or ())):
            return None
        if self.keys is not None and axes.leaves(self.keys) != held or self.capped and not self.softcap:
            return None
        return replace(self, keys=held)


@dataclass(frozen=True, eq=False)
class Node:
    kind: str  # of STAGES
    trail: Trail
    dims: Dims
    over: tuple[str, ...] = ()  # the axis that a sum went along; of what isn't divided yet, that of the channels
    exponentials: Trail | None = None  # what isn't divided yet is made of
