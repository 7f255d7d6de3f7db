"""`blockscope` on the emulated cuda:0, a library that is preloaded where libtorch_cuda would be: alone, where
attention falls back to plain torch operators, or with the emulated kernels. `gpu` in their place runs the same tests
on a GPU (scripts/gpu_check.sh)."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import numpy as np

from capture_harness import BINARY, MODELS
from trace_arrays import datasets

GPU = "gpu"
FALLBACK = sys.argv.pop(1)
KERNELS = sys.argv.pop(1) if FALLBACK != GPU else GPU
# The description of the run, and its times.
TOLD = {"/model_byte", "/run_byte", "/model/json", "/run/json", "/steps/pass_time_ns",
        "/draft/cost/draft_ns", "/draft/cost/target_ns"}
# Near ties among the keys are ordered by the last bit of a probability.
SETS = {"/sets/topk", "/sets/topk_token", "/sets/union_size"}
NORMS = {"/sets/key_norm", "/sets/value_norm"}  # of the keys that the sets name
RECALL = "/sets/recall"


def run(*arguments, device=None, faults=""):
    """`faults`: the faults of the emulated device (tests/support/emulated_cuda.h)."""
    environment = dict(os.environ)
    environment.pop("LD_PRELOAD", None)
    if device and device != GPU:
        environment["LD_PRELOAD"] = device
        environment["EMULATED_CUDA"] = faults
        # blockscope sets this before it loads LibTorch, which is here before it.
        environment["GOMP_SPINCOUNT"] = "1000"
    done = subprocess.run([BINARY, *map(str, arguments)], capture_output=True, text=True, env=environment, timeout=600)
    return done.returncode, done.stdout, done.stderr


class DeviceCase(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)

    def capture(self, model, *arguments, device=None):
        output = self.root / ("device.h5" if device else "host.h5")
        output.unlink(missing_ok=True)
        where = ["--device", "cuda"] if device else []
        code, _, error = run("capture", MODELS / model, *arguments, *where, "-q", "-o", output, device=device)
        self.assertEqual(code, 0, error)
        return datasets(output)

    def compare_traces(self, host, got_all, tolerance):
        """What capture() gave: the same integers, floats within `tolerance` of a dataset's largest."""
        self.assertEqual(host.keys(), got_all.keys())
        for name, expected in host.items():
            got = got_all[name]
            if name in TOLD:
                continue
            if name in NORMS:
                same = host["/sets/topk"] == got_all["/sets/topk"]
                got, expected = np.where(same, got, 0), np.where(same, expected, 0)
            self.assertEqual(got.shape, expected.shape, name)
            if expected.dtype.kind == "f":
                self.assertTrue(np.array_equal(np.isnan(got), np.isnan(expected)), name)
            if name in SETS:
                self.assertLessEqual((got != expected).mean(), 10 * tolerance, name)
            elif name == RECALL:
                self.compare_recall(host, got_all)
            elif expected.dtype.kind == "f":
                finite = np.isfinite(expected)
                self.assertTrue(np.array_equal(got[~finite], expected[~finite], equal_nan=True), name)
                if finite.any():
                    largest = np.abs(expected[finite], dtype="f8").max()
                    error = np.abs(got[finite].astype("f8") - expected[finite]).max()
                    self.assertLessEqual(error, tolerance * max(1.0, largest), name)
            else:
                self.assertTrue(np.array_equal(got, expected), name)

    def compare_recall(self, host, device):
        """Recall counts keys: it may differ by those in which the sets that it counts do, its own and the first step's."""
        sequence, block, step = (host["/steps/" + name] for name in ("sequence", "block", "step"))
        for at in np.argwhere(~np.isclose(host[RECALL], device[RECALL], rtol=0, atol=1e-4, equal_nan=True)):
            row, *head = at
            first = np.flatnonzero((sequence == sequence[row]) & (block == block[row]) & (step == 1))[0]
            moved = sum(len(set(host["/sets/topk"][(r, *head)]) ^ set(device["/sets/topk"][(r, *head)])) // 2
                        for r in (row, first))
            size = np.count_nonzero(host["/sets/topk"][(first, *head)] >= 0)
            self.assertLessEqual(abs(float(host[RECALL][tuple(at)]) - float(device[RECALL][tuple(at)])),
                                 moved / size + 1e-6, at)
