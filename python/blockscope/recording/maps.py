"""What ``maps=`` chooses: the layers, heads and steps whose attention weights a trace holds. Without torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from .._arguments import index_set, whole_numbers
from ..errors import UsageError

if TYPE_CHECKING:  # pragma: no cover
    from .steps import Pass

_NAMES = ("layers", "heads", "steps", "positions")


@dataclass(frozen=True)
class Maps:
    """What /map holds. None: all that are recorded; for `positions`, those of the first sequence."""

    layers: list[int] | None = None
    heads: list[int] | None = None
    steps: list[int] | None = None
    positions: int | None = None

    def takes(self, one: Pass) -> bool:
        return self.steps is None or one.step in self.steps

    def among(self, name: str, recorded: Iterable[int]) -> list[int]:
        """The chosen layers or heads."""
        every, chosen = list(recorded), getattr(self, name)
        _check(name, chosen, every)
        return every if chosen is None else chosen

    def within(self, layers: Iterable[int]) -> Maps:
        return replace(self, layers=self.among("layers", layers))


def read_maps(given: Any, at_summary: bool, layers: list[int] | None, heads: list[int] | None,
              steps: list[int] | None) -> Maps | None:
    """From "layers=3,9;heads=0-3;steps=1,8", or an object with these members. layers, heads, steps: the recorded ones;
    None: all."""
    if given is None:
        return None
    if not at_summary:
        raise UsageError("maps: does nothing without level=\"summary\" or above. HINT: add that, or leave maps= out")
    found: dict[str, Any] = {}
    for name, value in _parts(given):
        if name in found:
            raise UsageError(f"maps: expected {name}= once, got it twice")
        found[name] = _indices(name, value)
    if "positions" in found:
        if len(found["positions"]) != 1:
            raise UsageError(f"maps: positions: expected one number, got {len(found['positions'])}")
        found["positions"] = found["positions"][0]
    maps = Maps(**found)
    for name, recorded in (("layers", layers), ("heads", heads), ("steps", steps)):
        if recorded is not None:
            _check(name, getattr(maps, name), recorded)
    return maps


def _parts(given: Any) -> list[tuple[str, Any]]:
    if isinstance(given, str):
        parts = [(text, *text.partition("=")[::2]) for text in given.split(";") if text]
    elif isinstance(given, Mapping):
        parts = [(f"{name}={value!r}", name, value) for name, value in given.items()]
    else:
        raise UsageError(f"maps: expected a text or an object, got {given!r}. HINT: "
                         "maps=\"layers=3,9;heads=0-3;steps=1,8\"")
    for text, name, value in parts:
        if name not in _NAMES or isinstance(value, str) and not value:
            raise UsageError(f"maps: expected layers=, heads=, steps= or positions= with a list such as 0-3,7, got "
                             f"'{text}'")
    return [(name, value) for _, name, value in parts]


def _indices(name: str, value: Any) -> list[int]:
    least = 0 if name in ("layers", "heads") else 1
    if not isinstance(value, str):
        values = whole_numbers(value)
        if not values:
            raise UsageError(f"maps: {name}: expected whole numbers or a list such as 0-3,7, got {value!r}")
        value = ",".join(map(str, values))
    return index_set(f"maps: {name}", value, least)


def _check(name: str, chosen: list[int] | None, recorded: list[int]) -> None:
    for one in chosen or []:
        if one not in recorded:
            raise UsageError(f"maps: {name}: expected recorded ones, {','.join(map(str, recorded))}, got {one}")
