"""Values of another trace that take the place of a model's own at the same step. Lookups and refusals are the
runtime's."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from .. import _core

if TYPE_CHECKING:  # pragma: no cover
    from .shapes import LayerShape
    from .steps import Pass, Sequence


@dataclass(frozen=True)
class ModelSizes:
    """The sizes that the other trace's model must have, too. hidden_size, heads: -1 if unknown. shape: None while no
    attention was seen."""

    num_layers: int
    hidden_size: int
    shape: LayerShape | None
    heads: int = -1  # where the shape isn't known

    def numbers(self) -> list[int]:
        shape = self.shape
        of_heads = [self.heads, -1, -1] if shape is None else [shape.heads, shape.kv_heads, shape.channels]
        return [self.num_layers, *of_heads, self.hidden_size]


class PatchSource:
    def __init__(self, path: bytes, sizes: ModelSizes, needed: tuple[str, ...], numbers: Numbers) -> None:
        self._sizes, self._numbers = sizes, numbers
        self._trace = _core.StepSource(path, sizes.numbers(), list(needed))

    def close(self) -> None:
        self._trace.close()

    def check(self, sizes: ModelSizes) -> None:
        """Refuses the trace of another model, as far as sizes are known."""
        if sizes != self._sizes:
            self._trace.check_model(sizes.numbers())
            self._sizes = sizes

    def of_heads(self, path: str, sequence: Sequence, one: Pass, layer: int, heads: list[int]) -> torch.Tensor:
        """Values of a dataset for these heads of the model, float32, in a row."""
        step = [self._numbers.of(sequence), one.block_start, len(one.masked), one.step]
        found = self._trace.values(path, sequence.prompt, step, layer, heads)
        return torch.frombuffer(found, dtype=torch.float32)

    def hidden(self, sequence: Sequence, one: Pass, layer: int) -> torch.Tensor:
        """The input of a layer, [B, hidden_size] float32."""
        return self.of_heads("/hidden/hidden", sequence, one, layer, []).view(len(one.masked), -1)


class Numbers:
    """Numbers sequences in the order in which they are first asked for."""

    def __init__(self) -> None:
        self._known: weakref.WeakKeyDictionary[Sequence, int] = weakref.WeakKeyDictionary()
        self._next = 0

    def of(self, sequence: Sequence) -> int:
        if sequence not in self._known:
            self._known[sequence], self._next = self._next, self._next + 1
        return self._known[sequence]
