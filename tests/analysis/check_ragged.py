"""Metrics and calibration of traces whose layers differ in KV heads, head_dim and window, against numpy and h5py. Each
layer is cut to its own sizes first, so that padding can't help. check_ragged.py TOOLS, the folder of make_trace and
metric_dump; BLOCKSCOPE_BINARY is the command."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import h5py
import numpy as np

import trace_oracle as oracle

BINARY = os.environ.get("BLOCKSCOPE_BINARY", "")
RAGGED = ["--layers", "3", "--heads", "4", "--kv-heads", "4", "--head-dim", "10", "--layer-kv-heads", "4,4,2",
          "--layer-head-dim", "6,6,10", "--layer-window", "5,5,0", "--prompt", "9", "--steps", "5", "--set-size", "3",
          "--digest", 64 * "a"]
CASES = {"bf16": [], "noise": ["--noise"], "f32": ["--array-type", "f32", "--noise"], "invalid": ["--invalid", "1"],
         "some": ["--record-layers", "1,2", "--record-heads", "0,3", "--record-kv-heads", "0,1,3"],
         "small": ["--record-layers", "0,1"], "wide": ["--layer-window", "0,40,0"]}


class Ragged(oracle.Trace):
    """A layer's own values alone."""

    def __init__(self, path):
        super().__init__(path)
        model = self.file["/model"]
        self.own_kv, self.own_dim, self.windows = (model["layer_" + name][:][self.layers]
                                                   for name in ("kv_heads", "head_dim", "window"))
        self.num_heads = int(model.attrs["num_heads"])

    def keys(self, slot, row):
        window, context = self.windows[slot], int(self.context_length[row])
        return min(context, window - 1) if window else context

    def own(self, path, row, slot):
        values = self.file[path][row, slot]
        padded = values
        if path.startswith(("/kv/", "/sets/")):
            values = values[self.kv_heads < self.own_kv[slot]]
        if path in ("/attention/external", "/attention/internal", "/query/query", "/kv/key", "/kv/value"):
            values = values[..., :self.own_dim[slot]]
        rest = padded.size - values.size
        missing = (padded < 0) if padded.dtype.kind == "i" else np.isnan(padded)
        assert missing.sum() >= rest, f"{path}: padding without NaN"
        return values

    def valid_in(self, *rows):
        return np.all([self.valid[row].astype(bool) for row in rows], 0)


def cosine(a, b):
    a, b = a.astype(float), b.astype(float)
    return (a * b).sum(-1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1)


def compare(name, array, slot, wanted, tolerance=2e-5):
    """array [layer, head, step]; wanted: {(head, step): values}."""
    got, steps = array["values"][slot], array["axes"][2]["index"]
    count = 0
    for head in range(got.shape[0]):
        for at, step in enumerate(steps):
            values = wanted.get((head, int(step)))
            expected = np.mean(values) if values else np.nan
            np.testing.assert_allclose(got[head, at], expected, atol=tolerance, err_msg=f"{name} {slot} {head} {step}")
            count += bool(values)
    return count


def gather(trace, slot, of, rows):
    found = {}
    for group in rows:
        for head, value in enumerate(of(*group)):
            if np.isfinite(value):
                found.setdefault((head, int(trace.step[group[0]])), []).append(value)
    return found


def first_of(trace):
    return [(row, steps[1]) for steps in trace.blocks.values() for step, row in steps.items() if step > 1]


def check_metrics(tools, path, name):
    trace = Ragged(path)
    ours = {metric: result["arrays"] for metric, result in oracle.our_metrics(
        tools, "similarity,similarity_states,external_mass,recall,union_size,query_statistics,reuse_error", path,
        "--taus", "2,inf").items()}
    pairs = list(trace.pairs())
    count = 0
    for slot in range(len(trace.layers)):
        for array, path_of, keys in (
                ("similarity/similarity_external", "/attention/external", True),
                ("similarity/similarity_internal", "/attention/internal", False),
                ("similarity_states/similarity_query", "/query/query", False),
                ("similarity_states/similarity_key", "/kv/key", False),
                ("similarity_states/similarity_value", "/kv/value", False)):
            metric, array = array.split("/")

            def mean_cosine(row, after):
                valid = trace.valid_in(row, after)
                return cosine(trace.own(path_of, row, slot), trace.own(path_of, after, slot))[:, valid].mean(-1)

            used = [pair for pair in pairs if not keys or trace.keys(slot, pair[0]) and trace.keys(slot, pair[1])]
            count += compare(f"{name}: {array}", ours[metric][array], slot, gather(trace, slot, mean_cosine, used))

        def mass(row):
            valid = trace.valid_in(row)
            out, inside = (trace.file["/attention/lse_" + part][row, slot][:, valid]
                           for part in ("external", "internal"))
            return (1 / (1 + np.exp(inside - out.astype(float)))).mean(-1)

        rows = [(row,) for row in trace.recorded_rows() if trace.keys(slot, row)]
        count += compare(f"{name}: mass", ours["external_mass"]["external_mass"], slot, gather(trace, slot, mass, rows))

        def gap(row, first):
            valid = trace.valid_in(row, first)
            a, b = (trace.own("/query/query", one, slot)[:, valid].astype(float) for one in (row, first))
            unit = [x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (a, b)]
            return np.linalg.norm(unit[0] - unit[1], axis=-1).mean(-1)

        count += compare(f"{name}: query_gap", ours["query_statistics"]["query_gap"], slot,
                         gather(trace, slot, gap, first_of(trace)))
        count += check_sets(trace, ours, slot, name)
        count += check_reuse(trace, ours["reuse_error"], slot, name)
    return count


def check_sets(trace, ours, slot, name):
    size = trace.file.attrs["set_size"]
    many = [group for group in first_of(trace) if trace.keys(slot, group[0]) > size]

    def recall(row, first):
        now, then = (trace.own("/sets/topk", one, slot) for one in (row, first))
        lowest = trace.context_length[row] - trace.keys(slot, row)
        assert now.min() >= lowest and now.max() < trace.context_length[row]
        return [len(set(a) & set(b)) / size for a, b in zip(now.tolist(), then.tolist())]

    def union(row):
        sets = trace.own("/sets/topk_token", row, slot)[:, trace.valid_in(row)]
        return [len(set(one.ravel().tolist())) / size for one in sets]

    array = ours["recall"]["recall"]
    whole = {**array, "values": array["values"][..., -1]}  # of k
    rows = [(row,) for row in trace.recorded_rows() if trace.keys(slot, row) > size]
    return (compare(f"{name}: recall", whole, slot, gather(trace, slot, recall, many))
            + compare(f"{name}: union", ours["union_size"]["union_size"], slot, gather(trace, slot, union, rows)))


def merged(trace, row, slot, external, lse):
    inside = trace.own("/attention/internal", row, slot).astype(float)
    weight = 1 / (1 + np.exp(trace.file["/attention/lse_internal"][row, slot].astype(float) - lse))[..., None]
    return weight * external + (1 - weight) * inside


def check_reuse(trace, arrays, slot, name):
    """tau = inf: every later step takes the pair of step 1."""
    squared = absolute = reference = values = 0.0
    for row, first in first_of(trace):
        if not trace.keys(slot, row):
            continue
        valid = trace.valid_in(row, first)
        parts = [merged(trace, row, slot, trace.own("/attention/external", one, slot).astype(float),
                        trace.file["/attention/lse_external"][one, slot].astype(float))[:, valid]
                 for one in (row, first)]
        squared += ((parts[1] - parts[0]) ** 2).sum()
        absolute += np.abs(parts[1] - parts[0]).sum()
        reference += (parts[0] ** 2).sum()
        values += parts[0].size
    tau = [float(one) for one in arrays["relative_l2_layer"]["axes"][0]["index"]].index(np.inf)
    for array, wanted in (("relative_l2_layer", np.sqrt(squared / reference)), ("mean_l1_layer", absolute / values)):
        np.testing.assert_allclose(arrays[array]["values"][tau, slot], wanted, rtol=1e-4, err_msg=f"{name} {array}")
    return 2


def check_calibration(path, folder, name):
    """Mean cosines of heads, and savings: the layers have other numbers of keys, KV heads and channels."""
    trace = Ragged(path)
    file = os.path.join(folder, "reuse.json")
    subprocess.run([BINARY, "calibrate", path, "--gamma", "0.9", "--tau", "4", "-o", file, "--force"],
                   check=True, capture_output=True)
    found = json.loads(pathlib.Path(file).read_text())
    kv_heads, dims, windows = (trace.file["/model/layer_" + one][:] for one in ("kv_heads", "head_dim", "window"))
    assert found["model"]["layer_kv_heads"] == kv_heads.tolist()
    for slot, layer in enumerate(trace.layers):
        for at, head in enumerate(trace.heads):
            values = [cosine(trace.own("/attention/external", row, slot)[at],
                             trace.own("/attention/external", after, slot)[at])[trace.valid_in(row, after)]
                      for row, after in trace.pairs() if trace.keys(slot, after)]
            np.testing.assert_allclose(found["similarity"][layer][head], np.mean(values), atol=2e-5)
    contexts = [int(trace.context_length[row]) for steps in trace.blocks.values() for row in steps.values()]
    external = sum(min(context, window - 1) if window else context for context in contexts if context
                   for window, heads in zip(windows, kv_heads) for _ in range(heads))
    text = json.dumps(found)
    assert f'"external_keys": {external}' in text, (name, external, text[-600:])
    return len(trace.layers)


def check_others(path, folder, name):
    """Commands that take such a trace, and what its padding must never become."""
    for words in (["info", path], ["info", path, "--json"], ["analyze", path],
                  ["report", path, "-o", os.path.join(folder, "report.html"), "--force"],
                  ["export", path, "--format", "json", "-o", os.path.join(folder, "x.json"), "--force"],
                  ["repack", path, "-o", os.path.join(folder, "again.h5"), "--force"],
                  ["diff", path, os.path.join(folder, "again.h5")]):
        run = subprocess.run([BINARY, *words], capture_output=True, text=True)
        assert run.returncode == 0, (name, words, run.stdout[-500:], run.stderr)


def replaced(file, path, values):
    kept = dict(file[path].attrs)
    del file[path]
    file.create_dataset(path, data=np.array(values, "<i4"))
    for name in ("CLASS", "NAME"):
        if name in kept:
            file[path].attrs[name] = kept[name]


def set_noise(file, name, value):
    """Of the first noise of a canvas."""
    at = int(np.flatnonzero(file["/frames/step"][:] == -1)[0])
    file["/frames/" + name][at] = value


HOSTILE = {
    "a layer too few": (lambda f: replaced(f, "/model/layer_window", [5, 5]), "layer_window: expected 3 values"),
    "no values": (lambda f: replaced(f, "/model/layer_kv_heads", []), "layer_head_dim"),
    "no divisor": (lambda f: replaced(f, "/model/layer_kv_heads", [4, 3, 2]), "a divisor of the 4 query heads, got 3"),
    "too many KV heads": (lambda f: replaced(f, "/model/layer_kv_heads", [8, 4, 2]), "layer 0: expected 1 to 4, got 8"),
    "none the largest": (lambda f: replaced(f, "/model/layer_head_dim", [6, 6, 6]), "the largest of its layers, 6"),
    "a negative window": (lambda f: replaced(f, "/model/layer_window", [-1, 5, 0]), "expected 0 to"),
    "missing": (lambda f: f.__delitem__("/model/layer_head_dim"), "layer_head_dim"),
    "another version": (lambda f: f.attrs.modify("format_version", 2), "expected format_version 4"),
    "a newer version": (lambda f: f.attrs.modify("format_version", 5), "expected format_version up to 4"),
    "a mask": (lambda f: f["/model"].attrs.modify("mask_token_id", 3), "noise_canvas: expected a mask_token_id of -1"),
    "noise with a step": (lambda f: set_noise(f, "step", 0), "/frames/step"),
    "noise with confidence": (lambda f: set_noise(f, "confidence", 0.5), "/frames/step"),
    "fewer channels": (lambda f: replaced(f, "/model/layer_head_dim", [6, 10, 6]), None),  # looks like another model
}


def check_refused(tools, folder):
    path = oracle.make_trace(tools, folder, "whole", [*RAGGED, "--noise"])
    for what, (change, words) in HOSTILE.items():
        copy = os.path.join(folder, "hostile.h5")
        shutil.copyfile(path, copy)
        with h5py.File(copy, "r+") as file:
            change(file)
        run = subprocess.run([BINARY, "analyze", copy], capture_output=True, text=True)
        if words is not None:
            assert run.returncode == 1 and words in run.stderr and copy in run.stderr, (what, run.stderr)
            assert run.stderr.count("\n") == 1, (what, run.stderr)
        assert run.returncode in (0, 1), (what, run.returncode, run.stderr)
    for form in ("frames", "klass"):
        run = subprocess.run([BINARY, "export", path, "--format", form, "--sequence", "0"], capture_output=True,
                             text=True)
        assert run.returncode == 1 and "noise" in run.stderr and "--format json" in run.stderr, run.stderr
    print(f"{len(HOSTILE)} files refused")


def main():
    tools = sys.argv[1]
    with tempfile.TemporaryDirectory(prefix="blockscope-ragged-") as folder:
        for name, flags in CASES.items():
            path = oracle.make_trace(tools, folder, "ragged_" + name, [*RAGGED, *flags] if name != "wide" else [
                *RAGGED[:RAGGED.index("--layer-window")], *flags, *RAGGED[RAGGED.index("--layer-window") + 2:]])
            count = check_metrics(tools, path, name)
            if BINARY:
                count += check_calibration(path, folder, name)
                check_others(path, folder, name)
            assert count > 100, (name, count)
            print(f"{name}: {count} values")
        if BINARY:
            check_refused(tools, folder)


if __name__ == "__main__":
    main()
