"""The interventions of a recording, applied to what layers attend."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable

import torch

from ..errors import UsageError
from .geometry import BlockRows
from .intervention import BlockCall, Intervention, KeptPair, Site
from .patches import ModelSizes, Numbers, PatchSource
from .regions import Regions
from .shapes import LayerShape
from .split import LayerAttention, Part
from .steps import Kind, Pass, Sequence


class Interventions:
    """Those of a recording, applied to a layer's parts: those that compute anew, then the others in their order."""

    def __init__(self, given: tuple[Intervention, ...], num_layers: int, num_heads: int | None,
                 regions: Regions) -> None:
        self._regions = regions
        self._given = sorted(given, key=lambda one: not one.kind.comes_first)
        self._kept: list[dict[tuple[int, int], KeptPair]] = [{} for _ in given]
        # The loop may change the working folder. By place in _given, like the next one.
        self._paths = {place: os.path.abspath(os.fsencode(given["trace"]))
                       for place, given in enumerate(self._given) if given.kind.needs}
        self._sources: dict[int, PatchSource] = {}
        self._numbers, self._num_layers, self._num_heads = Numbers(), num_layers, num_heads
        self._told = False  # which heads share keys
        self._check("layers", num_layers)
        if num_heads is not None:
            self._check("heads", num_heads)
        self.layers = self._layers_of(lambda one: one.kind.apply is not None)  # whose attention changes
        self.commit_layers = self._layers_of(lambda one: one.in_commits)  # in commit passes, too

    def _layers_of(self, wanted: Callable[[Intervention], bool]) -> set[int]:
        return {layer for layer in range(self._num_layers)
                if any(wanted(one) and one.takes_in("layers", layer) for one in self._given)}

    def __bool__(self) -> bool:
        return bool(self._given)

    def open(self, hidden_size: int | None) -> None:
        """Opens the traces that patches take values from. hidden_size, like the number of heads: the configuration's.
        Layers show the other sizes later."""
        known = ModelSizes(self._num_layers, hidden_size or -1, None, self._num_heads or -1)
        try:
            for place, path in self._paths.items():
                self._sources[place] = PatchSource(path, known, self._given[place].kind.needs, self._numbers)
        except Exception:
            self.close()
            raise

    def close(self) -> None:
        while self._sources:
            self._sources.popitem()[1].close()

    def _check(self, name: str, count: int) -> None:
        for given in self._given:
            if given.values.get(name) is not None and given[name][-1] >= count:
                raise UsageError(f"interventions '{given.text}': {name}: expected 0 to {count - 1}, got "
                                 f"{given[name][-1]}")

    def plan(self, passes: list[Pass], first: Sequence) -> tuple[set[int], set[int]]:
        """The layers whose attention a pass changes, and those whose input it takes from another trace. first: the
        batch's first sequence."""
        if not any(one.kind is Kind.DENOISE for one in passes):
            commits = any(one.kind is Kind.COMMIT for one in passes)
            return (self.commit_layers if commits else set()), set()
        if self.commit_layers and (first.bidirectional or first.settings.autoregressive):
            raise UsageError("interventions: commits: the run has no commit passes of its own. HINT: a model and a "
                             "loop that decode blocks one after the other")
        return self.layers, self._layers_of(
            lambda given: given.kind.apply is None and any(map(given.includes, passes)))

    # --- the input of layers ------------------------------------------------------------------------------------------

    def patch_hidden(self, layer: int, passes: list[Pass], sequences: list[Sequence], hidden: torch.Tensor,
                     rows: BlockRows, shape: LayerShape | None) -> torch.Tensor:
        """A copy of a layer's input [S, T, hidden_size] with the block's rows of the other trace."""
        patched, sizes = hidden.clone(), ModelSizes(self._num_layers, hidden.shape[-1], shape)
        for place, given in enumerate(self._given):
            if given.kind.apply is not None or not given.takes_in("layers", layer):
                continue
            for slot, (one, sequence) in enumerate(zip(passes, sequences)):
                if given.includes(one):
                    values = self._source(place, sizes).hidden(sequence, one, layer).to(patched)
                    index = rows.first + torch.arange(rows.count) if rows.index is None else rows.index[slot]
                    patched[slot].index_copy_(0, index.to(patched.device), values)
        return patched

    def _source(self, place: int, sizes: ModelSizes) -> PatchSource:
        self._sources[place].check(sizes)
        return self._sources[place]

    # --- attention ----------------------------------------------------------------------------------------------------

    def apply(self, layer: int, passes: list[Pass], sequences: list[Sequence], attention: LayerAttention,
              call: BlockCall, out: torch.Tensor, sizes: ModelSizes) -> torch.Tensor:
        """Changes the parts, and returns the layer's result with the changed heads' merged parts. out: what the model
        would get, which may be changed in place."""
        heads = call.q.shape[1]
        self._check("heads", heads)
        self._tell_shared_keys(sizes)
        # One query may stand as queries of its KV head: [S, K, H / K, D].
        whole = out if out.shape[1] == heads else out.reshape(out.shape[0], heads, 1, out.shape[-1])
        block = call.rows.of(whole, 2)
        external, internal = (Part(part.output.clone(), part.lse.clone())
                              for part in (attention.external, attention.internal))
        changed = torch.zeros(len(passes), heads, dtype=torch.bool)
        for slot, (one, sequence) in enumerate(zip(passes, sequences)):
            site = Site(call, layer, slot, one, sequence, *(Part(part.output[slot], part.lse[slot])
                                                            for part in (external, internal)),
                        block[slot], changed[slot], self._regions)
            self._apply_to(site, sizes)
        if not changed.any():
            return out
        attention.external, attention.internal, attention.intervened = external, internal, changed
        if attention.spread is not None:  # of the weights before
            unknown = changed.unsqueeze(-1)
            attention.spread = attention.spread.each(lambda x: x.masked_fill(unknown, math.nan))
        if call.rows.index is not None:  # the block's rows are a copy
            for slot, index in enumerate(call.rows.index):
                whole[slot].index_copy_(1, index, block[slot])
        return whole.reshape(out.shape)

    def _tell_shared_keys(self, sizes: ModelSizes) -> None:
        if self._told or sizes.shape is None:
            return
        self._told = True
        for given in self._given:
            text = given.shared_keys_text(sizes.shape.heads, sizes.shape.kv_heads)
            if text:
                warnings.warn(text, stacklevel=2)

    def _apply_to(self, site: Site, sizes: ModelSizes) -> None:
        for place, (given, kept) in enumerate(zip(self._given, self._kept)):
            if given.kind.apply is None or not given.takes_in("layers", site.layer):
                continue
            site.kept = kept
            if given.kind.watch is not None and site.one.kind is Kind.DENOISE:
                given.kind.watch(given, site)
            if not given.includes(site.one):
                continue
            site.source = self._source(place, sizes) if given.kind.needs else None
            heads = torch.arange(site.out.shape[0]) if given["heads"] is None else torch.tensor(given["heads"])
            if given.kind.apply(given, site, heads):
                site.merge(heads)
