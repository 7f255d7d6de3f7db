"""Gives the inputs of each pass of an exact run again, with a policy: how far its attention and the model's output are
from the exact ones on one trajectory (probe/verify/fidelity.h)."""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Iterator
from typing import Any

import torch

from ..errors import UsageError
from ..recording.calls import AttentionCall
from ..recording.model import logits_of
from ..recording.observer import Observer
from ..recording.passes import RunningPass
from ..recording.statistics import SpareRows, predictions_of
from ..recording.steps import Kind
from .applier import Applier
from .policy import Attention, Parts, exact_attention


def _sums(got: torch.Tensor, true: torch.Tensor) -> torch.Tensor:
    """[S, H, 4] over rows and channels of [S, H, B, D]."""
    true = true.float()
    error = got.float() - true
    sums = [x.sum((2, 3), dtype=torch.float64) for x in (error.abs(), error.square(), true.square())]
    elements = torch.full_like(sums[0], error.shape[2] * error.shape[3])
    return torch.stack([*sums, elements], -1).cpu()


def approximated_heads(parts: Parts, keys: int) -> torch.Tensor:
    """[S, H]: heads whose output isn't that of every external key at this step."""
    sequences, heads = parts.external.shape[:2]
    found = torch.zeros(sequences, heads, dtype=torch.bool)
    if parts.reused is not None:
        found |= parts.reused
    if parts.selected is not None:
        found |= (parts.selected >= 0).any(-1).any(-1).cpu().unsqueeze(-1)
    elif parts.reused is None and parts.keys_read is not None:  # an own policy's attention
        found |= (parts.keys_read.cpu() < keys).any(-1, keepdim=True)
    return found


class Fidelity:
    """Sums over the steps, by step, layer and head."""

    def __init__(self) -> None:
        # By step, by layer: [H, 4], sums of |e|, e^2 and ref^2, and elements.
        self.first_order: dict[int, dict[int, torch.Tensor]] = {}
        self.approximated: dict[int, dict[int, torch.Tensor]] = {}
        self.propagated: dict[int, dict[int, torch.Tensor]] = {}
        self.output: dict[int, list[float]] = {}  # of the model's output: sum e^2, sum ref^2
        self.kl: dict[int, list[float]] = {}  # by step, of masked positions
        self.same_top1 = 0

    @staticmethod
    def add(to: dict[int, dict[int, torch.Tensor]], step: int, layer: int, sums: torch.Tensor) -> None:
        of_step = to.setdefault(step, {})
        of_step[layer] = of_step[layer] + sums if layer in of_step else sums

    def include(self, layers: Fidelity) -> None:
        """The errors of a pass's layers."""
        for mine, theirs in ((self.first_order, layers.first_order), (self.approximated, layers.approximated),
                             (self.propagated, layers.propagated)):
            for step, of_step in theirs.items():
                for layer, sums in of_step.items():
                    self.add(mine, step, layer, sums)


class ExactRun(Observer):
    """Sees what the exact run's layers attend to."""

    _name, _which = "compare", "given"

    def __init__(self, model: torch.nn.Module, settings: Any, decoder_layers: Any, keeps: bool, group: Any) -> None:
        Observer.__init__(self, model, settings, decoder_layers=decoder_layers, looks_inside=True,
                          check=lambda shape, where: None)
        self._keeps, self._group = keeps, group
        self.outputs: dict[int, torch.Tensor] = {}  # of the last pass, by layer: [S, H, B, D]
        self.steps = self.key_rows = self.commit_rows = 0
        self._rows_now = 0  # key rows of the running pass

    def _begin(self, running: RunningPass) -> None:
        self.outputs, self._rows_now = {}, 0

    def _take(self, running: RunningPass, call: AttentionCall) -> None:
        if not running.denoises or running.layer < 0 or self._ignores(running, call):
            return
        with torch.no_grad():
            where = f"{self._layers[running.layer][0]}: {call.function}"
            _, block = running.block_of(call, self._shapes, where)
            self._rows_now += (block.k.shape[2] - running.geometry.rows) * block.k.shape[1] * block.q.shape[0]
            if self._keeps and call.out is not None:
                self.outputs[running.layer] = block.rows.of(call.out, 2).detach().clone()

    def _end(self, running: RunningPass, output: Any) -> None:
        shape = self._shapes.first
        self.steps += sum(one.is_step for one in running.passes)
        self.key_rows += self._rows_now
        if shape is not None:
            self.commit_rows += sum(one.context_length * shape.kv_heads * self._num_layers for one in running.passes
                                    if one.kind is Kind.COMMIT and not one.is_step)


class Shadow(Applier):
    """Applies the policy, and compares each layer with exact attention of the same queries, and with the exact run."""

    def __init__(self, exact: ExactRun, *given: Any, group: Any, **more: Any) -> None:
        Applier.__init__(self, *given, **more)
        self._exact, self._group, self.fidelity = exact, group, Fidelity()
        self._now = Fidelity()  # of the running pass
        self.last: RunningPass | None = None  # that ended

    def _forget(self) -> None:
        Applier._forget(self)
        self._now, self.last = Fidelity(), None

    def _begin(self, running: RunningPass) -> None:
        self._now = Fidelity()
        Applier._begin(self, running)

    def _end(self, running: RunningPass, output: Any) -> None:
        Applier._end(self, running, output)
        self.fidelity.include(self._now)
        self.last = running

    def _attend(self, running: RunningPass, given: Attention) -> Parts:
        parts, layer = Applier._attend(self, running, given), running.layer
        first = _sums(parts.out, exact_attention(given).out)
        approximated = approximated_heads(parts, given.k_ext.shape[2])
        whole = self._exact.outputs.get(layer)
        apart = None if whole is None else _sums(parts.out, whole)
        for slot, step in enumerate(self._steps):
            if not (step.denoises or step.clean):
                continue
            now = self._now
            now.add(now.first_order, step.step, layer, first[slot])
            now.add(now.approximated, step.step, layer, first[slot] * approximated[slot].unsqueeze(-1))
            if apart is not None:
                now.add(now.propagated, step.step, layer, apart[slot])
        return parts

    def outputs(self, running: RunningPass, exact: Any, mine: Any) -> None:
        """Compares the model's outputs for one pass."""
        logits = [None if self._settings.video is not None else logits_of(output) for output in (exact, mine)]
        if logits[0] is None or logits[1] is None:
            tensors = [next(_tensors(output), None) for output in (exact, mine)]
            if tensors[0] is not None and tensors[0].shape == tensors[1].shape:
                exact, mine = (tensor.float() for tensor in tensors)
                error, true = (mine - exact).square().sum(), exact.square().sum()
                sums = self.fidelity.output.setdefault(running.passes[0].step, [0.0, 0.0])
                sums[0], sums[1] = sums[0] + error.item(), sums[1] + true.item()
            return
        for slot, one in enumerate(running.passes):
            spare = SpareRows()
            rows = [predictions_of(one, None, running.given, x[slot], self._settings, spare) for x in logits]
            if rows[0] is None or one.kind is not Kind.DENOISE:
                continue
            masked = torch.tensor(one.masked[:len(rows[0])], device=rows[0].logits.device)
            true, got = (x.logits[masked].double().log_softmax(-1) for x in rows)
            kl = torch.where(true.exp() > 0, true.exp() * (true - got), 0.0).sum(-1)
            self.fidelity.kl.setdefault(one.step, []).extend(kl.tolist())
            self.fidelity.same_top1 += int((true.argmax(-1) == got.argmax(-1)).sum())


def _tensors(output: Any) -> Iterator[torch.Tensor]:
    """The float tensors in a model's output, the first one first."""
    if isinstance(output, torch.Tensor):
        if output.is_floating_point():
            yield output
        return
    several = output.values() if isinstance(output, dict) else output if isinstance(output, (list, tuple)) else vars(
        output).values() if hasattr(output, "__dict__") else ()
    for one in several:
        if isinstance(one, (torch.Tensor, list, tuple, dict)):
            yield from _tensors(one)


# --- the state of a model before a pass -------------------------------------------------------------------------------

_OWN = set(torch.nn.Module().__dict__) | {"config", "forward"}


class _State:
    """What modules keep besides their parameters: buffers and attributes such as caches."""

    def __init__(self, model: torch.nn.Module, arguments: Any) -> None:
        """Copies it, together with a pass's arguments: what they share stays shared."""
        modules = list(model.modules())
        held = [(dict(module._buffers), {name: value for name, value in module.__dict__.items() if name not in _OWN})
                for module in modules]
        memo: dict[int, Any] = {id(one): one for one in (*modules, *model.parameters())}
        memo.update((id(module.config), module.config) for module in modules if hasattr(module, "config"))
        try:
            self.arguments, copies = copy.deepcopy((arguments, held), memo)
        except Exception as error:
            raise UsageError(f"compare: the inputs of a pass can't be copied to give them again "
                             f"({type(error).__name__}: {error}). HINT: compare(..., replay=False)") from error
        self._copies = list(zip(modules, copies))

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Within the block, the modules have it."""
        now = []
        for module, (buffers, attributes) in self._copies:
            now.append((module, dict(module._buffers), {name: module.__dict__[name] for name in module.__dict__
                                                        if name not in _OWN}))
            self._set(module, buffers, attributes)
        try:
            yield
        finally:
            for module, buffers, attributes in now:
                self._set(module, buffers, attributes)

    @staticmethod
    def _set(module: torch.nn.Module, buffers: dict[str, Any], attributes: dict[str, Any]) -> None:
        module._buffers.clear()
        module._buffers.update(buffers)
        for name in [name for name in module.__dict__ if name not in _OWN and name not in attributes]:
            del module.__dict__[name]
        module.__dict__.update(attributes)


class Generators:
    """The states of torch's random numbers: of the CPU, and of every GPU if the process uses any."""

    def __init__(self) -> None:
        self._devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
        self._states = torch.get_rng_state(), [torch.cuda.get_rng_state(device) for device in self._devices]

    def set(self) -> None:
        torch.set_rng_state(self._states[0])
        for device, state in zip(self._devices, self._states[1]):
            torch.cuda.set_rng_state(state, device)

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Within the block, they are these. What it draws takes nothing from those around it."""
        now = Generators()
        self.set()
        try:
            yield
        finally:
            now.set()


class Replay:
    """While it is open, each pass of the model runs exactly and then once more with the policy. The loop gets the exact
    result."""

    def __init__(self, model: torch.nn.Module, exact: ExactRun, shadow: Shadow) -> None:
        self._model, self._exact, self._shadow = model, exact, shadow
        self._state: tuple[_State, Generators] | None = None
        self._inside = False
        self._hooks: list[Any] = []

    def __enter__(self) -> Replay:
        try:
            self._exact._open_hooks()
            self._shadow.__enter__()
            self._shadow._paused = True
            self._hooks = [self._model.register_forward_pre_hook(self._before, with_kwargs=True),
                           self._model.register_forward_hook(self._after)]
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, *error: Any) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self._shadow.__exit__(None, None, None)
        self._exact._close_hooks()
        self._exact._abandon()
        self._exact.end_sequence()
        self._exact.outputs, self._state = {}, None

    def _before(self, module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        if not self._inside and not self._exact._paused and self._model is module:
            self._state = _State(module, (args, kwargs)), Generators()

    def _after(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        if self._inside or self._state is None:
            return
        (state, generators), self._state = self._state, None
        args, kwargs = state.arguments
        passes = self._shadow.passes
        self._inside, self._exact._paused, self._shadow._paused = True, True, False
        try:
            with state.in_place(), generators.in_place():
                mine = module(*args, **kwargs)
        finally:
            self._inside, self._exact._paused, self._shadow._paused = False, False, True
        running = self._shadow.last
        if self._shadow.passes > passes and running is not None and running.denoises:
            with torch.no_grad():
                self._shadow.outputs(running, output, mine)


def quantile(values: list[float], share: float) -> float:
    """By linear interpolation, of sorted values."""
    if not values:
        return math.nan
    place = share * (len(values) - 1)
    low = int(place)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (place - low)
