"""The page of ``blockscope report``, for notebooks."""

from __future__ import annotations

import html
import os
from collections.abc import Iterable
from typing import Any

from . import _core
from ._arguments import Traces, whole
from ._paths import PathLike, encode_all, save, telling_missing, text
from ._progress import Progress, Shown
from .analysis import analyze
from .figures import Figure, figures_of, gnuplot


class Report:
    """One page about traces. A notebook shows it in a frame.

    Attributes:
        title: the title of the page.
        html: the whole page, with one script inside and without references to other files.
        findings: the main findings, as sentences.
        figures: the page's figures by name.
    """

    def __init__(self, found: dict[str, Any]) -> None:
        self.title: str = text(found["title"])
        self.html: str = text(found["html"])
        self.findings: list[str] = [text(finding) for finding in found["findings"]]
        self.figures: dict[str, Figure] = figures_of(found["figures"])

    def save(self, path: PathLike, *, force: bool = False) -> None:
        """Writes the page. Replaces an existing file only with `force`."""
        save(path, self.html, force)

    def _repr_html_(self) -> str:
        # A separate frame, because the page's style must not change the notebook's.
        return (f'<iframe srcdoc="{html.escape(self.html, quote=True)}" '
                'style="width:100%;height:720px;border:1px solid #8888"></iframe>')

    def __repr__(self) -> str:
        return f"<blockscope.Report: {self.title}; {len(self.figures)} figures>"


def report(
    traces: Traces,
    *,
    title: str = "",
    layer: int | None = None,
    head: int | None = None,
    sequence: int | None = None,
    block: int | None = None,
    backbone: PathLike | None = None,
    compare: PathLike | None = None,
    metrics: Iterable[Any] = (),
    threads: int = 0,
    progress: Progress = None,
) -> Report:
    """Makes one page from traces of one model, with figures, tables and text. Needs gnuplot (Debian: gnuplot-nox).

    Args:
        traces: a path, a `Trace`, or several.
        title: the title of the page; empty: a default title.
        layer, head, sequence, block: shown in the heatmaps and the trajectory. None: the middle recorded layer, all
            heads together, and the block with the most text.
        backbone: trace of the autoregressive backbone, captured with --replay of this one.
        compare: file of `blockscope.compare(...).save()`: the page also shows its numbers and frames.
        metrics: own metrics (`blockscope.metric`), by function or name, that the page shows too.
        threads, progress: as in `analyze`.

    Raises:
        UsageError: a layer, head, sequence or block that the trace does not have.
        Error: gnuplot is missing.
    """
    paths = encode_all(traces)

    def choice(name: str, given: int | None) -> int | None:
        return None if given is None else whole(name, given, 0)

    own = [analyze(traces, one, threads=threads, progress=progress) for one in metrics]
    with telling_missing(paths), Shown(progress) as shown:
        return Report(_core.report(
            paths, os.fsencode(title), choice("layer", layer), choice("head", head),
            choice("sequence", sequence), choice("block", block),
            b"" if backbone is None else os.fsencode(backbone), b"" if compare is None else os.fsencode(compare),
            [one._result() for one in own],
            whole("threads", threads, 0, 4096),
            *gnuplot(), shown,
        ))
