"""Rounds of other engines through `import` and `export --format rounds`, checked with h5py and a model of drafting that
round_files.py plays. Nothing here runs a model; tests/probe/parity/check_rounds.py does."""

import json
import random
import unittest

import h5py
import numpy as np

from capture_harness import require_binary
from round_files import BLOCK, HEADER, VOCAB, RoundCase, play, written

INTEGERS = ("target_token", "target_rank_under_draft", "drafted_rank_under_target")
FLOATS = ("target_probability_under_draft", "drafted_probability_under_target", "draft_entropy", "target_entropy")


class Rounds(RoundCase):
    def check_rows(self, path, prompt, answer, rounds, known_target):
        """The rows as docs/trace_format.md describes a capture's."""
        with h5py.File(path) as trace:
            self.assertEqual(int(trace.attrs["has_draft"]), 1)
            rows = int(trace["/steps/committed"][0])
            self.assertEqual(list(trace["/sequences/prompt_token"][:]), prompt)
            self.assertEqual(int(trace["/sequences/gen_length"][0]), len(answer))
            ends = [0, *trace["/frames/delta_end"][:rows]]
            decided = [dict(zip(trace["/frames/position"][a:b].tolist(), trace["/frames/token"][a:b].tolist()))
                       for a, b in zip(ends, ends[1:])]
            expected = [(0, -1, 0, {0: answer[0]}, 0)]
            for number, r in enumerate(rounds):
                at = r["position"] - len(prompt)
                inside = lambda tokens: {p: t for p, t in tokens.items() if p < len(answer)}
                if r["drafted"]:
                    expected.append((1, number, r["position"],
                                     inside({at + 1 + i: r["drafted"][i] for i in range(r["accepted"])}),
                                     len(r["drafted"])))
                expected.append((2, number, r["position"], inside({at + r["accepted"] + 1: r["next"]}), 0))
            columns = zip(*(trace[f"/steps/{n}"][:rows].tolist() for n in ("kind", "block", "block_start")), decided,
                          trace["/steps/masks_left"][:rows].tolist())
            self.assertEqual(list(columns), expected)
            self.assertEqual(trace["/steps/context_length"][1:rows].tolist(),
                             trace["/steps/block_start"][1:rows].tolist())
            drafting = np.flatnonzero(trace["/steps/kind"][:rows] == 1)
            self.assertTrue((trace["/draft/accepted"][:rows][trace["/steps/kind"][:rows] != 1] == -1).all())
            for row, r in zip(drafting, (r for r in rounds if r["drafted"]), strict=True):
                count = len(r["drafted"])
                spread = lambda values: [-1, *values, *[-1] * (BLOCK - 1 - len(values))]
                self.assertEqual(int(trace["/draft/accepted"][row]), r["accepted"])
                for path in ("/prediction/token", "/draft/token"):
                    self.assertEqual(trace[path][row].tolist(), spread(r["drafted"]), path)
                self.assertEqual(trace["/steps/valid"][row].tolist(), [1] * (count + 1) + [0] * (BLOCK - 1 - count))
                self.assertEqual(int(trace["/steps/valid"][row + 1].sum()), count + 1)
                follows = r["accepted"] + 1  # from accepted and next, without the target's own list
                told = r["target"] if known_target else r["target"][:follows] + [-1] * (count - follows)
                self.assertEqual(trace["/draft/target_token"][row].tolist(), spread(told))
                self.assertTrue((trace["/draft/target_rank_under_draft"][row] == -1).all())
                for name in FLOATS:
                    self.assertTrue(np.isnan(trace[f"/draft/{name}"][row]).all(), name)

    def test_every_way_to_say_it_gives_the_same_rows(self):
        prompt = [3, 1, 4]
        for seed, at_most in ((1, None), (2, None), (3, BLOCK - 1), (4, 1)):
            answer, rounds = play(seed, prompt, 30, drafted_at_most=at_most)
            start = {"sequence": "r", "prompt_ids": prompt, "gen_length": 30}
            whole = written(rounds, rounds[0])
            self.check_rows(self.imported([HEADER, start, *whole], "whole"), prompt, answer, rounds, True)
            for keep, known in ((("accepted", "next", "position"), False), (("accepted", "token", "next"), False),
                                (("target", "token", "next"), True)):
                lines = written(rounds, keep)
                lines[0]["token"] = answer[0]
                self.check_rows(self.imported([HEADER, start, *lines], "part"), prompt, answer, rounds, known)
                self.assertIn("the rounds are equal", self.must("diff", self.root / "whole.h5", self.root / "part.h5"))

    def test_sequences_of_a_batch_come_in_each_other(self):
        lines, expected = [HEADER], []
        for i in range(4):
            prompt = [i + 1] * (i + 1)
            answer, rounds = play(10 + i, prompt, 20 + i)
            expected.append((prompt, answer, rounds))
            lines.append({"sequence": i, "name": f"q{i}", "prompt_ids": prompt, "gen_length": 20 + i})
        for number in range(max(len(rounds) for _, _, rounds in expected)):
            for i, (_, _, rounds) in enumerate(expected):
                if number < len(rounds):
                    lines.append({"sequence": i, "round": number} | rounds[number])
        path = self.imported(lines, "batch")
        for i, (prompt, answer, rounds) in enumerate(expected):
            one = self.imported([HEADER, {"sequence": 0, "prompt_ids": prompt, "gen_length": len(answer)},
                                 *({"sequence": 0} | r for r in rounds)], "one")
            self.check_rows(one, prompt, answer, rounds, True)
        info = json.loads(self.must("info", path, "--json"))
        drafted = sum(len(rounds) for _, _, rounds in expected)
        self.assertEqual((info["sequences"], info["rows"]["denoise"], info["rows"]["commit"]), (4, drafted, drafted))
        self.assertEqual(info["model"], {"imported_from": "vLLM"})
        self.assertEqual(info["run"]["imported"]["kept"], {"engine_version": "0.0", "target": "t", "draft": "d"})

    def test_the_next_token_s_confidence_is_of_its_position(self):
        path = self.imported([HEADER, {"sequence": 0, "prompt_ids": [1, 2], "gen_length": 5},
                              {"sequence": 0, "token": 5, "drafted": [6, 7], "accepted": 2, "next": 9,
                               "next_confidence": 0.75}], "next")

        def exported():
            return json.loads(self.must("export", path, "--format", "rounds").splitlines()[2])

        self.assertEqual((exported()["next"], exported()["next_confidence"]), (9, 0.75))
        with h5py.File(path, "r+") as trace:  # 5, 6, 7, 9 are at 0 to 3: the commit decides on 4 instead
            self.assertEqual(trace["/frames/position"][-1], 3)
            trace["/frames/position"][-1] = 4
        self.assertNotIn("next_confidence", exported())

    def test_what_was_exported_comes_back(self):
        chance = random.Random(5)
        prompt, number = [9, 8], lambda: float(np.float32(chance.random()))
        answer, rounds = play(7, prompt, 25, drafted_at_most=BLOCK - 1)
        for i, r in enumerate(rounds):
            count = len(r["drafted"])
            r |= {name: [number() for _ in range(count)] for name in ("confidence", *FLOATS)}
            r |= {name: [chance.randrange(VOCAB) for _ in range(count)] for name in INTEGERS[1:]}
            r |= {"next_confidence": number(), "target_ns": 20 + i} | ({"draft_ns": 10 + i} if count else {})
            if count > 1:
                r["target_rank_under_draft"][0] = r["draft_entropy"][count - 1] = None
        lines = [HEADER, {"sequence": 0, "name": "n", "prompt_ids": prompt, "gen_length": 25, "first_token": answer[0],
                          "first_confidence": 0.5},
                 *({"sequence": 0, "round": i} | r for i, r in enumerate(rounds)),
                 {"sequence": 0, "finish_reason": "length", "text": "é\n"}]
        path = self.imported(lines, "first")
        with h5py.File(path) as trace:
            rows = np.flatnonzero(trace["/steps/kind"][:] == 1)
            for row, r in zip(rows, (r for r in rounds if r["drafted"]), strict=True):
                count = len(r["drafted"])
                for name in (*INTEGERS[1:], *FLOATS):
                    values = [(-1 if name in INTEGERS else np.nan) if v is None else v for v in r[name]]
                    np.testing.assert_array_equal(trace[f"/draft/{name}"][row][1:count + 1],
                                                  np.array(values, trace[f"/draft/{name}"].dtype))
                np.testing.assert_array_equal(trace["/prediction/confidence"][row][1:count + 1],
                                              np.float32(r["confidence"]))
                self.assertEqual(trace["/steps/pass_time_ns"][row:row + 2].tolist(), [r["draft_ns"], r["target_ns"]])
        text = self.must("export", path, "--format", "rounds")
        back = [json.loads(line) for line in text.splitlines()]
        last = dict(lines[-2])  # tokens after the answer's end are in no frame
        if last["position"] + last["accepted"] + 1 >= len(prompt) + 25:
            del last["next_confidence"]
            if last["accepted"] == len(last["drafted"]):
                last["next"] = None
        expected = [{k: v for k, v in line.items() if v != [] or k == "drafted"} for line in [*lines[2:-2], last]]
        self.assertEqual(back[:2] + back[-1:], lines[:2] + lines[-1:])
        self.assertEqual(back[2:-1], expected)
        again = self.root / "again.jsonl"
        again.write_text(text)
        self.must("import", again, "-o", again.with_suffix(".h5"))
        with h5py.File(path) as one, h5py.File(again.with_suffix(".h5")) as two:
            names = [f"/{group}/{n}" for group in ("draft", "steps", "frames", "prediction") for n in one[group]]
            for name in names:
                np.testing.assert_array_equal(one[name][:], two[name][:], err_msg=name)

    def test_a_selectors_unknown_choices_count_nowhere(self):
        path = self.imported([HEADER | {"draft_candidates": 2}, {"sequence": 0, "prompt_ids": [1], "gen_length": 9},
                              {"sequence": 0, "token": 5, "drafted": [6, 7, 8], "accepted": 2, "next": 9,
                               "candidate_token": [[6, 3], None, [4, 8]], "candidate_score": [[1.5, -2], None, None]}],
                             "selector")
        with h5py.File(path) as trace:
            for name, values in (("token", [[-1, -1], [6, 3], [-1, -1], [4, 8]]), ("chosen", [-1, 0, -1, 1]),
                                 ("target", [-1, 0, -1, -1])):
                self.assertEqual(trace[f"/draft/candidate_{name}"][1][:4].tolist(), values, name)
        result = json.loads(self.must("analyze", path, "--metric", "draft", "--json", "-"))
        arrays = {array["name"]: array for array in result["metrics"][0]["arrays"]}
        self.assertEqual(arrays["among_candidates"]["terms"][:3], [1, 0, 1])
        self.assertEqual(arrays["among_candidates"]["values"][0], 1)
        self.assertEqual(arrays["by_chosen"]["terms"], [1, 1])
        self.assertEqual(arrays["by_chosen"]["values"], [1, 0])

    def test_every_command_reads_it(self):
        answer, rounds = play(1, [1, 2], 20)
        start = {"sequence": "a", "prompt_ids": [1, 2]}
        path = self.imported([HEADER, start, *written(rounds, rounds[0], "a")], "read")
        table = self.must("info", path)
        self.assertIn("shape unknown: not in the imported file", table)
        lengths = [r["accepted"] + 1 for r in rounds]
        self.assertIn(f"{len(rounds)} rounds", table)
        self.must("analyze", path)
        self.must("report", path, "-o", self.root / "r.html")
        self.must("repack", path, "-o", self.root / "packed.h5", "--compress", "deflate", "-q")
        for name in ("csv", "json", "frames", "step_map", "rounds"):
            self.must("export", path, "--format", name)
        self.assertIn(f"mean acceptance length           {np.mean(lengths):14.4f} {np.mean(lengths):14.4f}",
                      self.must("diff", path, self.root / "packed.h5"))
        with h5py.File(path) as trace:  # without gen_length the answer is what the rounds decided
            self.assertEqual(int(trace["/sequences/gen_length"][0]), rounds[-1]["position"] + lengths[-1] + 1 - 2)


if __name__ == "__main__":
    require_binary()
    unittest.main()
