"""File names passed to C++ and back, as bytes, because a name need not be UTF-8."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Union

from .errors import TraceError, TraceNotFound

PathLike = Union[str, bytes, "os.PathLike[str]", "os.PathLike[bytes]"]


def text(raw: bytes) -> str:
    """Texts of a trace are UTF-8, but a tokenizer may end in the middle of a character."""
    return raw.decode("utf-8", errors="replace")


def encode_all(traces: Any) -> list[bytes]:
    """One trace or several, each a path or a Trace."""
    if isinstance(traces, (str, bytes, os.PathLike)):
        traces = [traces]
    if not isinstance(traces, Iterable):
        raise TypeError(f"expected a path or paths of traces, got {type(traces).__name__}")
    return [os.fsencode(trace) for trace in traces]


def save(path: PathLike, content: str, force: bool) -> None:
    """Writes a text. Replaces an existing file only with `force`."""
    with open(os.fspath(path), "wb" if force else "xb") as file:
        file.write(content.encode("utf-8"))


@contextmanager
def telling_missing(paths: list[bytes]) -> Iterator[None]:
    """Turns the error for a missing file into TraceNotFound, with the reader's message."""
    try:
        yield
    except TraceError as error:
        there = [os.path.exists(p) or os.path.exists(p + b".partial") for p in paths]
        if type(error) is TraceError and not all(there):
            raise TraceNotFound(str(error)) from None
        raise
