"""The interventions of a recording, applied to what layers attend."""

from __future__ import annotations

import math

import torch

from ..errors import UsageError
from .intervention import BlockCall, Intervention, KeptPair, Site
from .regions import Regions
from .split import LayerAttention, Part, Spread
from .steps import Kind, Pass, Sequence


class Interventions:
    """Those of a recording, applied to a layer's parts: those that compute anew, then the others in their order."""

    def __init__(self, given: tuple[Intervention, ...], num_layers: int, num_heads: int | None,
                 regions: Regions) -> None:
        self._regions = regions
        self._given = sorted(given, key=lambda one: not one.kind.comes_first)
        self._kept: list[dict[tuple[int, int], KeptPair]] = [{} for _ in given]
        self._check("layers", num_layers)
        if num_heads is not None:
            self._check("heads", num_heads)
        self.layers = {layer for layer in range(num_layers) if any(one.takes_in("layers", layer) for one in given)}

    def __bool__(self) -> bool:
        return bool(self._given)

    def _check(self, name: str, count: int) -> None:
        for given in self._given:
            if given[name] is not None and given[name][-1] >= count:
                raise UsageError(f"interventions '{given.text}': {name}: expected 0 to {count - 1}, got "
                                 f"{given[name][-1]}")

    def apply(self, layer: int, passes: list[Pass], sequences: list[Sequence], attention: LayerAttention,
              call: BlockCall, out: torch.Tensor) -> torch.Tensor:
        """Changes the parts, and returns the layer's result with the changed heads' merged parts. out: what the model
        would get, which may be changed in place."""
        heads = call.q.shape[1]
        self._check("heads", heads)
        # One query may stand as queries of its KV head: [S, K, H / K, D].
        whole = out if out.shape[1] == heads else out.reshape(out.shape[0], heads, 1, out.shape[-1])
        block = call.rows.of(whole, 2)
        external, internal = (Part(part.output.clone(), part.lse.clone())
                              for part in (attention.external, attention.internal))
        changed = torch.zeros(len(passes), heads, dtype=torch.bool)
        for slot, (one, sequence) in enumerate(zip(passes, sequences)):
            if one.kind is not Kind.DENOISE:
                continue
            site = Site(call, layer, slot, one, sequence, *(Part(part.output[slot], part.lse[slot])
                                                            for part in (external, internal)),
                        block[slot], changed[slot], self._regions)
            self._apply_to(site)
        if not changed.any():
            return out
        attention.external, attention.internal, attention.intervened = external, internal, changed
        if attention.spread is not None:  # of the weights before
            unknown = changed.unsqueeze(-1)
            values = (x.masked_fill(unknown, math.nan) for x in (
                attention.spread.entropy, attention.spread.largest, attention.spread.external,
                attention.spread.internal, attention.spread.offset))
            attention.spread = Spread(*values, attention.spread.positions)
        if call.rows.index is not None:  # the block's rows are a copy
            for slot, index in enumerate(call.rows.index):
                whole[slot].index_copy_(1, index, block[slot])
        return whole.reshape(out.shape)

    def _apply_to(self, site: Site) -> None:
        for given, kept in zip(self._given, self._kept):
            if not given.takes_in("layers", site.layer):
                continue
            site.kept = kept
            if given.kind.watch is not None:
                given.kind.watch(given, site)
            if not given.takes_in("steps", site.one.step) or not given.takes_in("blocks", site.one.block):
                continue
            heads = torch.arange(site.out.shape[0]) if given["heads"] is None else torch.tensor(given["heads"])
            if given.kind.apply(given, site, heads):
                site.merge(heads)
