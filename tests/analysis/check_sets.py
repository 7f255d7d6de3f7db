"""Metrics over sets, queries and decoding against sets_reference.py, on every trace given:
    check_sets.py METRIC_DUMP [--maker MAKE_TRACE] [TRACE...]
Without traces: the frozen trace of the repository, made ones of odd shapes, captures of the shipped model with odd filters
(where this build can decode), and damaged copies of them."""

import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time

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
            # numpy's last bin is closed; ours ends after B, so no value is on its right edge
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


def check_selection(tool, paths, traces):
    result = dump(tool, "selection", paths)
    layers = len(traces[0].layers)
    columns = {"covered": len(traces[0].heads), "output_error": len(traces[0].heads)}
    wanted = reference.selection(traces)
    for name, array in result["arrays"].items():
        heads = columns.get(name, len(traces[0].kv_heads))
        expect(f"{paths} {name}", array, wanted[name], cells_of(array, layers, heads, "step"))
    has = [name for name, means in wanted.items() if means.terms]
    assert has and all(name in result["arrays"] for name in has), (has, list(result["arrays"]))
    return result["arrays"]


def check_covered(tool, path):
    """The covered probability, from LSEs, is what the stored probabilities add up to."""
    trace = reference.Trace(path)
    array = check_selection(tool, [path], [trace])["covered"]
    values = np.array([float(v) for v in array["values"]])
    layers, heads, kv_heads = len(trace.layers), len(trace.heads), len(trace.kv_heads)
    values = values.reshape(layers, kv_heads, heads // kv_heads, -1).mean(axis=2)
    steps = index_of(array, "step")
    means = reference.covered_by_sets(trace)
    assert means.terms
    for (layer, head, t) in means.terms:
        got = values[layer, head, steps.index(t)]
        assert abs(got - means.mean((layer, head, t))) < 1e-4, (layer, head, t, got)


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
                      ("changed_by_step", "M")):
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
    if traces[0].has("/attention/selected") and traces[0].has("/shadow/output_error"):
        check_selection(tool, paths, traces)
    else:
        assert "HINT" in refused(tool, "selection", paths)
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


def capture(folder, name, *flags, model="models/needle", prompts=2, wait=True):
    """A trace of the shipped model, or None where this build can't decode."""
    path = os.path.join(folder, name + ".h5")
    if not os.path.exists(os.environ.get("BLOCKSCOPE_BINARY", "")):
        return None
    words = [os.environ.get("BLOCKSCOPE_BINARY", ""), "capture", os.path.join(ROOT, model), "-q",
             "--prompts", os.path.join(ROOT, "models/needle/demo.jsonl"), "--limit", str(prompts),
             "--threads", "1", "-o", path, *flags]
    environment = dict(os.environ, OMP_WAIT_POLICY="passive")
    if not wait:
        return subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL)
    done = subprocess.run(words, capture_output=True, text=True, env=environment)
    return path if done.returncode == 0 else None


def cut_capture(folder):
    """What a run leaves that was killed in the middle."""
    running = capture(folder, "cut", "--record", "sets", "--set-size", "8", prompts=20, wait=False)
    partial = os.path.join(folder, "cut.h5.partial")
    for _ in range(600):
        time.sleep(0.1)
        if running.poll() is not None:
            break
        try:
            with h5py.File(partial, "r", swmr=True) as trace:
                if trace["/steps/committed"][0] > 25:
                    break
        except OSError:
            pass  # does not exist yet, or its header is being written
    running.kill()
    running.wait()
    return partial


def damage(path, folder):
    """A copy with values that are not finite, and S4 above S3."""
    copy = os.path.join(folder, "damaged.h5")
    shutil.copy(path, copy)
    with h5py.File(copy, "r+") as trace:
        later = np.flatnonzero(trace["/steps/step"][:] > 1)
        trace["/sets/probability"][later[0], 0, 0, 0] = math.nan
        trace["/summary/query_gap"][later[1], 1, 0] = math.inf
        trace["/summary/hidden_gap"][later[2], 0] = math.nan
        trace["/prediction/kl_step1"][later[3], :] = math.inf
        trace["/sets/recall"][later[4], 0, 0] = math.nan
    return copy


def check_captures(tool, folder):
    full = ("--record", "full")
    odd = {
        "k1": (*full, "--set-size", "1", "--gen-length", "8"),
        "gaps": (*full, "--set-size", "8", "--gen-length", "16", "--steps", "1,3,5",
                 "--batch-size", "2"),
        "no_step_1": (*full, "--set-size", "8", "--gen-length", "16", "--steps", "2-4", "--layers",
                      "1,4", "--heads", "0-2"),
        "trivial": (*full, "--set-size", "290", "--gen-length", "8", "--layers", "2"),
        "parallel": ("--record", "sets", "--strategy", "threshold,threshold=0.6",
                     "--batch-size", "2"),
        "summary": ("--record", "summary", "--gen-length", "8"),
        "float32": ("--record", "outputs", "--array-type", "f32", "--set-size", "5", "--layers",
                    "0", "--gen-length", "8"),
    }
    paths = {name: capture(folder, name, *flags) for name, flags in odd.items()}
    paths["one_token"] = capture(folder, "one_token", *full, "--set-size", "16", "--gen-length",
                                 "6", model="models/needle/backbone")
    for path in paths.values():
        check_all(tool, [path])
    check_all(tool, [paths["k1"], capture(folder, "k1_more", *odd["k1"], prompts=1)])
    check_all(tool, [cut_capture(folder)])
    damaged = damage(paths["k1"], folder)
    check_all(tool, [damaged])
    left_out = [dump(tool, metric, [damaged], *flags)["left_out"] for metric, *flags in (
        ("recall",), ("recall", "--from-summary"), ("query_statistics", "--from-summary"))]
    assert [found.get("values that are NaN or infinite") for found in left_out] == [3, 1, 2], left_out
    assert left_out[2]["predictions whose KL is infinite"] == 16, left_out
    check_comparison(tool, folder)
    check_policies(tool, folder)


def check_policies(tool, folder):
    """Captures under sparse policies, with and without sets of their own."""
    policies = {
        "mage": ("--policy", "mage,k=12", "--record", "full", "--set-size", "16"),
        "wide": ("--policy", "mage,k=24", "--record", "sets", "--set-size", "8",
                 "--batch-size", "2", "--denoising-steps", "5"),
        "residual": ("--policy", "mage+flashblock,k=9,exact_layers=2", "--record", "sets",
                     "--heads", "2-5"),
        "quest": ("--policy", "quest,k=20,page=8", "--record", "summary"),
        "sparsed": ("--policy", "sparsed,density=0.1", "--record", "full", "--layers",
                    "0,3", "--steps", "4-9"),
    }
    for name, flags in policies.items():
        check_all(tool, [capture(folder, name, *flags, "--shadow", "--gen-length", "12")])
    # The set of the run is taken while there is no prefix: later blocks read no key at all.
    nothing = os.path.join(folder, "nothing.h5")
    subprocess.run([os.environ["BLOCKSCOPE_BINARY"], "capture", os.path.join(ROOT, "models/needle"), "-q",
                    "--input-ids", "5,6,7", "--gen-length", "29", "--no-stop", "--policy", "sparsed,k=4",
                    "--shadow", "--record", "sets", "-o", nothing], check=True, stdout=subprocess.DEVNULL)
    check_all(tool, [nothing])
    covered = dump(tool, "selection", [nothing])["arrays"]["covered"]
    assert sum(covered["terms"]) > 0 and max(
        float(v) for v in covered["values"] if v != "nan") == 0.0, covered
    assert "--shadow" in refused(tool, "selection", [capture(
        folder, "blind", "--policy", "recent,k=4", "--gen-length", "4")])
    check_covered(tool, capture(folder, "whole", "--policy", "random,k=30", "--shadow",
                                "--record", "sets", "--set-size", "320", "--gen-length", "8"))


def check_comparison(tool, folder):
    """The shipped model compared with its backbone, which replays fewer of its steps."""
    flags = ("--record", "full", "--set-size", "8", "--layers", "0,5")
    trained = capture(folder, "trained", *flags, "--gen-length", "8")
    backbone = os.path.join(folder, "backbone.h5")
    subprocess.run([os.environ["BLOCKSCOPE_BINARY"], "capture", "-q", "--replay", trained,
                    os.path.join(ROOT, "models/needle/backbone"), "--mask-token-id", "1018",
                    "--block-length", "16", "--threads", "1", *flags, "--steps", "1-9", "-o",
                    backbone], check=True, env=dict(os.environ, OMP_WAIT_POLICY="passive"))
    result = dump(tool, "query_comparison", [trained], "--backbone", backbone)
    sides = [reference.Trace(path) for path in (trained, backbone)]
    assert sides[0].rows == sides[1].rows, "a replay has the rows of what it replays"
    both = np.logical_and(*(side.step["recorded"] for side in sides))
    for which, side in enumerate(sides):
        stages = reference.query_statistics([side], keep=lambda trace, row: both[row])
        expect_stages(side.path, result["arrays"]["stages"], stages, lambda i: 2 * i + which)
    values = np.array(result["arrays"]["stages"]["values"], float).reshape(-1, 2)
    change = np.array(result["arrays"]["relative_change"]["values"], float)
    assert np.allclose(change, (values[:, 0] - values[:, 1]) / abs(values[:, 1]), atol=TOLERANCE)
    assert result["left_out"]["trained: steps without a partner"] == int(
        ((sides[0].step["kind"] == 1) & ~both.astype(bool)).sum())


def check_made(tool, maker, folder):
    """Odd shapes; the last two, cut off and resumed, also together."""
    odd = (("--block-length", "1", "--set-size", "3"),
           ("--heads", "1", "--kv-heads", "1", "--layers", "1", "--steps", "1"),
           ("--unequal", "--interleaved", "--set-size", "6"), ("--invalid", "2"),
           ("--prompt", "0", "--set-size", "4"), ("--record-steps", "1,3", "--set-size", "4"),
           ("--set-normaliser", "prefix+block", "--set-size", "5", "--array-type", "f32"),
           ("--nan", "0.05", "--inf", "0.02", "--zero", "0.05", "--set-size", "4"),
           ("--unequal", "--partial", "--set-size", "4"), ("--aborted", "--set-size", "4"))
    paths = []
    for i, flags in enumerate(odd):
        paths.append(os.path.join(folder, f"made_{i}.h5"))
        subprocess.run([maker, paths[-1], *flags], check=True)
        if not os.path.exists(paths[-1]):
            paths[-1] += ".partial"
        check_all(tool, [paths[-1]])
    check_all(tool, paths[-2:])


def main():
    tool, paths = sys.argv[1], sys.argv[2:]
    maker = None
    if paths[:1] == ["--maker"]:
        maker, paths = paths[1], paths[2:]
    for path in paths:
        check_all(tool, [path])
    if len(paths) > 1:
        check_all(tool, paths)
    if not paths:
        check_all(tool, [os.path.join(ROOT, "tests/data/trace_schema_1.h5")])
        with tempfile.TemporaryDirectory() as folder:
            if maker:
                check_made(tool, maker, folder)
            if capture(folder, "probe", "--record", "trajectory", "--gen-length", "1", prompts=1):
                check_captures(tool, folder)
            else:
                print("this build can't decode: the frozen trace only")
    print(f"{checked} values as numpy says")


if __name__ == "__main__":
    main()
