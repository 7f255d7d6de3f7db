"""Kills `capture` at random moments, many times: every acknowledged row must be there, the run must
resume, and the resumed trace must equal the one that was never cut. Longer than a test should take;
BLOCKSCOPE_BINARY=... python tests/cli/soak_kills.py [--kills 1000] [--seed N] [--jobs 2]"""

import argparse
import concurrent.futures
import pathlib
import random
import subprocess
import sys
import time

import h5py
import numpy as np

from capture_harness import BINARY, run, start, temporary_folder, write_checkpoint, write_prompts

LEVELS = ("trajectory", "summary", "sets", "outputs", "full")


def whole(folder, model, prompts, arguments):
    """The trace of an uninterrupted run, and its duration."""
    path = folder / "whole.h5"
    begin = time.monotonic()
    code, _, err = run("capture", model, "--prompts", prompts, *arguments, "-o", path, "-q")
    assert code == 0, err
    return path, time.monotonic() - begin


def problems_of(partial):
    """What is wrong with the rows that the file says are committed."""
    with h5py.File(partial, "r", swmr=True) as trace:
        rows = int(trace["/steps/committed"][0])
        if rows == 0:
            return []
        steps, kinds = trace["/steps/step"][:rows], trace["/steps/kind"][:rows]
        if len(steps) != rows or np.any((steps < 1) & (kinds == 1)):
            return ["rows that were never written"]
        if "/attention/external" in trace:
            later = np.flatnonzero((kinds == 1) & (trace["/steps/context_length"][:rows] > 0))
            values = trace["/attention/external"][later[-1]] if len(later) else np.ones(1)
            if not np.any(np.asarray(values, dtype=np.float32)):
                return ["a row of zeros"]
    return []


def one(job):
    """Kills one run up to three times, ends it, compares. Returns (kills, complaints)."""
    folder, model, prompts, arguments, reference, seconds, seed = job
    chance = random.Random(seed)
    path = folder / f"cut{seed}.h5"
    partial = pathlib.Path(f"{path}.partial")
    kills, complaints = 0, []
    for attempt in range(chance.randint(1, 3)):
        process = start("capture", model, "--prompts", prompts, *arguments, "-o", path, "-q", "--resume")
        time.sleep(chance.uniform(0.0, seconds))
        if process.poll() is None:
            process.kill()
            kills += 1
        process.communicate()
        if path.exists():
            break
        if partial.exists() and partial.stat().st_size > 0:
            complaints += [f"seed {seed}, kill {attempt}: {p}" for p in problems_of(partial)]
    code, _, err = run("capture", model, "--prompts", prompts, *arguments, "-o", path, "-q", "--resume")
    if code != 0:
        complaints.append(f"seed {seed}: resume: {err.strip()}")
    else:
        code, out, err = run("diff", path, reference, "--ignore-aborted", "--ignore-timing")
        if code != 0:
            complaints.append(f"seed {seed}, {path}: {out}{err}")
            return kills, complaints
        path.unlink()
    return kills, complaints


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", type=int, help="one of the ten settings")
    parser.add_argument("--keep", type=pathlib.Path, help="empty folder for the traces, kept")
    flags = parser.parse_args()
    print(f"seed {flags.seed}", flush=True)
    kills, runs, complaints = 0, 0, []
    with temporary_folder() as name, concurrent.futures.ThreadPoolExecutor(flags.jobs) as pool:
        root = flags.keep or pathlib.Path(name)
        model = write_checkpoint(root / "model")
        prompts = write_prompts(root / "prompts.jsonl", 24, flags.seed, 3, 60, gen_length=40)
        settings = []
        for level in LEVELS:
            for more in (["--batch-size", 1], ["--batch-size", 5]):
                folder = root / f"{level}{more[1]}"
                folder.mkdir()
                arguments = ["--record", level, "--threads", 1, *more]
                settings.append((folder, model, prompts, arguments,
                                 *whole(folder, model, prompts, arguments)))
        settings = settings if flags.only is None else [settings[flags.only]]
        while kills < flags.kills and not complaints:
            batch = [(*settings[(runs + i) % len(settings)], flags.seed + runs + i) for i in range(40)]
            runs += len(batch)
            for killed, found in pool.map(one, batch):
                kills += killed
                complaints += found
            print(f"{kills} kills in {runs} runs, {len(complaints)} complaints", flush=True)
    print("\n".join(complaints))
    sys.exit(1 if complaints else 0)


if __name__ == "__main__":
    if not subprocess.run([BINARY, "--version"], capture_output=True).returncode == 0:
        sys.exit(f"no binary at '{BINARY}'")
    main()
