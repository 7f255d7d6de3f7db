"""The places of a block's queries and keys in an attention call."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from ..errors import UsageError
from .calls import AttentionCall
from .caches import layer_rows, selected_rows
from .continuous import external_positions
from .steps import Pass, PassInput, Sequence
from .video import Video


@dataclass(frozen=True)
class KeyRanges:
    """Key indices [begin, end) of a call."""

    external: list[tuple[int, int]]
    internal: tuple[int, int]
    hidden: list[tuple[int, int]]  # that no query of the block may see
    offset: int  # position of key 0
    positions: list[tuple[int, int]] | None = None  # [begin, end) of the external keys; None: by offset

    @property
    def num_external(self) -> int:
        return sum(end - begin for begin, end in self.external)

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

    @property
    def any(self) -> bool:
        return self.external is not None or self.internal is not None

    def plus(self, more: torch.Tensor, ranges: KeyRanges) -> Biases:
        """With more [S, H, B, N] of a call's keys added."""
        parts = (self.external, ranges.of(more, -1)), (self.internal, ranges.inside(more, -1))
        return Biases(*(part if old is None else old + part for old, part in parts))


@dataclass(frozen=True)
class BlockRows:
    """The places of the block's rows in a tensor."""

    first: int  # in a row from here on, where index is None
    count: int  # B
    index: torch.Tensor | None = None  # [S, B]
    there: torch.Tensor | None = None  # [S, B]; None: all are

    def of(self, x: torch.Tensor, dim: int) -> torch.Tensor:
        """x with the block's rows along dim; missing rows hold the values of any other row."""
        if self.index is None:
            return x.narrow(dim, self.first, self.count)
        sequence = torch.arange(len(self.index), device=x.device).unsqueeze(-1)
        return x.expand(len(self.index), *x.shape[1:]).movedim(dim, 1)[sequence, self.index].movedim(1, dim)

    def blank(self, x: torch.Tensor, dim: int) -> torch.Tensor:
        """x [S, ...] with NaN along dim for missing rows."""
        if self.there is None:
            return x
        shape = [1] * x.dim()
        shape[0], shape[dim] = self.there.shape
        return x.masked_fill(~self.there.view(shape), math.nan)


@dataclass(frozen=True)
class Geometry:
    given: PassInput
    rows: int  # B
    length: int  # T
    end: int  # position after the pass's last one
    block_start: int
    canvas: int | None  # of a bidirectional model
    video: Video | None = None  # of a continuous model

    @classmethod
    def of(cls, given: PassInput, one: Pass, sequence: Sequence) -> Geometry:
        canvas = sequence.canvas if sequence.bidirectional else None
        settings = sequence.settings
        return cls(given, settings.block_length, given.length, given.end, one.block_start, canvas, settings.video)

    def positions(self, count: int) -> list[list[int]] | None:
        """[S, count] of the rows of a tensor; None: in a row from the pass's first position on."""
        given = self.given
        selected = selected_rows(given.cache)
        if given.computed is not None and len(given.computed[0]) == count:
            return given.computed
        if selected is not None and len(selected[0]) == count:
            return [[given.start + row for row in rows] for rows in selected]
        if count == given.length and given.computed is None and selected is None:
            return given.positions
        if self.video is not None:
            raise UsageError(f"attends with {count} queries, expected those of a block of {given.length}. HINT: "
                             "record(..., block_length=...) with the tokens of a block")
        by_layer = layer_rows(given.cache)
        if by_layer is not None and len(by_layer.query[0]) == count:
            return [[given.start + row for row in rows] for rows in by_layer.query]
        raise UsageError(
            f"attends with {count} queries in a pass over {given.length} positions, and the loop's cache doesn't tell "
            "which. HINT: state them with run.step(positions=...) before the pass")

    def block_rows(self, count: int, device: torch.device) -> BlockRows:
        """The block's rows in a tensor with `count` rows of the pass."""
        positions = self.positions(count)
        if positions is None:
            first = self.block_start - self.given.start
            if 0 <= first <= count - self.rows:
                return BlockRows(first, self.rows)
            positions = [list(range(self.given.start, self.given.start + count))] * len(self.given.ids)
        index = torch.zeros(len(positions), self.rows, dtype=torch.long)
        there = torch.zeros(len(positions), self.rows, dtype=torch.bool)
        for slot, row in enumerate(positions):
            for i, position in enumerate(row):
                if self.block_start <= position < self.block_start + self.rows:
                    index[slot, position - self.block_start] = i
                    there[slot, position - self.block_start] = True
        return BlockRows(0, self.rows, index.to(device), None if bool(there.all()) else there.to(device))

    def key_ranges(self, keys: int) -> KeyRanges:
        block, size = self.block_start, self.rows
        if self.video is not None:  # the block's own keys are the last ones
            outside = keys - size
            return KeyRanges([(0, outside)], (outside, keys), [], 0,
                             external_positions(self.given, outside, block, self.video))
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

    def biases(self, call: AttentionCall, ranges: KeyRanges, rows: BlockRows) -> Biases:
        """The part of the call's mask for the block's rows."""
        keys = call.k.shape[2]
        if call.mask is None and not call.causal and call.window == (-1, -1):
            if ranges.hidden:
                self._refuse_behind(sum(end - begin for begin, end in ranges.hidden))
            return Biases(None, None)
        bias = self._bias(call, keys, rows)
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
            f"the block at position {self.block_start} sees {count} keys after it, so its attention isn't "
            "block-causal. HINT: record(..., bidirectional=True) if every position sees the whole canvas")

    def _bias(self, call: AttentionCall, keys: int, rows: BlockRows) -> torch.Tensor:
        """[S or 1, H or 1, B or 1, N] float32: 0 where seen, -inf where not, else what is added."""
        device, count = call.q.device, call.q.shape[2]
        bias = torch.zeros(1, 1, 1, keys, device=device)
        if call.mask is not None:
            mask = call.mask
            if mask.shape[-2] not in (1, count) or mask.shape[-1] < keys:
                raise UsageError(f"{call.function}: a mask of shape {list(mask.shape)} for {count} queries and "
                                 f"{keys} keys")
            # Also for a single row, because it computes flex attention's mask.
            mask = (rows.of(mask, 2) if mask.shape[-2] == count else mask)[..., :keys]
            if mask.dtype == torch.bool:
                bias = torch.zeros(mask.shape, device=device).masked_fill_(~mask, -math.inf)
            else:
                lowest = torch.finfo(mask.dtype).min / 2  # what libraries write for -inf
                bias = mask.float().masked_fill(mask <= lowest, -math.inf)
        if not call.causal and call.window == (-1, -1):
            return bias
        if rows.index is not None:
            raise UsageError(f"{call.function}: causal, or with a window, over rows that don't stand in a row")
        row = torch.arange(rows.first, rows.first + rows.count, device=device).unsqueeze(-1)
        key = torch.arange(keys, device=device)
        aligned = row + (0 if call.causal == "top" else keys - count)
        left, right = call.window
        if call.causal:
            right = 0
        if right >= 0:
            bias = bias.masked_fill(key > aligned + right, -math.inf)
        if left >= 0:
            bias = bias.masked_fill(key < aligned - left, -math.inf)
        return bias
