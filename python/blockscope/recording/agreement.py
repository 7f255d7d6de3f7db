"""Whether the parts of a layer's attention, merged, equal what the model got."""

from __future__ import annotations

import math

import torch

from ..errors import UsageError


def difference(merged: torch.Tensor, used: torch.Tensor) -> float:
    """The largest difference, as a part of the largest finite value that was used. Equal infinities agree, and so do
    two NaN. A NaN for a number is an infinite difference."""
    used = used.float()
    apart = (merged - used).abs().nan_to_num(math.inf, math.inf)
    apart = apart.masked_fill((merged == used) | merged.isnan() & used.isnan(), 0)
    largest = used.abs().masked_fill(~used.isfinite(), 0).max().clamp_min(1e-30)
    return (apart.max() / largest).item()


def require(found: float, dtype: torch.dtype, where: str) -> None:
    """found: the difference; dtype: of what the model got."""
    most = 2e-3 if dtype in (torch.float32, torch.float64) else 5e-2
    if not found <= most:
        raise UsageError(
            f"{where}: what its queries, keys and mask give differs from what the model got by {found:.2g} of its "
            "largest value: something else takes part (sinks, a bias, quantised keys) that isn't recorded")
