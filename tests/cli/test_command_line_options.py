"""The rules of docs/command_line.md about options and bad input."""

import json
import os
import unittest

from capture_harness import require_binary, run, write_checkpoint
from command_line_case import FAILED, NEEDLE, TINY_TRAINING, USAGE, CommandLineCase
from family_case import write_canvases


class Options(CommandLineCase):
    def test_the_tau_of_the_calibration_file_counts_in_every_command(self):
        reuse = self.root / "tau4.json"
        self.must("calibrate", self.made / "a.h5", "--gamma", "-1", "--tau", 4, "-o", reuse, "--quiet")
        for given, tau in (("", 4), (",tau=3", 3)):
            trace = self.root / f"tau{tau}.h5"
            policy = ["--policy", f"flashblock,reuse={reuse}{given}"]
            self.must("capture", self.model, "--prompts", self.made / "a.jsonl", *policy, "-q", "-o", trace)
            self.assertEqual(json.loads(self.must("info", trace, "--json"))["run"]["tau"], tau)
            text = self.must("verify", self.model, *policy, "--prompts", self.made / "a.jsonl", "--json", "-q")
            self.assertIn(f'"tau": {tau}', text)

    def test_numbers_outside_their_range_are_refused_in_every_command(self):
        made, model = self.made, self.model
        out = self.root / "never"
        capture = ["capture", model, "--prompts", made / "a.jsonl", "-o", out]
        every = [capture, ["eval", model], ["bench", model],
                 ["verify", model, "--policy", f"flashblock,reuse={made / 'reuse.json'}", "--prompts", made / "a.jsonl"],
                 ["train", "--out", out], ["analyze", made / "a.h5"],
                 ["report", made / "a.h5", "-o", out],
                 ["calibrate", made / "a.h5", "--gamma", 0, "-o", out]]
        for command in every:
            for threads in ("-1", "100000", "1.5", "two"):
                self.refused(USAGE, "--threads: expected a whole number", *command, "--threads", threads)
        for flag, value in (("--seed", "-1"), ("--seed", str(2**64)), ("--limit", "-3"),
                            ("--gen-length", "0"), ("--batch-size", "-2"), ("--temperature", "nan"),
                            ("--temperature", "-1"), ("--top-p", "0"), ("--set-size", "0")):
            self.refused(USAGE, f"{flag}: expected", *capture, flag, value)
        self.refused(USAGE, "positions of this model", *capture, "--record", "sets", "--set-size", 3000000)
        self.refused(USAGE, "positions of this model", "bench", model, "--context", 10**9)
        self.assertFalse(out.exists())

    def test_empty_values_are_refused_in_every_command(self):
        made, model = self.made, self.model
        for command in (["analyze", made / "a.h5", "--csv", ""], ["analyze", made / "a.h5", "--layer="],
                        ["view", made / "a.h5", "--screenshot", ""], ["repack", made / "a.h5", "-o", ""],
                        ["capture", model, "--prompts", made / "a.jsonl", "-o", self.root / "x.h5",
                         "--layers", ""], ["eval", model, "--json", ""], ["info", ""]):
            self.refused(USAGE, "got an empty one", *command)

    def test_an_option_given_twice_is_told(self):
        self.refused(USAGE, "--limit: expected once, got it 2 times", "capture", self.model, "--prompts",
                     self.made / "a.jsonl", "-o", self.root / "twice.h5", "--limit", 1, "--limit", 2)

    def test_help_has_the_usual_options_and_help_all_every_one(self):
        for command in ("capture", "eval", "verify"):
            usual, every = self.must(command, "--help"), self.must(command, "--help-all")
            self.assertIn(f"less usual options: blockscope {command} --help-all", usual)
            self.assertNotIn("--top-k", usual)
            self.assertIn("--top-k", every)
            for option in ("--policy", "--strategy", "--cache", "--gen-length"):
                self.assertIn(option, usual)
                self.assertIn(option, every)

    def test_help_explains_every_policy_strategy_and_cache(self):
        for kind in ("policy", "strategy", "cache"):
            names = self.must("help", kind)
            choices = json.loads(self.must("help", kind, "--json"))
            self.assertGreater(len(choices), 7)
            for choice in choices:
                self.assertIn(f"  {choice['name']} ", names)
                text = self.must("help", kind, choice["name"])
                for said in (choice["meaning"], choice["source"], f"--{kind} {choice['example']}"):
                    self.assertIn(said, text)
                for option in choice["options"]:
                    self.assertIn(f"  {option['name']}", text)
            self.refused(USAGE, [f"help {kind}: expected ", "got 'nothing'"], "help", kind, "nothing")
        self.refused(USAGE, "help: expected policy, intervene, strategy, cache or family", "help", "model")

    def test_help_explains_every_model_family(self):
        names = self.must("help", "family")
        families = json.loads(self.must("help", "family", "--json"))
        self.assertGreater(len(families), 9)
        for family in families:
            self.assertIn(f"  {family['name']} ", names)
            text = self.must("help", "family", family["name"])
            for said in (family["meaning"], family["source"], family["example"], *family["facts"].values()):
                self.assertIn(said, text)
        self.refused(USAGE, ["help family: expected sdar, ", "got 'gpt2'"], "help", "family", "gpt2")

    def test_a_limit_beyond_the_prompts_is_told(self):
        _, _, err = run("capture", self.model, "--prompts", self.made / "a.jsonl", "-o", self.root / "few.h5",
                        "--limit", 3)
        self.assertIn("note: --limit 3: there are no more than 2 prompts", err)

    def test_a_rank_without_prompts_says_so(self):
        code, out, err = run("capture", self.model, "--input-ids", "1", "-o", self.root / "ranks.h5", "-q",
                             "--ranks", "1/2")
        self.assertEqual(code, 0, err)
        self.assertEqual(err, "rank 1 of 2 (--ranks): 0 of 1 prompts\n")
        self.assertIn("n/a tokens/s", out)

    def test_one_of_several_ranks_measures_no_share(self):
        ranks = {"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_STEP_ID": "0"}
        prompts = ["--prompts", self.made / "a.jsonl"]
        commands = (["verify", self.model, *prompts, "--policy", "mage,k=4"], ["eval", self.model],
                    ["bench", self.model], ["check", self.model, "--reference", self.root / "logits"],
                    ["study", "needle", self.model, "-o", self.root / "study"],
                    ["train", "--out", self.root / "trained", "--work", self.root / "work"])
        for command in commands:
            with self.subTest(command[0]):
                self.refused(USAGE, [f"{command[0]}: expected one process, got rank 0 of 8 (Slurm)", "--ranks none"],
                             *command, environment=ranks)
                self.refused(USAGE, "got rank 1 of 3 (--ranks)", *command, "--ranks", "1/3")
        self.must("bench", self.model, "--ranks", "none", "--levels", "off", "--gen-length", 8, "--context", 8,
                  "--runs", 1, "-q", environment=ranks)

    def test_eval_says_what_it_scored(self):
        scores = self.root / "scores.json"
        out = self.must("eval", NEEDLE, "--tasks", "copy", "--contexts", 64, "--per-cell", 1, "-q", "--policy",
                        "flashblock,tau=3", "--task-seed", 9, "--json", scores)
        self.assertIn("policy flashblock,tau=3, low_confidence_static", out)
        (report,) = json.loads(scores.read_text())
        said = {name: report["settings"][name] for name in ("policy", "tau", "strategy", "task_seed", "gen_length")}
        self.assertEqual(said, {"policy": "flashblock", "tau": 3, "strategy": "low_confidence_static",
                                "task_seed": 9, "gen_length": 32})

    def test_an_empty_place_in_a_list_is_refused(self):
        trace = self.made / "a.h5"
        for arguments in (["analyze", trace, "--metric", "recall,"], ["analyze", trace, "--metric=recall,,union"],
                          ["analyze", trace, "--by", ",layer"], ["bench", self.model, "--levels", "off,"],
                          ["eval", self.model, "--contexts", "64,,128"],
                          ["view", trace, "--panel", "heads,", "--csv", "-"]):
            with self.subTest(arguments):
                self.refused(USAGE, "expected values separated by commas", *arguments)
        # A comma in what is no list is a comma.
        self.must("capture", self.model, "--input-ids", "1,2", "-o", self.root / "a,.h5", "-q")

    def test_a_vanishing_temperature_is_greedy(self):
        tokens = []
        for flags in ([], ["--temperature", "1e-38"], ["--temperature", "1e-300"]):
            trace = self.root / "cold.h5"
            self.must("capture", self.model, "--prompts", self.made / "a.jsonl", "-q", "-o", trace, "--force",
                      "--strategy", "sequential", *flags)
            tokens.append([line.split(",")[6:8] for line in self.must("export", trace).splitlines()])
        self.assertEqual(tokens[1], tokens[0])
        self.assertEqual(tokens[2], tokens[0])

    def test_weights_that_are_not_numbers_are_told(self):
        broken = write_checkpoint(self.root / "nan")
        raw = bytearray((broken / "model.safetensors").read_bytes())
        raw[-4096:] = b"\xff" * 4096  # NaN
        (broken / "model.safetensors").write_bytes(raw)
        self.refused(FAILED, "expected finite logits", "capture", broken, "--input-ids", "1,2,3", "-o",
                     self.root / "nan.h5")

    def test_hints_fit_what_was_given(self):
        bad = self.root / "bad.jsonl"
        bad.write_text('{"prompt": "cut of')
        err = self.refused(FAILED, ["bad.jsonl:1", "every line is one JSON object"], "capture", self.model,
                           "--prompts", bad, "-o", self.root / "hint.h5")
        self.assertNotIn("fetch", err)
        err = self.refused(FAILED, "no such folder", "capture", self.root / "no" / "such" / "model",
                           "--input-ids", "1", "-o", self.root / "hint.h5")
        self.assertNotIn("--model", err)
        err = self.refused(FAILED, ["expected a folder or a model id, got a file", "the model comes first"], "capture", bad,
                           "--input-ids", "1", "-o", self.root / "hint.h5")
        self.assertNotIn("hf download", err)
        err = self.refused(USAGE, "--device: expected cpu", "train", *TINY_TRAINING, "--device", "tpu", "--out",
                           self.root / "hint")
        self.assertEqual(len(err.splitlines()), 1)

    def test_verify_counts_rows_of_layers_of_different_sizes(self):
        model = write_canvases(self.root / "rows", windows=True)  # head_dim 8 and a window, then head_dim 4
        out = self.root / "rows.json"
        self.must("verify", model, "--input-ids", "1,2,3,4,5,6", "--gen-length", 8, "--policy", "flashblock,tau=4", "--dtype",
                  "float32", "-o", out, "-q")
        setting = json.loads(out.read_text())["settings"][0]
        self.assertTrue(setting["measured_equals_predicted"])
        for run in ("replay", "free_running"):
            reads = setting[run]["reads"]
            for rows, size in (("key_rows", "bytes"), ("key_rows_read", "bytes_read")):
                of_layers = [sum(layer) for layer in reads[f"{rows}_by_kv_head"]]
                self.assertEqual(reads[rows], sum(of_layers))
                self.assertEqual(reads[size], sum(2 * 4 * dim * count for dim, count in zip((8, 4), of_layers, strict=True)))

    def test_a_pipe_for_weights_is_refused(self):
        broken = write_checkpoint(self.root / "piped")
        (broken / "model.safetensors").unlink()
        os.mkfifo(broken / "model.safetensors")
        for name in ("config.json", "generation_config.json", "tokenizer.json"):
            for make in (os.mkfifo, os.mkdir):
                odd = write_checkpoint(self.root / f"odd-{make.__name__}-{name}")
                (odd / name).unlink(missing_ok=True)
                make(odd / name)
                self.refused(FAILED, [name, "expected a regular file"], "capture", odd, "--input-ids", "1,2",
                             "-o", self.root / "piped.h5")
        self.refused(FAILED, "expected a regular file", "capture", broken, "--input-ids", "1,2,3", "-o",
                     self.root / "piped.h5")
        pipe = self.root / "piped-trace"
        os.mkfifo(pipe)
        for command in (["info", pipe], ["diff", pipe, pipe], ["analyze", pipe], ["repack", pipe, "-o", "x"],
                        ["capture", self.model, "--replay", pipe, "-o", self.root / "piped.h5"]):
            self.refused(FAILED, "expected a regular file", *command)
        self.refused(FAILED, "calibration file", "capture", self.model, "--input-ids", "1", "--policy",
                     f"flashblock,reuse={pipe}", "-o", self.root / "piped.h5")


if __name__ == "__main__":
    require_binary()
    unittest.main(argv=["test_command_line_options.py"], verbosity=2)
