"""The whole loop on the shipped model: capture -> calibrate -> capture with reuse. What the file
lets reuse is what reuses, the keys predicted not to be read are not read, and the predicted one-step
error is what shadow values measure under replay.

Usage: check_reuse_loop.py MODEL_FOLDER"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import numpy as np
import reuse_oracle as oracle
from attention_math import merge

BINARY = os.environ["BLOCKSCOPE_BINARY"]
MODEL = pathlib.Path(sys.argv.pop())
TAU = 3
PROMPTS = 5
EXACT_NUMBERS = ["--dtype", "float32", "--threads", "1", "--quiet"]
EXACT_ARRAYS = ["--record", "outputs", "--array-type", "f32"]


class ReuseLoop(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="blockscope-loop-")
        cls.addClassCleanup(cls.folder.cleanup)
        cls.root = pathlib.Path(cls.folder.name)
        lines = (MODEL / "demo.jsonl").read_text().splitlines()
        cls.prompts = cls.root / "prompts.jsonl"
        cls.prompts.write_text("\n".join(lines[:: max(1, len(lines) // PROMPTS)][:PROMPTS]))
        cls.dense = cls.root / "dense.h5"
        cls.capture(cls.dense, "--prompts", cls.prompts, *cls.decoding(), *EXACT_ARRAYS)

    @staticmethod
    def decoding():
        # A whole block is decided 3, 3, 2, 2, 2, 2 and 2 tokens a step, so that TAU matters.
        return ["--denoising-steps", "7", "--gen-length", "48"]

    @classmethod
    def run_command(cls, *arguments):
        done = subprocess.run([BINARY, *[str(a) for a in arguments]], capture_output=True,
                              text=True, timeout=300)
        if done.returncode != 0:
            raise AssertionError(f"{arguments}\n{done.stdout}{done.stderr}")
        return done.stdout

    @classmethod
    def capture(cls, path, *flags):
        cls.run_command("capture", MODEL, *EXACT_NUMBERS, "--force", "-o", path, *flags)
        return oracle.Trace(path)

    def calibrate(self, trace, output, *flags):
        self.run_command("calibrate", trace, "-o", output, "--tau", TAU, "--force", "--quiet",
                         *flags)
        return json.loads(output.read_text())

    def check_rule(self, trace, mask):
        """-> keys not read: a KV head's prefix is skipped where all of its query heads reuse."""
        layers, heads, kv_heads = trace.shape
        skipped = 0
        for row in (row for rows in trace.blocks() for row in rows):
            reused = trace.file["/attention/reused"][row].astype(bool)
            may = trace.reuses(row, TAU)
            np.testing.assert_array_equal(reused, mask & may, f"row {row}, M {trace.M[row]}")
            skipped += trace.N[row] * reused.reshape(layers, kv_heads, -1).all(-1).sum()
        return skipped

    def test_what_the_file_lets_reuse_is_what_reuses_and_saves_what_was_predicted(self):
        similarity = self.calibrate(self.dense, self.root / "any.json", "--gamma", 0)["similarity"]
        for granularity, gamma in (("head", np.median(similarity)),
                                   ("kv-group", np.quantile(similarity, 0.2))):
            output = self.root / f"{granularity}.json"
            file = self.calibrate(self.dense, output, "--gamma", gamma, "--granularity",
                                  granularity)
            mask = np.array(file["reuse"])
            self.assertTrue(mask.any() and not mask.all())
            policy = ["--policy", f"flashblock,tau={TAU},reuse={output}", "--record", "summary"]
            free = self.capture(self.root / "free.h5", "--prompts", self.prompts,
                                *self.decoding(), *policy)
            self.assertGreater(self.check_rule(free, mask), 0)
            replayed = self.capture(self.root / "replayed.h5", "--replay", self.dense, *policy)
            np.testing.assert_array_equal(replayed.M, oracle.Trace(self.dense).M)
            chosen = file["predictions"]["chosen"]
            self.assertEqual(self.check_rule(replayed, mask),
                             chosen["external_keys"] - chosen["external_keys_read"])
            print(f"{granularity}, gamma {gamma:.3f}: {mask.sum()} of {mask.size} heads, "
                  f"{chosen['byte_saving']:.1%} of the prefix bytes predicted and not read")

    def test_heads_decided_by_hand_reuse_as_the_file_says(self):
        output = self.root / "pinned.json"
        file = self.calibrate(self.dense, output, "--gamma", -1)
        del file["predictions"]  # of gamma alone
        file["pins"] = [{"layer": 0, "head": 1, "reuse": False},
                        {"layer": 3, "head": 2, "reuse": False}]
        output.write_text(json.dumps(file))
        refused = subprocess.run([BINARY, "capture", MODEL, "--prompts", self.prompts, "--policy",
                                  f"flashblock,reuse={output}", "-o", self.root / "no.h5"],
                                 capture_output=True, text=True, timeout=300)
        self.assertEqual(refused.returncode, 1)
        self.assertIn("pins[0].reuse", refused.stderr)
        for pin in file["pins"]:
            file["reuse"][pin["layer"]][pin["head"]] = pin["reuse"]
        output.write_text(json.dumps(file))
        mask = np.array(file["reuse"])
        self.assertEqual(mask.size - mask.sum(), 2)
        trace = self.capture(self.root / "pinned.h5", "--prompts", self.prompts, *self.decoding(),
                             "--policy", f"flashblock,tau={TAU},reuse={output}", "--record", "summary")
        self.assertGreater(self.check_rule(trace, mask), 0)
        self.run_command("verify", MODEL, "--policy", f"flashblock,tau={TAU},reuse={output}", "--prompts",
                         self.prompts, "--repeats", 1, "--gen-length", 16, "--quiet")

    def test_predicted_error_is_what_shadow_values_measure(self):
        # With heads of one layer reusing, that layer sees the inputs of the dense run at every step
        # of a replay, so the one-step error is the whole error there.
        for layer in (0, 2, 5):
            only = [*EXACT_ARRAYS, "--layers", layer]
            dense = self.root / "layer.h5"
            self.capture(dense, "--replay", self.dense, *only)
            similarity = np.array(self.calibrate(dense, self.root / "any.json", "--gamma", 0)
                                  ["similarity"], float)[layer]
            for gamma in (-1, np.sort(similarity)[2]):
                output = self.root / "layer.json"
                file = self.calibrate(dense, output, "--gamma", gamma)
                mask = np.array(file["reuse"])
                self.assertEqual(mask.sum(), mask[layer].sum())
                replayed = self.capture(self.root / "shadow.h5", "--replay", self.dense,
                                        "--policy", f"flashblock,tau={TAU},reuse={output}",
                                        "--shadow", *only)
                self.check_shadow(replayed, mask[layer], file["predictions"]["chosen"], layer)

    def check_shadow(self, trace, mask, chosen, layer):
        totals, where, positions = np.zeros(3), np.zeros(3), 0
        for row in (row for rows in trace.blocks() for row in rows):
            if not trace.reuses(row, TAU):
                continue
            exact_out, exact_lse, internal, lse_internal = trace.attention(row)
            pair = tuple(trace.read(f"/attention/{name}", row) for name in ("external", "lse_external"))
            used, true = (merge([outer, (internal, lse_internal)])[0] for outer in (pair, (exact_out, exact_lse)))
            error = used - true
            self.assertFalse(error[0, ~mask].any())
            totals += [(error**2).sum(), np.abs(error).sum(), (true**2).sum()]
            where += [(error**2).sum(), np.abs(error).sum(), (true[0, mask]**2).sum()]
            positions += error[0, :, :, 0].size
            # What the runtime itself measured, per head, from the output it really used.
            stored = trace.read("/shadow/output_error", row)[0]
            norm = lambda x: np.sqrt((x**2).sum((-2, -1)))
            np.testing.assert_allclose(stored, (norm(error) / norm(true))[0], rtol=1e-3, atol=1e-5)
        self.assertEqual(chosen["terms"], positions)
        self.assertGreater(positions, 0)
        l2, l1 = np.sqrt(totals[0] / totals[2]), totals[1] / (positions * error.shape[-1])
        self.assertGreater(l2, 1e-4)
        np.testing.assert_allclose([chosen["relative_l2"], chosen["mean_l1"]], [l2, l1], rtol=1e-5)
        l2, l1 = np.sqrt(where[0] / where[2]), where[1] / (chosen["terms_reused"] * error.shape[-1])
        self.assertEqual(chosen["terms_reused"], positions * mask.sum() // mask.size)
        np.testing.assert_allclose([chosen["relative_l2_reused"], chosen["mean_l1_reused"]],
                                   [l2, l1], rtol=1e-5)
        print(f"layer {layer}, {mask.sum()} heads: relative L2 {l2:.6f} measured, "
              f"{chosen['relative_l2_reused']:.6f} predicted")


if __name__ == "__main__":
    if not os.access(BINARY, os.X_OK):
        print(f"skipped: no binary at '{BINARY}'; build the target blockscope")
        sys.exit(77)
    unittest.main()
