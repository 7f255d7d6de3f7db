"""The sparse policies: one set of external keys for each KV head, which all queries of the block read. As
probe/policies/selection_policy.cpp and the policies' own files."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..errors import UsageError
from ..recording.intervention_kinds import prompt_hash
from .policy import Attention, ModelShape, Parts, Policy, Step, exact_attention, refuse_token_by_token


@dataclass
class KeySet:
    """The set of one sequence at one layer."""

    index: torch.Tensor  # [K, k] int32, -1 pads
    residual: torch.Tensor | None = None  # [H, B, D] float32, attention over the other keys
    lse_residual: torch.Tensor | None = None  # [H, B]


def selected_attention(given: Attention, sets: Sequence[KeySet | None]) -> Parts:
    """None: the sequence reads its whole prefix."""
    q, kv_heads = given.q, given.k_ext.shape[1]
    known = [(slot, one) for slot, one in enumerate(sets) if one is not None]
    widest = max(one.index.shape[1] for _, one in known)
    index = torch.full((len(sets), kv_heads, widest), -1, dtype=torch.int32, device=q.device)
    dense = torch.tensor([one is None for one in sets])
    residual = lse_residual = None
    if any(one.residual is not None for _, one in known):
        residual = torch.zeros(q.shape, dtype=torch.float32, device=q.device)
        lse_residual = torch.full(q.shape[:3], -math.inf, device=q.device)
    for slot, one in known:
        index[slot, :, :one.index.shape[1]] = one.index
        if one.residual is not None:
            residual[slot], lse_residual[slot] = one.residual, one.lse_residual
    found = given.operators.gather_attention(
        q, given.k_ext, given.v_ext, given.lengths, index, given.k_in, given.v_in, given.scale,
        dense if dense.any() else None, residual, lse_residual)
    return Parts(*found, selected=index)


class Selection(Policy):
    """k keys, or a share of the prefix. The first `exact_layers` layers read everything."""

    residual = False  # keeps the attention over the other keys of the step that gives the sets

    def __init__(self, values: dict[str, Any]) -> None:
        self.values = values
        self._steps: Sequence[Step] = ()
        self._sets: list[dict[int, KeySet]] = []  # by slot, by layer

    def setup(self, shape: ModelShape) -> None:
        if self.values["exact_layers"] > shape.num_layers:
            raise UsageError(f"policy {self.text}: exact_layers: expected 0 to the model's {shape.num_layers} layers, "
                             f"got {self.values['exact_layers']}")

    def set_size(self, length: int) -> int:
        if self.values["k"] is not None:
            return min(self.values["k"], length)
        share = self.values["density"] * length  # 0.28 * 25 is a little more than 7 in binary, and is 7 keys
        return min(max(math.ceil(share - 1e-12 * share), 1), length)

    # --- of each policy -----------------------------------------------------------------------------------------------

    def dense(self, step: Step) -> bool:
        """Whether a denoising step reads its whole prefix."""
        return False

    def captures(self, step: Step) -> bool:
        """Whether later steps use the set of this dense step."""
        return False

    def choose(self, given: Attention, step: Step, kept: KeySet | None) -> KeySet | None:
        """The set of this step, for one sequence."""
        return kept

    def rows_scored(self, step: Step, length: int) -> int:
        return length if self.captures(step) else 0

    # --- passes -------------------------------------------------------------------------------------------------------

    def begin_pass(self, steps: Sequence[Step]) -> None:
        self._steps = steps
        self._sets = [step.memory.setdefault("sets", {}) for step in steps]

    def end_sequences(self) -> None:
        self._steps, self._sets = (), []

    def _reads_all(self, step: Step, layer: int) -> bool:
        return layer < self.values["exact_layers"] or not step.denoises or self.dense(step)

    def attend(self, given: Attention) -> Parts:
        layer, length = given.layer, given.k_ext.shape[2]
        sets: list[KeySet | None] = [None] * len(self._steps)
        scored = [0] * len(self._steps)
        for slot, step in enumerate(self._steps):
            if self._reads_all(step, layer):
                continue
            chosen = self.choose(given.of_slot(slot), step, self._sets[slot].get(layer))
            if chosen is None:
                raise UsageError(
                    f"policy {self.text}: step {step.step} of block {step.block} needs keys that an earlier step "
                    "chooses, and that step wasn't seen. HINT: blockscope.apply(...) before the sequence begins")
            sets[slot] = self._sets[slot][layer] = chosen
            scored[slot] = self.rows_scored(step, length)
        parts = exact_attention(given) if all(one is None for one in sets) else selected_attention(given, sets)
        for slot, step in enumerate(self._steps):
            if not step.denoises or layer < self.values["exact_layers"] or not self.dense(step) \
                    or not self.captures(step):
                continue
            scored[slot] = self.rows_scored(step, length)
            if self.residual:  # reads the unselected keys and values once more
                scored[slot] += 2 * (length - self.set_size(length))
            one = slice(slot, slot + 1)
            self._sets[slot][layer] = self._best(given.of_slot(slot), parts.lse_external[one])
        parts.rows_scored = scored if any(scored) else None
        return parts

    def _best(self, given: Attention, lse: torch.Tensor) -> KeySet:
        """The keys with the largest mean probability over the prefix."""
        size = self.set_size(given.k_ext.shape[2])
        if size == 0:
            return KeySet(torch.empty(given.k_ext.shape[1], 0, dtype=torch.int32, device=given.q.device))
        index = given.operators.block_topk(given.q, given.k_ext, given.lengths, lse, size, given.scale)[0]
        if not self.residual:
            return KeySet(index[0])
        rest, lse_rest = given.operators.unselected_attention(given.q, given.k_ext, given.v_ext, given.lengths, index,
                                                              given.scale)
        return KeySet(index[0], rest[0], lse_rest[0])


class Mage(Selection):
    def check(self, bidirectional: bool, autoregressive: bool, continuous: bool) -> None:
        if autoregressive:
            refuse_token_by_token(self)

    def dense(self, step: Step) -> bool:
        return step.first

    captures = dense


class MageFlashBlock(Mage):
    residual = True


class SparseD(Selection):
    def check(self, bidirectional: bool, autoregressive: bool, continuous: bool) -> None:
        if autoregressive and self.values["per_block"]:
            refuse_token_by_token(self)
        if continuous and not self.values["per_block"]:
            raise UsageError(f"policy {self.text}: takes its keys after a fifth of the sequence's steps, and how many "
                             "a video has isn't known. HINT: add per_block")
        if bidirectional and not self.values["per_block"]:
            raise UsageError(f"policy {self.text}: keeps its keys for the whole run, but a bidirectional model's "
                             "external keys differ from block to block. HINT: add per_block")

    def _capture_step(self, step: Step) -> int:
        if self.values["per_block"]:
            return 1
        if step.planned_steps is None:
            raise UsageError(
                f"policy {self.text}: takes its keys after a fifth of the sequence's steps, and how many are planned "
                "isn't known. HINT: blockscope.apply(..., gen_length=64, denoising_steps=16) with the loop's own "
                "numbers; or add per_block")
        return int(step.planned_steps * 0.2) + 2

    def dense(self, step: Step) -> bool:
        return (step.step if self.values["per_block"] else step.run_step) <= self._capture_step(step)

    def choose(self, given: Attention, step: Step, kept: KeySet | None) -> KeySet | None:
        if given.dropped and not self.values["per_block"]:
            raise UsageError(f"policy {self.text}: keeps its keys for the whole run, but the cache of layer "
                             f"{given.layer} drops keys (a sliding window). HINT: add per_block")
        return kept

    def captures(self, step: Step) -> bool:
        return (step.step if self.values["per_block"] else step.run_step) == self._capture_step(step)


class SparseDFlashBlock(SparseD):
    residual = True


class Quest(Selection):
    def check(self, bidirectional: bool, autoregressive: bool, continuous: bool) -> None:
        if bidirectional:
            raise UsageError(f"policy {self.text}: keeps bounds of committed keys, but a bidirectional model's keys "
                             "change. HINT: use another policy")

    def choose(self, given: Attention, step: Step, kept: KeySet | None) -> KeySet:
        keys, page = given.k_ext, self.values["page"]
        length = keys.shape[2]
        if length == 0:
            return KeySet(torch.empty(keys.shape[1], 0, dtype=torch.int32, device=keys.device))
        # Kept within the block, because committed keys don't change.
        block, bounds = step.memory.get(("bounds", given.layer), (None, None))
        if block != step.block or step.first:
            bounds = given.operators.page_bounds(keys, given.lengths, page)
            step.memory["bounds", given.layer] = step.block, bounds
        scores = given.operators.page_scores(given.q, *bounds, given.lengths, page)[0]
        taken = -(-self.set_size(length) // page)
        # NaN ranks last, after -infinity.
        ranked = scores.clamp_min(torch.finfo(scores.dtype).min).masked_fill(scores != scores, -math.inf)
        order = ranked.sort(stable=True, dim=-1, descending=True).indices[:, :taken]
        index = (order.unsqueeze(-1) * page + torch.arange(page, device=keys.device)).flatten(1).int()
        late = index >= length  # of the short last page
        places = late.int().sort(stable=True, dim=-1).indices
        index = index.masked_fill(late, -1).gather(1, places)
        return KeySet(index)

    def rows_scored(self, step: Step, length: int) -> int:
        return 2 * -(-length // self.values["page"])


class Oracle(Selection):
    def choose(self, given: Attention, step: Step, kept: KeySet | None) -> KeySet:
        return self._best(given, exact_attention(given).lse_external)

    def rows_scored(self, step: Step, length: int) -> int:
        return length


class Recent(Selection):
    def choose(self, given: Attention, step: Step, kept: KeySet | None) -> KeySet:
        length = given.k_ext.shape[2]
        newest = torch.arange(length - 1, length - 1 - self.set_size(length), -1, dtype=torch.int32,
                              device=given.q.device)
        return KeySet(newest.expand(given.k_ext.shape[1], -1).contiguous())


_WORD = 1 << 64


class _SplitMix:
    """SplitMix64 (Steele, Lea, Flood 2014), as probe/policies/random_policy.cpp."""

    def __init__(self, state: int) -> None:
        self._state = state % _WORD

    def next(self) -> int:
        self._state = z = (self._state + 0x9e3779b97f4a7c15) % _WORD
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9 % _WORD
        z = (z ^ z >> 27) * 0x94d049bb133111eb % _WORD
        return z ^ z >> 31

    def mix(self, value: int) -> None:
        self._state = self.next() ^ value

    def below(self, bound: int) -> int:
        limit = (_WORD - 1) - (_WORD - 1) % bound
        value = self.next()
        while value >= limit:
            value = self.next()
        return value % bound


class Random(Selection):
    def choose(self, given: Attention, step: Step, kept: KeySet | None) -> KeySet:
        if not step.first and kept is not None:
            return kept
        length, rows = given.k_ext.shape[2], []
        for head in range(given.k_ext.shape[1]):
            stream = _SplitMix(self.values["seed"])
            for part in (prompt_hash(step.prompt), step.block, given.layer, head):
                stream.mix(part)
            keys = list(range(length))
            for place in range(self.set_size(length)):  # the first ones of a Fisher-Yates shuffle
                other = place + stream.below(length - place)
                keys[place], keys[other] = keys[other], keys[place]
            rows.append(keys[:self.set_size(length)])
        return KeySet(torch.tensor(rows, dtype=torch.int32, device=given.q.device))
