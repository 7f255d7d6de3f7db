"""`bench --draft` and `verify --draft`: what they count is counted again from recorded traces of the same prompts, what
they say of times from the seconds of each answer; answers are compared with the target's own; idle options."""

import json
import statistics
import time
import unittest

import h5py
import numpy as np
from capture_harness import CheckpointCase, capture, require_binary, run, trajectories
from capture_refusal import FAILED, USAGE
from test_draft import draft_tensors, write_draft, write_target, zlab_config

WORDS, BLOCK, STOP = 6, 5, 4
KINDS = {"denoise": 1, "commit": 2}


def small_tensors(seed):
    """Of a draft for few words, which is right now and then."""
    random = np.random.default_rng(seed)
    return {name: (values if "norm" in name else random.standard_normal(values.shape).astype(np.float32) * 0.3)
            for name, values in draft_tensors(seed=seed).items()}


class DraftGain(CheckpointCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.target = write_target(cls.root / "target", seed=3, vocab_size=WORDS, eos_token_id=STOP)
        config = zlab_config(vocab_size=WORDS, block_size=BLOCK, eos_token_id=STOP,
                             dflash_config={"mask_token_id": WORDS - 1, "target_layer_ids": [0, 2]})
        cls.draft = write_draft(cls.root / "draft", config, small_tensors(5))
        random = np.random.default_rng(1)
        cls.prompts = cls.root / "prompts.jsonl"
        lines = []
        for i in range(12):
            lines.append({"id": f"p{i}", "input_ids": random.integers(0, WORDS - 1, 3 + i).tolist(),
                          "gen_length": 4 + 3 * i, "task": ("sums", "words", "sums")[i % 3], "answer": "ab"})
        cls.by_name = cls.root / "by-name.jsonl"  # the same without "task", which follows from the names
        cls.by_name.write_text("".join(
            json.dumps({key: value for key, value in line.items() if key != "task"} |
                       {"id": f"{line['task']}-{i}"}) + "\n" for i, line in enumerate(lines)))
        cls.prompts.write_text("".join(json.dumps(line) + "\n" for line in lines))
        cls.lines = lines

    def comparison(self, command, *flags, prompts=None):
        """The JSON of the command. Its times must fit into the time the command took."""
        begin = time.monotonic()
        code, out, err = run(command, self.target, "--draft", self.draft, "--prompts", prompts or self.prompts,
                             "--threads", 1, "--json", "-q", *flags)
        wall = time.monotonic() - begin
        self.assertEqual((code, err), (0, ""))
        result = json.loads(out)
        for part in ([result["all"]] if "all" in result else [b["all"] for b in result["block_lengths"]]):
            for name in ("seconds_alone", "seconds_drafted"):
                self.assertGreater(part[name]["low"], 0)
                self.assertLess(part[name]["high"], wall)
        return result

    def recorded(self, *flags):
        """-> by prompt: accepted drafts by round and the tokens decided, of a recorded drafted run."""
        trace = self.root / "drafted.h5"
        code, _, err = capture(self.target, "--draft", self.draft, "--prompts", self.prompts, "-o", trace, "--force",
                               *flags)
        self.assertEqual(code, 0, err)
        with h5py.File(trace) as file:
            rows = int(file["/steps/committed"][0])
            owner, kind = file["/steps/sequence"][:rows], file["/steps/kind"][:rows]
            accepted = file["/draft/accepted"][:rows]
            names = [line["id"] for line in self.lines]
            # Tokens accepted after the answer's last position are left out.
            ends = np.array([len(line["input_ids"]) + line["gen_length"] for line in self.lines])
            inside = np.minimum(accepted, ends[owner] - 1 - file["/steps/block_start"][:rows]).clip(0)
            # A block of one has no rows of drafts, and none to accept.
            rounds = {name: inside[(owner == i) & (kind == KINDS["denoise"])].tolist()
                      for i, name in enumerate(names)}
            commits = {name: int(((owner == i) & (kind == KINDS["commit"])).sum()) for i, name in enumerate(names)}
        return rounds, commits, trajectories(trace)

    def own_answers(self, *flags):
        trace = self.root / "alone.h5"
        code, _, err = capture(self.target, "--prompts", self.prompts, "-o", trace, "--force", *flags)
        self.assertEqual(code, 0, err)
        return {name: self.answer(run_) for name, run_ in trajectories(trace).items()}

    @staticmethod
    def answer(trajectory):
        """Up to the first stop token."""
        tokens = trajectory["token"].astype(int)[np.argsort(trajectory["position"], kind="stable")].tolist()
        return tokens[:tokens.index(STOP) + 1] if STOP in tokens else tokens

    def check_counts(self, said, names, rounds, commits, answers):
        """said: the command's output for these prompts."""
        tokens = sum(len(answers[name]) for name in names)
        count = sum(commits[name] for name in names)
        accepted = [n for name in names for n in rounds[name]]
        self.assertEqual((said["prompts"], said["tokens_alone"], said["tokens_drafted"], said["rounds"]),
                         (len(names), tokens, tokens, count))
        self.assertAlmostEqual(said["acceptance_length"], (sum(accepted) + count) / count, places=12)
        # The first token of each answer is the prefill's.
        self.assertAlmostEqual(said["target_passes_per_token"], count / (tokens - len(names)), places=12)
        shares = [sum(n >= p for n in accepted) / count for p in range(1, len(said["accepted_at"]) + 1)]
        np.testing.assert_allclose(said["accepted_at"], shares, rtol=1e-12)

    def test_counts_are_those_of_a_trace(self):
        rounds, commits, drafted = self.recorded()
        answers = self.own_answers()
        self.assertTrue(any(answer[-1] == STOP for answer in answers.values()), "no answer stops")
        self.assertTrue(any(answer[-1] != STOP for answer in answers.values()), "every answer stops")
        self.assertGreater(max(n for name in rounds for n in rounds[name]), 1, "hardly a draft is accepted")
        self.check_answers(self.comparison("verify"), rounds, commits, drafted, answers)
        self.check_answers(self.comparison("verify", "--batch-size", 5), rounds, commits, drafted, answers)

    def check_answers(self, verified, rounds, commits, drafted, answers):
        self.assertEqual((verified["format"], verified["format_version"], verified["block_length"]),
                         ("blockscope-verify-draft", 1, BLOCK))
        names = [line["id"] for line in self.lines]
        self.check_counts(verified["all"], names, rounds, commits, answers)
        for task in ("sums", "words"):
            mine = [line["id"] for line in self.lines if line["task"] == task]
            self.check_counts(verified["tasks"][task], mine, rounds, commits, answers)
        for line, said in zip(self.lines, verified["answers"]):
            name = line["id"]
            self.assertEqual((said["id"], said["task"], said["accepted"], said["rounds"]),
                             (name, line["task"], rounds[name], commits[name]))
            self.assertEqual((said["tokens_alone"], said["tokens_drafted"]), (len(answers[name]), len(answers[name])))
            self.assertEqual(self.answer(drafted[name]), answers[name])
        total = sum(map(len, answers.values()))
        self.assertEqual(verified["agreement"], {"positions": total, "equal": total, "answers": 12, "identical": 12})
        self.assertEqual(verified["first_differences"], [])
        self.assertEqual(verified["accuracy"]["count"], 12)

    def test_block_lengths(self):
        lengths = [1, 2, BLOCK]
        benched = self.comparison("bench", "--block-lengths", ",".join(map(str, lengths)), "--runs", 1, "--no-stop")
        self.assertEqual([said["block_length"] for said in benched["block_lengths"]], lengths)
        answers = {line["id"]: [0] * line["gen_length"] for line in self.lines}  # only their lengths count
        for length, said in zip(lengths, benched["block_lengths"]):
            rounds, commits, _ = self.recorded("--block-length", length, "--no-stop")
            self.check_counts(said["all"], list(answers), rounds, commits, answers)
            self.assertEqual(len(said["all"]["accepted_at"]), length - 1)
            self.assertEqual(said["agreement"]["identical"], 12)
        self.assertIsNone(benched["block_lengths"][0]["all"]["ms_draft"]["median"])  # nothing is drafted
        alone = self.comparison("bench", "--block-length", 2, "--runs", 1)
        self.assertEqual([said["block_length"] for said in alone["block_lengths"]], [2])

    def test_tasks_are_told_by_lines_or_names(self):
        def counts(gain):
            return {key: value for key, value in gain.items() if not isinstance(value, dict)}

        of_lines = self.comparison("bench", "--runs", 1)["block_lengths"][0]["tasks"]
        of_names = self.comparison("bench", "--runs", 1, prompts=self.by_name)["block_lengths"][0]["tasks"]
        self.assertEqual(list(of_lines), ["sums", "words"])
        self.assertEqual({task: counts(gain) for task, gain in of_names.items()},
                         {task: counts(gain) for task, gain in of_lines.items()})

    def test_times_are_those_of_the_answers(self):
        for batch_size in (1, 4):
            self.check_times(self.comparison("verify", "--repeats", 3, "--batch-size", batch_size), batch_size)

    def check_times(self, said, batch_size):
        for task in (None, "sums", "words"):
            gain = said["tasks"][task] if task else said["all"]
            answers = [a for a in said["answers"] if task in (None, a["task"])]
            alone, drafted = (np.array([a[f"seconds_{side}"] for a in answers]).sum(0) for side in ("alone", "drafted"))
            self.assertEqual((alone.shape, drafted.shape), ((3, 3), (3, 3)))  # repetition; prefill, draft, target
            self.assertTrue((alone[:, 1] == 0).all() and (alone[:, 2] > 0).all() and (drafted > 0).all())
            tokens = sum(a["tokens_alone"] for a in answers)
            speed_alone = tokens / alone[:, 2]
            speed = (tokens - len(answers)) / drafted[:, 1:].sum(1)
            for name, expected in (
                    ("tokens_per_second_alone", speed_alone), ("tokens_per_second_drafted", speed),
                    ("speedup", speed / speed_alone), ("answer_speedup", alone.sum(1) / drafted.sum(1)),
                    ("seconds_alone", alone.sum(1)), ("seconds_drafted", drafted.sum(1)),
                    ("prefill_seconds_alone", alone[:, 0]), ("prefill_seconds_drafted", drafted[:, 0]),
                    ("draft_share", drafted[:, 1] / drafted[:, 1:].sum(1)),
                    ("ms_target_alone", 1e3 * alone[:, 2] / tokens),
                    ("ms_target_verification", 1e3 * drafted[:, 2] / gain["rounds"]),
                    ("ms_draft", 1e3 * drafted[:, 1] / gain["rounds"])):
                if batch_size > 1 and name.startswith("ms_"):
                    continue  # a pass over several sequences is one pass: it does not follow from their shares
                spread = (gain[name]["median"], gain[name]["low"], gain[name]["high"])
                np.testing.assert_allclose(spread, (statistics.median(expected), expected.min(), expected.max()),
                                           rtol=1e-9, err_msg=f"{task}: {name}")

    def test_a_draft_that_is_always_right(self):
        target = write_target(self.root / "constant", seed=3)
        draft = write_draft(self.root / "right", zlab_config(),
                            draft_tensors() | {"norm.weight": np.zeros(32, np.float32)})
        weights = target / "model.safetensors"  # every token is as likely: both take the first
        data = bytearray(weights.read_bytes())
        size = int.from_bytes(data[:8], "little")
        begin, end = json.loads(data[8:8 + size])["model.norm.weight"]["data_offsets"]
        data[8 + size + begin:8 + size + end] = bytes(end - begin)
        weights.write_bytes(data)
        # The prefill decides one token, a round 4. Of 17 tokens the last round decides none: it ends after all of them.
        for gen_length, lengths in ((16, [4, 4, 4, 4]), (17, [4, 4, 4, 4, 1]), (15, [4, 4, 4, 3])):
            code, out, err = run("verify", target, "--draft", draft, "--input-ids", "1,2,3", "--gen-length", gen_length,
                                 "--repeats", 1, "--threads", 1, "--json", "-q")
            self.assertEqual(code, 0, err)
            said = json.loads(out)
            self.assertEqual([n + 1 for n in said["answers"][0]["accepted"]], lengths)
            self.assertEqual(said["all"]["acceptance_length"], sum(lengths) / len(lengths))
            self.assertEqual(said["all"]["accepted_at"],
                             [sum(n > p for n in lengths) / len(lengths) for p in (1, 2, 3)])
            self.assertEqual(said["agreement"],
                             {"positions": gen_length, "equal": gen_length, "answers": 1, "identical": 1})

    def test_texts(self):
        given = (self.target, "--draft", self.draft, "--prompts", self.prompts, "--threads", 1, "-q")
        code, out, err = run("verify", *given)
        self.assertEqual((code, err), (0, ""))
        self.assertRegex(out, r"\nVerdict: the answers are the target's own, token by token; decoding .*, whole "
                              r"answers .*; acceptance length [0-9.]+, [0-9]+ % of the time for the draft\n$")
        self.assertNotIn("NO TIE", out)
        self.assertRegex(out, r"\n +sums +8 ")
        code, out, err = run("bench", *given, "--runs", 1, "--block-lengths", "2,3")
        self.assertEqual((code, err), (0, ""))
        self.assertRegex(out, r"\n +2 all +12 ")
        self.assertRegex(out, r"\nB 2: all \d+ tokens are the target's own\nB 3: all \d+ tokens are the target's own\n")

    def test_drawn_answers_are_not_compared(self):
        drawn = ("--temperature", 0.8, "--seed", 4)
        said = self.comparison("verify", *drawn, "--repeats", 1)
        self.assertEqual((said["drawn"], said["agreement"], said["first_differences"]), (True, None, []))
        for command in ("verify", "bench"):
            code, out, err = run(command, self.target, "--draft", self.draft, "--prompts", self.prompts, "--threads", 1,
                                 "-q", *drawn)
            self.assertEqual((code, err), (0, ""))
            self.assertIn("distribution", out)
            self.assertNotIn("token by token", out)

    def refuses(self, code, words, *arguments):
        out_file = self.root / "refused.json"
        result, out, err = run(*arguments)
        with self.subTest(arguments=list(map(str, arguments))):
            self.assertEqual((result, out), (code, ""), err)
            self.assertEqual(len(err.splitlines()), 1, err)
            for word in [words] if isinstance(words, str) else words:
                self.assertIn(word, err)
            self.assertFalse(out_file.exists())

    def test_options_that_mean_nothing(self):
        given = (self.target, "--draft", self.draft, "--input-ids", "1,2", "--gen-length", 4)
        shared = (("--strategy", "sequential"), ("--denoising-steps", 2), ("--strategy", "factor,rank_by=margin"),
                  ("--strategy", "threshold,threshold=0.5"), ("--cache", "commit"), ("--mask-token-id", 3),
                  ("--no-graphs",), ("--metric", "f1"), ("--seed", 1), ("--chat",))
        of_bench = (("--levels", "off"), ("--context", 8), ("--folder", self.root), ("--predictions", "masked"),
                    ("--block-length", 2, "--block-lengths", "2"))
        of_verify = (("--policy", "mage,k=4"), ("--policy", "quest,k=4,page=8"), ("--policy", "flashblock,tau=2"),
                     ("--policy", "flashblock,reuse=x"), ("--against", "recent,k=2"),
                     ("--sweep",), ("--taus", 1), ("--gammas", 0), ("--csv", "x.csv"), ("--figures", "x"), ("--force",))
        for command, own in (("bench", of_bench), ("verify", of_verify)):
            for option in (*shared, *own):
                self.refuses(USAGE, [option[0], "does nothing"], command, *given, *option)
            self.refuses(USAGE, ["--block-length: expected at most the draft's 5", "got 6"], command, *given,
                         "--block-length", 6)
            self.refuses(USAGE, "no prompt given", command, self.target, "--draft", self.draft)
            self.refuses(FAILED, "expected a DFlash draft", command, self.target, "--draft", self.target, *given[3:])
            self.refuses(USAGE, "token by token", command, self.model, "--draft", self.draft, *given[3:])
        self.refuses(USAGE, ["--block-lengths: expected at most the draft's 5", "got 7"], "bench", *given,
                     "--block-lengths", "2,7")
        self.refuses(USAGE, "--block-lengths", "bench", *given, "--block-lengths", "0")

    def test_outputs(self):
        given = ("verify", self.target, "--draft", self.draft, "--prompts", self.prompts, "--repeats", 1,
                 "--threads", 1, "-q")
        for folder in (self.target, self.draft):
            for name in ("config.json", "model.safetensors"):
                before = (folder / name).read_bytes()
                self.refuses(USAGE, "the command reads this file", *given, "-o", folder / name, "--force")
                self.refuses(USAGE, "the command reads this file", "capture", *given[1:6], "-o", folder / name,
                             "--force")
                self.assertEqual((folder / name).read_bytes(), before)
        out = self.root / "verify.json"
        code, text, err = run(*given, "-o", out)
        self.assertEqual((code, err), (0, ""))
        self.assertIn("Verdict: ", text)
        self.assertEqual(json.loads(out.read_text())["format"], "blockscope-verify-draft")
        before = out.read_bytes()
        code, _, err = run(*given, "-o", out)
        self.assertEqual(code, USAGE, err)
        self.assertEqual(out.read_bytes(), before)
        code, _, err = run(*given, "-o", out, "--force")
        self.assertEqual(code, 0, err)


if __name__ == "__main__":
    require_binary()
    unittest.main()
