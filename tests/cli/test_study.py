"""`blockscope study` as a user runs it: every study on the shipped model, what a cut one keeps, and what is
refused."""

import csv
import json
import shutil
import signal
import time
import unittest

from capture_harness import require_binary, run, start
from command_line_case import FAILED, NEEDLE, USAGE, CommandLineCase

SMALL = ["--contexts", "128", "--per-cell", 1, "--threads", 1, "-q"]
STUDIES = {
    "union": ["--k", "4,8", "--pages", "8,4"],
    "stages": ["--k", "4,8", "--backbone", NEEDLE / "backbone"],
    "estimators": ["--k", "4,8", "--pages", "8"],
    "needle": ["--k", "4,8", "--depths", 2],
    "residual": ["--densities", "0.1,0.4"],
    "tau": ["--taus", "1,2", "--policies", "flashblock,flashblock,count=step", "--repeats", 1],
    "caches": ["--strategies", "low_confidence_static,low_confidence_dynamic,threshold,factor"],
}


def rows(path):
    with path.open() as lines:
        return list(csv.DictReader(lines))


class Study(CommandLineCase):
    def setUp(self):
        super().setUp()
        self.out = self.root / "study"
        shutil.rmtree(self.out, ignore_errors=True)

    def study(self, name, *arguments):
        return self.must("study", name, NEEDLE, *SMALL, *STUDIES[name], "-o", self.out, *arguments)

    def test_every_study_prints_its_table_and_writes_numbers_and_pictures(self):
        for name in STUDIES:
            with self.subTest(study=name):
                printed = self.study(name)
                self.assertEqual(printed, (self.out / f"{name}.txt").read_text())
                self.assertGreater(len(rows(self.out / f"{name}.csv")), 3)
                self.assertTrue(list(self.out.glob(f"{name}*.svg")), name)
                self.assertTrue(list(self.out.glob(f"{name}*.pdf")), name)

    def test_tau_has_the_numbers_of_verify(self):
        prompts, asked = NEEDLE / "demo.jsonl", ["--limit", 2, "--dtype", "float32", "--threads", 1]
        policies = ["flashblock", "flashblock,count=step", "flashblock,refresh=rows"]
        self.must("study", "tau", NEEDLE, "--prompts", prompts, "--taus", "1,3", "--repeats", 1, "--policies",
                  ",".join(policies), *asked, "-o", self.out, "--no-figures")
        found = {row["policy"]: row for row in rows(self.out / "tau.csv") if row["kl"]}
        saved = {}
        for policy in policies:
            for tau in (1, 3):
                name = policy.replace("flashblock", f"flashblock,tau={tau}", 1)
                with self.subTest(policy=name):
                    self.must("verify", NEEDLE, "--policy", name, "--prompts", prompts, "--repeats", 1, "-q", *asked, "-o",
                              self.root / "verify.json", "--force")
                    verified = json.loads((self.root / "verify.json").read_text())["settings"][0]
                    row, reads = found[name], verified["free_running"]["reads"]
                    self.assertAlmostEqual(float(row["kl"]), verified["replay"]["kl"]["mean"], 6)
                    self.assertAlmostEqual(float(row["keys_not_read"]), reads["saving"], 5)
                    self.assertAlmostEqual(float(row["products_not_computed"]),
                                           reads["flops_avoided"] / reads["flops"], 5)
                    saved[name] = float(row["keys_not_read"]), float(row["products_not_computed"])
        # At one token a step, tau = 1 reads at every step: with refresh=rows a single row.
        self.assertEqual(saved["flashblock,tau=1"], (0, 0))
        keys, products = saved["flashblock,tau=1,refresh=rows"]
        self.assertEqual(keys, 0)
        self.assertGreater(products, 0.8)
        self.assertGreater(saved["flashblock,tau=3,count=step"][0], saved["flashblock,tau=3"][0])

    def test_caches_of_a_bidirectional_model_are_set_beside_none(self):
        model = NEEDLE.parent / "needle-bidirectional"
        self.must("study", "caches", model, *SMALL, "--block-length", 16, "--strategies", "low_confidence_static",
                  "--caches", "none,prefix,dual,dllm-cache,d2cache,current_k=8", "-o", self.out, "--no-figures")
        found = {row["cache"]: row for row in rows(self.out / "caches.csv")}
        self.assertIn("d2cache,current_k=8", found)
        found["d2cache"] = found.pop("d2cache,current_k=8")
        self.assertEqual(list(found), ["none", "prefix", "dual", "dllm-cache", "d2cache"])
        passes = int(found["none"]["passes"])
        whole = float(found["none"]["rows"])
        for name, row in found.items():
            self.assertEqual(float(row["rows_uncached"]) / int(row["passes"]), whole / passes, name)
        self.assertEqual((found["none"]["saved"], found["none"]["equal"]), ("0", "1"))
        blocks = passes // 16  # a whole canvas at the first of 16 passes, else 16 rows
        self.assertEqual(float(found["dual"]["rows"]), blocks * (whole / passes + 15 * 16))
        for name in ("prefix", "dllm-cache", "d2cache"):
            self.assertLess(float(found[name]["rows"]), whole, name)
        self.refused(USAGE, "block-causal", "study", "caches", NEEDLE, *SMALL, "--caches", "dual", "-o", self.root / "n")
        self.refused(USAGE, "bidirectional", "study", "caches", model, *SMALL, "--caches", "commit", "-o", self.root / "n")
        self.refused(USAGE, "--caches", "study", "caches", model, *SMALL, "--caches", "dual", "--cache", "dual", "-o",
                     self.root / "n")

    def test_caches_that_a_strategy_refuses_are_left_out_and_named(self):
        model = NEEDLE.parent / "needle-bidirectional"
        arguments = ["study", "caches", model, *SMALL, "--block-length", 16, "--strategies", "wino,threshold", "-o"]
        self.must(*arguments, self.out)
        pairs = [(row["strategy"], row["cache"]) for row in rows(self.out / "caches.csv")]
        self.assertEqual(pairs, [("wino", "none"), *[("threshold", cache) for cache in
                                                     ("none", "prefix", "dual", "dllm-cache", "d2cache")]])
        self.assertIn("Refused: wino with prefix, wino with dual, wino with dllm-cache, wino with d2cache.",
                      (self.out / "caches.txt").read_text().replace("\n", " "))
        self.refused(USAGE, "strategy wino: ", *arguments, self.root / "n", "--caches", "none,dual")

    def test_time_counts_keys_by_the_rules_of_the_methods(self):
        self.must("study", "time", NEEDLE, "--contexts", 256, "--k", 32, "--pages", 16, "--steps", 8, "--blocks", 2,
                  "--repeats", 1, "-q", "-o", self.out, "--no-figures")
        layers, kv_heads, dim, element = 6, 2, 48, 2
        found = {row["method"]: row for row in rows(self.out / "time.csv")}
        row_bytes = layers * kv_heads * dim * element
        exact = (256 + 272) / 2  # mean N over two blocks of 8 steps
        attention = {"exact": exact, "mage": (exact + 7 * 32) / 8, "mage, one thread": (exact + 7 * 32) / 8,
                     "mage+flashblock": (exact + 7 * 32) / 8, "quest p=16": 32, "sparsed": (256 * 5 + 32 * 11) / 16,  # dense up to step int(3.2) + 2
                     "flashblock tau=2": exact}  # two tokens a step: nothing is reused
        choosing = {"exact": 0, "mage": exact / 8, "mage, one thread": exact / 8, "quest p=16": 2 * exact / 16,
                    "mage+flashblock": (exact + 2 * (exact - 32)) / 8,  # and the residual's keys and values
                    "sparsed": 256 / 16, "flashblock tau=2": 0}
        self.assertEqual(set(found), set(attention))
        for method, row in found.items():
            self.assertAlmostEqual(float(row["attention_bytes"]), 2 * row_bytes * attention[method], delta=1,
                                   msg=method)
            self.assertAlmostEqual(float(row["choosing_bytes"]), row_bytes * choosing[method], delta=1, msg=method)
        self.assertEqual(float(found["mage"]["choosing_share"]), 1 / 8)
        self.assertEqual(float(found["quest p=16"]["choosing_share"]), 1)
        self.assertEqual(float(found["sparsed"]["choosing_share"]), 1 / 16)
        self.assertEqual(float(found["mage, one thread"]["beside_ms"]), 0)
        self.must("study", "time", NEEDLE, "--contexts", 256, "--k", 32, "--pages", 16, "--steps", 8, "--blocks", 2,
                  "--repeats", 1, "--batch-size", 3, "-q", "-o", self.root / "batch", "--no-figures")
        for row in rows(self.root / "batch" / "time.csv"):
            self.assertAlmostEqual(float(row["attention_bytes"]) / 3, 2 * row_bytes * attention[row["method"]], delta=1)

    def test_exact_scores_as_eval_does(self):
        self.must("study", "needle", NEEDLE, "--contexts", "128,256", "--depths", 1, "--per-cell", 6, "--k", 8, "-q",
                  "-o", self.out, "--no-figures", "--denoising-steps", 2)
        report = self.root / "eval.json"
        self.must("eval", NEEDLE, "--tasks", "needle", "--contexts", "128,256", "--per-cell", 6, "--denoising-steps",
                  2, "-q", "--json", report, "--force")
        want = {str(cell["context"]): cell["right"] / cell["asked"] for cell in json.loads(report.read_text())[0]["cells"]}
        got = {row["context"]: float(row["accuracy"]) for row in rows(self.out / "needle.csv")
               if row["method"] == "exact"}
        self.assertEqual(got, want)

    def test_a_study_that_was_cut_goes_on_to_the_same_end(self):
        arguments = ["study", "needle", NEEDLE, "--contexts", "128,256", "--depths", 4, "--per-cell", 2, "--k", "4,8",
                     "--threads", 1, "-q"]
        whole, cut = self.root / "whole", self.root / "cut"
        for folder in (whole, cut):
            shutil.rmtree(folder, ignore_errors=True)
        self.must(*arguments, "-o", whole)
        cells = cut / "needle.cells.jsonl"
        for sent, code in ((signal.SIGKILL, -9), (signal.SIGINT, 130)):
            process = start(*arguments, "-o", cut, "--resume")
            before = cells.read_bytes().count(b"\n") if cells.exists() else 0
            while process.poll() is None and (not cells.exists() or cells.read_bytes().count(b"\n") < before + 3):
                time.sleep(0.005)
            process.send_signal(sent)
            err = process.communicate()[1]
            self.assertEqual(process.returncode, code)
            if sent == signal.SIGINT:
                self.assertIn("cells are safe in", err)
            self.assertFalse((cut / "needle.csv").exists())
        measured = cells.read_text().splitlines()
        self.must(*arguments, "-o", cut, "--resume")
        self.assertEqual(cells.read_text().splitlines()[:len(measured)], measured)
        self.assertEqual((cut / "needle.csv").read_text(), (whole / "needle.csv").read_text())
        self.assertEqual((cut / "needle.txt").read_text(), (whole / "needle.txt").read_text())
        # Complete: nothing is measured again.
        cells.chmod(0o644)
        before = cells.read_bytes()
        self.must(*arguments, "-o", cut, "--resume")
        self.assertEqual(cells.read_bytes(), before)

    def test_results_of_another_study_are_never_mixed_nor_replaced(self):
        self.study("union")
        again = ["study", "union", NEEDLE, *SMALL, *STUDIES["union"], "-o", self.out]
        before = {path.name: path.read_bytes() for path in self.out.iterdir()}
        self.refused(USAGE, "--force", *again)
        for changed, named in ((["--task-seed", 2], "task_seed: expected 1, got 2"), (["--exact-layers", 1], None),
                               (["--gen-length", 16], "gen_length: expected 32, got 16")):
            if named is not None:
                self.refused(USAGE, named, *again, "--resume", *changed)
        self.assertEqual({path.name: path.read_bytes() for path in self.out.iterdir()}, before)
        self.study("union", "--force")
        # Nor what only looks like a result: a trace under the name that `stages` would write.
        (self.out / "stages-trained.h5").write_text("mine")
        stages = ["study", "stages", NEEDLE, *SMALL, *STUDIES["stages"], "-o", self.out]
        self.refused(USAGE, "stages-trained.h5", *stages)
        self.assertEqual((self.out / "stages-trained.h5").read_text(), "mine")

    def test_what_a_study_reads_is_never_its_output(self):
        self.out.mkdir()
        prompts = self.out / "union.cells.jsonl"
        prompts.write_text('{"prompt": "Q: Anna"}\n')
        for option in ("--force", "--resume"):
            self.refused(USAGE, "union.cells.jsonl", "study", "union", NEEDLE, "--prompts", prompts, "-o", self.out,
                         option)
        self.assertEqual(prompts.read_text(), '{"prompt": "Q: Anna"}\n')

    def test_a_cut_capture_of_stages_is_made_again(self):
        stages = ["study", "stages", NEEDLE, "--backbone", NEEDLE / "backbone", "--contexts", "512", "--per-cell", 30,
                  "--k", 8, "--threads", 1, "-q", "--no-figures", "-o", self.out]
        process = start(*stages)
        partial = self.out / "stages-trained.h5.partial"
        while not partial.exists() and process.poll() is None:
            time.sleep(0.005)
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        err = process.communicate()[1]
        self.assertEqual(process.returncode, 130, err)
        self.assertIn("0 of 2 cells are safe", err)
        self.must(*stages, "--resume")
        self.assertTrue((self.out / "stages.csv").exists())
        self.assertFalse(partial.exists())

    def test_what_makes_no_study_is_refused(self):
        needle = ["study", "needle", NEEDLE, "-o", self.out]
        self.refused(USAGE, "expected one of union, stages", "study", "needles", NEEDLE, "-o", self.out)
        self.refused(USAGE, "--backbone", "study", "stages", NEEDLE, "-o", self.out)
        self.refused(USAGE, "autoregressive", "study", "needle", NEEDLE / "backbone", "-o", self.out)
        self.refused(USAGE, "expected needle or sentence", *needle, "--tasks", "chain")
        self.refused(USAGE, "expected one of needle", *needle, "--tasks", "needles")
        self.refused(USAGE, "contradict", *needle, "--resume", "--force")
        self.refused(USAGE, "expected a folder", "study", "needle", NEEDLE, "-o", NEEDLE / "config.json")
        self.refused(USAGE, "one prompt at a time", "study", "needle", NEEDLE, "--batch-size", 2, "-o", self.out)
        self.refused(USAGE, "one set size", "study", "time", NEEDLE, "--k", "4,8", "-o", self.out)
        self.refused(USAGE, "at most the block length 16", "study", "time", NEEDLE, "--k", 4, "--steps", 17,
                     "--contexts", 64, "-o", self.out)
        self.refused(USAGE, "positions of this model", "study", "time", NEEDLE, "--contexts", 1_000_000, "-o", self.out)
        self.refused(FAILED, "max_position_embeddings", *needle, "--contexts", 1_000_000)
        self.refused(FAILED, "expected a readable file", "study", "union", NEEDLE, "--prompts", self.root / "none.jsonl", "-o",
                     self.out)
        self.assertFalse(self.out.exists())

    def test_options_that_a_study_would_ignore_are_refused(self):
        for name, options in (("needle", (["--taus", 2], ["--densities", 0.2], ["--steps", 8], ["--blocks", 2],
                                          ["--repeats", 2], ["--backbone", NEEDLE], ["--batch-size", 2])),
                              ("union", (["--depths", 3], ["--exact-layers", 1], ["--policy-seed", 2])),
                              ("time", (["--tasks", "needle"], ["--per-cell", 2], ["--prompts", "x.jsonl"], ["--depths", 2],
                                        ["--gen-length", 8], ["--no-stop"], ["--denoising-steps", 4, "--steps", 4])),
                              ("residual", (["--k", 8], ["--pages", 8])), ("tau", (["--k", 8],))):
            for option in options:
                self.refused(USAGE, option[0], "study", name, NEEDLE, "-o", self.out, *option)
        prompts = self.made / "a.jsonl"
        for option in (["--contexts", 128], ["--tasks", "needle"], ["--per-cell", 2], ["--depths", 2],
                       ["--task-seed", 2]):
            self.refused(USAGE, option[0], "study", "needle", NEEDLE, "--prompts", prompts, "-o", self.out, *option)


if __name__ == "__main__":
    require_binary()
    unittest.main()
