"""The kinds of interventions, each with its options and what it does. Names, options and results are those of the
runtime (probe/policies/intervention_table.cpp)."""

from __future__ import annotations

import functools
import math
import os
import re

import torch

from .. import _core
from .._arguments import index_set
from .hidden_keys import hide_keys
from .intervention import Intervention, InterventionKind, KeptPair, Option, Site
from .split import Part
from .steps import Kind

_WORD = 1 << 64


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
        site.kept[site.layer, site.slot] = KeptPair(site.sequence, site.one.block, pair)


def _freeze_external(given: Intervention, site: Site, heads: torch.Tensor) -> bool:
    kept = site.kept.get((site.layer, site.slot))
    early = site.one.kind is Kind.DENOISE and site.one.step <= given["from"]
    if early or site.num_external == 0 or kept is None \
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
        seed = given["seed"] ^ prompt_hash(tuple(site.sequence.prompt))
        for part in (site.layer, head, site.one.block, site.one.step):
            seed = (seed * 0x9e3779b97f4a7c15 + part + 1) % _WORD
        row.normal_(0.0, 1.0, generator=torch.Generator().manual_seed(seed))
    size = site.out.index_select(0, heads).float().square().mean((1, 2), keepdim=True).sqrt()
    noise = noise * size * given["by"]
    # Each side gets all of the noise, because their weights in the merge add up to 1.
    for part in (site.external, site.internal):
        part.output.index_copy_(0, heads, part.output.index_select(0, heads) + noise)
    return True


def _patch(given: Intervention, site: Site, heads: torch.Tensor) -> bool:
    """Each side whose datasets it needs is that of the other trace at the same step."""
    for name, part in (("external", site.external), ("internal", site.internal)):
        for path, values in ((f"/attention/{name}", part.output), (f"/attention/lse_{name}", part.lse)):
            if path in given.kind.needs:
                there = site.source.of_heads(path, site.sequence, site.one, site.layer, heads.tolist())
                values.index_copy_(0, heads, there.view(len(heads), *values.shape[1:]).to(values.dtype))
    return True


@functools.lru_cache(maxsize=16)
def prompt_hash(prompt: tuple[int, ...]) -> int:
    """FNV-1a, as the runtime hashes a prompt."""
    value = 0xcbf29ce484222325
    for token in prompt:
        for byte in (token % (1 << 32)).to_bytes(4, "little"):
            value = (value ^ byte) * 0x100000001b3 % _WORD
    return value


# --- the table --------------------------------------------------------------------------------------------------------


def real_text(value: float) -> str:
    return repr(value).removesuffix(".0")


def whole(name: str, least: int, initial: int | None = None) -> Option:
    def read(text: str) -> int:
        value = int(text) if text.isascii() and text.isdigit() else -1
        if not least <= value < 1 << 63:
            raise ValueError
        return value

    return Option(name, f"a whole number from {least}", read, initial)


_REAL = re.compile(r"-?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)  # as the runtime reads them


def real(name: str, least: float, most: float = 1e6, *, least_is_left_out: bool = False) -> Option:
    def read(text: str) -> float:
        value = float(text) if _REAL.fullmatch(text) else math.nan
        too_small = value == 0.0 and bool(re.search("[1-9]", text.lower().partition("e")[0]))
        if too_small or not least <= value <= most or least_is_left_out and value == least:
            raise ValueError
        return value

    between = f"above {least:g}, up to {most:g}" if least_is_left_out else f"from {least:g} to {most:g}"
    return Option(name, f"a number {between}", read, None, real_text)


def _list(name: str, least: int) -> Option:
    def read(text: str) -> tuple[int, ...]:
        return tuple(index_set(name, text.replace("+", ","), least))  # UsageError is a ValueError

    return Option(name, f"whole numbers from {least}, such as {least}-{least + 2}+{least + 5}", read, None,
                  lambda values: "+".join(map(str, values)))


def _word(name: str, words: list[str], or_else: str) -> Option:
    return Option(name, one_of([*words, or_else]), _not_empty)


def switch(name: str) -> Option:
    return Option(name, "", lambda text: True, False)


def _not_empty(text: str) -> str:
    if not text:
        raise ValueError
    return text


def file(text: str) -> str:
    os.fsencode(text)  # ValueError: half of a character
    if "\0" in text:
        raise ValueError
    return _not_empty(text)


def one_of(words: list[str]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}" if len(words) > 1 else words[0]


def _trace_is_given(given: Intervention) -> str:
    return "trace: expected the file of a trace, got none" if given["trace"] is None else ""


def _by_is_given(given: Intervention) -> str:
    return "by: expected a number, got none" if given["by"] is None else ""


def _one_choice_of_keys(given: Intervention) -> str:
    names = [option.name for option in given.kind.own]
    chosen = [name for name in names if given[name] is not None]
    if len(chosen) == 1:
        return ""
    return f"expected one of {', '.join(names[:-1])} and {names[-1]}, got {' and '.join(chosen) or 'none'}. HINT: " \
           "hide_keys,region=first"


_HEADS = _list("layers", 0), _list("heads", 0), _list("steps", 1), _list("blocks", 0)
_LAYERS = tuple(option for option in _HEADS if option.name != "heads")
_WHERE = *_HEADS, switch("commits")
_TRACE = Option("trace", "a file", file)
_EXTERNAL = "/attention/external", "/attention/lse_external"
_INTERNAL = "/attention/internal", "/attention/lse_internal"
KINDS = {kind.name: kind for kind in (
    InterventionKind("drop_external", _WHERE, (), _drop_external, about_keys=True),
    InterventionKind("drop_internal", _WHERE, (), _drop_internal, about_keys=True),
    InterventionKind("drop_head", _WHERE, (switch("mean"),), _drop_head),
    InterventionKind("hide_keys", _WHERE, (
        _list("positions", 0), _word("region", list(_core.region_names), "a part of the prompt (regions=)"),
        whole("token", 0), whole("top", 1), real("sinks", 0.0, least_is_left_out=True)),
        hide_keys, comes_first=True, check=_one_choice_of_keys, about_keys=True),
    InterventionKind("freeze_external", _WHERE, (whole("from", 1, 1),), _freeze_external, watch=_keep_pair),
    InterventionKind("scale", _WHERE, (real("by", -1e6),), _scale, check=_by_is_given),
    InterventionKind("noise", _WHERE, (real("by", 0.0, least_is_left_out=True), whole("seed", 0, 0)), _noise,
                     check=_by_is_given),
    InterventionKind("patch_external", _HEADS, (_TRACE,), _patch, check=_trace_is_given, needs=_EXTERNAL),
    InterventionKind("patch_head", _HEADS, (_TRACE,), _patch, check=_trace_is_given, needs=_EXTERNAL + _INTERNAL),
    InterventionKind("patch_hidden", _LAYERS, (_TRACE,), check=_trace_is_given, needs=("/hidden/hidden",)))}
