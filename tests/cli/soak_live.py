"""Reads traces while `capture` writes them, by every command that reads, and from Python: none may call
a healthy file damaged. h5py looks at the same file before and after and is the reference for the counts.
test_live_reading.py runs a few hundred; a soak is
BLOCKSCOPE_BINARY=... python tests/cli/soak_live.py [--reads 10000] [--seed N] [--jobs 2] [--package FOLDER]"""

import argparse
import collections
import concurrent.futures
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import time

import h5py

from capture_harness import (BINARY, MODELS, require_binary, run, start, temporary_folder, write_checkpoint,
                             write_prompts)

# Errors that a reader may give for a healthy trace that holds little yet, or no longer has its first name.
TOO_EARLY = ("expected at least one finished sequence to replay", "shows no numbers", "this build lacks",
             "calibration needs two recorded steps of one block with a prefix, and there are none",
             "nothing to report: 0 rows committed")
EARLY = collections.Counter()
LEVELS = ("trajectory", "summary", "sets", "full")
PYTHON = """
import sys, time
import blockscope
path, seconds = sys.argv[1], float(sys.argv[2])
end, reads = time.monotonic() + seconds, 0
first = blockscope.open(path)
while time.monotonic() < end:
    with blockscope.open(path) as trace:  # while the first one is open
        before = first.num_rows
        first.refresh()
        assert first.num_rows >= before
        for open_trace in (first, trace):
            tree = open_trace.tree
            assert tree["steps"]["step"].size >= before
            if open_trace.num_sequences:
                last = open_trace.num_sequences - 1
                open_trace.sequences[last], open_trace.frame(last, 0), open_trace.deltas(last)
            reads += 1
print(reads)
"""


def settings(root, seed):
    """-> arguments of capture, one list for each kind of trace"""
    model = write_checkpoint(root / "model")
    prompts = write_prompts(root / "prompts.jsonl", 1000, seed, 3, 60, gen_length=40)
    short = write_prompts(root / "short.jsonl", 1000, seed, 3, 20, gen_length=8)
    plain = [[model, "--prompts", prompts, "--record", level, "--batch-size", size]
             for level in LEVELS for size in (1, 5)]
    both = [MODELS / "needle-bidirectional", "--prompts", short, "--block-length", 4, "--cache"]
    return [*plain, [*both, "dual", "--record", "summary"], [*both, "none", "--strategy", "wino"]]


def commands(path, folder, level, chance):
    """One reading of the trace at random."""
    out = folder / f"out{chance.randrange(10**9)}"
    kinds = [["info", path, "--json"], ["info", path, "--datasets"], ["export", path],
             ["export", path, "--format", "frames"], ["diff", path, path],
             ["diff", path, path, "--ignore-aborted"], ["analyze", path, "--threads", 1],
             ["repack", path, "--repair", "-o", f"{out}.h5", "-q"],
             ["report", path, "-o", f"{out}.html", "--threads", 1],
             ["calibrate", path, "-o", f"{out}.json", "--gamma", 0.5]]
    weights = [6, 3, 3, 3, 2, 2, 2, 2, 1, 1 if level != "trajectory" else 0]
    return chance.choices(kinds, weights)[0]


def capture_replay(path, model, out):
    return ["capture", model, "--replay", path, "-o", f"{out}.h5", "-q", "--threads", 1]


def view(path, out, chance):
    panel = chance.choice(("trajectory", "run", "curves"))
    return ["view", path, "--screenshot", f"{out}.png", "--panel", panel, "--width", 640, "--height", 480]


def rows_by_h5py(path):
    """The committed rows, or None when the file is being renamed."""
    for name in (path, f"{path}.partial"):
        try:
            with h5py.File(name, "r", swmr=True) as trace:
                return int(trace["/steps/committed"][0])
        except OSError:
            continue
    return None


def complaint_of(command, before, after, code, out, err):
    """What is wrong with the answer of a command."""
    errors = [line for line in err.splitlines() if line.startswith("blockscope: error: ")]
    if not errors:
        if code != 0 and not (command[0] == "diff" and code == 1):
            return f"exit code {code}: {err}"
        if command[0] == "info" and "--json" in command and None not in (before, after):
            rows = json.loads(out)["rows"]["committed"]
            if not before <= rows <= after:
                return f"h5py saw {before} rows before and {after} after, info {rows}"
        return None
    word = next((word for word in TOO_EARLY if word in errors[0] and "damaged" not in errors[0]), None)
    EARLY[word] += word is not None
    return None if word else errors[0]


def read_once(path, folder, arguments, seed):
    """-> the complaint, or None"""
    chance = random.Random(seed)
    level = arguments[arguments.index("--record") + 1] if "--record" in arguments else "trajectory"
    command = commands(path, folder, level, chance)
    out = folder / f"more{seed}"
    kind = chance.random()
    if kind < 0.02:
        command = capture_replay(path, arguments[0], out)
    elif kind < 0.04:
        command = view(path, out, chance)
    before = rows_by_h5py(path)
    done = subprocess.run([BINARY, *map(str, command)], capture_output=True, text=True, timeout=300)
    found = complaint_of(command, before, rows_by_h5py(path), done.returncode, done.stdout, done.stderr)
    return found and f"seed {seed}: {' '.join(map(str, command))}: {found}"


def read_in_python(path, package, seconds):
    """-> reads, complaints"""
    environment = os.environ | {"PYTHONPATH": str(package)}
    done = subprocess.run([sys.executable, "-c", PYTHON, str(path), str(seconds)], capture_output=True, text=True,
                          env=environment, timeout=300)
    if done.returncode != 0:
        return 0, [f"Python: {done.stderr.strip()}"]
    return int(done.stdout), []


def one_run(folder, arguments, flags, seed, pool):
    """Captures for some seconds and reads all the while. -> reads, complaints"""
    chance = random.Random(seed)
    path = folder / "live.h5"
    partial = pathlib.Path(f"{path}.partial")
    writer = start("capture", *arguments, "-o", path, "-q", "--threads", 1, "--force", "--limit",
                   chance.randrange(20, 400))
    while not partial.exists() and writer.poll() is None:
        time.sleep(0.001)
    end = time.monotonic() + flags.seconds
    reads, complaints, number, waiting = 0, [], 0, set()
    python = pool.submit(read_in_python, path, flags.package, 2) if flags.package else None
    while time.monotonic() < end and writer.poll() is None and reads < flags.reads:
        number += 1
        waiting.add(pool.submit(read_once, path, folder, arguments, seed * 10**6 + number))
        if len(waiting) < flags.jobs:
            continue
        done, waiting = concurrent.futures.wait(waiting, return_when=concurrent.futures.FIRST_COMPLETED)
        reads += len(done)
        complaints += [future.result() for future in done if future.result()]
    writer.terminate()  # finishes its step and keeps the trace
    _, err = writer.communicate()
    assert writer.returncode in (0, 143), err
    done, _ = concurrent.futures.wait(waiting)
    reads += len(done)
    complaints += [future.result() for future in done if future.result()]
    if python:
        more, found = python.result()
        reads, complaints = reads + more, complaints + found
    return reads, complaints


def soak(flags):
    """-> reads, false alarms"""
    reads = runs = 0
    failures = []
    with temporary_folder() as name, concurrent.futures.ThreadPoolExecutor(flags.jobs + 1) as pool:
        root = pathlib.Path(name)
        kinds = settings(root, flags.seed)
        while reads < flags.reads:
            folder = root / f"run{runs}"
            folder.mkdir()
            more, found = one_run(folder, kinds[runs % len(kinds)], flags, flags.seed + runs, pool)
            reads, runs, failures = reads + more, runs + 1, failures + found
            shutil.rmtree(folder)
            print(f"{reads} reads of {runs} live traces, {len(failures)} false alarms", flush=True)
            print("".join(f"  {line}\n" for line in found), end="", flush=True)
    print("too early for an answer:", dict(+EARLY))
    return reads, failures


def parse(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reads", type=int, default=10000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=6.0, help="that a trace is written for, at most")
    parser.add_argument("--package", type=pathlib.Path, help="folder of the Python package, to read with it too")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    require_binary()
    chosen = parse()
    print(f"seed {chosen.seed}", flush=True)
    sys.exit(1 if soak(chosen)[1] else 0)
