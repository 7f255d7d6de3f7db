"""Tokens that are shaded by a value of each, for notebooks."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any

from .errors import UsageError

if TYPE_CHECKING:
    import numpy as np


class TextHtml:
    """A text whose tokens are shaded. `html` is a fragment of a page."""

    def __init__(self, pieces: list[bytes], tokens: np.ndarray, values: Any, edits: list[str]) -> None:
        import numpy as np

        shades = np.asarray(values, np.float64).reshape(-1)
        if shades.size != len(pieces):
            raise UsageError(f"values: expected {len(pieces)} values, one for each position after the prompt, got {shades.size}")
        finite = shades[np.isfinite(shades)]
        least, span = (finite.min(), float(np.ptp(finite)) or 1.0) if finite.size else (0.0, 1.0)
        spans = []
        for position, (piece, token, value, edit) in enumerate(zip(pieces, tokens, shades, edits)):
            shown = html.escape(piece.decode("utf-8", errors="replace")).replace("\n", "&#x21B5;<br>") or f"[{token}]"
            share = (value - least) / span if np.isfinite(value) else 0.0
            about = html.escape(f"position {position}, token {token}: {value:.4g}{'; ' if edit else ''}{edit}")
            style = f"background:rgba(230,159,0,{0.85 * share:.3f}){';text-decoration:underline' if edit else ''}"
            spans.append(f'<span title="{about}" style="{style}">{shown}</span>')
        self.html = f'<div style="white-space:pre-wrap;line-height:1.7">{"".join(spans)}</div>'

    def _repr_html_(self) -> str:
        return self.html
