"""Drawings that a notebook shows as pictures."""

from __future__ import annotations

import os
from typing import Any

from . import _core
from ._paths import PathLike, save, text


class Figure:
    """A drawing. A notebook shows it as a picture.

    Attributes:
        name: as in file names, such as "head_similarity".
        title, caption: plain text; the caption has the number of terms.
        svg: the drawing, with text as text.
    """

    def __init__(self, name: str, title: str, caption: str, svg: str) -> None:
        self.name, self.title, self.caption, self.svg = name, title, caption, svg

    def save(self, path: PathLike, *, force: bool = False) -> None:
        """Writes the SVG. Replaces an existing file only with `force`."""
        save(path, self.svg, force)

    def _repr_svg_(self) -> str:
        return self.svg

    def __repr__(self) -> str:
        return f"<blockscope.Figure {self.name}: {self.title}>"


def figures_of(drawn: list[tuple[str, bytes, bytes, bytes]]) -> dict[str, Figure]:
    """Converts the drawings of the extension module, by name."""
    return {
        name: Figure(name, text(title), text(caption), text(svg)) for name, title, caption, svg in drawn
    }


def gnuplot() -> tuple[bytes, bytes]:
    """Where to look for the program, like the command."""
    return os.fsencode(os.environ.get("BLOCKSCOPE_GNUPLOT", "")), os.fsencode(os.environ.get("PATH", ""))


def draw(result: dict[str, Any], threads: int = 0) -> dict[str, Figure]:
    """The drawings of one result, given in the form of the extension module."""
    return figures_of(_core.figures(result, threads, *gnuplot()))
