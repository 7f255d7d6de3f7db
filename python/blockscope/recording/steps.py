"""Infers the steps of a decoding loop from the inputs of a model's forward passes: the sequence, the kind of pass
(prefill, denoising step or commit), and the block. Without torch. If the inputs don't show something, it asks and
never guesses."""

from __future__ import annotations

from collections.abc import Sequence as Sequence_
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from ..errors import UsageError
from .settings import Settings

STATE_IT = "HINT: state it with run.step(...) before the pass"
NO_DRAFTS = "HINT: generate(...) without assistant_model= and prompt_lookup_num_tokens="
ONE_SEQUENCE = ("If the loop runs another sequence in between, as generate(guidance_scale=) does, put those passes "
                "within run.paused(), or run both in one batch with record(..., batch_rows=...)")


class Kind(IntEnum):
    PREFILL = 0
    DENOISE = 1
    COMMIT = 2


def kind_named(name: str | None) -> Kind | None:
    """The kind that run.step() names; None: to be inferred."""
    names = [kind.name.lower() for kind in Kind]
    if name is not None and name not in names:
        raise UsageError(f"kind: expected {', '.join(names)}, got {name!r}")
    return None if name is None else Kind(names.index(name))


@dataclass(frozen=True)
class Statement:
    """The statements of run.step() about the next pass; None: to be inferred."""

    start: int | None = None
    block_start: int | None = None
    kind: Kind | None = None
    positions: list[list[int]] | None = None  # [S or 1, R], rising
    timestep: float | None = None  # of a continuous model
    external: list[tuple[int, int]] | None = None  # its external keys: [begin, end) of their positions
    branch: int | None = None  # of guidance, whose branches are sequences of their own


@dataclass(frozen=True)
class PassInput:
    """The inputs of one forward pass."""

    ids: list[list[int]]  # [S, T]
    start: int  # absolute position of the first
    past: int  # keys that the cache held before it
    cached: bool  # a cache was given
    statement: Statement = Statement()
    positions: list[list[int]] | None = None  # [S, T] of scattered tokens, rising; None: from start on
    computed: list[list[int]] | None = None  # [S, R]: the positions among them that the model is said to compute
    placed: bool = False  # an input has the positions of the tokens, so the length of the cache isn't needed
    role: str = ""  # of models that have both: "encoder", "decoder"
    cache: Any = None  # the model's own
    batch: int = 0  # sequences of the model's input; `ids` are those of the recorded rows among them
    rows: list[int] | None = None  # which; None: all
    logits_kept: int | None = None  # number of last positions for which the loop requests logits; None: unknown
    timestep: float | None = None  # of a continuous model, whose `ids` are only numbers of places
    accepted: list[list[bool]] | None = None  # [S, B] of a canvas without masks: what the step before accepted; None:
    # the canvas is new

    def own(self, x: Any) -> Any:
        """The recorded rows of a tensor with one for each sequence of the batch, or of None."""
        return x if self.rows is None or x is None or x.shape[0] != self.batch else x[self.rows]

    @property
    def length(self) -> int:
        return len(self.ids[0])

    @property
    def reads_kept_keys(self) -> bool:
        """Whether the pass reads keys that other passes computed."""
        return self.start > 0 or self.past > 0

    @property
    def end(self) -> int:
        """The position after the last one."""
        if self.positions is None:
            return self.start + self.length
        return max(positions[-1] for positions in self.positions) + 1

    def positions_of(self, slot: int) -> Sequence_[int]:
        return range(self.start, self.start + self.length) if self.positions is None else self.positions[slot]


@dataclass(frozen=True)
class Pass:
    """One forward pass as one sequence saw it."""

    kind: Kind
    start: int  # positions [start, start + length) were computed
    length: int
    block: int = -1
    block_start: int = 0
    step: int = 0
    context_length: int = 0  # N, external keys
    changed: int = 0  # M
    masked: list[bool] = field(default_factory=list)  # [B] of the block's input
    changed_rows: list[bool] = field(default_factory=list)  # [B] that differ from the step before

    @property
    def masks_left(self) -> int:
        return sum(self.masked)

    @property
    def is_step(self) -> bool:
        """Whether it is a step of its block. The clean pass of a continuous model is one, too."""
        return self.kind is Kind.DENOISE or self.step > 0

    def recorded(self, settings: Settings) -> bool:
        """Whether the trace has its arrays."""
        return self.is_step and (settings.steps is None or self.step in settings.steps) and (
            settings.blocks is None or self.block in settings.blocks)


@dataclass
class Change:
    """The decisions of the previous pass, from the input of a pass. Positions are absolute."""

    changed: list[tuple[int, int]] = field(default_factory=list)  # position, previous token
    appended: list[tuple[int, int]] = field(default_factory=list)  # that had not been seen
    canvas: tuple[int, list[bool]] | None = None  # without masks: its first position, and which of its positions hold
    # noise then [B]

    def add(self, more: Change) -> None:
        self.changed += more.changed
        self.appended += more.appended
        self.canvas = more.canvas or self.canvas


class Sequence:
    def __init__(self, settings: Settings, prompt_length: int | None = None, gen_length: int | None = None,
                 name: str = "") -> None:
        self.settings = settings
        self.name = name
        self.tokens: list[int] = []  # by absolute position, as the model saw them last
        self.known = 0  # how many there were before the pass
        self.prompt_length = prompt_length
        self.gen_length = settings.gen_length if gen_length is None else gen_length
        self.bidirectional = settings.bidirectional
        self.canvas: int | None = None  # positions of a bidirectional model's sequence
        self.origin: int | None = None  # where blocks count from
        self.block = -1
        self.block_start = 0
        self.step = 0
        self.undecided: list[bool] = []  # [B] of a canvas without masks: the positions that hold noise
        self.last_input: list[int] = []
        self.block_before = -1  # that this one followed; -1: none
        self.input_before: list[int] = []  # of the step before
        self.kept = False  # some pass stored keys for later ones

    @property
    def begun(self) -> bool:
        return self.block >= 0

    @property
    def prompt(self) -> list[int]:
        return self.tokens[:self.prompt_length or 0]

    # --- one pass -----------------------------------------------------------------------------------------------

    def take(self, ids: list[int], given: PassInput, slot: int) -> Change:
        """Takes the tokens of the input."""
        positions = given.positions_of(slot)
        self.known = len(self.tokens)
        if positions[0] > self.known:
            raise UsageError(
                f"the pass begins at position {positions[0]}, and positions {len(self.tokens)} to {positions[0] - 1} "
                "were never an input. HINT: record from the sequence's first pass on, or state where it stands: "
                f"run.step(start=...). {ONE_SEQUENCE}")
        if self.canvas is not None and given.end > self.canvas:
            if not self._grows(ids, given):
                raise UsageError(
                    f"the pass goes over positions {positions[0]} to {given.end - 1}, after the canvas of "
                    f"{self.canvas}. {STATE_IT}: start=...")
            self.canvas = given.end
        change = Change()
        if self.settings.canvas:
            change.canvas = self._canvas(ids, given, slot)
        for position, token in zip(positions, ids):
            if position > len(self.tokens):
                raise UsageError(f"the pass goes over position {position}, and position {len(self.tokens)} was never "
                                 "an input. HINT: record from the sequence's first pass on")
            if position == len(self.tokens):
                self.tokens.append(token)
                change.appended.append((position, token))
            elif self.tokens[position] != token:
                self.tokens[position] = token
                change.changed.append((position, token))
        if self.settings.autoregressive and given.start > 0 and change.changed:
            position, token = change.changed[0]
            raise UsageError(
                f"the pass from position {given.start} has token {token} at position {position}, expected the one that "
                f"was run there before: the loop takes tokens back, as assisted generation does. {NO_DRAFTS}. "
                f"{ONE_SEQUENCE}")
        return change

    def _canvas(self, ids: list[int], given: PassInput, slot: int) -> tuple[int, list[bool]] | None:
        """The canvas that the pass shows, and which of its positions hold noise."""
        start, again = given.start, self.begun and given.start == self.block_start
        if given.role != "decoder":
            return (start, [False] * len(ids)) if again and len(ids) == self.settings.block_length else None
        if not again or given.accepted is None:
            self.undecided = [True] * len(ids)
        else:
            accepted = given.accepted[slot]
            # A finished sequence of a batch stays as it is, whatever the sampler says of its row.
            if ids != self.tokens[start:start + len(ids)] or all(accepted):
                self.undecided = [not one for one in accepted]
        return start, list(self.undecided)

    def follows(self, ids: list[int]) -> bool:
        """Whether a pass over the whole sequence continues these tokens: masks became tokens, or one was added."""
        longer = len(ids) - len(self.tokens)
        if longer != 0 and not (self.settings.autoregressive and longer == 1):
            return False
        return all(old in (token, self.settings.mask_token_id) for old, token in zip(self.tokens, ids))

    def _grows(self, ids: list[int], given: PassInput) -> bool:
        """Whether the pass goes over the whole canvas and new masks after it."""
        behind = ids[self.canvas:]
        return given.start == 0 and given.positions is None and set(behind) == {self.settings.mask_token_id}

    def observe(self, ids: list[int], given: PassInput, has_masks: bool, block_start: int | None) -> Pass:
        """The pass as this sequence saw it. has_masks, block_start: those of the batch (Batch.observe)."""
        if self.settings.autoregressive:
            seen = self._token_by_token(ids, given)
        else:
            seen = self._by_blocks(given, has_masks, block_start)
        self.kept = self.kept or given.past > 0 or given.cached and seen.kind is not Kind.DENOISE
        return seen

    def _token_by_token(self, ids: list[int], given: PassInput) -> Pass:
        start, length = given.start, len(ids)
        first = not self.begun
        kind = given.statement.kind
        block = start + length - 1
        if length > 1 and (given.logits_kept or 0) > 1:
            raise UsageError(f"the pass over positions {start} to {block} asks for the logits of {given.logits_kept} "
                             "positions, expected 1: the loop drafts tokens, as assisted generation does. A pass must "
                             f"decide one token. {NO_DRAFTS}")
        if kind is None:
            again = start == 0 and self.known > 0
            alone = length == 1 and (start > 0 or self.prompt_length == 1)
            kind = Kind.DENOISE if alone or again else Kind.PREFILL
        if kind is Kind.PREFILL:
            if not first:
                raise UsageError(
                    f"a pass over {length} positions from {start} after the sequence was begun token by token: the "
                    "loop drafts tokens, as assisted generation does, or another sequence begins. "
                    f"{NO_DRAFTS}; run.begin_sequence() states a new sequence")
            return Pass(kind, start, length, -1, start, 0, start)
        if first and self.prompt_length is None:
            if self.known == 0:
                raise UsageError("where the prompt ends can't be seen: it comes token by token. HINT: "
                                 "run.begin_sequence(prompt_length=...)")
            self.prompt_length = block
        self.bidirectional = False
        self.block, self.block_start, self.step = block, block, 1
        return Pass(kind, start, length, block, block, 1, block, 0, [False], [False])

    # --- blocks -------------------------------------------------------------------------------------------------

    def retract(self, one: Pass) -> None:
        """Takes back a pass that did not end, so that the next pass of the block is compared with the one before and
        has its number."""
        if self.settings.autoregressive or one.kind is Kind.PREFILL:
            return
        self.last_input = self.input_before
        if one.kind is Kind.DENOISE and self.step == one.step > 0:
            self.step -= 1
            if self.step == 0 and self.block_before < 0:
                self.block = -1  # nothing has begun

    def _by_blocks(self, given: PassInput, has_masks: bool, block_start: int | None) -> Pass:
        start, length, size = given.start, given.length, self.settings.block_length
        kind = self._kind(given, has_masks)
        if kind is Kind.PREFILL:
            return Pass(kind, start, length, -1, start, 0, start)
        if kind is Kind.DENOISE:
            self._enter(given, block_start)
        mask = self.settings.mask_token_id
        block_input = self.tokens[self.block_start:self.block_start + size]
        masked = [token == mask for token in block_input]
        if self.settings.canvas and kind is Kind.DENOISE:
            masked = list(self.undecided)
        changed = [a != b for a, b in zip(block_input, self.last_input or block_input)]
        self.input_before, self.last_input = self.last_input, block_input
        context = self.canvas - size if self.bidirectional else self.block_start
        step = self.step if kind is Kind.DENOISE else 0
        return Pass(kind, start, length, self.block, self.block_start, step, context, sum(changed), masked,
                    changed)

    def _kind(self, given: PassInput, has_masks: bool) -> Kind:
        start, length, size = given.start, given.length, self.settings.block_length
        if given.statement.kind is not None:
            return given.statement.kind
        if has_masks or given.role == "decoder":
            return Kind.DENOISE
        # A bidirectional model has no keys to commit. If its loop goes on when a block is full, that pass is a step
        # that decides nothing.
        if self.begun and self.bidirectional:
            return Kind.DENOISE
        if self.begun and start == self.block_start and length == size and given.positions is None:
            return Kind.COMMIT
        if self.begun or self.bidirectional:
            raise UsageError(
                f"a pass over positions {start} to {given.end - 1} without any mask ({self.settings.mask_token_id}) is "
                f"neither the prompt nor the block {self.block} that was denoised. HINT: state it with "
                "run.step(kind=...), leave it out with run.paused(), or begin another sequence with "
                "run.begin_sequence()")
        return Kind.PREFILL

    def locate(self, ids: list[int], given: PassInput) -> int | None:
        """The start of the block of a denoising pass; None if no mask of this sequence shows it."""
        start, size = given.start, self.settings.block_length
        mask = self.settings.mask_token_id
        if given.role != "decoder":
            self._first_look(ids, given)
        else:
            self.bidirectional = False
            self.prompt_length = start if self.prompt_length is None else self.prompt_length
        if self.origin is None:
            aligned = not self.bidirectional and (given.length > size or start % size == 0) and not given.role
            self.origin = 0 if aligned else self.prompt_length if self.bidirectional else start
        if given.statement.block_start is not None:
            return given.statement.block_start
        inside = given.positions is None and start >= self.prompt_length and (start - self.origin) % size == 0
        if given.positions is None and given.length == size and (inside or not self.bidirectional):
            return start
        # A loop that caches the positions before its block passes the block and the positions after it.
        if self.bidirectional and inside and start > 0:
            return start
        masks = [p for p, token in zip(given.positions_of(0), ids) if token == mask] if given.positions is None else [
            p for p, token in enumerate(self.tokens) if token == mask]
        first_mask = next((p for p in masks if p >= self.prompt_length), None)
        if first_mask is None:
            return None
        found = first_mask - (first_mask - self.origin) % size
        if self.bidirectional and given.positions is None and start > 0 and found > start + 1:
            raise UsageError(
                f"the pass from position {start} begins neither with a block nor with the position before one, and its "
                f"first mask stands at {first_mask}: its block can't be determined. {STATE_IT}: block_start=...")
        return found

    def _first_look(self, ids: list[int], given: PassInput) -> None:
        """Takes the facts about the sequence that the first pass with masks shows."""
        start, length, size = given.start, given.length, self.settings.block_length
        mask = self.settings.mask_token_id
        if length < size and given.positions is None:
            raise UsageError(
                f"a pass with masks over {length} positions from {start}: expected at least block_length = {size}. "
                "HINT: pass the loop's own block_length to record()")
        if self.bidirectional is None:
            # The keys that its attention lets the block see are checked against this.
            self.bidirectional = length > size or not (given.cached or given.past > 0)
        if self.bidirectional and self.canvas is None:
            if start != 0 or given.positions is not None:
                raise UsageError(f"the canvas can't be seen: its first pass begins at position {start}. {STATE_IT}")
            self.canvas = given.end
        if self.prompt_length is None:
            self.prompt_length = start + ids.index(mask) if mask in ids else given.end

    def _enter(self, given: PassInput, block_start: int | None) -> None:
        """Counts the steps of a block."""
        start, size = given.start, self.settings.block_length
        if block_start is None:
            if not self.begun:
                raise UsageError(f"a pass from {start} without a mask: its block can't be seen. {STATE_IT}")
            block_start = self.block_start
        if given.role == "decoder" and given.length != size:
            raise UsageError(f"a canvas of {given.length} positions: expected block_length = {size}. HINT: pass the "
                             "loop's own canvas length to record() as block_length")
        last = self.canvas if self.bidirectional else given.end
        least = 0 if self.bidirectional else start
        if not least <= block_start <= last - size:
            raise UsageError(
                f"the block at position {block_start} doesn't lie within the pass over {start} to {given.end - 1}. "
                f"HINT: the answer's length must be a multiple of block_length = {size}; or {STATE_IT[6:]}")
        if (block_start - self.origin) % size != 0:
            raise UsageError(
                f"the pass from {block_start} isn't a block of {size} counted from position {self.origin}. {STATE_IT}")
        block = (block_start - self.origin) // size
        if block != self.block or block_start != self.block_start or not self.begun:
            if self.begun and block < self.block:
                raise UsageError(
                    f"block {block} after block {self.block}: the loop doesn't go block by block. HINT: pass the "
                    "length of the whole answer as block_length, or state blocks with run.step(block_start=...)")
            self.step = 0
            self.last_input = []
            self.block_before = self.block
        self.block, self.block_start = block, block_start
        self.step += 1

    # --- between sequences --------------------------------------------------------------------------------------

    def continues(self, ids: list[int], given: PassInput) -> bool:
        """Whether the pass can belong to this sequence; a pass from position 0 may begin another one."""
        if given.start > 0 or not self.tokens:
            return True
        if self.settings.autoregressive:  # without a cache all is run again for each token
            return not self.kept and len(ids) == len(self.tokens) + 1 and ids[:-1] == self.tokens
        if self.kept and given.past == 0 and not self.bidirectional:
            return False
        if self.canvas is not None and len(ids) > self.canvas and not self._grows(ids, given):
            return False
        mask = self.settings.mask_token_id
        old = self.tokens[:len(ids)]
        if all(a in (b, mask) for a, b in zip(old, ids)):
            return True  # only masks became tokens
        prompt = self.prompt_length or 0
        if old[:prompt] != ids[:prompt]:
            return False
        answer = ids[prompt:]
        return any(token != mask for token in answer)  # tokens that were taken back; all: it starts again

    def initial_length(self, given: Pass) -> int:
        """Number of positions after the prompt when the sequence begins; all are masks."""
        size, prompt = self.settings.block_length, self.prompt_length or 0
        if self.canvas is not None:
            return self.canvas - prompt
        if self.settings.autoregressive:
            return self.gen_length or 0
        if self.gen_length is not None:
            origin = self.origin or 0
            return -(-(prompt + self.gen_length - origin) // size) * size + origin - prompt
        return given.block_start + size - prompt
