"""The sequences that a loop decodes together: one, or several at the same positions. Without torch, like steps.py."""

from __future__ import annotations

import weakref
from typing import Any, NoReturn

from ..errors import UsageError
from .settings import Settings
from .steps import ONE_SEQUENCE, STATE_IT, Change, Kind, Pass, PassInput, Sequence

ENOUGH = 4  # tokens that a row of a canvas has from another row of the batch, and not from itself


def refuse_order(slot: int, source: int) -> NoReturn:
    """A row of the batch continues another row's tokens or keys."""
    raise UsageError(
        f"sequence {slot} of the batch goes on where sequence {source} stood: the loop changed the batch's order "
        "between passes, as beam search does. A row of such a batch isn't one sequence. HINT: generate(..., "
        "num_beams=1). If the loop itself selects rows of its cache or canvas, decode the sequences one at a time")


def _reference(cache: Any) -> Any:
    """Callable that returns the cache while the loop keeps it. Tuples are new objects for each pass."""
    try:
        return weakref.ref(cache)
    except TypeError:
        return lambda: None


class Batch:
    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.sequences: list[Sequence] = []
        self._next: dict | None = None  # stated with begin_sequence()
        self._cache = _reference(None)  # those of the last pass
        self._left: tuple[list[Sequence], Any] | None = None  # the sequences that these took over from, and their cache

    def state_next(self, prompt_length: int | None, gen_length: int | None, names: list[str]) -> None:
        self._next = {"prompt_length": prompt_length, "gen_length": gen_length, "names": names}

    def starts_anew(self, given: PassInput) -> bool:
        if self._next is not None or not self.sequences:
            return True
        if len(self.sequences) != len(given.ids):
            self._refuse_part_of_the_batch(given)
            return True
        self._refuse_another_order(given)
        self._refuse_return(given)
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
        self._left = (self.sequences, self._cache) if self.sequences and self._next is None else None
        self.sequences = [
            Sequence(self.settings, stated.get("prompt_length"), stated.get("gen_length"), name) for name in names]
        self._next = None

    def _refuse_part_of_the_batch(self, given: PassInput) -> None:
        """A loop may leave out finished sequences; the remaining ones are not new."""
        old = [one.prompt for one in self.sequences if one.begun]
        if given.start > 0 or any(prompt and ids[:len(prompt)] == prompt for prompt in old for ids in given.ids):
            raise UsageError(
                f"a batch of {len(self.sequences)} sequences goes on with {len(given.ids)} of them, which isn't "
                "recorded. HINT: record them one at a time; if these are new sequences, run.begin_sequence() says so")

    def _refuse_return(self, given: PassInput) -> None:
        """Refuses a loop that runs two sequences in turn, which would begin a new one at each pass."""
        if self._left is None:
            return
        sequences, cache = self._left
        by_cache = given.past > 0 and given.cache is cache() and given.cache is not self._cache()
        by_tokens = len(sequences) == len(given.ids) and all(
            left.follows(ids) and left.tokens != ids and left.prompt != now.tokens[:len(left.prompt)]
            for left, now, ids in zip(sequences, self.sequences, given.ids))
        if by_cache or by_tokens:
            raise UsageError("the pass goes on with a sequence after another one had begun: the loop runs two in turn. "
                             f"HINT: {ONE_SEQUENCE}")

    def _refuse_another_order(self, given: PassInput) -> None:
        """For passes over whole sequences, the tokens show it; for others, the cache does (order.py)."""
        if given.start > 0 or given.positions is not None or given.computed is not None:
            return
        enough = 1 if self.settings.autoregressive else ENOUGH
        for slot, ids in enumerate(given.ids):
            own = self.sequences[slot]
            if own.follows(ids):
                continue
            for source, other in enumerate(self.sequences):
                if other is not own and other.follows(ids) and sum(
                        token == now != before and token != self.settings.mask_token_id
                        for token, now, before in zip(other.tokens, ids, own.tokens)) >= enough:
                    refuse_order(slot, source)

    def observe(self, given: PassInput) -> list[tuple[Pass, Change]]:
        first = self.sequences[0]
        if given.cached and given.past != given.start and not given.placed and not (
                first.bidirectional and given.past == 0):
            raise UsageError(
                f"the pass begins at position {given.start} and the cache holds {given.past} keys: padding, or a "
                f"cache that isn't in order of position, can't be recorded. {STATE_IT}: start=...")
        self._cache = _reference(given.cache)
        changes = [one.take(ids, given, slot) for slot, (one, ids) in enumerate(zip(self.sequences, given.ids))]
        mask = self.settings.mask_token_id
        has_masks = mask is not None and any(mask in ids for ids in given.ids)
        block_start = None
        stated = given.statement
        if stated.kind is not Kind.PREFILL and (  # a prompt may hold the mask
                has_masks or given.role == "decoder" or stated.block_start is not None or stated.kind is Kind.DENOISE):
            found = [one.locate(ids, given) for one, ids in zip(self.sequences, given.ids)]
            # The loop is at the first block in which any of its sequences has masks.
            block_start = min((one for one in found if one is not None), default=None)
        if len({one.prompt_length for one in self.sequences}) > 1:
            raise UsageError("the sequences of a batch have prompts of different lengths, so they stand at different "
                             "blocks in one pass. HINT: record them one at a time. If the batch holds both branches of "
                             "classifier-free guidance, record(..., batch_rows=[0]) records the first one alone")
        return [(one.observe(ids, given, has_masks, block_start), change)
                for one, ids, change in zip(self.sequences, given.ids, changes)]
