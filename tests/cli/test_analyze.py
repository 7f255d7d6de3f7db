"""`blockscope analyze` through the command line, checked against numpy, h5py and xarray.
test_analyze.py MAKE_TRACE

The exports must agree with each other and with a float64 recomputation from the trace, on traces of
odd shapes (tests/analysis/trace_maker.h) and, where the build can capture, on a real one.
"""

import csv
import io
import json
import os
import pathlib
import subprocess
import sys

import h5py
import numpy as np
import xarray

from capture_harness import require_binary, run, temporary_folder

MAKE_TRACE = sys.argv[1]
MODEL = pathlib.Path(__file__).parents[2] / "models" / "needle"
TOLERANCE = 1e-5
ODD = {
    "plain": [],
    "float32": ["--array-type", "f32", "--seed", 2],
    "one of all": ["--layers", 1, "--heads", 1, "--kv-heads", 1, "--block-length", 1,
                   "--sequences", 1, "--blocks", 2],
    "one step": ["--steps", 1],
    "no prefix": ["--prompt", 0],
    "unequal": ["--unequal", "--sequences", 3, "--blocks", 3, "--interleaved", "--seed", 3],
    "invalid": ["--invalid", 1, "--unequal"],
    "filtered": ["--record-layers", "0,2", "--record-heads", "1,2", "--record-kv-heads", "1",
                 "--record-steps", "1,2,4", "--record-blocks", "0"],
    "bad values": ["--nan", 0.2, "--inf", 0.2, "--zero", 0.2, "--seed", 4],
    "partial": ["--partial", "--sequences", 2],
    "aborted": ["--aborted", "--sequences", 2],
    "shadow": ["--policy", "flashblock", "--shadow", "--seed", 5],
}


def make(path, *flags):
    subprocess.run([MAKE_TRACE, str(path), *map(str, flags)], check=True)
    return path


def analyze(*arguments, code=0):
    got, out, err = run("analyze", *arguments)
    assert got == code, f"{arguments}: exit code {got}, not {code}\n{err}{out}"
    return out if code == 0 else err


# --- the exports against each other --------------------------------------------------------------


def json_cells(root):
    """{(metric, array, label of each axis...): (value, terms)}"""
    cells = {}
    for metric in root["metrics"]:
        for array in metric["arrays"]:
            axes = [axis.get("labels") or axis["index"] for axis in array["axes"]]
            names = [axis["name"] for axis in array["axes"]]
            assert array["shape"] == [len(axis) for axis in axes]
            terms = array["terms"] or [None] * len(array["values"])
            for flat, index in enumerate(np.ndindex(*array["shape"])):
                place = tuple((n, str(a[i]).removesuffix(".0")) for n, a, i in zip(names, axes, index))
                value = array["values"][flat]
                cells[metric["metric"], array["name"], place] = (
                    np.nan if value is None else value, terms[flat])
    return cells


def csv_cells(text):
    cells = {}
    for row in csv.DictReader(io.StringIO(text)):
        place = tuple((n, v.removesuffix(".0")) for n, v in row.items()
                      if v != "" and n not in ("metric", "array", "unit", "value", "terms"))
        key = row["metric"], row["array"], tuple(sorted(place))
        assert key not in cells
        cells[key] = (float(row["value"]) if row["value"] else np.nan,
                      int(row["terms"]) if row["terms"] else None)
    return cells


def check_hdf5(path, root):
    """xarray must show each array with its named axes, coordinates, values and terms."""
    for metric in root["metrics"]:
        with xarray.open_dataset(path, group=metric["metric"], engine="h5netcdf") as found:
            assert found.attrs["formula"] == metric["formula"]
            for reason, count in metric["left_out"].items():
                assert found.attrs["left out: " + reason] == count
            for array in metric["arrays"]:
                values = found[array["name"]]
                assert values.attrs["units"] == array["unit"]
                assert values.shape == tuple(array["shape"])
                expected = np.array([np.nan if v is None else v for v in array["values"]], float)
                np.testing.assert_array_equal(values.values.ravel(), expected)
                for dim, axis in zip(values.dims, array["axes"]):
                    assert dim in (axis["name"], f"{axis['name']}_of_{array['name']}"), dim
                    if axis.get("labels"):
                        assert [str(v) for v in found[dim].values] == axis["labels"]
                    else:
                        np.testing.assert_array_equal(found[dim].values, np.array(axis["index"], float))
                if array["terms"]:
                    terms = found[array["name"] + "_terms"].values.ravel()
                    assert terms.tolist() == array["terms"]


def check_exports_agree(trace, folder, *flags):
    out = {kind: folder / f"out.{kind}" for kind in ("csv", "json", "h5")}
    analyze(trace, *flags, "--csv", out["csv"], "--json", out["json"], "--hdf5", out["h5"], "--force")
    root = json.loads(out["json"].read_text())
    assert root["format"] == "blockscope-analysis" and root["metrics"]
    from_json = {(m, a, tuple(sorted(p))): v for (m, a, p), v in json_cells(root).items()}
    from_csv = csv_cells(out["csv"].read_text())
    assert from_json.keys() == from_csv.keys()
    for key, (value, terms) in from_json.items():
        assert from_csv[key][1] == terms, key
        assert from_csv[key][0] == value or np.isnan(value) and np.isnan(from_csv[key][0]), key
    check_hdf5(out["h5"], root)
    assert json.loads(analyze(trace, *flags, "--json", "-")) == root
    assert analyze(trace, *flags, "--csv", "-") == out["csv"].read_text()
    return root


# --- the values against numpy --------------------------------------------------------------------


class Trace:
    """The recorded denoising steps of a trace, by block."""

    def __init__(self, path):
        partial = pathlib.Path(f"{path}.partial")
        self.file = h5py.File(partial if partial.exists() else path, "r", swmr=partial.exists())
        f = self.file
        rows = int(f["/steps/committed"][0])
        steps = {n: f[f"/steps/{n}"][:rows] for n in
                 ("sequence", "kind", "block", "step", "context_length", "recorded", "valid")}
        aborted = f["/sequences/aborted"][:]
        self.blocks = {}
        for row in range(rows):
            sequence = int(steps["sequence"][row])
            if steps["kind"][row] == 1 and not aborted[sequence]:
                block = self.blocks.setdefault((sequence, int(steps["block"][row])), {})
                if steps["recorded"][row]:
                    block[int(steps["step"][row])] = row
        self.context = steps["context_length"]
        self.valid = steps["valid"].astype(bool)

    def read(self, name, row):
        return self.file[name][row].astype(np.float64)


class Means:
    def __init__(self):
        self.sums, self.terms = {}, {}

    def add(self, key, values):
        good = values[np.isfinite(values)]
        if good.size:
            self.sums[key] = self.sums.get(key, 0.0) + good.sum()
            self.terms[key] = self.terms.get(key, 0) + good.size

    def check(self, array, what):
        indices = [axis["index"] for axis in array["axes"]]
        seen = 0
        for flat, at in enumerate(np.ndindex(*array["shape"])):
            key = tuple(indices[a][i] for a, i in enumerate(at))
            value, terms = array["values"][flat], array["terms"][flat]
            assert terms == self.terms.get(key, 0), f"{what} {key}: {terms} terms"
            if terms:
                mean = self.sums[key] / self.terms[key]
                assert abs(value - mean) <= TOLERANCE, f"{what} {key}: {value}, numpy {mean}"
                seen += 1
            else:
                assert value is None, f"{what} {key}: {value} without terms"
        assert seen == len(self.terms), f"{what}: {seen} cells, numpy has {len(self.terms)}"
        return seen


def cosines(a, b):
    norms = np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        return np.where(norms > 0, (a * b).sum(-1) / norms, np.nan)


def similarity(trace, name, needs_prefix):
    means = Means()
    layers, heads = trace.file["/layer"][:], trace.file["/head"][:]
    for block in trace.blocks.values():
        for step, row in block.items():
            after = block.get(step + 1)
            if after is None or needs_prefix and min(trace.context[row], trace.context[after]) == 0:
                continue
            both = trace.valid[row] & trace.valid[after]
            values = cosines(trace.read(name, row), trace.read(name, after))[..., both]
            for l, layer in enumerate(layers):
                for h, head in enumerate(heads):
                    means.add((layer, head, step), values[l, h])
    return means


def external_mass(trace, external):
    means = Means()
    for block in trace.blocks.values():
        for step, row in block.items():
            if trace.context[row] == 0:
                continue
            out, inside = trace.read(external, row), trace.read("/attention/lse_internal", row)
            with np.errstate(over="ignore", invalid="ignore"):
                mass = 1 / (1 + np.exp(inside - out))
            mass[~np.isfinite(inside) | (np.isnan(out) | (out == np.inf))] = np.nan
            for l, layer in enumerate(trace.file["/layer"][:]):
                for h, head in enumerate(trace.file["/head"][:]):
                    means.add((layer, head, step), mass[l, h][trace.valid[row]])
    return means


def recall(trace, sizes):
    means = Means()
    for block in trace.blocks.values():
        for step, row in block.items():
            if step == 1 or 1 not in block:
                continue
            first, now = (trace.file["/sets/topk"][r] for r in (block[1], row))
            for l, layer in enumerate(trace.file["/layer"][:]):
                for h, head in enumerate(trace.file["/kv_head"][:]):
                    for k in sizes:
                        if trace.context[row] > k:
                            shared = np.intersect1d(first[l, h, :k], now[l, h, :k]).size
                            means.add((layer, head, step, k), np.array([shared / k]))
    return means


def check_values(path, root):
    """-> cells compared"""
    arrays = {(m["metric"], a["name"]): a for m in root["metrics"] for a in m["arrays"]}
    trace = Trace(path)
    policy = json.loads(trace.file["/run/json"][:].tobytes())["policy"]
    exact = "/attention" if policy == "exact" else "/shadow"
    cells = similarity(trace, f"{exact}/external", True).check(
        arrays["similarity", "similarity_external"], "A_out")
    cells += similarity(trace, "/attention/internal", False).check(
        arrays["similarity", "similarity_internal"], "A_in")
    cells += external_mass(trace, f"{exact}/lse_external").check(
        arrays["external_mass", "external_mass"], "external mass")
    if ("recall", "recall") in arrays:
        array = arrays["recall", "recall"]
        sizes = [int(k) for k in array["axes"][3]["index"]]
        assert sizes, "recall without set sizes"
        cells += recall(trace, sizes).check(array, "recall")
    trace.file.close()
    return cells


def test_odd_traces(folder):
    for name, flags in ODD.items():
        path = make(folder / "odd.h5", *flags)
        root = check_exports_agree(path, folder)
        cells = check_values(path, root)
        assert cells > 0 or name == "one of all", f"{name}: nothing was compared"
        print(f"{name}: {cells} cells equal numpy's")
        for file in folder.glob("odd.h5*"):
            file.unlink()


def test_selection_keeps_the_same_values(folder):
    path = make(folder / "a.h5", "--unequal", "--sequences", 3)
    whole = json_cells(check_exports_agree(path, folder, "--metric", "similarity,external_mass"))
    part = json_cells(check_exports_agree(path, folder, "--metric", "similarity,external_mass",
                                          "--layer", "1-2", "--head", "0,3", "--step", "2-3"))
    assert part and len(part) < len(whole)
    for (metric, array, place), value in part.items():
        assert dict(place)["layer"] in "12" and dict(place)["head"] in "03"
        assert dict(place)["step"] in "23"
        np.testing.assert_equal(whole[metric, array, place], value)
    one = check_exports_agree(path, folder, "--metric", "similarity", "--sequence", 1, "--block", "0")
    trace = Trace(path)
    trace.blocks = {key: block for key, block in trace.blocks.items() if key == (1, 0)}
    array = one["metrics"][0]["arrays"][0]
    assert similarity(trace, "/attention/external", True).check(array, "A_out of one block") > 0


def test_two_traces_weigh_by_terms(folder):
    a = make(folder / "a.h5", "--seed", 7, "--sequences", 1)
    b = make(folder / "b.h5", "--seed", 8, "--sequences", 3)
    parts = [json_cells(check_exports_agree(p, folder, "--metric", "similarity")) for p in (a, b)]
    both = json_cells(json.loads(analyze(a, b, "--metric", "similarity", "--json", "-")))
    for key, (value, terms) in both.items():
        values = [part[key] for part in parts]
        assert terms == sum(n for _, n in values)
        mean = sum(v * n for v, n in values if n) / terms
        assert abs(value - mean) < 1e-12


def test_matrices(folder):
    path = make(folder / "a.h5", "--seed", 9)
    trace = Trace(path)
    block = trace.blocks[1, 0]
    root = check_exports_agree(path, folder, "--matrix", "token", "--field", "internal", "--layer", 2,
                               "--head", 1, "--sequence", 1, "--block", 0, "--step", "2,4")
    a, b = (trace.read("/attention/internal", block[s])[2, 1] for s in (2, 4))
    expected = cosines(a[:, None], b[None])
    got = np.array(root["metrics"][0]["arrays"][0]["values"]).reshape(expected.shape)
    np.testing.assert_allclose(got, expected, atol=TOLERANCE)
    rows = analyze(path, "--matrix", "token", "--field", "internal", "--layer", 2, "--head", 1,
                   "--row-a", block[2], "--row-b", block[4], "--csv", "-")
    assert [c[0] for c in csv_cells(rows).values()] == got.ravel().tolist()
    # Heads concatenated, and step by step.
    root = check_exports_agree(path, folder, "--matrix", "token", "--layer", 0, "--sequence", 1,
                               "--block", 0)
    a, b = (np.moveaxis(trace.read("/attention/external", block[s])[0], 0, 1).reshape(4, -1)
            for s in (1, 2))
    got = np.array(root["metrics"][0]["arrays"][0]["values"]).reshape(4, 4)
    np.testing.assert_allclose(got, cosines(a[:, None], b[None]), atol=TOLERANCE)
    root = check_exports_agree(path, folder, "--matrix", "step", "--layer", 1, "--head", 2,
                               "--sequence", 1, "--block", 0)
    all_steps = [trace.read("/attention/external", block[s])[1, 2] for s in sorted(block)]
    expected = [[cosines(a, b).mean() for b in all_steps] for a in all_steps]
    got = np.array(root["metrics"][0]["arrays"][0]["values"]).reshape(len(block), -1)
    np.testing.assert_allclose(got, expected, atol=TOLERANCE)


def test_real_capture(folder):
    path = folder / "needle.h5"
    code, _, err = run("capture", MODEL, "--prompts", MODEL / "demo.jsonl", "--limit", 2, "--record",
                       "full", "-o", path, "--threads", 1, "--quiet")
    if code != 0:
        print("no real capture: " + err.strip())
        assert "module" in err or "LibTorch" in err, err
        return
    cells = check_values(path, check_exports_agree(path, folder))
    assert cells > 100
    print(f"models/needle: {cells} cells equal numpy's")


if __name__ == "__main__":
    require_binary()
    os.environ["OMP_WAIT_POLICY"] = "passive"
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            with temporary_folder() as folder:
                test(pathlib.Path(folder))
            print(f"{name}: ok")
