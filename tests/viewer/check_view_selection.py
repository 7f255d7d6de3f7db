"""The Selection panel and the metrics of sparse policies, from captures of the shipped model: every
number in their CSV files against h5py, numpy and Python's sets."""

import os
import pathlib
import shutil
import subprocess
import tempfile

import h5py
import numpy as np
from view_harness import BINARY, read_csv, read_png, read_table, skip_without_viewer, view

PROMPTS = "models/needle/demo.jsonl"
COLOURS = {"both": (0, 158, 115), "exact": (213, 94, 0), "chosen": (86, 180, 233)}


def capture(path, *flags):
    command = [BINARY, "capture", "models/needle", "--prompts", PROMPTS, "--limit", "2", "--gen-length", "20",
               "-q", *flags, "-o", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_WAIT_POLICY": "passive"})
    assert done.returncode == 0, done.stderr
    return path


class Row:
    """What one denoising row holds of one layer and KV head."""

    def __init__(self, trace, sequence, block, step, layer, kv_head):
        steps = trace["steps"]
        rows = int(steps["committed"][0])
        found = np.flatnonzero((steps["sequence"][:rows] == sequence) & (steps["block"][:rows] == block)
                               & (steps["kind"][:rows] == 1))
        self.row = int(found[steps["step"][found] == step][0])
        first = int(found[steps["step"][found] == 1][0])
        self.read = self.keys(trace, "attention/selected", self.row, layer, kv_head)
        self.exact = self.keys(trace, "sets/topk", self.row, layer, kv_head)
        self.first = self.keys(trace, "sets/topk", first, layer, kv_head)
        self.probability = trace["sets/probability"][self.row, layer, kv_head]
        start, length = (int(trace[f"sequences/prompt_{part}"][sequence]) for part in ("start", "length"))
        self.prompt = trace["sequences/prompt_token"][start:start + length]
        ends, pieces = trace["tokenizer/piece_offset"][:], trace["tokenizer/piece_bytes"][:].tobytes()
        self.piece = lambda token: pieces[ends[token]:ends[token + 1]].decode()

    @staticmethod
    def keys(trace, name, row, layer, kv_head):
        return [int(p) for p in trace[name][row, layer, kv_head] if p >= 0] if name in trace else []


def check_table(path, folder, where, against, k=None):
    """The panel's keys, marks, ranks and probabilities. -> (hits, misses, extra)"""
    sequence, block, step, layer, head = where
    numbers = folder / "keys.csv"
    result = view(path, "--csv", numbers, "--force", "--panel", "selection", "--show", f"selection={against}",
                  "--select", f"sequence={sequence},block={block},step={step},layer={layer},head={head}")
    assert result.returncode == 0, result.stderr
    header, rows = read_table(numbers)
    with h5py.File(path) as trace:
        row = Row(trace, sequence, block, step, layer, head // 3)
    chosen = row.read if against == "read" else row.first
    exact = row.exact[:len(chosen)]
    names = ("hit", "missed", "extra") if against == "read" else ("kept", "new", "gone")
    if against == "read" and not chosen:  # everything was read
        exact = chosen = row.exact[:k]
        names = ("exact", None, None)
    want = {}
    for position in sorted({*chosen, *exact}):
        mark = names[0 if position in chosen and position in exact else 1 if position in exact else 2]
        want[position] = (
            row.piece(row.prompt[position]).replace("\n", "\u23ce") if position < len(row.prompt) else None, mark,
            str(chosen.index(position) + 1) if position in chosen else "",
            str(row.exact.index(position) + 1) if position in row.exact else "",
            row.probability[row.exact.index(position)] if position in row.exact else None)
    assert [int(r[0]) for r in rows] == list(want), (where, against)
    for cells in rows:
        text, mark, chosen_rank, exact_rank, probability = want[int(cells[0])]
        assert text is None or cells[1] == text, (cells, text)
        assert cells[2:5] == [mark, chosen_rank, exact_rank], (cells, want[int(cells[0])])
        assert (cells[5] == "") if probability is None else abs(float(cells[5]) - probability) < 1e-7, cells
    return [sum(r[2] == name for r in rows) for name in names]


def check_picture(path, folder, where, counts):
    """Each mark that the step has shows in its colour, and no other one."""
    sequence, block, step, layer, head = where
    out = folder / "keys.png"
    result = view(path, "--screenshot", out, "--force", "--panel", "selection", "--width", 1000, "--height", 900,
                  "--select", f"sequence={sequence},block={block},step={step},layer={layer},head={head}")
    assert result.returncode == 0, result.stderr
    pixels = read_png(out)[150:, :, :3]  # below the legend, which has all of them
    for (name, colour), count in zip(COLOURS.items(), counts):
        seen = np.count_nonzero((pixels == colour).all(axis=2))
        assert (seen > 30) == (count > 0), (where, name, seen, count)


def check_metrics(path, folder):
    """Heads and Curves of `selection` against /attention, /shadow and /sets."""
    with h5py.File(path) as trace:
        steps = trace["steps"]
        rows = int(steps["committed"][0])
        sums = {}
        for row in np.flatnonzero(steps["kind"][:rows] == 1):
            selected = trace["attention/selected"][row]
            if (selected < 0).all() or steps["context_length"][row] <= (selected >= 0).sum(axis=2).max():
                continue
            valid = steps["valid"][row] == 1
            share = np.exp(trace["attention/lse_external"][row].astype(float) - trace["shadow/lse_external"][row])
            covered = np.minimum(share[:, :, valid], 1).mean(axis=2)
            error = trace["shadow/output_error"][row]
            for layer, head in np.ndindex(covered.shape):
                read = [p for p in selected[layer, head // 3] if p >= 0]
                exact = trace["sets/topk"][row, layer, head // 3][:len(read)]
                own = {"covered": covered[layer, head], "output_error": error[layer, head],
                       "block_accuracy": len({*read} & {*map(int, exact)}) / len(read)}
                for name, value in own.items():
                    sums.setdefault((name, layer, head), []).append(value)
                    sums.setdefault((name, layer, head, int(steps["step"][row])), []).append(value)
    for name in ("block_accuracy", "covered", "output_error"):
        for panel in ("heads", "curves"):
            numbers = folder / f"{name}-{panel}.csv"
            result = view(path, "--csv", numbers, "--force", "--panel", panel, "--show", f"{panel}={name}",
                          "--select", "layer=4")
            assert result.returncode == 0, result.stderr
            header, table = read_csv(numbers)
            want = {key[1:]: np.mean(values) for key, values in sums.items()
                    if key[0] == name and len(key) == (3 if panel == "heads" else 4)
                    and (panel == "heads" or key[1] == 4)}
            got = {tuple(int(cell) for cell in line[:-1]): line[-1] for line in table}
            assert got.keys() == want.keys() and len(got) > 20, (name, panel, got.keys() ^ want.keys())
            worst = max(abs(got[key] - want[key]) for key in want)
            assert worst < 1e-5, (name, panel, worst)


def check_damage(path, folder):
    """Keys twice or beyond the prefix end with file, dataset and row, and leave no output."""
    for name, value in (("twice", lambda keys: keys[1]), ("beyond", lambda keys: 10**6), ("behind", lambda keys: 245)):
        bad = folder / f"{name}.h5"
        shutil.copyfile(path, bad)
        with h5py.File(bad, "r+") as trace:
            row = Row(trace, 0, 15, 3, 2, 1).row
            keys = trace["attention/selected"][row, 2, 1]
            trace["attention/selected"][row, 2, 1, 0] = value(keys)
        out = folder / "damaged.png"
        result = view(bad, "--screenshot", out, "--panel", "selection",
                      "--select", "sequence=0,block=15,step=3,layer=2,head=4")
        assert result.returncode == 1 and not out.exists(), (name, result)
        assert f"{name}.h5:/attention/selected" in result.stderr and str(row) in result.stderr, (name, result.stderr)


def check_lacks(folder):
    """Traces without one of the two sets show the other; without both, no numbers and why."""
    blind = capture(folder / "blind.h5", "--policy", "recent,k=8")
    numbers = folder / "blind.csv"
    where = "sequence=0,block=14,step=2,layer=1,head=3"
    result = view(blind, "--csv", numbers, "--panel", "selection", "--select", where)
    assert result.returncode == 0, result.stderr
    header, rows = read_table(numbers)
    with h5py.File(blind) as trace:
        length = int(trace["steps/context_length"][1:][trace["steps/kind"][1:] == 1][0])
    assert sorted(int(row[0]) for row in rows) == list(range(length - 8, length)), rows
    assert {row[2] for row in rows} == {"read"} and {row[4] for row in rows} == {""}, rows
    plain = capture(folder / "plain.h5")
    result = view(plain, "--csv", folder / "none.csv", "--panel", "selection")
    assert result.returncode == 1 and "no numbers" in result.stderr, result
    result = view(plain, "--csv", folder / "none.csv", "--panel", "heads", "--show", "heads=covered")
    assert result.returncode == 1 and "no numbers" in result.stderr, result


skip_without_viewer()
with tempfile.TemporaryDirectory() as name:
    place = pathlib.Path(name)
    policies = {"mage": ("--policy", "mage,k=8"), "quest": ("--policy", "quest,k=13,page=4")}
    for policy, flags in policies.items():
        trace = capture(place / f"{policy}.h5", *flags, "--shadow", "--record", "sets", "--set-size", "24")
        seen = np.zeros(3, int)
        for where in ((0, 15, 2, 5, 0), (0, 15, 3, 2, 4), (1, 15, 2, 3, 3), (1, 15, 9, 0, 2)):
            seen += (counts := check_table(trace, place, where, "read"))
            check_picture(trace, place, where, counts)
            check_table(trace, place, where, "first")
        assert (seen > 0).all(), f"{policy}: {seen}: nothing was tried"
        check_metrics(trace, place)
        if policy == "mage":
            assert check_table(trace, place, (0, 15, 1, 1, 1), "read", 8)[0] == 8
            check_damage(trace, place)
    check_lacks(place)
print("keys, marks, ranks, probabilities, colours and metrics of sparse policies checked")
