"""The source of a plugin: its file, its digest and what its docstring says."""

from __future__ import annotations

import hashlib
import inspect
import os
import sys
from typing import Any


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
    except (OSError, TypeError):
        return ""


def meaning(thing: Any) -> str:
    lines = (inspect.getdoc(thing) or "").strip().splitlines()
    return lines[0].rstrip(".") if lines else "a plugin without a description"
