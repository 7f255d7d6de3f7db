"""An intervention: what is taken away from attention, or changed in it, while a model decodes. Its kind says what it
does to the parts of some heads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from .geometry import Biases, BlockRows, KeyRanges
from .patches import PatchSource
from .regions import Regions
from .split import Part
from .steps import Kind, Pass, Sequence


@dataclass(frozen=True)
class Option:
    name: str
    range: str  # "": a switch
    read: Callable[[str], Any]  # ValueError: not in the range
    initial: Any = None
    text: Callable[[Any], str] = str


@dataclass(frozen=True)
class Intervention:
    kind: InterventionKind
    values: Mapping[str, Any]  # of all options of the kind; None: not given

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def takes_in(self, name: str, index: int) -> bool:
        """Whether an index is in a list; a list that isn't given holds all."""
        return self.values.get(name) is None or index in self[name]

    @property
    def in_commits(self) -> bool:
        return self.values.get("commits", False)

    def includes(self, one: Pass) -> bool:
        """Whether it changes this pass."""
        if one.kind is Kind.PREFILL or not self.takes_in("blocks", one.block):
            return False
        return self.in_commits if one.kind is Kind.COMMIT else self.takes_in("steps", one.step)

    def shared_keys_text(self, num_heads: int, num_kv_heads: int) -> str:
        """Which of the heads that share keys and values it leaves as they are; empty: none, or it names no heads."""
        if not self.kind.about_keys or self["heads"] is None:
            return ""
        group, shared = num_heads // num_kv_heads, []
        for kv_head in range(num_kv_heads):
            heads = range(kv_head * group, (kv_head + 1) * group)
            changed, others = ([str(head) for head in heads if (head in self["heads"]) == wanted]
                               for wanted in (True, False))
            if changed and others:
                shared.append(f"KV head {kv_head} (changes {'+'.join(changed)}, leaves {'+'.join(others)})")
        if not shared:
            return ""
        return f"interventions '{self.text}': changes some of the heads that share keys and values: {', '.join(shared)}"

    @property
    def text(self) -> str:
        """The shortest text that gives this intervention."""
        parts = [self.kind.name]
        for option in self.kind.options:
            value = self[option.name]
            if value != option.initial:
                parts.append(f"{option.name}={option.text(value)}" if option.range else option.name)
        return ",".join(parts)


@dataclass(frozen=True)
class InterventionKind:
    name: str
    where: tuple[Option, ...]  # that say where it works
    own: tuple[Option, ...]
    apply: Callable[[Intervention, Site, torch.Tensor], bool] | None = None  # heads [N]; False: nothing is different
    watch: Callable[[Intervention, Site], None] | None = None  # in every denoising pass of a chosen layer
    comes_first: bool = False  # it computes attention again
    check: Callable[[Intervention], str] = lambda given: ""  # what is missing or contradicts itself
    needs: tuple[str, ...] = ()  # datasets of the trace that it names
    about_keys: bool = False  # it takes keys away, which heads may share

    @property
    def options(self) -> tuple[Option, ...]:
        return self.where + self.own


@dataclass(frozen=True)
class BlockCall:
    """What a layer computed the attention of a block from, for the whole batch."""

    q: torch.Tensor  # [S, H, B, D]
    k: torch.Tensor  # [S, K, N, D], all keys
    v: torch.Tensor
    ranges: KeyRanges
    biases: Biases
    rows: BlockRows  # of the block in the call's result
    scale: float


@dataclass
class Site:
    """One sequence's attention in one layer of a denoising pass, in the middle of an intervention."""

    call: BlockCall
    layer: int
    slot: int  # of the sequence in the batch
    one: Pass
    sequence: Sequence
    external: Part  # of [H, B, D], [H, B]; changed in place
    internal: Part
    out: torch.Tensor  # [H, B, D], their merge in the model's type; kept up to date
    changed: torch.Tensor  # [H] bool
    regions: Regions  # of the recording
    source: PatchSource | None = None  # of the intervention
    kept: dict[tuple[int, int], KeptPair] = field(default_factory=dict)  # of the intervention, by layer and slot
    hidden: torch.Tensor | None = None  # [H, N + B] bool, external keys first: hidden so far

    @property
    def num_external(self) -> int:
        return sum(end - begin for begin, end in self.call.ranges.external)

    def positions(self) -> list[int]:
        """Of the external keys, then of the block's."""
        ranges = [*self.call.ranges.external, self.call.ranges.internal]
        return [self.call.ranges.offset + key for begin, end in ranges for key in range(begin, end)]

    def merge(self, heads: torch.Tensor) -> None:
        """Merges the parts of these heads again, because the next intervention may read the result."""
        parts = (self.external, self.internal)
        merged, _ = torch.ops.blockscope.merge_attention(
            [part.output.index_select(0, heads).contiguous() for part in parts],
            [part.lse.index_select(0, heads).contiguous() for part in parts])
        self.out.index_copy_(0, heads, merged.to(self.out.dtype))
        self.changed[heads] = True


@dataclass(frozen=True)
class KeptPair:
    sequence: Sequence
    block: int
    external: Part
