"""`blockscope import` refuses inconsistent rounds, and leaves no file: one error with the number of the line."""

import json
import os
import random
import unittest

from capture_harness import require_binary, run
from round_files import BLOCK, HEADER, MASK, VOCAB, RoundCase, play, written


class RoundsRefusals(RoundCase):
    def test_a_file_that_lies_is_refused_with_its_line(self):
        start = {"sequence": "r", "prompt_ids": [1, 2]}
        _, rounds = play(3, [1, 2], 20)
        lines = [HEADER, start, *written(rounds, rounds[0])]
        for number, change, words in (
                (4, {"position": 99}, ":5: position: expected"),
                (4, {"token": VOCAB}, ":5: token: expected an integer from"),
                (4, {"drafted": "1"}, ":5: drafted: expected an array"),
                (4, {"drafted": [0] * BLOCK}, "expected at most 5"),
                (4, {"accepted": True}, ":5: accepted: expected an integer"), (4, {"accepted": 2**70}, ":5: accepted"),
                (4, {"accepted": -1}, ":5: accepted"), (4, {"next": 1.5}, ":5: next"),
                (4, {"target": {}}, ":5: target"),
                (4, {"sequence": None}, ":5: sequence"), (4, {"sequence": "R"}, ":5: sequence"),
                (4, {"round": 9}, ":5: round"),
                (4, {"drafted": None}, ":5: drafted"), (1, {"prompt_ids": None}, ":2: prompt_ids"),
                (1, {"name": 7}, ":2: name"), (1, {"gen_length": 2**31}, ":2: gen_length"),
                (0, {"engine": None}, ":1: engine"),
                (0, {"format": "x"}, ":1: format"), (0, {"stop_token_ids": 3}, ":1: stop_token_ids"),
                (0, {"stop_token_ids": [VOCAB]}, ":1: stop_token_ids[0]"), (0, {"vocab_size": 0}, ":1: vocab_size"),
                (0, {"block_size": "6"}, ":1: block_size"), (4, {"confidence": [2.0] * 5}, ":5: confidence[0]"),
                (4, {"confidence": [float("nan")] * 5}, "does not parse")):
            with self.subTest(change=str(change)):
                changed = [dict(line) for line in lines]
                changed[number] |= change
                self.write(changed)
                self.refused(words)
        for number in range(2, len(lines) - 1):  # a round that is missing
            self.write(lines[:number] + lines[number + 1:])
            self.refused(f":{number + 1}: position: expected")
        self.write([HEADER, *lines[2:]])
        self.refused(":2: sequence: expected a sequence whose line")
        text = "".join(json.dumps(line) + "\n" for line in lines)
        self.source.write_text(text[:-20])
        self.refused("ends in the middle")
        for deep in ('{"a":' * 100000, json.dumps(HEADER) + "\n" + "[" * 100000):
            self.source.write_text(deep)
            self.refused("in each other")
        self.source.write_bytes(json.dumps(HEADER).encode() + b'\n{"sequence":"\xff","prompt_ids":[]}\n')
        self.refused(":2: ")

    def test_bytes_changed_at_random_never_hurt(self):
        answer, rounds = play(4, [1, 2], 20)
        self.write([HEADER, {"sequence": "r", "prompt_ids": [1, 2]}, *written(rounds, rounds[0])])
        whole, chance, taken = self.source.read_bytes(), random.Random(11), 0
        for _ in range(60):
            damaged = bytearray(whole)
            for _ in range(chance.choice((1, 1, 4))):
                at = chance.randrange(len(damaged))
                damaged[at:at + chance.randrange(3)] = bytes(chance.choice(b'0123456789{}[],:"-\n ') for _ in range(
                    chance.randrange(3)))
            self.source.write_bytes(damaged)
            self.output.unlink(missing_ok=True)
            code, _, err = run("import", self.source, "-o", self.output)
            self.assertIn(code, (0, 1, 2), (code, err, bytes(damaged)))
            self.assertEqual(self.output.exists(), code == 0)
            taken += code == 0
            if code == 0:
                self.must("info", self.output)
        self.assertLess(taken, 60)

    def test_options(self):
        _, rounds = play(3, [1, 2], 20)
        lines = [{k: v for k, v in HEADER.items() if k not in ("vocab_size", "block_size", "mask_token_id")},
                 {"sequence": "r", "prompt_ids": [1, 2]}, *written(rounds, rounds[0])]
        self.write(lines)
        facts = ["--vocab-size", VOCAB, "--block-length", BLOCK]
        self.refused("--vocab-size: needed", *facts[2:], code=2)
        self.refused("--block-length: needed", *facts[:2], code=2)
        for option in (("--prompt-length", 2), ("--input-ids", "1,2"), ("--block-causal",)):
            self.refused(option[0], *facts, *option, code=2)
        self.must("import", self.source, "-o", self.output, *facts)
        self.assertIn("none", self.must("info", self.output).split("mask token")[1].splitlines()[0])
        header = json.loads(self.must("export", self.output, "--format", "rounds").splitlines()[0])
        self.assertIsNone(header["mask_token_id"])
        self.must("import", self.source, "-o", self.output, "--force", *facts, "--mask-token-id", MASK)
        for option in ("--tol", "--rtol"):
            code, _, err = run("diff", self.output, self.output, option, 1)
            self.assertEqual(code, 2, err)
            self.assertIn(option, err)
        code, _, err = run("export", self.plain(), "--format", "rounds")
        self.assertEqual(code, 2)
        self.assertIn("--format rounds: expected a trace of a draft", err)
        code, _, err = run("diff", self.plain(), self.plain(), "--rounds")
        self.assertEqual(code, 2)
        self.assertIn("none in either", err)

    def plain(self):
        """A trace without a draft."""
        path = self.root / "plain.h5"
        record = {"initial_frame": {"prompts": [1], "generated_tokens": [MASK], "confidence": None, "steps": [-1]},
                  "deltas": [{"transfer_index": [0], "decoded_tokens": [5], "confidence": [0.5]}]}
        source = self.root / "plain.json"
        source.write_text(json.dumps(record))
        self.must("import", source, "-o", path, "--force", "--vocab-size", VOCAB, "--mask-token-id", MASK)
        return path

    def test_what_is_no_file_is_never_waited_for(self):
        os.mkfifo(self.root / "pipe")
        self.refused("no regular file", source=self.root / "pipe")


if __name__ == "__main__":
    require_binary()
    unittest.main()
