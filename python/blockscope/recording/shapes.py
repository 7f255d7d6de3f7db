"""Heads and channels of the layers' attention, from its calls. A configuration may not have the number of KV heads, or
may have that of other layers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch

from ..errors import UsageError
from .calls import AttentionCall
from .layer_sizes import LayerSizes
from .model import HIDDEN_SIZE, NUM_HEADS, NUM_KV_HEADS
from .settings import config_value


@dataclass(frozen=True)
class LayerShape:
    heads: int
    kv_heads: int
    channels: int  # of queries and keys
    value_channels: int
    scale: float
    sizes: LayerSizes | None = field(default=None, compare=False)  # of the whole model, where layers differ; kv_heads
    # and channels are then the largest

    def __str__(self) -> str:
        values = "" if self.value_channels == self.channels else f", {self.value_channels} of values"
        return (f"{self.heads} heads, {self.kv_heads} KV heads, {self.channels} channels{values}, "
                f"scale {self.scale:.4g}")


def configured_shape(model: torch.nn.Module) -> LayerShape | None:
    """None if the model's configuration leaves something open."""
    heads, kv_heads, channels = (config_value(model, *names) for names in (NUM_HEADS, NUM_KV_HEADS, ("head_dim",)))
    if heads is None or kv_heads is None or channels is None:
        return None
    return LayerShape(heads, kv_heads, channels, channels, channels ** -0.5)


def assumed_shape(model: torch.nn.Module) -> LayerShape:
    """The shape for a trace without arrays of attention, if no attention was seen."""
    kv_heads = config_value(model, *NUM_KV_HEADS)
    heads = config_value(model, *NUM_HEADS) or kv_heads or 1
    channels = config_value(model, "head_dim") or (config_value(model, *HIDDEN_SIZE) or heads) // heads
    return LayerShape(heads, kv_heads or heads, channels, channels, channels ** -0.5)


def with_sizes(shape: LayerShape, sizes: LayerSizes | None) -> LayerShape:
    """The same of a model whose layers have these sizes."""
    if sizes is None:
        return shape
    channels = max(sizes.channels)
    return replace(shape, kv_heads=max(sizes.kv_heads), channels=channels, value_channels=channels, sizes=sizes)


def unpacked(call: AttentionCall, length: int, where: str) -> AttentionCall:
    """transformers may pass one token's query heads as queries of its KV head. length: tokens of the pass."""
    sequences, kv_heads, group, dim = call.q.shape
    if group == 1 or length != 1:
        return call
    if kv_heads != call.k.shape[1]:
        raise UsageError(f"{where}: attends with {group} queries in a pass over one position")
    shape = (sequences, kv_heads * group, 1)
    call.q = call.q.reshape(*shape, dim)
    call.out = None if call.out is None else call.out.reshape(*shape, call.out.shape[-1])
    if isinstance(call.mask, torch.Tensor) and call.mask.shape[1] > 1:
        call.mask = call.mask.reshape(call.mask.shape[0], -1, 1, call.mask.shape[-1])
    return call


def shape_of(call: AttentionCall, where: str) -> LayerShape:
    """If the keys have as many heads as the queries, their contents show which heads are one repeated KV head."""
    heads, keys = call.q.shape[1], call.k.shape[1]
    if heads % keys != 0 or call.v.shape[1] != keys:
        raise UsageError(f"{where}: {heads} query heads over {keys} heads of keys and {call.v.shape[1]} of values. "
                         "HINT: record(..., level=\"trajectory\")")
    kv_heads = keys if keys < heads else _distinct(call, where)
    return LayerShape(heads, kv_heads, call.q.shape[3], call.v.shape[3], call.scale)


def _distinct(call: AttentionCall, where: str) -> int:
    """KV heads of a call in which each may be repeated in a row, as repeat_interleave() does it."""
    heads = call.k.shape[1]

    def equal(distance: int) -> list[bool]:
        """Whether each head is the one `distance` before it."""
        return torch.stack([(x[:, distance:] == x[:, :-distance]).all(-1).all(-1).all(0)
                            for x in (call.k, call.v)]).all(0).tolist()

    divisors = [size for size in range(2, heads + 1) if heads % size == 0]
    if not divisors:
        return heads
    same = equal(1)
    for group in reversed(divisors):
        if all(same[head - 1] for head in range(1, heads) if head % group != 0):
            return heads // group
    for period in [heads // size for size in divisors if size < heads]:
        if all(equal(period)):
            raise UsageError(
                f"{where}: expected {period} KV heads, each repeated {heads // period} times in a row, got the whole "
                f"row of them {heads // period} times. HINT: repeat them with repeat_interleave(), or leave that to "
                "scaled_dot_product_attention(..., enable_gqa=True)")
    return heads


class LayerShapes:
    """The shape of each layer, from its first call on. check: raises an error for a shape that can't be the model's."""

    def __init__(self, check: Callable[[LayerShape, str], None]) -> None:
        self._known: dict[int, LayerShape] = {}
        self._check = check
        self.recorded_kv: list[int] | None = None  # where layers differ and heads are chosen: the KV heads of the trace

    def own_heads(self, layer: int, call: AttentionCall, where: str) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values [S, K, N, D] of only the KV heads, if the model repeated them for its query heads."""
        known = self._known.get(layer)
        if known is None:
            known = self._known[layer] = shape_of(call, where)
            self._check(known, where)
        keys = call.k.shape[1]
        now = LayerShape(call.q.shape[1], known.kv_heads, call.q.shape[3], call.v.shape[3], call.scale)
        if now != known or keys not in (known.kv_heads, known.heads):
            raise UsageError(f"{where}: attends with {call.q.shape[1]} heads over {keys}, {call.q.shape[3]} channels, "
                             f"scale {call.scale:.4g}; in its first call that was {known}. HINT: record(..., "
                             "level=\"trajectory\")")
        group = keys // known.kv_heads
        return (call.k, call.v) if group == 1 else (call.k[:, ::group], call.v[:, ::group])

    def look(self, call: AttentionCall, length: int) -> None:
        """If no arrays are recorded: the shape of the first call that has one."""
        if not self._known:
            with contextlib.suppress(UsageError):
                self._known[0] = shape_of(unpacked(call, length, call.function), call.function)

    def of_model(self, names: Sequence[str], configured: LayerSizes | None) -> LayerShape | None:
        """The shape of all layers together, whose KV heads and channels may differ; None if none was seen. names: names
        of the model's layers. configured: what its configuration says of them, which is then as it was seen."""
        shapes = set(self._known.values())
        if len(shapes) <= 1 and (configured is None or configured.alike):
            return self.the_one(names)
        if len({(shape.heads, shape.scale) for shape in shapes}) > 1 or any(
                shape.value_channels != shape.channels for shape in shapes):
            return self.the_one(names)
        first = next(iter(self._known.values()), None)
        if first is None:
            return None
        if configured is None:
            if set(self._known) != set(range(len(names))):
                return self.the_one(names)
            seen = [self._known[layer] for layer in range(len(names))]
            configured = LayerSizes(tuple(one.kv_heads for one in seen), tuple(one.channels for one in seen),
                                    (0,) * len(seen))
        for layer, shape in self._known.items():
            said = configured.kv_heads[layer], configured.channels[layer]
            if said != (shape.kv_heads, shape.channels):
                raise UsageError(f"{names[layer]}: attends with {shape}, expected {said[0]} KV heads and {said[1]} "
                                 "channels, as the model's configuration says. HINT: record(..., "
                                 "level=\"trajectory\")")
        return with_sizes(first, configured)

    @property
    def first(self) -> LayerShape | None:
        return next(iter(self._known.values()), None)

    def the_one(self, names: Sequence[str]) -> LayerShape | None:
        """The common shape of all layers that were seen; None if none was. names: names of the model's layers."""
        by_shape: dict[LayerShape, list[int]] = {}
        for layer, shape in sorted(self._known.items()):
            by_shape.setdefault(shape, []).append(layer)
        if len(by_shape) > 1:
            kinds = "; ".join(f"{_listed([names[layer] for layer in layers])}: {shape}"
                              for shape, layers in by_shape.items())
            most = max(by_shape.values(), key=len)
            raise UsageError(f"layers of different shapes, which can't be one trace here: {kinds}. Expected the same "
                             "query heads and scale, and KV heads and channels that the configuration tells for each "
                             f"layer. HINT: one shape at a time, such as record(..., layers={most})")
        shape = next(iter(by_shape), None)
        if shape is not None and shape.value_channels != shape.channels:
            raise UsageError(f"{names[next(iter(self._known))]}: {shape}: values of other channels than the keys' "
                             "aren't recorded. HINT: record(..., level=\"trajectory\")")
        return shape


def _listed(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
