"""From the inputs of a model's forward passes to the steps of a decoding loop: which sequence, prefill, denoising
step or commit, which block. Knows no torch. What the inputs don't tell is asked for, never guessed."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from ..errors import UsageError
from .settings import Settings

STATE_IT = "HINT: state it with run.step(...) before the pass"


class Kind(IntEnum):
    PREFILL = 0
    DENOISE = 1
    COMMIT = 2


@dataclass(frozen=True)
class Statement:
    """What run.step() says of the next pass; None: to be inferred."""

    start: int | None = None
    block_start: int | None = None
    kind: Kind | None = None


@dataclass(frozen=True)
class PassInput:
    """The inputs of one forward pass."""

    ids: list[list[int]]  # [S, T]
    start: int  # absolute position of the first
    past: int  # keys that the cache held before it
    cached: bool  # a cache was given
    statement: Statement = Statement()

    @property
    def length(self) -> int:
        return len(self.ids[0])


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
    transferred: int = 0  # M
    masked: list[bool] = field(default_factory=list)  # [B] of the block's input

    @property
    def masks_left(self) -> int:
        return sum(self.masked)


@dataclass
class Change:
    """What the input of a pass says that the pass before it decided. Positions are absolute."""

    changed: list[tuple[int, int]] = field(default_factory=list)  # position, token: that stood there before
    appended: list[tuple[int, int]] = field(default_factory=list)  # that had not been seen


class Sequence:
    def __init__(self, settings: Settings, prompt_length: int | None = None, gen_length: int | None = None,
                 name: str = "") -> None:
        self.settings = settings
        self.name = name
        self.tokens: list[int] = []  # by absolute position, as the model saw them last
        self.prompt_length = prompt_length
        self.gen_length = settings.gen_length if gen_length is None else gen_length
        self.bidirectional = settings.bidirectional
        self.canvas: int | None = None  # positions of a bidirectional model's sequence
        self.origin: int | None = None  # where blocks count from
        self.block = -1
        self.block_start = 0
        self.step = 0
        self.last_input: list[int] = []
        self.kept = False  # some pass stored keys for later ones

    @property
    def begun(self) -> bool:
        return self.step > 0

    # --- one pass -----------------------------------------------------------------------------------------------

    def observe(self, ids: list[int], given: PassInput) -> tuple[Pass, Change]:
        start = given.start
        if start > len(self.tokens):
            raise UsageError(
                f"the pass begins at position {start}, and positions {len(self.tokens)} to {start - 1} were never an "
                f"input. HINT: record from the sequence's first pass on, or state where it stands: "
                "run.step(start=...)")
        if self.canvas is not None and start + len(ids) > self.canvas:
            raise UsageError(
                f"the pass goes over positions {start} to {start + len(ids) - 1}, behind the canvas of {self.canvas}. "
                f"{STATE_IT}: start=...")
        seen = self._token_by_token(ids, given) if self.settings.autoregressive else self._by_blocks(ids, given)
        change = self._take(ids, start)
        self.kept = self.kept or given.past > 0 or given.cached and seen.kind is not Kind.DENOISE
        return seen, change

    def _token_by_token(self, ids: list[int], given: PassInput) -> Pass:
        start, length = given.start, len(ids)
        first = not self.begun
        kind = given.statement.kind
        block = start + length - 1
        if kind is None:
            again = start == 0 and bool(self.tokens)
            alone = length == 1 and (start > 0 or self.prompt_length == 1)
            kind = Kind.DENOISE if alone or again else Kind.PREFILL
        if kind is Kind.PREFILL:
            if not first:
                raise UsageError(
                    f"a pass over {length} positions from {start} after the sequence was begun token by token. HINT: "
                    "a new sequence is stated with run.begin_sequence()")
            return Pass(kind, start, length, -1, start, 0, start)
        if first and self.prompt_length is None:
            if not self.tokens:
                raise UsageError("where the prompt ends can't be seen: it comes token by token. HINT: "
                                 "run.begin_sequence(prompt_length=...)")
            self.prompt_length = block
        self.bidirectional = False
        self.block, self.block_start, self.step = block, block, 1
        return Pass(kind, start, length, block, block, 1, block, 0, [False])

    def _by_blocks(self, ids: list[int], given: PassInput) -> Pass:
        start, length, size = given.start, len(ids), self.settings.block_length
        mask = self.settings.mask_token_id
        stated = given.statement
        has_masks = mask in ids
        kind = stated.kind
        if kind is None:
            again = self.begun and start == self.block_start and length == size and not self.bidirectional
            kind = Kind.DENOISE if has_masks else Kind.COMMIT if again else Kind.PREFILL
            if kind is Kind.PREFILL and (self.begun or self.bidirectional):
                raise UsageError(
                    f"a pass over positions {start} to {start + length - 1} without any mask ({mask}) is neither the "
                    f"prompt nor the block {self.block} that was denoised. HINT: state it with run.step(kind=...), "
                    "leave it out with run.paused(), or begin another sequence with run.begin_sequence()")
        if kind is Kind.PREFILL:
            return Pass(kind, start, length, -1, start, 0, start)
        if kind is Kind.DENOISE:
            self._locate(ids, given)
        first = self.block_start - start
        block_input = ids[first:first + size]
        masked = [token == mask for token in block_input]
        changed = sum(a != b for a, b in zip(block_input, self.last_input)) if self.last_input else 0
        self.last_input = block_input
        context = self.canvas - size if self.bidirectional else self.block_start
        if kind is Kind.COMMIT:
            return Pass(kind, start, length, self.block, self.block_start, 0, context, changed, masked)
        return Pass(kind, start, length, self.block, self.block_start, self.step, context, changed, masked)

    def _locate(self, ids: list[int], given: PassInput) -> None:
        """Which block a denoising pass is about; counts its steps."""
        start, length, size = given.start, len(ids), self.settings.block_length
        mask = self.settings.mask_token_id
        end = start + length
        if length < size:
            raise UsageError(
                f"a pass with masks over {length} positions from {start}: expected at least block_length = {size}. "
                "HINT: pass the loop's own block_length to record()")
        if self.bidirectional is None:
            # The keys that its attention lets the block see are checked against this.
            self.bidirectional = length > size or not (given.cached or given.past > 0)
        if self.bidirectional and self.canvas is None:
            if start != 0:
                raise UsageError(f"the canvas can't be seen: its first pass begins at position {start}. {STATE_IT}")
            self.canvas = end
        if self.prompt_length is None:
            first_mask = start + ids.index(mask) if mask in ids else end
            self.prompt_length = first_mask
        if self.origin is None:
            aligned = not self.bidirectional and (length > size or start % size == 0)
            self.origin = 0 if aligned else self.prompt_length if self.bidirectional else start
        block_start = given.statement.block_start
        if block_start is None and length == size:
            block_start = start
        if block_start is None:
            masks = (start + i for i, token in enumerate(ids) if token == mask)
            first_mask = next((p for p in masks if p >= self.prompt_length), None)
            if first_mask is None:
                raise UsageError(f"a pass from {start} without a mask: its block can't be seen. {STATE_IT}")
            block_start = first_mask - (first_mask - self.origin) % size
        if not start <= block_start <= end - size:
            raise UsageError(
                f"the block at position {block_start} doesn't lie within the pass over {start} to {end - 1}. HINT: "
                f"the answer's length must be a multiple of block_length = {size}; or {STATE_IT[6:]}")
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
        self.block, self.block_start = block, block_start
        self.step += 1

    def _take(self, ids: list[int], start: int) -> Change:
        change = Change()
        for position, token in enumerate(ids, start):
            if position == len(self.tokens):
                self.tokens.append(token)
                change.appended.append((position, token))
            elif self.tokens[position] != token:
                self.tokens[position] = token
                change.changed.append((position, token))
        return change

    # --- between sequences --------------------------------------------------------------------------------------

    def continues(self, ids: list[int], given: PassInput) -> bool:
        """Whether the pass can belong to this sequence; a pass from position 0 may begin another one."""
        if given.start > 0 or not self.tokens:
            return True
        if self.settings.autoregressive:  # without a cache all is run again for each token
            return not self.kept and len(ids) == len(self.tokens) + 1 and ids[:-1] == self.tokens
        if self.kept and given.past == 0 and not self.bidirectional:
            return False
        if self.canvas is not None and len(ids) > self.canvas:
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
        """Positions behind the prompt when the sequence begins, masks all."""
        size, prompt = self.settings.block_length, self.prompt_length or 0
        if self.canvas is not None:
            return self.canvas - prompt
        if self.settings.autoregressive:
            return self.gen_length or 0
        if self.gen_length is not None:
            origin = self.origin or 0
            return -(-(prompt + self.gen_length - origin) // size) * size + origin - prompt
        return given.block_start + size - prompt


class Batch:
    """The sequences that are decoded together: one, or some of the same positions."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.sequences: list[Sequence] = []
        self._next: dict | None = None  # what begin_sequence() said

    def state_next(self, prompt_length: int | None, gen_length: int | None, names: list[str]) -> None:
        self._next = {"prompt_length": prompt_length, "gen_length": gen_length, "names": names}

    def starts_anew(self, given: PassInput) -> bool:
        if self._next is not None or len(self.sequences) != len(given.ids):
            return True
        return not all(one.continues(ids, given) for one, ids in zip(self.sequences, given.ids))

    def begin(self, given: PassInput) -> None:
        if given.start != 0:
            raise UsageError(
                f"a sequence's first pass begins at position {given.start}, with {given.past} keys in the cache. HINT: "
                "open the recording before the prompt is run")
        stated = self._next or {}
        names = stated.get("names") or [""] * len(given.ids)
        if len(names) != len(given.ids):
            raise UsageError(f"run.begin_sequence: {len(names)} names for a batch of {len(given.ids)}")
        self.sequences = [
            Sequence(self.settings, stated.get("prompt_length"), stated.get("gen_length"), name) for name in names]
        self._next = None

    def observe(self, given: PassInput) -> list[tuple[Pass, Change]]:
        if given.cached and given.past != given.start and given.statement.start is None:
            bidirectional = self.sequences[0].bidirectional
            if not (bidirectional and given.past == 0):
                raise UsageError(
                    f"the pass begins at position {given.start} and the cache holds {given.past} keys: padding, or a "
                    f"cache that isn't in order of position, can't be recorded. {STATE_IT}: start=...")
        return [one.observe(ids, given) for one, ids in zip(self.sequences, given.ids)]
