"""What a policy of ``blockscope.apply`` is: from the facts of a batch's steps and a layer's queries and keys, it makes
the attention of the blocks. The rules are those of the runtime (probe/policies)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ..errors import UsageError
from . import operators


@dataclass(frozen=True)
class ModelShape:
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    digest: str = ""  # of the weights, as a recording has it; empty: unknown


@dataclass
class Step:
    """A denoising or commit pass of one sequence. Own policies get it (docs/python.md, "Your own policy")."""

    kind: str  # "denoise", "commit"
    sequence: int  # index in the run
    slot: int  # place in the batch
    block: int
    block_start: int
    step: int  # of the block, from 1; 0: a commit
    run_step: int  # of the sequence, from 1
    planned_steps: int | None  # None: unknown
    context_length: int  # N
    masked_rows: list[bool]  # [B]
    changed_rows: list[bool]  # [B]: the input differs from the step before
    since_read: int  # tokens decided since the last pass that read the prefix
    unread: list[bool]  # [B]: the input changed since then
    prompt: tuple[int, ...] = ()
    clean: bool = False  # the pass of a continuous model that writes a finished block's keys: the block's last step
    sure_left: float = 0.0  # as probe/policies/pass_context.h says
    scale: float = 0.0  # of the softmax
    memory: dict[Any, Any] = field(default_factory=dict)  # the policy's, as long as the sequence

    @property
    def first(self) -> bool:
        return self.step == 1

    @property
    def denoises(self) -> bool:
        return self.kind == "denoise"

    @property
    def masked(self) -> list[int]:
        return [index for index, flag in enumerate(self.masked_rows) if flag]

    @property
    def changed(self) -> list[int]:
        return [index for index, flag in enumerate(self.changed_rows) if flag]

    @property
    def masks_left(self) -> int:
        return sum(self.masked_rows)

    @property
    def decided(self) -> int:
        """The tokens that the step before decided. One that it decided as the mask can't be seen in a loop."""
        return sum(self.changed_rows)


@dataclass
class Attention:
    """Queries of the batch's blocks at one layer, the keys before the blocks, and the blocks' own."""

    layer: int
    q: torch.Tensor  # [S, H, B, D]
    k_ext: torch.Tensor  # [S, K, N, D]
    v_ext: torch.Tensor
    k_in: torch.Tensor  # [S, K, B, D]
    v_in: torch.Tensor
    scale: float
    dropped: bool = False  # the cache has dropped older keys

    @property
    def lengths(self) -> torch.Tensor:
        return torch.full((self.q.shape[0],), self.k_ext.shape[2], dtype=torch.int64)

    @property
    def operators(self) -> Any:
        return operators.of(self.q, self.k_ext, self.v_ext, self.k_in, self.v_in)

    def of_slot(self, slot: int) -> Attention:
        one = slice(slot, slot + 1)
        return Attention(self.layer, *(x[one] for x in (self.q, self.k_ext, self.v_ext, self.k_in, self.v_in)),
                         self.scale, self.dropped)


@dataclass
class Parts:
    """What attention used and returned, as AttentionParts of probe/policies/attention_policy.h."""

    out: torch.Tensor  # [S, H, B, D]
    external: torch.Tensor  # [S, H, B, D] float32, A_out that was used
    lse_external: torch.Tensor  # [S, H, B]
    internal: torch.Tensor
    lse_internal: torch.Tensor
    keys_read: torch.Tensor | None = None  # [S, K]; None: every external key
    reused: torch.Tensor | None = None  # [S, H] bool, on the host; None: nothing
    refreshed: torch.Tensor | None = None  # [S, B] bool, on the host: rows that read in reusing heads, too
    selected: torch.Tensor | None = None  # [S, K, k] int32; -1 throughout: the sequence read everything
    rows_scored: list[int] | None = None  # [S] rows of D elements that each KV head read to choose


def exact_attention(given: Attention) -> Parts:
    return Parts(*given.operators.split_attention(given.q, given.k_ext, given.v_ext, given.lengths, given.k_in,
                                                  given.v_in, given.scale))


class Policy:
    """Prefill and commit passes are exact: their attention is never asked for."""

    text = "exact"
    settings: dict[str, Any] = {"policy": "exact"}  # as a trace has them
    needs_predictions = False  # whether Step.sure_left counts

    def setup(self, shape: ModelShape) -> None:
        """Called once, before the first layer attends."""

    def check(self, bidirectional: bool, autoregressive: bool, continuous: bool) -> None:
        """Raises UsageError for a loop that the policy doesn't fit."""

    def begin_pass(self, steps: Sequence[Step]) -> None:
        """Before the first layer of a denoising or commit pass, with each sequence's step."""

    def rows_read(self, slot: int, rows: int) -> int:
        """Rows of the block that read the prefix in every head; 0: heads that may reuse do so for all rows."""
        return rows

    def attend(self, given: Attention) -> Parts:
        return exact_attention(given)

    def end_pass(self) -> None:
        """After the last layer."""

    def end_sequences(self) -> None:
        """Drops what it keeps of the current sequences outside their Step.memory."""


def refuse_token_by_token(policy: Policy) -> None:
    raise UsageError(f"policy {policy.text}: does nothing for a model that decodes token by token: its blocks have no "
                     "later steps that could reuse. HINT: use another policy, or a block-diffusion model")
