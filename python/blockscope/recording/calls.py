"""An attention call as the recorder sees it, for any function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ..errors import UsageError


@dataclass
class AttentionCall:
    """One call, in one layout. Nothing is copied."""

    function: str
    q: torch.Tensor  # [S, H, T, D]
    k: torch.Tensor  # [S, K, N, D]
    v: torch.Tensor  # [S, K, N, D]
    mask: Any  # [S or 1, H or 1, T or 1, N], a tensor or flex.LazyMask: True where seen, or added to the scores
    causal: str  # "" , "top" or "bottom": which corner the triangle is aligned to
    window: tuple[int, int]  # keys before and after a query that it sees; -1: all
    scale: float
    softcap: float
    dropout: float
    out: torch.Tensor | None  # [S, H, T, D]; None: not computed yet
    score_mod: Any = None  # flex.ScoreMod: changes the scaled scores before the mask
    confirm: Callable[[], tuple[torch.Tensor, torch.Tensor]] | None = None  # where out isn't seen: what these queries,
    # keys and values make of the layer's result, and the result
    stated: bool = False  # by run.attention


Maker = Callable[[Any, Any, tuple[Any, ...], dict[str, Any]], AttentionCall]  # function, result, args, kwargs


def scale_of(q: torch.Tensor, scale: float | None) -> float:
    return float(scale) if scale is not None else q.shape[-1] ** -0.5


def stated_call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, scale: float | None,
                sequences: int) -> AttentionCall:
    """The call stated with ``run.attention``. Raises UsageError if the shapes don't fit together."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, torch.Tensor) or x.dim() != 4 or x.shape[0] != sequences or not x.is_floating_point():
            found = f"{x.dtype} {list(x.shape)}" if isinstance(x, torch.Tensor) else type(x).__name__
            heads = "H, T" if name == "q" else "K, N"
            raise UsageError(f"run.attention: {name}: expected a float tensor [{sequences}, {heads}, D] of the pass's "
                             f"{sequences} sequences, got {found}")
    if k.shape[:3] != v.shape[:3] or k.shape[-1] != q.shape[-1] or k.shape[1] == 0 or q.shape[1] % k.shape[1] != 0:
        raise UsageError("run.attention: expected k and v of the same heads and keys, q and k of the same channels, "
                         f"and query heads that are a multiple of the KV heads; got q {list(q.shape)}, "
                         f"k {list(k.shape)}, v {list(v.shape)}")
    if mask is not None:
        wanted = (sequences, q.shape[1], q.shape[2], k.shape[2])
        if not isinstance(mask, torch.Tensor) or mask.dim() > 4 or not (
                mask.dtype == torch.bool or mask.is_floating_point()) or any(
                    size not in (1, whole) for size, whole in zip(mask.shape[::-1], wanted[::-1])):
            found = f"{mask.dtype} {list(mask.shape)}" if isinstance(mask, torch.Tensor) else type(mask).__name__
            raise UsageError("run.attention: mask: expected a tensor of bool or float that is broadcast to "
                             f"{list(wanted)}, got {found}")
        mask = mask[(None,) * (4 - mask.dim())]
        mask = mask.expand(*mask.shape[:3], k.shape[2])
    return AttentionCall("run.attention", q, k, v, mask, "", (-1, -1), scale_of(q, scale), 0.0, 0.0, None,
                         stated=True)
