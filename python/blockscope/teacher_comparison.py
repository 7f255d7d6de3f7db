"""What two implementations of one model computed from the same tokens: ``blockscope.compare(a, b, teacher=True)``."""

from __future__ import annotations

import json
from typing import Any

from ._paths import PathLike, save


class TeacherComparison:
    """The first difference of two implementations, and how large the differences are.

    Attributes:
        data: what ``blockscope diff --teacher --json`` writes (docs/interchange.md).
        equal: whether the inputs are the same and nothing differs beyond the tolerance.
        first: the first difference, or None: a dict with `quantity`, the place in both traces (`row_a`, `row_b`,
            `block`, `step`, `layer`, `position`, `head`, `channel`), both values `a` and `b`, and `relative`, the
            size as a share of the value's range. Expert sets are `experts_a` and `experts_b`, and `relative` is their gap.
        inputs: the first input that differs, or None. Nothing after it was compared.
    """

    def __init__(self, found: bytes) -> None:
        self._json = found.decode("utf-8")
        self.data: dict[str, Any] = json.loads(self._json)
        self.equal: bool = self.data["equal"]
        self.first: dict[str, Any] | None = self.data["first"]
        self.inputs: dict[str, Any] | None = self.data["inputs"]

    def __getitem__(self, key: str) -> Any:
        """One quantity: ``found["query"]["by_layer"]``."""
        for quantity in self.data["quantities"]:
            if quantity["name"] == key:
                return quantity
        raise KeyError(key)

    def save(self, path: PathLike, *, force: bool = False) -> None:
        """Writes the JSON. Replaces an existing file only with `force`."""
        save(path, self._json, force)

    def __repr__(self) -> str:
        rows = f"{self.data['rows']} steps, tolerance {self.data['tolerance']:g}"
        if self.equal:
            return f"<blockscope.TeacherComparison: no difference, {rows}>"
        where = self.first or self.inputs or {}
        place = ", ".join(f"{name} {where[name]}" for name in ("row_a", "layer", "position", "head")
                          if where.get(name) is not None)
        return f"<blockscope.TeacherComparison: first {where.get('quantity', 'inputs')} at {place}; {rows}>"
