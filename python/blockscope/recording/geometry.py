"""Where a block's queries and keys stand among those of an attention call."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from ..errors import UsageError
from .attention import AttentionCall
from .steps import Pass, PassInput, Sequence


@dataclass(frozen=True)
class KeyRanges:
    """Key indices [begin, end) of a call."""

    external: list[tuple[int, int]]
    internal: tuple[int, int]
    hidden: list[tuple[int, int]]  # that no query of the block may see
    offset: int  # position of key 0

    def of(self, x: torch.Tensor, dim: int) -> torch.Tensor:
        """The external part of x along dim."""
        parts = [x.narrow(dim, begin, end - begin) for begin, end in self.external]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim)

    def inside(self, x: torch.Tensor, dim: int) -> torch.Tensor:
        return x.narrow(dim, self.internal[0], self.internal[1] - self.internal[0])


@dataclass
class Biases:
    external: torch.Tensor | None  # float32, added to the scores; None: every key is seen
    internal: torch.Tensor | None

    def plus(self, more: torch.Tensor, ranges: KeyRanges) -> Biases:
        """With more [S, H, B, N] of a call's keys added."""
        parts = (self.external, ranges.of(more, -1)), (self.internal, ranges.inside(more, -1))
        return Biases(*(part if old is None else old + part for old, part in parts))


@dataclass(frozen=True)
class Geometry:
    first: int  # the block's first row among the pass's
    rows: int  # B
    length: int  # T
    end: int  # position behind the pass's last
    block_start: int
    canvas: int | None  # of a bidirectional model

    @classmethod
    def of(cls, given: PassInput, one: Pass, sequence: Sequence) -> Geometry:
        size = sequence.settings.block_length
        canvas = sequence.canvas if sequence.bidirectional else None
        return cls(one.block_start - given.start, size, given.length, given.start + given.length, one.block_start,
                   canvas)

    def key_ranges(self, keys: int) -> KeyRanges:
        block, size = self.block_start, self.rows
        if self.canvas is not None:
            if keys != self.canvas:
                raise UsageError(
                    f"the block at position {block} sees {keys} keys, expected the {self.canvas} of the canvas. HINT: "
                    "a loop whose cache isn't in order of position states it with run.step(start=...)")
            return KeyRanges([(0, block), (block + size, keys)], (block, block + size), [], 0)
        offset = max(self.end - keys, 0)  # a sliding window's cache has dropped the first ones
        begin = block - offset
        if begin < 0:
            raise UsageError(f"the block at position {block} of a pass up to {self.end} sees only {keys} keys, not all "
                             "of its own. HINT: the loop's cache isn't in order of position")
        hidden = [(begin + size, keys)] if begin + size < keys else []
        return KeyRanges([(0, begin)], (begin, begin + size), hidden, offset)

    def biases(self, call: AttentionCall, ranges: KeyRanges) -> Biases:
        """What of the call's mask the block's rows see."""
        keys = call.k.shape[2]
        if call.mask is None and not call.causal and call.window == (-1, -1):
            if ranges.hidden:
                self._refuse_behind(sum(end - begin for begin, end in ranges.hidden))
            return Biases(None, None)
        bias = self._bias(call, keys)
        external, internal = ranges.of(bias, -1), ranges.inside(bias, -1)
        behind = [bias[..., begin:end] for begin, end in ranges.hidden]
        flags = torch.stack([(part != 0).any() if part.numel() else torch.zeros((), dtype=torch.bool,
                                                                                device=bias.device)
                             for part in (external, internal)] + [(part != -math.inf).any() for part in behind])
        biased_external, biased_internal, *seen = flags.tolist()
        if any(seen):
            self._refuse_behind(sum(end - begin for begin, end in ranges.hidden))
        return Biases(external if biased_external else None, internal if biased_internal else None)

    def _refuse_behind(self, count: int) -> None:
        raise UsageError(
            f"the block at position {self.block_start} sees {count} keys behind it, so its attention isn't "
            "block-causal. HINT: record(..., bidirectional=True) where every position sees the whole canvas")

    def _bias(self, call: AttentionCall, keys: int) -> torch.Tensor:
        """[S or 1, H or 1, B or 1, N] float32: 0 where seen, -inf where not, else what is added."""
        device = call.q.device
        bias = torch.zeros(1, 1, 1, keys, device=device)
        if call.mask is not None:
            mask = call.mask
            if mask.shape[-2] not in (1, self.length) or mask.shape[-1] < keys:
                raise UsageError(f"{call.function}: a mask of shape {list(mask.shape)} for {self.length} queries and "
                                 f"{keys} keys")
            if mask.shape[-2] == self.length:  # of one row too: flex attention's is computed by this
                mask = mask.narrow(2, self.first, self.rows)
            mask = mask[..., :keys]
            if mask.dtype == torch.bool:
                bias = torch.zeros(mask.shape, device=device).masked_fill_(~mask, -math.inf)
            else:
                lowest = torch.finfo(mask.dtype).min / 2  # what libraries write for -inf
                bias = mask.float().masked_fill(mask <= lowest, -math.inf)
        row = torch.arange(self.first, self.first + self.rows, device=device).unsqueeze(-1)
        key = torch.arange(keys, device=device)
        aligned = row + (0 if call.causal == "top" else keys - self.length)
        left, right = call.window
        if call.causal:
            right = 0
        if right >= 0:
            bias = bias.masked_fill(key > aligned + right, -math.inf)
        if left >= 0:
            bias = bias.masked_fill(key < aligned - left, -math.inf)
        return bias
