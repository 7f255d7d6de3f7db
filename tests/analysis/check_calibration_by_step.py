"""`calibrate` by the kept pair, by provisional masks, with a bound of L_out and by ranges of steps,
against float64 numpy that follows every head's own last read. Usage: check_calibration_by_step.py
MAKE_TRACE"""

import numpy as np
import by_step_oracle as by_step
import reuse_oracle as oracle
from calibration_case import CASES, CalibrationCase, main


class CalibrationByStep(CalibrationCase):
    def check_ranges(self, file, traces, starts, options):
        """Similarity, drift and masks of every range, then what the masks save and cost."""
        layers, heads, kv_heads = traces[0].shape
        shape = (len(starts), layers, heads)
        wanted = {name: np.full(shape, np.nan) for name in
                  ("similarity", "standard_deviation", "standard_error", "p5", "lse_drift")}
        wanted["count"] = np.zeros(shape)
        cells = {}
        for trace in traces:
            for key, values in by_step.changes_of(trace, starts, **options).items():
                for into, new in zip(cells.setdefault(key, ([], [])), values):
                    into.extend(new)
        for (at, layer, head), (cosines, drifts) in cells.items():
            place = at, traces[0].layers[layer], traces[0].heads[head]
            if cosines:
                for name, value in zip(["similarity", "standard_deviation", "standard_error", "p5",
                                        "count"], oracle.statistics(cosines)):
                    wanted[name][place] = value
            if drifts:
                wanted["lse_drift"][place] = oracle.statistics(drifts)[0]
        for name, value in wanted.items():
            if name in file:
                self.close(np.array(file[name], float).reshape(shape), value, name)
        similarity = np.array(file["similarity"], float).reshape(shape)
        if "lse_bound" in file:
            drift = np.array(file["lse_drift"], float).reshape(shape)
            similarity = np.where(drift <= file["lse_bound"], similarity, np.nan)
        kv_group = file["granularity"] == "kv-group"
        masks_at = lambda gammas: np.array([
            oracle.mask_of(part, gamma, heads // kv_heads, kv_group)
            for part, gamma in zip(similarity, gammas)])
        gammas = np.broadcast_to(file["gamma"], len(starts))
        np.testing.assert_array_equal(np.array(file["reuse"]).reshape(shape), masks_at(gammas))
        chosen = file["predictions"]["chosen"]
        read = self.check_masked(chosen, traces, file["tau"], starts, masks_at(gammas))
        self.assertEqual([chosen["external_keys"], chosen["external_keys_read"]], list(read))
        for curve in file["predictions"]["curves"]:
            for point in curve["points"][::5]:
                self.check_masked(point, traces, curve["tau"], starts,
                                  masks_at([point["gamma"]] * len(starts)))
        of_kinds = [[kinds[name] for name in ("masks", "known", "decided")]
                    for kinds in file["row_errors"]]
        self.close(of_kinds, by_step.row_errors(traces, file["tau"], starts, masks_at(gammas)),
                   "row_errors")
        return np.array(file["reuse"]).reshape(shape)

    def check_masked(self, point, traces, tau, starts, masks):
        where, steps, fresh = oracle.Sums(), oracle.Sums(), oracle.Sums()
        for trace in traces:
            for into, new in zip((where, steps, fresh),
                                 by_step.masked_errors(trace, tau, starts, masks)):
                into.add(new.values, new.terms)
        byte_saving, flop_saving, *read = by_step.masked_savings(traces, tau, starts, masks)
        divide = lambda a, b: a / b if b else np.nan
        self.assertEqual([point["heads"], point["terms"], point["terms_reused"]],
                         [masks.sum(), steps.terms, where.terms])
        channels = traces[0].file["/model"].attrs["head_dim"]
        for name, value in {
                "byte_saving": byte_saving, "flop_saving": flop_saving,
                "relative_l2_reused": divide(where.values[0], where.values[2]) ** 0.5,
                "mean_l1_reused": divide(where.values[1], where.terms * channels),
                "relative_l2": divide(where.values[0], steps.values[2]) ** 0.5,
                "relative_l2_all_steps":
                    divide(where.values[0], steps.values[2] + fresh.values[2]) ** 0.5}.items():
            self.close(point[name], value, name)
        return read

    def test_every_number_by_the_kept_pair_a_bound_and_ranges_of_steps(self):
        choices = [
            (["--reference", "kept"], [1], {"reference": "kept"}),
            (["--lse-bound", 0.4], [1], {"reference": "adjacent"}),
            (["--by-step=2-3,4-5"], [1, 4], {"reference": "adjacent"}),
            (["--reference", "kept", "--lse-bound", 0.5, "--by-step=2-2,3-4,5-6"], [1, 3, 5],
             {"reference": "kept"}),
            (["--reference", "kept", "--provisional", "--lse-bound", 0.5, "--by-step=1-3,4"],
             [1, 4], {"reference": "kept", "provisional": (0.6, 0.5)}),
            (["--reference", "kept", "--provisional"], [1],
             {"reference": "kept", "provisional": (0.6, np.inf)}),
            (["--by-step", "--lse-bound", 0.4], None, {"reference": "adjacent"})]
        masks_differ = 0
        for name in ("plain", "float32, odd head_dim", "gaps and some heads", "unequal traces",
                     "positions that don't exist", "NaN, infinity, zero"):
            paths = [self.make(flag if "--correlation" in flag else flag + " --correlation 0.7")
                     for flag in CASES[name]]
            traces = [oracle.Trace(path) for path in paths]
            longest = max(int(trace.step.max()) for trace in traces)
            for number, (flags, starts, options) in enumerate(choices):
                tau = (3, 2, 4)[number % 3]
                with self.subTest(name, flags=flags):
                    if options["reference"] == "kept" and "provisional" not in options:
                        options = options | {"tau": tau}
                    starts = starts or [1, *range(3, longest + 1)]
                    granularity = "kv-group" if number == 4 else "head"
                    file = self.calibrate(paths, "--gamma", 0.6, "--tau", tau, "--granularity",
                                          granularity, *flags)
                    ranges = [[first, last - 1] for first, last in zip(starts, starts[1:])]
                    ranges.append([starts[-1], None])
                    self.assertEqual(file.get("step_ranges", [[1, None]]), ranges)
                    self.assertEqual(file["reference"], options["reference"])
                    masks = self.check_ranges(file, traces, starts, options)
                    masks_differ += len(starts) > 1 and bool((masks != masks[:1]).any())
        self.assertGreater(masks_differ, 10)  # the masks of the ranges are not all one

    def test_what_kept_pairs_ranges_and_bounds_refuse(self):
        path = self.make("--steps 6")
        for words, flags in [
                ("--by-step: expected ranges without a gap, but step 4 is in none",
                 ["--by-step=2-3,5-6"]),
                ("--by-step: expected ranges without overlap, but step 3 is in two",
                 ["--by-step=1-3,3-6"]),
                ("--by-step: expected ranges without a gap, but step 1 is in none", ["--by-step=3-6"]),
                ("--by-step: expected ranges with the lower step first", ["--by-step=1-4,5-3"]),
                ("--by-step: expected ranges of steps from 1", ["--by-step=all"]),
                ("--by-step: expected ranges of steps from 1", ["--by-step=0-3"]),
                ("--lse-bound", ["--lse-bound", -1]), ("--reference", ["--reference", "first"]),
                ("--provisional: expected --reference kept", ["--provisional"])]:
            self.refused(2, words, path, "--gamma", 0.5, *flags)
        self.refused(2, "--provisional: expected --gamma", path, "--saving", 0.1, "--reference",
                     "kept", "--provisional")
        long = self.make("--steps 40 --sequences 1 --blocks 1")
        self.refused(2, ["--by-step: expected at most 32 ranges of steps, got 39", "--by-step=2-4"],
                     long, "--gamma", 0.5, "--by-step")
        summary = self.make("--level summary --steps 6")
        for flags in (["--reference", "kept"], ["--lse-bound", 0.1], ["--by-step"]):
            self.refused(1, [flags[0], ": expected the arrays", "--record outputs"], summary,
                         "--gamma", 0.5, *flags)
        first = self.make("--steps 6 --record-steps 1")
        self.refused(1, "of which tau 2 lets one reuse", first, "--gamma", 0.5, "--reference", "kept")


if __name__ == "__main__":
    main()
