"""similarity, similarity_states, external_mass and the similarity matrices against numpy and h5py
on traces of odd shapes: test_similarity.py TOOLS, the folder of make_trace and metric_dump."""

import json
import subprocess
import sys
import tempfile
import warnings

import numpy as np

import trace_oracle as oracle

FROZEN = "tests/data/trace_schema_1.h5"
STATES = {"similarity_query": "/query/query", "similarity_key": "/kv/key",
          "similarity_value": "/kv/value", "similarity_hidden": "/hidden/hidden"}


def cosine(a, b):
    """Along the last axis; NaN for vectors of length 0, too."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    return (a * b).sum(-1) / (np.sqrt((a * a).sum(-1)) * np.sqrt((b * b).sum(-1)))


def pair_sums(trace, path, needs_prefix=False):
    sums, left_out, zero = oracle.StepSums(), 0, 0
    for row, after in trace.pairs():
        if needs_prefix and (trace.context_length[row] == 0 or trace.context_length[after] == 0):
            continue
        a, b = trace[path][row], trace[path][after]
        valid = (trace.valid[row] & trace.valid[after]).astype(bool)
        values = cosine(a, b)[..., valid]
        finite = (np.isfinite(a).all(-1) & np.isfinite(b).all(-1))[..., valid]
        left_out += (~finite).sum()
        zero += (finite & ~np.isfinite(values)).sum()
        sums.add(int(trace.step[row]), values)
    return sums, left_out, zero


def check_similarity(tools, path, name):
    trace = oracle.Trace(path)
    ours = oracle.our_metrics(tools, "similarity,similarity_states,external_mass", path)
    external = "/shadow/external" if trace.has("/shadow/external") else "/attention/external"
    result = ours["similarity"]
    left_out, zero = 0, 0
    for array, dataset, prefix in (("similarity_external", external, True),
                                   ("similarity_internal", "/attention/internal", False)):
        sums, bad, none = pair_sums(trace, dataset, prefix)
        sums.check(result["arrays"][array], f"{name}: {array}")
        left_out, zero = left_out + bad, zero + none
    check_left_out(trace, result["left_out"], left_out, zero, name)
    for array, dataset in STATES.items():
        sums, _, _ = pair_sums(trace, dataset)
        sums.check(ours["similarity_states"]["arrays"][array], f"{name}: {array}")
    check_mass(trace, ours["external_mass"], name)


def check_left_out(trace, left_out, non_finite, zero, name):
    gaps = rows = single = 0
    for steps in trace.blocks.values():
        single += len(steps) == 1
        for step, row in steps.items():
            before = steps.get(step - 1)
            gaps += bool(trace.recorded[row]) and step > 1 and not trace.recorded[before]
            rows += bool(trace.recorded[row]) and trace.context_length[row] == 0
    expected = {"values that are NaN or infinite": non_finite, "vectors of length 0": zero,
                "steps behind a gap": gaps, "blocks with one step": single,
                "rows without a prefix": rows}
    expected = {key: int(count) for key, count in expected.items() if count}
    assert left_out == expected, f"{name}: left out {left_out}, expected {expected}"


def check_mass(trace, result, name):
    shadow = trace.has("/shadow/lse_external")
    external = trace["/shadow/lse_external" if shadow else "/attention/lse_external"]
    internal = trace["/attention/lse_internal"]
    sums = oracle.StepSums()
    for row in trace.recorded_rows():
        if trace.context_length[row] == 0:
            continue
        l_out = external[row].astype(np.float64)[..., trace.valid[row].astype(bool)]
        l_in = internal[row].astype(np.float64)[..., trace.valid[row].astype(bool)]
        l_out, l_in = np.where(l_out == np.inf, np.nan, l_out), np.where(np.isinf(l_in), np.nan, l_in)
        top = np.maximum(l_out, l_in)
        out = np.exp(l_out - top)
        sums.add(int(trace.step[row]), out / (out + np.exp(l_in - top)))
    sums.check(result["arrays"]["external_mass"], f"{name}: external_mass")


def check_token_matrix(tools, path, name):
    trace = oracle.Trace(path)
    ours = oracle.our_metrics(tools, "token_matrix", path)["token_matrix"]["arrays"]
    external = "/shadow/external" if trace.has("/shadow/external") else "/attention/external"
    for array, dataset in (("token_matrix_external", external),
                           ("token_matrix_internal", "/attention/internal")):
        sums = oracle.StepSums()  # one "step": the mean is over all pairs
        length = trace.valid.shape[1]
        sums.add(0, np.full((len(trace.layers), length, length, 1), np.nan))
        for row, after in trace.pairs():
            if array.endswith("external") and trace.context_length[row] == 0:
                continue
            x, y = (trace[dataset][r].transpose(0, 2, 1, 3).reshape(len(trace.layers), length, -1)
                    for r in (row, after))
            values = cosine(x[:, :, None], y[:, None])
            values[:, ~trace.valid[row].astype(bool)] = np.nan
            values[:, :, ~trace.valid[after].astype(bool)] = np.nan
            sums.add(0, values[..., None])
        got = ours[array]
        sums.check({"values": got["values"][..., None], "terms": got["terms"][..., None],
                    "axes": [{"index": [0]}]}, f"{name}: {array}")


def check_from_summary(tools, path, name):
    """/summary is computed from values before they are rounded to bfloat16: a looser match, and an
    exact one of the terms."""
    arrays = oracle.our_metrics(tools, "similarity,external_mass", path)
    summary = oracle.our_metrics(tools, "similarity,external_mass", path, "--from-summary")
    for metric in arrays:
        for array in arrays[metric]["arrays"]:
            a, b = arrays[metric]["arrays"][array], summary[metric]["arrays"][array]
            np.testing.assert_array_equal(a["terms"], b["terms"], err_msg=name)
            np.testing.assert_allclose(a["values"], b["values"], atol=5e-3, err_msg=name)


def check_matrices(tools, path, name):
    trace = oracle.Trace(path)
    block, steps = max(trace.blocks.items(), key=lambda item: len(item[1]))
    recorded = [row for _, row in sorted(steps.items()) if trace.recorded[row]]
    if not recorded:
        return

    def ours(*words):
        out = subprocess.run([tools + "/matrix_dump", path, *map(str, words)], check=True,
                             capture_output=True, text=True).stdout
        return np.array(json.loads(out), dtype=float)

    for dataset in ("/attention/external", "/attention/internal", "/kv/key", "/hidden/hidden"):
        layer = len(trace.layers) - 1
        values = {row: trace[dataset][row, layer].astype(np.float64) for row in recorded}
        values = {row: v if v.ndim == 3 else v[None] for row, v in values.items()}  # [heads, B, D]
        for row in values:
            values[row][:, ~trace.valid[row].astype(bool)] = np.nan
        for head in (-1, values[recorded[0]].shape[0] - 1):
            heads = slice(None) if head < 0 else slice(head, head + 1)
            a, b = recorded[0], recorded[-1]
            x, y = (values[r][heads].transpose(1, 0, 2).reshape(len(trace.valid[r]), -1)
                    for r in (a, b))
            expected = cosine(x[:, None], y[None])
            np.testing.assert_allclose(ours("token", dataset, a, b, layer, head), expected,
                                       atol=1e-5, err_msg=f"{name}: token x token {dataset}")
            expected = np.full((len(steps), len(steps)), np.nan)
            for i, p in sorted(steps.items()):
                for j, q in sorted(steps.items()):
                    if p in values and q in values:
                        per_head = np.nanmean(cosine(values[p][heads], values[q][heads]), -1)
                        expected[i - 1, j - 1] = np.nanmean(per_head)
            np.testing.assert_allclose(ours("step", dataset, *block, layer, head), expected,
                                       atol=1e-5, err_msg=f"{name}: step x step {dataset}")


def check_engine_rules(tools, folder):
    """Any number of threads and any memory give the same bits; several traces are one long one."""
    path = oracle.make_trace(tools, folder, "interleaved")
    names = "similarity,similarity_states,external_mass"
    one = oracle.our_metrics(tools, names, path, "--threads", "1", check=False).stdout
    for flags in (["--threads", "2"], ["--threads", "7"], ["--memory", "8192", "--threads", "3"]):
        again = oracle.our_metrics(tools, names, path, *flags, check=False).stdout
        assert one and again == one, f"{flags}: other results than with one thread"

    other = oracle.make_trace(tools, folder, "other", ["--seed", "9", *oracle.SHAPES["interleaved"]])
    both = oracle.our_metrics(tools, "similarity", path, other)["similarity"]["arrays"]
    parts = [oracle.our_metrics(tools, "similarity", p)["similarity"]["arrays"]
             for p in (path, other)]
    for name, array in both.items():
        steps = array["values"].shape[-1]
        total, terms = 0.0, 0
        for part in parts:
            pad = [(0, 0), (0, 0), (0, steps - part[name]["values"].shape[-1])]
            count = np.pad(part[name]["terms"], pad)
            total = total + np.pad(np.nan_to_num(part[name]["values"]), pad) * count
            terms = terms + count
        np.testing.assert_array_equal(array["terms"], terms)
        np.testing.assert_allclose(array["values"], total / terms, atol=1e-12)


def check_selection(tools, folder):
    path = oracle.make_trace(tools, folder, "filtered")
    whole = oracle.our_metrics(tools, "similarity", path)["similarity"]["arrays"]
    part = oracle.our_metrics(tools, "similarity", path, "--layers", "2")["similarity"]["arrays"]
    for name in whole:
        assert part[name]["axes"][0]["index"] == [2]
        np.testing.assert_array_equal(part[name]["values"], whole[name]["values"][1:])
    refused = oracle.our_metrics(tools, "similarity", path, "--layers", "1", check=False)
    assert refused.returncode == 2 and "layer 1 was not recorded" in refused.stderr, refused.stderr
    blocks = [oracle.our_metrics(tools, "similarity", path, "--sequences", s, "--blocks", b)
              ["similarity"]["arrays"]["similarity_internal"] for s in "01" for b in "01"]
    terms = sum(array["terms"] for array in blocks)
    np.testing.assert_array_equal(terms, whole["similarity_internal"]["terms"])


def check_refusals(tools, folder):
    def error(*arguments):
        run = oracle.our_metrics(tools, *arguments, check=False)
        assert run.returncode in (1, 2), f"{arguments}: expected a refusal, got {run.stdout[:200]}"
        return run.stderr

    used = oracle.make_trace(tools, folder, "used", ["--policy", "flashblock"])
    for metric in ("similarity", "external_mass"):
        message = error(metric, used)
        assert "flashblock" in message and "--shadow" in message, message
    low = oracle.make_trace(tools, folder, "low", ["--level", "trajectory"])
    assert "--record summary" in error("similarity", low)
    assert "--record outputs" in error("similarity_states", low)
    plain = oracle.make_trace(tools, folder, "plain")
    wide = oracle.make_trace(tools, folder, "wide", ["--heads", "8"])
    message = error("similarity", plain, wide)
    assert "number of heads" in message and wide in message and plain in message, message
    twin = oracle.make_trace(tools, folder, "twin", ["--digest", "4567"])
    message = error("similarity", plain, twin)
    assert "digest" in message and "0123" in message and "4567" in message, message
    assert "similarity" in error("nonsense", plain)


def main(tools):
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    with tempfile.TemporaryDirectory() as folder:
        paths = {name: oracle.make_trace(tools, folder, name) for name in oracle.SHAPES}
        paths["frozen"] = FROZEN
        for name, path in paths.items():
            check_similarity(tools, path, name)
            if name not in ("spoiled", "frozen"):
                check_from_summary(tools, path, name)
            check_matrices(tools, path, name)
            check_token_matrix(tools, path, name)
        check_engine_rules(tools, folder)
        check_selection(tools, folder)
        check_refusals(tools, folder)
    print(f"{len(paths)} traces: similarity, similarity_states, external_mass, matrices agree")


if __name__ == "__main__":
    main(sys.argv[1])
