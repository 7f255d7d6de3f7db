"""The trace that a recording writes, from its ``with`` to its end."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable

from .. import _core
from ..errors import UsageError
from .rows import RowWriter


def add_note(error: BaseException, text: str) -> None:
    """Adds to what the error says. Before Python 3.11, a warning says it."""
    note = f"blockscope: {text}"
    if hasattr(error, "add_note"):
        error.add_note(note)
    else:
        warnings.warn(note, stacklevel=4)


class OpenTrace:
    def __init__(self, path: bytes, force: bool, rows: RowWriter) -> None:
        self._path, self._force, self._rows = path, force, rows
        self._pid = os.getpid()

    @property
    def path(self) -> str:
        """The name of the trace. Until the recording ends, the file has ``.partial`` at the end of its name."""
        return os.fsdecode(self._path)

    @property
    def rows(self) -> int:
        """Number of rows passed to the writer so far."""
        return self._rows.num_rows

    def commit(self) -> None:
        """Waits until all rows so far are safe from ``kill -9``."""
        self._rows.commit()

    def _refuse_target(self) -> None:
        _core.check_trace_target(self._path, True)  # refuses a trace that is being written, even with `force`
        for name in (self._path, self._path + b".partial"):
            if not self._force and os.path.lexists(name):
                raise UsageError(f"{os.fsdecode(name)}: exists already. HINT: record(..., force=True) replaces it")

    def _close(self, error: BaseException | None, finish: Callable[[], None]) -> None:
        """Finishes the file, or leaves it as ``.partial`` after an error, which continues."""
        try:
            self._abandon()
            if error is None:
                finish()
            else:
                self._rows.suspend()
        except Exception as second:
            if error is None:
                raise
            add_note(error, f"the trace couldn't be closed: {second}")  # the user's exception continues
        finally:
            self._rows.release()

    def _abandon(self) -> None:
        """Handles a pass that won't end."""
        raise NotImplementedError
