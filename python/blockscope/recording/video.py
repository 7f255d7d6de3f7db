"""What a recording knows in advance of a continuous model: one that is called with a latent and a timestep, and without
token ids, as video models are. Its block is a chunk of frames."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .._arguments import whole, whole_number, whole_numbers
from ..errors import UsageError
from .compiled import uncompiled
from .settings import config_value

TOKENS = ("input_ids", "decoder_input_ids", "tokens", "idx")
TIMESTEPS = ("timestep", "timesteps", "t", "sigma")
STARTS = ("current_start",)  # in tokens
START_FRAMES = ("start_frame", "frame")
MOST_ROWS = 64  # of each block, if the caller doesn't say


@dataclass(frozen=True)
class Video:
    rows: list[int]  # of a block whose arrays are recorded, rising
    tokens_per_frame: int | None = None
    sinks: int | None = None  # keys from position 0 on that a rolling cache keeps; None: not stated
    context_noise: float = 0.0  # timestep of the pass that writes a finished block's keys
    pair_steps: int = 8  # earlier steps of a block that each step is compared with

    def is_clean(self, timestep: float) -> bool:
        return timestep in (0.0, self.context_noise)


def _signature(model: Any) -> inspect.Signature | None:
    """The arguments of a forward pass. A forward that hands on all it is given (``forward(*args, **kwargs)``) has those
    of the model's ``_forward_inference``, as in Wan and LongLive."""
    model = uncompiled(model)
    try:
        found = inspect.signature(model.forward)
        kinds = {parameter.kind for parameter in found.parameters.values()}
        if kinds == {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}:
            found = inspect.signature(getattr(model, "_forward_inference", model.forward))
    except (TypeError, ValueError):  # not Python's
        return None
    return found


def signature_of(model: Any) -> inspect.Signature:
    """The same, of a model that takes a timestep."""
    found = _signature(model)
    assert found is not None
    return found


def takes_timestep(model: Any) -> bool:
    found = _signature(model)
    names = set() if found is None else set(found.parameters)
    return names.isdisjoint(TOKENS) and not names.isdisjoint(TIMESTEPS)


def rows_of(rows: Iterable[int] | int | None, block_length: int) -> list[int]:
    """The rows that are recorded: those given, or as many evenly spaced ones."""
    count = min(MOST_ROWS, block_length) if rows is None else whole_number(rows)
    if count is not None:
        if not 1 <= count <= block_length:
            raise UsageError(f"rows: expected 1 to block_length = {block_length} of them, got {rows!r}")
        return [i * block_length // count for i in range(count)]
    found = whole_numbers(rows)
    if not found or min(found) < 0 or max(found) >= block_length:
        raise UsageError(f"rows: expected a number of rows, or at least one row of a block from 0 to "
                         f"{block_length - 1}, got {rows!r}")
    return sorted(set(found))


def video_of(model: Any, tokenizer: Any, mask_token_id: int | None, block_length: Any, rows: Any, tokens_per_frame: Any,
             sinks: Any, context_noise: float, pair_steps: Any, refused: Mapping[str, Any]) -> Video | None:
    """What record() was told of a continuous model; None: a model of tokens. refused: arguments that a recording of a
    continuous model can't have, None where they weren't given."""
    given = {"rows": rows, "tokens_per_frame": tokens_per_frame, "sinks": sinks}
    masked = mask_token_id is not None or config_value(model, "mask_token_id") is not None or getattr(
        tokenizer, "mask_token_id", None) is not None
    if masked or not takes_timestep(model):
        for name, value in given.items():
            if value is not None:
                raise UsageError(f"{name}: is for a continuous model, and {type(model).__name__} "
                                 f"{'has a mask token' if masked else 'takes no timestep'}. HINT: leave it out")
        return None
    for name, value in refused.items():
        if value is not None:
            raise UsageError(f"{name}: {value!r} isn't possible with {type(model).__name__}, a continuous model (it "
                             "takes a timestep). HINT: leave it out; a model of tokens needs mask_token_id=...")
    if block_length is None:
        raise UsageError(f"block_length: missing. HINT: {type(model).__name__} takes a timestep, so it is continuous; "
                         "pass the tokens of the chunk that its loop denoises together (frames x tokens of a frame)")
    if not math.isfinite(context_noise):
        raise UsageError(f"context_noise: expected a number, got {context_noise!r}")
    size = whole("block_length", block_length, 1)
    frame = None if tokens_per_frame is None else whole("tokens_per_frame", tokens_per_frame, 1)
    if frame is not None and size % frame != 0:
        raise UsageError(f"tokens_per_frame: expected a divisor of block_length = {size}, got {frame}. HINT: a block "
                         "is a chunk of whole frames")
    return Video(rows_of(rows, size), frame, None if sinks is None else whole("sinks", sinks, 0), float(context_noise),
                 whole("pair_steps", pair_steps, 1, 1024))
