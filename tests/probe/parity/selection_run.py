"""Runs captures for check_selection.py and reads what they recorded."""

import json

import harness
import numpy as np
from checkpoints import spec_of, write_checkpoint
from layer_math import Layers
from oracle_decoder import DENOISE
from trace_file import Trace


class Checkpoints:
    """Checkpoints and their float64 layers, each made once."""

    def __init__(self, folder):
        self.folder, self.made = folder, {}

    def get(self, case):
        key = (case.checkpoint, *sorted(case.overrides.items()))
        if key not in self.made:
            spec = spec_of(case.checkpoint, **case.overrides)
            path = self.folder / f"checkpoint-{len(self.made)}"
            self.made[key] = (path, Layers(write_checkpoint(path, spec), spec))
        return self.made[key]


def make_prompts(spec, case):
    generator = np.random.default_rng(100 + case.seed)
    return [{"id": f"p{i}", "gen_length": 11 + 6 * i,
             "input_ids": generator.integers(0, spec["vocab"] - 5, length).tolist()}
            for i, length in enumerate(case.lengths)]


def capture(folder, case, policy, checkpoint, prompts, replay=None, name="run.h5"):
    lines = folder / "prompts.jsonl"
    lines.write_text("".join(json.dumps(prompt) + "\n" for prompt in prompts))
    shadow = [] if policy.name == "exact" else ["--shadow", *policy.flags()]
    source = ["--replay", replay] if replay else ["--prompts", lines, *case.strategy]
    output = folder / name
    harness.run("capture", checkpoint, *source, "--denoising-steps", case.steps, "--record",
                "outputs", "--array-type", "f32", "--dtype", "float32", "--threads", case.threads,
                "--batch-size", case.batch, "--set-size", 4, "-o", output, "--force", "--quiet",
                *shadow)
    return Trace(output)


def steps_of(trace, index):
    return [int(r) for r in trace.rows_of(index) if trace.rows("/steps/kind")[r] == DENOISE]


def recorded_sets(trace, row, layer):
    """[K] position arrays in ascending order, None: -1 throughout."""
    sets = []
    for entries in trace.rows("/attention/selected")[row, layer]:
        kept = entries[entries >= 0]
        harness.require((entries[len(kept):] == -1).all() and len(set(kept)) == len(kept),
                        f"row {row}, layer {layer}: {entries.tolist()} is no set")
        sets.append(np.sort(kept).astype(int))
    return sets if any(len(s) for s in sets) else None


def replayed_choices(trace, index, prompt_length, size):
    choices = {}
    for row in steps_of(trace, index):
        block, step = (int(trace.rows(f"/steps/{n}")[row]) for n in ("block", "step"))
        positions, tokens, _ = trace.delta(row)
        choices[block, step] = ([prompt_length + p - block * size for p in positions], tokens)
    return choices
