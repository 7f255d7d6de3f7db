"""Rows of the trace. A row waits until the next pass's input shows what its pass decided. Then it goes to the writer's
thread."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, field
from typing import Any

import torch

from .. import _core
from ..errors import UsageError
from . import large_blocks, routers
from .batch import Batch
from .caches import valid_of, ranges_of
from .continuous import seen_external
from .facts import map_heads, meta_of
from .full_level import StoredKeys, arrays_of
from .host_copies import HostCopies
from .layer_maps import map_of_row, refuse_length
from .passes import RunningPass
from .ranks import Ranks
from .settings import Settings
from .shapes import LayerShape
from .statistics import History, LayerValues, Predictions, SpareRows, predictions_of, spread_of
from .steps import Change, Kind, Pass, Sequence

QUEUE_BYTES = 64 << 20
UNDECIDED = -1  # step of a mask


@dataclass
class WaitingRow:
    """A row of one sequence, written when the decisions of its pass are known."""

    number: int
    one: Pass
    pass_ns: int
    copies: HostCopies = field(default_factory=HostCopies)
    predictions: Predictions | None = None
    change: Change = field(default_factory=Change)
    stored: tuple[int, int] = (0, 0)  # keys of level full: first position, how many
    computed: list[int] | None = None  # positions; None: all of the pass
    by_layer: list[tuple[list[int], list[int]]] = field(default_factory=list)  # of queries, of values
    timestep: float = math.nan  # of a continuous model


@dataclass
class TracedSequence:
    index: int
    prompt_length: int
    tokens: list[int]  # of the frame
    steps: list[int]


class RowWriter:
    """settings, layers: of this rank; `whole` has those of all ranks together, for the header."""

    def __init__(self, path: bytes, settings: Settings, layers: list[int], whole: tuple[Settings, list[int]],
                 ranks: Ranks, model: Any, tokenizer: Any, force: bool) -> None:
        self._path, self._settings, self._model, self._tokenizer = path, settings, model, tokenizer
        self._whole, self._ranks = whole, ranks
        self._layers, self._force = layers, force
        self._writer: Any = None
        self._traced: list[TracedSequence] = []
        self._waiting: list[list[WaitingRow]] = []  # by pass, by sequence of the batch
        self._turn: Any = None  # the batch of these two, where several take turns
        self._others: dict[Any, tuple[list[TracedSequence], list[list[WaitingRow]]]] = {}
        self.num_rows = 0
        self._spare = SpareRows()
        self._bidirectional: bool | None = None
        self._stored = StoredKeys(settings)
        self._map_heads = self._map_positions = 0

    # --- the file -----------------------------------------------------------------------------------------------------

    def open(self, batch: Batch, running: RunningPass, logits: torch.Tensor | None, shape: LayerShape) -> None:
        """Creates the file at the first denoising pass, and begins the batch's sequences in it. shape: the whole
        model's."""
        if self._traced or not running.denoises:
            return
        sequences = batch.sequences
        bidirectional = bool(sequences[0].bidirectional)
        if self._writer is None:
            self._bidirectional = bidirectional
            meta = meta_of(*self._whole, self._model, self._tokenizer, running, sequences[0], logits, shape)
            self._map_heads = len(map_heads(self._settings, shape.heads // self._ranks.head_shares))
            self._map_positions = meta["map_positions"]
            self._writer = self._ranks.writer(
                shape, lambda: _core.TraceWriter(self._path, meta, self._force, QUEUE_BYTES))
        elif bidirectional != self._bidirectional:
            raise UsageError("one sequence is denoised with attention in both directions, another isn't; a trace has "
                             "one kind. HINT: say which with record(..., bidirectional=...)")
        for one, sequence in zip(running.passes, sequences):
            prompt = sequence.tokens[:sequence.prompt_length]
            length = sequence.initial_length(one)
            if self._settings.maps is not None and len(prompt) + length > self._map_positions:
                refuse_length(len(prompt) + length, self._map_positions)
            mask = -1 if self._settings.mask_token_id is None else self._settings.mask_token_id
            regions = self._settings.regions.of(sequence) if self._settings.at_least("summary") else b""
            index = self._writer.begin_sequence(sequence.name.encode(), prompt, length, list(regions))
            self._traced.append(TracedSequence(index, len(prompt), [mask] * length, [UNDECIDED] * length))

    def turn_to(self, batch: Any) -> None:
        """Says which batch the next calls are about, if several take turns. Any hashable name."""
        if batch == self._turn:
            return
        if self._traced or self._waiting:
            self._others[self._turn] = self._traced, self._waiting
        self._turn = batch
        self._traced, self._waiting = self._others.pop(batch, ([], []))

    # --- rows ---------------------------------------------------------------------------------------------------------

    def collect(self, batch: Batch, running: RunningPass, logits: torch.Tensor | None, histories: list[History],
                first_predictions: list[tuple[tuple[int, int], Predictions | None]]) -> list[Predictions | None]:
        """Takes the results of the pass. Returns each sequence's predictions."""
        count = len(running.passes)
        del histories[count:], first_predictions[count:]
        rows = []
        for slot, (one, sequence) in enumerate(zip(running.passes, batch.sequences)):
            row = WaitingRow(running.number, one, running.pass_ns)
            if running.given.timestep is not None:
                row.timestep = running.given.timestep
                row.one = one = seen_external(one, running.num_external)
            if running.computed is not None:
                row.computed = running.computed[slot]
            row.by_layer = [layer.positions(slot, running.given.start)
                            for _, layer in sorted(running.by_layer.items())]
            if logits is not None:
                row.predictions = predictions_of(one, row.computed, running.given, logits[slot], self._settings,
                                                 self._spare)
            block = (self._traced[slot].index if self._traced else -1, one.block)
            if len(histories) <= slot:
                histories.append(History())
            if running.stored:
                self._add_keys(row, slot, running, sequence)
            if one.is_step:
                if row.predictions is not None:
                    self._add_predictions(row, slot, block, first_predictions)
                if running.attention and self._settings.at_least("summary"):
                    if histories[slot].block != block:
                        histories[slot] = History(block)
                    self._add_attention(row, slot, running, sequence, histories[slot])
            rows.append(row)
        self._waiting.append(rows)
        return [row.predictions for row in rows]

    def _add_predictions(self, row: WaitingRow, slot: int, block: tuple[int, int],
                         firsts: list[tuple[tuple[int, int], Predictions | None]]) -> None:
        now, one, size = row.predictions, row.one, self._settings.block_length
        begin = one.block_start + (self._settings.logit_shift if self._settings.autoregressive else 0)
        first, count = now.first - begin, len(now)

        def among_block(values: torch.Tensor, missing: float) -> torch.Tensor:
            if count == size:
                return values
            whole = values.new_full((size,), missing)
            whole[first:first + count] = values
            return whole

        token, confidence = now.best
        row.copies.add("/prediction/token", among_block(token, -1), torch.int32)
        row.copies.add("/prediction/confidence", among_block(confidence, math.nan), torch.float32)
        if not self._settings.at_least("summary"):
            return
        while len(firsts) <= slot:
            firsts.append(((-1, -1), None))
        if one.step == 1:
            firsts[slot] = (block, now.copy() if True in one.masked else None)
        elif firsts[slot][0] == block and firsts[slot][1] is not None and firsts[slot][1].first == now.first \
                and one.recorded(self._settings):
            masked = torch.tensor(one.masked[first:first + count], device=now.logits.device)
            kl = now.kl_from(firsts[slot][1], masked)
            row.copies.add("/prediction/kl_step1", among_block(kl, math.nan), torch.float32)

    def _add_attention(self, row: WaitingRow, slot: int, running: RunningPass, sequence: Sequence,
                       history: History) -> None:
        layers = [running.attention[index] for index in self._layers]
        inputs = [running.hidden[index] for index in self._layers if index in running.hidden]
        now = LayerValues(layers, inputs if len(inputs) == len(layers) else None, slot)
        one = row.one
        exact = not self._settings.interventions  # the runtime, too, knows no exact values with interventions
        values = (history.summarise(one, now, exact) if self._settings.video is None
                  else large_blocks.values_of(layers, slot, one))
        if not one.recorded(self._settings):
            return
        values.update(spread_of(now, one, self._settings.regions.names, bool(self._bidirectional)))
        for path, value in values.items():
            row.copies.add(path, value, torch.float32)
        if now.has_sets and exact:
            probability = now.stacked(lambda layer: layer.sets.probability)
            row.copies.add("/sets/topk", now.topk(), torch.int32)
            row.copies.add("/sets/probability", probability, torch.float32)
            row.copies.add("/sets/union_size", now.stacked(lambda layer: layer.sets.union_size), torch.int32)
            row.copies.add("/sets/key_norm", now.stacked(lambda layer: layer.sets.key_norm), torch.float32)
            row.copies.add("/sets/value_norm", now.stacked(lambda layer: layer.sets.value_norm), torch.float32)
            row.copies.add("/sets/covered", probability.double().sum(-1), torch.float32)
        if self._settings.interventions:
            none = torch.zeros(layers[0].query.shape[:2], dtype=torch.bool)
            changed = now.stacked(lambda layer: none if layer.intervened is None else layer.intervened)
            row.copies.add("/attention/intervened", changed, torch.uint8)
        if self._settings.router and running.routed:
            for path, (value, kind) in routers.arrays_of(running.routed, self._layers, slot).items():
                row.copies.add(path, value, kind)
        maps = self._settings.maps
        if maps is not None and maps.takes(one):
            of_layers = [running.attention[index].map for index in maps.layers]
            weights = map_of_row(of_layers, slot, one, self._map_heads, self._map_positions)
            row.copies.add("/map/weight", weights, torch.float16)
        kind = torch.float32 if self._settings.array_type == "f32" else torch.bfloat16
        if self._settings.at_least("outputs"):
            row.copies.add_layers("/attention/external", [layer.external.output[slot] for layer in layers], kind)
            row.copies.add_layers("/attention/internal", [layer.internal.output[slot] for layer in layers], kind)
            row.copies.add_layers("/query/query", [layer.query[slot] for layer in layers], kind)
        if self._settings.at_least("full"):
            for path, value in arrays_of(layers, slot, now.hidden()).items():
                if path == "/sets/topk_token" and not exact:
                    continue
                row.copies.add(path, value, torch.int32 if path == "/sets/topk_token" else kind)

    def _add_keys(self, row: WaitingRow, slot: int, running: RunningPass, sequence: Sequence) -> None:
        first, count, arrays = self._stored.take(sequence, row.one, running, self._layers, slot)
        row.stored = (first, count)
        for path, values in arrays.items():
            row.copies.add(path, values, torch.float32 if self._settings.array_type == "f32" else torch.bfloat16)

    # --- what was decided ---------------------------------------------------------------------------------------------

    def decided(self, changes: list[Change]) -> None:
        """Handles the next pass's input: `changes` are the decisions of the last pass."""
        if self._waiting:
            for row, change in zip(self._waiting[-1], changes):  # a pass that failed may have told some of it
                row.change.add(change)
        if self._traced:
            self._write()

    def _write(self) -> None:
        waiting, self._waiting = self._waiting, []  # if one fails, the later ones lack its information
        for rows in waiting:
            for row, traced in zip(rows, self._traced):
                self._write_row(row, traced)

    def _write_row(self, row: WaitingRow, traced: TracedSequence) -> None:
        one = row.one
        transfers, insertions = self._delta(row, traced)
        scalars = [traced.index, row.number, int(one.kind), one.block, one.block_start, one.step, one.context_length,
                   one.changed, one.changed, 0 if one.kind is Kind.PREFILL else len(self._settings.recorded_rows),
                   one.masks_left, int(one.recorded(self._settings)), row.pass_ns, *row.stored]
        computed = list(range(one.start, one.start + one.length)) if row.computed is None else row.computed
        by_layer = [(ranges_of(query), ranges_of(value)) for query, value in row.by_layer]
        block = range(one.block_start, one.block_start + self._settings.block_length)
        valid = valid_of(block, computed, row.by_layer) if one.kind is Kind.DENOISE else []
        self._writer.append_row(scalars, transfers, insertions, ranges_of(computed) if self._bidirectional else [],
                                row.copies.take(), valid, by_layer, row.timestep)
        self._spare.give_back(row.predictions)
        self.num_rows += 1

    def _delta(self, row: WaitingRow, traced: TracedSequence) -> tuple[Any, Any]:
        """Transfers and insertions (position, token, confidence, step) of a row; applies them to the frame."""
        if row.change.canvas is not None:
            return self._canvas_delta(row, traced, *row.change.canvas)
        mask = self._settings.mask_token_id
        step = max(traced.steps, default=UNDECIDED) + 1
        transfers: list[tuple[int, int]] = []
        insertions: list[tuple[int, int]] = []
        for position, token in row.change.changed + row.change.appended:
            at = position - traced.prompt_length
            if at < 0:
                if (position, token) in row.change.changed:
                    raise UsageError(f"position {position} of the prompt became token {token} within a sequence. HINT: "
                                     "run.begin_sequence() begins another one")
            elif at >= len(traced.tokens) + len(insertions):
                insertions.append((at, token))
            elif traced.tokens[at] != token:
                transfers.append((at, token))
        self._refuse_elsewhere(row, traced, transfers)

        def columns(changes: list[tuple[int, int]]) -> Any:
            if not changes:
                return None
            positions, tokens = [p for p, _ in changes], [t for _, t in changes]
            absolute = [p + traced.prompt_length for p in positions]
            confidence = (row.predictions.probability(absolute, tokens) if row.predictions is not None
                          else [math.nan] * len(tokens))
            confidence = [-math.inf if t == mask else c for t, c in zip(tokens, confidence)]
            return positions, tokens, confidence, [UNDECIDED if t == mask else step for t in tokens]

        found = columns(transfers), columns(insertions)
        for at, token in transfers:
            traced.tokens[at], traced.steps[at] = token, UNDECIDED if token == mask else step
        if insertions:
            first = len(traced.tokens)
            found = (found[0], ([first] * len(insertions), *found[1][1:]))  # all before the frame's end
            traced.tokens += [token for _, token in insertions]
            traced.steps += [UNDECIDED if token == mask else step for _, token in insertions]
        return found

    def _canvas_delta(self, row: WaitingRow, traced: TracedSequence, start: int, noise: list[bool]) -> tuple[Any, Any]:
        """The same of a canvas without masks: what the row's pass accepted, and the noise that was drawn."""
        step = max(traced.steps, default=UNDECIDED) + 1
        new = dict(row.change.changed + row.change.appended)
        found: tuple[list[Any], list[Any]] = ([], [])  # transfers and insertions: index, position, token, step
        for position, undecided in enumerate(noise, start):
            at, state = position - traced.prompt_length, UNDECIDED if undecided else step
            inserted = at >= len(traced.tokens)
            token = new[position] if inserted else new.get(position, traced.tokens[at])
            if inserted:
                found[1].append((len(traced.tokens), position, token, state))
            elif traced.tokens[at] != token or (traced.steps[at] == UNDECIDED) != undecided:
                found[0].append((at, position, token, state))

        def columns(changes: list[Any]) -> Any:
            if not changes:
                return None
            index, positions, tokens, states = (list(one) for one in zip(*changes))
            sure = ([math.nan] * len(tokens) if row.predictions is None
                    else row.predictions.probability(positions, tokens))
            return index, tokens, [-math.inf if s == UNDECIDED else c for s, c in zip(states, sure)], states

        result = columns(found[0]), columns(found[1])
        for at, _, token, state in found[0]:
            traced.tokens[at], traced.steps[at] = token, state
        traced.tokens += [token for _, _, token, _ in found[1]]
        traced.steps += [state for _, _, _, state in found[1]]
        return result

    def _refuse_elsewhere(self, row: WaitingRow, traced: TracedSequence, transfers: list[tuple[int, int]]) -> None:
        one = row.one
        if not self._bidirectional or one.kind is not Kind.DENOISE:
            return
        begin, end = one.block_start, one.block_start + self._settings.block_length
        outside = [at + traced.prompt_length for at, _ in transfers
                   if not begin <= at + traced.prompt_length < end]
        if outside:
            raise UsageError(
                f"position {outside[0]} was decided by a pass over block {one.block} [{begin}, {end}): the loop "
                "doesn't go block by block. HINT: pass the length of the whole answer as block_length, or state "
                "blocks with run.step(block_start=...)")

    # --- ends ---------------------------------------------------------------------------------------------------------

    def end(self, batch: Batch, ids: list[list[int]] | None, reason: str) -> None:
        """Ends the sequences of the batch. ids [S, L]: their tokens, if they are stated."""
        if not self._traced:
            self._waiting = []
            return
        if ids is not None and self._waiting:
            changes = []
            for sequence, tokens in zip(batch.sequences, ids):
                known = len(sequence.tokens)
                changes.append(Change(
                    [(p, t) for p, (t, old) in enumerate(zip(tokens, sequence.tokens)) if t != old],
                    [(p, t) for p, t in enumerate(tokens[known:known + 1 if self._settings.autoregressive else None],
                                                  known)],
                    (sequence.block_start, [False] * self._settings.block_length) if self._settings.canvas else None))
            for row, change in zip(self._waiting[-1], changes):
                row.change.add(change)
        last = [row.one for row in self._waiting[-1]] if self._waiting else []
        if ids is None and any(one.kind is Kind.DENOISE and (one.masks_left or self._settings.canvas) for one in last):
            warnings.warn(
                "blockscope.record: the tokens that a sequence's last pass decided were never an input of the model, "
                "so the trace ends before them. HINT: run.end_sequence(ids)", stacklevel=3)
        self._write()
        for traced in self._traced:
            self._writer.end_sequence(traced.index, reason, self._text(traced))
        self._traced = []

    def _text(self, traced: TracedSequence) -> bytes:
        if self._tokenizer is None or not hasattr(self._tokenizer, "decode"):
            return b""
        mask, canvas = self._settings.mask_token_id, self._settings.canvas
        decided = [t for t, step in zip(traced.tokens, traced.steps)
                   if t not in (mask, -1) and not (canvas and step == UNDECIDED)]
        return self._tokenizer.decode(decided, skip_special_tokens=True).encode(errors="replace")

    def finish(self, batch: Batch) -> None:
        for turn in [self._turn, *self._others]:
            self.turn_to(turn)
            self.end(batch, None, "length")
        if self._writer is None and self._settings.video is not None:
            raise UsageError("nothing was recorded: the model ran no denoising pass within the recording. HINT: a pass "
                             "with timestep 0 or context_noise over a position that wasn't denoised writes given keys")
        if self._writer is None:
            raise UsageError("nothing was recorded: the model ran no denoising pass (one with the mask token "
                             f"{self._settings.mask_token_id} in its input) within the recording. HINT: where "
                             "model.compile() compiled it, its passes are seen with record(..., compiled=\"eager\")")
        self._writer.finish()

    def suspend(self) -> None:
        """Closes the file as unfinished, with all known rows."""
        if self._writer is None:
            return
        for batch in [self._turn, *self._others]:
            self.turn_to(batch)
            if self._traced:
                self._write()
        self._writer.suspend()

    def release(self) -> None:
        """Always releases the file, because a kept exception may keep this object alive."""
        self._writer, self._traced, self._waiting, self._others = None, [], [], {}

    def commit(self) -> None:
        if self._writer is not None:
            self._writer.commit()
