"""Hides keys from heads: the intervention ``hide_keys``."""

from __future__ import annotations

import math

import torch

from ..errors import UsageError
from .intervention import Intervention, Site


def _in_region(site: Site, name: str, positions: list[int]) -> list[bool]:
    """A token in the block has two names: what its place is, and that of its part of the prompt."""
    one, names, parts = site.one, site.regions.names, site.regions.of(site.sequence)
    around = site.regions.around(site.sequence, one.block_start, len(one.masked))
    wanted, first_part = names.index(name), names.index("prompt") + 1
    masks = {one.block_start + place for place, mask in enumerate(one.masked) if mask}
    return [around.at(position, position in masks) == wanted
            or wanted >= first_part and position < len(parts) and parts[position] == wanted
            for position in positions]


def _hidden_for_all(given: Intervention, site: Site) -> torch.Tensor:
    """[N + B], the same for all heads: by position, region or token."""
    prompt, token = site.sequence.prompt, given["token"]
    if token is not None and token not in prompt:
        raise UsageError(f"interventions '{given.text}': token: expected a token of the prompt, got {token}. HINT: "
                         "hide_keys,positions=... or hide_keys,region=...")
    positions = site.positions()
    if given["region"] is not None:
        return torch.tensor(_in_region(site, given["region"], positions), dtype=torch.bool)
    hidden = set(given["positions"] or ())
    return torch.tensor([
        position in hidden or token is not None and position < len(prompt) and prompt[position] == token
        for position in positions], dtype=torch.bool)


def _hidden_by_weight(given: Intervention, weights: torch.Tensor, external: int) -> torch.Tensor:
    """[heads, N + B] from each head's mean weights."""
    hidden = torch.zeros_like(weights, dtype=torch.bool)
    if given["top"] is not None:
        return hidden.scatter_(1, weights.topk(min(given["top"], weights.shape[1]), 1).indices, True)
    hidden[:, :external] = weights[:, :external] > given["sinks"] / weights.shape[1]
    return hidden


def hide_keys(given: Intervention, site: Site, heads: torch.Tensor) -> bool:
    external, by_weight = site.num_external, given["top"] is not None or given["sinks"] is not None
    if not by_weight:
        hidden = _hidden_for_all(given, site)
        if not hidden.any():
            return False
        hidden = hidden.expand(len(heads), -1)
    scores, values = _scores_of(site, heads)
    if by_weight:
        hidden = _hidden_by_weight(given, scores.softmax(-1).mean(1), external)
        if not hidden.any():
            return False
    if site.hidden is None:
        site.hidden = torch.zeros(site.out.shape[0], scores.shape[2], dtype=torch.bool)
    hidden = hidden | site.hidden[heads]
    site.hidden[heads] = hidden
    scores.masked_fill_(hidden.unsqueeze(1), -math.inf)
    for part, chosen in ((site.external, slice(0, external)), (site.internal, slice(external, None))):
        lse = scores[..., chosen].logsumexp(-1)
        origin = lse.masked_fill(lse == -math.inf, 0.0).unsqueeze(-1)
        output = torch.bmm((scores[..., chosen] - origin).exp(), values[:, chosen])
        part.output.index_copy_(0, heads, output.to(part.output.dtype))
        part.lse.index_copy_(0, heads, lse.to(part.lse.dtype))
    return True


def _scores_of(site: Site, heads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores [heads, B, N + B] and values [heads, N + B, D], external keys first."""
    call = site.call
    of_kv = heads // (call.q.shape[1] // call.k.shape[1])

    def both(x: torch.Tensor) -> torch.Tensor:
        own = x[site.slot]
        return torch.cat([call.ranges.of(own, 1), call.ranges.inside(own, 1)], 1).index_select(0, of_kv).float()

    q = call.q[site.slot].index_select(0, heads).float()
    scores = torch.bmm(q, both(call.k).transpose(1, 2)) * call.scale
    external = site.num_external
    for bias, part in ((call.biases.external, scores[..., :external]), (call.biases.internal, scores[..., external:])):
        if bias is not None:
            part += bias.expand(call.q.shape[0], call.q.shape[1], -1, -1)[site.slot].index_select(0, heads)
    return scores, both(call.v)
