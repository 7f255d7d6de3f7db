"""`blockscope analyze` with every metric over traces larger than the memory it may take.
check_memory.py BENCH_ANALYSIS BENCH_SETS

The largest resident size is the kernel's (VmHWM, as wait4 reports it)."""

import os
import pathlib
import subprocess
import sys
import tempfile

MIB = 1 << 20
LIMIT = 512 * MIB


def peak_memory(binary, *arguments):
    pid = os.posix_spawn(binary, [binary, *map(str, arguments)], os.environ)
    _, status, usage = os.wait4(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code == 0, f"{arguments}: exit code {code}"
    return usage.ru_maxrss * 1024


def main():
    binary = os.environ.get("BLOCKSCOPE_BINARY", "")
    if not os.access(binary, os.X_OK):
        print(f"skipped: no binary at '{binary}'; build the target blockscope")
        return 77
    bench_analysis, bench_sets = sys.argv[1:3]
    with tempfile.TemporaryDirectory() as folder:
        outputs, sets = (pathlib.Path(folder) / name for name in ("outputs.h5", "sets.h5"))
        # An 8B model's arrays, and sets of a context of 32,768 tokens.
        subprocess.run([bench_analysis, "make", outputs, "--gib", "0.75"], check=True)
        subprocess.run([bench_sets, "make", "--output", sets, "--rows", "40"], check=True)
        assert outputs.stat().st_size > LIMIT
        for path in (outputs, sets):
            peak = peak_memory(binary, "analyze", path, "--quiet", "--json", path.with_suffix(".json"))
            print(f"{path.name}, {path.stat().st_size / MIB:.0f} MiB: largest resident size "
                  f"{peak / MIB:.0f} MiB")
            assert peak <= LIMIT, f"{path.name}: {peak / MIB:.0f} MiB"
    return 0


if __name__ == "__main__":
    sys.exit(main())
