"""How much of the prefix an applied policy reads, counted as the runtime does (probe/verify/external_reads.h). A key
row is one external key with its value, of one KV head at one layer."""

from __future__ import annotations

from typing import Any

import torch

from .policy import Parts


class Reads:
    """Sums over denoising steps and sequences."""

    def __init__(self) -> None:
        self._rows: dict[int, torch.Tensor] = {}  # by layer: [K]
        self._read: dict[int, torch.Tensor] = {}  # where the model runs, so that no step waits for a device
        self._products: dict[int, torch.Tensor] = {}  # by layer: [H]
        self._skipped: dict[int, torch.Tensor] = {}
        self.commit_rows = 0
        self.choice_rows = 0

    def add(self, layer: int, parts: Parts, keys: int, kv_heads: int) -> None:
        """A layer of a denoising pass over `keys` external keys."""
        sequences, heads, block = parts.external.shape[:3]
        exact = torch.full((sequences, kv_heads), keys, dtype=torch.int64)
        read = exact if parts.keys_read is None else parts.keys_read.long()
        _add(self._rows, layer, exact.sum(0))
        _add(self._read, layer, read.sum(0))
        skipped = (keys - read).repeat_interleave(heads // kv_heads, 1) * block
        if parts.reused is not None:
            refreshed = torch.zeros(sequences) if parts.refreshed is None else parts.refreshed.sum(1)
            kept = keys * (block - refreshed.long()).unsqueeze(1).expand(-1, heads)
            skipped = torch.where(parts.reused.to(skipped.device), kept.to(skipped.device), skipped)
        _add(self._products, layer, torch.full((heads,), keys * block * sequences, dtype=torch.int64))
        _add(self._skipped, layer, skipped.sum(0))
        self.choice_rows += sum(parts.rows_scored or []) * kv_heads

    def include(self, other: Reads) -> None:
        for mine, theirs in ((self._rows, other._rows), (self._read, other._read), (self._products, other._products),
                             (self._skipped, other._skipped)):
            for layer, values in theirs.items():
                _add(mine, layer, values)
        self.commit_rows += other.commit_rows
        self.choice_rows += other.choice_rows

    def summary(self) -> dict[str, Any]:
        rows, read, products, skipped = ([one.tolist() for _, one in sorted(of.items())] for of in (
            self._rows, self._read, self._products, self._skipped))
        key_rows, key_rows_read = (sum(map(sum, of)) for of in (rows, read))
        saved, whole = key_rows - key_rows_read, max(key_rows, 1)
        return {
            "saving": saved / whole, "saving_with_commits": saved / max(key_rows + self.commit_rows, 1),
            "saving_with_choice": saved / whole - 0.5 * self.choice_rows / whole, "key_rows": key_rows,
            "key_rows_read": key_rows_read, "commit_key_rows": self.commit_rows, "choice_rows": self.choice_rows,
            "products": sum(map(sum, products)), "products_skipped": sum(map(sum, skipped)),
            "key_rows_by_kv_head": rows, "key_rows_read_by_kv_head": read}


def _add(to: dict[int, torch.Tensor], layer: int, values: torch.Tensor) -> None:
    to[layer] = to[layer] + values.to(to[layer].device) if layer in to else values.clone()
