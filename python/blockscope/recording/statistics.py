"""What a step says beside its arrays: how it compares with the block's steps before it. All layers of a pass at once;
float32 on the device of the tensors. The definitions are those of docs/trace_format.md and docs/glossary.md."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch

from ..errors import UsageError
from .split import Part, merge

TAUS = (2.0, 3.0, 4.0, math.inf)


@dataclass
class LayerValues:
    """Of one sequence at one pass, stacked over the recorded layers."""

    external: Part  # output [L, H, B, D], lse [L, H, B]
    internal: Part
    query: torch.Tensor  # [L, H, B, D]
    hidden: torch.Tensor | None  # [L, B, hidden_size]
    topk: torch.Tensor | None  # [L, K, k]
    partial: bool = False  # some pass computes some rows of a block only; the others are NaN


def _unit(x: torch.Tensor) -> torch.Tensor:
    x = x.float()
    return x / x.norm(dim=-1, keepdim=True).clamp_min(1e-30)


def _cosine(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Mean over the block of cos(a, b); [L, H, B, D] -> [L, H]."""
    a, b = a.float(), b.float()
    norms = (a * a).sum(-1) * (b * b).sum(-1)
    return ((a * b).sum(-1) * norms.clamp_min(1e-37).rsqrt()).nanmean(-1)  # NaN: a pass that didn't compute the row


def _recall(first: torch.Tensor, now: torch.Tensor) -> torch.Tensor:
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
        values = {"/attention/lse_external": now.external.lse, "/attention/lse_internal": now.internal.lse}
        self._compare_with_first(step, context_length, now, values)
        last = self.last if self.last_step == step - 1 else None
        if last is not None:
            values["/summary/similarity_internal"] = _cosine(now.internal.output, last[1].output)
        if context_length > 0:
            weight = torch.sigmoid(now.external.lse - now.internal.lse)
            values["/summary/external_mass"] = weight.nanmean(-1)
            if last is not None:
                values["/summary/similarity_external"] = _cosine(now.external.output, last[0].output)
            values["/summary/reuse_error"] = self._reuse_error(step, changed, now)
        self.last, self.last_step = (now.external, now.internal), step
        return values

    def _compare_with_first(self, step: int, context_length: int, now: LayerValues,
                            values: dict[str, torch.Tensor]) -> None:
        query = _unit(now.query)
        hidden = None if now.hidden is None else _unit(now.hidden)
        if step == 1:
            self.first_query, self.first_hidden, self.first_set = query, hidden, now.topk
            return
        if self.first_query is not None:
            difference = query - self.first_query
            values["/summary/query_gap"] = difference.norm(dim=-1).nanmean(-1)
            values["/summary/query_block_gap"] = difference.nanmean(-2).norm(dim=-1)
        if self.first_hidden is not None and hidden is not None:
            values["/summary/hidden_gap"] = (hidden - self.first_hidden).norm(dim=-1).nanmean(-1)
        if self.first_set is not None and now.topk is not None and context_length > now.topk.shape[-1]:
            values["/sets/recall"] = _recall(self.first_set, now.topk)

    def _reuse_error(self, step: int, changed: int, now: LayerValues) -> torch.Tensor:
        """[tau, L, H, 4]: sums of e^2, |e|, reference^2 and of the dot product over positions and channels."""
        true = merge(now.external, now.internal)
        self.sources = [
            source if step > 1 and changed < tau else now.external
            for tau, source in zip(TAUS, self.sources or [now.external] * len(TAUS))]
        sums: dict[int, torch.Tensor] = {}
        for source in self.sources:
            if id(source) in sums:
                continue
            got = true if source is now.external else merge(source, now.internal)
            error, both = got - true, true
            if now.partial:  # over the rows that both steps computed
                there = ~error.isnan()
                error, both, got = (torch.where(there, x, 0.0) for x in (error, true, got))
            sums[id(source)] = torch.stack([
                (error * error).sum((-2, -1)), error.abs().sum((-2, -1)), (both * both).sum((-2, -1)),
                (both * got).sum((-2, -1))], -1)
        return torch.stack([sums[id(source)] for source in self.sources])


@dataclass
class Predictions:
    """Of a block's positions; a position that no row of the pass predicts has -1 and NaN."""

    logits: torch.Tensor  # [R, V] float32, a copy
    lse: torch.Tensor  # [R]
    first: int  # absolute position that row 0 predicts
    missing: torch.Tensor | None = None  # [R]: rows that the pass didn't compute

    @classmethod
    def of(cls, logits: torch.Tensor, first: int, computed: list[int] | None = None) -> Predictions:
        """computed: the positions that there are predictions of; None: of all rows."""
        rows = logits.detach().to(torch.float32, copy=True).clamp_min_(-1e30)  # -inf times 0 would be NaN
        there = None if computed is None else set(computed)
        missing = None if there is None else torch.tensor(
            [first + i not in there for i in range(len(rows))], device=rows.device)
        return cls(rows, rows.logsumexp(-1), first, missing)

    @classmethod
    def scattered(cls, logits: torch.Tensor, positions: list[int], begin: int, count: int) -> Predictions:
        """Of the `count` positions from `begin` on; logits' rows predict `positions`, which needn't stand in a row."""
        if len(positions) != len(logits):
            raise UsageError(f"{len(logits)} rows of logits for the {len(positions)} positions of the pass: which they "
                             "are can't be told")
        rows = {position: i for i, position in enumerate(positions)}
        return cls.of(logits[[rows.get(begin + i, 0) for i in range(count)]], begin, positions)

    def top1(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Token, probability: [R]."""
        best = self.logits.max(-1)
        token, probability = best.indices.int(), (best.values - self.lse).exp_()
        if self.missing is not None:
            token, probability = token.masked_fill(self.missing, -1), probability.masked_fill(self.missing, math.nan)
        return token, probability

    def probability(self, positions: list[int], tokens: list[int]) -> list[float]:
        """Of these tokens at these positions; NaN where the pass predicted nothing."""
        inside = [i for i, p in enumerate(positions) if 0 <= p - self.first < len(self.logits)]
        found = [math.nan] * len(positions)
        if not inside:
            return found
        device = self.logits.device
        rows = torch.tensor([positions[i] - self.first for i in inside], device=device)
        columns = torch.tensor([tokens[i] for i in inside], device=device)
        values = (self.logits[rows, columns] - self.lse[rows]).exp()
        values = (values if self.missing is None else values.masked_fill(self.missing[rows], math.nan)).tolist()
        for i, value in zip(inside, values):
            found[i] = min(value, 1.0) if value == value else math.nan
        return found


@dataclass
class FirstPrediction:
    """A block's first step, which KL is measured from."""

    probability: torch.Tensor  # [R, V]
    mean_log: torch.Tensor  # [R]: sum p log p
    first: int
    missing: torch.Tensor | None = None  # [R]

    @classmethod
    def of(cls, now: Predictions) -> FirstPrediction:
        log = now.logits - now.lse.unsqueeze(-1)
        probability = log.exp()
        return cls(probability, torch.linalg.vecdot(probability, log), now.first, now.missing)

    def kl(self, now: Predictions) -> torch.Tensor:
        """KL(first || now) of each row in nats: [R]."""
        cross = torch.linalg.vecdot(self.probability, now.logits) - now.lse
        found = (self.mean_log - cross).clamp_min_(0.0)
        for missing in (self.missing, now.missing):
            found = found if missing is None else found.masked_fill(missing, math.nan)
        return found
