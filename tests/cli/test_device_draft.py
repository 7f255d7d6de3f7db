"""A DFlash draft on the emulated cuda:0 compared with the CPU: the same rounds, the same trace within float32's
rounding, of the draft and of its target, greedily and drawn; bench, verify and training."""

import json
import re
import unittest

from capture_harness import MODELS, require_binary
from device_harness import FALLBACK, KERNELS, DeviceCase, run

TARGET, DRAFT = MODELS / "needle" / "backbone", MODELS / "needle" / "dflash"
TINY_DRAFT = ["--stage", "draft", "--target", TARGET, "--steps", 3, "--layers", 1, "--block-size", 4, "--batch-tokens", 256,
              "--first-context", 64, "--last-context", 64, "--evaluate-documents", 0, "--evaluate-every", 0, "--precision",
              "float32", "--force"]
TEXTS = [
    "Text: Note: Tina lantern helmet. The wide child looked. Note: Bela vine raven. The old painter sat. Question: Tina?",
    "Text: The park played. Note: Zoe river falcon. Note: Yara ruby ivory. The farmer stood today. Question: Zoe?",
]


class DraftOnDevice(DeviceCase):
    def setUp(self):
        super().setUp()
        self.prompts = self.root / "prompts.jsonl"
        self.prompts.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in TEXTS))

    def compare(self, *arguments, device=KERNELS, level="full", dtype="float32", tolerance=1e-4):
        arguments = ["--draft", DRAFT, "--prompts", self.prompts, "--gen-length", 8, "--no-stop", "--dtype", dtype,
                     "--record", level, *(["--array-type", "f32"] if level == "full" else []), *arguments]
        host, got = (self.capture(TARGET, *arguments, device=where) for where in (None, device))
        self.assertGreater(int(host["/draft/accepted"].max()), 0)
        self.compare_traces(host, got, tolerance)

    def test_draft_in_a_batch(self):
        self.compare("--batch-size", 2)

    def test_target(self):
        self.compare("--recorded-model", "target")

    def test_fallback(self):
        self.compare("--batch-size", 2, device=FALLBACK)
        self.compare("--recorded-model", "target", "--batch-size", 2, device=FALLBACK)

    def test_drawn(self):
        self.compare("--temperature", 0.7, "--top-p", 0.9, "--seed", 3, level="trajectory", device=FALLBACK)

    def test_short_blocks(self):
        self.compare("--block-length", 4, level="summary", device=FALLBACK)

    def test_bench_and_verify(self):
        given = [TARGET, "--draft", DRAFT, "--prompts", self.prompts, "--gen-length", 8, "--dtype", "float32",
                 "--device", "cuda", "-q"]
        code, out, error = run("bench", *given, "--runs", 1, "--block-lengths", "4", device=FALLBACK)
        self.assertEqual((code, error), (0, ""))
        self.assertRegex(out, r"B 4: all \d+ tokens are the target's own")
        code, out, error = run("verify", *given, device=FALLBACK)
        self.assertEqual((code, error), (0, ""))
        self.assertIn("Verdict: the answers are the target's own, token by token", out)

    def test_train(self):
        losses = []
        for name, device in (("cpu", None), ("cuda", FALLBACK)):
            code, out, error = run(
                "train", *TINY_DRAFT, "--out", self.root / name, "--work", self.root / (name + "-work"), "--device", name,
                device=device)
            self.assertEqual(code, 0, error)
            losses.append([float(loss) for loss in re.findall(r"loss ([\d.]+)", out)])
        self.assertGreater(len(losses[0]), 0)
        self.assertEqual(len(losses[0]), len(losses[1]))
        for one, other in zip(*losses):
            self.assertAlmostEqual(one, other, delta=1e-3 * one)


if __name__ == "__main__":
    require_binary()
    unittest.main()
