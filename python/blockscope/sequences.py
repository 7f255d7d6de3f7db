"""The texts of a trace: its sequences, their frames and the decisions of each step."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

from . import _core
from ._paths import text
from .errors import UsageError

if TYPE_CHECKING:
    import numpy as np


# NumPy is imported only where arrays are made, because its import takes longer than opening a trace.
def ints(raw: bytearray) -> np.ndarray:
    import numpy as np

    return np.frombuffer(raw, np.int64)


def floats(raw: bytearray) -> np.ndarray:
    import numpy as np

    return np.frombuffer(raw, np.float32)


@dataclass(frozen=True, eq=False)
class Frame:
    """The state of a sequence before one of its denoising steps.

    Attributes:
        prompt: token ids, int64 [prompt_length].
        tokens: token ids after the prompt, int64 [gen_length]. An undecided position has `mask_token_id`, or in a
            canvas without masks the noise that was drawn for it.
        confidence: probability of the token when it was decided, float32 [gen_length]; -inf: not decided yet.
        steps: number of the step of the sequence that decided the token, int64 [gen_length]; -1: none.
        mask_token_id: -1 if the model has none.
    """

    prompt: np.ndarray
    tokens: np.ndarray
    confidence: np.ndarray
    steps: np.ndarray
    mask_token_id: int

    @property
    def undecided(self) -> np.ndarray:
        """Whether each position holds the mask or noise, bool [gen_length]."""
        return (self.steps == -1) | (self.tokens == self.mask_token_id)  # type: ignore[no-any-return]

    @property
    def masks_left(self) -> int:
        """Number of undecided positions."""
        return int(self.undecided.sum())

    def __repr__(self) -> str:
        return (f"<blockscope.Frame: {self.prompt.size} prompt tokens, {self.tokens.size} positions, "
                f"{self.masks_left} masks>")


@dataclass(frozen=True, eq=False)
class Delta:
    """The decisions of one denoising step: transfers, then insertions, then deletions. All are int64, except
    `confidence` and `insert_confidence`, which are float32.

    Attributes:
        position, token, confidence, step: of each transfer [transfers]; positions count after the prompt.
        insert_position, insert_token, insert_confidence, insert_step: [insertions]; positions in the frame
            before any insertion.
        delete_position: [deletions], in the frame after the insertions.
    """

    position: np.ndarray
    token: np.ndarray
    confidence: np.ndarray
    step: np.ndarray
    insert_position: np.ndarray
    insert_token: np.ndarray
    insert_confidence: np.ndarray
    insert_step: np.ndarray
    delete_position: np.ndarray

    def __repr__(self) -> str:
        words = f"{self.position.size} transfers"
        if self.insert_position.size or self.delete_position.size:
            words += f", {self.insert_position.size} insertions, {self.delete_position.size} deletions"
        return f"<blockscope.Delta: {words}>"


KINDS = ("decided", "edited", "taken back", "moved")


@dataclass(frozen=True, eq=False)
class Changes:
    """What one denoising step did to the tokens of the answer.

    Attributes:
        row: the step's row of the trace.
        inserted, deleted: numbers of positions, without masks that fill the block up at its end and without positions
            that insertions push out of it.
        position: of each change after the step, int64 [changes], counted after the prompt.
        kind: "decided" (a mask took a token), "edited" (another token replaced it), "taken back" (a mask again) or
            "moved" (an insertion or deletion brought another token, or a mask, there): str [changes]. A token that the
            same step edited and deleted is not listed; `blockscope info` counts it as edited.
        before, after: token ids; for an undecided position the mask's, -1 in a trace without masks or with a draft.
            int64 [changes].
        confidence: of `after`, float32 [changes]; -inf for a mask.
    """

    row: int
    inserted: int
    deleted: int
    position: np.ndarray
    kind: np.ndarray
    before: np.ndarray
    after: np.ndarray
    confidence: np.ndarray

    def of(self, kind: str) -> np.ndarray:
        """The indices of the changes of a kind."""
        import numpy as np

        if kind not in KINDS:
            raise UsageError(f"kind: expected one of {', '.join(KINDS)}, got {kind!r}")
        return np.flatnonzero(self.kind == kind)

    def __repr__(self) -> str:
        words = [f"{self.of(kind).size} {kind}" for kind in KINDS if kind == "decided" or self.of(kind).size]
        if self.inserted or self.deleted:
            words.append(f"{self.inserted} inserted, {self.deleted} deleted")
        return f"<blockscope.Changes in row {self.row}: {', '.join(words)}>"


def changes_of(core: _core.Trace, sequence: int) -> list[Changes]:
    """One `Changes` for each denoising row of a sequence."""
    import numpy as np

    names = np.array(KINDS)
    return [Changes(row, inserted, deleted, ints(position), names[ints(kind)], ints(before), ints(after),
                    floats(confidence))
            for row, inserted, deleted, position, kind, before, after, confidence in core.changes(sequence)]


@dataclass(frozen=True, eq=False)
class Sequence:
    """One prompt and its generated answer.

    Attributes:
        index: index in the trace, from 0.
        name: name of the prompt.
        prompt: token ids, int64 [prompt_length].
        prompt_hash: SHA-256 of these, 64 hexadecimal digits.
        gen_length: positions after the prompt.
        answer, metric: expected answer and the metric that scores it; may be empty.
        text: the generated text; empty until the sequence has ended.
        score: value of the metric, or None.
        finish_reason: "unfinished", "length", "stop", "replayed" or "interrupted".
        aborted: the sequence was cut by a kill and decoded again under another index.
    """

    index: int
    name: str
    prompt: np.ndarray
    prompt_hash: str
    gen_length: int
    answer: str
    metric: str
    text: str
    score: float | None
    finish_reason: str
    aborted: bool

    def __repr__(self) -> str:
        return (f"<blockscope.Sequence {self.index} {self.name!r}: {self.prompt.size} prompt tokens, "
                f"{self.gen_length} positions, {self.finish_reason}>")


class Sequences:
    """The sequences of a trace, like a list. Each is read when it is used."""

    def __init__(self, core: _core.Trace, info: Callable[[], dict[str, Any]]) -> None:
        self._core, self._info = core, info  # the sequence may grow while it is written

    def __len__(self) -> int:
        return int(self._info()["num_sequences"])

    @overload
    def __getitem__(self, index: int) -> Sequence: ...
    @overload
    def __getitem__(self, index: slice) -> list[Sequence]: ...
    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            path = os.fsdecode(self._info()["path"])
            raise IndexError(f"{path}: expected a sequence in [0, {len(self)}), got {index}")
        return self._read(index % len(self))

    def _read(self, index: int) -> Sequence:
        found = self._core.sequence(index)
        score = found["score"]
        return Sequence(
            index=index, name=text(found["name"]), prompt=ints(found["prompt"]),
            prompt_hash=found["prompt_hash"], gen_length=found["gen_length"], answer=text(found["answer"]),
            metric=text(found["metric"]), text=text(found["text"]),
            score=None if math.isnan(score) else score, finish_reason=found["finish_reason"],
            aborted=found["aborted"])

    def __iter__(self) -> Iterator[Sequence]:
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        return f"<blockscope.Sequences: {len(self)}>"
