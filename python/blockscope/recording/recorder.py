"""The recorder: hooks on a model and its layers turn the passes of a decoding loop into rows of a trace. It only
observes. A row is written after the next pass, because that pass's input shows what the row's pass decided."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence as SequenceOf
from typing import Any

import torch

from ..errors import RankError, UsageError
from . import kernels
from .attention import Watch, unseen, watch_multihead
from .batch import Batch
from .calls import AttentionCall, stated_call
from .compiled import run_as_compiled, run_eagerly, uncompiled
from .entrances import Entrances
from .geometry import Geometry
from .interventions import Interventions
from .interface import unwatch_interface, watch_interface
from .model import HIDDEN_SIZE, NUM_HEADS, NUM_LAYERS, Inputs, find_layers, logits_of
from .open_trace import OpenTrace, add_note
from .order import BatchOrder
from .passes import NO_GRADIENTS, RunningPass
from .ranks import Ranks
from .rows import RowWriter
from .settings import Settings, config_value
from .shapes import LayerShape, LayerShapes, assumed_shape, configured_shape
from .shift import ShiftCheck
from .statistics import History, Predictions
from .steps import Change, Statement, kind_named
from .trails import Lost


class Recorder(OpenTrace):
    """The ``run`` of ``with blockscope.record(...) as run``. The loop needs none of its methods if the model's inputs
    show everything."""

    def __init__(self, model: torch.nn.Module, path: bytes, settings: Settings, ranks: Ranks, *, tokenizer: Any,
                 decoder_layers: Any, force: bool) -> None:
        self._model, self._settings = model, settings  # as it is called
        model = uncompiled(model)
        if settings.attention != "observe":
            kernels.require(model, settings.attention)
        self._ranks = ranks
        self._entrances = Entrances(self._model, settings.batch_rows)
        self._looks_inside = settings.at_least("summary") or bool(settings.interventions)
        self._layers = find_layers(model, decoder_layers) if self._looks_inside or decoder_layers is not None else []
        self._num_layers = len(self._layers) or config_value(model, *NUM_LAYERS) or 1
        heads = config_value(model, *NUM_HEADS)
        settings = settings.within(self._num_layers, heads)
        self._whole = settings, settings.recorded_layers(self._num_layers)  # of all ranks
        settings, self._recorded = ranks.own(*self._whole, self._layers)
        self._settings = settings
        self._interventions = Interventions(settings.interventions, self._num_layers, heads, settings.regions)
        shown = self._recorded if settings.at_least("summary") else []
        self._looked_at = {*shown, *self._interventions.layers}
        self._shapes = LayerShapes(ranks.check)
        self._configured = None if self._looks_inside else configured_shape(model)
        self._order = BatchOrder()
        self._batch = Batch(settings)
        super().__init__(path, force, RowWriter(path, settings, self._recorded, self._whole, ranks, model, tokenizer,
                                                force))
        self._histories: list[History] = []
        self._first_predictions: list[tuple[tuple[int, int], Predictions | None]] = []
        self._statement = Statement()
        self._shift = ShiftCheck(settings)
        self._running: RunningPass | None = None
        self._changes: list[Change] = []  # the decisions of the previous pass, from the running pass's input
        self._watch: Watch | None = None
        self._thread = 0
        self._hooks: list[Any] = []
        self._paused = False
        self._num_passes = 0
        self._checked: set[int] = set()  # layers whose attention was compared with what the model got

    # --- what users call ----------------------------------------------------------------------------------------------

    def __enter__(self) -> Recorder:
        if self._hooks:
            raise UsageError("the recording is open already")
        try:
            self._ranks.open(self._path, self._whole[0])
            self._open()
        except BaseException as error:
            self._ranks.leave(error)
            raise
        return self

    def _open(self) -> None:
        if self._ranks.first:
            self._refuse_target()
        self._interventions.open(config_value(uncompiled(self._model), *HIDDEN_SIZE))
        if self._looks_inside:
            watch_interface()
        if self._settings.compiled == "eager":
            run_eagerly()
        self._hooks = self._entrances.open(self._before, self._after)
        for index, (_, layer) in enumerate(self._layers if self._looks_inside else []):
            self._hooks += [
                layer.register_forward_pre_hook(self._layer_hook(index), with_kwargs=True),
                layer.register_forward_hook(self._layer_end)]
        self._hooks += watch_multihead(uncompiled(self._model)) if self._looks_inside else self._guard()

    def _guard(self) -> list[Any]:
        """Hooks on layers show that the loop calls ``model.forward`` directly, which skips the hooks on the model."""
        if getattr(self._model, "_compiled_call_impl", None) is not None or hasattr(self._model, "_orig_mod"):
            return []  # a hook would be compiled anew
        hooks = watch_multihead(uncompiled(self._model))  # a batch is watched at every level
        try:
            name, layer = (self._layers or find_layers(self._model, None))[0]
        except UsageError:
            return hooks
        return [*hooks, layer.register_forward_pre_hook(lambda *_: self._refuse_outside(name))]

    def _refuse_outside(self, layer: str) -> None:
        if not torch.compiler.is_compiling() and self._running is None and not self._idle():
            raise UsageError(
                f"{layer} ran outside a call of the recorded {type(self._model).__name__}, so its pass can't be seen. "
                "HINT: record(...) the module that the loop calls; or leave the pass out with run.paused()")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        self._end_watch()
        for hook in self._hooks:
            hook.remove()
        if self._hooks and self._looks_inside:
            unwatch_interface()
        if self._hooks and self._settings.compiled == "eager":
            run_as_compiled()
        self._hooks = []
        if os.getpid() != self._pid:
            return
        try:
            if error is None:
                self._ranks.meet(f"ends its recording after {self._num_passes} passes")
            else:
                self._ranks.leave(error)
            self._close(error, lambda: self._rows.finish(self._batch))
        except Exception as second:
            self._ranks.leave(second)
            raise
        finally:
            self._interventions.close()
            self._rows.release()
            self._ranks.close()
        if isinstance(error, RuntimeError) and not isinstance(error, RankError):  # may be that of a collective
            reasons = self._ranks.reasons()
            if reasons:
                add_note(error, reasons)

    def begin_sequence(self, *, prompt_length: int | None = None, gen_length: int | None = None,
                       name: str | SequenceOf[str] = "") -> None:
        """States that the next pass begins a sequence (or a batch of them). Also states what its inputs don't show: the
        number of prompt tokens, the number of positions after them, and the name."""
        names = [name] if isinstance(name, str) else list(name)
        self._batch.state_next(prompt_length, gen_length, names if names != [""] else [])

    def end_sequence(self, ids: Any = None, *, reason: str = "length") -> None:
        """Ends the current sequences. ids [L] or [S, L]: their tokens from the first position on, including those that
        the last pass decided, which were never an input. reason: ``length`` or ``stop``."""
        if ids is not None:
            ids = ids.tolist() if hasattr(ids, "tolist") else [list(row) if not isinstance(row, int) else row
                                                               for row in ids]
            ids = [ids] if ids and isinstance(ids[0], int) else ids
            if len(ids) != len(self._batch.sequences):
                raise UsageError(f"end_sequence: expected ids of {len(self._batch.sequences)} sequences, got "
                                 f"{len(ids)}")
        self._rows.end(self._batch, ids, reason)
        self._batch = Batch(self._settings)

    def step(self, *, start: int | None = None, positions: Any = None, block_start: int | None = None,
             kind: str | None = None) -> None:
        """States what the inputs of the next pass don't show: the position of its first token, or those of all its
        tokens; the position of the block's first token; and whether it is a ``prefill``, ``denoise`` or ``commit``.

        positions: ascending, [R] or [S, R]. As many as the pass has tokens: their positions. Fewer: the positions that
        the model computes, if it gets the whole sequence and skips rows inside."""
        named = kind_named(kind)
        if start is not None and positions is not None:
            raise UsageError("run.step: expected either start or positions, got both")
        self._statement = Statement(start, block_start, named, _rising(positions))

    def attention(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *,
                  mask: torch.Tensor | None = None, scale: float | None = None) -> None:
        """States the attention of a layer that the recorder can't see. Call it while the layer runs. In this pass, the
        recorder then ignores the layer's own calls. Outside a recorded pass, the call does nothing.

        layer: its number among the decoder layers, from 0. q [S, H, T, D]: queries of the pass's tokens. k, v [S, K, N,
        D]: including the pass's own keys; query head h reads KV head h // (H / K). mask and scale are those of
        ``scaled_dot_product_attention``. mask: True where a key is seen, or a tensor that is added to the scores.
        scale: None is D ** -0.5."""
        running = self._running
        if torch.compiler.is_compiling() or running is None or self._watch is None or self._idle():
            return
        if self._thread != threading.get_ident():
            return
        if isinstance(layer, bool) or not isinstance(layer, int) or not 0 <= layer < self._num_layers:
            raise UsageError(f"run.attention: layer: expected 0 to {self._num_layers - 1}, got {layer!r}")
        with unseen():
            call = stated_call(q, k, v, mask, scale, running.given.batch)
            running.state(layer)
            before, running.layer = running.layer, layer
            self._see(call)
            running.layer = before

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Passes within the ``with`` block are not recorded."""
        before, self._paused = self._paused, True
        try:
            yield
        finally:
            self._paused = before

    # --- hooks --------------------------------------------------------------------------------------------------------

    def _idle(self) -> bool:
        return self._paused or os.getpid() != self._pid

    def _before(self, inputs: Inputs, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if torch.compiler.is_compiling() or self._idle():  # a hook must not become part of compiled code
            return
        if self._running is not None:
            if self._thread != threading.get_ident():
                raise UsageError("two threads run the recorded model at once. HINT: record one loop at a time")
            self._abandon()  # an interrupt, or an error that the loop caught
        begun = time.perf_counter_ns()
        with torch.no_grad():
            statement, self._statement = self._statement, Statement()
            given = self._ranks.begin_pass(self._num_passes, inputs.read(args, kwargs, statement))
            if self._batch.starts_anew(given):
                self._rows.end(self._batch, None, "length")
                self._shift = ShiftCheck(self._settings)
                self._batch.begin(given)
            observed = self._batch.observe(given)
            self._changes = [change for _, change in observed]
            self._shift.decided(self._changes)
            running = RunningPass(self._num_passes, given, [one for one, _ in observed], self._batch.sequences,
                                  self._settings, self._num_layers)
            self._num_passes += 1
        running.own_ns += time.perf_counter_ns() - begun
        self._running, self._thread = running, threading.get_ident()
        running.begin(begun)
        running.changing, running.to_patch = self._interventions.plan(running.passes, self._batch.sequences[0])
        if self._looks_inside and (running.denoises or running.changing):
            running.geometry = Geometry.of(given, observed[0][0], self._batch.sequences[0])
        if self._watches(running):
            self._watch = Watch(self._see, self._lose, self._give if self._settings.attention == "replace" else None,
                                given.batch, given.length, refuses=self._looks_inside)

    def _records(self, running: RunningPass) -> bool:
        """At level full, the keys of every pass are recorded."""
        return self._looks_inside and (running.denoises or self._settings.at_least("full"))

    def _watches(self, running: RunningPass) -> bool:
        """The keys of a batch show its order."""
        asks_shape = not self._looks_inside and running.denoises and self._shape is None
        return self._records(running) or bool(running.changing) or running.given.batch > 1 or asks_shape

    @property
    def _shape(self) -> LayerShape | None:
        return self._shapes.first if self._looks_inside else self._configured or self._shapes.first

    def _model_shape(self) -> LayerShape:
        """The whole model's shape, for the header."""
        # Without arrays, a rank's share needs no check, and doesn't tell the whole.
        seen = self._shapes.first if self._looks_inside or self._ranks.count == 1 else None
        return self._configured or (self._ranks.whole(seen) if seen is not None else assumed_shape(self._model))

    def _layer_hook(self, index: int) -> Any:
        def before(layer: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if torch.compiler.is_compiling():
                return None
            running = self._running
            self._refuse_outside(self._layers[index][0])
            if running is None or self._idle():
                return None
            running.layer = index
            if index not in self._looked_at | running.to_patch or not running.denoises:
                return None
            named = next((name for name in ("hidden_states", "x") if name in kwargs), "")
            hidden, patches = args[0] if args else kwargs.get(named), index in running.to_patch
            if patches:
                hidden = running.patch_hidden(self._interventions, self._batch.sequences, hidden,
                                              self._layers[index][0], self._shapes.first)
            if index in self._looked_at:
                running.take_hidden(index, hidden)
            if not patches:
                return None
            return ((hidden, *args[1:]), kwargs) if args else (args, {**kwargs, named: hidden})

        return before

    def _layer_end(self, layer: torch.nn.Module, args: Any, output: Any) -> None:
        if not torch.compiler.is_compiling() and self._running is not None:
            self._running.layer = -1

    def _lose(self, lost: Lost) -> None:
        if self._running is not None:
            self._running.lost.setdefault(self._running.layer, []).append(lost)

    def _see(self, call: AttentionCall) -> None:
        running = self._running
        if running is None:
            return
        running.read = call.k
        if not self._looks_inside and self._shape is None:
            self._shapes.look(call, running.given.length)
        changing = running.layer in running.changing
        if not changing and not (self._records(running) and running.layer in self._looked_at):
            return
        if running.layer in running.stated and not call.stated:
            return
        if changing:
            raise UsageError(
                f"{self._layers[running.layer][0]}: {call.function}: an intervention needs attention that the recorder "
                "replaces: scaled_dot_product_attention that the layer itself calls on a CPU. HINT: load the model "
                "with attn_implementation=\"sdpa\", or name other layers with layers=...")
        self._take(running, call)

    def _take(self, running: RunningPass, call: AttentionCall) -> None:
        begun = time.perf_counter_ns()
        with torch.no_grad():
            check = running.layer not in self._checked
            name = self._layers[running.layer][0]
            if running.denoises or running.layer in running.changing:
                running.take_attention(call, name, self._shapes, check)
                self._checked.add(running.layer)
            else:
                running.take_keys(call, name, self._shapes, self._batch.sequences[0].canvas)
        running.own_ns += time.perf_counter_ns() - begun

    def _give(self, call: AttentionCall, own: Callable[[], torch.Tensor]) -> torch.Tensor | None:
        running = self._running
        if running is None:
            return None
        if running.layer in running.changing:
            return self._intervene(running, call, own)
        return self._merged(running, call) if running.denoises else None

    def _intervene(self, running: RunningPass, call: AttentionCall, own: Callable[[], torch.Tensor]) -> torch.Tensor:
        """What the model would get without interventions, then these."""
        where = f"{self._layers[running.layer][0]}: {call.function}"
        if torch.is_grad_enabled() and any(x.requires_grad for x in (call.q, call.k, call.v)):
            raise UsageError(f"{where}: {NO_GRADIENTS}")
        out = self._merged(running, call)
        if out is None:
            call.out = out = own()
            running.read = call.k
            self._take(running, call)
        begun = time.perf_counter_ns()
        with torch.no_grad():
            out = running.intervene(self._interventions, self._batch.sequences, out, where,
                                    self._shapes.first)
        running.own_ns += time.perf_counter_ns() - begun
        return out

    def _merged(self, running: RunningPass, call: AttentionCall) -> torch.Tensor | None:
        """The merged parts, for a layer whose own function was already found to equal them."""
        if running.layer not in self._checked - running.stated:
            return None
        begun = time.perf_counter_ns()
        with torch.no_grad():
            given = running.give_attention(call, self._layers[running.layer][0], self._shapes)
        if given is None:  # what it took is the recorder's
            running.own_ns += time.perf_counter_ns() - begun
        running.read = call.k
        return given

    def _after(self, output: Any) -> None:
        running = None if torch.compiler.is_compiling() else self._running
        if running is None or self._idle() or self._thread != threading.get_ident():
            return
        if output is None:  # the model raised an error: the pass is lost, but the loop may go on
            self._abandon()
            return
        self._end_watch()
        self._running = None
        begun = time.perf_counter_ns()
        running.end(begun)
        with torch.no_grad():
            running.take_computed(self._recorded if self._looks_inside else [])
            changes, self._changes = self._changes, []
            self._order.follow(running.given, running.read, running.computed, output)
            self._rows.decided(changes)
            if self._records(running) or running.changing:
                stored = self._recorded if self._records(running) else []
                needed = self._looked_at if running.denoises else {*stored, *running.changing}
                running.require_layers(sorted(needed), self._layers, type(uncompiled(self._model)).__name__)
                self._shapes.the_one([name for name, _ in self._layers])
            running.require_patched(self._layers)
            logits = running.given.own(logits_of(output))
            running.bring_together()
            self._rows.open(self._batch, running, logits, self._model_shape())
            predictions = self._rows.collect(self._batch, running, logits, self._histories, self._first_predictions)
            self._shift.take(running, predictions)

    def _end_watch(self) -> None:
        if self._watch is not None:
            self._watch.end()
            self._watch = None

    def _abandon(self) -> None:
        """Handles a pass that won't end. Its input showed what the previous pass decided. But if the keys of a batch
        are kept, only the end of the pass shows whether its order changed."""
        self._end_watch()
        running, self._running = self._running, None
        changes, self._changes = self._changes, []
        if running is None:
            return
        for sequence, one in zip(self._batch.sequences, running.passes):
            sequence.retract(one)
        if running.given.batch == 1 or not running.given.reads_kept_keys:
            self._rows.decided(changes)


def _rising(positions: Any) -> list[list[int]] | None:
    """The positions given to run.step() as [S or 1, R]."""
    if positions is None:
        return None
    rows = positions.tolist() if hasattr(positions, "tolist") else list(positions)
    rows = [list(row) for row in rows] if rows and hasattr(rows[0], "__len__") else [rows]
    for row in rows:
        if not row or len(row) != len(rows[0]) or row[0] < 0 or any(b <= a for a, b in zip(row, row[1:])):
            raise UsageError("run.step: positions: expected ascending positions, the same number for each sequence")
    return rows
