"""Queries and keys of a ragged batch: the rows of several requests one after the other, and keys in pages."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from ..errors import UsageError
from .requests import RequestPass

FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
Keys = tuple[RequestPass, slice, torch.Tensor, torch.Tensor]


@dataclass
class RaggedPass:
    """A running pass."""

    parts: list[RequestPass] = field(default_factory=list)
    rows: list[slice] = field(default_factory=list)  # of each request among the tokens
    pages: list[torch.Tensor] | None = None  # [P] of each request, in order of position
    own_ns: int = 0  # of the recorder itself
    attention: set[int] = field(default_factory=set)  # layers that were stated
    hidden: set[int] = field(default_factory=set)
    logits: list[torch.Tensor] | None = None  # [R, V] of each request
    _used: dict[Any, torch.Tensor] = field(default_factory=dict)  # pages in use that were checked, by cache and request

    def __str__(self) -> str:
        names = ", ".join(repr(part.request.name) for part in self.parts[:4])
        return f"the pass over requests {names}{', ...' if len(self.parts) > 4 else ''}"

    @property
    def tokens(self) -> int:
        return self.rows[-1].stop if self.rows else 0

    def keys(self, where: str, k: Any, v: Any, cache: Any, kv_heads: int | None,
             wanted: list[RequestPass]) -> list[Keys]:
        """Each of the wanted requests, its tokens' rows, and keys and values [1, K, N, D] of all positions that it
        reads. These are copies, because an engine writes over its buffers. k, v, cache: as run.attention() gets them.
        kv_heads: None if it isn't known."""
        if cache is not None and (not isinstance(cache, (tuple, list)) or len(cache) != 2 or self.pages is None):
            raise UsageError(f"{where}: cache: expected (keys, values), and the requests' pages in "
                             "run.batch(..., pages=...)")
        if (k is None) != (v is None) or (k is None and cache is None):
            raise UsageError(f"{where}: expected k and v, cache=, or all three")
        counts = [part.keys if cache is None else part.running.given.length for part in self.parts]
        for name, x in (("k", k), ("v", v)):
            if x is not None:
                check_rows(f"{where}: {name}", x, sum(counts), "K, D")
        for name, x, own in zip(("keys", "values"), cache or (), (k, v)):
            _check_cache(f"{where}: cache: {name}", x, kv_heads if own is None else own.shape[1])
        found, first = [], 0
        for slot, (part, count) in enumerate(zip(self.parts, counts)):
            if part in wanted:
                pair = []
                for own, stored in zip((k, v), cache or (None, None)):
                    rows = [] if own is None else [own[first:first + count]]
                    if stored is not None:
                        rows = self._around(f"{where}: {part.request}", slot, stored, rows)
                    pair.append(torch.cat(rows).transpose(0, 1).unsqueeze(0))
                found.append((part, self.rows[slot], *pair))
            first += count
        return found

    def _around(self, where: str, slot: int, stored: torch.Tensor, own: list[torch.Tensor]) -> list[torch.Tensor]:
        """The stored rows, and in place of those that the pass computes, its own if they are given."""
        part = self.parts[slot]
        given, count = part.running.given, part.keys
        if not own:
            return [self._stored(where, slot, stored, count)]
        # The engine may not have stored its own keys yet, so their page may not be there either.
        before = self._stored(where, slot, stored, given.start if count == given.end else count)
        return [before[:given.start], *own, before[given.end:]]

    def _stored(self, where: str, slot: int, cache: torch.Tensor, count: int) -> torch.Tensor:
        """[count, K, D] of positions 0 to count - 1."""
        size = cache.shape[1] if cache.dim() == 4 else 1
        used = -(-count // size)
        key = slot, used, cache.shape[0], cache.device
        if key not in self._used:
            self._used[key] = self._checked(f"{where}: pages: for {count} keys in pages of {size}", slot, used, cache)
        rows = cache[self._used[key]]
        return (rows.flatten(0, 1) if cache.dim() == 4 else rows)[:count]

    def _checked(self, where: str, slot: int, used: int, cache: torch.Tensor) -> torch.Tensor:
        pages = self.pages[slot]
        if pages.numel() < used:
            raise UsageError(f"{where} expected {used} pages, got {pages.numel()}. HINT: list all pages from position "
                             "0 on, also those that requests share")
        pages = pages[:used].to(cache.device, torch.long)
        if used > 0:
            least, most = (int(x) for x in pages.aminmax())
            if least < 0 or most >= cache.shape[0]:
                raise UsageError(f"{where} expected numbers from 0 to {cache.shape[0] - 1}, the cache's pages, got "
                                 f"{least if least < 0 else most}. HINT: pages are those of this cache, not slots of "
                                 "single keys")
        return pages


def read_pages(pages: Any, requests: int) -> list[torch.Tensor] | None:
    """The argument of run.batch(): for each request [P], or [S, P]."""
    if pages is None:
        return None
    if isinstance(pages, (str, bytes)) or not hasattr(pages, "__len__") or len(pages) != requests:
        found = len(pages) if hasattr(pages, "__len__") else type(pages).__name__
        raise UsageError(f"run.batch: pages: expected one list for each of {requests} requests, got {found}. HINT: "
                         "FlashInfer's are paged_kv_indices.tensor_split(paged_kv_indptr[1:-1].cpu())")
    rows = [torch.as_tensor(row) for row in pages]
    if any(row.dim() != 1 or row.numel() > 0 and (row.is_floating_point() or row.dtype == torch.bool) for row in rows):
        raise UsageError("run.batch: pages: expected whole numbers [P] for each request")
    return rows


def check_rows(where: str, x: Any, rows: int, others: str) -> None:
    """Raises an error if x isn't a tensor of floats [rows, others]."""
    if isinstance(x, torch.Tensor) and x.dim() == 2 + others.count(",") and len(x) == rows and x.dtype in FLOATS:
        return
    found = f"{x.dtype} {list(x.shape)}" if isinstance(x, torch.Tensor) else type(x).__name__
    raise UsageError(f"{where}: expected floats [{rows}, {others}], got {found}")


def _check_cache(where: str, x: Any, kv_heads: int | None) -> None:
    if not isinstance(x, torch.Tensor) or x.dim() not in (3, 4) or kv_heads not in (None, x.shape[-2]):
        found = list(x.shape) if isinstance(x, torch.Tensor) else type(x).__name__
        heads = "K" if kv_heads is None else kv_heads
        raise UsageError(f"{where}: expected [pages, page_size, {heads}, D] or [slots, {heads}, D], got {found}. HINT: "
                         "FlashInfer's layout HND needs .transpose(1, 2)")
    if x.dtype not in FLOATS:
        raise UsageError(f"{where}: expected floats of 16 bits or more, got {x.dtype}: quantised keys aren't recorded. "
                         "HINT: run the engine with kv_cache_dtype=\"auto\", or record level=\"trajectory\"")
