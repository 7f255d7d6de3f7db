"""Which heads may reuse attention: ``blockscope calibrate``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from . import _core
from ._arguments import Traces, whole
from ._paths import PathLike, encode_all, save, telling_missing
from ._progress import Progress, Shown
from .errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    import xarray as xr


class Calibration:
    """A calibration file (docs/reuse.schema.json).

    Attributes:
        text: the file, as ``blockscope calibrate`` writes it.
        content: the same as Python objects.
        warnings: what to know before using it, one sentence each.
    """

    def __init__(self, text: str, warnings: list[str]) -> None:
        self.text = text
        self.content: dict[str, Any] = json.loads(text)
        self.warnings = warnings

    @property
    def gamma(self) -> float | np.ndarray:
        """Heads with a similarity above this reuse: a number, or one for each step range."""
        import numpy as np

        gamma = self.content["gamma"]
        return np.array(gamma, dtype=np.float64) if isinstance(gamma, list) else float(gamma)

    @property
    def tau(self) -> int:
        """Heads reuse at steps before which fewer tokens of the block were counted."""
        return int(self.content["tau"])

    @property
    def step_ranges(self) -> list[tuple[int, int | None]] | None:
        """First and last step (from 1) of each range; the last range has no end. None: one mask for all steps."""
        ranges = self.content.get("step_ranges")
        return None if ranges is None else [(first, last) for first, last in ranges]

    @property
    def reuse(self) -> np.ndarray:
        """Heads that reuse: bool [layer, head] for the whole model; [step range, layer, head] if there are ranges."""
        import numpy as np

        return np.array(self.content["reuse"], dtype=bool)

    @property
    def heads(self) -> xr.Dataset:
        """Values per head, [layer, head] or [step range, layer, head]: `reuse`, and of the cosine of A_out and its
        reference the mean `similarity`, `standard_deviation`, `standard_error`, 5th percentile `p5` and `count` of
        step pairs; with a bound also `lse_drift`. NaN for a head that was not recorded. Step ranges are named by
        their first steps."""
        import numpy as np
        import xarray as xr

        ranges = self.step_ranges
        dims = ("layer", "head") if ranges is None else ("step_range", "layer", "head")
        found: dict[str, Any] = {"reuse": (dims, self.reuse)}
        for name in ("similarity", "standard_deviation", "standard_error", "p5", "lse_drift"):
            if name in self.content:
                found[name] = (dims, np.array(self.content[name], dtype=np.float64))
        found["count"] = (dims, np.array(self.content["count"], dtype=np.int64))
        layers, heads = self.reuse.shape[-2:]
        coords: dict[str, Any] = {"layer": range(layers), "head": range(heads)}
        if ranges is not None:
            coords["step_range"] = [first for first, _ in ranges]
        return xr.Dataset(found, coords=coords)

    @property
    def predicted(self) -> dict[str, Any]:
        """Predicted savings and errors of the choice, over the denoising steps of the traces."""
        return dict(self.content["predictions"]["chosen"])

    def save(self, path: PathLike, *, force: bool = False) -> None:
        """Writes the file. Replaces an existing one only with `force`."""
        save(path, self.text, force)

    def __repr__(self) -> str:
        return (f"<blockscope.Calibration: {int(self.reuse.sum())} of {self.reuse.size} heads reuse, "
                f"gamma {self.content['gamma']}, tau {self.tau}>")


def calibrate(
    traces: Traces,
    *,
    gamma: float | None = None,
    saving: float | None = None,
    max_error: float | None = None,
    tau: int = 2,
    count: str = "since_read",
    granularity: str = "head",
    reference: str = "adjacent",
    lse_bound: float | None = None,
    by_step: bool | str = False,
    provisional: bool = False,
    from_summary: bool = False,
    threads: int = 0,
    progress: Progress = None,
) -> Calibration:
    """Chooses the heads that may reuse external attention, from traces of one model with exact values.

    Give exactly one of these:
        gamma: heads with a similarity above it reuse; -1 to 1.
        saving: the largest gamma that saves this share of the prefix bytes, 0 to 1.
        max_error: the smallest gamma that keeps the error where reused (relative L2 of the attention output)
            within this.

    Args:
        tau: heads reuse at steps before which fewer tokens than this were decided.
        count: the tokens that tau counts, as in `analyze`.
        granularity: "head", or "kv-group" (all heads of a KV head reuse, or none).
        reference: the pair that a step is compared with: "adjacent" (of the step before), or "kept" (the kept pair,
            which the rule of `tau` and `count` would reuse at this step).
        lse_bound: heads whose mean change of L_out is larger never reuse.
        by_step: choose heads for each denoising step of a block (True), or for ranges such as "2-4,5-8".
        provisional: with reference "kept" and `gamma`, refresh each head's kept pair at the steps whose own cosine
            and change of L_out say so, as FlashBlock's video code does. `tau` and `count` then don't matter for it.
        from_summary, threads, progress: as in `analyze`.

    Raises:
        UsageError: not exactly one choice, or a choice out of reach (the message has the possible values).
        TraceError: traces without exact values or without the checkpoint's digest.
    """
    if granularity not in ("head", "kv-group"):
        raise UsageError(f"granularity: expected head or kv-group, got {granularity!r}")
    if sum(choice is not None for choice in (gamma, saving, max_error)) != 1:
        raise UsageError("expected exactly one of gamma, saving, max_error")
    if reference not in ("adjacent", "kept"):
        raise UsageError(f"reference: expected adjacent or kept, got {reference!r}")
    if provisional and (reference != "kept" or gamma is None):
        raise UsageError("provisional: expected reference 'kept' and a gamma, because the provisional masks need "
                         "them while the traces are read")
    steps = by_step if isinstance(by_step, str) else "" if by_step else None
    paths = encode_all(traces)
    with telling_missing(paths), Shown(progress) as shown:
        text, warnings = _core.calibrate(paths, gamma, saving, max_error, whole("tau", tau, 1), granularity,
                                         bool(from_summary), count, reference, lse_bound, steps,
                                         bool(provisional), whole("threads", threads, 0, 4096), shown)
    return Calibration(text.decode("utf-8", errors="replace"), warnings)
