"""The attention of a continuous model's block, which may have thousands of rows. One head at a time is computed,
compared with the block's earlier steps, and reduced to sums over all rows. Only the rows that the trace records are
kept. A_out and L_out of the earlier steps stay in memory, in the type of the queries."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .. import _core
from . import kernels
from .agreement import difference
from .geometry import Biases, KeyRanges
from .split import LayerAttention, Part
from .torch_operators import merged
from .video import Video

PAIR_SUMS = 7  # rows, cosine, change of L_out, e^2, |e|, ref^2, dot
KNOWN = 1  # row kind of /summary/kept_pair


@dataclass
class KeptHeads:
    """One layer of one sequence in one step: [H, B, D] and [H, B], or nothing without external keys."""

    external: Tensor | None
    lse: Tensor | None
    internal: Tensor | None = None  # of the two last steps alone
    query: Tensor | None = None  # of the first step alone


@dataclass
class LayerSums:
    """[S, H, ...] over all rows of the block."""

    mass: Tensor
    similarity_external: Tensor
    similarity_internal: Tensor
    query_gap: Tensor
    query_block_gap: Tensor
    pairs: Tensor  # [S, P, H, 7]
    reference: Tensor  # sum of the output's squares: [S, H]


def cosines(a: Tensor, b: Tensor) -> Tensor:
    """[B] of [B, D]."""
    return (a * b).sum(-1) * ((a * a).sum(-1) * (b * b).sum(-1)).clamp_min(1e-37).rsqrt()


def pair_sums(now: tuple[Tensor, Tensor], old: tuple[Tensor, Tensor], inside: tuple[Tensor, Tensor],
              true: Tensor) -> Tensor:
    """[7]: the comparison of A_out [B, D] and L_out [B] with those of an earlier step, and the error of the output
    `true` [B, D] with the earlier pair."""
    change = (now[1] - old[1]).abs()
    there = change.isfinite()
    got = merged(*old, *inside)
    error = got - true
    rows = torch.stack([torch.ones_like(change), cosines(now[0], old[0]), change, (error * error).sum(-1),
                        error.abs().sum(-1), (true * true).sum(-1), (true * got).sum(-1)], -1)
    return torch.where(there.unsqueeze(-1), rows, 0.0).double().sum(0).float()


def attend(q: Tensor, k: Tensor, v: Tensor, scale: float, softcap: float, ranges: KeyRanges, biases: Biases,
           one: Any, kept: list[dict[Any, Any]], layer: int, video: Video,
           check: Tensor | None) -> tuple[LayerAttention, float]:
    """q [S, H, B, D], k, v [S, K, N, D]; kept: of each sequence, by (layer, step). check: what the model got, to be
    compared. Also returns the largest difference from it, as a part of its largest value."""
    sequences, heads, block, dim = q.shape
    group, rows = heads // k.shape[1], torch.tensor(video.rows, device=q.device)
    external = ranges.external[0][1] > ranges.external[0][0]
    parts = [q.new_empty(sequences, heads, len(video.rows), dim, dtype=torch.float32) for _ in range(2)]
    lses = [q.new_empty(sequences, heads, len(video.rows), dtype=torch.float32) for _ in range(2)]
    sums = _no_sums(q, heads, video)
    worst = 0.0
    for slot in range(sequences):
        own = KeptHeads(q.new_empty(heads, block, dim) if external else None,
                        q.new_empty(heads, block, dtype=torch.float32) if external else None,
                        q.new_empty(heads, block, dim), q[slot].clone() if one.step == 1 else None)
        for head in range(heads):
            out, *found = _split(q, k, v, scale, softcap, ranges, biases, slot, head, head // group)
            if check is not None:
                worst = max(worst, difference(out, check[slot, head]))
            a_out, l_out, a_in, l_in = found
            _summarise(sums, kept[slot], layer, one.step, slot, head, found, q[slot, head], external, video)
            if external:
                own.external[head], own.lse[head] = a_out, l_out
            own.internal[head] = a_in
            parts[0][slot, head], parts[1][slot, head] = a_out[rows], a_in[rows]
            lses[0][slot, head], lses[1][slot, head] = l_out[rows], l_in[rows]
        _keep(kept[slot], layer, one.step, own, video)
    attention = LayerAttention(Part(parts[0], lses[0]), Part(parts[1], lses[1]), q[:, :, rows], None, None, None)
    attention.statistics = sums
    return attention, worst


def _no_sums(q: Tensor, heads: int, video: Video) -> LayerSums:
    def missing(*shape: int) -> Tensor:
        return torch.full((q.shape[0], *shape), math.nan, device=q.device)

    return LayerSums(*(missing(heads) for _ in range(5)), missing(video.pair_steps, heads, PAIR_SUMS), missing(heads))


def _split(q: Tensor, k: Tensor, v: Tensor, scale: float, softcap: float, ranges: KeyRanges, biases: Biases, slot: int,
           head: int, kv_head: int) -> list[Tensor]:
    """out, A_out, L_out, A_in, L_in of one head: [B, D], [B]."""
    query, key, value = (x[slot:slot + 1, i:i + 1] for x, i in ((q, head), (k, kv_head), (v, kv_head)))
    (k_ext, k_in), (v_ext, v_in) = [(ranges.of(x, 2), ranges.inside(x, 2)) for x in (key, value)]
    length = torch.full((1,), k_ext.shape[2], dtype=torch.int64)

    def of_head(bias: Tensor | None) -> Tensor | None:
        if bias is None:
            return None
        bias = bias[slot:slot + 1] if bias.shape[0] > 1 else bias
        return bias[:, head:head + 1] if bias.shape[1] > 1 else bias

    more = (softcap, of_head(biases.external), of_head(biases.internal)) if softcap or biases.any else ()
    operators = kernels.operators(not more and kernels.fit(query, k_ext, v_ext, k_in, v_in))
    out, a_out, l_out, a_in, l_in = operators.split_attention(query, k_ext, v_ext, length, k_in, v_in, scale, *more)
    return [out[0, 0].float(), a_out[0, 0], l_out[0, 0], a_in[0, 0], l_in[0, 0]]


def _summarise(sums: LayerSums, kept: dict[Any, Any], layer: int, step: int, slot: int, head: int, found: list[Tensor],
               query: Tensor, external: bool, video: Video) -> None:
    a_out, l_out, a_in, l_in = found
    first, last = kept.get((layer, 1)), kept.get((layer, step - 1))
    at = slot, head
    true = merged(a_out, l_out, a_in, l_in) if external else a_in
    sums.reference[at] = true.double().square().sum()
    if external:
        sums.mass[at] = torch.sigmoid(l_out - l_in).mean()
    if step > 1 and last is not None and last.internal is not None:
        sums.similarity_internal[at] = cosines(a_in, last.internal[head].float()).mean()
        if external:
            sums.similarity_external[at] = cosines(a_out, last.external[head].float()).mean()
    if step > 1 and first is not None and first.query is not None:
        gaps = kernels.of(query).step_gaps(query[None, None], first.query[None, head:head + 1], 0)
        sums.query_gap[at], sums.query_block_gap[at] = gaps[0][0], gaps[1][0]
    for earlier in range(1, min(step, video.pair_steps + 1)) if external else ():
        old = kept.get((layer, earlier))
        if old is not None:
            sums.pairs[slot, earlier - 1, head] = pair_sums(
                (a_out, l_out), (old.external[head].float(), old.lse[head]), (a_in, l_in), true)


def _keep(kept: dict[Any, Any], layer: int, step: int, own: KeptHeads, video: Video) -> None:
    kept[layer, step] = own
    before = kept.get((layer, step - 2))  # the step before this one may be needed again, if this pass fails
    if before is not None:
        before.internal = None
        if step - 2 > video.pair_steps:
            del kept[layer, step - 2]


def values_of(layers: list[LayerAttention], slot: int, one: Any) -> dict[str, Tensor]:
    """The datasets of level summary of a row."""

    def stacked(of: str) -> Tensor:
        return torch.stack([getattr(layer.statistics, of)[slot] for layer in layers])

    values = {"/attention/lse_external": torch.stack([layer.external.lse[slot] for layer in layers]),
              "/attention/lse_internal": torch.stack([layer.internal.lse[slot] for layer in layers])}
    for name, path in (("mass", "external_mass"), ("similarity_external", "similarity_external"),
                       ("similarity_internal", "similarity_internal"), ("query_gap", "query_gap"),
                       ("query_block_gap", "query_block_gap")):
        values[f"/summary/{path}"] = stacked(name)
    pairs = stacked("pairs")  # [L, P, H, 7]
    values["/summary/step_pair"] = pairs.transpose(0, 1)
    if one.context_length == 0:
        return values
    # No token is decided, so that every rule holds step 1.
    reference, taus = stacked("reference"), len(_core.reuse_taus)
    zero = torch.zeros_like(reference)
    errors = torch.stack([zero, zero, reference, reference], -1) if one.step == 1 else pairs[:, 0][..., 3:]
    values["/summary/reuse_error"] = errors.expand(taus, *errors.shape)
    if one.step > 1:
        kept = reference.new_zeros(*reference.shape, 3, 5)
        kept[..., KNOWN, :] = pairs[:, 0][..., [0, 1, 2, 3, 5]]
        values["/summary/kept_pair"] = kept.expand(taus, *kept.shape)
    return values
