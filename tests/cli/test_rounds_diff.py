"""`blockscope diff` of drafted traces: rounds lined up by their place in the answer, the first that differs named."""

import json
import unittest

import h5py
import numpy as np

from capture_harness import require_binary, run
from round_files import BLOCK, HEADER, VOCAB, RoundCase, play, written


class RoundsDiff(RoundCase):
    def test_diff_names_the_round(self):
        prompts = [[1], [2, 3]]
        played = [play(20 + i, prompt, 40) for i, prompt in enumerate(prompts)]

        def trace(name, change=lambda runs: None, order=(0, 1)):
            runs = json.loads(json.dumps([rounds for _, rounds in played]))
            change(runs)
            lines = [HEADER]
            for i in order:
                lines += [{"sequence": f"s{i}", "prompt_ids": prompts[i], "gen_length": 40},
                          *written(runs[i], runs[i][0], f"s{i}")]
            return self.imported(lines, name)

        a = trace("a")
        self.assertIn("the rounds are equal", self.must("diff", a, trace("swapped", order=(1, 0))))
        wrong = next(n for n, r in enumerate(played[1][1]) if r["accepted"] <= BLOCK - 3 and n > 2)
        r = played[1][1][wrong]
        at = r["accepted"] + 1  # after the first wrong guess: no more than this changes
        value = (r["drafted"][at] + 1) % VOCAB

        def change(runs):
            runs[1][wrong]["drafted"][at] = value

        code, out, err = run("diff", a, trace("b", change))
        self.assertEqual(code, 1, err)
        self.assertIn(f"sequence 1 ('s1'), round {wrong}, at position {r['position'] - 2} of the answer: drafted "
                      f"token at block position {at + 1}: {r['drafted'][at]} in A, {value} in B\n", out)
        total = sum(len(rounds) for _, rounds in played)
        self.assertIn(f"{total} rounds at the same positions, {total - 1} of them equal; the rounds are different", out)
        self.assertEqual(out.count("of the answer"), 1)
        # The other one is what the target does not say: nothing to compare.
        silent = self.imported([HEADER, *(line for i in range(2) for line in [
            {"sequence": f"s{i}", "prompt_ids": prompts[i], "gen_length": 40},
            *written(played[i][1], ("token", "accepted", "next"), f"s{i}")])], "silent")
        self.assertIn("the rounds are equal", self.must("diff", a, silent))

    def test_diff_lines_up_what_both_have(self):
        answer, rounds = play(33, [5], 40)
        start = {"sequence": "s", "prompt_ids": [5], "gen_length": 40}
        a = self.imported([HEADER, start, *written(rounds, rounds[0], "s")], "a")
        cut = self.imported([HEADER, start, *written(rounds[:-2], rounds[0], "s")], "cut")
        code, out, _ = run("diff", a, cut)
        self.assertEqual(code, 1)
        self.assertIn(f"round {len(rounds) - 2} of A, none of B", out)
        self.assertIn("B has no round at this position", out)
        other = self.imported([HEADER, start | {"prompt_ids": [6]}, *written(rounds, rounds[0], "s")], "other")
        code, out, _ = run("diff", a, other)
        self.assertEqual(code, 1)
        self.assertIn("sequence 0 ('s'): the prompts differ", out)
        missing = self.imported([HEADER, start | {"prompt_ids": [6], "sequence": "z"}], "missing")
        code, out, _ = run("diff", a, missing)
        self.assertEqual(code, 1)
        self.assertIn("0 rounds at the same positions", out)
        # Shorter blocks of the same answer: other rounds, until both begin one at the same place.
        code, out, _ = run("diff", a, self.imported(
            [HEADER, start, *written(play(33, [5], 40, block=2)[1], ("token", "target", "next"), "s")], "short"))
        self.assertEqual(code, 1)
        self.assertIn("drafted tokens: 5 in A, 1 in B", out)
        wide = self.imported([HEADER | {"vocab_size": VOCAB + 1}, start, *written(rounds, rounds[0], "s")], "wide")
        code, _, err = run("diff", a, wide)
        self.assertEqual((code, err.count("\n")), (2, 1))
        self.assertIn("one vocabulary, got one of 60 and one of 61", err)

    def test_damaged_drafts_are_refused(self):
        _, rounds = play(3, [1, 2], 20)
        path = self.imported([HEADER, {"sequence": "r", "prompt_ids": [1, 2]}, *written(rounds, rounds[0])], "good")
        whole = path.read_bytes()
        for name, value in (("/draft/accepted", BLOCK), ("/draft/accepted", -7), ("/draft/target_token", VOCAB),
                            ("/draft/token", -2), ("/draft/token", 2**31 - 1)):
            bad = self.root / "bad.h5"
            bad.write_bytes(whole)
            with h5py.File(bad, "r+") as trace:
                row = int(np.flatnonzero(trace["/steps/kind"][:] == 1)[1])
                trace[name][(row, 2) if trace[name].ndim == 2 else row] = value
            for command in (("export", bad, "--format", "rounds"), ("diff", bad, path), ("diff", path, bad)):
                with self.subTest(name=name, value=value, command=command[0]):
                    code, _, err = run(*command)
                    self.assertEqual((code, err.count("\n")), (1, 1), err)
                    self.assertIn(f"bad.h5:{name}: row {row}: expected", err)


if __name__ == "__main__":
    require_binary()
    unittest.main()
