"""Progress of a long pass: a line on a terminal, a bar in a notebook, else nothing."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Union

Progress = Union[bool, None, Callable[[Any, Any], object]]

_PATIENCE = 0.5  # seconds; shorter passes show nothing


def _in_notebook() -> bool:
    ipython = sys.modules.get("IPython")  # never imported for this: it takes long
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and getattr(shell, "kernel", None) is not None


class _Terminal:
    def __init__(self) -> None:
        self.width = 0

    def show(self, share: float, words: str) -> None:
        line = f"[{'#' * round(20 * share):<20}] {words}"
        sys.stderr.write("\r" + line.ljust(self.width))
        sys.stderr.flush()
        self.width = len(line)

    def clear(self) -> None:
        if self.width:
            sys.stderr.write("\r" + " " * self.width + "\r")
            sys.stderr.flush()


class _Notebook:
    """One output of the cell. It is empty after the pass, because an output can be changed but not removed."""

    def __init__(self) -> None:
        self.handle: Any = None

    def show(self, share: float, words: str) -> None:
        self._put(f'<progress value="{share:.4f}" max="1"></progress> {words}', words)

    def clear(self) -> None:
        if self.handle is not None:
            self._put("", "")

    def _put(self, html: str, plain: str) -> None:
        shown = {"text/html": html, "text/plain": plain}  # plain as well: else "<IPython.core.display.HTML object>"
        if self.handle is None:
            from IPython.display import display  # type: ignore[import-not-found, unused-ignore]

            self.handle = display(shown, raw=True, display_id=True)
        else:
            self.handle.update(shown, raw=True)


class Shown:
    """``with Shown(progress) as function``: the function that a pass calls with the rows done and all rows, or None.

    ``progress`` is a function of the caller, False (nothing), True (always a line on standard error) or None (a bar in
    a notebook, a line on a terminal, else nothing)."""

    def __init__(self, progress: Progress) -> None:
        self._own = progress if callable(progress) else None
        self._place: _Terminal | _Notebook | None = None
        if callable(progress) or progress is False:
            return
        if _in_notebook():
            self._place = _Notebook()
        elif progress or (sys.stderr is not None and sys.stderr.isatty()):
            self._place = _Terminal()

    def __enter__(self) -> Callable[[int, int], object] | None:
        self._begin = time.monotonic()
        if self._own is not None:
            return self._own
        return self._update if self._place is not None else None

    def _update(self, done: int, total: int) -> None:
        seconds = time.monotonic() - self._begin
        if seconds < _PATIENCE or total <= 0 or self._place is None:
            return
        left = seconds * (total - done) / max(done, 1)
        words = f"{done} of {total} rows" + (f", {left:.0f} s left" if done else "")
        self._place.show(done / total, words)

    def share(self, done: float, words: str) -> None:
        """Progress of a command of the runtime, which says its own words. `done` is between 0 and 1."""
        if self._own is not None:
            self._own(done, words)
        elif self._place is not None and time.monotonic() - self._begin >= _PATIENCE:
            self._place.show(done, words)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._place is not None:
            self._place.clear()
