"""Metrics over sets, queries and decoding against sets_reference.py, on every trace given:
    check_sets.py METRIC_DUMP [TRACE...]
Without traces: the frozen trace of the repository, captures of the shipped model with odd filters
(where this build can decode), and damaged copies of them."""

import json
import math
import os
import shutil
import subprocess
import sys
import tempfile

import h5py
import numpy as np

import sets_reference as reference

TOLERANCE = 1e-5
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
checked = 0


def dump(tool, metric, paths, *flags):
    done = subprocess.run([tool, metric, *paths, *flags], capture_output=True, text=True)
    assert done.returncode == 0, f"{metric} {paths} {flags}: {done.stderr}"
    result = json.loads(done.stdout)
    return result[metric] if isinstance(result, dict) and metric in result else result


def refused(tool, metric, paths, *flags):
    done = subprocess.run([tool, metric, *paths, *flags], capture_output=True, text=True)
    assert done.returncode != 0, f"{metric} {paths} {flags}: expected an error"
    return done.stderr


def index_of(array, axis):
    found = next(a for a in array["axes"] if a["name"] == axis)
    return [int(float(i)) for i in found["index"]]


def expect(where, array, means, cells, steps_axis="step"):
    """`cells` maps a flat number of the array to the cell of `means`; both ways must agree."""
    global checked
    values = [float(v) for v in array["values"]]
    seen = set()
    for i, got in enumerate(values):
        cell = cells[i]
        seen.add(cell)
        want = means.mean(cell)
        same = (math.isnan(got) and math.isnan(want)) or abs(got - want) <= TOLERANCE * max(
            1.0, abs(want))
        assert same, f"{where} {cell}: expected {want}, got {got}"
        if array["terms"]:
            assert array["terms"][i] == means.terms[cell], (
                f"{where} {cell}: expected {means.terms[cell]} terms, got {array['terms'][i]}")
        checked += 1
    missing = [c for c, terms in means.terms.items() if terms and c not in seen]
    assert not missing, f"{where}: cells without a value: {missing[:5]}"


def cells_of(array, *axes):
    """Cells in the order of the values; an axis is a name (its index) or a length (slots)."""
    cells = [()]
    for axis in axes:
        steps = index_of(array, axis) if isinstance(axis, str) else range(axis)
        cells = [cell + (i,) for cell in cells for i in steps]
    return cells


def check_recall(tool, paths, traces):
    k = traces[0].k
    for flags, sizes in (((), sorted({2**i for i in range(20) if 2**i < k} | {k})),
                         (("--set-sizes", f"{k},1"), sorted({1, k}))):
        result = dump(tool, "recall", paths, *flags)
        want, trivial = reference.recall(traces, sizes)
        shape = (len(traces[0].layers), len(traces[0].kv_heads), "step", "k")
        for name, means in want.items():
            array = result["arrays"][name]
            assert index_of(array, "k") == sizes
            expect(f"{paths} {name}", array, means, cells_of(array, *shape))
        for size in sizes:
            got = result["left_out"].get(f"rows with N <= k (k = {size})", 0)
            assert got == trivial[size], f"{paths}: N <= {size}: expected {trivial[size]}, got {got}"
    assert "set size" in refused(tool, "recall", paths, "--set-sizes", str(k + 1))


def check_stored_recall(tool, paths, traces):
    """/sets/recall and /sets/covered, as the recorder wrote them."""
    result = dump(tool, "recall", paths, "--from-summary")
    recall, covered = reference.Means(), reference.Means()
    for trace in traces:
        for row, t, n, _ in trace.recorded():
            for layer in range(len(trace.layers)):
                for head in range(len(trace.kv_heads)):
                    if t > 1 and n > trace.k:
                        cell = (layer, head, t, trace.k)
                        recall.add(cell, trace.at("/sets/recall", row, layer)[head])
                        covered.add(cell, trace.at("/sets/covered", row, layer)[head])
    shape = (len(traces[0].layers), len(traces[0].kv_heads), "step", "k")
    for name, means in (("recall", recall), ("covered_by_own", covered)):
        array = result["arrays"][name]
        expect(f"{paths} stored {name}", array, means, cells_of(array, *shape))


def check_union(tool, paths, traces, *flags):
    result = dump(tool, "union_size", paths, *flags)
    means, sizes = reference.unions(traces, "--from-summary" not in flags)
    layers, heads, k = len(traces[0].layers), len(traces[0].kv_heads), traces[0].k
    array = result["arrays"]["union_size"]
    expect(f"{paths} union_size", array, means, cells_of(array, layers, heads, "step"))
    histogram = np.array(result["arrays"]["union_histogram"]["values"]).reshape(layers, 2, -1)
    quantiles = np.array([float(v) for v in result["arrays"]["union_quantiles"]["values"]])
    quantiles = quantiles.reshape(layers, 2, 4)
    overall = np.array([float(v) for v in result["arrays"]["union_quantiles_all"]["values"]])
    edges = 1.0 + 0.5 * np.arange(histogram.shape[2] + 1)
    for which, wanted in enumerate((lambda t: True, lambda t: t == 1)):
        every = []
        for layer in range(layers):
            ratios = np.array([s / k for at, t, s in sizes if at == layer and wanted(t)])
            every.extend(ratios)
            # numpy's last bin is closed; ours ends behind B, so none lies on its right edge
            counts = np.histogram(ratios, bins=edges)[0]
            assert (histogram[layer, which] == counts).all(), f"{paths} histogram layer {layer}"
            if ratios.size:
                want = np.quantile(ratios, [0.05, 0.5, 0.95, 1.0], method="inverted_cdf")
                assert np.allclose(quantiles[layer, which], want, atol=TOLERANCE)
            else:
                assert np.isnan(quantiles[layer, which]).all()
        if every:
            want = np.quantile(every, [0.05, 0.5, 0.95, 1.0], method="inverted_cdf")
            assert np.allclose(overall.reshape(2, 4)[which], want, atol=TOLERANCE)


def check_estimation(tool, paths, traces):
    result = dump(tool, "est_acc", paths)
    means = reference.estimation_accuracy(traces)
    layers, heads = len(traces[0].layers), len(traces[0].kv_heads)
    array = result["arrays"]["est_acc"]
    expect(f"{paths} est_acc", array, means, cells_of(array, 2, layers, heads, "step"))
    if all(trace.step["recorded"].all() for trace in traces):  # no gap: the same rows on both sides
        later = reference.Means()
        for cell, terms in means.terms.items():
            if cell[3] > 1:
                later.sums[cell[:2]] += means.sums[cell]
                later.terms[cell[:2]] += terms
        array = result["arrays"]["est_acc_later"]
        expect(f"{paths} est_acc_later", array, later, cells_of(array, 2, layers))


def expect_stages(where, array, stages, pick=lambda i: i):
    for i, means in enumerate(stages):
        total = means.over(lambda cell: ())
        got = float(array["values"][pick(i)])
        want = total.mean(())
        assert (math.isnan(got) and math.isnan(want)) or abs(got - want) <= TOLERANCE * max(
            1.0, abs(want)), f"{where} stage {i + 1}: expected {want}, got {got}"
        assert array["terms"][pick(i)] == total.terms[()], f"{where} stage {i + 1}: terms"


def check_queries(tool, paths, traces, *flags):
    result = dump(tool, "query_statistics", paths, *flags)
    stages = reference.query_statistics(traces, "--from-summary" in flags)
    layers, heads = len(traces[0].layers), len(traces[0].heads)
    shapes = {"kl": ("step",), "hidden_gap": (layers, "step"), "query_gap": (layers, heads, "step"),
              "query_block_gap": (layers, heads, "step"),
              "recall": (layers, len(traces[0].kv_heads), "step")}
    for (name, shape), means in zip(shapes.items(), stages):
        array = result["arrays"][name]
        expect(f"{paths} {flags} {name}", array, means, cells_of(array, *shape))
    expect_stages(f"{paths} {flags}", result["arrays"]["stages"], stages)
    return result


def check_decoding(tool, paths, traces):
    result = dump(tool, "decoding", paths, "--taus", "1,2,3,4")
    means, settled, blocks, below = reference.decoding(traces, (1, 2, 3, 4))
    arrays = result["arrays"]
    for name, key in (("tokens_by_step", "tokens"), ("confidence_by_step", "confidence"),
                      ("transferred_by_step", "M")):
        expect(f"{paths} {name}", arrays[name], means[key], cells_of(arrays[name], "step"))
    for i, key in enumerate(("tokens", "steps", "confidence", "M", "accuracy")):
        total = means[key].over(lambda cell: ())
        got, want = float(arrays["means"]["values"][i]), total.mean(())
        assert (math.isnan(got) and math.isnan(want)) or abs(got - want) <= TOLERANCE * abs(
            want), f"{paths} {key}: expected {want}, got {got}"
        assert arrays["means"]["terms"][i] == total.terms[()], f"{paths} {key}: terms"
    later = means["M"].over(lambda cell: ()).terms[()]
    for tau, got in zip((1, 2, 3, 4), arrays["share_below_tau"]["values"]):
        assert later == 0 or abs(float(got) - below[tau] / later) <= TOLERANCE
    got = dict(zip(cells_of(arrays["settled"], "step", traces[0].block_length),
                   arrays["settled"]["values"]))
    assert {c: n for c, n in got.items() if n} == dict(settled), f"{paths}: settled"
    got = dict(zip(index_of(arrays["blocks_by_steps"], "steps"),
                   arrays["blocks_by_steps"]["values"]))
    assert {c: n for c, n in got.items() if n} == dict(blocks), f"{paths}: blocks_by_steps"


def check_all(tool, paths):
    traces = [reference.Trace(path) for path in paths]
    level = traces[0].file.attrs["level"].decode()
    check_decoding(tool, paths, traces)
    if level == "trajectory":
        assert "--record" in refused(tool, "recall", paths)
        return
    check_queries(tool, paths, traces)
    check_queries(tool, paths, traces, "--from-summary")
    if not traces[0].has("/sets/topk"):
        assert "--record" in refused(tool, "recall", paths)
        return
    check_recall(tool, paths, traces)
    check_stored_recall(tool, paths, traces)
    check_union(tool, paths, traces)
    check_union(tool, paths, traces, "--from-summary")
    if traces[0].has("/sets/topk_token"):
        check_estimation(tool, paths, traces)
    else:
        assert "--record" in refused(tool, "est_acc", paths)


def main():
    tool, paths = sys.argv[1], sys.argv[2:]
    for path in paths:
        check_all(tool, [path])
        print(f"{path}: as numpy says")
    if len(paths) > 1:
        check_all(tool, paths)
        print("all together: as numpy says")
    print(f"{checked} values checked")


if __name__ == "__main__":
    main()
