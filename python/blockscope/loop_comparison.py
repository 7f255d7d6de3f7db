"""A loop with and without a policy: the result of ``blockscope.compare(model, loop, ...)``."""

from __future__ import annotations

import html
import json
import math
from typing import Any

from ._paths import PathLike, save


def _finite(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


class LoopComparison:
    """What a policy saves and costs in another author's loop.

    Attributes:
        data: the numbers, with the names of ``blockscope verify``'s JSON (docs/python.md).
    """

    def __init__(self, data: dict[str, Any]) -> None:
        self.data = data

    def __getitem__(self, key: Any) -> Any:
        return self.data[key]

    def save(self, path: PathLike, *, force: bool = False) -> None:
        """Writes the JSON. Numbers that aren't finite become null. Replaces an existing file only with `force`."""
        save(path, json.dumps(_finite(self.data), indent=1, allow_nan=False) + "\n", force)

    def rows(self) -> list[tuple[str, str, str, str]]:
        """The lines of the table: what, exact, with the policy, notes."""
        exact, policy = self.data["reference"]["free_running"], self.data["settings"][0]["free_running"]
        return [*self._free_running(exact, policy), *self._replay()]

    def _free_running(self, exact: dict[str, Any], policy: dict[str, Any]) -> list[tuple[str, str, str, str]]:
        setting = self.data["settings"][0]
        scores, agreement, reads, ratio = (setting["accuracy"], setting["agreement"], policy["reads"],
                                           setting["seconds_ratio"])
        rows = []
        if scores["count"]:
            rows.append((f"score ({self.data['metric']})", f"{scores['reference']:.4g}", f"{scores['policy']:.4g}",
                         f"n {scores['count']}: {scores['worse']} worse, {scores['better']} better"
                         + (", within sampling error" if scores["within_noise"] else "")))
        if agreement["positions"]:
            rows.append(("tokens equal", "", f"{100 * agreement['share']:.1f} %",
                         f"{agreement['equal']} of {agreement['positions']}"))
        if agreement["relative_l2"] is not None:
            rows.append(("difference of the outputs", "", f"{agreement['relative_l2']:.3e}", "relative L2"))
        if agreement["sequences"]:
            rows.append(("the same output", "", f"{agreement['identical']} of {agreement['sequences']}", ""))
        steps = exact["denoising_steps"]
        rows.append(("denoising steps", "" if steps is None else str(steps), str(policy["denoising_steps"]), ""))
        times = "faster" if ratio["median"] >= 1 else "slower"
        factor = ratio["median"] if times == "faster" else 1 / ratio["median"]
        rows.append(("whole run", f"{exact['seconds']['median']:.3f} s", f"{policy['seconds']['median']:.3f} s",
                     f"{times}: {factor:.2f}x, median of {self.data['repetitions']}; with the time of applying"))
        rows.append(("external keys read", "", f"{reads['key_rows_read']} of {reads['key_rows']}",
                     f"{100 * reads['saving']:.1f} % not read at denoising steps"))
        return rows

    def _replay(self) -> list[tuple[str, str, str, str]]:
        found = self.data["settings"][0]["replay"]
        if found is None:
            return []
        rows = []
        if found["kl"]["positions"]:
            rows.append(("KL(exact || policy)", "", f"{found['kl']['mean']:.3e}",
                         f"nats, mean of {found['kl']['positions']} masked positions; largest "
                         f"{found['kl']['max']:.3e}"))
        for name, label, note in (
                ("first_order_approximated", "error where approximated", "same queries, heads and steps that differ"),
                ("first_order", "error over all heads", "same queries, all heads and steps"),
                ("propagated", "propagated error", "against the exact run, all heads and steps")):
            if found[name] is not None:
                rows.append((label, "", f"{found[name]['relative_l2']:.3e}", f"relative L2, {note}"))
        by_step = found["first_order_by_step"]
        if by_step is not None:
            rows.append(("  by step", "", ", ".join(f"{one['step']}: {one['relative_l2']:.1e}" for one in by_step[:12]),
                         "error over all heads"))
        if found["output_by_step"]:
            rows.append(("model's output", "", ", ".join(f"{one['step']}: {one['relative_l2']:.1e}"
                                                         for one in found["output_by_step"][:12]), "by step"))
        rows.append(("external keys read", "", f"{found['reads']['key_rows_read']} of {found['reads']['key_rows']}",
                     f"{100 * found['reads']['saving']:.1f} % not read under replay"))
        return rows

    def __repr__(self) -> str:
        label, rows = self.data["settings"][0]["label"], self.rows()
        head = f"{self.data['model']}, {self.data['prompts']} prompts: exact against {label}"
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        lines = ["  ".join([*(cell.ljust(width) for cell, width in zip(row, widths)), row[3]]).rstrip() for row in rows]
        return "\n".join([head, *lines])

    def _repr_html_(self) -> str:
        cells = [[html.escape(cell) for cell in row] for row in
                 (("", "exact", self.data["settings"][0]["label"], ""), *self.rows())]
        table = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in cells)
        frames = "".join(
            '<figure style="display:inline-block;margin:4px">'
            f'<img alt="exact" src="data:image/png;base64,{one["exact"]}"/>'
            f'<img alt="policy" src="data:image/png;base64,{one["policy"]}"/>'
            f'<figcaption>prompt {one["prompt"]}, frame {one["frame"]}: exact, policy</figcaption></figure>'
            for one in self.data["settings"][0]["frames"] or [])
        return f"<table>{table}</table>{frames}"
