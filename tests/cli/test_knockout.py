"""`blockscope study knockout` against `verify --intervene`, which decodes in lockstep and compares in float64, and
`calibrate --by-effect` against the CSV: ranks, what a sweep of both orders holds, and what is refused."""

import csv
import json
import unittest

import numpy as np
from capture_harness import CheckpointCase, capture, require_binary, run

IDS = "5,6,7,8,9,10,11,7,12,13"
LAYERS, HEADS = 2, 4


class Knockout(CheckpointCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.folder = cls.root / "study"
        code, _, err = run("study", "knockout", cls.model, "--input-ids", IDS, "--gen-length", 8, "--no-stop", "-o",
                           cls.folder, "-q")
        assert code == 0, err
        with open(cls.folder / "knockout.csv", newline="") as file:
            cls.rows = list(csv.DictReader(file))

    def test_every_head_region_and_sink_has_a_row(self):
        found = [(row["what"], row["layer"], row["head"], row["region"]) for row in self.rows]
        heads = [(what, str(layer), str(head), "") for what in ("external", "head", "frozen") for layer in range(LAYERS)
                 for head in range(HEADS)]
        keys = [("region", "", "", name) for name in ("first", "prompt", "answer", "decided", "masks")]
        self.assertEqual(found, heads + keys + [("sinks", "", "", "")])
        for name in ("external", "head", "frozen"):
            self.assertIn("<svg", (self.folder / f"knockout-{name}.svg").read_text())

    def test_effects_are_those_that_verify_measures(self):
        texts = {"external": "drop_external", "head": "drop_head", "frozen": "freeze_external"}
        for row in self.rows:
            if row["what"] in texts and row["head"] not in ("1", "3"):
                continue
            text = (f"{texts[row['what']]},layers={row['layer']},heads={row['head']}" if row["what"] in texts else
                    f"hide_keys,region={row['region']}" if row["region"] else "hide_keys,sinks=3")
            with self.subTest(text):
                code, out, err = run("verify", self.model, "--input-ids", IDS, "--gen-length", 8, "--no-stop",
                                     "--intervene", text, "--repeats", 1, "--json", "-q")
                self.assertEqual(code, 0, err)
                replay = json.loads(out)["settings"][0]["replay"]
                kl = replay["kl"]["mean"]
                self.assertLess(abs(float(row["kl"]) - kl), 1e-6 + 1e-4 * kl, (text, kl, row))

    def test_a_study_goes_on_and_draws_again(self):
        before = (self.folder / "knockout.csv").read_text()
        code, _, err = run("study", "knockout", self.model, "--input-ids", IDS, "--gen-length", 8, "--no-stop", "-o",
                           self.folder, "-q", "--resume")
        self.assertEqual((code, (self.folder / "knockout.csv").read_text()), (0, before), err)

    def calibrated(self, name, *arguments):
        trace, out = self.root / "trace.h5", self.root / f"{name}.json"
        if not trace.exists():
            code, _, err = capture(self.model, "--input-ids", IDS, "--gen-length", 16, "--no-stop", "--record",
                                   "outputs", "-o", trace)
            self.assertEqual(code, 0, err)
        code, _, err = run("calibrate", trace, "-o", out, "--saving", 0.3, "--force", "--quiet", *arguments)
        return code, err, out

    def test_calibration_by_effect(self):
        code, err, out = self.calibrated("effect", "--by-effect", self.folder / "knockout.csv")
        self.assertEqual(code, 0, err)
        file = json.loads(out.read_text())
        self.assertIn("rank", file["statistic"])
        self.assertIn("knockout.csv", file["computed_from"])
        kl = np.array([float(row["kl"]) for row in self.rows if row["what"] == "frozen"])
        rank = 1 - np.searchsorted(np.sort(kl), kl) / (len(kl) - 1)
        np.testing.assert_allclose(np.array(file["similarity"]).ravel(), rank, atol=1e-12)
        self.assertEqual(self.calibrated("similar")[0], 0)
        code, out, err = run("verify", self.model, "--input-ids", IDS, "--gen-length", 16, "--no-stop", "--policy",
                             f"flashblock,reuse={self.root / 'similar.json'}", "--sweep", "--also",
                             self.root / "effect.json", "--taus", 2, "--json", "-q", "--repeats", 1)
        self.assertEqual(code, 0, err)
        orders = [setting["order"] for setting in json.loads(out)["settings"]]
        self.assertEqual(set(orders), {"similarity", "effect"})

    def test_what_is_refused(self):
        wrong = self.root / "wrong.csv"
        text = (self.folder / "knockout.csv").read_text().splitlines()
        for lines, words in ((["a,b"], "expected a column what"), (text[:20], "expected a row"),
                             ([*text, "frozen,7,0,,0.1"], "expected a layer below 2"),
                             ([*text, "frozen,1,0,,x"], "a KL"), (None, "can't be read")):
            wrong.unlink(missing_ok=True)
            if lines is not None:
                wrong.write_text("\n".join(lines) + "\n")
            code, err, _ = self.calibrated("refused", "--by-effect", wrong)
            self.assertTrue(code == 1 and words in err and "study knockout" in err, (words, err))
            self.assertFalse((self.root / "refused.json").exists())


if __name__ == "__main__":
    require_binary()
    unittest.main()
