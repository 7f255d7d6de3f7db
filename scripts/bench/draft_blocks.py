#!/usr/bin/env python3
"""What `analyze --metric draft` predicts of other block lengths, beside runs with them.

    python scripts/bench/draft_blocks.py TARGET DRAFT --prompts FILE [--gen-length 64] [--rounds 3] [--blocks 1,2,4,8]

One run with the draft's whole blocks predicts, for every block length b, the tokens a round and the speed-up over the target
alone. Then the same prompts are decoded with --block-length b, and by the target without a draft, all by turns. A run's speed
is its tokens a round over the median times of its denoising and its commit rows (/steps/pass_time_ns: neither prefills
nor the recorder's work). Medians over the rounds; greedy, float32 unless --dtype says otherwise."""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import tempfile

import h5py
import numpy as np

BLOCKSCOPE = os.environ.get("BLOCKSCOPE_BINARY", "build/release/bin/blockscope")


def run(*arguments):
    done = subprocess.run([BLOCKSCOPE, *map(str, arguments)], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    return done.stdout


def read(path):
    """-> milliseconds a token, tokens a round (without a draft: a pass)."""
    with h5py.File(path) as file:
        rows = int(file["/steps/committed"][0])
        kind, time = file["/steps/kind"][:rows], file["/steps/pass_time_ns"][:rows]
        tokens = np.diff(np.concatenate([[0], file["/frames/delta_end"][:rows]]))
        own = 1 if "has_draft" in file.attrs else 0  # the target's, in a commit row
        per_round = tokens[kind == 1].sum() / (kind == 1).sum() + own
        round_ns = sum(np.median(time[kind == k]) for k in (1, 2) if (kind == k).any())
        return round_ns / per_round / 1e6, per_round


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target")
    parser.add_argument("draft")
    parser.add_argument("--prompts", required=True)
    parser.add_argument("--gen-length", type=int)
    parser.add_argument("--blocks", help="default: all that the draft can")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--no-stop", action="store_true")
    parser.add_argument("--threads", type=int)
    flags = parser.parse_args()
    common = ["--prompts", flags.prompts, "--record", "trajectory", "--dtype", flags.dtype, "--quiet", "--force"]
    common += ["--gen-length", flags.gen_length] if flags.gen_length else []
    common += ["--threads", flags.threads] if flags.threads else []
    common += ["--no-stop"] if flags.no_stop else []
    with tempfile.TemporaryDirectory() as name:
        trace = pathlib.Path(name) / "run.h5"

        def predict():
            run("capture", flags.target, "--draft", flags.draft, *common, "-o", trace)
            found = json.loads(run("analyze", trace, "--metric", "draft", "--json", "-"))["metrics"][0]
            return {array["name"]: array["values"] for array in found["arrays"]}

        longest = len(predict()["speedup"])
        blocks = [int(b) for b in flags.blocks.split(",")] if flags.blocks else range(2, longest + 1)
        predicted, alone, measured = [], [], {b: [] for b in blocks if b > 1}
        for _ in range(flags.rounds):
            predicted.append(predict())
            run("capture", flags.target, *common, "-o", trace)
            alone.append(read(trace)[0])
            for b, seen in measured.items():
                run("capture", flags.target, "--draft", flags.draft, "--block-length", b, "--no-draft-cost", *common,
                    "-o", trace)
                seen.append(read(trace))
    median = lambda name, b: statistics.median(one[name][b - 1] for one in predicted)
    base = statistics.median(alone)
    print(f"target alone: {base:.3f} ms a token; predicted: {median('target_time', 1):.3f} ms a pass")
    print(f"{'block':>5} {'tokens/round':>24} {'speed-up':>28}")
    print(f"{'':>5} {'predicted':>12} {'run':>11} {'predicted':>12} {'run':>7} {'differs':>7}")
    for b, seen in measured.items():
        per_round = statistics.median(one[1] for one in seen)
        speed = base / statistics.median(one[0] for one in seen)
        said = median("speedup", b)
        print(f"{b:5} {median('tokens_per_round', b):12.3f} {per_round:11.3f} {said:12.3f} {speed:7.3f} "
              f"{100 * (said / speed - 1):+6.1f}%")


if __name__ == "__main__":
    main()
