"""Checks arguments: indices, whole numbers, names."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from typing import Any, Union

from . import _core
from ._paths import PathLike
from .errors import UsageError

Traces = Union[PathLike, Iterable[PathLike]]  # a Trace stands for its path
Indices = Union[int, slice, Iterable[int], None]


def whole_number(value: Any) -> int | None:
    """A number of Python, NumPy or torch. None: it isn't whole, or it is a truth value."""
    if isinstance(value, bool) or str(getattr(value, "dtype", "")).endswith("bool"):
        return None
    try:
        return operator.index(value)
    except TypeError:  # also an array with several elements
        return None


def whole_numbers(values: Any) -> list[int] | None:
    """From a whole number, or an iterable of them such as a NumPy array or a tensor. None: something else."""
    one = whole_number(values)
    if one is not None:
        return [one]
    if not isinstance(values, Iterable) or isinstance(values, (str, bytes, Mapping)):
        return None
    try:
        found = [whole_number(value) for value in values]
    except TypeError:  # an array with no dimension
        return None
    whole_ones = [value for value in found if value is not None]
    return whole_ones if len(whole_ones) == len(found) else None


def index_set(name: str, text: str, least: int) -> list[int]:
    """The indices that a text such as "0-3,7" lists, by the rules of the command line."""
    if not text.isascii() or "\0" in text:
        raise UsageError(f"{name}: expected a number or a range of numbers, got {text!r}. HINT: A, A-B or a list of "
                         "them such as 0-3,7")
    return _core.parse_index_set(text, name, least, -1)


def indices(name: str, given: Indices, least: int) -> list[int] | None:
    """Distinct indices, ascending, from 3, [0, 3], range(4), a NumPy array, or slice(0, 4) with both ends."""
    if given is None:
        return None
    if isinstance(given, slice):
        if given.start is None or given.stop is None:
            raise UsageError(f"{name}: expected a slice with both ends, got {given}")
        given = range(given.start, given.stop, 1 if given.step is None else given.step)
    numbers = whole_numbers(given)
    if numbers is None:
        several = isinstance(given, Iterable) and not isinstance(given, (str, bytes))
        raise UsageError(f"{name}: expected {'whole numbers' if several else 'an index or indices'}, got {given!r}")
    found = sorted(set(numbers))
    if not found or found[0] < least:
        raise UsageError(f"{name}: expected indices of at least {least}, got {given!r}")
    if found[-1] > 2**62:
        raise UsageError(f"{name}: {found[-1]} is out of range")
    return found


def whole(name: str, given: int, least: int, most: int = 2**31) -> int:
    value = whole_number(given)
    if value is None:
        raise UsageError(f"{name}: expected a whole number, got {given!r}")
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
