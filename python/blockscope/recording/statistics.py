"""Statistics of a step in addition to its arrays: comparisons with earlier steps of the block. The operators of
:mod:`.kernels` compute the numbers. This module keeps the values that later steps are compared with."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from .. import _core
from ..errors import UsageError
from . import kernels
from .layer_sizes import stack_padded
from .split import LayerAttention, Part
from .settings import Settings
from .steps import Kind, Pass, PassInput


@dataclass
class Heads:
    """Heads of one sequence for one call of the statistics."""

    external: Part  # of [1, H, B, D]
    internal: Part
    query: torch.Tensor  # [1, H, B, D]
    hidden: torch.Tensor | None = None  # [1, layers, B, hidden_size]


@dataclass
class LayerValues:
    """Values of one sequence of a pass, by recorded layer."""

    layers: list[LayerAttention]  # of the whole batch
    inputs: list[torch.Tensor] | None  # [S, B, hidden_size]
    slot: int  # of the sequence in the batch

    def stacked(self, of: Callable[[LayerAttention], torch.Tensor]) -> torch.Tensor:
        """Stacks [S, ...] values of each layer for this sequence: [L, ...]."""
        return stack_padded([of(layer)[self.slot] for layer in self.layers])

    def hidden(self) -> torch.Tensor | None:
        """[L, B, hidden_size]"""
        return None if self.inputs is None else torch.stack([x[self.slot] for x in self.inputs])

    def heads(self) -> list[Heads]:
        """The library reads a layer's heads in place. Torch's operators get the heads of all layers at once, because
        each call costs several launches."""
        one = slice(self.slot, self.slot + 1)
        found = [[x[one] for x in (layer.external.output, layer.external.lse, layer.internal.output, layer.internal.lse,
                                   layer.query)] for layer in self.layers]
        for tensors, hidden in zip(found, self.inputs or []):
            tensors.append(hidden[one].unsqueeze(1))
        alike = len({layer.query.shape for layer in self.layers}) == 1
        if alike and not kernels.taken(self.layers[0].query):
            found = [[torch.cat(column, 1) for column in zip(*found)]]
        return [Heads(Part(*tensors[:2]), Part(*tensors[2:4]), *tensors[4:]) for tensors in found]

    @property
    def has_sets(self) -> bool:
        return self.layers[0].sets is not None

    def topk(self) -> torch.Tensor | None:
        """[L, K, k]"""
        return self.stacked(lambda layer: layer.sets.index) if self.has_sets else None


def recall(first: torch.Tensor, now: torch.Tensor, keys: list[int]) -> torch.Tensor:
    """Share of the first step's set [L, K, k] in this one; NaN in layers with no more than k keys [L]."""
    share = (now.unsqueeze(-1) == first.unsqueeze(-2)).any(-1).float().mean(-1)
    trivial = torch.tensor([count <= now.shape[-1] for count in keys], device=now.device).unsqueeze(-1)
    return share.masked_fill((now[..., 0] < 0) | (first[..., 0] < 0) | trivial, math.nan)


def spread_of(now: LayerValues, one: Pass, names: list[str], bidirectional: bool) -> dict[str, torch.Tensor]:
    """The datasets /spread of a row, [L, H, ...]. names: of all regions."""
    first = now.layers[0].spread
    if first is None:
        return {}
    device = first.internal.device
    internal = now.stacked(lambda layer: layer.spread.internal)  # [L, H, B]
    masks = torch.tensor(one.masked, dtype=torch.bool, device=device)
    distance = internal.new_zeros(*internal.shape[:2], _core.distance_bins * (2 if bidirectional else 1))
    region = internal.new_zeros(*internal.shape[:2], len(names))
    answer_block = internal.new_zeros(*internal.shape[:2], _core.answer_blocks + 1)  # the last: no answer block
    region[..., names.index("masks")] = internal[..., masks].sum(-1)
    region[..., names.index("decided")] = internal[..., ~masks].sum(-1)
    for index, layer in enumerate(now.layers):
        for values, places in zip((distance, region, answer_block), layer.spread.places[now.slot].to(device)):
            values[index].index_add_(1, places, layer.spread.range[now.slot])
    unknown = internal.isnan().any(-1, keepdim=True)
    return {"/spread/entropy": now.stacked(lambda layer: layer.spread.entropy),
            "/spread/largest": now.stacked(lambda layer: layer.spread.largest),
            "/spread/offset": now.stacked(lambda layer: layer.spread.offset),
            "/spread/distance": distance.masked_fill(unknown, math.nan),
            "/spread/region": region.masked_fill(unknown, math.nan),
            "/spread/answer_block": answer_block[..., :-1].masked_fill(unknown, math.nan)}


@dataclass
class History:
    """The values that later steps of a block are compared with."""

    block: tuple[int, int] = (-1, -1)  # sequence, block
    last_step: int = 0
    last: list[tuple[Part, Part]] = field(default_factory=list)  # external, internal
    sources: list[list[Part]] = field(default_factory=list)  # by tau: the pairs that the reuse rule would hold
    kept: list[Any] = field(default_factory=lambda: [_core.KeptCounter(tau) for tau in _core.reuse_taus])
    kinds: list[torch.Tensor] = field(default_factory=list)  # by tau: [B] uint8, or [0]: it reads at this step
    first_query: list[torch.Tensor] = field(default_factory=list)
    first_hidden: list[torch.Tensor | None] = field(default_factory=list)
    first_set: torch.Tensor | None = None

    def summarise(self, one: Pass, now: LayerValues, exact: bool = True) -> dict[str, torch.Tensor]:
        """exact: whether the parts are the model's own. If not, comparisons of them say nothing, and are left out."""
        step, context_length = one.step, one.context_length
        heads, operators, count = now.heads(), kernels.of(now.layers[0].query), len(now.layers)
        taus = _core.reuse_taus
        values = {"/attention/lse_external": now.stacked(lambda layer: layer.external.lse),
                  "/attention/lse_internal": now.stacked(lambda layer: layer.internal.lse)}
        self._compare_with_first(step, heads, operators, values, count)
        if not exact:
            return values
        self._compare_sets(step, [layer.num_external for layer in now.layers], now.topk(), values)
        if context_length > 0:
            self._keep([each.external for each in heads], one)
        last = self.last if self.last_step == step - 1 else []
        found = [self._statistics(operators, context_length > 0, each, index, last) for index, each in enumerate(heads)]
        for column, name in enumerate(("external_mass", "similarity_external", "similarity_internal")):
            if found[0][column].numel() > 0:
                values[f"/summary/{name}"] = torch.cat([row[column] for row in found]).view(count, -1)
        if context_length > 0:
            values["/summary/reuse_error"] = torch.cat([row[3] for row in found], 1).view(len(taus), count, -1, 4)
            values["/summary/kept_pair"] = torch.cat([row[4] for row in found], 1).view(
                len(taus), count, -1, *found[0][4].shape[2:])
        self.last, self.last_step = [(each.external, each.internal) for each in heads], step
        return values

    def _keep(self, external: list[Part], one: Pass) -> None:
        """Updates the pairs, and the kinds of the rows that reuse them."""
        held, self.sources, self.kinds = self.sources, [], []
        for index, pair in enumerate(self.kept):
            # Whether the model decided a token as [MASK] can't be seen from outside, so M is what it decided.
            kinds = pair.reuses(one.step, one.changed, one.changed, one.masked, one.changed_rows)
            self.sources.append(held[index] if kinds and held else external)
            self.kinds.append(torch.tensor(list(kinds) if held else [], dtype=torch.uint8))

    def _statistics(self, operators: Any, prefix: bool, now: Heads, index: int,
                    last: list[tuple[Part, Part]]) -> tuple[torch.Tensor, ...]:
        """[H], [H], [H], [tau, H, 4], [tau, H, kind, sum]; empty without a step to compare with."""
        sources = [held[index] for held in self.sources] if prefix else []
        return operators.step_statistics(
            now.external.output if prefix else None, now.external.lse if prefix else None, now.internal.output,
            now.internal.lse, last[index][0].output if prefix and last else None,
            last[index][1].output if last else None, [source.output for source in sources],
            [source.lse for source in sources], self.kinds if prefix else [], 0)

    def _compare_with_first(self, step: int, heads: list[Heads], operators: Any, values: dict[str, torch.Tensor],
                            count: int) -> None:
        if step == 1:
            self.first_query = [one.query.clone() for one in heads]  # the model may write over it
            self.first_hidden = [one.hidden for one in heads]
            return
        if self.first_query:
            gaps = [_gaps(operators, one.query, first) for one, first in zip(heads, self.first_query)]
            values["/summary/query_gap"] = torch.cat([gap for gap, _ in gaps]).view(count, -1)
            values["/summary/query_block_gap"] = torch.cat([gap for _, gap in gaps]).view(count, -1)
        hidden = [(one.hidden, first) for one, first in zip(heads, self.first_hidden)]
        if hidden and all(now is not None and first is not None for now, first in hidden):
            values["/summary/hidden_gap"] = torch.cat([_gaps(operators, now, first)[0] for now, first in hidden])

    def _compare_sets(self, step: int, keys: list[int], topk: torch.Tensor | None,
                      values: dict[str, torch.Tensor]) -> None:
        if step == 1:
            self.first_set = topk
        elif self.first_set is not None and topk is not None and max(keys) > topk.shape[-1]:
            values["/sets/recall"] = recall(self.first_set, topk, keys)


def _gaps(operators: Any, now: torch.Tensor, first: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """For [1, H, B, D] with any strides."""
    return operators.step_gaps(*(x if x.stride(-1) == 1 else x.contiguous() for x in (now, first)), 0)


@dataclass
class Predictions:
    """Predictions of a block's positions. A position that no row of the pass predicts has -1 and NaN."""

    logits: torch.Tensor  # [R, V], a copy of the model's
    first: int  # absolute position that row 0 predicts
    missing: torch.Tensor | None = None  # [R]: rows that the pass didn't compute

    def __len__(self) -> int:
        return len(self.logits)

    def copy(self) -> Predictions:
        """A copy for longer use, because the logits of a row are overwritten after the row is written."""
        return Predictions(self.logits.clone(), self.first, self.missing)

    @functools.cached_property
    def lse(self) -> torch.Tensor:
        """[R]"""
        return kernels.of(self.logits).row_log_sum_exp(self.logits)

    @functools.cached_property
    def best(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The token with the largest probability, and this: [R]. -1 and NaN without a prediction."""
        token, probability = kernels.of(self.logits).best_token_rows(self.logits)
        if self.missing is not None:
            token, probability = token.masked_fill(self.missing, -1), probability.masked_fill(self.missing, math.nan)
        return token, probability

    def probability(self, positions: list[int], tokens: list[int]) -> list[float]:
        """Probabilities of these tokens at these positions; NaN where the pass predicted nothing."""
        inside = [i for i, p in enumerate(positions) if 0 <= p - self.first < len(self)]
        found = [math.nan] * len(positions)
        if not inside:
            return found
        device = self.logits.device
        rows = torch.tensor([positions[i] - self.first for i in inside], device=device)
        columns = torch.tensor([tokens[i] for i in inside], device=device)
        lse = kernels.of(self.logits).row_log_sum_exp(self.logits[rows])
        values = (self.logits[rows, columns].float() - lse).exp()
        values = (values if self.missing is None else values.masked_fill(self.missing[rows], math.nan)).tolist()
        for i, value in zip(inside, values):
            found[i] = min(value, 1.0) if value == value else math.nan
        return found

    def kl_from(self, first: Predictions, wanted: torch.Tensor) -> torch.Tensor:
        """KL(first || self) in nats: [R]. NaN for rows that aren't wanted [R], or that one of both did not compute."""
        for missing in (first.missing, self.missing):
            wanted = wanted if missing is None else wanted & ~missing
        return kernels.of(self.logits).row_divergence(first.logits, first.lse, self.logits, wanted)


class SpareRows:
    """Memory for copies of logits, reused because a step needs some megabytes."""

    def __init__(self) -> None:
        self._spare: list[torch.Tensor] = []

    def predictions(self, logits: torch.Tensor, first: int, computed: list[int] | None) -> Predictions:
        """Predictions from rows [R, V] for the positions from `first` on. computed: the positions with predictions;
        None: all rows."""
        there = None if computed is None else set(computed)
        missing = None if there is None else torch.tensor(
            [first + i not in there for i in range(len(logits))], device=logits.device)
        return Predictions(self._copy_of(logits.detach()), first, missing)

    def _copy_of(self, rows: torch.Tensor) -> torch.Tensor:
        for index, spare in enumerate(self._spare):
            writable = torch.is_inference_mode_enabled() or not spare.is_inference()
            if writable and (spare.shape, spare.dtype, spare.device) == (rows.shape, rows.dtype, rows.device):
                return self._spare.pop(index).copy_(rows)
        return rows.clone(memory_format=torch.contiguous_format)

    def give_back(self, predictions: Predictions | None) -> None:
        """Releases predictions that are no longer needed."""
        if predictions is not None:
            self._spare = [predictions.logits, *self._spare[:3]]


def gathered(logits: torch.Tensor, positions: list[int], begin: int, count: int) -> torch.Tensor:
    """The rows of logits that predict the `count` positions from `begin` on. The rows of logits predict `positions`,
    which may not be consecutive. A position without a prediction gets any row."""
    if len(positions) != len(logits):
        raise UsageError(f"{len(logits)} rows of logits for the {len(positions)} positions of the pass: which they "
                         "are can't be determined")
    rows = {position: i for i, position in enumerate(positions)}
    return logits[[rows.get(begin + i, 0) for i in range(count)]]


def predictions_of(one: Pass, computed: list[int] | None, given: PassInput, logits: torch.Tensor, settings: Settings,
                   spare: SpareRows) -> Predictions | None:
    """From logits [R, V] of a sequence's pass: the rows with predictions that may be needed. Those of the block, and
    the position after the pass if the logits are shifted."""
    shift = settings.logit_shift
    there = None if computed is None else [position + shift for position in computed]
    if given.positions is not None:  # a row for each position, wherever they stand
        if one.kind is not Kind.DENOISE:
            return None
        rows = gathered(logits, there, one.block_start, settings.block_length)
        return spare.predictions(rows, one.block_start, there)
    first = one.start + one.length - logits.shape[0] + shift  # some models return only the last rows
    if one.kind is Kind.DENOISE:
        begin = one.block_start + (shift if settings.autoregressive else 0)
        end = begin + settings.block_length
    elif shift:
        begin, end = one.start + one.length, one.start + one.length + 1
    else:
        return None
    begin, end = max(begin, first), min(end, first + logits.shape[0])
    if begin >= end:
        return None
    return spare.predictions(logits[begin - first:end - first], begin, there)
