"""`blockscope import` refuses inconsistent files, and leaves no file: one line, exit code 1 (usage: 2)."""

import copy
import json
import os
import pathlib
import resource
import subprocess
import sys
import time
import unittest

from capture_harness import BINARY, require_binary, run, temporary_folder
from interchange_files import MASK, VOCAB, klass_run, wino_run

FACTS = ["--vocab-size", VOCAB, "--mask-token-id", MASK]
NAN, INF = float("nan"), float("inf")


def put(document, path, value):
    """`value` at `path` of a copy; a callable gets what was there."""
    document = copy.deepcopy(document)
    here = document
    for key in path[:-1]:
        here = here[key]
    here[path[-1]] = value(here[path[-1]]) if callable(value) else value
    return document


def drop(document, path):
    document = copy.deepcopy(document)
    here = document
    for key in path[:-1]:
        here = here[key]
    del here[path[-1]]
    return document


KLASS, _ = klass_run(1)
TOKEN = (1, "decoded_tokens", 0)
LISTED = (1, "all_tokens", 0)
KLASS_LIES = [
    # (where, value, words of the refusal)
    ((0, "step"), 2, "step: expected an integer from 0 to 1"), ((0, "step"), "1", "[0].step: expected an integer"),
    ((0, "step"), 0, "[1].step: expected 1, one more"), ((2, "step"), 2, "[2].step: expected 3, one more"),
    ((2, "step"), 4, "[2].step: expected 3"), ((2, "step"), 1e30, "[2].step: expected an integer"),
    ((2, "step"), 2**80, "[2].step: expected an integer"),
    ((1, "decoded_tokens_num"), 99, "[1].decoded_tokens_num: expected"),
    ((1, "decoded_text"), 7, "[1].decoded_text: expected a text"),
    ((1, "decoded_tokens"), {}, "expected an array, got an object"), ((1, "all_tokens"), [], "at least one token"),
    ((*TOKEN, "position"), -1, "position: expected an integer from 0"),
    ((*TOKEN, "position"), 2**40, "position: expected an integer from 0"),
    ((*TOKEN, "position"), 1, "a position of all_tokens"), ((*TOKEN, "position"), 5.5, "expected an integer"),
    ((*TOKEN, "token_id"), VOCAB, f"expected an integer from 0 to {VOCAB - 1}"),
    ((*TOKEN, "token_id"), -1, "expected an integer from 0"), ((*TOKEN, "token_id"), None, "expected a token"),
    ((*TOKEN, "token_id"), lambda t: (t + 1) % MASK, "as all_tokens has"),
    ((*TOKEN, "confidence"), 2.0, "confidence: expected a number from"),
    ((*TOKEN, "confidence"), "0.5", "confidence: expected a number"),
    ((*TOKEN, "confidence"), lambda c: c / 2 + 0.0002, "as all_tokens has"),
    ((*TOKEN, "confidence"), NAN, "does not parse"), ((*TOKEN, "confidence"), INF, "does not parse"),
    ((*TOKEN, "confidence"), [[1]], "expected a number"), ((*TOKEN, "confidence"), -1e300, "expected a number"),
    ((*TOKEN, "kl_divergence"), "nan", 'expected a number, "inf" or null'),
    ((*TOKEN, "kl_divergence"), -100, "kl_divergence: expected a number from -0.01"),
    ((*LISTED, "kl_divergence"), -0.02, "kl_divergence: expected a number from -0.01"),
    ((*TOKEN, "kl_divergence"), True, "expected a number"), ((*TOKEN, "decoded_token"), 3, "expected a text"),
    ((*LISTED, "position"), lambda p: p + 1, "position: expected more than the position before"),
    ((0, "all_tokens"), lambda t: t[1:], "all_tokens: element"), ((0, "all_tokens"), lambda t: t[:-1], "all_tokens"),
    ((0, "all_tokens"), lambda t: t[:3] + t[4:], "a mask at every position"),
    ((1, "all_tokens"), lambda t: t[1:], "all_tokens: element"), ((1,), [], "expected an object"),
    ((1, "decoded_tokens"), lambda t: t + t[:1], "expected"),
]
FRAMES = wino_run(2, block=6).record()
DELTA = ("deltas", 1)
FRAME_LIES = [
    (("initial_frame", "prompts"), [VOCAB], "initial_frame.prompts[0]: expected a token in 0 to"),
    (("initial_frame", "prompts"), [[1, 2]], "expected an integer"),
    (("initial_frame", "steps"), lambda s: s[1:], "steps: expected an array of 12"),
    (("initial_frame", "steps", 0), 3, "expected an integer from -1 to 0"),
    (("initial_frame", "generated_tokens", 0), 5, "steps[0]: expected an integer from 0 to 0"),
    (("initial_frame", "confidence"), [0.5], "confidence: expected an array of 12"),
    (("initial_frame",), None, "initial_frame: expected an object"), (("deltas",), 3, "deltas: expected an array"),
    (("block_length",), 0, "block_length: expected an integer from 1"),
    (("block_length",), 17, "blocks of at most"), (("block_length",), 2**70, "block_length: expected an integer"),
    (("block_length",), 2, "are in two blocks of length 2"),
    ((*DELTA, "transfer_index"), [12], "expected an index in [0, 12), got 12"),
    ((*DELTA, "transfer_index"), [-1], "expected an integer from 0"),
    ((*DELTA, "transfer_index"), [[0]], "expected an integer"), ((*DELTA, "transfer_index"), "0", "an array"),
    ((*DELTA, "transfer_index"), lambda i: i + i[:1], "occurs twice"),
    ((*DELTA, "transfer_index"), FRAMES["deltas"][0]["transfer_index"], "expected"),
    ((*DELTA, "transfer_src_index"), [0] * 9, "transfer_src_index: expected"),
    ((*DELTA, "insert_index"), [0], "insert_src_index: expected 1"),
    ((*DELTA, "delete_index"), [0, 0], "delete_index: index 0 occurs twice"),
    ((*DELTA, "delete_index"), [40], "delete_index: expected an index in"),
    ((*DELTA, "decoded_tokens"), [1], "expected"), ((*DELTA, "confidence"), [0.5], "expected an array of 12"),
    ((*DELTA, "decoded_tokens"), [-100] * 12, "expected a token in 0 to"),
    ((*DELTA, "decoded_tokens"), [-101] * 12, "got -101"),
    ((*DELTA, "confidence"), [3.0] * 12, "expected a number from"),
    ((*DELTA, "confidence"), [NAN] * 12, "does not parse"),
    ((*DELTA, "extra"), {"transfer_step": [9, 9, 9]}, "expected"), ((*DELTA, "extra"), 3, "expected an object"),
    (("mask_token_id",), 5, "expected 110, as --mask-token-id says"),
    (("vocab_size",), 7, "expected 120, as --vocab-size says"), (("format",), "csv", 'expected "blockscope-frames"'),
    (("prompt_hash",), "00", "the hash of its prompt"), (("finish_reason",), "bored", "expected unfinished"),
    (("aborted",), True, "aborted: expected false"), (("sequences",), [], "at least one sequence"),
    (("initial_frame", "prompts"), {}, "initial_frame.prompts: expected an array"),
    (("initial_frame", "prompts", 0), 2**63, "prompts[0]: expected an integer"),
    (("initial_frame", "prompts", 0), 1e308, "prompts[0]: expected an integer"),
    (("initial_frame", "generated_tokens", 0), VOCAB, "generated_tokens[0]: expected a token in 0 to"),
    (("initial_frame", "generated_tokens"), lambda t: t[1:], "expected an array of 11"),
    (("deltas", 0), [], "deltas[0]: expected an object"), (("deltas",), [None], "deltas[0]: expected an object"),
    ((*DELTA, "transfer_index", 0), 2**64, "transfer_index[0]: expected an integer"),
    ((*DELTA, "decoded_tokens", 2), VOCAB, "expected a token in 0 to"),
    ((*DELTA, "confidence"), {"0": 0.5}, "confidence: expected an array"),
    ((*DELTA, "confidence", 0), "high", "expected a number"), ((*DELTA, "insert_index"), "0", "insert_index: expected an array"),
    ((*DELTA, "delete_index"), {}, "delete_index: expected an array"),
    (("deltas",), lambda d: d[1:] + d[:1], "deltas["),
    ((*DELTA, "transfer_index"), None, "deltas[1].transfer_index: expected an array, got null"),
]


class Refusals(unittest.TestCase):
    def setUp(self):
        self.folder = temporary_folder()
        self.root = pathlib.Path(self.folder.name)
        self.source, self.output = self.root / "in.json", self.root / "out.h5"

    def tearDown(self):
        self.folder.cleanup()

    def refused(self, words, *flags, source=None, code=1):
        self.output.unlink(missing_ok=True)
        got, out, err = run("import", source or self.source, "-o", self.output, *(flags or FACTS))
        self.assertEqual(got, code, (words, err or out))
        self.assertEqual(err.count("\n"), 1, err)
        self.assertTrue(err.startswith("blockscope: error: "), err)
        self.assertIn(words, err)
        if code == 1:
            self.assertIn((source or self.source).name, err)
        self.assertEqual([p.name for p in self.root.iterdir() if p.name.startswith("out")], [])

    def test_a_file_that_lies_is_refused_with_its_place(self):
        for document, lies in ((KLASS, KLASS_LIES), (FRAMES, FRAME_LIES)):
            for place, value, words in lies:
                changed = put(document, place, value) if place[-1] not in (
                    "mask_token_id", "vocab_size", "format", "prompt_hash", "finish_reason", "aborted",
                    "sequences") else dict(document, **{place[-1]: value})
                with self.subTest(place=place, value=str(value)[:40]):
                    self.source.write_text(json.dumps(changed))
                    self.refused(words)

    def test_what_stands_around_the_sequences_is_checked(self):
        facts = {"format": "blockscope-frames", "format_version": 2, "vocab_size": VOCAB, "mask_token_id": MASK,
                 "block_length": 6, "bidirectional": True}
        record = wino_run(2, block=6).record()
        for change, words in (
                *(({"block_length": value}, "block_length: expected an integer from 1") for value in (-1, 0, "6", {}, 2**70)),
                ({"block_length": 5}, "sequences[0].block_length: expected 5"),
                ({"mask_token_id": MASK - 1}, f"sequences[0].mask_token_id: expected {MASK - 1}"),
                *(({"sequences": [record | {"sequence": value}]}, "sequences[0].sequence: expected an integer of at least 0")
                  for value in (-1, "0", [], 0.5))):
            with self.subTest(change=str(change)[:40]):
                self.source.write_text(json.dumps(facts | {"sequences": [record | {"mask_token_id": MASK}]} | change))
                self.refused(words)

    def test_a_member_that_is_missing_is_named(self):
        for document, places in (
                (KLASS, [(1, k) for k in KLASS[1]] + [(*TOKEN, k) for k in KLASS[1]["decoded_tokens"][0]]
                 + [(*LISTED, k) for k in KLASS[1]["all_tokens"][0]]),
                (FRAMES, [("initial_frame",), ("deltas",), ("initial_frame", "prompts"), ("initial_frame", "steps"),
                          ("initial_frame", "generated_tokens"), (*DELTA, "transfer_index"),
                          (*DELTA, "decoded_tokens")])):
            for place in places:
                with self.subTest(place=place):
                    self.source.write_text(json.dumps(drop(document, place)))
                    self.refused(f"{place[-1]}: expected a value, got none")

    def test_a_token_decided_twice_is_refused(self):
        document = copy.deepcopy(FRAMES)
        document["deltas"] = [document["deltas"][0], document["deltas"][0]]
        self.source.write_text(json.dumps(document))
        self.refused("decided before and not taken back")
        steps = copy.deepcopy(KLASS)
        again = copy.deepcopy(steps[0]["decoded_tokens"][0])
        steps[1]["decoded_tokens"].append(again)
        steps[1]["decoded_tokens_num"] += 1
        self.source.write_text(json.dumps(steps))
        self.refused("a position of all_tokens: only a mask can be decoded")

    def test_a_step_that_is_missing_or_exchanged_is_refused(self):
        for steps in (KLASS[1:], KLASS[:2] + KLASS[3:], [KLASS[1], KLASS[0], *KLASS[2:]], KLASS[::-1]):
            self.source.write_text(json.dumps(steps))
            self.refused("step: expected")
        for steps in ([dict(s, step=i + 1) for i, s in enumerate(part)] for part in (KLASS[:2] + KLASS[3:], KLASS[1:])):
            self.source.write_text(json.dumps(steps))
            self.refused("all_tokens")

    def test_what_is_no_json_is_refused(self):
        whole = json.dumps(KLASS)
        for text, words in (
                ("", "empty file"), (" \n", "empty file"), (whole[:-1], "ends in the middle"),
                (whole[:len(whole) // 2], "expected JSON"),
                (json.dumps(FRAMES)[:-20], "ends in the middle"), (whole + "]", "does not parse"),
                ("[" * 100000, "in each other"), ('{"a":' * 100000, "in each other"), ("[1e999]", "in.json"),
                ("null", "expected an object"), ("3", "expected an object"), ("[]", "at least one step"),
                ("[3]", "expected an object"), ("{}", "initial_frame"), ('{"a": 1, "a": 2}', "twice"),
                ("\ufeff[]\x00", "in.json"), ("\x00\xff", "in.json")):
            with self.subTest(text=text[:30]):
                self.source.write_bytes(text.encode("latin-1", "ignore"))
                self.refused(words)

    def test_what_is_no_file_is_refused_and_never_waited_for(self):
        os.mkfifo(self.root / "pipe")
        (self.root / "folder").mkdir()
        for name, words in (("pipe", "no regular file"), ("folder", "no regular file"), ("absent", "none")):
            self.refused(words, source=self.root / name)
        self.refused("no regular file", source=pathlib.Path("/dev/null"))

    def test_few_bytes_never_become_a_full_disk(self):
        frames = wino_run(1).record()
        empty = dict(frames["deltas"][0], transfer_index=[], decoded_tokens=[], confidence=[])
        length = 100_000
        huge = {"prompts": [], "generated_tokens": [MASK] * length, "confidence": None, "steps": [-1] * length}
        self.source.write_text(json.dumps({"initial_frame": huge, "deltas": [empty] * 20_000}))
        start = time.monotonic()
        self.refused("steps times positions")
        self.assertLess(time.monotonic() - start, 20)

    def test_options(self):
        self.source.write_text(json.dumps(KLASS))
        for flags, words in (
                (FACTS[:2], "--mask-token-id: needed"), (FACTS[2:], "--vocab-size: needed"),
                ([*FACTS, "--block-causal"], "--block-length: needed"),
                ([*FACTS, "--input-ids", "1,2", "--prompt-length", "2"], "--prompt-length"),
                ([*FACTS, "--input-ids", "1,,2"], "--input-ids"), ([*FACTS, "--input-ids", "1,500"], "below --vocab-size"),
                ([*FACTS, "--vocab-size", "0"], "--vocab-size"), ([*FACTS, "-o", "-"], "-")):
            self.refused(words, *flags, code=2)
        self.refused("--prompt-length or --input-ids gives", *FACTS, "--prompt-length", 4)
        self.refused("the 7 masks of a block of 7", *FACTS, "--block-length", 7)
        self.source.write_text(json.dumps(FRAMES))
        for flags, words in (([*FACTS, "--prompt-length", "4"], "--prompt-length"),
                             ([*FACTS, "--input-ids", "4"], "--input-ids"), (FACTS[:2], "--mask-token-id: needed")):
            self.refused(words, *flags, code=2)
        self.refused("as --block-length says", *FACTS, "--block-length", 7)

    def test_outputs(self):
        self.source.write_text(json.dumps(FRAMES))
        self.assertEqual(run("import", self.source, "-o", self.output, *FACTS)[0], 0)
        before = self.output.read_bytes()
        code, _, err = run("import", self.source, "-o", self.output, *FACTS)
        self.assertEqual(code, 2)
        self.assertIn("--force", err)
        self.source.write_text("[")
        self.assertEqual(run("import", self.source, "-o", self.output, *FACTS, "--force")[0], 1)
        self.assertEqual(self.output.read_bytes(), before, "a refused file replaces nothing")
        code, _, err = run("import", self.source, "-o", self.source, *FACTS, "--force")
        self.assertEqual(code, 2)
        self.assertIn("reads this file", err)
        self.assertEqual(self.source.read_text(), "[")

    def test_a_full_disk_leaves_nothing(self):
        self.source.write_text(json.dumps(wino_run(3, length=400).record()))
        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
        done = subprocess.run([BINARY, "import", self.source, "-o", self.output, *map(str, FACTS)],
                              capture_output=True, text=True, preexec_fn=limit)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertEqual([p.name for p in self.root.iterdir()], ["in.json"])


if __name__ == "__main__":
    require_binary()
    unittest.main()
