"""Level ``full``: the keys and values that a pass stored, as /prefix of the format holds them."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import UsageError
from .settings import Settings
from .steps import Kind, Pass


@dataclass
class StoredKeys:
    """Of one sequence: what its rows stored so far."""

    end: int = 0  # positions [0, end) are stored; not counted in a canvas, whose positions are stored again

    def take(self, one: Pass, settings: Settings, bidirectional: bool) -> tuple[int, int]:
        """Positions [first, end) that this pass's row stores."""
        stop = one.start + one.length
        if bidirectional:
            # Later rows take the block's own keys from their own pass.
            outside = one.kind is not Kind.DENOISE or one.length > settings.block_length
            return (one.start, stop) if outside else (one.start, one.start)
        if one.kind is Kind.DENOISE:
            if one.context_length > self.end:
                raise UsageError(
                    f"level full: the pass over block {one.block} reads the keys of positions {self.end} to "
                    f"{one.context_length - 1}, which no pass before it stored: a loop without a cache, or one that "
                    "stores keys while it denoises. HINT: record(..., level=\"outputs\")")
            stop = one.block_start + 1 if settings.autoregressive else self.end
        first = max(self.end, one.start)
        if first > self.end:
            raise UsageError(f"level full: the pass stores keys from position {first}, and those from {self.end} on "
                             "were never stored. HINT: record(..., level=\"outputs\")")
        self.end = max(self.end, stop)
        return first, max(first, stop)
