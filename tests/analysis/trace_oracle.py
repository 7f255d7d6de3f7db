"""What the oracles of analysis/ share: odd traces, our results, and a trace as h5py sees it."""

import json
import os
import pathlib
import subprocess
import sys

import h5py
import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support"))
from trace_arrays import stored_path

# Shapes that a real run may have, as flags of make_trace.
SHAPES = {
    "plain": [],
    "f32": ["--array-type", "f32"],
    "block_of_one": ["--block-length", "1", "--steps", "3"],
    "one_head": ["--heads", "1", "--kv-heads", "1", "--head-dim", "6"],
    "one_step": ["--steps", "1"],
    "odd_dims": ["--head-dim", "37", "--hidden-size", "51", "--block-length", "7", "--heads", "6"],
    "unequal": ["--unequal", "--sequences", "5", "--steps", "6", "--blocks", "3"],
    "interleaved": ["--unequal", "--interleaved", "--sequences", "4", "--steps", "5"],
    "no_prefix": ["--prompt", "0"],
    "invalid": ["--invalid", "1", "--sequences", "3"],
    "filtered": ["--record-layers", "0,2", "--record-heads", "1,3", "--record-kv-heads", "1",
                 "--record-steps", "1,2,4,5", "--steps", "6"],
    "filtered_blocks": ["--record-blocks", "1", "--blocks", "3", "--record-steps", "2,3,4"],
    "partial": ["--partial", "--sequences", "3"],
    "aborted": ["--aborted", "--sequences", "3"],
    "spoiled": ["--nan", "0.2", "--inf", "0.2", "--zero", "0.2", "--sequences", "4"],
    "shadow": ["--policy", "flashblock", "--shadow", "--steps", "6", "--sequences", "3"],
}


def make_trace(tools, folder, name, flags=()):
    """Path of a new trace; `name` may be a key of SHAPES."""
    path = os.path.join(folder, name + ".h5")
    subprocess.run([tools + "/make_trace", path, *SHAPES.get(name, []), *flags], check=True)
    return path if os.path.exists(path) else path + ".partial"


def our_metrics(tools, metrics, *arguments, check=True):
    """{metric: {arrays: {name: {values, terms: [axes...], axes}}, left_out}}"""
    run = subprocess.run([tools + "/metric_dump", metrics, *arguments], capture_output=True,
                         text=True)
    if not check:
        return run
    if run.returncode != 0:
        raise AssertionError(f"metric_dump {metrics} {arguments}: {run.stderr}")
    results = json.loads(run.stdout)
    for result in results.values():
        for array in result["arrays"].values():
            shape = [len(axis["labels"] or axis["index"]) for axis in array["axes"]]
            array["values"] = np.array([float(v) for v in array["values"]]).reshape(shape)
            if array["terms"]:
                array["terms"] = np.array(array["terms"]).reshape(shape)
    return results


class Trace:
    """Committed denoising rows of sequences that were not aborted, by block and step."""

    def __init__(self, path):
        self.file = h5py.File(path, "r", swmr=path.endswith(".partial"))
        steps = self.file["steps"]
        self.rows = int(steps["committed"][0])
        for name in ("sequence", "kind", "block", "step", "context_length", "changed",
                     "recorded", "valid", "masks_left"):
            setattr(self, name, self.file[stored_path(self.file, f"/steps/{name}")][:self.rows])
        aborted = self.file["/sequences/aborted"][:]
        self.blocks = {}  # (sequence, block) -> {step: row}
        for row in range(self.rows):
            if self.kind[row] == 1 and not aborted[self.sequence[row]]:
                block = (int(self.sequence[row]), int(self.block[row]))
                self.blocks.setdefault(block, {})[int(self.step[row])] = row
        self.layers = self.file["layer"][:]
        self.heads = self.file["head"][:]
        self.kv_heads = self.file["kv_head"][:]

    def __getitem__(self, path):
        return self.file[path]

    def has(self, path):
        return path in self.file

    def pairs(self):
        """(row of step s, row of step s + 1), both recorded, of every block."""
        for steps in self.blocks.values():
            for step, row in steps.items():
                after = steps.get(step + 1)
                if after is not None and self.recorded[row] and self.recorded[after]:
                    yield row, after

    def recorded_rows(self):
        for steps in self.blocks.values():
            for row in steps.values():
                if self.recorded[row]:
                    yield row


class StepSums:
    """Sums and counts per (..., step), as the metrics define their means."""

    def __init__(self):
        self.steps = {}

    def add(self, step, values, axis=-1):
        """Values [..., positions]; those that are not finite are left out."""
        finite = np.isfinite(values)
        total, terms = self.steps.get(step, (0.0, 0))
        self.steps[step] = (total + np.where(finite, values, 0.0).sum(axis),
                            terms + finite.sum(axis))

    def check(self, array, what, tolerance=1e-5):
        """`array`: ours, the last axis is the step."""
        values, terms = np.asarray(array["values"]), np.asarray(array["terms"])
        for i, step in enumerate(array["axes"][-1]["index"]):
            total, count = self.steps.get(int(step), (0.0, 0))
            count = np.broadcast_to(count, values.shape[:-1])
            assert (terms[..., i] == count).all(), f"{what}, step {step}: terms {terms[..., i]} != {count}"
            with np.errstate(invalid="ignore", divide="ignore"):
                expected = np.broadcast_to(total, count.shape) / count
            np.testing.assert_allclose(values[..., i], expected, rtol=0, atol=tolerance,
                                       err_msg=f"{what}, step {step}")
        met = {step for step, (_, count) in self.steps.items() if np.any(count)}
        assert met <= {int(s) for s in array["axes"][-1]["index"]}, f"{what}: steps are missing"
