"""`view --metrics FILE`: the Heads and Curves panels against the file and numpy, and files that can't be shown."""

import csv
import math
import pathlib
import subprocess
import tempfile

import h5py
import numpy as np
from view_harness import BINARY, read_table, skip_without_viewer, view

HEAD = "metric,array,unit,layer,head,step,value,terms\n"


def write(path, cells):
    """cells: {(layer, head, step): (value, terms)}"""
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        file.write(HEAD)
        for (layer, head, step), (value, terms) in cells.items():
            writer.writerow(["moved", "how_far", "1", layer, head, step, "" if math.isnan(value) else repr(value), terms])


def main():
    skip_without_viewer()
    rng = np.random.default_rng(3)
    with tempfile.TemporaryDirectory(prefix="blockscope-") as folder:
        folder = pathlib.Path(folder)
        trace, file = folder / "run.h5", folder / "own.csv"
        subprocess.run([BINARY, "capture", "models/needle", "--prompts", "models/needle/demo.jsonl", "--limit", "1",
                        "--gen-length", "16", "-q", "--record", "outputs", "--layers", "1,3,4", "-o", str(trace)],
                       check=True, capture_output=True)
        with h5py.File(trace) as opened:
            layers, heads = opened["layer"][:], opened["head"][:]
        cells = {(int(layer), int(head), step): (float(rng.normal()), int(rng.integers(0, 5)))
                 for layer in layers for head in heads for step in range(1, 5)}
        cells = {place: (value if terms else math.nan, terms) for place, (value, terms) in cells.items()}
        write(file, cells)
        shown = view(trace, "--metrics", file, "--csv", folder / "heads.csv", "--panel", "heads", "--show", "heads=how_far")
        assert shown.returncode == 0, shown.stderr
        rows = read_table(folder / "heads.csv")[1]
        assert len(rows) == len(layers) * len(heads)
        for layer, head, value in rows:
            own = [cells[int(layer), int(head), step] for step in range(1, 5)]
            total = sum(terms for _, terms in own)
            want = sum(value * terms for value, terms in own if terms) / total if total else math.nan
            assert math.isclose(float(value or "nan"), want, rel_tol=1e-5, abs_tol=1e-6) or math.isnan(want), (layer, head)
        shown = view(trace, "--metrics", file, "--csv", folder / "curves.csv", "--panel", "curves", "--show",
                     "curves=how_far", "--select", "layer=3,head=2")
        assert shown.returncode == 0, shown.stderr
        names, rows = read_table(folder / "curves.csv")
        found = {(int(row[0]), int(row[1]), int(row[2])): float(row[3] or "nan") for row in rows}
        wanted = {place: value for place, (value, _) in cells.items() if place[0] == 3 and not math.isnan(value)}
        assert all(math.isclose(found[place], value, rel_tol=1e-6) for place, value in wanted.items()), names
        assert {place for place, value in found.items() if not math.isnan(value)} == set(wanted)

        shown = view(trace, "--metrics", file, "--csv", folder / "scope.csv", "--panel", "heads", "--show",
                     "heads=how_far,scope=block")
        assert shown.returncode == 1 and "shows no numbers" in shown.stderr, shown.stderr  # the file has no blocks

        for text, words in (
                ("", "got an empty file"), ("a,b\n1,2\n", "expected the column metric"), (HEAD, "expected rows of results"),
                (HEAD + "moved,x,1,0,0,1,abc,1\n", "own.csv:2: value: expected a number, got 'abc'"),
                (HEAD + "moved,x,1,0,0,1,1.0\n", "expected 8 fields, got 7"),
                (HEAD + "moved,x,1,0,0,1,1.0,-2\n", "terms: expected a whole number"),
                (HEAD + "moved,x,1,0,0,1,1.0,1\n" * 2, "expected every cell once"),
                (HEAD + "moved,x,1,0,0,1,1.0,1\nmoved,x,1,0,0,,1.0,1\n", "own.csv:3: x: expected the axes of its first row"),
                (HEAD + 'moved,"x,1,0,0,1,1.0,1\n', "a quote that nothing closes"),
                (HEAD + "moved,x,1,first,0,1,1.0,1\n", "axis layer: expected numbers, got other labels"),
                (HEAD + "moved,similarity_external,1,0,0,1,1.0,1\n", "show an array of this name already"),
                (HEAD + "similarity,x,1,0,0,1,1.0,1\n", "a built-in metric has this name"),
                ("metric,array,step,value\nmoved,x,1,2\n", "expected an array with an axis layer")):
            file.write_text(text)
            refused = view(trace, "--metrics", file, "--csv", folder / "no.csv", "--panel", "heads")
            assert refused.returncode == 1 and words in refused.stderr, (text, refused.stderr)
            assert not (folder / "no.csv").exists()
        refused = view(trace, "--metrics", folder / "missing.csv", "--csv", folder / "no.csv", "--panel", "heads")
        assert refused.returncode == 1 and "missing.csv" in refused.stderr


if __name__ == "__main__":
    main()
