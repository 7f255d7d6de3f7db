"""A policy of the user's own class: the interface of ``@blockscope.policy`` (plugins.py), called as the runtime calls
it (python/runtime/python_policy.cpp)."""

from __future__ import annotations

import contextlib
import inspect
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .._arguments import whole_number
from ..errors import Error, UsageError
from ..recording.torch_operators import merged
from . import operators
from .policy import Attention, ModelShape, Parts, Policy, Step, exact_attention
from .selection import KeySet, selected_attention

_FIELDS = ("external", "lse_external", "internal", "lse_internal", "out", "selected", "keys_read", "rows_scored",
           "reused", "residual", "lse_residual")


@dataclass(frozen=True)
class ExternalKeys:
    key: torch.Tensor  # [1, K, N, D]
    value: torch.Tensor
    length: torch.Tensor  # [1]


class OwnPolicy(Policy):
    def __init__(self, text: str, made: Any, most: int | None = None) -> None:
        self.text, self._made, self._most = text, made, most
        self._file = _file_of(made)
        self.settings = {"policy": text, "plugin": os.path.basename(self._file)}
        self._steps: Sequence[Step] = ()
        names = [name for name in ("choose", "attend") if self._has(name)]
        if len(names) != 1:
            raise UsageError(f"{self._file}: expected a class with either choose() or attend(), got "
                             f"{'both' if names else 'none'}")

    def _has(self, name: str) -> Callable[..., Any] | None:
        return getattr(self._made, name, None)

    @contextlib.contextmanager
    def _call(self, function: str, layer: int = -1, slot: int = -1) -> Iterator[None]:
        """Errors name the call."""
        try:
            yield
        except Exception as error:
            where = "" if layer < 0 else f", layer {layer}"
            if slot >= 0:
                step = self._steps[slot]
                where += f", step {step.step} of block {step.block} of sequence {step.sequence}"
            what = str(error) if isinstance(error, Error) else f"{type(error).__name__}: {error}"
            raise Error(f"policy {self.text} ({self._file}): {function}(){where}: {what}") from error

    def setup(self, shape: ModelShape) -> None:
        setup = self._has("setup")
        if setup is not None:
            with self._call("setup"):
                setup(shape)

    def begin_pass(self, steps: Sequence[Step]) -> None:
        self._steps = steps
        for step in steps:
            if step.denoises and step.run_step == 1:
                step.memory.clear()
        begin = self._has("begin_pass")
        if begin is not None:
            with self._call("begin_pass"):
                begin(list(steps))

    def end_sequences(self) -> None:
        self._steps = ()

    def _selected_size(self, longest: int) -> int:
        own = self._has("selected_size")
        if own is not None:
            with self._call("selected_size"):
                return int(own(longest))
        return self._most or longest

    def attend(self, given: Attention) -> Parts:
        for step in self._steps:
            step.scale = given.scale
        return self._sparse(given) if self._has("choose") else self._own(given)

    # --- choose -------------------------------------------------------------------------------------------------------

    def _sparse(self, given: Attention) -> Parts:
        length, sets = given.k_ext.shape[2], []
        scored = [0] * len(self._steps)
        for slot, step in enumerate(self._steps):
            chosen = None
            if step.denoises and length > 0:
                with self._call("choose", given.layer, slot):
                    chosen, scored[slot] = self._choice(given.of_slot(slot), step)
            sets.append(chosen)
        parts = exact_attention(given) if all(one is None for one in sets) else selected_attention(given, sets)
        for slot, (step, one) in enumerate(zip(self._steps, sets)):
            if one is None and step.denoises and length > 0 and self._observes(given.layer, slot, step):
                scored[slot] += length
                mine = given.of_slot(slot)
                with self._call("observe", given.layer, slot):
                    self._made.observe(given.layer, mine.q, mine.k_ext, parts.lse_external[slot:slot + 1], step)
        parts.rows_scored = scored if any(scored) else None
        return parts

    def _choice(self, given: Attention, step: Step) -> tuple[KeySet | None, int]:
        result = self._made.choose(given.layer, given.q, given.k_ext, step)
        length = given.k_ext.shape[2]
        scored = length
        if isinstance(result, tuple):
            if len(result) != 2:
                raise Error("expected (positions, rows read), got another tuple")
            result, rows = result
            scored = _whole("rows read", rows)
        elif result is None:
            scored = 0
        if result is None:
            return None, scored
        return KeySet(_positions("positions", result, given, self._selected_size(length))), scored

    def _observes(self, layer: int, slot: int, step: Step) -> bool:
        if self._has("observe") is None:
            return False
        wanted = self._has("observes")
        if wanted is None:
            return True
        with self._call("observes", layer, slot):
            return bool(wanted(layer, step))

    # --- attend -------------------------------------------------------------------------------------------------------

    def _own(self, given: Attention) -> Parts:
        found = []
        for slot, step in enumerate(self._steps):
            mine = given.of_slot(slot)
            if not step.denoises:
                found.append(exact_attention(mine))
                continue
            with self._call("attend", given.layer, slot):
                ops = operators.public()
                result = self._made.attend(given.layer, mine.q, mine.k_in, mine.v_in,
                                           ExternalKeys(mine.k_ext, mine.v_ext, mine.lengths), step, ops)
                found.append(self._parts(result, mine))
        return _joined(found)

    def _parts(self, result: Any, given: Attention) -> Parts:
        if isinstance(result, dict):
            unknown = [name for name in result if name not in _FIELDS]
            if unknown:
                raise Error(f"expected {', '.join(_FIELDS)}, got {unknown[0]}")
        of = result.get if isinstance(result, dict) else lambda name: getattr(result, name, None)
        q, length, kv_heads = given.q, given.k_ext.shape[2], given.k_ext.shape[1]

        def tensor(name: str, shape: Sequence[int], kind: torch.dtype) -> torch.Tensor:
            value = of(name)
            if value is None:
                raise Error(f"expected {name}, got a result without it")
            value = torch.as_tensor(value)
            if list(value.shape) != list(shape):
                raise Error(f"{name}: expected {list(shape)}, got {list(value.shape)}")
            return value.to(device=q.device, dtype=kind)

        sides = []
        for name in ("external", "internal", *(["residual"] if of("residual") is not None else [])):
            sides.append((tensor(name, q.shape, torch.float32), tensor(f"lse_{name}", q.shape[:3], torch.float32)))
        if of("out") is not None:
            out = tensor("out", q.shape, q.dtype)
        else:
            out, lse = sides[1]  # the block's own keys, which are never missing
            for side in (sides[0], *sides[2:]):
                out, lse = merged(*side, out, lse), torch.logaddexp(side[1], lse)
            out = out.to(q.dtype)
        if not all(bool(part.isfinite().all()) for part in (out, *(output for output, _ in sides))) or any(
                bool(lse.isnan().any()) for _, lse in sides):
            raise Error("expected finite numbers, got NaN or infinity")
        read, selected = torch.full((1, kv_heads), length), None
        if of("selected") is not None:
            selected = _positions("selected", of("selected"), given, self._selected_size(length)).unsqueeze(0)
            read = (selected >= 0).sum(2)
        if of("keys_read") is not None:
            read = torch.as_tensor(of("keys_read")).long()
            read = read.expand(kv_heads) if read.dim() == 0 else read
            if read.numel() != kv_heads or bool((read < 0).any()) or bool((read > length).any()):
                raise Error(f"keys_read: expected a number from 0 to {length}, or {kv_heads} of them")
            read = read.reshape(1, kv_heads)
        reused = of("reused")
        if reused is not None:
            reused = tensor("reused", [q.shape[1]], torch.bool).cpu().unsqueeze(0)
        scored = 0 if of("rows_scored") is None else _whole("rows_scored", of("rows_scored"))
        return Parts(out, *sides[0], *sides[1], keys_read=read, reused=reused, selected=selected,
                     rows_scored=[scored] if scored else None)


def _file_of(made: Any) -> str:
    try:
        return inspect.getfile(type(made))
    except (OSError, TypeError):  # a class of a notebook
        return type(made).__module__


def _whole(what: str, value: Any) -> int:
    number = whole_number(value)
    if number is None:
        raise Error(f"{what}: expected a whole number, got {value!r}")
    if number < 0:
        raise Error(f"{what}: expected 0 or more, got {number}")
    return number


def _positions(what: str, given: Any, attention: Attention, most: int) -> torch.Tensor:
    """[K, k] int32: distinct positions of the prefix, -1 pads."""
    kv_heads, length = attention.k_ext.shape[1:3]
    try:
        index = torch.as_tensor(list(given) if isinstance(given, range) else given)
    except (TypeError, ValueError, RuntimeError) as error:
        raise Error(f"{what}: expected a tensor, or what makes one, got {type(given).__name__}: {error}") from None
    index = index.long() if index.numel() == 0 else index
    shape = list(index.shape)
    if index.is_floating_point() or index.is_complex() or index.dtype == torch.bool:
        raise Error(f"{what}: expected whole numbers, got {str(index.dtype).removeprefix('torch.')}")
    if index.dim() == 3 and index.shape[0] == 1:
        index = index[0]
    if index.dim() == 1:
        index = index.expand(kv_heads, -1)
    if index.dim() != 2 or index.shape[0] != kv_heads:
        raise Error(f"{what}: expected [k], [{kv_heads}, k] or [1, {kv_heads}, k], got {shape}")
    if index.shape[1] > most:
        raise Error(f"{what}: expected at most {most} for each KV head, got {index.shape[1]}. HINT: selected_size() "
                    "says how many there may be; without it the option k does")
    for head, row in enumerate(index.tolist()):
        seen = [position for position in row if position != -1]
        outside = next((position for position in seen if not 0 <= position < length), None)
        if outside is not None:
            raise Error(f"{what}: KV head {head}: expected -1 or 0 to {length - 1}, got {outside}")
        if len(set(seen)) < len(seen):
            twice = next(position for position in seen if seen.count(position) > 1)
            raise Error(f"{what}: KV head {head}: expected every position once, got {twice} twice")
    return index.to(device=attention.k_ext.device, dtype=torch.int32).contiguous()


def _joined(found: list[Parts]) -> Parts:
    """The parts of the sequences as those of the batch."""
    outputs = [torch.cat([getattr(one, name) for one in found])
               for name in ("out", "external", "lse_external", "internal", "lse_internal")]
    heads = found[0].external.shape[1]
    read = reused = selected = scored = None
    if any(one.keys_read is not None for one in found):
        read = torch.cat([one.keys_read for one in found])
    if any(one.reused is not None for one in found):
        none = torch.zeros(1, heads, dtype=torch.bool)
        reused = torch.cat([none if one.reused is None else one.reused for one in found])
    if any(one.rows_scored is not None for one in found):
        scored = [0 if one.rows_scored is None else one.rows_scored[0] for one in found]
    return Parts(*outputs, keys_read=read, reused=reused, selected=selected, rows_scored=scored)
