"""The metric `sinks` of captures against its definition, from h5py and numpy: numbers, runs of steps over blocks, a
trace with gaps, both normalisers and another factor."""

import collections
import json
import pathlib
import sys
import tempfile

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "cli"))

import sets_reference as reference  # noqa: E402
from capture_harness import MODELS, require_binary, run  # noqa: E402


def sinks_of(trace, row, layer, head, factor):
    """Position -> probability; and all of the set."""
    keys = trace.at("/sets/topk", row, layer)[head]
    probability = trace.at("/sets/probability", row, layer)[head]
    there = keys >= 0
    keys, probability = keys[there], probability[there]
    number = int(trace.step["context_length"][row])
    if trace.file.attrs["set_normaliser"] == b"prefix+block":
        number += int(trace.file["/steps/valid"][row].sum())
    return {int(k): float(p) for k, p in zip(keys, probability) if p > factor / number}, keys, probability


def expected(trace, factor):
    means = {name: reference.Means() for name in
             ("sinks", "sink_mass", "kept", "first_mass", "lifetime", "moved", "shared", "key_norm", "value_norm")}
    places = collections.Counter()
    blocks = collections.defaultdict(list)
    for row in range(trace.rows):
        if trace.step["kind"][row] == 1:
            blocks[trace.step["sequence"][row], trace.step["block"][row]].append(row)
    for layer in range(len(trace.layers)):
        for rows in blocks.values():
            recorded = [row for row in rows if trace.step["recorded"][row] and trace.step["context_length"][row] > 0]
            found = {row: [sinks_of(trace, row, layer, head, factor) for head in range(len(trace.kv_heads))]
                     for row in recorded}
            for row in recorded:
                length, step = int(trace.step["context_length"][row]), int(trace.step["step"][row])
                counts = collections.Counter(p for sinks, _, _ in found[row] for p in sinks)
                for count in counts.values():
                    means["shared"].add((layer, step), count / len(trace.kv_heads))
                for head, (sinks, keys, probability) in enumerate(found[row]):
                    cell = (layer, head, step)
                    means["sinks"].add(cell, len(sinks))
                    means["sink_mass"].add(cell, sum(sinks.values()))
                    means["first_mass"].add(cell, float(probability[keys < 4].sum()))
                    for name in ("key_norm", "value_norm"):
                        norms = trace.at(f"/sets/{name}", row, layer)[head][:len(keys)].astype(float)
                        hit = np.isin(keys, list(sinks))
                        if hit.any() and not hit.all():
                            means[name].add((layer, head), norms[hit].mean() / norms[~hit].mean())
                    for position in sinks:
                        places[layer, min(9, position * 10 // length)] += 1
            for head in range(len(trace.kv_heads)):
                runs, before, strongest = {}, None, []
                for row in recorded:
                    sinks, keys, _ = found[row][head]
                    step = int(trace.step["step"][row])
                    adjacent = before is not None and step == before + 1
                    if adjacent and runs:
                        means["kept"].add((layer, head, step), sum(p in sinks for p in runs) / len(runs))
                    for position in [p for p in runs if not adjacent or p not in sinks]:
                        means["lifetime"].add((layer, head), runs.pop(position))
                    runs = {p: runs.get(p, 0) + 1 for p in sinks}
                    before = step
                    if sinks:
                        strongest.append(keys[0] / trace.step["context_length"][row])
                for steps in runs.values():
                    means["lifetime"].add((layer, head), steps)
                if len(strongest) > 1:
                    means["moved"].add((layer, head), float(np.std(strongest)))
    return means, places


def check(path, factor, *flags):
    code, out, err = run("analyze", path, "--metric", "sinks", "--json", "-", "--quiet", *flags)
    assert code == 0, err
    arrays = {array["name"]: array for array in json.loads(out)["metrics"][0]["arrays"]}
    trace = reference.Trace(str(path))
    means, places = expected(trace, factor)
    compared = 0
    for name, want in means.items():
        array = arrays[name]
        shape = [len(axis["index"]) for axis in array["axes"]]
        for at in np.ndindex(*shape):
            value, terms = (array[part][int(np.ravel_multi_index(at, shape))] for part in ("values", "terms"))
            cell = tuple(at[:-1]) + (at[-1] + 1,) if array["axes"][-1]["name"] == "step" else tuple(at)
            assert terms == want.terms[cell], (name, cell, terms, want.terms[cell])
            if terms:
                assert abs(value - want.mean(cell)) < 1e-9, (name, cell, value, want.mean(cell))
                compared += 1
        assert sum(want.terms.values()) == sum(array["terms"]), name
    for layer in range(len(trace.layers)):
        total = sum(places[layer, tenth] for tenth in range(10))
        for tenth in range(10):
            value = arrays["places"]["values"][layer * 10 + tenth]
            assert total == 0 or abs(value - places[layer, tenth] / total) < 1e-12, (layer, tenth, value)
    return compared


def main():
    require_binary()
    with tempfile.TemporaryDirectory(prefix="blockscope-") as name:
        folder = pathlib.Path(name)

        def captured(file, *flags):
            code, _, err = run("capture", MODELS / "needle", "--prompts", MODELS / "needle" / "demo.jsonl", "--limit", 4,
                               "--gen-length", 32, "--batch-size", 2, "--record", "sets", "-q", "-o", folder / file,
                               *flags)
            assert code == 0, err
            return folder / file

        whole = captured("whole.h5", "--set-size", 32)
        assert check(whole, 3.0) > 500
        assert check(whole, 6.5, "--sink-factor", 6.5) > 100
        assert check(captured("gaps.h5", "--set-size", 16, "--steps", "1,2,4,5,6,9"), 3.0) > 100
        assert check(captured("block.h5", "--set-size", 16, "--set-normaliser", "prefix+block"), 3.0) > 100
    print("ok")


if __name__ == "__main__":
    main()
