"""The shipped model compared with its autoregressive backbone (MAGE, Table 2), as a user does it: capture,
capture --replay, analyze --backbone, report --backbone; every number against numpy on both files.
Usage: check_backbone.py models/needle"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import h5py
import numpy as np

import sets_reference
from report_numbers import check_numbers
from report_page import Page, check_captions, check_self_contained

BINARY = os.environ["BLOCKSCOPE_BINARY"]
MODEL = pathlib.Path(sys.argv.pop())
CAPTURE = ["--record", "full", "--threads", "1", "--batch-size", "2", "--quiet"]
ARRAYS = ["kl", "hidden_gap", "query_gap", "query_block_gap", "recall"]


def blockscope(*arguments, code=0):
    done = subprocess.run([BINARY, *map(str, arguments)], capture_output=True, text=True, timeout=300,
                          env=os.environ | {"OMP_WAIT_POLICY": "passive"})
    assert done.returncode == code, (arguments, done.returncode, done.stderr)
    return done.stderr if code else done.stdout


class Backbone(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.holder = tempfile.TemporaryDirectory(prefix="blockscope-backbone-")
        cls.root = pathlib.Path(cls.holder.name)
        cls.trained, cls.plain = cls.root / "trained.h5", cls.root / "backbone.h5"
        # Fewer keys than the shortest prompt, so that every row has sets that are not trivial.
        more = ["--set-size", 16]
        blockscope("capture", MODEL, "--prompts", MODEL / "demo.jsonl", "--limit", 2, "--gen-length",
                   16, *CAPTURE, *more, "-o", cls.trained)
        blockscope("capture", MODEL / "backbone", "--replay", cls.trained, *CAPTURE, *more, "-o",
                   cls.plain)
        cls.sides = [sets_reference.Trace(str(path)) for path in (cls.trained, cls.plain)]

    @classmethod
    def tearDownClass(cls):
        cls.holder.cleanup()

    def test_the_replay_sees_the_same_masks_and_says_where_they_came_from(self):
        for name in ("block", "step", "context_length", "changed", "masks_left", "recorded"):
            np.testing.assert_array_equal(self.sides[0].step[name], self.sides[1].step[name])
        model = json.loads(self.sides[1].file["/model/json"][:].tobytes())
        for key in ("mask_token_id", "block_length"):
            self.assertEqual(model["resolved"][key]["source"], "trace of --replay")

    def test_the_table_is_numpys_for_both_files(self):
        table = self.root / "table"
        text = blockscope("analyze", self.trained, "--backbone", self.plain, "--json",
                          f"{table}.json", "--hdf5", f"{table}.h5")
        self.assertIn("S1 KL of predictions", text)
        arrays = {array["name"]: array
                  for array in json.loads(table.with_suffix(".json").read_text())["metrics"][0]["arrays"]}
        stages = [sets_reference.query_statistics([side]) for side in self.sides]
        values = np.array(arrays["stages"]["values"], float).reshape(5, 2)
        terms = np.reshape(arrays["stages"]["terms"], (5, 2))
        for which in (0, 1):
            for stage, means in enumerate(stages[which]):
                whole = means.over(lambda cell: ())
                self.assertAlmostEqual(values[stage, which], whole.mean(()), delta=1e-5)
                self.assertEqual(terms[stage, which], whole.terms[()])
                self.check_array(arrays[ARRAYS[stage]], which, means)
        change = (values[:, 0] - values[:, 1]) / abs(values[:, 1])
        np.testing.assert_allclose(np.array(arrays["relative_change"]["values"], float), change)
        with h5py.File(f"{table}.h5") as file:
            np.testing.assert_allclose(file["query_comparison/stages"][()], values)
        # What the table on the terminal says.
        shown = lambda value: re.escape(f"{value:.4f}" if value >= 1e-3 else f"{value:.2e}")
        for trained, plain in values:
            self.assertRegex(text, rf"S\d [\w ]+ {shown(trained)} +{shown(plain)} ")

    def check_array(self, array, which, means):
        """[model, layer or step]: means over the rest."""
        axis, = array["axes"][1:]
        place = 0 if axis["name"] == "layer" else -1
        over = means.over(lambda cell: cell[place])
        for i, index in enumerate(axis["index"]):
            got = np.array(array["values"], float).reshape(2, -1)[which, i]
            np.testing.assert_allclose(got, over.mean(int(index)), rtol=0, atol=1e-5,
                                       err_msg=f"{array['name']} {index}")

    def test_tables_never_average_the_two_models(self):
        lines = blockscope("analyze", self.trained, "--backbone", self.plain).splitlines()
        start = lines.index("  kl [nats] by model")
        self.assertRegex(lines[start + 1], "step +trained +backbone")
        tables = [line for line in lines if line.split()[:1] == ["step"]]
        self.assertTrue(all("trained" in line for line in tables), tables)

    def test_the_page_shows_both_and_names_them(self):
        output, figures = self.root / "page.html", self.root / "figures"
        blockscope("report", self.trained, "--backbone", self.plain, "-o", output, "--figures",
                   figures)
        page = Page(output.read_text())
        check_self_contained(page)
        check_captions(page)
        check_numbers(page, figures, self.trained, self.plain)
        self.assertIn("backbone, trace backbone.h5", page.text)

    def test_what_does_not_pair_is_refused(self):
        other = self.root / "other.h5"
        blockscope("capture", MODEL / "backbone", "--replay", self.trained, *CAPTURE, "--set-size",
                   8, "-o", other)
        for command in (["analyze"], ["report", "-o", self.root / "never.html"]):
            error = blockscope(*command, self.trained, "--backbone", other, code=2)
            self.assertIn("set_size", error)
        self.assertFalse((self.root / "never.html").exists())
        error = blockscope("report", self.trained, "--backbone", self.plain, "-o", self.plain,
                           "--force", code=2)
        self.assertIn("backbone.h5", error)


if __name__ == "__main__":
    if not os.access(BINARY, os.X_OK):
        print(f"skipped: no binary at '{BINARY}'; build the target blockscope")
        sys.exit(77)
    unittest.main()
