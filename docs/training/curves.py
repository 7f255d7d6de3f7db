#!/usr/bin/env python3
"""Draws docs/training/curves.svg from the CSV logs of `blockscope train`; standard library only.

    python3 docs/training/curves.py build/training            # thin the logs there, store them here, draw
    python3 docs/training/curves.py build/training --append   # the same, but after the stored logs
    python3 docs/training/curves.py build/training --llada    # the log of the family llada's diffusion stage
    python3 docs/training/curves.py                           # draw again from the stored logs
"""

import csv
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
STAGES = ("backbone", "diffusion", "bidirectional", "draft")
TASKS = ("needle", "sentence", "multi_key", "chain", "arithmetic", "copy", "sort")
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#8C7A00")  # Okabe and Ito's
EVERY = 100  # steps of the log that become one line of the stored one
WIDTH, HEIGHT, GAP = 420, 240, 60
LEGEND = 80  # to the right of each panel


def thin(path: pathlib.Path) -> list[dict[str, float]]:
    """Means over EVERY steps (sums for tokens and seconds, last value for step and context)."""
    rows = list(csv.DictReader(path.open()))
    out = []
    for start in range(0, len(rows), EVERY):
        part = rows[start:start + EVERY]
        line = {"step": int(part[-1]["step"]) + 1,
                "longest_context": max(int(row["context"]) for row in part),
                "tokens": sum(int(row["tokens"]) for row in part),
                "seconds": sum(float(row["seconds"]) for row in part)}
        for key in ("loss", "answer_loss", "learning_rate", *TASKS):
            values = [float(row[key]) for row in part if row[key]]
            digits = 6 if key == "learning_rate" else 4
            line[key] = round(sum(values) / len(values), digits) if values else ""
        line["seconds"] = round(line["seconds"], 1)
        out.append(line)
    return out


def store(rows: list[dict[str, float]], path: pathlib.Path) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def panel(x: int, y: int, title: str, top: float, steps: int, series) -> str:
    """One set of axes; series = (name, colour, [(step, value)])."""
    def at(step: float, value: float) -> str:
        return f"{x + step / steps * WIDTH:.1f},{y + HEIGHT - min(value, top) / top * HEIGHT:.1f}"

    parts = [f'<rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#999"/>',
             f'<text x="{x}" y="{y - 8}" font-weight="bold">{title}</text>']
    for i in range(5):
        value = top * i / 4
        height = y + HEIGHT - HEIGHT * i / 4
        parts.append(f'<text x="{x - 6}" y="{height + 4}" text-anchor="end">{value:g}</text>')
        parts.append(f'<text x="{x + WIDTH * i / 4}" y="{y + HEIGHT + 16}" text-anchor="middle">'
                     f'{steps * i // 4}</text>')
    for index, (name, colour, points) in enumerate(series):
        line = " ".join(at(step, value) for step, value in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        parts.append(f'<text x="{x + WIDTH + 8}" y="{y + 18 + 14 * index}" fill="{colour}">{name}'
                     '</text>')
    return "\n".join(parts)


def draw(logs: dict[str, list[dict[str, str]]]) -> str:
    parts = []
    for column, stage in enumerate(STAGES):
        rows = logs[stage]
        steps = int(float(rows[-1]["step"]))
        x = GAP + column * (WIDTH + LEGEND + GAP)

        def points(key: str) -> list[tuple[float, float]]:
            return [(float(row["step"]), float(row[key])) for row in rows if row[key] not in ("", None)]

        losses = [("loss", "#555555", points("loss")),
                  ("answer loss", "#D55E00", points("answer_loss"))]
        parts.append(panel(x, 40, f"{stage}: loss (nats) by step", 6, steps, losses))
        accuracy = [(task, colour, points(task)) for task, colour in zip(TASKS, COLOURS)]
        title = f"{stage}: share of answer tokens right by step"
        parts.append(panel(x, 40 + HEIGHT + GAP, title, 1, steps, accuracy))
    width, height = len(STAGES) * (WIDTH + LEGEND + GAP) + GAP, 2 * HEIGHT + 2 * GAP + 40
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            'font-family="sans-serif" font-size="12">\n'
            f'<rect width="{width}" height="{height}" fill="white"/>\n' + "\n".join(parts)
            + "\n</svg>\n")


def append(stored: pathlib.Path, rows: list[dict[str, float]]) -> list[dict[str, float]]:
    """The stored log and then `rows`, whose steps count on from its last one."""
    before = list(csv.DictReader(stored.open()))
    last = int(before[-1]["step"])
    return before + [{**row, "step": last + int(row["step"])} for row in rows]


def main() -> None:
    llada = "--llada" in sys.argv
    for stage in STAGES if len(sys.argv) > 1 else ():
        if (stage == "bidirectional") != llada:
            continue
        log = pathlib.Path(sys.argv[1]) / ("diffusion.csv" if llada else f"{stage}.csv")
        stored = HERE / f"{stage}.csv"
        if not log.exists():
            continue
        store(append(stored, thin(log)) if "--append" in sys.argv else thin(log), stored)
    logs = {stage: list(csv.DictReader((HERE / f"{stage}.csv").open())) for stage in STAGES}
    (HERE / "curves.svg").write_text(draw(logs))


if __name__ == "__main__":
    main()
