"""Follows another author's loop: hooks on a model and its layers show its passes, the blocks and steps of its
sequences, and the attention of its layers. What becomes of them is up to the class that extends it."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence as SequenceOf
from typing import Any

import torch

from ..errors import UsageError
from .attention import Watch, unseen, watch_multihead
from .calls import AttentionCall, stated_call
from .compiled import run_as_compiled, run_eagerly, uncompiled
from .continuous import batch_for, branch_of, number_of, ranges_of
from .cross_attention import watch_cross_attention
from .entrances import Entrances
from .geometry import Geometry
from .interface import unwatch_interface, watch_interface
from .model import NUM_LAYERS, Inputs, encoder_layers, find_layers
from .order import BatchOrder
from .passes import RunningPass
from .settings import Settings, config_value
from .shapes import LayerShape, LayerShapes
from .steps import Change, PassInput, Statement, kind_named
from .trails import Lost


_open: list[Observer] = []  # of this process


class Observer:
    """The ``run`` of ``with blockscope.record(...) as run`` and ``blockscope.apply(...)``. The loop needs none of its
    methods if the model's inputs show everything."""

    _name, _which = "record", "recorded"  # the function that the user called, and its model, for messages
    _gives = False  # whether it may compute attention in place of the model
    _group: Any = None  # observers of one group may be open on one model

    def __init__(self, model: torch.nn.Module, settings: Settings, *, decoder_layers: Any, looks_inside: bool,
                 check: Callable[[LayerShape, str], None]) -> None:
        self._model, self._settings = model, settings  # as it is called
        model = uncompiled(model)
        self._entrances = Entrances(self._model, settings)
        self._looks_inside = looks_inside
        self._layers = find_layers(model, decoder_layers) if looks_inside or decoder_layers is not None else []
        self._num_layers = len(self._layers) or config_value(model, *NUM_LAYERS) or 1
        self._shapes = LayerShapes(check)
        self._order = BatchOrder()
        self._batch = batch_for(settings)
        self._statement = Statement()
        self._running: RunningPass | None = None
        self._changes: list[Change] = []  # the decisions of the previous pass, from the running pass's input
        self._watch: Watch | None = None
        self._thread = 0
        self._hooks: list[Any] = []
        self._paused = False
        self._pid = os.getpid()
        self._num_passes = 0

    # --- what users call ----------------------------------------------------------------------------------------------

    def begin_sequence(self, *, prompt_length: int | None = None, gen_length: int | None = None,
                       name: str | SequenceOf[str] = "") -> None:
        """States that the next pass begins a sequence (or a batch of them). Also states what its inputs don't show: the
        number of prompt tokens, the number of positions after them, and the name."""
        names = [name] if isinstance(name, str) else list(name)
        self._batch.state_next(prompt_length, gen_length, names if names != [""] else [])

    def end_sequence(self, ids: Any = None, *, reason: str = "length") -> None:
        """Ends the current sequences, so that the next pass begins others. A recording also takes
        their last tokens."""
        self._batch = batch_for(self._settings)

    def step(self, *, start: int | None = None, positions: Any = None, block_start: int | None = None,
             kind: str | None = None, timestep: float | None = None, external: Any = None,
             branch: int | None = None) -> None:
        """States what the inputs of the next pass don't show: the position of its first token, or those of all its
        tokens; the position of the block's first token; and whether it is a ``prefill``, ``denoise`` or ``commit``.

        positions: ascending, [R] or [S, R]. As many as the pass has tokens: their positions. Fewer: the positions that
        the model computes, if it gets the whole sequence and skips rows inside.

        timestep, external, branch: of a continuous model. external: the positions of the keys before the block's own,
        such as ``[(0, 4), (12, 24)]``, where a rolling cache doesn't tell. branch: 0, 1, ... of classifier-free
        guidance that calls the model once for each branch; each branch is a sequence of the trace."""
        named = kind_named(kind)
        if start is not None and positions is not None:
            raise UsageError("run.step: expected either start or positions, got both")
        self._statement = Statement(start, block_start, named, _rising(positions), number_of(timestep),
                                    ranges_of(external), branch_of(branch))

    def attention(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *,
                  mask: torch.Tensor | None = None, scale: float | None = None) -> torch.Tensor | None:
        """States the attention of a layer that can't be seen. Call it while the layer runs. In this pass, the layer's
        own calls are then ignored. Outside an observed pass, the call does nothing.

        layer: its number among the decoder layers, from 0. q [S, H, T, D]: queries of the pass's tokens. k, v [S, K, N,
        D]: including the pass's own keys; query head h reads KV head h // (H / K). mask and scale are those of
        ``scaled_dot_product_attention``. mask: True where a key is seen, or a tensor that is added to the scores.
        scale: None is D ** -0.5.

        Returns None: the layer computes its attention itself. ``blockscope.apply`` returns the policy's attention
        [S, H, T, D] at denoising steps, which the layer must then use."""
        running = self._running
        if torch.compiler.is_compiling() or running is None or self._watch is None or self._idle():
            return None
        if self._thread != threading.get_ident():
            return None
        if isinstance(layer, bool) or not isinstance(layer, int) or not 0 <= layer < self._num_layers:
            raise UsageError(f"run.attention: layer: expected 0 to {self._num_layers - 1}, got {layer!r}")
        with unseen():
            call = stated_call(q, k, v, mask, scale, running.given.batch)
            running.state(layer)
            before, running.layer = running.layer, layer
            try:
                return self._stated(running, call)
            finally:
                running.layer = before

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Passes within the ``with`` block are left out."""
        before, self._paused = self._paused, True
        try:
            yield
        finally:
            self._paused = before

    # --- hooks --------------------------------------------------------------------------------------------------------

    def _open_hooks(self) -> None:
        self._refuse_twice()
        _open.append(self)
        if self._looks_inside:
            watch_interface()
        if self._settings.compiled == "eager":
            run_eagerly()
        self._hooks = self._entrances.open(self._before, self._after)
        looked_into = [self._layers] if self._looks_inside else []
        if self._looks_inside and self._settings.canvas and self._settings.at_least("full"):
            looked_into.append(encoder_layers(uncompiled(self._model), len(self._layers)))
        for index, (_, layer) in ((index, layer) for layers in looked_into for index, layer in enumerate(layers)):
            self._hooks += [
                layer.register_forward_pre_hook(self._layer_hook(index), with_kwargs=True),
                layer.register_forward_hook(self._layer_end)]
        self._hooks += watch_multihead(uncompiled(self._model)) if self._looks_inside else self._guard()
        if self._settings.video is not None:
            self._hooks += watch_cross_attention(uncompiled(self._model), self._enter_cross_attention)

    def _refuse_twice(self) -> None:
        """Two recordings of a model see the same. An applied policy changes what others see."""
        mine = uncompiled(self._model)
        for other in _open:
            theirs = uncompiled(other._model)
            related = mine is theirs or any(one is theirs for one in mine.modules()) or any(
                one is mine for one in theirs.modules())
            together = self._group is not None and self._group is other._group
            if related and not together and "apply" in (self._name, other._name):
                raise UsageError(
                    f"blockscope.{self._name}: blockscope.{other._name} is open on this {type(mine).__name__} already, "
                    "and one of them changes what the other sees. HINT: one after the other; blockscope.compare(model, "
                    "loop, ...) measures a policy against the exact run")

    def _close_hooks(self) -> None:
        self._end_watch()
        if self in _open:
            _open.remove(self)
        for hook in self._hooks:
            hook.remove()
        if self._hooks and self._looks_inside:
            unwatch_interface()
        if self._hooks and self._settings.compiled == "eager":
            run_as_compiled()
        self._hooks = []

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
                f"{layer} ran outside a call of the {self._which} {type(self._model).__name__}, so its pass can't be "
                f"seen. HINT: {self._name}(...) the module that the loop calls; or leave the pass out with "
                "run.paused()")

    def _idle(self) -> bool:
        return self._paused or os.getpid() != self._pid

    def _before(self, inputs: Inputs, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if torch.compiler.is_compiling() or self._idle():  # a hook must not become part of compiled code
            return
        if self._running is not None:
            if self._thread != threading.get_ident():
                raise UsageError(f"two threads run the {self._which} model at once. HINT: {self._name}(...) one loop "
                                 "at a time")
            self._abandon()  # an interrupt, or an error that the loop caught
        begun = time.perf_counter_ns()
        with torch.no_grad():
            statement, self._statement = self._statement, Statement()
            given = self._admit(inputs.read(args, kwargs, statement))
            if self._batch.starts_anew(given):
                self._end_sequences(None, "length")
                self._batch.begin(given)
            observed = self._batch.observe(given)
            self._changes = [change for _, change in observed]
            self._decided(self._changes)
            running = RunningPass(self._num_passes, given, [one for one, _ in observed], self._batch.sequences,
                                  self._settings, self._num_layers)
            self._num_passes += 1
        running.own_ns += time.perf_counter_ns() - begun
        self._running, self._thread = running, threading.get_ident()
        running.begin(begun)
        self._begin(running)
        if self._looks_inside and (running.denoises or running.changing):
            running.geometry = Geometry.of(given, observed[0][0], self._batch.sequences[0])
        if self._watches(running):
            self._watch = Watch(self._see, self._lose, self._give if self._gives else None, given.batch, given.length,
                                refuses=self._looks_inside)

    def _layer_hook(self, index: int) -> Any:
        def before(layer: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if torch.compiler.is_compiling():
                return None
            running = self._running
            self._refuse_outside(self._layers[index][0])
            if running is None or self._idle():
                return None
            running.layer = index
            return self._enter_layer(running, args, kwargs)

        return before

    def _layer_end(self, layer: torch.nn.Module, args: Any, output: Any) -> None:
        if not torch.compiler.is_compiling() and self._running is not None:
            self._running.layer = -1

    def _enter_cross_attention(self, name: str) -> None:
        if self._running is not None:
            self._running.cross_attention = name

    def _lose(self, lost: Lost) -> None:
        if self._running is not None:
            self._running.lost.setdefault(self._running.layer, []).append(lost)

    def _see(self, call: AttentionCall) -> None:
        running = self._running
        if running is None or running.skips(call):
            return
        running.read = call.k
        if not self._looks_inside and self._shapes.first is None:
            self._shapes.look(call, running.given.length)
        self._take(running, call)

    @staticmethod
    def _ignores(running: RunningPass, call: AttentionCall) -> bool:
        """Whether the running layer's attention is stated, and this call is one of its own."""
        return running.layer in running.stated and not call.stated

    def _stated(self, running: RunningPass, call: AttentionCall) -> torch.Tensor | None:
        """What run.attention() returns."""
        self._see(call)
        return None

    def _give(self, call: AttentionCall, own: Callable[[], torch.Tensor]) -> torch.Tensor | None:
        return None if self._running is None else self._replace(self._running, call, own)

    def _after(self, output: Any) -> None:
        running = None if torch.compiler.is_compiling() else self._running
        if running is None or self._idle() or self._thread != threading.get_ident():
            return
        if output is None:  # the model raised an error: the pass is lost, but the loop may go on
            self._abandon()
            return
        self._end_watch()
        self._running = None
        running.end(time.perf_counter_ns())
        with torch.no_grad():
            self._end(running, output)

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
            self._keep_decided(changes)

    # --- what becomes of a pass ---------------------------------------------------------------------------------------

    def _admit(self, given: PassInput) -> PassInput:
        """The inputs of a pass that begins."""
        return given

    def _end_sequences(self, ids: list[list[int]] | None, reason: str) -> None:
        """The current sequences have ended."""

    def _decided(self, changes: list[Change]) -> None:
        """The input of the pass that begins shows what the previous one decided."""

    def _keep_decided(self, changes: list[Change]) -> None:
        """The same, of a pass that won't end."""

    def _begin(self, running: RunningPass) -> None:
        """A pass begins."""

    def _watches(self, running: RunningPass) -> bool:
        """Whether its attention is looked at. The keys of a batch show its order."""
        return running.denoises or running.given.batch > 1

    def _enter_layer(self, running: RunningPass, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A layer begins with these arguments; the result is that of a forward pre-hook."""
        return None

    def _take(self, running: RunningPass, call: AttentionCall) -> None:
        """The running layer has attended."""
        raise NotImplementedError

    def _replace(self, running: RunningPass, call: AttentionCall,
                 own: Callable[[], torch.Tensor]) -> torch.Tensor | None:
        """The result of a call of scaled_dot_product_attention in place of its own(); None: its own."""
        return None

    def _end(self, running: RunningPass, output: Any) -> None:
        """The pass has ended with this output of the model."""
        raise NotImplementedError


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
