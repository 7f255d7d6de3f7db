"""`blockscope capture` with bad input: one line that says what and where, the documented exit code,
and nothing left under the final name."""

import json
import os
import pathlib
import unittest

import capture_harness as harness
from capture_harness import BLOCK, MASK, VOCAB, capture, run
from capture_refusal import FAILED, USAGE, RefusalCase

AS_ROOT = os.geteuid() == 0


class BadInput(RefusalCase):
    def test_an_output_that_exists_is_kept_without_force(self):
        output = self.root / "there.h5"
        output.write_bytes(b"precious")
        self.refused(USAGE, ["there.h5", "--force"], output=output)
        result, _, err = capture(self.model, "--input-ids", "1,2,3", "--gen-length", "4", "-o",
                                 output, "--force")
        self.assertEqual(result, 0, err)
        self.assertEqual(len(harness.trajectories(output)), 1)

    def test_an_output_that_exists_is_refused_before_the_checkpoint_is_read(self):
        """Without --quiet too: no plan, no prompt and no model is looked at first."""
        output = self.root / "first.h5"
        output.write_bytes(b"precious")
        result, out, err = run("capture", "no/such/model", "--prompts", "none.jsonl", "-o", output)
        self.assertEqual((result, out), (USAGE, ""), err)
        self.assertEqual(len(err.splitlines()), 1, err)
        self.assertIn("first.h5", err)
        result, out, err = run("capture", self.model, "--input-ids", "1,2,3", "-o", output)
        self.assertEqual((result, out, len(err.splitlines())), (USAGE, "", 1), err)
        self.assertEqual(output.read_bytes(), b"precious")

    def test_a_partial_file_that_exists_is_kept_without_force_or_resume(self):
        output = self.root / "cut.h5"
        partial = self.root / "cut.h5.partial"
        partial.write_bytes(b"precious")
        result, _, err = capture(self.model, "--input-ids", "1,2,3", "-o", output)
        self.assertEqual(result, USAGE)
        self.assertIn("--resume", err)
        self.assertEqual(partial.read_bytes(), b"precious")
        self.assertFalse(output.exists())

    def test_a_place_that_cannot_be_written(self):
        self.refused(FAILED, "none/out.h5", output=self.root / "none" / "out.h5")
        self.refused(FAILED, "/proc/out.h5", output=pathlib.Path("/proc/out.h5"))
        if not AS_ROOT:
            locked = self.root / "locked"
            locked.mkdir(mode=0o500)
            self.refused(FAILED, "locked/out.h5", output=locked / "out.h5")

    def test_prompt_lines_that_are_malformed_are_named_by_number(self):
        good = '{"input_ids": [1, 2]}\n'
        for line in ["{\"input_ids\": [1, 2", "[]", '{"input_ids": "x"}', '{"input_ids": [1.5]}',
                     '{"id": "nothing"}', '{"prompt": "a", "input_ids": [1]}',
                     '{"input_ids": [1], "metric": "beauty", "answer": "x"}',
                     '{"input_ids": [1], "gen_length": -4}', '{"prompt": 7}',
                     '{"messages": []}', '{"messages": [{"role": "user"}]}']:
            self.refused(FAILED, "prompts.jsonl:3", prompt=self.prompts_file(good + good + line + "\n"))

    def test_prompts_that_do_not_fit_the_model(self):
        self.refused(USAGE, "--prompt: expected a value", prompt=("--prompt", ""))
        self.refused(FAILED, ["prompts.jsonl:2", "list of 0"],
                     prompt=self.prompts_file('{"input_ids": [1]}\n{"input_ids": []}\n'))
        long = ",".join(["7"] * 510)
        self.refused(FAILED, ["max_position_embeddings", "512"], prompt=("--input-ids", long))
        self.refused(FAILED, ["token 1", str(VOCAB)], prompt=("--input-ids", f"3,{VOCAB}"))
        self.refused(FAILED, "token 1", prompt=("--input-ids", "3,-5"))
        self.refused(FAILED, ["token 2", "mask"], prompt=("--input-ids", f"3,4,{MASK}"))
        self.refused(FAILED, "mask", prompt=("--prompt", "Say <|MASK|> twice"))
        self.refused(FAILED, ["prompts.jsonl:1", "mask"],
                     prompt=self.prompts_file(json.dumps({"input_ids": [1, MASK]})))
        self.refused(USAGE, "--input-ids", prompt=("--input-ids", "3,x"))
        self.refused(USAGE, "--prompt", prompt=())
        self.refused(FAILED, "prompts.none", prompt=("--prompts", self.root / "prompts.none"))

    def test_options_that_make_no_sense(self):
        for words, arguments in [
                (["strategy 'greedy'", "entropy_bounded"], ("--strategy", "greedy")),
                ("denoising steps: expected 1 to", ("--denoising-steps", BLOCK + 1)),
                ("threshold: expected a number up to 1, got '1.5'", ("--strategy", "threshold,threshold=1.5")),
                ("--temperature", ("--temperature", "-1")),
                ("--temperature", ("--temperature", "nan")),
                ("--top-p", ("--top-p", "0")),
                ("--batch-size", ("--batch-size", "0")),
                ("stop id: expected", ("--stop-id", VOCAB)),
                ("stop id: expected", ("--stop-id", MASK)),
                ("--no-stop", ("--no-stop", "--stop-id", "5")),
                ("--gen-length", ("--gen-length", "0")),
                ("--dtype", ("--dtype", "float8")),
                ("policy 'magic': expected exact, flashblock", ("--policy", "magic")),
                ("tau: expected a whole number from 1, got '0'", ("--policy", "flashblock,tau=0")),
                ("exact has no options, got 'reuse'", ("--policy", "exact,reuse=reuse.json")),
                ("--shadow", ("--shadow",)),
                ("--layers", ("--layers", "0-2")),
                ("--heads", ("--heads", "4")),
                ("--steps", ("--steps", "0")),
                ("--array-type", ("--array-type", "f64")),
                ("record level", ("--record", "everything")),
                ("--metric", ("--metric", "beauty")),
                (["--resume", "--force"], ("--resume", "--force"))]:
            self.refused(USAGE, words, *arguments)
        self.refused(USAGE, "--mask-token-id: expected", "--mask-token-id", VOCAB)
        self.refused(USAGE, ["--block-length", "512"], "--block-length", 100000)
        self.refused(USAGE, "--block-length", "--block-length", "0")
        self.refused(USAGE, "brings its own prompts", "--replay", "other.h5")
        self.refused(FAILED, "other.h5", "--replay", "other.h5", prompt=())

    def test_a_reuse_file_for_another_model_is_refused_by_field(self):
        path = self.root / "reuse.json"
        file = {"format": "blockscope-reuse", "format_version": 1,
                "model": {"layers": 2, "heads": 4, "digest": "0" * 64},
                "reuse": [[True] * 4] * 2}
        flags = ("--policy", f"flashblock,reuse={path}")
        path.write_text(json.dumps(file))
        self.refused(FAILED, "model.digest", *flags)
        path.write_text(json.dumps(file | {"model": {"layers": 3, "heads": 4, "digest": ""}}))
        self.refused(FAILED, "model.layers", *flags)
        path.write_text("{")
        self.refused(FAILED, "reuse.json", *flags)

    def test_checkpoints_that_are_broken(self):
        weights = (self.model / "model.safetensors").read_bytes()
        config = json.loads((self.model / "config.json").read_text())
        other = json.dumps(config | {"hidden_size": 40}).encode()
        unknown = json.dumps(config | {"model_type": "mamba"}).encode()
        for words, name, content in [
                ("config.json", "config.json", None),
                ("config.json", "config.json", b"{"),
                (["model_type", "mamba"], "config.json", unknown),
                ("model.safetensors", "model.safetensors", None),
                ("model.safetensors", "model.safetensors", weights[:-4]),
                ("model.safetensors", "model.safetensors", weights[:100]),
                ("model.safetensors", "model.safetensors", b"\xff" * 64),
                ("model.safetensors", "model.safetensors", b""),
                ("tokenizer.json", "tokenizer.json", b'{"model": {"type": "BPE"'),
                ("tokenizer.json", "tokenizer.json", b'{"model": {"type": "Unigram"}}')]:
            self.refused(FAILED, words, model=self.damaged(name, content), prompt=("--prompt", "ab"))
        # One line a tensor, at most ten, between the reason and how many more there are; then a hint.
        self.refused(FAILED, ["expected [260, 40]", "got [260, 32]"], lines=14,
                     model=self.damaged("config.json", other))
        self.refused(FAILED, "tokenizer.json", model=self.damaged("tokenizer.json", None),
                     prompt=("--prompt", "ab"))
        self.refused(FAILED, "nowhere/none", model="nowhere/none")

    def test_without_a_tokenizer_token_ids_still_work(self):
        folder = self.damaged("tokenizer.json", None)
        output = self.root / "ids.h5"
        result, _, err = capture(folder, "--input-ids", "1,2,3", "--gen-length", "4", "-o", output)
        self.assertEqual(result, 0, err)
        self.assertEqual(run("info", output)[0], 0)

    def test_a_dry_run_writes_nothing(self):
        output = self.root / "dry.h5"
        result, _, err = capture(self.model, "--input-ids", "1,2", "-o", output, "--dry-run")
        self.assertEqual(result, 0, err)
        self.assertFalse(output.exists() or pathlib.Path(f"{output}.partial").exists())


if __name__ == "__main__":
    harness.require_binary()
    unittest.main(verbosity=2)
