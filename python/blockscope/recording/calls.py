"""What is seen of an attention call, whichever function it was."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


@dataclass
class AttentionCall:
    """One call, in one layout. Nothing is copied."""

    function: str
    q: torch.Tensor  # [S, H, T, D]
    k: torch.Tensor  # [S, K, N, D]
    v: torch.Tensor  # [S, K, N, D]
    mask: Any  # [S or 1, H or 1, T or 1, N], a tensor or flex.LazyMask: True where seen, or added to the scores
    causal: str  # "" , "top" or "bottom": which corner the triangle is aligned to
    window: tuple[int, int]  # keys before and behind a query that it sees, -1: all
    scale: float
    softcap: float
    dropout: float
    out: torch.Tensor | None  # [S, H, T, D]; None: not computed yet
    score_mod: Any = None  # flex.ScoreMod: what becomes of the scaled scores before the mask


Maker = Callable[[Any, Any, tuple[Any, ...], dict[str, Any]], AttentionCall]  # function, result, args, kwargs


def scale_of(q: torch.Tensor, scale: float | None) -> float:
    return float(scale) if scale is not None else q.shape[-1] ** -0.5
