#!/usr/bin/env python3
"""What the Python package costs: `analyze` compared with the command, in turns; import and open compared with a bare
Python.

    make_trace=build/release/tests/make_trace
    $make_trace two.h5 --vast --vast-sequences 1 --real-rows 74      # 2.1 GB of values, the rest of 5.5 GB are holes
    $make_trace large.h5 --vast --vast-sequences 12 --real-rows 1    # 66 GB: 1 GB on disk, the other arrays are holes
    $make_trace rows.h5 --level trajectory --sequences 4500 --blocks 6 --steps 6    # 193,500 rows, no arrays
    PYTHONPATH=build/release/python python scripts/bench/python_package.py two.h5 --open large.h5 rows.h5 [--rounds 7]

Every analysis is a separate process with the trace in the page cache. The time of the package's call is compared with
that of the command's process, which does the same work and writes JSON. The time of the whole Python process, which
imports xarray first, is also printed. Times are the least of all rounds, and the median of the rounds' ratios. Traces are
opened warm, and once more after their pages were dropped from the cache (cold)."""

import argparse
import os
import statistics
import subprocess
import sys
import time

BINARY = os.environ.get("BLOCKSCOPE_BINARY", "build/release/bin/blockscope")
ANALYZE = ("import sys, time, blockscope\nfrom blockscope import results\ntrace = blockscope.open(sys.argv[1])\n"
           "metric = sys.argv[2] if sys.argv[2:] else None\nbegin = time.perf_counter()\n"
           "found = trace.analyze(metric, progress={progress})\nprint(time.perf_counter() - begin)")
OPEN = {
    "bare Python": "pass",
    "import blockscope": "import blockscope",
    "import and open": "import sys, blockscope; blockscope.open(sys.argv[1])",
    "h5py: import and open": "import sys, h5py; h5py.File(sys.argv[1], 'r')",
    "import, open, tree (xarray)": "import sys, blockscope; blockscope.open(sys.argv[1]).tree",
}
TORCH = "import sys, blockscope; blockscope.open(sys.argv[1]); assert 'torch' not in sys.modules"


def run(*command):
    """Wall time of a process, and what it printed."""
    begin = time.perf_counter()
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return time.perf_counter() - begin, done.stdout


def sizes(path):
    found = os.stat(path)
    return f"{found.st_size / 1e9:.2f} GB ({found.st_blocks * 512 / 1e9:.2f} GB on disk)"


def analyses(trace, metric, rounds):
    flags = ["--metric", metric] if metric else []
    chosen = [metric] if metric else []

    def command():
        return run(BINARY, "analyze", trace, *flags, "-q", "--json", "-")[0]

    def package(progress):
        wall, out = run(sys.executable, "-c", ANALYZE.format(progress=progress), trace, *chosen)
        return float(out), wall

    command()  # into the page cache
    ours, shown, whole, theirs = [], [], [], []
    for _ in range(rounds):
        theirs.append(command())
        for progress, calls in (("False", ours), ("True", shown)):  # True: a line on standard error
            call, wall = package(progress)
            calls.append(call)
        whole.append(wall)
    ratio = statistics.median(a / b for a, b in zip(ours, theirs))
    print(f"{metric or 'every metric'} of {sizes(trace)}: analyze() {min(ours):.3f} s, with its progress line "
          f"{min(shown):.3f} s, the command {min(theirs):.3f} s: {min(ours) / min(theirs):.3f}x (median {ratio:.3f}x); "
          f"the whole process {min(whole):.3f} s")


def drop_from_cache(path):
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def openings(trace, rounds):
    best = dict.fromkeys(OPEN, 1e9)
    cold = []
    for _ in range(rounds):
        for name, code in OPEN.items():
            best[name] = min(best[name], run(sys.executable, "-c", code, trace)[0])
        drop_from_cache(trace)
        cold.append(run(sys.executable, "-c", OPEN["import and open"], trace)[0])
    run(sys.executable, "-c", TORCH, trace)
    rows = run(sys.executable, "-c", "import sys, blockscope; print(blockscope.open(sys.argv[1]).num_rows)", trace)[1]
    print(f"{os.path.basename(trace)}, {int(rows):,} rows, {sizes(trace)}:")
    for name, seconds in best.items():
        print(f"  {name}: {seconds:.3f} s")
    print(f"  import and open, cold: {min(cold):.3f} to {max(cold):.3f} s")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trace", help="to analyse")
    parser.add_argument("--open", nargs="*", default=[], metavar="TRACE", help="to open")
    parser.add_argument("--rounds", type=int, default=7)
    a = parser.parse_args()
    for metric in ("similarity", None):
        analyses(a.trace, metric, a.rounds)
    for trace in a.open or [a.trace]:
        openings(trace, a.rounds)


if __name__ == "__main__":
    main()
