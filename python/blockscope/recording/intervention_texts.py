"""Interventions as users write them: texts, objects and files."""

from __future__ import annotations

import json
import numbers
import os
from collections.abc import Iterable, Mapping
from typing import Any

from ..errors import UsageError
from .intervention import Intervention
from .intervention_kinds import KINDS, one_of, real_text


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
    if isinstance(value, (str, os.PathLike)):
        return f"{name}={os.fspath(value)}"
    if hasattr(value, "__index__"):
        return f"{name}={value.__index__()}"
    if isinstance(value, numbers.Real):
        return f"{name}={real_text(float(value))}"
    values = list(value) if isinstance(value, Iterable) and not isinstance(value, (bytes, Mapping)) else []
    if not values or any(isinstance(one, bool) or not hasattr(one, "__index__") for one in values):
        raise UsageError(f"{where}: {name}: expected a number, a text, true, or a list of whole numbers, got {value!r}")
    return f"{name}={'+'.join(str(one.__index__()) for one in values)}"


def _of_text(text: str) -> Intervention:
    def refuse(what: str) -> UsageError:
        return UsageError(f"interventions '{text}': {what}")

    name, *parts = text.split(",")
    if name not in KINDS:
        raise refuse(f"expected {one_of(list(KINDS))}, got '{name}'")
    kind = KINDS[name]
    options = {option.name: option for option in kind.options}
    values: dict[str, Any] = {}
    for part in parts:
        word, equals, value = part.partition("=")
        if word not in options:
            raise refuse(f"expected {one_of(list(options))}, got '{word}'")
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
