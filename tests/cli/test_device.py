"""--device: what is refused, and a run on the emulated cuda:0 beside the CPU's: the same tokens, the same trace within
float32's rounding. The emulated device dies when host code dereferences a device pointer, and gives NaN where a copy
was not waited for."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import h5py
import numpy as np

from capture_harness import BINARY, MODELS, require_binary

EMULATED = sys.argv.pop(1)
PROMPTS = MODELS / "needle" / "demo.jsonl"
BIDIRECTIONAL = "Text: Note: Tina lantern helmet. The wide child looked. Note: Bela vine raven. Question: Tina?"
# The description of the run, and its times.
TOLD = {"/model_byte", "/run_byte", "/model/json", "/run/json", "/steps/pass_time_ns"}
# Near ties among hundreds of keys are ordered by the last bit of a probability.
SETS = {"/sets/topk", "/sets/topk_token", "/sets/union_size"}


def run(*arguments, emulated=False):
    environment = dict(os.environ)
    environment.pop("LD_PRELOAD", None)
    if emulated:
        environment["LD_PRELOAD"] = EMULATED
        # blockscope sets this before it loads LibTorch, which is here before it.
        environment["GOMP_SPINCOUNT"] = "1000"
    done = subprocess.run([BINARY, *map(str, arguments)], capture_output=True, text=True, env=environment, timeout=600)
    return done.returncode, done.stdout, done.stderr


def datasets(path):
    found = {}
    with h5py.File(path) as trace:
        trace.visititems(lambda name, item: found.update({"/" + name: item[()]})
                         if isinstance(item, h5py.Dataset) else None)
    return found


class Device(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)

    def capture(self, model, *arguments, **where):
        output = self.root / ("device.h5" if where.get("emulated") else "host.h5")
        output.unlink(missing_ok=True)
        device = ["--device", "cuda"] if where.get("emulated") else []
        code, _, error = run("capture", MODELS / model, *arguments, *device, "--dtype", "float32", "--array-type", "f32",
                             "-q", "-o", output, **where)
        self.assertEqual(code, 0, error)
        return datasets(output)

    def compare(self, model, *arguments):
        arguments = [*arguments, "--record", "full", "--strategy", "sequential", "--gen-length", 32]
        host, device = self.capture(model, *arguments), self.capture(model, *arguments, emulated=True)
        self.assertEqual(host.keys(), device.keys())
        for name, expected in host.items():
            got = device[name]
            if name in TOLD:
                continue
            self.assertEqual(got.shape, expected.shape, name)
            if expected.dtype.kind == "f":
                self.assertTrue(np.array_equal(np.isnan(got), np.isnan(expected)), name)
                finite = np.isfinite(expected)
                self.assertTrue(np.array_equal(got[~finite], expected[~finite], equal_nan=True), name)
                if finite.any():
                    largest = np.abs(expected[finite], dtype="f8").max()
                    error = np.abs(got[finite].astype("f8") - expected[finite]).max()
                    self.assertLessEqual(error, 1e-4 * max(1.0, largest), name)
            elif name in SETS:
                self.assertLess((got != expected).mean(), 1e-3, name)
            else:
                self.assertTrue(np.array_equal(got, expected), name)

    def test_policies(self):
        for policy in (["exact"], ["flashblock"], ["mage", "--k", 64], ["mage+flashblock", "--k", 64],
                       ["sparsed", "--k", 64], ["quest", "--k", 64], ["oracle", "--k", 64], ["random", "--k", 64],
                       ["recent", "--k", 64]):
            shadow = [] if policy == ["exact"] else ["--shadow"]
            with self.subTest(policy):
                self.compare("needle", "--prompts", PROMPTS, "--limit", 2, "--policy", *policy, *shadow)

    def test_batch(self):
        for cache in ("commit", "blockd"):
            with self.subTest(cache):
                self.compare("needle", "--prompts", PROMPTS, "--limit", 3, "--batch-size", 2, "--cache", cache)

    def test_bidirectional(self):
        for cache in ("none", "prefix", "dual", "dllm-cache", "d2cache"):
            with self.subTest(cache):
                shadow = [] if cache == "none" else ["--shadow"]
                self.compare("needle-bidirectional", "--prompt", BIDIRECTIONAL, "--cache", cache, *shadow)

    def test_levels(self):
        for level in ("trajectory", "summary", "sets", "outputs"):
            with self.subTest(level):
                arguments = ["--prompts", PROMPTS, "--limit", 1, "--record", level, "--strategy", "sequential"]
                arrays = [] if level == "outputs" else ["--array-type", "bf16"]
                outputs = {}
                for emulated in (False, True):
                    output = self.root / f"{level}-{emulated}.h5"
                    device = ["--device", "cuda"] if emulated else []
                    code, _, error = run("capture", MODELS / "needle", *arguments, *device, "--dtype", "float32",
                                         *(arrays if level == "outputs" else []), "-q", "-o", output, emulated=emulated)
                    self.assertEqual(code, 0, error)
                    outputs[emulated] = datasets(output)
                for name in ("/frames/token", "/frames/position", "/prediction/token"):
                    if name in outputs[False]:
                        self.assertTrue(np.array_equal(outputs[False][name], outputs[True][name]), name)

    def test_verify(self):
        reports = []
        for emulated in (False, True):
            device = ["--device", "cuda"] if emulated else []
            code, out, error = run("verify", MODELS / "needle", "--prompts", PROMPTS, "--limit", 2, "--policy", "mage",
                                   "--k", 64, "--gen-length", 16, "--dtype", "float32", *device, emulated=emulated)
            self.assertIn(code, (0, 1), error)
            reports.append((code, out))
        self.assertEqual(reports[0][0], reports[1][0])

    def test_names(self):
        for name in ("gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:99", "CUDA", ""):
            with self.subTest(name):
                code, _, error = run("capture", MODELS / "needle", "--prompt", "a", "-o", self.root / "x.h5",
                                     "--device=" + name, emulated=True)
                self.assertEqual(code, 2, error)
                self.assertIn("--device", error)

    def test_missing(self):
        code, _, error = run("capture", MODELS / "needle", "--prompt", "a", "-o", self.root / "x.h5", "--device",
                             "cuda:1", emulated=True)
        self.assertEqual(code, 1)
        self.assertIn("expected an index below 1", error)
        code, _, error = run("capture", MODELS / "needle", "--prompt", "a", "-o", self.root / "x.h5", "--device", "cuda")
        self.assertEqual(code, 1)  # no libtorch_cuda, or no driver
        self.assertIn("--device cuda", error)
        self.assertIn("HINT", error)

    def test_doctor(self):
        _, out, error = run("doctor", "--json")
        lines = {line["name"]: line for line in json.loads(out)["findings"]}
        self.assertEqual(lines["LibTorch for CUDA"]["value"] == "there", lines["LibTorch for CUDA"]["verdict"] == "ok")
        self.assertIn("CUDA kernels", lines)


if __name__ == "__main__":
    require_binary()
    unittest.main()
