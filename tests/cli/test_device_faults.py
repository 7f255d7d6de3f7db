"""--device cuda on a GPU that fails: every command says what happened and what to do, ends with 1, and a capture keeps
the rows that it had. The faults are those of the emulated cuda:0 (tests/support/emulated_cuda.h)."""

import pathlib
import re
import unittest

import h5py
import numpy as np

from capture_harness import MODELS, require_binary
from device_harness import FALLBACK, KERNELS, DeviceCase, run

NEEDLE = MODELS / "needle"
PROMPT = "Note: Tina lantern helmet. Question: Tina?"


class DeviceFaults(DeviceCase):
    def refused(self, *arguments, faults, device=FALLBACK):
        code, out, error = run(*arguments, "--device", "cuda", device=device, faults=faults)
        self.assertEqual(code, 1, error)
        self.assertRegex(error, "--device|cuda:0")
        self.assertIn("HINT", error)
        self.assertNotIn("frame #", error)
        *notes, error = error.splitlines()
        self.assertTrue(all(line.startswith("note: ") for line in notes), notes)
        return error

    def arguments(self, output, *more, gen_length=32):
        return ["capture", NEEDLE, "--prompt", PROMPT, "--gen-length", gen_length, "--no-stop", "-q", *more,
                "-o", output]

    def test_drivers(self):
        output = self.root / "x.h5"
        for driver, words in (("none", "Found no NVIDIA driver"), ("old", "driver on your system is too old"),
                              ("no-gpu", "No CUDA GPUs are available")):
            with self.subTest(driver):
                error = self.refused(*self.arguments(output), faults=f"driver={driver}")
                self.assertIn(words, error)
                self.assertIn("CUDA 13", error)
        self.assertEqual(list(self.root.iterdir()), [])

    def test_no_code_for_the_gpu(self):
        error = self.refused(*self.arguments(self.root / "x.h5"), faults="code=none", device=KERNELS)
        self.assertIn("compute capability 7.5", error)
        self.assertIn("CMAKE_CUDA_ARCHITECTURES", error)

    def test_memory_for_the_weights(self):
        for command in (self.arguments(self.root / "x.h5"),
                        ["verify", NEEDLE, "--prompt", PROMPT, "--policy", "mage,k=8"]):
            with self.subTest(command[0]):
                error = self.refused(*command, faults="memory=1000000")
                self.assertRegex(error, r"out of memory. Tried to allocate \d+ bytes.*\d+ bytes is free")
                self.assertIn("--dtype bfloat16", error)
        self.assertEqual(list(self.root.iterdir()), [])

    def test_memory_is_checked_where_it_is_needed(self):
        """The cache is on the device, what is recorded is not."""
        error = self.refused(*self.arguments(self.root / "x.h5", gen_length=1024), faults="memory=6000000")
        self.assertIn("memory of cuda:0", error)
        self.assertIn("KV cache", error)
        # Enough for weights and cache; the recorder's 10 MB are the host's.
        output = self.root / "y.h5"
        code, _, error = run(*self.arguments(output, "--record", "full", "--set-size", 1024), "--device", "cuda",
                             device=FALLBACK, faults="memory=40000000")
        self.assertEqual(code, 0, error)

    def kept(self, output, error):
        """The rows that a failed run says are safe, after reading all of them."""
        partial = pathlib.Path(f"{output}.partial")
        self.assertFalse(output.exists())
        rows = int(re.search(r"(\d+) rows are safe in", error)[1])
        self.assertIn(str(partial), error)
        self.assertIn("--resume", error)
        with h5py.File(partial) as trace:
            self.assertEqual(int(trace["/steps/committed"][0]), rows)
            lse = trace["/attention/lse_external"][:rows]
            denoising = trace["/steps/kind"][:rows] == 1
            self.assertFalse(np.isnan(lse[denoising]).any())
        self.assertEqual(run("info", partial)[0], 0)
        return rows

    def resume(self, output, *more):
        whole = self.root / "whole.h5"
        for path, options in ((whole, ["--force"]), (output, ["--resume"])):
            code, _, error = run(*self.arguments(path, *more), *options, "--device", "cuda", device=FALLBACK)
            self.assertEqual(code, 0, error)
        with h5py.File(whole) as expected, h5py.File(output) as got:
            self.assertTrue(np.array_equal(expected["/prediction/token"][-1], got["/prediction/token"][-1]))

    def test_lost_in_the_middle_of_a_run(self):
        rows = []
        for task, device in ((4000, FALLBACK), (12000, FALLBACK), (4000, KERNELS)):
            with self.subTest(task=task, device=device):
                output = self.root / f"lost-{task}-{pathlib.Path(device).stem}.h5"
                error = self.refused(*self.arguments(output), faults=f"lose={task}", device=device)
                self.assertIn("unspecified launch failure", error)
                self.assertNotIn("stacktrace", error)
                rows.append(self.kept(output, error))
        self.assertGreater(rows[1], rows[0])
        self.resume(self.root / f"lost-12000-{pathlib.Path(FALLBACK).stem}.h5")

    def test_lost_while_others_run(self):
        for command in (["verify", NEEDLE, "--prompt", PROMPT, "--policy", "mage,k=8", "--gen-length", 16],
                        ["bench", NEEDLE, "--context", 32, "--gen-length", 16]):
            with self.subTest(command[0]):
                self.assertIn("unspecified launch failure", self.refused(*command, faults="lose=1500"))

    def test_memory_in_the_middle_of_a_run(self):
        # Prompts of rising length: the last one's pass needs more than there is.
        prompts = self.root / "prompts.jsonl"
        long = "The park played and moved today beside the old school. " * 40
        prompts.write_text('{"prompt": "%s"}\n{"prompt": "%s"}\n' % (PROMPT, long + PROMPT))
        output = self.root / "memory.h5"
        arguments = ["capture", NEEDLE, "--prompts", prompts, "--gen-length", 16, "--no-stop", "-q", "--no-space-check",
                     "-o", output]
        error = self.refused(*arguments, faults="memory=9000000")
        self.assertRegex(error, r"Tried to allocate \d+ bytes.*\d+ bytes is free")
        self.assertIn("--batch-size", error)
        self.assertGreater(self.kept(output, error), 16)


if __name__ == "__main__":
    require_binary()
    unittest.main()
