"""The page of ``blockscope report``, and its figures, for notebooks."""

from __future__ import annotations

import html
import os
from typing import Any

from . import _core
from ._paths import PathLike, encode_all, telling_missing, text
from ._progress import Progress, Shown
from .analysis import Traces, whole


class Figure:
    """A drawing. A notebook shows it as a picture.

    Attributes:
        name: as in file names, "head_similarity".
        title, caption: plain text; the caption says the number of terms.
        svg: the drawing, with text as text.
    """

    def __init__(self, name: str, title: str, caption: str, svg: str) -> None:
        self.name, self.title, self.caption, self.svg = name, title, caption, svg

    def save(self, path: PathLike, *, force: bool = False) -> None:
        """Writes the SVG. An existing file is replaced with `force` only."""
        _save(path, self.svg, force)

    def _repr_svg_(self) -> str:
        return self.svg

    def __repr__(self) -> str:
        return f"<blockscope.Figure {self.name}: {self.title}>"


class Report:
    """One page about traces. A notebook shows it in a frame.

    Attributes:
        title: of the page.
        html: the whole page; nothing is loaded from elsewhere, no script.
        findings: what was found, in plain sentences.
        figures: the page's figures by name.
    """

    def __init__(self, found: dict[str, Any]) -> None:
        self.title: str = text(found["title"])
        self.html: str = text(found["html"])
        self.findings: list[str] = [text(finding) for finding in found["findings"]]
        self.figures: dict[str, Figure] = _figures(found["figures"])

    def save(self, path: PathLike, *, force: bool = False) -> None:
        """Writes the page. An existing file is replaced with `force` only."""
        _save(path, self.html, force)

    def _repr_html_(self) -> str:
        # A frame of its own: the page's style must not reach the notebook's.
        return (f'<iframe srcdoc="{html.escape(self.html, quote=True)}" '
                'style="width:100%;height:720px;border:1px solid #8888"></iframe>')

    def __repr__(self) -> str:
        return f"<blockscope.Report: {self.title}; {len(self.figures)} figures>"


def _figures(drawn: list[tuple[str, bytes, bytes, bytes]]) -> dict[str, Figure]:
    return {
        name: Figure(name, text(title), text(caption), text(svg)) for name, title, caption, svg in drawn
    }


def _gnuplot() -> tuple[bytes, bytes]:
    """Where the program is looked for, as the command does."""
    return os.fsencode(os.environ.get("BLOCKSCOPE_GNUPLOT", "")), os.fsencode(os.environ.get("PATH", ""))


def draw(result: dict[str, Any], threads: int = 0) -> dict[str, Figure]:
    """The drawings of one result, in the form that the extension module gives results in."""
    return _figures(_core.figures(result, threads, *_gnuplot()))


def _save(path: PathLike, content: str, force: bool) -> None:
    with open(os.fspath(path), "wb" if force else "xb") as file:
        file.write(content.encode("utf-8"))


def report(
    traces: Traces,
    *,
    title: str = "",
    layer: int | None = None,
    head: int | None = None,
    sequence: int | None = None,
    block: int | None = None,
    backbone: PathLike | None = None,
    threads: int = 0,
    progress: Progress = None,
) -> Report:
    """Makes one page from traces of one model: figures, tables, text. gnuplot draws (Debian: gnuplot-nox).

    Args:
        traces: a path, a `Trace`, or several.
        title: of the page; empty: one is made.
        layer, head, sequence, block: of the heatmaps and the trajectory; None: the middle recorded layer, all
            heads together, and the block with the most steps.
        backbone: trace of the autoregressive backbone, captured with --replay of this one.
        threads, progress: as in `analyze`.

    Raises:
        UsageError: a layer, head, sequence or block that the trace does not have.
        Error: no gnuplot.
    """
    paths = encode_all(traces)

    def choice(name: str, given: int | None) -> int | None:
        return None if given is None else whole(name, given, 0)

    with telling_missing(paths), Shown(progress) as shown:
        return Report(_core.report(
            paths, os.fsencode(title), choice("layer", layer), choice("head", head),
            choice("sequence", sequence), choice("block", block),
            b"" if backbone is None else os.fsencode(backbone), whole("threads", threads, 0, 4096),
            *_gnuplot(), shown,
        ))
