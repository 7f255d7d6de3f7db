"""The Attention panel of a capture: its CSV against `analyze --matrix attention`, its regions against the trace read
with h5py, a trace without keys, and one with recorded weights alone. The Lens panel against `blockscope lens --json`."""

import json
import os
import pathlib
import subprocess
import tempfile

import h5py
from view_harness import BINARY, read_table, skip_without_viewer, view

WHERE = {"sequence": 0, "block": 14, "step": 2, "layer": 3, "head": 1}
BLOCK = 16


def capture(path, level, *flags):
    command = [BINARY, "capture", "models/needle", "--prompts", "models/needle/demo.jsonl", "--limit", "1",
               "--gen-length", "32", "-q", "--record", level, "-o", str(path), *flags]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_WAIT_POLICY": "passive"})
    assert done.returncode == 0, done.stderr
    return path


def numbers(path, folder, select, mode="text"):
    file = folder / "numbers.csv"
    result = view(path, "--csv", file, "--force", "--panel", "attention", "--show", f"attention={mode}", "--select",
                  select)
    assert result.returncode == 0, result.stderr
    return read_table(file)[1]


def expected_region(trace, row, position):
    length = int(trace["sequences/prompt_length"][0])
    start = int(trace["steps/block_start"][row])
    if position >= start:
        masks = int(trace["steps/masks_left"][row])
        return ("decided", "masks") if masks else ("decided",)
    return ("first",) if position < 4 else ("prompt",) if position < length else ("answer",)


def check_lens(path, folder):
    lens = folder / "lens.json"
    done = subprocess.run([BINARY, "lens", "models/needle", str(path), "--json", str(lens), "-q"], capture_output=True,
                          text=True)
    assert done.returncode == 0, done.stderr
    arrays = {array["name"]: array for array in json.loads(lens.read_text())["metrics"][0]["arrays"]}
    for mode in ("probability", "rank", "first"):
        file = folder / "lens.csv"
        result = view(path, "--csv", file, "--force", "--panel", "lens", "--lens", lens, "--show", f"lens={mode}")
        assert result.returncode == 0, result.stderr
        array = arrays[f"lens_{mode}"]
        layers, steps = (axis["index"] for axis in array["axes"])
        rows = read_table(file)[1]
        assert [(int(l), int(t)) for l, t, _ in rows] == [(l, t) for l in layers for t in steps]
        for (_, _, found), want in zip(rows, array["values"]):
            assert (found in ("", "nan")) if want is None else abs(float(found) - want) <= 1e-6 * max(1, abs(want))
    for text, words in (("{}", "result of `blockscope lens --json`"), ("[", "lens.json"),
                        (lens.read_text().replace('"lens_rank"', '"other"'), "expected lens_rank, got none")):
        lens.write_text(text)
        result = view(path, "--csv", folder / "none.csv", "--panel", "lens", "--lens", lens)
        assert result.returncode == 1 and words in result.stderr and not (folder / "none.csv").exists(), result.stderr


def main():
    skip_without_viewer()
    with tempfile.TemporaryDirectory(prefix="blockscope-") as name:
        folder = pathlib.Path(name)
        path = capture(folder / "full.h5", "full")
        flags = [str(word) for key, index in WHERE.items() for word in (f"--{key}", index)]
        done = subprocess.run([BINARY, "analyze", str(path), "--matrix", "attention", *flags, "--json", "-", "--quiet"],
                              capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        array = json.loads(done.stdout)["metrics"][0]["arrays"][0]
        keys = [int(key) for key in array["axes"][1]["index"]]
        weights = {(q, key): array["values"][q * len(keys) + i] for q in range(BLOCK) for i, key in enumerate(keys)}

        select = ",".join(f"{key}={index}" for key, index in WHERE.items())
        found = {(int(q), int(key)): float(weight) for q, key, weight in numbers(path, folder, select, "map")}
        assert found.keys() == weights.keys()
        assert all(abs(found[at] - weights[at]) < 1e-9 for at in weights)

        one = numbers(path, folder, select + ",token=3")
        assert [int(row[0]) for row in one] == sorted(keys)
        assert all(abs(float(row[3]) - weights[3, int(row[0])]) < 1e-9 for row in one)
        for position, _, _, weight in numbers(path, folder, select):
            assert abs(float(weight) - sum(weights[q, int(position)] for q in range(BLOCK)) / BLOCK) < 1e-7
        with h5py.File(path) as trace:
            steps = {key: trace["steps/" + key][()] for key in ("block", "step", "kind")}
            row = next(r for r in range(len(steps["kind"])) if steps["kind"][r] == 1
                       and steps["block"][r] == WHERE["block"] and steps["step"][r] == WHERE["step"])
            for position, _, region, _ in one:
                assert region in expected_region(trace, row, int(position)), (position, region)
            masks = sum(region == "masks" for _, _, region, _ in one)
            assert masks == int(trace["steps/masks_left"][row]) > 0

        check_lens(path, folder)
        maps = capture(folder / "maps.h5", "summary", "--record-maps", "layers=3;heads=1;steps=2")
        for (q, key), weight in {(int(q), int(key)): float(weight) for q, key, weight in
                                 numbers(maps, folder, select, "map")}.items():
            assert abs(weight - weights[q, key]) < 2e-3 * weights[q, key] + 1e-6
        low = capture(folder / "low.h5", "sets")
        result = view(low, "--csv", folder / "none.csv", "--panel", "attention")
        assert result.returncode != 0 and not (folder / "none.csv").exists(), result.stderr
    print("ok")


if __name__ == "__main__":
    main()
