"""What a step says beside its arrays: how it compares with the block's steps before it. With torch's operators, all
layers of a pass at once, float32 on the device of the tensors; on a CPU :mod:`.kernels` takes less time. The
definitions are those of docs/trace_format.md and docs/glossary.md."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from ..errors import UsageError
from .split import LayerAttention, Part, merge

TAUS = (2.0, 3.0, 4.0, math.inf)


@dataclass
class LayerValues:
    """Of one sequence of a pass, by recorded layer."""

    layers: list[LayerAttention]  # of the whole batch
    inputs: list[torch.Tensor] | None  # [S, B, hidden_size]
    slot: int  # of the sequence in the batch
    partial: bool = False  # some pass computes some rows of a block only; the others are NaN

    def stacked(self, of: Callable[[LayerAttention], torch.Tensor]) -> torch.Tensor:
        """[L, ...] of what is [S, ...] of each layer."""
        return torch.stack([of(layer)[self.slot] for layer in self.layers])

    def part(self, of: Callable[[LayerAttention], Part]) -> Part:
        return Part(self.stacked(lambda layer: of(layer).output), self.stacked(lambda layer: of(layer).lse))

    def hidden(self) -> torch.Tensor | None:
        """[L, B, hidden_size]"""
        return None if self.inputs is None else torch.stack([x[self.slot] for x in self.inputs])

    @property
    def has_sets(self) -> bool:
        return self.layers[0].sets is not None

    def topk(self) -> torch.Tensor | None:
        """[L, K, k]"""
        return self.stacked(lambda layer: layer.sets.index) if self.has_sets else None


def _unit(x: torch.Tensor) -> torch.Tensor:
    x = x.float()
    return x / x.norm(dim=-1, keepdim=True).clamp_min(1e-30)


def _cosine(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Mean over the block of cos(a, b); [L, H, B, D] -> [L, H]."""
    a, b = a.float(), b.float()
    norms = (a * a).sum(-1) * (b * b).sum(-1)
    return ((a * b).sum(-1) * norms.clamp_min(1e-37).rsqrt()).nanmean(-1)  # NaN: a pass that didn't compute the row


def recall(first: torch.Tensor, now: torch.Tensor) -> torch.Tensor:
    """Share of the first step's set [L, K, k] in this one."""
    share = (now.unsqueeze(-1) == first.unsqueeze(-2)).any(-1).float().mean(-1)
    return share.masked_fill((now[..., 0] < 0) | (first[..., 0] < 0), math.nan)


@dataclass
class History:
    """What later steps of a block are compared with."""

    block: tuple[int, int] = (-1, -1)  # sequence, block
    last_step: int = 0
    last: tuple[Part, Part] | None = None  # external, internal
    sources: list[Part] = field(default_factory=list)  # the pair that each tau would still hold
    first_query: torch.Tensor | None = None  # at unit length
    first_hidden: torch.Tensor | None = None
    first_set: torch.Tensor | None = None

    def summarise(self, step: int, changed: int, context_length: int, now: LayerValues) -> dict[str, torch.Tensor]:
        external, internal = now.part(lambda layer: layer.external), now.part(lambda layer: layer.internal)
        values = {"/attention/lse_external": external.lse, "/attention/lse_internal": internal.lse}
        self._compare_with_first(step, context_length, now, values)
        last = self.last if self.last_step == step - 1 else None
        if last is not None:
            values["/summary/similarity_internal"] = _cosine(internal.output, last[1].output)
        if context_length > 0:
            weight = torch.sigmoid(external.lse - internal.lse)
            values["/summary/external_mass"] = weight.nanmean(-1)
            if last is not None:
                values["/summary/similarity_external"] = _cosine(external.output, last[0].output)
            values["/summary/reuse_error"] = self._reuse_error(step, changed, external, internal, now.partial)
        self.last, self.last_step = (external, internal), step
        return values

    def _compare_with_first(self, step: int, context_length: int, now: LayerValues,
                            values: dict[str, torch.Tensor]) -> None:
        query, topk = _unit(now.stacked(lambda layer: layer.query)), now.topk()
        hidden = None if now.inputs is None else _unit(now.hidden())
        if step == 1:
            self.first_query, self.first_hidden, self.first_set = query, hidden, topk
            return
        if self.first_query is not None:
            difference = query - self.first_query
            values["/summary/query_gap"] = difference.norm(dim=-1).nanmean(-1)
            values["/summary/query_block_gap"] = difference.nanmean(-2).norm(dim=-1)
        if self.first_hidden is not None and hidden is not None:
            values["/summary/hidden_gap"] = (hidden - self.first_hidden).norm(dim=-1).nanmean(-1)
        if self.first_set is not None and topk is not None and context_length > topk.shape[-1]:
            values["/sets/recall"] = recall(self.first_set, topk)

    def _reuse_error(self, step: int, changed: int, external: Part, internal: Part, partial: bool) -> torch.Tensor:
        """[tau, L, H, 4]: sums of e^2, |e|, reference^2 and of the dot product over positions and channels."""
        true = merge(external, internal)
        self.sources = [
            source if step > 1 and changed < tau else external
            for tau, source in zip(TAUS, self.sources or [external] * len(TAUS))]
        sums: dict[int, torch.Tensor] = {}
        for source in self.sources:
            if id(source) in sums:
                continue
            got = true if source is external else merge(source, internal)
            error, both = got - true, true
            if partial:  # over the rows that both steps computed
                there = ~error.isnan()
                error, both, got = (torch.where(there, x, 0.0) for x in (error, true, got))
            sums[id(source)] = torch.stack([
                (error * error).sum((-2, -1)), error.abs().sum((-2, -1)), (both * both).sum((-2, -1)),
                (both * got).sum((-2, -1))], -1)
        return torch.stack([sums[id(source)] for source in self.sources])


@dataclass
class Predictions:
    """Of a block's positions; a position that no row of the pass predicts has -1 and NaN."""

    logits: torch.Tensor  # [R, V], a copy; float32 here, of the model's type in kernels.py
    first: int  # absolute position that row 0 predicts
    missing: torch.Tensor | None = None  # [R]: rows that the pass didn't compute

    @staticmethod
    def copied(logits: torch.Tensor) -> torch.Tensor:
        return logits.detach().to(torch.float32, copy=True).clamp_min_(-1e30)  # -inf times 0 would be NaN

    def __len__(self) -> int:
        return len(self.logits)

    @functools.cached_property
    def all_lses(self) -> torch.Tensor:
        return self.logits.logsumexp(-1)

    def lse(self, rows: torch.Tensor) -> torch.Tensor:
        """Of these rows [n]."""
        return self.all_lses[rows]

    def best(self) -> tuple[torch.Tensor, torch.Tensor]:
        best = self.logits.max(-1)
        return best.indices.int(), (best.values - self.all_lses).exp_()

    def as_first(self) -> FirstPrediction:
        return FirstPrediction(self.logits, self.all_lses, self.first, self.missing)

    def top1(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Token, probability: [R]."""
        token, probability = self.best()
        if self.missing is not None:
            token, probability = token.masked_fill(self.missing, -1), probability.masked_fill(self.missing, math.nan)
        return token, probability

    def probability(self, positions: list[int], tokens: list[int]) -> list[float]:
        """Of these tokens at these positions; NaN where the pass predicted nothing."""
        inside = [i for i, p in enumerate(positions) if 0 <= p - self.first < len(self)]
        found = [math.nan] * len(positions)
        if not inside:
            return found
        device = self.logits.device
        rows = torch.tensor([positions[i] - self.first for i in inside], device=device)
        columns = torch.tensor([tokens[i] for i in inside], device=device)
        values = (self.logits[rows, columns].float() - self.lse(rows)).exp()
        values = (values if self.missing is None else values.masked_fill(self.missing[rows], math.nan)).tolist()
        for i, value in zip(inside, values):
            found[i] = min(value, 1.0) if value == value else math.nan
        return found


def predictions(logits: torch.Tensor, first: int, computed: list[int] | None = None,
                kind: Callable[..., Predictions] = Predictions,
                copied: Callable[[torch.Tensor], torch.Tensor] = Predictions.copied) -> Predictions:
    """Of rows [R, V] that predict the positions from `first` on. computed: the positions that there are predictions
    of; None: of all rows."""
    there = None if computed is None else set(computed)
    missing = None if there is None else torch.tensor(
        [first + i not in there for i in range(len(logits))], device=logits.device)
    return kind(copied(logits), first, missing)


def gathered(logits: torch.Tensor, positions: list[int], begin: int, count: int) -> torch.Tensor:
    """The rows of logits that predict the `count` positions from `begin` on; logits' rows predict `positions`, which
    needn't stand in a row. Any row for a position that none predicts."""
    if len(positions) != len(logits):
        raise UsageError(f"{len(logits)} rows of logits for the {len(positions)} positions of the pass: which they "
                         "are can't be told")
    rows = {position: i for i, position in enumerate(positions)}
    return logits[[rows.get(begin + i, 0) for i in range(count)]]


@dataclass
class FirstPrediction:
    """A block's first step, which KL is measured from."""

    logits: torch.Tensor  # [R, V], as in Predictions
    lse: torch.Tensor  # [R]
    first: int
    missing: torch.Tensor | None = None  # [R]

    @functools.cached_property
    def _distribution(self) -> tuple[torch.Tensor, torch.Tensor]:
        """[R, V], and sum p log p of each row."""
        log = self.logits - self.lse.unsqueeze(-1)
        distribution = log.exp()
        return distribution, torch.linalg.vecdot(distribution, log)

    def divergence(self, now: Predictions, wanted: torch.Tensor) -> torch.Tensor:
        distribution, mean_log = self._distribution
        cross = torch.linalg.vecdot(distribution, now.logits) - now.all_lses
        return (mean_log - cross).clamp_min_(0.0).masked_fill(~wanted, math.nan)

    def kl(self, now: Predictions, wanted: torch.Tensor) -> torch.Tensor:
        """KL(first || now) in nats of the rows that are wanted [R] and that both steps computed, NaN of others: [R]."""
        for missing in (self.missing, now.missing):
            wanted = wanted if missing is None else wanted & ~missing
        return self.divergence(now, wanted)
