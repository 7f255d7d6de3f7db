"""The C++ operators in a recording: what the runtime's own recorder calls, for tensors of the CPU, where this torch can
load them. Elsewhere :mod:`.split` and :mod:`.statistics` compute the same with torch's operators."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field

import torch

from ..errors import OperatorsUnavailable, UsageError
from . import statistics
from .split import LayerAttention, Part, Sets
from .statistics import TAUS, FirstPrediction, History, LayerValues, Predictions, recall

FLOATS = (torch.float32, torch.float16, torch.bfloat16)


@functools.cache
def loaded() -> bool:
    """Whether torch.ops.blockscope is there."""
    try:
        from .. import ops  # noqa: F401
    except OperatorsUnavailable:
        return False
    return True


def require(model: torch.nn.Module) -> None:
    """Throws where a recording can't compute the model's attention."""
    from .. import ops  # noqa: F401 - OperatorsUnavailable says what is missing

    devices = {parameter.device.type for parameter in model.parameters()}
    if devices - {"cpu"}:
        raise UsageError(f"attention: replace is for models on a CPU, got one on {', '.join(sorted(devices))}. HINT: "
                         "attention=\"observe\"")


def fit(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> bool:
    """Whether the operators take these."""
    return (q.device.type == "cpu" and q.dtype in FLOATS and loaded()
            and q.shape[-1] == v.shape[-1] and all(x.dtype == q.dtype and x.stride(-1) == 1 for x in (q, k, v)))


def attend_both(q: torch.Tensor, external: tuple[torch.Tensor, torch.Tensor],
                internal: tuple[torch.Tensor, torch.Tensor], scale: float, set_size: int,
                with_block: bool) -> tuple[torch.Tensor, Part, Part, Sets | None]:
    """Of q [S, H, B, D] over keys and values [S, K, N, D]: attention over all of them [S, H, B, D] in q's type, both
    parts in float32, and the external keys' sets (set_size 0: none)."""
    ops = torch.ops.blockscope
    length = torch.full((q.shape[0],), external[0].shape[2], dtype=torch.int64)
    if set_size == 0:
        whole, out, lse, inner, inner_lse = ops.split_attention(q, *external, length, *internal, scale)
        return whole, Part(out, lse), Part(inner, inner_lse), None
    whole, out, lse, inner, inner_lse, *sets = ops.split_attention_sets(
        q, *external, length, *internal, scale, set_size, with_block)
    return whole, Part(out, lse), Part(inner, inner_lse), Sets(*sets)


def _gaps(now: torch.Tensor, first: torch.Tensor, slot: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Of [S, H, B, D], which a model may have laid out as it likes."""
    return torch.ops.blockscope.step_gaps(*(x if x.stride(-1) == 1 else x.contiguous() for x in (now, first)), slot)


@dataclass
class KernelHistory:
    """What later steps of a block are compared with: :class:`.statistics.History`, a layer at a time."""

    block: tuple[int, int] = (-1, -1)  # sequence, block
    last_step: int = 0
    last: list[tuple[Part, Part]] | None = None  # by layer: external, internal, of the whole batch
    sources: list[list[Part]] = field(default_factory=list)  # by tau, by layer: the pair that it would still hold
    first_query: list[torch.Tensor] | None = None  # by layer, of the whole batch
    first_hidden: list[torch.Tensor] | None = None
    first_set: torch.Tensor | None = None

    def summarise(self, step: int, changed: int, context_length: int, now: LayerValues) -> dict[str, torch.Tensor]:
        values = {"/attention/lse_external": now.stacked(lambda layer: layer.external.lse),
                  "/attention/lse_internal": now.stacked(lambda layer: layer.internal.lse)}
        self._compare_with_first(step, context_length, now, values)
        last = self.last if self.last_step == step - 1 else None
        now_external = [layer.external for layer in now.layers]
        if context_length > 0:
            self.sources = [source if step > 1 and changed < tau else now_external
                            for tau, source in zip(TAUS, self.sources or [now_external] * len(TAUS))]
        found = [self._statistics(index, now, context_length, last) for index in range(len(now.layers))]
        for path, column in (("/summary/external_mass", 0), ("/summary/similarity_external", 1),
                             ("/summary/similarity_internal", 2)):
            if found[0][column].numel() > 0:
                values[path] = torch.stack([row[column] for row in found])
        if context_length > 0:
            values["/summary/reuse_error"] = torch.stack([row[3] for row in found], 1)
        self.last, self.last_step = [(layer.external, layer.internal) for layer in now.layers], step
        return values

    def _statistics(self, index: int, now: LayerValues, context_length: int,
                    last: list[tuple[Part, Part]] | None) -> list[torch.Tensor]:
        layer, prefix = now.layers[index], context_length > 0
        before = last[index] if last is not None else None
        sources = [source[index] for source in self.sources] if prefix else []
        return torch.ops.blockscope.step_statistics(
            layer.external.output if prefix else None, layer.external.lse if prefix else None, layer.internal.output,
            layer.internal.lse, before[0].output if prefix and before else None, before[1].output if before else None,
            [source.output for source in sources], [source.lse for source in sources], now.slot)

    def _compare_with_first(self, step: int, context_length: int, now: LayerValues,
                            values: dict[str, torch.Tensor]) -> None:
        topk = now.topk()
        if step == 1:
            self.first_query = [layer.query.clone() for layer in now.layers]  # the model may write over it
            self.first_hidden, self.first_set = now.inputs, topk
            return
        if self.first_query is not None:
            gaps = [_gaps(layer.query, first, now.slot) for layer, first in zip(now.layers, self.first_query)]
            values["/summary/query_gap"] = torch.stack([gap for gap, _ in gaps])
            values["/summary/query_block_gap"] = torch.stack([gap for _, gap in gaps])
        if now.inputs is not None and self.first_hidden is not None:
            values["/summary/hidden_gap"] = torch.cat([
                _gaps(hidden.unsqueeze(1), first.unsqueeze(1), now.slot)[0]
                for hidden, first in zip(now.inputs, self.first_hidden)])
        if self.first_set is not None and topk is not None and context_length > topk.shape[-1]:
            values["/sets/recall"] = recall(self.first_set, topk)


def history(layers: dict[int, LayerAttention], block: tuple[int, int]) -> History | KernelHistory:
    query = next(iter(layers.values())).query
    fast = loaded() and query.device.type == "cpu" and query.dtype in FLOATS
    return KernelHistory(block) if fast else History(block)


class SpareRows:
    """Memory for copies of logits: some megabytes a step, which would else be asked of the system each time."""

    def __init__(self) -> None:
        self._spare: list[torch.Tensor] = []

    def copy_of(self, rows: torch.Tensor) -> torch.Tensor:
        for index, spare in enumerate(self._spare):
            if spare.shape == rows.shape and spare.dtype == rows.dtype:
                return self._spare.pop(index).copy_(rows)
        return rows.clone(memory_format=torch.contiguous_format)

    def give_back(self, predictions: Predictions | None) -> None:
        """Nobody asks for these any more."""
        if isinstance(predictions, KernelPredictions):
            self._spare = [predictions.logits, *self._spare[:3]]


class KernelPredictions(Predictions):
    def lse(self, rows: torch.Tensor) -> torch.Tensor:
        return torch.ops.blockscope.row_log_sum_exp(self.logits[rows])

    def best(self) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.ops.blockscope.best_token_rows(self.logits)

    def as_first(self) -> KernelFirstPrediction:
        lse = torch.ops.blockscope.row_log_sum_exp(self.logits)
        return KernelFirstPrediction(self.logits.clone(), lse, self.first, self.missing)


class KernelFirstPrediction(FirstPrediction):
    def divergence(self, now: Predictions, wanted: torch.Tensor) -> torch.Tensor:
        return torch.ops.blockscope.row_divergence(self.logits, self.lse, now.logits, wanted)


def predictions(logits: torch.Tensor, first: int, computed: list[int] | None, spare: SpareRows) -> Predictions:
    """:func:`.statistics.predictions`."""
    if logits.device.type == "cpu" and logits.dtype in FLOATS and loaded():
        return statistics.predictions(logits.detach(), first, computed, KernelPredictions, spare.copy_of)
    return statistics.predictions(logits, first, computed)
