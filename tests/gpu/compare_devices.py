"""`capture` on the CPU and on a GPU: the same tokens, and how far the rest of the trace is apart.

    python tests/gpu/compare_devices.py BLOCKSCOPE [--dtypes float32 bfloat16] [--device cuda]

Every policy, cache and recorder level on the models of this repository. float32: tokens and all decisions must be the
CPU's and numbers within 1e-4 of their largest, except in sets. There near-ties may be decided differently, at most one
position in a thousand. bfloat16: differences are printed and not checked. Prints Markdown; exit status 1 if something is not
as it must be. --preload LIBRARY runs the device's side with tests/support/emulated_cuda.h, to try this script.
"""

import argparse
import concurrent.futures
import os
import pathlib
import subprocess
import sys
import tempfile

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))
from trace_arrays import datasets  # noqa: E402

PROMPTS = ["--prompts", ROOT / "models/needle/demo.jsonl", "--limit", "2"]
TEXT = ["--prompt", "Text: Note: Tina lantern helmet. The wide child looked. Note: Bela vine raven. Question: Tina?"]
POLICIES = ("exact", "flashblock", "mage", "mage+flashblock", "sparsed", "quest", "oracle", "random", "recent")
TOLD = {"/model_byte", "/run_byte", "/model/json", "/run/json", "/steps/pass_time_ns"}
SETS = {"/sets/topk", "/sets/topk_token", "/sets/union_size"}
NORMS = {"/sets/key_norm", "/sets/value_norm"}


def cases():
    """Name, model, arguments."""
    for policy in POLICIES:
        text = policy + (",k=64" if policy not in ("exact", "flashblock") else "")
        yield f"policy {policy}", "needle", [*PROMPTS, "--policy", text, "--record", "full"]
    for level in ("trajectory", "summary", "sets", "outputs"):
        yield f"level {level}", "needle", [*PROMPTS, "--record", level]
    for cache in ("commit", "blockd"):
        yield f"cache {cache}, batch 2", "needle", [*PROMPTS, "--batch-size", "2", "--cache", cache, "--record", "full"]
    for cache in ("none", "prefix", "dual", "dllm-cache", "d2cache"):
        yield f"cache {cache}", "needle-bidirectional", [*TEXT, "--cache", cache, "--record", "full"]


def capture(options, device, model, arguments, dtype, output):
    environment = dict(os.environ)
    if device != "cpu" and options.preload:
        environment |= {"LD_PRELOAD": options.preload, "GOMP_SPINCOUNT": "1000"}
    arrays = ["--array-type", "f32"] if not {"trajectory", "summary", "sets"} & set(arguments) else []
    return subprocess.run([options.blockscope, "capture", ROOT / "models" / model, *arguments, *arrays, "--dtype", dtype,
                           "--device", device, "--threads", "4", "--strategy", "sequential", "--gen-length", "32", "-q", "-o",
                           output],
                          capture_output=True, text=True, env=environment)


def difference(host, device):
    """Share of equal decisions, largest relative difference of floats and its dataset, share of other set members."""
    decided = same = members = others = 0
    largest, where = 0.0, "-"
    if host.keys() != device.keys():
        return 0.0, float("inf"), "other datasets", 1.0
    for name, expected in host.items():
        got = device[name]
        if name in TOLD:
            continue
        if got.shape != expected.shape:
            return 0.0, float("inf"), f"shape of {name}", 1.0
        if name in NORMS:  # of the keys that the sets name
            same_key = host["/sets/topk"] == device["/sets/topk"]
            got, expected = np.where(same_key, got, 0), np.where(same_key, expected, 0)
        if expected.dtype.kind == "f":
            finite = np.isfinite(expected)
            if not np.array_equal(got[~finite], expected[~finite], equal_nan=True):
                return 0.0, float("inf"), f"NaN of {name}", 1.0
            if finite.any():
                scale = max(1.0, np.abs(expected[finite], dtype="f8").max())
                error = np.abs(got[finite].astype("f8") - expected[finite]).max() / scale
                largest, where = max((largest, where), (float(error), name))
        elif name in SETS:
            members, others = members + got.size, others + int((got != expected).sum())
        elif expected.dtype.kind in "iub":
            decided, same = decided + got.size, same + int((got == expected).sum())
    return same / max(1, decided), largest, where, others / max(1, members)


def compare(options, name, model, arguments, dtype, place):
    """Whether the case is as it must be, and its line of the table."""
    paths = [f"{place}-{device}.h5" for device in ("cpu", "device")]
    for device, path in zip(("cpu", options.device), paths):
        done = capture(options, device, model, arguments, dtype, path)
        if done.returncode != 0:
            return False, f"| {name} | {dtype} | failed on {device}: {done.stderr.strip().splitlines()[-1:]} | | | | |"
    same, largest, where, others = difference(*map(datasets, paths))
    for path in paths:
        pathlib.Path(path).unlink()
    right = dtype != "float32" or (same == 1.0 and largest <= 1e-4 and others <= 1e-3)
    return right, (f"| {name} | {dtype} | {100 * same:.2f} % | {largest:.1e} | {where} | {100 * others:.3f} % | "
                   f"{'' if right else 'FAILED'} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("blockscope")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--only", default="", help="cases whose name holds this")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 1) // 4), help="cases at a time")
    parser.add_argument("--preload")
    options = parser.parse_args()
    print("| case | type | equal decisions | largest difference, of the largest | in | other set members | |")
    print("|---|---|---|---|---|---|---|")
    chosen = [(*case, dtype) for case in cases() if options.only in case[0] for dtype in options.dtypes]
    failed = 0
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for right, line in pool.map(lambda case: compare(options, *case, f"{folder}/{chosen.index(case)}"), chosen):
            failed += not right
            print(line, flush=True)
    print(f"\nresult: devices_equal = {len(chosen) - failed} of {len(chosen)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
