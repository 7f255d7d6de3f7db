"""A serving engine's requests. Each is a sequence of the trace, and its passes are inferred as those of a batch of
one."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from ..errors import UsageError
from .batch import Batch
from .geometry import Geometry
from .passes import RunningPass
from .settings import Settings
from .shift import ShiftCheck
from .statistics import History, Predictions
from .steps import Change, Kind, Pass, PassInput, Sequence, Statement


class Request:
    """A request from its first pass to its end."""

    def __init__(self, name: Hashable, settings: Settings, prompt: list[int] | None = None,
                 gen_length: int | None = None) -> None:
        self.name, self.settings, self.prompt = name, settings, prompt
        self.sequence = Sequence(settings, None if prompt is None else len(prompt), gen_length, str(name))
        self.batch = Batch(settings)
        self.batch.sequences = [self.sequence]
        self.shift = ShiftCheck(settings)
        self.histories: list[History] = []
        self.first_predictions: list[tuple[tuple[int, int], Predictions | None]] = []
        self.statement = Statement()
        self.compared: set[int] = set()  # layers whose attention was compared with the engine's result

    def __str__(self) -> str:
        return f"request {self.name!r}"

    def run(self, tokens: list[int], positions: list[int], number: int, num_layers: int) -> RequestPass:
        """The request's part of the pass `number`."""
        first = positions[0]
        if positions != list(range(first, first + len(positions))):
            raise UsageError(f"{self}: positions: expected consecutive ones, got {positions[:8]}. HINT: an engine's "
                             "passes over scattered positions can't be recorded; choose a cache that computes whole "
                             "blocks")
        self._compare_with_prompt(tokens, first)
        stated, self.statement = self.statement, Statement()
        again, statement = self._runs_again(tokens, first), stated
        if again:
            statement = Statement(kind=Kind.DENOISE if self.settings.autoregressive else Kind.COMMIT)
        elif statement == Statement() and self.prompt is not None and first + len(tokens) <= len(self.prompt):
            statement = Statement(kind=Kind.PREFILL)  # a prompt may hold the mask
        given = PassInput([tokens], first, first, True, statement, placed=True, batch=1)
        known = len(self.sequence.tokens) if self.settings.autoregressive else self.sequence.block_start
        if again and given.end <= known:  # nothing new, and it doesn't show what was decided
            one = Pass(Kind.COMMIT, first, len(tokens))
            running = RunningPass(number, given, [one], [self.sequence], self.settings, num_layers)
            return RequestPass(self, running, Change(), stated, recorded=False)
        try:
            (one, change), = self.batch.observe(given)
            self.shift.decided([change])
        except UsageError as error:
            raise UsageError(f"{self}: {error}") from None
        running = RunningPass(number, given, [one], [self.sequence], self.settings, num_layers)
        if running.denoises:
            running.geometry = Geometry.of(given, one, self.sequence)
        return RequestPass(self, running, change, stated)

    def _compare_with_prompt(self, tokens: list[int], first: int) -> None:
        """If the engine has the keys of the first tokens from another request, the stated prompt tells the tokens."""
        prompt = self.prompt or []
        for position, (token, expected) in enumerate(zip(tokens, prompt[first:]), first):
            if token != expected:
                raise UsageError(f"{self}: position {position}: expected token {expected} of the prompt that was "
                                 f"stated, got {token}. HINT: run.begin_sequence(request, prompt=...) takes the tokens "
                                 "as the model gets them")
        if self.sequence.tokens or first == 0:
            return
        if len(prompt) < first:
            raise UsageError(
                f"{self}: its first pass begins at position {first}, and the tokens before it aren't known: expected a "
                f"prompt of at least {first} tokens, got {len(prompt)}. HINT: if the engine has their keys from "
                "another request, run.begin_sequence(request, prompt=...) before the pass; else open the recording "
                "before the request runs")
        self.sequence.tokens = prompt[:first]

    def _runs_again(self, tokens: list[int], first: int) -> bool:
        """Whether the engine had dropped the request's keys (preemption), and computes those of whole blocks again."""
        sequence, mask = self.sequence, self.settings.mask_token_id
        done = len(sequence.tokens) if self.settings.autoregressive else sequence.block_start
        if not sequence.begun or sequence.bidirectional or first >= done:
            return False
        for position, (token, known) in enumerate(zip(tokens, sequence.tokens[first:done]), first):
            if token != known:
                raise UsageError(
                    f"{self}: position {position}, which it had computed before: expected token {known} "
                    f"as before, got {token}. HINT: another sequence needs another name of its request")
        return mask not in tokens


@dataclass(eq=False)
class RequestPass:
    """One request's part of a pass over a ragged batch."""

    request: Request
    running: RunningPass
    change: Change  # what the request's pass before decided
    statement: Statement  # what was stated of the pass
    recorded: bool = True

    @property
    def keys(self) -> int:
        """The number of positions that a layer reads."""
        canvas = self.request.sequence.canvas if self.request.sequence.bidirectional else None
        return self.running.given.end if canvas is None else canvas
