"""The Markdown report of scripts/gpu_check.sh.

    python3 scripts/bench/gpu_report.py FOLDER

FOLDER holds NAME.title, .command, .status and .log of each step. Lines "result: NAME = VALUE" of the logs fill the
first table; results that no log has are "unmeasured". Needs no torch.
"""

import pathlib
import re
import subprocess
import sys

# What, compared with what, the target, and the names of the results.
TARGETS = [
    ("`split_attention`, N from 8k on", "best attention without the split", "at most 1.00 times", ["split_ratio"]),
    ("`split_attention`, N from 8k on", "copy bandwidth of the same run", "at least 80 %", ["split_of_copy"]),
    ("snapshot of A_out, L_out, A_in, L_in", "the same kernels without it", "at most 2 %", ["snapshot"]),
    ("`reuse_attention`, N = 128k", "`split_attention`", "at least 20 times faster", ["reuse_speedup"]),
    ("`reuse_attention`, 128k", "the same at 4k", "1.0 times", ["reuse_flat"]),
    ("`gather_attention`, k = 1,024 at 64k", "1,024 adjacent keys", "at most 1.5 times", ["gather_ratio"]),
    ("`block_topk` at 64k", "exact attention", "at most 1.0 times", ["topk_ratio"]),
    ("decoding with `summary`, 8B shape", "unrecorded", "at most 3 % a step", ["decode_summary_8b"]),
    ("decoding with `outputs`, 8B shape", "unrecorded", "at most 15 % a step", ["decode_outputs_8b"]),
    ("steps as CUDA graphs, 8B shape", "launched one by one", "at most 1.00 times", ["graphs_8b"]),
    ("time per output block at 128k, four methods", "a model of bytes and FLOPs", "within 1.25 times",
     ["block_model_1", "block_model_4"]),
    ("captures on both devices", "the CPU's", "all as they must be", ["devices_equal"]),
]
STATUS = {0: "passed", 77: "unmeasured"}


def results_of(text):
    found = dict(re.findall(r"^result: (\w+) = (.+)$", text, re.MULTILINE))
    # bench_split_shapes: the worst of its problems from 8k keys on.
    snapshots, length = [], 0
    for line in text.splitlines():
        if match := re.search(r"heads, .* N (\d+)$", line):
            length = int(match[1])
        elif (match := re.search(r"what it adds .* ([+-][\d.]+) %$", line)) and length >= 8192:
            snapshots.append(float(match[1]))
    if snapshots:
        found["snapshot"] = f"{max(snapshots):+.1f} % at worst"
    return found


def said(*command):
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return done.stdout.strip().splitlines()[0] if done.stdout.strip() else "unknown"
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def main():
    folder = pathlib.Path(sys.argv[1])
    steps = sorted(path.stem for path in folder.glob("*.status"))
    read = lambda name, kind: (folder / f"{name}.{kind}").read_text(errors="replace").strip()
    status = {name: int(read(name, "status")) for name in steps}
    results = {}
    for name in steps:
        if status[name] != 77:
            results |= results_of(read(name, "log"))
    print("# GPU check\n")
    print(f"GPU and driver: {said('nvidia-smi', '--query-gpu=name,driver_version,memory.total', '--format=csv,noheader')}. "
          f"Commit: {said('git', 'describe', '--always', '--dirty')}. Repeat: `scripts/gpu_check.sh`.\n")
    print("| what | against | target | measured |\n|---|---|---|---|")
    for what, against, target, keys in TARGETS:
        measured = ", ".join(results[key] for key in keys if key in results) or "unmeasured"
        print(f"| {what} | {against} | {target} | {measured} |")
    print("\n| step | |\n|---|---|")
    for name in steps:
        print(f"| {read(name, 'title')} | {STATUS.get(status[name], f'FAILED ({status[name]})')} |")
    for name in steps:
        log = re.sub(r"^result: .*\n?", "", read(name, "log"), flags=re.MULTILINE).strip()
        print(f"\n## {read(name, 'title')}\n\n    {read(name, 'command')}\n")
        if status[name] == 77:
            print(f"unmeasured: {log.splitlines()[-1] if log else 'skipped'}")
        elif "\n|---" in log:
            print(log)
        else:
            print("```\n" + (log or "(no output)") + "\n```")


if __name__ == "__main__":
    main()
