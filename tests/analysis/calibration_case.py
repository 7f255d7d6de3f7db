"""Traces of odd shapes, and `calibrate` over them, for tests that compare its file with numpy. The
script's argument is the program make_trace."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import numpy as np
from json_schema import problems

BINARY = os.environ["BLOCKSCOPE_BINARY"]
MAKE_TRACE = sys.argv.pop()
SCHEMA = json.loads((pathlib.Path(__file__).parents[2] / "docs/reuse.schema.json").read_text())
DIGEST = "0123456789abcdef" * 4

# Each: flags of make_trace for every trace that is calibrated together.
CASES = {
    "plain": ["--unequal --interleaved --sequences 3 --steps 6 --blocks 3"],
    "one of everything": ["--layers 1 --heads 1 --kv-heads 1 --head-dim 1 --block-length 1 "
                          "--sequences 1 --blocks 1 --steps 3 --array-type f32 --set-size 1"],
    "block of one": ["--block-length 1 --steps 5 --heads 6 --kv-heads 3 --array-type f32"],
    "float32, odd head_dim": ["--head-dim 13 --steps 7 --array-type f32 --correlation 0.5"],
    "gaps and some heads": ["--steps 7 --blocks 4 --record-steps 1,2,4,5,6 --record-layers 0,2 "
                            "--record-heads 1,2,3"],
    "positions that don't exist": ["--invalid 1 --steps 6 --unequal"],
    "no prefix at first": ["--prompt 0 --blocks 3 --steps 5"],
    "NaN, infinity, zero": ["--nan 0.1 --inf 0.05 --zero 0.1 --steps 8 --sequences 4"],
    "cut off": ["--partial --steps 6 --blocks 3"],
    "resumed": ["--aborted --steps 6 --blocks 3"],
    "shadow of a policy": ["--policy flashblock --tau 3 --shadow --steps 8 --blocks 3"],
    "summaries only": ["--level summary --steps 6 --blocks 3 --unequal"],
    "unequal traces": ["--steps 3 --seed 5 --sequences 1 --blocks 1",
                       "--steps 9 --seed 6 --unequal --sequences 4",
                       "--steps 5 --seed 7 --prompt 40"],
}


class CalibrationCase(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="blockscope-calibrate-")
        self.addCleanup(self.folder.cleanup)
        self.root = pathlib.Path(self.folder.name)

    def make(self, flags="", digest=DIGEST):
        path = self.root / f"t{len(list(self.root.iterdir()))}.h5"
        subprocess.run([MAKE_TRACE, path, "--digest", digest, *flags.split()], check=True)
        return path if path.exists() else path.with_name(path.name + ".partial")

    def command(self, *arguments):
        return subprocess.run([BINARY, "calibrate", *[str(a) for a in arguments]],
                              capture_output=True, text=True, timeout=120)

    def calibrate(self, traces, *flags):
        output = self.root / "reuse.json"
        done = self.command(*traces, "-o", output, "--force", *flags)
        self.assertEqual(done.returncode, 0, done.stderr)
        file = json.loads(output.read_text())
        self.assertEqual(problems(SCHEMA, file), [])
        return file

    def close(self, got, wanted, what):
        got = np.array(got, dtype=np.float64)  # null -> nan
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-7, equal_nan=True, err_msg=what)

    def refused(self, code, words, *arguments, output="out.json"):
        before = sorted(self.root.iterdir())
        done = self.command(*arguments, "-o", self.root / output)
        self.assertEqual(done.returncode, code, f"{arguments}: {done.stdout}{done.stderr}")
        for word in [words] if isinstance(words, str) else words:
            self.assertIn(word, done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        self.assertEqual(sorted(self.root.iterdir()), before)


def main():
    if not os.access(BINARY, os.X_OK):
        print(f"skipped: no binary at '{BINARY}'; build the target blockscope")
        sys.exit(77)
    unittest.main()
