"""--device: refusals, and runs on the emulated cuda:0 compared with the CPU's: the same tokens, the same trace within
float32's rounding. The emulated device dies when host code dereferences a device pointer, and gives NaN where a copy
was not waited for. Kernels are emulated a thread at a time, so these runs are short."""

import json
import os
import unittest
from unittest import mock

import numpy as np

from capture_harness import MODELS, require_binary
from device_harness import FALLBACK, GPU, KERNELS, DeviceCase, run
from family_case import FAMILIES, write_canvases, write_family

NEEDLE = "Text: Note: Tina lantern helmet. The wide child looked. Note: Bela vine raven. The old painter sat. Question: Tina?"
LONGER = "Text: The park played. Note: Zoe river falcon. Note: Yara ruby ivory. The farmer stood today near the house. " + NEEDLE
SPARSE = ("mage", "mage+flashblock", "sparsed", "quest", "oracle", "random", "recent")
POLICIES = ["exact", "flashblock", *(f"{name},k=24" for name in SPARSE), "sparsed+flashblock,k=24,per_block"]


class Device(DeviceCase):
    def prompts(self, *texts):
        path = self.root / "prompts.jsonl"
        path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
        return ["--prompts", path]

    def decoding(self, *arguments, gen_length=32, level="full", dtype="float32"):
        arrays = ["--array-type", "f32"] if level in ("outputs", "full") else []
        return [*arguments, "--record", level, "--strategy", "sequential", "--denoising-steps", 3, "--no-stop",
                "--gen-length", gen_length, "--dtype", dtype, *arrays]

    def compare(self, model, *arguments, device=KERNELS, tolerance=1e-4, **options):
        arguments = self.decoding(*arguments, **options)
        self.compare_traces(self.capture(model, *arguments), self.capture(model, *arguments, device=device), tolerance)

    def test_policies(self):
        for policy in POLICIES:
            shadow = [] if policy == "exact" else ["--shadow"]
            with self.subTest(policy):
                self.compare("needle", *self.prompts(NEEDLE), "--policy", policy, *shadow)

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
                self.compare("needle-2k", *self.prompts(LONGER), "--policy", "mage,k=24", "--shadow",
                             level=level, gen_length=16)

    def test_families(self):
        """Random models of all families; canvases with windows, whose layers have shapes of their own."""
        models = {family: (write_family(self.root / family, family), []) for family in FAMILIES}
        models["canvas"] = (write_canvases(self.root / "canvas", windows=True),
                            ["--denoising-steps", 5])
        edits = ["--strategy", "joint_threshold,threshold=0.2,editing_threshold=0.05"]
        models["edits"] = (models["llada2_moe"][0], edits)
        for name, (model, more) in models.items():
            arguments = ["--input-ids", "7,30,2,91,14,8,200,41,5", "--gen-length", 8, "--no-stop", "--dtype", "float32",
                         "--record", "full", "--array-type", "f32", *more]
            # A canvas feeds its predictions back: another number of threads alone moves values by 6e-5 of the largest.
            tolerance = 2e-4 if name == "canvas" else 1e-4
            with self.subTest(name):
                here, there = self.capture(model, *arguments), self.capture(model, *arguments, device=KERNELS)
                self.compare_traces(here, there, tolerance)

    def test_bfloat16(self):
        """Tensor cores' kernels, and a library for the prefix; the model rounds to 8 bits at many places."""
        prompts, rules = self.prompts(LONGER), self.root / "reuse.json"
        self.capture("needle", *prompts, "--record", "summary", "--gen-length", 32)
        code, _, error = run("calibrate", self.root / "host.h5", "--granularity", "kv-group", "--saving", 0.2, "-o", rules)
        self.assertEqual(code, 0, error)
        reuse = np.array(json.loads(rules.read_text())["reuse"], bool)
        self.assertTrue((reuse.any(1) & ~reuse.all(1)).any(), reuse)  # in a layer, one KV head of two
        for policy in ("flashblock", f"flashblock,reuse={rules}"):
            arguments = self.decoding(*prompts, "--policy", policy, "--shadow", dtype="bfloat16")
            here, there = self.capture("needle", *arguments), {}
            for prefix in ("own", "library"):
                with self.subTest(policy=policy, prefix=prefix), mock.patch.dict(os.environ, BLOCKSCOPE_SPLIT=prefix):
                    there[prefix] = self.capture("needle", *arguments, device=KERNELS)
                    self.compare_traces(here, there[prefix], 3e-2)
            own, library = (trace["/attention/external"] for trace in there.values())
            self.assertFalse(np.array_equal(own, library, equal_nan=True), policy)

    def test_fallback(self):
        self.compare("needle", *self.prompts(NEEDLE, LONGER), "--batch-size", 2, "--policy", "mage+flashblock,k=24",
                     "--shadow", device=FALLBACK)
        self.compare("needle-bidirectional", *self.prompts(NEEDLE), "--block-length", 16, "--cache", "prefix", "--shadow",
                     device=FALLBACK)

    def test_verify(self):
        reports = []
        for device in (None, KERNELS):
            where = ["--device", "cuda"] if device else []
            code, out, error = run("verify", MODELS / "needle", *self.prompts(NEEDLE), "--policy", "mage,k=24",
                                   "--gen-length", 8, "--dtype", "float32", *where, device=device)
            self.assertIn(code, (0, 1), error)
            reports.append((code, out))
        self.assertEqual(reports[0][0], reports[1][0])

    def test_names(self):
        for name in ("gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:99", "CUDA", ""):
            with self.subTest(name):
                code, _, error = run("capture", MODELS / "needle", "--prompt", "a", "-o", self.root / "x.h5",
                                     "--device=" + name, device=FALLBACK)
                self.assertEqual(code, 2, error)
                self.assertIn("--device", error)

    def test_missing(self):
        code, _, error = run("capture", MODELS / "needle", "--prompt", "a", "-o", self.root / "x.h5", "--device",
                             "cuda:1", device=FALLBACK)
        self.assertEqual(code, 1)
        self.assertIn("expected an index below 1", error)
        if KERNELS == GPU:
            return
        code, _, error = run("capture", MODELS / "needle", "--prompt", "a", "-o", self.root / "x.h5", "--device", "cuda")
        self.assertEqual(code, 1)  # no libtorch_cuda, or no driver
        self.assertIn("--device cuda", error)
        self.assertIn("HINT", error)

    def test_doctor(self):
        _, out, error = run("doctor", "--json")
        lines = {line["name"]: line for line in json.loads(out)["findings"]}
        self.assertEqual(lines["LibTorch for CUDA"]["value"] == "found", lines["LibTorch for CUDA"]["verdict"] == "ok")
        self.assertIn("CUDA kernels", lines)


if __name__ == "__main__":
    require_binary()
    unittest.main()
