"""--device: what is refused, and runs on the emulated cuda:0 beside the CPU's: the same tokens, the same trace within
float32's rounding. The emulated device dies when host code dereferences a device pointer, and gives NaN where a copy
was not waited for. Kernels are emulated a thread at a time, so these runs are short."""

import json
import unittest

import numpy as np

from capture_harness import MODELS, require_binary
from device_harness import CHAINS, KERNELS, DeviceCase, run

NEEDLE = "Text: Note: Tina lantern helmet. The wide child looked. Note: Bela vine raven. The old painter sat. Question: Tina?"
LONGER = "Text: The park played. Note: Zoe river falcon. Note: Yara ruby ivory. The farmer stood today near the house. " + NEEDLE
# The description of the run, and its times.
TOLD = {"/model_byte", "/run_byte", "/model/json", "/run/json", "/steps/pass_time_ns"}
# Near ties among the keys are ordered by the last bit of a probability.
SETS = {"/sets/topk", "/sets/topk_token", "/sets/union_size"}
RECALL = "/sets/recall"
POLICIES = [["exact"], ["flashblock"]] + [[name, "--k", 24] for name in (
    "mage", "mage+flashblock", "sparsed", "quest", "oracle", "random", "recent")]
POLICIES += [["sparsed+flashblock", "--k", 24, "--per-block"]]


class Device(DeviceCase):
    def prompts(self, *texts):
        path = self.root / "prompts.jsonl"
        path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
        return ["--prompts", path]

    def compare(self, model, *arguments, device=KERNELS, gen_length=32, level="full", dtype="float32", tolerance=1e-4):
        arrays = ["--array-type", "f32"] if level in ("outputs", "full") else []
        arguments = [*arguments, "--record", level, "--strategy", "sequential", "--denoising-steps", 3, "--no-stop",
                     "--gen-length", gen_length,
                     "--dtype", dtype, *arrays]
        host, got_all = self.capture(model, *arguments), self.capture(model, *arguments, device=device)
        self.assertEqual(host.keys(), got_all.keys())
        for name, expected in host.items():
            got = got_all[name]
            if name in TOLD:
                continue
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

    def test_policies(self):
        for policy in POLICIES:
            shadow = [] if policy == ["exact"] else ["--shadow"]
            with self.subTest(policy):
                self.compare("needle", *self.prompts(NEEDLE), "--policy", *policy, *shadow)

    def test_batch(self):
        for cache in ("commit", "blockd"):
            with self.subTest(cache):
                self.compare("needle", *self.prompts(NEEDLE, LONGER), "--batch-size", 2, "--cache", cache)

    def test_bidirectional(self):
        for cache in ("none", "prefix", "dual", "dllm-cache", "d2cache"):
            with self.subTest(cache):
                shadow = [] if cache == "none" else ["--shadow"]
                self.compare("needle-bidirectional", *self.prompts(NEEDLE), "--block-length", 16, "--cache", cache,
                             *shadow)

    def test_levels(self):
        for level in ("trajectory", "summary", "sets", "outputs"):
            with self.subTest(level):
                self.compare("needle-2k", *self.prompts(LONGER), "--policy", "mage", "--k", 24, "--shadow",
                             level=level, gen_length=16)

    def test_bfloat16(self):
        """Tensor cores' kernels; the model rounds to 8 bits at many places."""
        self.compare("needle", *self.prompts(LONGER), "--policy", "flashblock", "--shadow", dtype="bfloat16",
                     tolerance=3e-2)

    def test_chains(self):
        self.compare("needle", *self.prompts(NEEDLE, LONGER), "--batch-size", 2, "--policy", "mage+flashblock", "--k", 24,
                     "--shadow", device=CHAINS)
        self.compare("needle-bidirectional", *self.prompts(NEEDLE), "--block-length", 16, "--cache", "prefix", "--shadow",
                     device=CHAINS)

    def test_verify(self):
        reports = []
        for device in (None, KERNELS):
            where = ["--device", "cuda"] if device else []
            code, out, error = run("verify", MODELS / "needle", *self.prompts(NEEDLE), "--policy", "mage", "--k", 24,
                                   "--gen-length", 8, "--dtype", "float32", *where, device=device)
            self.assertIn(code, (0, 1), error)
            reports.append((code, out))
        self.assertEqual(reports[0][0], reports[1][0])

    def test_names(self):
        for name in ("gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:99", "CUDA", ""):
            with self.subTest(name):
                code, _, error = run("capture", MODELS / "needle", "--prompt", "a", "-o", self.root / "x.h5",
                                     "--device=" + name, device=CHAINS)
                self.assertEqual(code, 2, error)
                self.assertIn("--device", error)

    def test_missing(self):
        code, _, error = run("capture", MODELS / "needle", "--prompt", "a", "-o", self.root / "x.h5", "--device",
                             "cuda:1", device=CHAINS)
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
