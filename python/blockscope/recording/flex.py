"""Flex attention. Its mask and the modification of its scores are functions of indices. PyTorch's ``create_mask``
evaluates both, only for the block's rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.attention.flex_attention import BlockMask, create_mask

from ..errors import UsageError
from .calls import AttentionCall, scale_of


def _blocks(number: torch.Tensor, index: torch.Tensor, columns: int) -> torch.Tensor:
    """number [..., R], index [..., R, most] -> [..., R, columns]: whether the row's first `number` indices name it."""
    named = torch.arange(index.shape[-1], device=index.device) < number.unsqueeze(-1)
    dense = torch.zeros(*index.shape[:-1], columns + 1, dtype=torch.bool, device=index.device)
    return dense.scatter_(-1, torch.where(named, index, columns).long(), True)[..., :columns]


@dataclass(frozen=True, eq=False)
class KeyBlocks:
    """What LazyMask reads of a BlockMask, whose constructors differ between versions of torch."""

    kv_num_blocks: torch.Tensor
    kv_indices: torch.Tensor
    full_kv_num_blocks: torch.Tensor | None
    full_kv_indices: torch.Tensor | None
    BLOCK_SIZE: tuple[int, int]
    mask_mod: Callable[..., Any]


class LazyMask:
    """The parts of a BlockMask that geometry needs: [S or 1, H or 1, T, N], True where seen, computed only for the
    requested rows. Blocks that the BlockMask leaves out count as unseen, as for the kernel."""

    dtype = torch.bool

    def __init__(self, block_mask: BlockMask | KeyBlocks, buffers: tuple[Any, ...], queries: int, keys: int) -> None:
        self._given, self._buffers = block_mask, buffers
        sequences, heads = block_mask.kv_num_blocks.shape[:2]
        self.shape = (sequences, heads, queries, keys)
        # Identifies layers that share it; both stay alive with the mask.
        self.identity = (block_mask.kv_num_blocks.data_ptr(), id(block_mask.mask_mod),
                         tuple(x.data_ptr() if isinstance(x, torch.Tensor) else x for x in buffers), self.shape)

    def narrow(self, dim: int, first: int, count: int) -> torch.Tensor:
        if dim % 4 != 2:
            raise ValueError("only rows can be chosen")
        mask_mod, buffers = self._given.mask_mod, self._buffers
        device = self._given.kv_num_blocks.device
        sequences, heads, _, keys = self.shape

        def of_row(sequence: Any, head: Any, row: Any, key: Any) -> Any:
            return mask_mod(sequence, head, row + first, key, *buffers)

        mask = create_mask(of_row, sequences, heads, count, keys, device)
        block_rows, block_keys = self._given.BLOCK_SIZE
        row = torch.arange(first, first + count, device=device) // block_rows
        key = torch.arange(keys, device=device) // block_keys
        given = self._given
        there = _blocks(given.kv_num_blocks, given.kv_indices, int(key[-1]) + 1)
        if given.full_kv_num_blocks is not None:
            there = there | _blocks(given.full_kv_num_blocks, given.full_kv_indices, int(key[-1]) + 1)
        return mask & there[..., row, :][..., key]

    def expand(self, *shape: int) -> torch.Tensor:
        return self.narrow(2, 0, self.shape[2]).expand(*shape)


class ScoreMod:
    """The effect of a score_mod on the block's scores."""

    def __init__(self, function: Callable[..., Any], buffers: tuple[Any, ...] = ()) -> None:
        self._function, self._buffers = function, buffers

    def difference(self, scores: torch.Tensor, rows: int, heads: list[int] | None) -> torch.Tensor:
        """[S, H, B, N] float32 that has to be added to these scores; `rows`: the call's first of them, `heads`: of
        the call, None: all in order."""
        function, buffers = self._function, self._buffers
        sequences, count = scores.shape[0], scores.shape[1]
        of_call = torch.tensor(list(range(count)) if heads is None else heads, device=scores.device)

        def at(sequence: Any, head: Any, row: Any, key: Any) -> Any:
            score = scores[sequence, head, row, key]
            return function(score, sequence, of_call[head], row + rows, key, *buffers) - score

        try:
            return create_mask(at, sequences, count, scores.shape[2], scores.shape[3], scores.device).float()
        except Exception as error:
            name = getattr(self._function, "__name__", type(self._function).__name__)
            raise UsageError(
                f"flex_attention: its score_mod ({name}) can't be evaluated for the block's rows alone: {error}. HINT: "
                "record(..., level=\"trajectory\")") from error


def _changes_nothing(score_mod: Any) -> bool:
    """Whether it returns the scores unchanged: PyTorch's function for None, also after tracing."""
    if getattr(score_mod, "__module__", "") == "torch.nn.attention.flex_attention" and \
            getattr(score_mod, "__name__", "") == "_identity":
        return True
    if not isinstance(score_mod, torch.fx.GraphModule):
        return False
    nodes = list(score_mod.graph.nodes)
    return nodes[-1].args[0] in (nodes[0], (nodes[0],), [nodes[0]])


def of_operator(function: Any, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> AttentionCall:
    """The operator that flex_attention() is: torch.ops.higher_order.flex_attention."""
    names = ("query", "key", "value", "score_mod", "block_mask", "scale", "kernel_options", "score_mod_other_buffers",
             "mask_mod_other_buffers")
    given = {**dict(zip(names, args)), **kwargs}
    q, k, v = given["query"], given["key"], given["value"]
    # BlockMask.as_tuple(): two lengths (from torch 2.6 on), four index tensors of keys and as many of queries, the
    # sizes of a block, mask_mod.
    number, index, full_number, full_index, *_, rows, keys, mask_mod = given["block_mask"][-11:]
    block_mask = KeyBlocks(number, index, full_number, full_index, (rows, keys), mask_mod)
    mask = LazyMask(block_mask, tuple(given.get("mask_mod_other_buffers") or ()), q.shape[2], k.shape[2])
    score_mod = None if _changes_nothing(given["score_mod"]) else ScoreMod(
        given["score_mod"], tuple(given.get("score_mod_other_buffers") or ()))
    k, v = (x.expand(q.shape[0], -1, -1, -1) for x in (k, v))
    return AttentionCall("flex_attention", q, k, v, mask, "", (-1, -1), scale_of(q, given["scale"]), 0.0, 0.0,
                         result[0], score_mod)
