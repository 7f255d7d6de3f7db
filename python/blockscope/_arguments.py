"""Checks arguments: indices, whole numbers, names."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Union

from ._paths import PathLike
from .errors import UsageError

Traces = Union[PathLike, Iterable[PathLike]]  # a Trace stands for its path
Indices = Union[int, slice, Iterable[int], None]


def indices(name: str, given: Indices, least: int) -> list[int] | None:
    """Distinct indices, ascending, from 3, [0, 3], range(4), a NumPy array, or slice(0, 4) with both ends."""
    if given is None:
        return None
    if isinstance(given, slice):
        if given.start is None or given.stop is None:
            raise UsageError(f"{name}: expected a slice with both ends, got {given}")
        given = range(given.start, given.stop, 1 if given.step is None else given.step)
    try:
        found = [operator.index(given)]  # type: ignore[arg-type]
    except TypeError:
        if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
            raise UsageError(f"{name}: expected an index or indices, got {given!r}") from None
        try:
            found = sorted({operator.index(index) for index in given})
        except TypeError:
            raise UsageError(f"{name}: expected whole numbers, got {given!r}") from None
    if not found or found[0] < least:
        raise UsageError(f"{name}: expected indices of at least {least}, got {given!r}")
    if found[-1] > 2**62:
        raise UsageError(f"{name}: {found[-1]} is out of range")
    return found


def whole(name: str, given: int, least: int, most: int = 2**31) -> int:
    try:
        value = operator.index(given)
    except TypeError:
        raise UsageError(f"{name}: expected a whole number, got {given!r}") from None
    if not least <= value <= most:
        raise UsageError(f"{name}: expected {least} to {most}, got {value}")
    return value


def names(name: str, given: Union[str, Iterable[str], None]) -> list[str]:
    if given is None:
        return []
    found = [given] if isinstance(given, str) else list(given)
    if not found or not all(isinstance(one, str) for one in found):
        raise UsageError(f"{name}: expected a name or names, got {given!r}")
    return found


def above_zero(name: str, given: float) -> float:
    value = float(given)
    if not 0 < value < float("inf"):
        raise UsageError(f"{name}: expected a number above 0, got {given!r}")
    return value


def taus_of(given: Iterable[float] | None) -> list[float]:
    found = [float(tau) for tau in given] if given is not None else []
    if any(not tau > 0 for tau in found):
        raise UsageError(f"taus: expected numbers above 0 or inf, got {found}")
    return found
