"""Infers the steps of a continuous model's loop (video.py): from the timestep, which falls from step to step, and from
the position of the block. It has the interface of model.Inputs, batch.Batch and steps.Sequence, without tokens."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from .._arguments import whole_number, whole_numbers
from ..errors import UsageError
from .batch import Batch
from .model import PAST, Inputs
from .settings import Settings
from .steps import STATE_IT, Change, Kind, Pass, PassInput, Statement
from .video import START_FRAMES, STARTS, TIMESTEPS, Video, signature_of

TWO_BRANCHES = ("if the loop calls the model once for each branch of classifier-free guidance, run.step(branch=0) and "
                "run.step(branch=1) before the calls record both, and run.paused() leaves one out")


class VideoInputs(Inputs):
    """A forward pass's latent, timestep and position."""

    def __init__(self, model: torch.nn.Module, settings: Settings) -> None:
        super().__init__(model, settings.batch_rows)
        self._settings, self._video, self._signature = settings, settings.video, signature_of(model)

    def read(self, args: tuple[Any, ...], kwargs: dict[str, Any], statement: Statement) -> PassInput:
        bound = self._bound(args, kwargs)
        batch = _sequences_of(bound)
        cache = next((bound[name] for name in PAST if bound.get(name) is not None), None)
        if self._rows is not None:
            self._check_rows(batch, cache)
        timestep = self._timestep(bound, statement, batch)
        start = self._start(bound, statement, batch)
        length = self._settings.block_length
        return PassInput(
            [range(length)] * (batch if self._rows is None else len(self._rows)), start, start, True, statement,
            placed=True, cache=cache, batch=batch, rows=self._rows, timestep=timestep)

    def _timestep(self, bound: dict[str, Any], statement: Statement, batch: int) -> float:
        if statement.timestep is not None:
            return statement.timestep
        name = next((name for name in TIMESTEPS if bound.get(name) is not None), None)
        if name is None:
            raise UsageError("the model was called without a timestep (looked for "
                             f"{', '.join(TIMESTEPS)}). {STATE_IT}: timestep=...")
        value = torch.as_tensor(bound[name]).detach()
        if self._rows is not None and value.dim() > 0 and len(value) == batch:
            value = value[self._rows]
        found = sorted(set(value.double().flatten().tolist()))
        if len(found) != 1 or not math.isfinite(found[0]):
            listed = ", ".join(f"{one:g}" for one in found[:4])
            raise UsageError(f"{name}: expected one timestep for all frames of the pass, got {listed or 'none'}. "
                             f"{STATE_IT}: timestep=...")
        return found[0]

    def _start(self, bound: dict[str, Any], statement: Statement, batch: int) -> int:
        if statement.start is not None:
            return statement.start
        there = [name for name in (*STARTS, *START_FRAMES) if bound.get(name) is not None]
        # Something else than a number, such as a picture, may have the name of a frame's index.
        told = [name for name in there if name in STARTS or whole_numbers(bound[name]) is not None]
        if told:
            number = self._position(told[0], bound[told[0]], batch)
            if told[0] in STARTS:
                return number
            if self._video.tokens_per_frame is None:
                raise UsageError(f"{told[0]}: the position of the block in tokens isn't known. HINT: "
                                 "record(..., tokens_per_frame=...)")
            return number * self._video.tokens_per_frame
        if self._settings.bidirectional:
            return 0  # one block is the whole video
        if there:
            self._position(there[0], bound[there[0]], batch)
        raise UsageError(
            "where the block stands can't be seen: the model was called without "
            f"{', '.join((*STARTS, *START_FRAMES))}. {STATE_IT}: start=...; if one block is the "
            "whole video, record(..., bidirectional=True)")

    def _position(self, name: str, value: Any, batch: int) -> int:
        numbers = whole_numbers(value) or []
        if self._rows is not None and len(numbers) == batch:
            numbers = [numbers[row] for row in self._rows]
        if len(set(numbers)) != 1 or numbers[0] < 0:
            found = ", ".join(map(str, numbers[:4])) or (
                f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}" if isinstance(value, torch.Tensor)
                else repr(value))
            raise UsageError(f"{name}: expected a whole number of at least 0, or one for each sequence and all equal, "
                             f"got {found}. {STATE_IT}: start=...")
        return numbers[0]


def _latents(bound: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The first tensor among the arguments, or list of tensors; those of a loop's own data come later."""
    for name, value in bound.items():
        if name in (*TIMESTEPS, *PAST):
            continue
        several = isinstance(value, (list, tuple)) and value and isinstance(value[0], torch.Tensor)
        if several or isinstance(value, torch.Tensor):
            yield name, value


def _sequences_of(bound: dict[str, Any]) -> int:
    """Number of sequences of the latent."""
    name, latent = next(_latents(bound), ("", None))
    first = latent[0] if isinstance(latent, (list, tuple)) else latent
    if first is None or not first.is_floating_point() or first.dim() < 2:
        found = "none" if first is None else f"{name} of {str(first.dtype).removeprefix('torch.')} {list(first.shape)}"
        raise UsageError(f"the model takes a timestep, and was called without a latent (a float tensor), got {found}. "
                         "HINT: a model of tokens needs record(..., mask_token_id=...)")
    return len(latent)


def require_batch(given: PassInput, sequences: int, where: str) -> None:
    """sequences: of an attention call, which show whether the latent's first dimension is the batch."""
    if sequences != given.batch:
        raise UsageError(f"{where}: attends with {sequences} sequences, expected {given.batch}, the latent's first "
                         "dimension. HINT: call the model with a latent that has the batch first, such as [1, "
                         "channels, frames, height, width], or with a list of latents")


class VideoSequence:
    """One video that a loop makes block by block."""

    bidirectional = False  # external keys come before the block, if there are any
    canvas = None
    prompt_length = gen_length = 0
    tokens: list[int] = []
    prompt: list[int] = []

    def __init__(self, settings: Settings, name: str = "") -> None:
        self.settings, self.name = settings, name
        self.origin: int | None = None  # where the first pass begins
        self.given_frames = False  # the first pass wrote those
        self.written: int | None = None  # where the last pass is, if it was taken for one that writes given frames
        self.block, self.block_start, self.step = -1, 0, 0
        self.timestep = math.inf  # of the last step
        self.clean = False  # the block's keys were written
        self.kept: dict[Any, Any] = {}  # what the recorder keeps from the block's earlier steps
        self._before = self._state()

    @property
    def begun(self) -> bool:
        return self.block >= 0

    def _state(self) -> tuple[Any, ...]:
        return (self.origin, self.given_frames, self.written, self.block, self.block_start, self.step, self.timestep,
                self.clean)

    def initial_length(self, one: Pass) -> int:
        return 0

    def continues(self, given: PassInput) -> bool:
        """A pass at the first one's position begins another video if its timestep rises, or if it writes given frames
        as the first one did."""
        if not self.begun or given.start != self.origin or given.statement.kind is not None:
            return True
        if given.start == self.block_start:
            return given.timestep <= self.timestep
        # It may write an old block's keys anew.
        return self._video.is_clean(given.timestep) and not self.given_frames

    @property
    def _video(self) -> Video:
        return self.settings.video

    def observe(self, given: PassInput) -> Pass:
        self._before = self._state()
        start, kind, own = given.start, given.statement.kind, self.begun and given.start == self.block_start
        clean = self._video.is_clean(given.timestep)
        if kind is None and clean and not own:
            kind = Kind.PREFILL  # it writes keys of frames that are given, or those of an old block anew
        if kind is None and start == self.written:
            self._ask_what_was_written(given)
        if kind is None and own:
            self._check_falls(given)
        if self.origin is None:
            self.origin, self.given_frames = start, kind is Kind.PREFILL
        self.written = start if kind is Kind.PREFILL and given.statement.kind is None else None
        if kind is Kind.PREFILL:
            return Pass(Kind.PREFILL, start, given.length, -1, start, 0, start)
        if not own:
            self._enter(given)
        self.step += 1
        self.timestep, self.clean = given.timestep, self.clean or clean
        nothing = [False] * len(self._video.rows)
        return Pass(kind or (Kind.COMMIT if clean else Kind.DENOISE), start, given.length, self.block, start, self.step,
                    start, 0, nothing, nothing)

    def _ask_what_was_written(self, given: PassInput) -> None:
        raise UsageError(
            f"the block at position {given.start} begins with timestep {given.timestep:g} after a clean pass there, "
            "which was either a step, as in a loop whose timestep rises, or wrote the keys of given frames. HINT: "
            "run.step(kind=\"denoise\") before each step and run.step(kind=\"commit\") before the pass that writes the "
            "block's keys; or run.step(kind=\"prefill\") before one that writes those of given frames")

    def _check_falls(self, given: PassInput) -> None:
        if given.timestep < self.timestep:
            return
        where = f"the block at position {self.block_start}"
        if given.timestep == self.timestep:
            raise UsageError(f"{where} has two passes with timestep {given.timestep:g}. HINT: {TWO_BRANCHES}; if the "
                             "second is another step, state it with run.step(kind=\"denoise\")")
        raise UsageError(f"{where} has a pass with timestep {given.timestep:g} after one with {self.timestep:g}, "
                         "expected a lower one. HINT: run.step(kind=\"denoise\") states that it is the block's next "
                         "step, run.begin_sequence() that another video begins; run.paused() leaves it out")

    def _enter(self, given: PassInput) -> None:
        size = self.settings.block_length
        if self.begun and given.start < self.block_start + size:
            raise UsageError(
                f"a block at position {given.start} after the one at {self.block_start}, expected "
                f"{self.block_start + size} or a later one. HINT: block_length = {size} must be the tokens of a block; "
                "run.begin_sequence() says that another video begins")
        self.block, self.block_start, self.step = self.block + 1, given.start, 0
        self.timestep, self.clean = math.inf, False
        self.kept.clear()

    def retract(self, one: Pass) -> None:
        """Takes back a pass that did not end."""
        (self.origin, self.given_frames, self.written, self.block, self.block_start, self.step, self.timestep,
         self.clean) = self._before


class VideoBatch:
    """The videos that a loop makes together, at the same positions and timesteps."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._branches: dict[int | None, list[VideoSequence]] = {}
        self._branch: int | None = None  # of the last pass
        self._names: list[str] | None = None  # stated with begin_sequence()

    def state_next(self, prompt_length: int | None, gen_length: int | None, names: list[str]) -> None:
        if prompt_length is not None or gen_length is not None:
            raise UsageError("run.begin_sequence: a continuous model has no tokens, so expected neither prompt_length "
                             "nor gen_length")
        self._names = names
        self._branches = {}

    @property
    def sequences(self) -> list[VideoSequence]:
        return self._branches.get(self._branch, [])

    def starts_anew(self, given: PassInput) -> bool:
        self._branch = given.statement.branch
        now = self.sequences
        return not now or len(now) != len(given.ids) or not all(one.continues(given) for one in now)

    def begin(self, given: PassInput) -> None:
        stated = self._names if self._branch not in self._branches else None  # not the next video's
        names = stated or [""] * len(given.ids)
        if len(names) != len(given.ids):
            raise UsageError(f"run.begin_sequence: {len(names)} names for a batch of {len(given.ids)}")
        if self._branch:
            names = [f"{name} branch {self._branch}".strip() for name in names]
        self._branches[self._branch] = [VideoSequence(self.settings, name) for name in names]

    def observe(self, given: PassInput) -> list[tuple[Pass, Change]]:
        return [(one.observe(given), Change()) for one in self.sequences]


def batch_for(settings: Settings) -> Any:
    return Batch(settings) if settings.video is None else VideoBatch(settings)


def number_of(timestep: Any) -> float | None:
    """The timestep given to run.step()."""
    if timestep is None:
        return None
    try:
        value = float(timestep)
    except (TypeError, ValueError):
        value = math.nan
    if not math.isfinite(value):
        raise UsageError(f"run.step: timestep: expected a number, got {timestep!r}")
    return value


def branch_of(branch: Any) -> int | None:
    number = None if branch is None else whole_number(branch)
    if branch is not None and (number is None or number < 0):
        raise UsageError(f"run.step: branch: expected 0, 1, ..., got {branch!r}")
    return number


def ranges_of(external: Any) -> list[tuple[int, int]] | None:
    """The positions of external keys given to run.step()."""
    if external is None:
        return None
    try:
        ranges = [(int(begin), int(end)) for begin, end in external]
    except (TypeError, ValueError):
        ranges = [(0, -1)]
    ends = [0, *(place for one in ranges for place in one)]
    if any(b < a for a, b in zip(ends, ends[1:])):
        raise UsageError(f"run.step: external: expected rising ranges of positions, got {external!r}. HINT: "
                         "[(0, 4), (12, 24)] are positions 0 to 3 and 12 to 23")
    return ranges


def seen_external(one: Pass, count: int) -> Pass:
    """The pass with the number of external keys that its attention showed; -1: none was looked at."""
    return one if count < 0 or not one.is_step else replace(one, context_length=count)


def external_positions(given: PassInput, outside: int, block_start: int, video: Video) -> list[tuple[int, int]]:
    """[begin, end) of the positions of a block's `outside` external keys, in their order."""
    stated = given.statement.external
    if stated is not None:
        count = sum(end - begin for begin, end in stated)
        if count != outside:
            raise UsageError(f"run.step: external: {stated} are {count} keys, and the block at position {block_start} "
                             f"sees {outside} before its own. HINT: the positions of all keys before the block's own, "
                             "in their order")
        return stated
    if outside == block_start:
        return [(0, block_start)] if outside else []
    where = f"the block at position {block_start} sees {outside} keys before its own"
    if outside > block_start:
        raise UsageError(f"{where}, more than there are positions before it. HINT: state its position with "
                         "run.step(start=...), or its keys with run.step(external=[(begin, end), ...])")
    if video.sinks is None:
        raise UsageError(
            f"{where}: the cache has dropped some, and doesn't tell which. HINT: record(..., sinks=N) if it keeps the "
            "first N positions and the last ones before the block; or run.step(external=[(0, 4), (12, 24)]) before "
            "each such pass")
    last = outside - video.sinks
    if last < 0:
        raise UsageError(f"{where}, and sinks = {video.sinks} of them. HINT: record(..., sinks=...) is the number of "
                         "keys from position 0 on that the cache keeps, in tokens")
    parts = [(0, video.sinks), (block_start - last, block_start)]
    return [part for part in parts if part[0] < part[1]]
