"""--device of the commands other than capture and verify, on the emulated cuda:0 or a GPU (argument `gpu`) compared
with the CPU: the same decisions and counts, numbers within float32's rounding (tests/cli/test_device.py has the
traces)."""

import csv
import json
import os
import pathlib
import re
import struct
import subprocess
import sys
import tempfile
import unittest

import numpy as np

from capture_harness import BINARY, MODELS, require_binary
from command_line_case import TINY_TRAINING

EMULATED = sys.argv.pop(1)
NEEDLE = MODELS / "needle"
STUDIES = {
    "union": ["--k", "4,8", "--pages", "8,4"],
    "stages": ["--k", "4,8", "--backbone", NEEDLE / "backbone"],
    "estimators": ["--k", "4,8", "--pages", "8"],
    "needle": ["--k", "8", "--pages", "8", "--depths", 1],
    "residual": ["--densities", "0.4"],
}


def run(*arguments, device="cpu"):
    environment = dict(os.environ)
    environment.pop("LD_PRELOAD", None)
    if device != "cpu" and EMULATED != "gpu":
        environment["LD_PRELOAD"] = EMULATED
        environment["GOMP_SPINCOUNT"] = "1000"  # blockscope sets it before it loads LibTorch, which is here before it
    done = subprocess.run([BINARY, *map(str, arguments), "--device", device], capture_output=True, text=True,
                          env=environment, timeout=600)
    return done.returncode, done.stdout, done.stderr


def close(one, other):
    """The same text, or numbers within a thousandth."""
    try:
        return one == other or abs(float(one) - float(other)) <= 1e-3 * max(1e-3, abs(float(one)))
    except ValueError:
        return False


def safetensors(path, tensors, metadata):
    """What capture_harness writes is bfloat16; a reference is float32 and int64."""
    header, data = {"__metadata__": metadata}, b""
    for name, array in tensors.items():
        kind = {"f": "F32", "i": "I64"}[array.dtype.kind]
        header[name] = {"dtype": kind, "shape": array.shape, "data_offsets": [len(data), len(data) + array.nbytes]}
        data += array.tobytes()
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


class DeviceCommands(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)

    def both(self, *arguments, ok=(0,)):
        """Standard output on the CPU and on the device; {} in an argument becomes the device's name."""
        printed = []
        for device in ("cpu", "cuda"):
            code, out, error = run(*(str(a).replace("{}", device) for a in arguments), device=device)
            self.assertIn(code, ok, error)
            printed.append(out)
        return printed

    def test_studies(self):
        for name, arguments in STUDIES.items():
            with self.subTest(name):
                self.both("study", name, NEEDLE, "--contexts", 128, "--per-cell", 1, "-q", "--dtype", "float32",
                          "--no-figures", *arguments, "-o", self.root / (name + "-{}"))
                tables = []
                for device in ("cpu", "cuda"):
                    with (self.root / f"{name}-{device}" / f"{name}.csv").open() as lines:
                        tables.append(list(csv.reader(lines)))
                self.assertGreater(len(tables[0]), 2)
                self.assertEqual([len(row) for row in tables[0]], [len(row) for row in tables[1]])
                for host, device in zip(*tables):
                    self.assertTrue(all(map(close, host, device)), (host, device))

    def test_time_of_blocks_without_their_parts(self):
        self.both("study", "time", NEEDLE, "--contexts", 64, "--k", 8, "--steps", 2, "--blocks", 1, "--repeats", 1, "--batch-size",
                  2, "-q", "--no-figures", "--dtype", "float32", "-o", self.root / "time-{}")
        host, device = (list(csv.DictReader((self.root / f"time-{name}" / "time.csv").open())) for name in ("cpu", "cuda"))
        self.assertEqual([row["method"] for row in host], [row["method"] for row in device])
        for here, there in zip(host, device):
            self.assertGreater(float(there["block_ms"]), 0)
            for column in ("attention_bytes", "choosing_bytes", "attention_flops", "choosing_share"):
                self.assertEqual(here[column], there[column], here["method"])
            for column in ("attention_ms", "choosing_ms", "rest_ms", "beside_ms", "waited_ms"):
                self.assertEqual(there[column], "")

    def test_studies_of_the_parts_of_a_pass(self):
        for name in ("tau", "caches"):
            code, _, error = run("study", name, NEEDLE, "--no-figures", "-o", self.root / "refused", device="cuda")
            self.assertEqual(code, 2, error)
            self.assertIn("only launches", error)

    def test_a_study_goes_on_where_it_began(self):
        arguments = ["study", "union", NEEDLE, "--contexts", 128, "--per-cell", 1, "-q", "--no-figures", "--k", 8, "-o",
                     self.root / "study"]
        self.assertEqual(run(*arguments)[0], 0)
        self.assertEqual(run(*arguments, "--resume", device="cuda")[0], 2)

    def test_train(self):
        options = [*TINY_TRAINING, "--steps", 3, "--out", self.root / "model-{}", "--work", self.root / "work-{}"]
        for precision, places in (("float32", 1e-3), ("bfloat16", 0.05)):
            with self.subTest(precision):
                host, device = self.both("train", *options, "--precision", precision, "--force")
                losses = [re.findall(r"loss ([\d.]+)", text) for text in (host, device)]
                self.assertGreater(len(losses[0]), 0, host)
                self.assertEqual(len(losses[0]), len(losses[1]))
                for one, other in zip(*losses):
                    self.assertAlmostEqual(float(one), float(other), delta=places * float(one))
        # What was trained on the device is a checkpoint like any other.
        weights = (self.root / f"model-{device}" / "backbone" / "model.safetensors" for device in ("cpu", "cuda"))
        self.assertEqual(*(path.stat().st_size for path in weights))

    def test_train_refuses_other_devices(self):
        for name in ("gpu", "cuda:x"):
            self.assertEqual(run("train", *TINY_TRAINING, "--steps", 1, "--out", self.root / "m", "--work",
                                 self.root / "w", device=name)[0], 2)

    def test_eval(self):
        numbers = self.root / "{}.json"
        self.both("eval", NEEDLE, "--tasks", "needle", "copy", "--contexts", 128, "--per-cell", 2, "--dtype", "float32",
                  "--policy", "mage,k=32", "--json", numbers, ok=(0, 1))
        host, device = (json.loads((self.root / f"{name}.json").read_text()) for name in ("cpu", "cuda"))
        self.assertEqual([part["cells"] for part in host], [part["cells"] for part in device])
        self.assertEqual(sum(cell["asked"] for cell in host[0]["cells"]), 4)

    def test_check(self):
        vocabulary = json.loads((NEEDLE / "config.json").read_text())["vocab_size"]
        random = np.random.default_rng(5)
        safetensors(self.root / "reference.safetensors",
                    {"input_ids": random.integers(0, 900, 40), "logits": random.normal(size=(40, vocabulary)).astype("f4")},
                    {"mask": "block_causal", "block_length": "16"})
        printed = self.both("check", NEEDLE, "--reference", self.root / "reference.safetensors", "--dtype", "float32",
                            "--json", ok=(1,))  # random logits are not the model's
        numbers = [re.findall(r"-?\d+\.?\d*(?:e-?\d+)?", text) for text in printed]
        self.assertGreater(len(numbers[0]), 40)
        self.assertEqual(len(numbers[0]), len(numbers[1]))
        self.assertTrue(all(map(close, *numbers)))


if __name__ == "__main__":
    require_binary()
    unittest.main()
