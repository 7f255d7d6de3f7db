"""The recorder: turns the passes of a decoding loop into rows of a trace. It only observes. A row is written after the
next pass, because that pass's input shows what the row's pass decided."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import torch

from ..errors import RankError, UsageError
from . import kernels
from .calls import AttentionCall
from .canvases import Acceptance
from .compiled import uncompiled
from .continuous import batch_for
from .interventions import Interventions
from .layer_sizes import configured_sizes, require_window
from .model import HIDDEN_SIZE, NUM_HEADS, logits_of
from .observer import Observer
from .open_trace import OpenTrace, add_note
from .order import BatchOrder
from .passes import NO_GRADIENTS, RunningPass
from .ranks import Ranks
from .routers import watch_routers
from .rows import RowWriter
from .settings import Settings, config_value
from .shapes import LayerShape, assumed_shape, configured_shape, with_sizes
from .shift import ShiftCheck
from .statistics import History, Predictions
from .steps import Change, PassInput


class Recorder(Observer, OpenTrace):
    """The ``run`` of ``with blockscope.record(...) as run``. The loop needs none of its methods if the model's inputs
    show everything."""

    def __init__(self, model: torch.nn.Module, path: bytes, settings: Settings, ranks: Ranks, *, tokenizer: Any,
                 decoder_layers: Any, force: bool) -> None:
        if settings.attention != "observe":
            kernels.require(uncompiled(model), settings.attention)
        self._ranks = ranks
        self._gives = settings.attention == "replace"
        Observer.__init__(self, model, settings, decoder_layers=decoder_layers, check=ranks.check,
                          looks_inside=settings.at_least("summary") or bool(settings.interventions))
        model = uncompiled(model)
        heads = config_value(model, *NUM_HEADS)
        settings = settings.within(self._num_layers, heads)
        self._whole = settings, settings.recorded_layers(self._num_layers)  # of all ranks
        settings, self._recorded = ranks.own(*self._whole, self._layers)
        self._settings, self._batch = settings, batch_for(settings)
        self._interventions = Interventions(settings.interventions, self._num_layers, heads, settings.regions)
        shown = self._recorded if settings.at_least("summary") else []
        self._looked_at = {*shown, *self._interventions.layers}
        self._configured = None if self._looks_inside else configured_shape(model)
        # Windows of layers that are alike otherwise are only recorded of a canvas.
        windows = settings.canvas or settings.autoregressive
        self._sizes = configured_sizes(model, self._num_layers, windows) if ranks.count == 1 else None
        if self._sizes is not None and (self._sizes.alike or not settings.canvas and self._sizes.of_one_shape):
            self._sizes = None
        if self._sizes is not None and settings.heads is not None and heads is not None:
            self._shapes.recorded_kv = self._sizes.read_by(settings.heads, heads, self._recorded)
        self._acceptance = Acceptance(model, settings)
        OpenTrace.__init__(self, path, force, RowWriter(path, settings, self._recorded, self._whole, ranks, model,
                                                        tokenizer, force))
        self._histories: list[History] = []
        self._first_predictions: list[tuple[tuple[int, int], Predictions | None]] = []
        self._shift = ShiftCheck(settings)
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
        self._open_hooks()
        self._hooks += self._acceptance.open()
        if self._settings.router:
            self._hooks += watch_routers([(index, self._layers[index][1]) for index in self._recorded],
                                         self._take_routed)

    def _take_routed(self, layer: int, expert: torch.Tensor, weight: torch.Tensor) -> None:
        if self._running is not None and not self._idle():
            with torch.no_grad():
                self._running.take_routed(layer, expert, weight)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        self._close_hooks()
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
            self._forget()
            self._rows.release()
            self._ranks.close()
        if isinstance(error, RuntimeError) and not isinstance(error, RankError):  # may be that of a collective
            reasons = self._ranks.reasons()
            if reasons:
                add_note(error, reasons)

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
        self._end_sequences(ids, reason)
        self._forget()

    def _forget(self) -> None:
        """Drops the tensors that are kept for the next pass of the current sequences."""
        self._batch, self._order = batch_for(self._settings), BatchOrder()
        self._histories, self._first_predictions = [], []

    # --- passes -------------------------------------------------------------------------------------------------------

    def _admit(self, given: PassInput) -> PassInput:
        self._rows.turn_to(given.statement.branch)
        return self._acceptance.add_to(self._ranks.begin_pass(self._num_passes, given))

    def _end_sequences(self, ids: list[list[int]] | None, reason: str) -> None:
        self._rows.end(self._batch, ids, reason)
        self._shift = ShiftCheck(self._settings)

    def _decided(self, changes: list[Change]) -> None:
        self._shift.decided(changes)

    def _keep_decided(self, changes: list[Change]) -> None:
        self._rows.decided(changes)

    def _begin(self, running: RunningPass) -> None:
        running.changing, running.to_patch = self._interventions.plan(running.passes, self._batch.sequences[0])

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

    @property
    def _sole_shape(self) -> LayerShape | None:
        """Of a model whose layers are alike."""
        return self._shapes.first if self._sizes is None else None

    def _model_shape(self) -> LayerShape:
        """The whole model's shape, for the header."""
        if self._ranks.count == 1:
            whole = (self._shapes.of_model([name for name, _ in self._layers], self._sizes) if self._looks_inside
                     else with_sizes(assumed_shape(self._model), self._sizes))
            if whole is not None and whole.sizes is not None:
                return whole
        # Without arrays, a rank's share needs no check, and doesn't tell the whole.
        seen = self._shapes.first if self._looks_inside or self._ranks.count == 1 else None
        return self._configured or (self._ranks.whole(seen) if seen is not None else assumed_shape(self._model))

    def _enter_layer(self, running: RunningPass, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        index = running.layer
        if index not in self._looked_at | running.to_patch or not running.denoises:
            return None
        named = next((name for name in ("hidden_states", "x") if name in kwargs), "")
        hidden, patches = args[0] if args else kwargs.get(named), index in running.to_patch
        if patches:
            hidden = running.patch_hidden(self._interventions, self._batch.sequences, hidden,
                                          self._layers[index][0], self._sole_shape)
        if index in self._looked_at:
            running.take_hidden(index, hidden)
        if not patches:
            return None
        return ((hidden, *args[1:]), kwargs) if args else (args, {**kwargs, named: hidden})

    def _take(self, running: RunningPass, call: AttentionCall) -> None:
        changing = running.layer in running.changing
        if not changing and not (self._records(running) and running.layer in self._looked_at):
            return
        if self._ignores(running, call):
            return
        if changing:
            raise UsageError(
                f"{self._layers[running.layer][0]}: {call.function}: an intervention needs attention that the recorder "
                "replaces: scaled_dot_product_attention that the layer itself calls on a CPU. HINT: load the model "
                "with attn_implementation=\"sdpa\", or name other layers with layers=...")
        self._keep(running, call)

    def _keep(self, running: RunningPass, call: AttentionCall) -> None:
        begun = time.perf_counter_ns()
        with torch.no_grad():
            check = running.layer not in self._checked
            name = self._layers[running.layer][0]
            if running.denoises or running.layer in running.changing:
                running.take_attention(call, name, self._shapes, check)
                if self._settings.canvas and self._sizes is not None and running.layer in running.attention:
                    require_window(self._sizes.windows[running.layer], running.attention[running.layer].num_external,
                                   running.passes[0].context_length, name)
                self._checked.add(running.layer)
            else:
                running.take_keys(call, name, self._shapes, self._batch.sequences[0].canvas)
        running.own_ns += time.perf_counter_ns() - begun

    def _replace(self, running: RunningPass, call: AttentionCall,
                 own: Callable[[], torch.Tensor]) -> torch.Tensor | None:
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
            self._keep(running, call)
        begun = time.perf_counter_ns()
        with torch.no_grad():
            out = running.intervene(self._interventions, self._batch.sequences, out, where,
                                    self._sole_shape)
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

    def _end(self, running: RunningPass, output: Any) -> None:
        running.take_computed(self._recorded if self._looks_inside else [])
        changes, self._changes = self._changes, []
        self._order.follow(running.given, running.read, running.computed, output)
        self._rows.decided(changes)
        if self._records(running) or running.changing:
            stored = self._recorded if self._records(running) else []
            needed = self._looked_at if running.denoises else {*stored, *running.changing}
            running.require_layers(sorted(needed), self._layers, type(uncompiled(self._model)).__name__)
            self._shapes.of_model([name for name, _ in self._layers], self._sizes)
        running.require_patched(self._layers)
        logits = None if self._settings.video is not None else running.given.own(logits_of(output))
        running.bring_together()
        self._rows.open(self._batch, running, logits, self._model_shape())
        predictions = self._rows.collect(self._batch, running, logits, self._histories, self._first_predictions)
        self._acceptance.take(running.given, predictions)
        self._shift.take(running, predictions)
