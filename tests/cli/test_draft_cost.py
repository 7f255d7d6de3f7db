"""/draft/cost of `blockscope capture TARGET --draft DRAFT`: what is measured, when it isn't, and that the times are
those of passes."""

import unittest

import h5py
import numpy as np
from capture_harness import capture, require_binary, run, write_prompts
from capture_refusal import USAGE, RefusalCase
from test_draft import draft_tensors, write_draft, write_target, zlab_config

BLOCK = 7


class DraftCost(RefusalCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.model = write_target(cls.root / "target")
        cls.draft = write_draft(cls.root / "draft", zlab_config(block_size=BLOCK), draft_tensors())

    def cost(self, *flags, prompt=("--input-ids", "1,2,3,4,5", "--gen-length", 40), quiet=True):
        """-> {column: values} or None, seconds of the run's rows by kind, stderr."""
        out = self.root / "run.h5"
        code, _, err = (capture if quiet else run)(*(() if quiet else ("capture",)), self.model, "--draft", self.draft,
                                                   *prompt, "--no-stop", "-o", out, "--force", *flags)
        self.assertEqual(code, 0, err)
        with h5py.File(out) as file:
            rows = int(file["/steps/committed"][0])
            times = {kind: file["/steps/pass_time_ns"][:rows][file["/steps/kind"][:rows] == kind] for kind in (1, 2)}
            self.assertEqual("draft_costs" in file.attrs, "cost" in file["draft"])
            if "draft_costs" not in file.attrs:
                return None, times, err
            table = {name: item[:] for name, item in file["/draft/cost"].items()}
            for name, dtype in (("block_length", "<i4"), ("context_length", "<i4"), ("draft_ns", "<i8"),
                                ("target_ns", "<i8")):
                self.assertEqual(file["/draft/cost"][name].dtype, np.dtype(dtype))
            self.assertEqual({len(values) for values in table.values()}, {int(file.attrs["draft_costs"])})
        return table, times, err

    def test_lengths_and_context(self):
        for flags, lengths in (((), [1, 2, 4, 7]), (("--block-length", 4), [1, 2, 4]),
                               (("--block-length", 3), [1, 2, 3]), (("--block-length", 2), [1, 2]),
                               (("--block-length", 1), [1])):
            table, _, _ = self.cost(*flags)
            self.assertEqual(table["block_length"].tolist(), lengths)
            self.assertEqual(set(table["context_length"].tolist()), {5 + 20})
            self.assertEqual(table["draft_ns"][0], 0)
            self.assertTrue((table["draft_ns"][1:] > 0).all() and (table["target_ns"] > 0).all())
        prompts = write_prompts(self.root / "few.jsonl", 5, gen_length=20)
        self.cost(prompt=("--prompts", prompts))
        with h5py.File(self.root / "run.h5") as file:
            expected = int(sum(file["/sequences/prompt_length"][:5] + 10)) // 5
            self.assertEqual(file["/draft/cost/context_length"][0], expected)

    def test_times_are_those_of_passes(self):
        table, times, _ = self.cost()
        for kind, column in ((1, "draft_ns"), (2, "target_ns")):
            ratio = table[column][-1] / np.median(times[kind])
            self.assertTrue(0.05 < ratio < 20, (column, ratio))  # other work may run on the same machine

    def test_a_comparison_without_times_is_one_without_costs(self):
        self.cost()
        (self.root / "run.h5").rename(self.root / "first.h5")
        for flags in ((), ("--no-draft-cost",)):
            self.cost(*flags)
            code, out, err = run("diff", self.root / "first.h5", self.root / "run.h5", "--ignore-timing")
            self.assertEqual(code, 0, out + err)
            code, out, err = run("diff", self.root / "first.h5", self.root / "run.h5")
            self.assertEqual(code, 1, out + err)
            self.assertIn("/draft/cost/target_ns", out)

    def test_where_it_is_left_out(self):
        table, _, err = self.cost("--no-draft-cost", quiet=False)
        self.assertIsNone(table)
        self.assertNotIn("measuring", err)
        _, _, err = self.cost(quiet=False)
        self.assertIn("measuring passes of target and draft after 25 keys", err)
        _, _, err = self.cost("--quiet", quiet=False)
        self.assertNotIn("measuring", err)
        code, _, err = run("capture", self.model, "--draft", self.draft, "--input-ids", "1,2", "-o",
                           self.root / "dry.h5", "--dry-run")
        self.assertEqual(code, 0, err)
        self.assertNotIn("measuring", err)
        self.refused(USAGE, ["--no-draft-cost", "--draft"], "--no-draft-cost")


if __name__ == "__main__":
    require_binary()
    unittest.main()
