"""`--cache blockd` compared with `--cache commit` on the shipped model in bfloat16, the precision in which it is used.

A fused pass multiplies more rows at once, and kernels may round a row differently among more rows. On an AMD EPYC with
AVX-512 BF16 they don't: the runs are equal, every bit of every probability. No kernel promises that, so what holds
everywhere is demanded: while the inputs agree, predictions agree to bfloat16's rounding; two runs part only at
a choice that is nearer than that; and most don't. That the fused pass computes the right thing is judged in float32
(check_trajectories.py, test_fused_commits.cpp).
"""

import json
import pathlib

import harness

harness.start()

import numpy as np  # noqa: E402
from trace_file import Trace  # noqa: E402

MODEL = pathlib.Path(__file__).resolve().parents[3] / "models" / "needle"
DENOISE, COMMIT = 1, 2
PROMPTS, GEN_LENGTH = 10, 64
# Logits near 10 are rounded by up to 2^-5, twice that between two of them; p moves by at most a quarter of it each.
NEAR = 2.0**-5


def run(folder, cache):
    lines = (MODEL / "demo.jsonl").read_text().splitlines()[:PROMPTS]
    prompts = folder / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"id": str(i), "prompt": json.loads(line)["prompt"]}) + "\n"
                               for i, line in enumerate(lines)))
    harness.run("capture", MODEL, "--prompts", prompts, "--gen-length", GEN_LENGTH, "--no-stop", "--dtype", "bfloat16",
                "--cache", cache, "--record", "trajectory", "--threads", 1, "--quiet", "-o", folder / f"{cache}.h5")
    return Trace(folder / f"{cache}.h5")


def rows_of(trace, sequence, kind):
    return [r for r in trace.rows_of(sequence) if trace.rows("/steps/kind")[r] == kind]


def confidence_of(trace, row):
    return trace.rows("/prediction/confidence")[row].astype(np.float64)


def steps_until_parted(where, commit, blockd, sequence):
    """-> whether the runs stay together to the end; the largest difference of a probability up to where they part."""
    ours, theirs = (rows_of(trace, sequence, DENOISE) for trace in (commit, blockd))
    worst = 0.0
    for a, b in zip(ours, theirs):
        at = f"{where}, block {commit.rows('/steps/block')[a]}, step {commit.rows('/steps/step')[a]}"
        p, q = confidence_of(commit, a), confidence_of(blockd, b)
        worst = max(worst, float(np.nanmax(np.abs(p - q))))
        harness.require(worst <= NEAR, f"{at}: a probability differs by {worst}")
        other = commit.rows("/prediction/token")[a] != blockd.rows("/prediction/token")[b]
        harness.require(not other.any() or np.nanmax(p[other]) <= 0.5 + NEAR,
                        f"{at}: best tokens differ that are not near a tie: {p[other]}")
        if commit.delta(a)[:2] == blockd.delta(b)[:2]:
            continue
        # One position a step: the surest. Each run's choice must nearly be the other's.
        start = int(commit.rows("/steps/block_start")[a]) - len(commit.prompt(sequence))
        chosen = [[position - start for position in trace.delta(row)[0]] for trace, row in ((commit, a), (blockd, b))]
        gap = max(p) - min(p[chosen[0] + chosen[1]])
        harness.require(gap <= 2 * NEAR, f"{at}: decided {chosen} with a gap of {gap}: no near tie")
        return False, worst
    harness.require(len(ours) == len(theirs), f"{where}: {len(ours)} steps and {len(theirs)}")
    return True, worst


def main():
    with harness.temporary_folder() as folder:
        commit, blockd = (run(pathlib.Path(folder), cache) for cache in ("commit", "blockd"))
        together, worst, fused = 0, 0.0, 0
        for sequence in range(PROMPTS):
            harness.require(commit.prompt(sequence) == blockd.prompt(sequence), f"prompt {sequence} is another one")
            same, difference = steps_until_parted(f"prompt {sequence}", commit, blockd, sequence)
            together, worst = together + same, max(worst, difference)
            passes = {int(blockd.rows("/steps/pass")[r]) for r in rows_of(blockd, sequence, DENOISE)}
            fused += sum(int(blockd.rows("/steps/pass")[r]) in passes for r in rows_of(blockd, sequence, COMMIT))
        harness.require(fused >= 3 * PROMPTS, f"{fused} commits were fused: nothing was compared")
        harness.require(2 * together > PROMPTS, f"only {together} of {PROMPTS} runs stay together")
        print(f"{together} of {PROMPTS} runs stay together, {fused} fused commits; largest difference of a probability "
              f"while inputs are equal: {worst:.1e} (allowed {NEAR:.1e})")


if __name__ == "__main__":
    main()
