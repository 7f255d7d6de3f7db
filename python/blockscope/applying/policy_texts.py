"""Policies as users write them: texts as after ``blockscope capture --policy``, and objects of own classes. Names,
options, ranges and defaults are those of the runtime (probe/policies/policy_table.cpp)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .. import plugins
from ..errors import Error, UsageError
from ..recording.intervention import Option
from ..recording.intervention_kinds import file, one_of, real, real_text, switch, whole
from .flashblock import FlashBlock
from .own_policy import OwnPolicy
from .policy import Policy
from .selection import (
    Mage,
    MageFlashBlock,
    Oracle,
    Quest,
    Random,
    Recent,
    SparseD,
    SparseDFlashBlock,
)


@dataclass(frozen=True)
class PolicyKind:
    options: tuple[Option, ...]
    make: Callable[[dict[str, Any]], Policy]
    check: Callable[[dict[str, Any]], str] = lambda values: ""  # what is wrong with these; "": nothing


def _word(name: str, words: tuple[str, ...], initial: str | None = None) -> Option:
    def read(text: str) -> str:
        if text not in words:
            raise ValueError
        return text

    return Option(name, one_of(list(words)), read, initial)


def _one_size(values: dict[str, Any]) -> str:
    if (values["k"] is None) != (values["density"] is None):
        return ""
    return (f"expected either k or density, got {'none' if values['k'] is None else 'both'}. HINT: k=512 reads 512 "
            "keys, density=0.3 reads 30 % of the prefix")


def _per_block(values: dict[str, Any]) -> str:
    wrong = _one_size(values)
    if wrong or values["per_block"]:
        return wrong
    return ("expected per_block, got none. HINT: add per_block, because the residual belongs to the queries of one "
            "block, and so must the sets")


def _bound_or_tau(values: dict[str, Any]) -> str:
    if values["bound"] is None:
        return ""
    if values["tau"] is not None or values["count"] is not None:
        return "expected bound or tau and count, got both: bound decides in their place"
    if values["reuse"] is None:
        return ("expected a reuse file with row_errors for bound, got none. HINT: "
                "flashblock,bound=0.1,reuse=reuse.json")
    return ""


_SPARSE = whole("k", 1), real("density", 0.0, 1.0, least_is_left_out=True), whole("exact_layers", 0, 0)
KINDS = {
    "exact": PolicyKind((), lambda values: Policy()),
    "flashblock": PolicyKind((
        whole("tau", 1), _word("count", ("since_read", "step")), _word("refresh", ("all", "rows", "near"), "all"),
        real("bound", 0.0, 1e3, least_is_left_out=True), real("sure", 0.0, 1.0, least_is_left_out=True),
        Option("reuse", "a file", file)), FlashBlock, _bound_or_tau),
    "mage": PolicyKind(_SPARSE, Mage, _one_size),
    "mage+flashblock": PolicyKind(_SPARSE, MageFlashBlock, _one_size),
    "sparsed": PolicyKind((*_SPARSE, switch("per_block")), SparseD, _one_size),
    "sparsed+flashblock": PolicyKind((*_SPARSE, switch("per_block")), SparseDFlashBlock, _per_block),
    "quest": PolicyKind((*_SPARSE, whole("page", 1, 16)), Quest, _one_size),
    "oracle": PolicyKind(_SPARSE, Oracle, _one_size),
    "random": PolicyKind((*_SPARSE, whole("seed", 0, 0)), Random, _one_size),
    "recent": PolicyKind(_SPARSE, Recent, _one_size)}


def read_policy(given: Any) -> Policy:
    """From a text, or from an object of a class with ``choose`` or ``attend``."""
    if isinstance(given, str):
        return _of_text(given)
    if isinstance(given, type):
        raise UsageError(f"policy: expected a text or an object, got the class {given.__name__}. HINT: "
                         f"{given.__name__}(...)")
    if not any(callable(getattr(given, name, None)) for name in ("choose", "attend")):
        raise UsageError(f"policy: expected a text such as \"flashblock,tau=2\", or an object with choose() or "
                         f"attend(), got {given!r}. HINT: docs/python.md, \"Your own policy\"")
    return OwnPolicy(type(given).__name__, given)


def _own_kinds() -> dict[str, plugins.Plugin]:
    """The policies that were registered with ``@blockscope.policy``."""
    return {name: plugin for (kind, name), plugin in plugins.registered() if kind == "policy"}


def _of_text(text: str) -> Policy:
    def refuse(what: str) -> UsageError:
        return UsageError(f"policy '{text}': {what}")

    name, *parts = text.split(",")
    own = _own_kinds()
    if name not in KINDS and name not in own:
        raise refuse(f"expected {one_of([*KINDS, *own])}, got '{name}'")
    options = {option.name: option for option in (
        KINDS[name].options if name in KINDS else map(_own_option, own[name].options))}
    values: dict[str, Any] = {}
    for part in parts:
        word, equals, value = part.partition("=")
        if word not in options:
            raise refuse(f"expected {one_of(list(options))}, got '{word}'" if options else
                         f"{name} has no options, got '{word}'")
        if word in values:
            raise refuse(f"expected {word} once, got it twice")
        option = options[word]
        if not option.range and equals:
            raise refuse(f"{word}: expected no value, got '{value}'")
        if option.range and not value:
            raise refuse(f"{word}: expected {option.range}, got nothing")
        try:
            values[word] = option.read(value)
        except ValueError:
            raise refuse(f"{word}: expected {option.range}, got '{value}'") from None
    if name in own:
        return _own(own[name], text, values)
    every = {option.name: values.get(option.name, option.initial) for option in options.values()}
    wrong = KINDS[name].check(every)
    if wrong:
        raise refuse(wrong)
    policy = KINDS[name].make(every)
    policy.settings = {"policy": name, **{word: value for word, value in every.items() if value is not None}}
    policy.text = ",".join([name, *(_option_text(option, values[word]) for word, option in options.items()
                                    if word in values and values[word] != option.initial)])
    return policy


def _option_text(option: Option, value: Any) -> str:
    if not option.range:
        return option.name
    return f"{option.name}={real_text(value) if isinstance(value, float) else value}"


def _own_option(option: dict[str, Any]) -> Option:
    name, kind = option["name"], option["kind"]
    if kind == "on":
        return switch(name)
    if kind == "text":
        return Option(name, "a text", str)
    return Option(name, "a whole number" if kind == "whole" else "a number", int if kind == "whole" else float)


def _own(plugin: plugins.Plugin, text: str, values: dict[str, Any]) -> Policy:
    missing = [option["name"] for option in plugin.options if option["initial"] is None and option["name"] not in values
               and option["kind"] != "on"]
    if missing:
        raise UsageError(f"policy '{text}': expected {missing[0]}, which has no default, got none. HINT: "
                         f"{missing[0]}=...")
    given = {option["name"]: option["initial"] for option in plugin.options} | values
    try:
        made = plugin.make(**values)
    except Exception as error:
        raise Error(f"policy {text} ({plugin.file}): {type(error).__name__}: {error}") from error
    return OwnPolicy(text, made, most=given.get("k"))
