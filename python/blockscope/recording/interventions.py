"""Interventions: what is taken away from attention, or changed in it, while a model decodes. KINDS has one entry for
each kind, with its options and what it does to the parts of some heads. Names, options and results are those of the
runtime (probe/policies/intervention_table.cpp)."""

from __future__ import annotations

import functools
import json
import math
import numbers
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from .. import _core
from ..errors import UsageError
from .geometry import Biases, BlockRows, KeyRanges
from .split import LayerAttention, Part, Spread
from .steps import Kind, Pass, Sequence

_WORD = 1 << 64


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
        return self[name] is None or index in self[name]

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
    own: tuple[Option, ...]  # after those that say where it works
    apply: Callable[[Intervention, Site, torch.Tensor], bool]  # heads [N]; False: nothing is different
    watch: Callable[[Intervention, Site], None] | None = None  # in every denoising pass of a chosen layer
    comes_first: bool = False  # it computes attention again
    check: Callable[[Intervention], str] = lambda given: ""  # what is missing or contradicts itself

    @property
    def options(self) -> tuple[Option, ...]:
        return WHERE + self.own


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
    kept: dict[tuple[int, int], _KeptPair] = field(default_factory=dict)  # of the intervention, by layer and slot
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
class _KeptPair:
    sequence: Sequence
    block: int
    external: Part


# --- what each kind does ----------------------------------------------------------------------------------------------


def _empty(part: Part, heads: torch.Tensor) -> None:
    """No key on this side."""
    part.output.index_fill_(0, heads, 0.0)
    part.lse.index_fill_(0, heads, -math.inf)


def _drop_external(given: Intervention, site: Site, heads: torch.Tensor) -> bool:
    if site.num_external == 0:
        return False
    _empty(site.external, heads)
    return True


def _drop_internal(given: Intervention, site: Site, heads: torch.Tensor) -> bool:
    _empty(site.internal, heads)
    return True


def _drop_head(given: Intervention, site: Site, heads: torch.Tensor) -> bool:
    mean = site.out.index_select(0, heads).float().mean(1, keepdim=True)
    _empty(site.external, heads)
    _empty(site.internal, heads)
    if given["mean"]:
        inside = site.internal
        inside.output.index_copy_(0, heads, mean.expand(-1, site.out.shape[1], -1).to(inside.output.dtype))
        inside.lse.index_fill_(0, heads, 0.0)
    return True


def _keep_pair(given: Intervention, site: Site) -> None:
    if site.one.step <= given["from"]:
        pair = Part(site.external.output.clone(), site.external.lse.clone())
        site.kept[site.layer, site.slot] = _KeptPair(site.sequence, site.one.block, pair)


def _freeze_external(given: Intervention, site: Site, heads: torch.Tensor) -> bool:
    kept = site.kept.get((site.layer, site.slot))
    if site.one.step <= given["from"] or site.num_external == 0 or kept is None \
            or kept.sequence is not site.sequence or kept.block != site.one.block:
        return False
    for now, then in ((site.external.output, kept.external.output), (site.external.lse, kept.external.lse)):
        now.index_copy_(0, heads, then.index_select(0, heads))
    return True


def _scale(given: Intervention, site: Site, heads: torch.Tensor) -> bool:
    for part in (site.external, site.internal):
        part.output.index_copy_(0, heads, part.output.index_select(0, heads) * given["by"])
    return given["by"] != 1.0


def _noise(given: Intervention, site: Site, heads: torch.Tensor) -> bool:
    noise = torch.empty(len(heads), *site.out.shape[1:])
    for row, head in zip(noise, heads.tolist()):
        # The same noise for the same head and step, whatever else is in the batch.
        seed = given["seed"] ^ _prompt_hash(tuple(site.sequence.prompt))
        for part in (site.layer, head, site.one.block, site.one.step):
            seed = (seed * 0x9e3779b97f4a7c15 + part + 1) % _WORD
        row.normal_(0.0, 1.0, generator=torch.Generator().manual_seed(seed))
    size = site.out.index_select(0, heads).float().square().mean((1, 2), keepdim=True).sqrt()
    noise = noise * size * given["by"]
    # Each side gets all of the noise, because their weights in the merge add up to 1.
    for part in (site.external, site.internal):
        part.output.index_copy_(0, heads, part.output.index_select(0, heads) + noise)
    return True


@functools.lru_cache(maxsize=16)
def _prompt_hash(prompt: tuple[int, ...]) -> int:
    """FNV-1a, as the runtime hashes a prompt."""
    value = 0xcbf29ce484222325
    for token in prompt:
        for byte in (token % (1 << 32)).to_bytes(4, "little"):
            value = (value ^ byte) * 0x100000001b3 % _WORD
    return value


def _region_of(site: Site, position: int) -> str:
    place = position - site.one.block_start
    if place >= len(site.one.masked):
        return "after"
    if place >= 0:
        return "masks" if site.one.masked[place] else "decided"
    if position < _core.first_positions:
        return "first"
    return "prompt" if position < len(site.sequence.prompt) else "answer"


def _hidden_for_all(given: Intervention, site: Site) -> torch.Tensor:
    """[N + B], the same for all heads: by position, region or token."""
    prompt, token = site.sequence.prompt, given["token"]
    if token is not None and token not in prompt:
        raise UsageError(f"interventions '{given.text}': token: expected a token of the prompt, got {token}. HINT: "
                         "hide_keys,positions=... or hide_keys,region=...")
    hidden = set(given["positions"] or ())
    return torch.tensor([
        position in hidden
        or given["region"] is not None and _region_of(site, position) == given["region"]
        or token is not None and position < len(prompt) and prompt[position] == token
        for position in site.positions()], dtype=torch.bool)


def _hidden_by_weight(given: Intervention, weights: torch.Tensor, external: int) -> torch.Tensor:
    """[heads, N + B] from each head's mean weights."""
    hidden = torch.zeros_like(weights, dtype=torch.bool)
    if given["top"] is not None:
        return hidden.scatter_(1, weights.topk(min(given["top"], weights.shape[1]), 1).indices, True)
    hidden[:, :external] = weights[:, :external] > given["sinks"] / weights.shape[1]
    return hidden


def _hide_keys(given: Intervention, site: Site, heads: torch.Tensor) -> bool:
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


# --- the table --------------------------------------------------------------------------------------------------------


def _real_text(value: float) -> str:
    return repr(value).removesuffix(".0")


def _whole(name: str, least: int, initial: int | None = None) -> Option:
    def read(text: str) -> int:
        value = int(text) if text.isascii() and text.isdigit() else -1
        if not least <= value < 1 << 63:
            raise ValueError
        return value

    return Option(name, f"a whole number from {least}", read, initial)


def _real(name: str, least: float, most: float = 1e6, *, least_is_left_out: bool = False) -> Option:
    def read(text: str) -> float:
        value = float(text)
        if not least <= value <= most or least_is_left_out and value == least:
            raise ValueError
        return value

    between = f"above {least:g}, up to {most:g}" if least_is_left_out else f"from {least:g} to {most:g}"
    return Option(name, f"a number {between}", read, None, _real_text)


def _list(name: str, least: int) -> Option:
    def read(text: str) -> tuple[int, ...]:
        found: set[int] = set()
        for part in text.split("+"):
            low, dash, high = part.partition("-")
            begin, end = int(low), int(high if dash else low)
            if not least <= begin <= end or end - begin > 1 << 24:
                raise ValueError
            found.update(range(begin, end + 1))
        return tuple(sorted(found))

    return Option(name, f"whole numbers from {least}, such as {least}-{least + 2}+{least + 5}", read, None,
                  lambda values: "+".join(map(str, values)))


def _word(name: str, words: list[str]) -> Option:
    def read(text: str) -> str:
        if text not in words:
            raise ValueError
        return text

    return Option(name, _one_of(words), read)


def _one_of(words: list[str]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}" if len(words) > 1 else words[0]


def _by_is_given(given: Intervention) -> str:
    return "by: expected a number, got none" if given["by"] is None else ""


def _one_choice_of_keys(given: Intervention) -> str:
    names = [option.name for option in given.kind.own]
    chosen = [name for name in names if given[name] is not None]
    if len(chosen) == 1:
        return ""
    return f"expected one of {', '.join(names[:-1])} and {names[-1]}, got {' and '.join(chosen) or 'none'}. HINT: " \
           "hide_keys,region=first"


WHERE = _list("layers", 0), _list("heads", 0), _list("steps", 1), _list("blocks", 0)
_SWITCH_MEAN = Option("mean", "", lambda text: True, False)
KINDS = {kind.name: kind for kind in (
    InterventionKind("drop_external", (), _drop_external),
    InterventionKind("drop_internal", (), _drop_internal),
    InterventionKind("drop_head", (_SWITCH_MEAN,), _drop_head),
    InterventionKind("hide_keys", (
        _list("positions", 0), _word("region", list(_core.region_names)), _whole("token", 0), _whole("top", 1),
        _real("sinks", 0.0, least_is_left_out=True)), _hide_keys, comes_first=True, check=_one_choice_of_keys),
    InterventionKind("freeze_external", (_whole("from", 1, 1),), _freeze_external, watch=_keep_pair),
    InterventionKind("scale", (_real("by", -1e6),), _scale, check=_by_is_given),
    InterventionKind("noise", (_real("by", 0.0, least_is_left_out=True), _whole("seed", 0, 0)), _noise,
                     check=_by_is_given))}


# --- what users write -------------------------------------------------------------------------------------------------


def read_interventions(given: Any) -> tuple[Intervention, ...]:
    """From a text, an object {"what": ...}, the name of a JSON file with a list of them, or a list of all these."""
    if given is None:
        return ()
    if isinstance(given, (str, os.PathLike, Mapping)):
        given = [given]
    if not isinstance(given, Iterable):
        raise UsageError(f"interventions: expected a list of texts, got {given!r}. HINT: "
                         "interventions=[\"drop_head,layers=3\"]")
    found: list[Intervention] = []
    for index, one in enumerate(given):
        if isinstance(one, os.PathLike) or isinstance(one, str) and one.endswith(".json"):
            found += [_of_entry(f"{os.fspath(one)}: entry {i}", entry) for i, entry in enumerate(_file_entries(one))]
        else:
            found.append(_of_entry(f"interventions: entry {index}", one))
    return tuple(found)


def _file_entries(path: str | os.PathLike[str]) -> list[Any]:
    name = os.fspath(path)
    try:
        with open(path, encoding="utf-8") as file:
            entries = json.load(file)
    except OSError as error:
        raise UsageError(f"interventions: {name}: can't be read: {error.strerror}. HINT: a file, or a text such as "
                         "drop_head,layers=3,heads=0-2") from None
    except ValueError:
        entries = "no JSON"
    if not isinstance(entries, list) or not entries:
        got = "an empty one" if entries == [] else entries if entries == "no JSON" else type(entries).__name__
        raise UsageError(f"interventions: {name}: expected a JSON list of interventions, got {got}. HINT: "
                         "[{\"what\": \"drop_head\", \"layers\": [3]}]")
    return entries


def _of_entry(where: str, entry: Any) -> Intervention:
    if isinstance(entry, str):
        return _of_text(entry)
    if not isinstance(entry, Mapping) or not isinstance(entry.get("what"), str):
        raise UsageError(f"{where}: expected a text, or an object with the member \"what\", got {entry!r}")
    parts = [_option_text(where, name, value) for name, value in entry.items() if name != "what"]
    return _of_text(",".join([entry["what"], *(part for part in parts if part)]))


def _option_text(where: str, name: str, value: Any) -> str:
    """An option of an object as the text has it. "": a switch that is off."""
    if isinstance(value, bool):
        return name if value else ""
    if isinstance(value, str):
        return f"{name}={value}"
    if hasattr(value, "__index__"):
        return f"{name}={value.__index__()}"
    if isinstance(value, numbers.Real):
        return f"{name}={_real_text(float(value))}"
    values = list(value) if isinstance(value, Iterable) and not isinstance(value, (bytes, Mapping)) else []
    if not values or any(isinstance(one, bool) or not hasattr(one, "__index__") for one in values):
        raise UsageError(f"{where}: {name}: expected a number, a text, true, or a list of whole numbers, got {value!r}")
    return f"{name}={'+'.join(str(one.__index__()) for one in values)}"


def _of_text(text: str) -> Intervention:
    def refuse(what: str) -> UsageError:
        return UsageError(f"interventions '{text}': {what}")

    name, *parts = text.split(",")
    if name not in KINDS:
        raise refuse(f"expected {_one_of(list(KINDS))}, got '{name}'")
    kind = KINDS[name]
    options = {option.name: option for option in kind.options}
    values: dict[str, Any] = {}
    for part in parts:
        word, equals, value = part.partition("=")
        if word not in options:
            raise refuse(f"expected {_one_of(list(options))}, got '{word}'")
        if word in values:
            raise refuse(f"expected {word} once, got it twice")
        option = options[word]
        if not option.range and equals:
            raise refuse(f"{word}: expected no value, got '{value}'")
        try:
            values[word] = option.read(value)
        except ValueError:
            raise refuse(f"{word}: expected {option.range}, got {value and repr(value) or 'nothing'}") from None
    result = Intervention(kind, {option.name: values.get(option.name, option.initial) for option in kind.options})
    wrong = kind.check(result)
    if wrong:
        raise refuse(wrong)
    return result


# --- a recording ------------------------------------------------------------------------------------------------------


class Interventions:
    """Those of a recording, applied to a layer's parts: those that compute anew, then the others in their order."""

    def __init__(self, given: tuple[Intervention, ...], num_layers: int, num_heads: int | None) -> None:
        self._given = sorted(given, key=lambda one: not one.kind.comes_first)
        self._kept: list[dict[tuple[int, int], _KeptPair]] = [{} for _ in given]
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
                        block[slot], changed[slot])
            self._apply_to(site)
        if not changed.any():
            return out
        attention.external, attention.internal = external, internal
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
