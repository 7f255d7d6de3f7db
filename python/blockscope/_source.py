"""The source of a plugin: its file, its digest and what its docstring says."""

from __future__ import annotations

import hashlib
import inspect
import os
import sys
import types
from typing import Any

from .errors import UsageError


def file_of(thing: Any) -> str:
    """The file with the source; in a notebook, its cell."""
    try:
        found = inspect.getsourcefile(thing)
    except (TypeError, OSError):
        found = getattr(sys.modules.get(thing.__module__), "__file__", None)
    return os.path.abspath(found) if found else "<notebook>"


def digest(thing: Any, file: str) -> str:
    """Of the file; of the class alone if it has no file. A resumed run must have the same."""
    try:
        with open(file, "rb") as source:
            return hashlib.sha256(source.read()).hexdigest()
    except OSError:
        pass
    try:
        return hashlib.sha256(inspect.getsource(thing).encode()).hexdigest()
    except (OSError, TypeError):  # a class of a notebook
        return hashlib.sha256(repr(_code(thing)).encode()).hexdigest()


def _code(thing: Any) -> Any:
    """What a function does, or a class's functions and values: the same in every process, and wherever its lines stand."""
    if isinstance(thing, type):
        return [(name, _code(value)) for name, value in vars(thing).items()
                if not name.startswith("__") or isinstance(value, types.FunctionType)]
    function = getattr(thing, "__func__", thing)
    if isinstance(function, types.FunctionType):
        return _code(function.__code__), _code(function.__defaults__), _code(function.__kwdefaults__)
    if isinstance(thing, types.CodeType):
        return thing.co_code, thing.co_names, thing.co_varnames, _code(thing.co_consts)
    if isinstance(thing, (list, tuple)):
        return [_code(one) for one in thing]
    if isinstance(thing, (set, frozenset)):
        return sorted(map(repr, map(_code, thing)))
    if isinstance(thing, dict):
        return [(key, _code(value)) for key, value in thing.items()]
    return thing if isinstance(thing, (int, float, complex, str, bytes, type(None))) else type(thing).__name__


def check_file(kind: str, name: str, file: str, before: str | None) -> None:
    """Refuses a name that another file has. The cell of a notebook may run again, and a file may be loaded again."""
    if before is not None and before != file and "<" not in before + file and "ipykernel" not in file:
        raise UsageError(f"{kind} {name}: expected another name, because {before} has it too. HINT: rename the one "
                         f"in {file}")


def meaning(thing: Any) -> str:
    lines = (inspect.getdoc(thing) or "").strip().splitlines()
    return lines[0].rstrip(".") if lines else "a plugin without a description"
