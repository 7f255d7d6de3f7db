"""The attention weights themselves, as /map of the format holds them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NoReturn

import torch

from ..errors import UsageError
from .calls import AttentionCall
from .geometry import Biases, BlockRows, KeyRanges
from .heads import HeadChoice
from .steps import Pass
from .torch_operators import scaled_scores


@dataclass(frozen=True)
class LayerMap:
    """The weights of a layer, of its external keys and then the block's."""

    weights: torch.Tensor  # [S, heads of the map, B, N + B] float16; NaN for rows that the pass didn't compute
    positions: tuple[tuple[int, int], ...]  # [begin, end) of the external keys, absolute


def layer_map(heads: list[int], chosen: HeadChoice, q: torch.Tensor, k: torch.Tensor, call: AttentionCall,
              ranges: KeyRanges, biases: Biases, rows: BlockRows) -> LayerMap:
    """The exact weights of these heads of the model: softmax over all external keys and the block's. q, k, biases: of
    the heads that `chosen` computes."""
    outside, inside = ranges.of(k, 2).detach(), ranges.inside(k, 2).detach()
    group, found = q.shape[1] // k.shape[1], []
    for head in heads:  # one at a time, to save memory
        slot = head if chosen.read is None else chosen.read.index(head)
        query, of_kv = q[:, slot:slot + 1].detach(), slice(slot // group, slot // group + 1)
        own = [bias if bias is None or bias.shape[1] == 1 else bias[:, slot:slot + 1]
               for bias in (biases.external, biases.internal)]
        scores = torch.cat([scaled_scores(query, keys[:, of_kv], call.scale, call.softcap, bias)
                            for keys, bias in zip((outside, inside), own)], -1)
        unseen = (scores == -math.inf).all(-1, keepdim=True)
        found.append(scores.softmax(-1).masked_fill(unseen, 0.0).half())
    positions = tuple((begin + ranges.offset, end + ranges.offset) for begin, end in ranges.external)
    return LayerMap(rows.blank(torch.cat(found, 1), 2), positions)


def refuse_length(length: int, positions: int) -> NoReturn:
    raise UsageError(f"maps: expected sequences of at most {positions} positions, for which this trace has room, got "
                     f"{length}. HINT: maps=\"positions=...\" with the length of the longest one")


def map_of_row(layers: list[LayerMap | None], slot: int, one: Pass, heads: int, positions: int) -> torch.Tensor:
    """[map layers, map heads, B, positions] float16. Column p is position p."""
    there = next((layer.weights for layer in layers if layer is not None), None)
    size = len(one.masked)
    found = torch.full((len(layers), heads, size, positions), math.nan, dtype=torch.float16,
                       device=None if there is None else there.device)
    last = max([one.block_start + size, *(end for layer in layers if layer is not None for _, end in layer.positions)])
    if last > positions:
        refuse_length(last, positions)
    for into, layer in zip(found, layers):
        if layer is None:
            continue
        # A key that a window's cache has dropped is there, and has no weight.
        into[..., :one.block_start] = 0.0
        column = 0
        for begin, end in (*layer.positions, (one.block_start, one.block_start + size)):
            into[..., begin:end] = layer.weights[slot, ..., column:column + end - begin]
            column += end - begin
        into.masked_fill_(layer.weights[slot, ..., -1:].isnan(), math.nan)  # rows that weren't computed
    return found
