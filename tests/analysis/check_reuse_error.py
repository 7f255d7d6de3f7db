"""The metric reuse_error against float64 numpy on traces of odd shapes: every array, per step, per
head, per layer and over all, for tau on both sides of what the summaries hold.
Usage: check_reuse_error.py METRIC_DUMP MAKE_TRACE"""

import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import reuse_oracle as oracle

METRIC_DUMP, MAKE_TRACE = sys.argv[1:]
CASES = ["--unequal --interleaved --sequences 3 --steps 6 --blocks 3",
         "--layers 1 --heads 1 --kv-heads 1 --head-dim 1 --block-length 1 --steps 3 --set-size 1",
         "--steps 7 --blocks 4 --record-steps 1,2,4,5,6 --record-layers 0,2 --record-heads 1,3",
         "--prompt 0 --invalid 1 --steps 6 --head-dim 19 --array-type f32",
         "--nan 0.1 --inf 0.05 --zero 0.1 --steps 8",
         "--policy flashblock --tau 3 --shadow --steps 8",
         "--level summary --steps 6"]
TAUS = [1, 2, 3, 5, np.inf]


def values_of(sums, channels):
    """-> relative L2, mean |e|, cosine, positions."""
    if sums.terms == 0:
        return np.nan, np.nan, np.nan, 0
    squared, absolute, reference, dot = sums.values
    merged = squared + 2 * dot - reference
    return (np.sqrt(squared / reference), absolute / sums.terms / channels,
            dot / np.sqrt(reference * merged), sums.terms)


def check(name, got, wanted):
    got = np.array([np.nan if v == "nan" else v for v in got], float).reshape(wanted.shape)
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-7, equal_nan=True, err_msg=name)
    return int(np.isfinite(wanted).sum())


def check_trace(path, from_summary):
    flags = ["--from-summary"] if from_summary else []
    dump = subprocess.run([METRIC_DUMP, "reuse_error", path, "--taus", "1,2,3,5,inf", *flags],
                          check=True, capture_output=True, text=True).stdout
    result = json.loads(dump)["reuse_error"]
    trace = oracle.Trace(path)
    arrays, channels = result["arrays"], int(trace.file["/model"].attrs["head_dim"])
    steps = len(arrays["relative_l2"]["axes"][-1]["index"])
    shape = len(TAUS), len(trace.layers), len(trace.heads)
    by_step, by_head = np.zeros((4, *shape, steps)), np.zeros((4, *shape))
    by_layer = np.zeros((4, *shape[:2]))
    over_all, hidden = np.full((2, len(TAUS)), np.nan), {}
    for t, tau in enumerate(TAUS):
        whole, hidden[tau] = oracle.errors_of(trace, tau, from_summary)
        parts = [oracle.errors_of(trace, tau, from_summary, step + 1)[0] for step in range(steps)]
        total, fresh = oracle.Sums(), oracle.Sums()
        for layer in range(shape[1]):
            together = oracle.Sums()
            for head in range(shape[2]):
                none = (oracle.Sums(), oracle.Sums())
                at = (layer, head)
                for step, part in enumerate(parts):
                    by_step[:, t, layer, head, step] = values_of((part or {at: none})[at][0],
                                                                 channels)
                reused, recomputed = (whole or {at: none})[at]
                by_head[:, t, layer, head] = values_of(reused, channels)
                total.add(reused.values, reused.terms)
                together.add(reused.values, reused.terms)
                fresh.add(recomputed.values, recomputed.terms)
            by_layer[:, t, layer] = values_of(together, channels)
        over_all[0, t] = values_of(total, channels)[0]
        if whole is not None and total.terms + fresh.terms:
            fresh.add(total.values, total.terms)
            over_all[1, t] = values_of(fresh, channels)[0]
    count = 0
    for i, name in enumerate(("relative_l2", "mean_l1", "cosine")):
        count += check(name, arrays[name]["values"], by_step[i])
        count += check(name + "_head", arrays[name + "_head"]["values"], by_head[i])
        count += check(name + "_layer", arrays[name + "_layer"]["values"], by_layer[i])
    check("terms", arrays["relative_l2"]["terms"], by_step[3])
    check("terms", arrays["relative_l2_head"]["terms"], by_head[3])
    count += check("relative_l2_tau", arrays["relative_l2_tau"]["values"], over_all[0])
    count += check("relative_l2_all_steps", arrays["relative_l2_all_steps"]["values"], over_all[1])
    for tau, number in hidden.items():
        name = f"steps whose source for tau {tau} is hidden by a gap"
        assert result["left_out"].get(name, 0) == number, (name, number, result["left_out"])
    return count


def main():
    with tempfile.TemporaryDirectory(prefix="blockscope-reuse-error-") as folder:
        for i, flags in enumerate(CASES):
            path = pathlib.Path(folder) / f"{i}.h5"
            subprocess.run([MAKE_TRACE, path, *flags.split()], check=True)
            for from_summary in ([True] if "summary" in flags else [False, True]):
                count = check_trace(path, from_summary)
                assert count > 0, flags
                print(f"{count:5} values, {'summary' if from_summary else 'arrays '} {flags}")


if __name__ == "__main__":
    main()
