"""One running forward pass: the values kept from its layers."""

from __future__ import annotations

import math
import time
from typing import Any

import torch

from ..errors import UsageError
from . import agreement, kernels
from .attention import LOOKED_FOR, trail_ends
from .caches import LayerRows, layer_rows, selected_rows, selects_by_layer
from .calls import AttentionCall
from .continuous import require_batch
from .cross_attention import SkippedCalls
from .geometry import Biases, BlockRows, Geometry, KeyRanges
from .heads import HeadChoice
from .intervention import BlockCall
from .interventions import Interventions
from .large_blocks import attend
from .layer_maps import LayerMap, layer_map
from .patches import ModelSizes
from .regions import KeyPlaces
from .routers import Choice, by_weight
from .settings import Settings
from .shapes import LayerShape, LayerShapes, unpacked
from .split import LayerAttention, Part, Sets, Spread, moved, split_attention
from .steps import Kind, Pass, PassInput, Sequence
from .torch_operators import scaled_scores
from .trails import Lost


_TWICE = ("called more than once in a layer and pass, so the call that attends to the sequence's own keys can't be "
          "determined. HINT: state it with run.attention(layer, q, k, v) before the layer's own calls")
_WHOLE_BLOCKS = ("an intervention changes whole blocks, and this pass computes only some rows of one. HINT: a loop "
                 "whose cache computes whole blocks")
NO_GRADIENTS = "interventions have no gradients. HINT: decode within torch.no_grad()"


class RunningPass(SkippedCalls):
    def __init__(self, number: int, given: PassInput, passes: list[Pass], sequences: list[Sequence], settings: Settings,
                 num_layers: int) -> None:
        super().__init__(None if settings.video is None else given.length)
        self.number = number
        self.given = given
        self.passes = passes
        self.settings = settings
        self.num_layers = num_layers
        self.geometry: Geometry | None = None
        self.sequences = sequences
        self.denoises = any(one.is_step for one in passes)
        self.places = KeyPlaces(settings.regions, sequences, [one.block_start for one in passes], settings.block_length)
        self.num_external = -1  # of a continuous model's block, once it is seen
        self.hidden_size: int | None = None
        self.layer = -1  # that runs now
        self.attention: dict[int, LayerAttention] = {}
        self.hidden: dict[int, torch.Tensor] = {}  # [S, B, hidden_size]
        self.routed: dict[int, Choice] = {}  # by layer with experts
        self.stored: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # [S, K, T, D] keys, values; level full
        self.stated: set[int] = set()  # layers whose attention the loop stated
        self.lost: dict[int, list[Lost]] = {}  # by layer, where attention that is spelled out was followed to
        self.by_layer: dict[int, LayerRows] = {}  # where each layer chooses the rows that it computes
        self.computed = given.computed or given.positions  # [S][R] positions; None: all of the pass
        self.read: torch.Tensor | None = None  # keys [S, K, N, D] of the last attention call, of the whole batch
        self.block_call: BlockCall | None = None  # of the last layer, where interventions need it
        self.changing: set[int] = set()  # layers whose attention interventions may change
        self.to_patch: set[int] = set()  # layers whose input comes from another trace
        self.own_ns = 0  # of the recorder itself
        self.pass_ns = 0
        self._begun = 0
        self._biases: dict[Any, tuple[Any, KeyRanges, Biases, BlockRows]] = {}
        self._block_rows: dict[tuple[int, torch.device], BlockRows] = {}  # by the number of a tensor's rows

    def begin(self, now: int) -> None:
        self._begun = now

    def end(self, now: int) -> None:
        self.pass_ns = max(now - self._begun - self.own_ns, 0)

    def take_hidden(self, layer: int, hidden: Any) -> None:
        if not isinstance(hidden, torch.Tensor) or self.geometry is None or hidden.dim() != 3:
            return
        self.hidden_size = hidden.shape[-1]
        if self.settings.video is not None:  # a block has too many rows
            return
        begun = time.perf_counter_ns()
        hidden = self.given.own(hidden)
        rows = self._rows_of(hidden.shape[1], hidden.device, by_layer=False)
        # A copy, because later code may add to it in place.
        self.hidden[layer] = rows.blank(rows.of(hidden.detach(), 1).clone(), 1)
        self.own_ns += time.perf_counter_ns() - begun

    def take_routed(self, layer: int, expert: torch.Tensor, weight: torch.Tensor) -> None:
        if self.geometry is None or not self.denoises:
            return
        begun = time.perf_counter_ns()
        expert, weight = (self.given.own(x.reshape(self.given.batch, -1, x.shape[-1])) for x in (expert, weight))
        rows = self._rows_of(expert.shape[1], expert.device, by_layer=False)
        self.routed[layer] = by_weight(rows.of(expert, 1), rows.of(weight, 1), rows.there)
        self.own_ns += time.perf_counter_ns() - begun

    def take_attention(self, call: AttentionCall, name: str, shapes: LayerShapes, check: bool) -> None:
        where = f"{name}: {call.function}"
        if call.q.shape[2] == 0:
            return
        if self.layer in self.attention:
            raise UsageError(f"{where}: {_TWICE}")
        if call.dropout > 0:
            raise UsageError(f"{where}: with dropout of {call.dropout}, so the attention isn't what its keys give. "
                             "HINT: model.eval()")
        if check and call.confirm is not None:
            self._require_same(*call.confirm(), where)
        chosen, block = self.block_of(call, shapes, where)
        q, k, v, ranges, rows = block.q, block.k, block.v, block.ranges, block.rows
        biases = chosen.biases(block.biases)
        if self.settings.at_least("full"):
            self._refuse_scattered(rows, where)
            self.stored[self.layer] = self._computed(k, v, self.geometry.canvas, where)
        if self.settings.video is not None:
            return self._take_block(q, k, v, call, ranges, biases, where, check)
        if call.score_mod is not None:
            if rows.index is not None:
                raise UsageError(f"{where}: a score_mod over scattered rows isn't recorded")
            scores = scaled_scores(q, k, call.scale)
            biases = biases.plus(call.score_mod.difference(scores, rows.first, chosen.read), ranges)
        self._keep_call(q, k, v, call, ranges, biases, rows)
        derives = (self.settings.attention == "derive" and not check and call.out is not None
                   and call.out.dtype == call.q.dtype)
        out, external, internal, spread, sets = self._attend(q, k, v, call, ranges, biases, rows,
                                                             rows.of(call.out, 2) if derives else None)
        if check and call.out is not None:
            self._require_same(out, rows.of(call.out, 2), where)
        external, internal = (chosen.part(Part(rows.blank(part.output, 2), rows.blank(part.lse, 2)))
                              for part in (external, internal))
        self.attention[self.layer] = LayerAttention(
            external, internal, chosen.kept(rows.blank(q, 2)), sets, *self._block_keys(ranges, k, v),
            None if spread is None else spread.each(chosen.kept),
            map=self._map(q, k, call, ranges, biases, rows, chosen), num_external=ranges.num_external)

    def _take_block(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, call: AttentionCall, ranges: KeyRanges,
                    biases: Biases, where: str, check: bool) -> None:
        if call.score_mod is not None:
            raise UsageError(f"{where}: a score_mod isn't recorded of a continuous model")
        self.num_external = ranges.internal[0]
        found, worst = attend(
            q.detach(), k.detach(), v.detach(), call.scale, call.softcap, ranges, biases, self.passes[0],
            [one.kept for one in self.sequences], self.layer, self.settings.video, call.out if check else None)
        agreement.require(worst, q.dtype, where)
        self.attention[self.layer] = found

    def block_of(self, call: AttentionCall, shapes: LayerShapes, where: str) -> tuple[HeadChoice, BlockCall]:
        """The heads that are recorded, and the block's part of a call, which then has the recorded sequences and heads
        alone."""
        if self.settings.video is not None:
            require_batch(self.given, call.q.shape[0], where)
        chosen, k, v = self._own_heads(call, shapes, where)
        rows = self._rows_of(call.q.shape[2], call.q.device, by_layer=True)
        ranges, biases = self._masks_of(call, rows)
        return chosen, BlockCall(rows.of(call.q, 2), k, v, ranges, biases, rows, call.scale)

    @staticmethod
    def _require_same(merged: torch.Tensor, used: torch.Tensor, where: str) -> None:
        agreement.require(agreement.difference(merged, used), used.dtype, where)

    def state(self, layer: int) -> None:
        """The loop is about to state this layer's attention, so earlier observations of it no longer count."""
        if layer in self.stated:
            raise UsageError(f"run.attention: layer {layer}: stated twice in one pass. HINT: state all of its heads "
                             "and keys in one call")
        self.stated.add(layer)
        self.attention.pop(layer, None)
        self.stored.pop(layer, None)

    def give_attention(self, call: AttentionCall, name: str, shapes: LayerShapes) -> torch.Tensor | None:
        """The result of the call, computed once for the model and the recording. None if the call is more than plain
        attention over the prefix and the whole block."""
        settings, where = self.settings, f"{name}: {call.function}"
        if (self.layer in self.attention or call.dropout > 0 or call.q.shape[2] != settings.block_length
                or self.given.length != settings.block_length or settings.heads is not None
                or self.given.rows is not None
                or settings.at_least("full") or torch.is_grad_enabled() and call.q.requires_grad):
            return None
        k, v = shapes.own_heads(self.layer, call, where)
        rows = self._rows_of(call.q.shape[2], call.q.device, by_layer=True)
        if rows.index is not None or rows.there is not None or not kernels.fit(call.q, k, v):
            return None
        ranges, biases = self._masks_of(call, rows)
        if biases.any or ranges.hidden or ranges.offset:
            return None
        self._keep_call(call.q, k, v, call, ranges, biases, rows)
        out, external, internal, spread, sets = self._attend(call.q, k, v, call, ranges, biases, rows)
        self.attention[self.layer] = LayerAttention(
            external, internal, call.q, sets, None, None, spread,
            map=self._map(call.q, k, call, ranges, biases, rows, HeadChoice(None, None, None)),
            num_external=ranges.num_external)
        return out

    def _block_keys(self, ranges: KeyRanges, k: torch.Tensor,
                    v: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Only level full records them. Copies, because views would keep the memory of all keys until the row is
        written, and the model's next layers would have to fill fresh pages."""
        if not self.settings.at_least("full"):
            return None, None
        return ranges.inside(k, 2).clone(), ranges.inside(v, 2).clone()

    def _keep_call(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, call: AttentionCall, ranges: KeyRanges,
                   biases: Biases, rows: BlockRows) -> None:
        if self.settings.interventions:
            self.block_call = BlockCall(q, k, v, ranges, biases, rows, call.scale)

    def _refuse_scattered(self, rows: BlockRows, where: str) -> None:
        if rows.index is not None or rows.there is not None or self.given.positions is not None or self.by_layer:
            raise UsageError(f"{where}: level full: a pass that computes some rows alone isn't recorded at it. HINT: "
                             "record(..., level=\"outputs\")")

    def take_keys(self, call: AttentionCall, name: str, shapes: LayerShapes, canvas: int | None) -> None:
        """Keeps what a pass without denoising stored."""
        where = f"{name}: {call.function}"
        if self.layer in self.stored:
            raise UsageError(f"{where}: {_TWICE}")
        _, k, v = self._own_heads(call, shapes, where)
        self.stored[self.layer] = self._computed(k, v, canvas, where)

    def _computed(self, k: torch.Tensor, v: torch.Tensor, canvas: int | None,
                  where: str) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of the pass's own positions: the last ones, or at their places in a canvas."""
        if self.given.positions is not None:
            raise UsageError(f"{where}: level full: a pass over scattered positions isn't recorded at it. HINT: "
                             "record(..., level=\"outputs\")")
        keys, length = k.shape[2], self.given.length
        first = self.given.start if keys == canvas else keys - length
        if first < 0 or first + length > keys:
            raise UsageError(f"{where}: {keys} keys in a pass over {length} positions from {self.given.start}, so its "
                             "own can't be determined. HINT: record(..., level=\"outputs\")")
        return k.narrow(2, first, length), v.narrow(2, first, length)

    def _rows_of(self, count: int, device: torch.device, by_layer: bool) -> BlockRows:
        """The place of the block among the `count` rows of a tensor."""
        chosen = layer_rows(self.given.cache) if by_layer else None
        if chosen is not None:
            self.by_layer[self.layer] = chosen
        elif (count, device) in self._block_rows:
            return self._block_rows[count, device]
        found = self.geometry.block_rows(count, device)
        if chosen is None:
            self._block_rows[count, device] = found
        return found

    def take_computed(self, layers: list[int]) -> None:
        """At the end of the pass: the positions that it computed, if the loop's cache shows them."""
        selected = selected_rows(self.given.cache)
        if selected is not None and self.given.computed is None:
            self.computed = [[self.given.start + row for row in rows] for rows in selected]
        if not selects_by_layer(self.given.cache) or not self.denoises:
            return
        if self.settings.interventions:
            raise UsageError("an intervention changes whole blocks, and each layer of the loop's cache chooses its "
                             "rows. HINT: another cache, or a recording without interventions")
        if self.geometry is None or len(layers) != self.num_layers:
            raise UsageError("each layer of the loop's cache chooses the rows that it computes, which is seen where "
                             "all of them are recorded. HINT: record(..., level=\"summary\") without layers=...")
        for layer in layers:  # a layer that chose none doesn't attend
            self.by_layer.setdefault(layer, LayerRows([[]] * len(self.given.ids), [[]] * len(self.given.ids)))
            if layer not in self.attention and self.attention:
                self.attention[layer] = self._nothing(next(iter(self.attention.values())))

    def bring_together(self) -> None:
        """At the end of the pass: the values of layers on several devices (``device_map="auto"``) go to one of them,
        because the arrays of a row join the layers."""
        places = [*(one.query.device for one in self.attention.values()), *(x.device for x in self.hidden.values()),
                  *(keys.device for keys, _ in self.stored.values()),
                  *(choice.expert.device for choice in self.routed.values())]
        if len(set(places)) > 1:
            self.attention, self.hidden, self.stored, self.routed = (moved(values, places[0]) for values in (
                self.attention, self.hidden, self.stored, self.routed))

    def _nothing(self, like: LayerAttention) -> LayerAttention:
        def part(one: Part) -> Part:
            return Part(torch.full_like(one.output, math.nan), torch.full_like(one.lse, math.nan))

        unknown = None if like.sets is None else torch.full_like(like.sets.probability, math.nan)
        sets = None if like.sets is None else Sets(
            torch.full_like(like.sets.index, -1), unknown, torch.full_like(like.sets.union_size, -1),
            key_norm=unknown, value_norm=unknown)
        spread = None if like.spread is None else like.spread.each(lambda x: torch.full_like(x, math.nan))
        return LayerAttention(part(like.external), part(like.internal), torch.full_like(like.query, math.nan), sets,
                              like.key, like.value, spread, num_external=like.num_external)

    def _attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, call: AttentionCall, ranges: KeyRanges,
                biases: Biases, rows: BlockRows, result: torch.Tensor | None = None,
                ) -> tuple[torch.Tensor, Part, Part, Spread | None, Sets | None]:
        """Both parts together, each of them, how the weights are spread, and the external keys' sets. result: what the
        model computed, if the external output may follow from it."""
        settings, places = self.settings, None
        q, k, v = q.detach(), k.detach(), v.detach()
        if settings.at_least("summary") and self.denoises:
            places = self.places.of(tuple((begin + ranges.offset, end + ranges.offset)
                                          for begin, end in ranges.external))
        out, external, internal, spread, sets = split_attention(
            q, (ranges.of(k, 2), ranges.of(v, 2)), (ranges.inside(k, 2), ranges.inside(v, 2)), call.scale,
            call.softcap, biases, places, settings.set_size if self.denoises else 0,
            settings.set_normaliser != "prefix", settings.at_least("full"), rows.there, result)
        if sets is not None and ranges.offset:
            sets.index = torch.where(sets.index >= 0, sets.index + ranges.offset, sets.index)
            if sets.token_index is not None:
                sets.token_index = torch.where(sets.token_index >= 0, sets.token_index + ranges.offset,
                                               sets.token_index)
        return out, external, internal, spread, sets

    def _map(self, q: torch.Tensor, k: torch.Tensor, call: AttentionCall, ranges: KeyRanges, biases: Biases,
             rows: BlockRows, chosen: HeadChoice) -> LayerMap | None:
        maps = self.settings.maps
        if maps is None or self.layer not in maps.layers or not any(
                one.recorded(self.settings) and maps.takes(one) for one in self.passes):
            return None
        recorded = range(q.shape[1]) if self.settings.heads is None else self.settings.heads
        return layer_map(maps.among("heads", recorded), chosen, q, k, call, ranges, biases, rows)

    def _own_heads(self, call: AttentionCall, shapes: LayerShapes,
                   where: str) -> tuple[HeadChoice, torch.Tensor, torch.Tensor]:
        """The heads that are recorded; the call's keys and values of them. Leaves the others out of the call, and the
        batch's other rows."""
        if self.given.rows is not None:
            self._leave_out_rows(call, where)
        call = unpacked(call, self.given.length, where)
        k, v = shapes.own_heads(self.layer, call, where)
        chosen = HeadChoice.of(self.settings.heads, call.q.shape[1], k.shape[1], shapes.recorded_kv)
        return chosen, *chosen.restrict(call, k, v)

    def _leave_out_rows(self, call: AttentionCall, where: str) -> None:
        own, mask = self.given.own, call.mask
        of_indices = mask is not None and not isinstance(mask, torch.Tensor) and mask.shape[0] > 1
        if call.score_mod is not None or of_indices:
            raise UsageError(f"{where}: batch_rows: a mask or score_mod that looks at the sequence's index isn't "
                             "recorded of a part of the batch. HINT: record all of it")
        call.q, call.k, call.v, call.out = (own(x) for x in (call.q, call.k, call.v, call.out))
        call.mask = own(mask) if isinstance(mask, torch.Tensor) else mask

    def _masks_of(self, call: AttentionCall, rows: BlockRows) -> tuple[KeyRanges, Biases]:
        """Layers share a mask, so it is checked once per pass."""
        keys, mask = call.k.shape[2], call.mask
        identity = mask if mask is None else getattr(mask, "identity", None) or (
            mask.data_ptr(), mask.shape, mask.stride(), mask.dtype)
        key = (identity, keys, call.causal, call.window, id(rows))
        known = self._biases.get(key)
        if known is None:
            ranges = self.geometry.key_ranges(keys)
            # Keeps the mask and the rows alive, so that their addresses stay unique.
            known = (mask, ranges, self.geometry.biases(call, ranges, rows), rows)
            self._biases[key] = known
        return known[1], known[2]

    def intervene(self, interventions: Interventions, sequences: list[Sequence], out: torch.Tensor,
                  where: str, shape: LayerShape | None) -> torch.Tensor:
        """The layer's result with the interventions; its parts are kept."""
        call, attention = self.block_call, self.attention.get(self.layer)
        if call is None or attention is None or call.rows.there is not None:
            raise UsageError(f"{where}: {_WHOLE_BLOCKS}")
        self.block_call = None
        hidden = self.hidden[self.layer].shape[-1] if self.layer in self.hidden else -1
        sizes = ModelSizes(self.num_layers, hidden, shape)
        return interventions.apply(self.layer, self.passes, sequences, attention, call, out, sizes)

    def patch_hidden(self, interventions: Interventions, sequences: list[Sequence], hidden: Any, where: str,
                     shape: LayerShape | None) -> torch.Tensor:
        """What the running layer gets in place of its input."""
        if not isinstance(hidden, torch.Tensor) or hidden.dim() != 3:
            raise UsageError(f"{where}: patch_hidden: the input of the layers can't be seen: their first argument "
                             "isn't the hidden states [S, T, hidden_size]")
        if torch.is_grad_enabled() and hidden.requires_grad:
            raise UsageError(f"{where}: {NO_GRADIENTS}")
        begun = time.perf_counter_ns()
        with torch.no_grad():
            rows = self._rows_of(hidden.shape[1], hidden.device, by_layer=False)
            if rows.there is not None:
                raise UsageError(f"{where}: {_WHOLE_BLOCKS}")
            patched = interventions.patch_hidden(self.layer, self.passes, sequences, hidden, rows, shape)
        self.to_patch.discard(self.layer)
        self.own_ns += time.perf_counter_ns() - begun
        return patched

    def require_layers(self, recorded: list[int], layers: list[tuple[str, torch.nn.Module]], model: str) -> None:
        seen = self.attention if self.denoises else {*self.stored, *self.attention}
        missing = [index for index in recorded if index not in seen]
        if not missing:
            return
        named = ", ".join(layers[index][0] for index in missing[:3])
        named += f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        if not self.denoises and not self.changing:
            named += " in a pass that stores keys, which level full records,"
        raise UsageError(
            f"{model}: the attention of {named} can't be seen. {trail_ends(self.lost, missing, layers)}Looked for "
            f"{'; '.join(LOOKED_FOR)}. HINT: load the model with attn_implementation=\"sdpa\"; state what attends with "
            "run.attention(layer, q, k, v) inside the layer; of compiled code (torch.compile) nothing is seen: don't "
            "compile it, or record(..., compiled=\"eager\") runs it as if it weren't; or record the trajectory alone "
            "with level=\"trajectory\"")

    def require_patched(self, layers: list[tuple[str, torch.nn.Module]]) -> None:
        if self.to_patch:
            raise UsageError(f"{layers[min(self.to_patch)][0]}: patch_hidden: the layer didn't run in this pass, or "
                             "ran in compiled code. HINT: record(..., compiled=\"eager\"), or name other layers with "
                             "layers=...")
