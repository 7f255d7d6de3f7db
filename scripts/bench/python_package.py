#!/usr/bin/env python3
"""What the Python package costs: `analyze` beside the command, by turns, and import and open beside a bare Python.

    build/release/tests/make_trace trace.h5 --vast --vast-sequences 1 --real-rows 105   # 2 GB of values
    PYTHONPATH=build/release/python python scripts/bench/python_package.py trace.h5 [--rounds 5]

Both compute the similarity in a process of their own that has the trace in the page cache; the time of the package's
is that of the call, the command's that of the process. Least of all rounds."""

import argparse
import os
import subprocess
import sys
import time

BINARY = os.environ.get("BLOCKSCOPE_BINARY", "build/release/bin/blockscope")
ANALYZE = ("import sys, time, blockscope\nfrom blockscope import results\ntrace = blockscope.open(sys.argv[1])\n"
           "begin = time.perf_counter()\nfound = trace.analyze('similarity', progress=False)\n"
           "print(time.perf_counter() - begin)")
BARE = "pass"
IMPORT = "import blockscope"
OPEN = "import sys, blockscope; blockscope.open(sys.argv[1])"
H5PY = "import sys, h5py; h5py.File(sys.argv[1], 'r')"
XARRAY = "import sys, blockscope; blockscope.open(sys.argv[1]).tree"


def wall(*command):
    begin = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begin


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trace")
    parser.add_argument("--rounds", type=int, default=5)
    a = parser.parse_args()
    ours, command = [], []
    wall(BINARY, "analyze", a.trace, "--metric", "similarity", "-q", "--json", "-")  # into the page cache
    for _ in range(a.rounds):
        command.append(wall(BINARY, "analyze", a.trace, "--metric", "similarity", "-q", "--json", "-"))
        out = subprocess.run([sys.executable, "-c", ANALYZE, a.trace], check=True, capture_output=True, text=True)
        ours.append(float(out.stdout))
    on_disk = os.stat(a.trace).st_blocks * 512 / 1e9
    print(f"similarity of {os.path.getsize(a.trace) / 1e9:.2f} GB ({on_disk:.2f} GB on disk): "
          f"analyze() {min(ours):.3f} s, the command {min(command):.3f} s, {min(ours) / min(command):.3f}x")
    names = {"bare Python": BARE, "import blockscope": IMPORT, "import and open": OPEN, "h5py: import and open": H5PY,
             "import, open, tree (xarray)": XARRAY}
    best = {name: 1e9 for name in names}
    for _ in range(a.rounds):
        for name, code in names.items():
            best[name] = min(best[name], wall(sys.executable, "-c", code, a.trace))
    for name, seconds in best.items():
        print(f"{name}: {seconds:.3f} s")


if __name__ == "__main__":
    main()
