"""`calibrate` against float64 numpy on traces of odd shapes: every number of the file it writes,
the schema, and what it refuses. Usage: check_calibration.py MAKE_TRACE"""

import numpy as np
import reuse_oracle as oracle
from calibration_case import CASES, DIGEST, SCHEMA, CalibrationCase, main, problems

TAUS = (1, 2, 3, 4)


class Calibration(CalibrationCase):
    def check_statistics(self, file, traces, from_summary):
        layers, heads, kv_heads = traces[0].shape
        self.assertEqual(file["model"], {"layers": layers, "heads": heads, "kv_heads": kv_heads,
                                         "digest": DIGEST})
        pairs = {}
        for trace in traces:
            for key, values in oracle.pairs_of(trace, from_summary).items():
                pairs.setdefault(key, []).extend(values)
        names = ["similarity", "standard_deviation", "standard_error", "p5", "count"]
        wanted = {name: np.full((layers, heads), np.nan) for name in names}
        wanted["count"][:] = 0
        for (layer, head), values in pairs.items():
            at = traces[0].layers[layer], traces[0].heads[head]
            for name, value in zip(names, oracle.statistics(values)):
                wanted[name][at] = value
        for name in names:
            self.close(file[name], wanted[name], name)

    def check_curves(self, file, traces, from_summary):
        layers, heads, kv_heads = traces[0].shape
        similarity = np.array(file["similarity"], dtype=np.float64)
        kv_group = file["granularity"] == "kv-group"
        for curve in file["predictions"]["curves"]:
            tau = curve["tau"]
            totals, _ = oracle.savings_of(traces, tau)
            errors = [oracle.errors_of(trace, tau, from_summary)[0] for trace in traces]
            for point in curve["points"]:
                mask = oracle.mask_of(similarity, point["gamma"], heads // kv_heads, kv_group)
                self.check_point(point, mask, traces, totals, errors)
            gammas = [point["gamma"] for point in curve["points"]]
            self.assertEqual(gammas, sorted(set(gammas)))
            self.assertEqual(curve["points"][-1]["heads"], 0)
            every = oracle.mask_of(similarity, -1, heads // kv_heads, kv_group).sum()
            self.assertEqual(curve["points"][0]["heads"], every)
        chosen = file["predictions"]["chosen"]
        mask = oracle.mask_of(similarity, file["gamma"], heads // kv_heads, kv_group)
        np.testing.assert_array_equal(mask, file["reuse"])
        totals, steps = oracle.savings_of(traces, file["tau"])
        errors = [oracle.errors_of(trace, file["tau"], from_summary)[0] for trace in traces]
        self.check_point(chosen, mask, traces, totals, errors)
        self.assertEqual([chosen["steps"], chosen["reusing_steps"]], steps.tolist())
        spared = mask.reshape(layers, kv_heads, -1).all(-1).sum()
        self.assertEqual(chosen["external_keys"], totals[0] * layers * kv_heads)
        self.assertEqual(chosen["external_keys_read"],
                         totals[0] * layers * kv_heads - totals[2] * spared)

    def check_point(self, point, mask, traces, totals, errors):
        wanted = oracle.predicted(traces, mask, totals, errors)
        for name in ("heads", "terms", "terms_reused"):
            self.assertEqual(point[name], wanted.pop(name, point[name]), name)
        for name in ("relative_l2_reused", "relative_l2", "relative_l2_all_steps"):
            if name not in wanted:
                self.assertIsNone(point[name])
        for name, value in wanted.items():
            self.close(point[name], value, name)

    def test_every_number_of_the_file(self):
        for name, flags in CASES.items():
            paths = [self.make(flag) for flag in flags]
            traces = [oracle.Trace(path) for path in paths]
            modes = [False, True] if traces[0].has_arrays else [True]
            for from_summary in modes:
                for tau, granularity in ((2, "head"), (4, "kv-group"), (6, "head")):
                    with self.subTest(name, from_summary=from_summary, tau=tau):
                        flags = ["--gamma", 0.9, "--tau", tau, "--granularity", granularity]
                        flags += ["--from-summary"] if from_summary else []
                        file = self.calibrate(paths, *flags)
                        self.check_statistics(file, traces, from_summary)
                        self.check_curves(file, traces, from_summary)
                        taus = [curve["tau"] for curve in file["predictions"]["curves"]]
                        self.assertEqual(taus, sorted({*TAUS, tau}))

    def test_the_order_of_traces_and_the_number_of_threads_change_nothing(self):
        paths = [self.make(flag) for flag in CASES["unequal traces"]]
        one = self.calibrate(paths, "--gamma", 0.5, "--threads", 1)
        self.assertEqual(one, self.calibrate(paths, "--gamma", 0.5, "--threads", 3))
        other = self.calibrate(paths[::-1], "--gamma", 0.5)
        for name in ("similarity", "standard_error", "p5"):
            self.close(other[name], np.array(one[name], float), name)
        self.assertEqual([t["file"] for t in one["traces"]], [p.name for p in paths])

    def test_saving_takes_the_largest_gamma_and_error_the_smallest(self):
        path = self.make("--heads 8 --kv-heads 8 --steps 8 --sequences 3 --correlation 0.7")
        curves = self.calibrate([path], "--gamma", 0)["predictions"]["curves"]
        for tau in (2, 4):
            points = next(c["points"] for c in curves if c["tau"] == tau)
            middle = points[len(points) // 2]
            self.assertGreater(middle["byte_saving"], 0)
            file = self.calibrate([path], "--saving", middle["byte_saving"] - 1e-9, "--tau", tau)
            self.assertEqual(file["reuse"], self.mask_at(file, middle["gamma"]))
            bound = middle["relative_l2_reused"] + 1e-9
            file = self.calibrate([path], "--max-error", bound, "--tau", tau)
            # Of the heads that reuse: not monotonic in gamma, so not always the middle one.
            within = next(p for p in points
                          if p["heads"] > 0 and p["relative_l2_reused"] <= bound)
            self.assertEqual(file["reuse"], self.mask_at(file, within["gamma"]))
            self.assertLessEqual(file["predictions"]["chosen"]["relative_l2_reused"], bound)

    def mask_at(self, file, gamma):
        return (np.array(file["similarity"]) > gamma).tolist()

    def test_the_bound_is_on_the_error_where_reused(self):
        path = self.make("--heads 8 --kv-heads 8 --steps 8 --sequences 3 --correlation 0.7")
        curves = self.calibrate([path], "--gamma", 0)["predictions"]["curves"]
        points = [p for c in curves if c["tau"] == 3 for p in c["points"]]
        few = [p for p in points if 0 < p["heads"] < 6]
        self.assertTrue(few)
        for point in few:  # the heads that recompute are in one error and not in the other
            self.assertLess(point["relative_l2"], 0.8 * point["relative_l2_reused"])
        least = min(p["relative_l2_reused"] for p in points if p["heads"])
        # What the error over all heads would have let pass.
        self.assertLess(min(p["relative_l2"] for p in few), 0.9 * least)
        self.refused(2, ["where reused", "smallest error is"], path, "--max-error", 0.9 * least,
                     "--tau", 3)
        done = self.command(path, "-o", self.root / "named.json", "--gamma", few[0]["gamma"],
                            "--tau", 3)
        self.assertIn("where reused over all heads", done.stdout)
        self.assertIn(f"error where reused {few[0]['relative_l2_reused']:.3g}, over all heads "
                      f"{few[0]['relative_l2_all_steps']:.3g}", done.stdout)

    def test_gamma_is_strict(self):
        path = self.make("--steps 5")
        similarity = self.calibrate([path], "--gamma", 0)["similarity"]
        file = self.calibrate([path], "--gamma", repr(similarity[1][2]))
        self.assertFalse(file["reuse"][1][2])
        self.assertEqual(file["reuse"], self.mask_at(file, similarity[1][2]))

    def test_the_schema_knows_pins(self):
        file = self.calibrate([self.make("--steps 5")], "--gamma", 0)
        file["pins"] = [{"layer": 0, "head": 1, "reuse": False}]
        self.assertEqual(problems(SCHEMA, file), [])
        for pin in ({"layer": 0, "head": 1}, {"layer": -1, "head": 1, "reuse": False},
                    {"layer": 0, "head": 1, "reuse": 0}):
            file["pins"] = [pin]
            self.assertEqual(len(problems(SCHEMA, file)), 1, pin)

    def test_a_sample_too_small_to_trust_is_said(self):
        path = self.make("--steps 2 --blocks 1 --sequences 1")
        done = self.command(path, "-o", self.root / "small.json", "--gamma", 0.9)
        self.assertIn("warning: gamma 0.9 lies within 2 standard errors", done.stderr)
        self.assertIn("of 12 of 12 heads", done.stderr)  # a single pair has no standard error

    def test_flags_that_make_no_sense(self):
        path = self.make()
        for words, flags in [
                ("exactly one", []), ("exactly one", ["--gamma", 0.5, "--saving", 0.5]),
                ("--gamma", ["--gamma", 1.5]), ("--gamma", ["--gamma", "-1.01"]),
                ("--gamma", ["--gamma", "nan"]), ("--gamma", ["--gamma", "high"]),
                ("--saving", ["--saving", 0]), ("--saving", ["--saving", 1.1]),
                ("--max-error", ["--max-error", -0.1]), ("--max-error", ["--max-error", "inf"]),
                ("--tau", ["--gamma", 0.5, "--tau", 0]),
                ("--granularity", ["--gamma", 0.5, "--granularity", "layer"])]:
            self.refused(2, words, path, *flags)
        (self.root / "there.json").write_text("mine")
        self.refused(2, "--force", path, "--gamma", 0.5, output="there.json")
        self.refused(1, "folder.json", path, "--gamma", 0.5, output="no/such/folder.json")
        self.refused(2, "reads this file", path, "--gamma", 0.5, output=path.name)
        self.refused(2, "reads this file", path, "--gamma", 0.5, "--force", output=path.name)
        self.assertEqual((self.root / "there.json").read_text(), "mine")

    def test_what_is_out_of_reach_is_said_with_what_is_not(self):
        path = self.make("--steps 6")
        self.refused(2, ["--saving: 99.00 %", "--tau 4"], path, "--saving", 0.99)
        self.refused(2, ["--max-error", "smallest error is"], path, "--max-error", 1e-9, "--tau", 4)

    def test_traces_that_can_not_be_calibrated_on(self):
        good = self.make()
        flags = ("--gamma", 0.5)
        cases = [(1, ["policy `flashblock`", "--shadow"], [self.make("--policy flashblock")]),
                 (1, ["/summary/reuse_error", "`--record summary`"],
                  [self.make("--level trajectory")]),
                 (1, "needs two recorded steps", [self.make("--steps 1")]),
                 (1, "digest", [self.make(digest="")]),
                 (2, "number of heads", [good, self.make("--heads 8")]),
                 (2, "digest", [good, self.make(digest="f" * 64)]),
                 (1, "none.h5", [self.root / "none.h5"])]
        (self.root / "text.h5").write_text("no trace")
        cases.append((1, "text.h5", [good, self.root / "text.h5"]))
        for code, words, paths in cases:
            self.refused(code, words, *paths, *flags)


if __name__ == "__main__":
    main()
