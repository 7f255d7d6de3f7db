"""Interventions as users write them: texts, objects and files."""

from __future__ import annotations

import json
import numbers
import os
from collections.abc import Iterable, Mapping
from typing import Any

from .._arguments import whole_numbers
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
    name = os.fsdecode(path)
    if "\0" in name:
        raise UsageError(f"interventions: {name!r}: can't be read. HINT: a name without NUL")
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
        name, *parts = entry.split(",")
        pairs = [part.partition("=") for part in parts]
        return _read(entry, name, [(word, value if equals else None) for word, equals, value in pairs])
    if not isinstance(entry, Mapping) or not isinstance(entry.get("what"), str):
        raise UsageError(f"{where}: expected a text, or an object with the member \"what\", got {entry!r}")
    options = [(str(name), _option_text(where, name, value)) for name, value in entry.items() if name != "what"]
    text = [entry["what"], *(name if value is None else f"{name}={value}" for name, value in options)]
    kind = KINDS.get(entry["what"])
    switches = [] if kind is None else [option.name for option in kind.options if not option.range]
    off = [name for name in switches if entry.get(name) is False]
    return _read(",".join(text), entry["what"], [pair for pair in options if pair[0] not in off])


def _option_text(where: str, name: str, value: Any) -> str | None:
    """The value of an object's member as a text has it. None for a switch, or another truth value."""
    if isinstance(value, bool):
        return None
    if isinstance(value, (str, os.PathLike)):
        return os.fsdecode(value)
    numbers_given = whole_numbers(value)
    if numbers_given:
        return "+".join(map(str, numbers_given))
    if isinstance(value, numbers.Real):
        return real_text(float(value))
    raise UsageError(f"{where}: {name}: expected a number, a text, true, or a list of whole numbers, got {value!r}")


def _read(text: str, name: str, pairs: list[tuple[str, str | None]]) -> Intervention:
    """text: names the intervention in messages. pairs: its options; None: without a value."""
    def refuse(what: str) -> UsageError:
        return UsageError(f"interventions '{text}': {what}")

    if name not in KINDS:
        raise refuse(f"expected {one_of(list(KINDS))}, got '{name}'")
    kind = KINDS[name]
    options = {option.name: option for option in kind.options}
    values: dict[str, Any] = {}
    for word, value in pairs:
        if word not in options:
            raise refuse(f"expected {one_of(list(options))}, got '{word}'")
        if word in values:
            raise refuse(f"expected {word} once, got it twice")
        option = options[word]
        if not option.range and value is not None:
            raise refuse(f"{word}: expected no value, got '{value}'")
        if option.range and not value:
            raise refuse(f"{word}: expected {option.range}, got nothing")
        try:
            values[word] = option.read(value or "")
        except ValueError:
            raise refuse(f"{word}: expected {option.range}, got {value!r}") from None
    result = Intervention(kind, {option.name: values.get(option.name, option.initial) for option in kind.options})
    wrong = kind.check(result)
    if wrong:
        raise refuse(wrong)
    return result
