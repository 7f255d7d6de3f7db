"""The heads of a model to record."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..errors import UsageError
from .calls import AttentionCall
from .geometry import Biases
from .split import Part


@dataclass(frozen=True)
class HeadChoice:
    """Top-k sets need all query heads of a KV head, so all of them are computed and the others are dropped later."""

    read: list[int] | None  # query heads that are computed; None: all
    kv: list[int] | None  # the KV heads that they read
    slots: list[int] | None  # the recorded ones among `read`

    @classmethod
    def of(cls, heads: list[int] | None, num_heads: int, num_kv_heads: int,
           recorded_kv: list[int] | None = None) -> HeadChoice:
        """recorded_kv: where layers have other KV heads, those of all layers, of which this one has a part."""
        if heads is None:
            return cls(None, None, None)
        if heads[-1] >= num_heads:
            raise UsageError(f"heads: expected 0 to {num_heads - 1}, got {heads[-1]}")
        group = num_heads // num_kv_heads
        kv = (sorted({head // group for head in heads}) if recorded_kv is None
              else [one for one in recorded_kv if one < num_kv_heads])
        read = [one * group + i for one in kv for i in range(group)]
        return cls(read, kv, [read.index(head) for head in heads])

    def restrict(self, call: AttentionCall, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Removes the other heads from the call, and from its keys and values [S, K, N, D]."""
        if self.read is None:
            return k, v
        call.q, call.out = call.q[:, self.read], None if call.out is None else call.out[:, self.read]
        return k[:, self.kv], v[:, self.kv]

    def biases(self, biases: Biases) -> Biases:
        """The biases of the computed heads."""
        if self.read is None:
            return biases
        return Biases(*(bias if bias is None or bias.shape[1] == 1 else bias[:, self.read]
                        for bias in (biases.external, biases.internal)))

    def kept(self, x: torch.Tensor) -> torch.Tensor:
        return x if self.slots is None else x[:, self.slots]

    def part(self, part: Part) -> Part:
        return part if self.slots is None else Part(self.kept(part.output), self.kept(part.lse))
