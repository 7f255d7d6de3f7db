"""The rules of docs/command_line.md about `--resume`, for `capture` and `train`."""

import json
import pathlib
import re
import shutil
import signal
import struct
import time
import unittest

from capture_harness import require_binary, run, start, write_prompts
from command_line_case import FAILED, NEEDLE, TINY_TRAINING, USAGE, CommandLineCase


class Resume(CommandLineCase):
    def cut_capture(self, trace, *arguments):
        process = start("capture", *arguments, "-q", "-o", trace)
        partial = pathlib.Path(f"{trace}.partial")
        while not partial.exists() and process.poll() is None:
            time.sleep(0.002)
        process.kill()
        process.communicate()
        return partial

    def test_resume_refuses_what_would_mix_two_runs(self):
        prompts = write_prompts(self.root / "first.jsonl", 40, 3, 6, 20, gen_length=40)
        others = write_prompts(self.root / "other.jsonl", 40, 4, 6, 20, gen_length=40)
        for file in (prompts, others):  # the first says no gen_length: then --gen-length does something
            file.write_text(file.read_text().replace(', "gen_length": 40', "", 1))
        reuse = self.root / "mask.json"
        reuse.write_bytes((self.made / "reuse.json").read_bytes())
        run_flags = [self.model, "--policy", f"flashblock,reuse={reuse}"]
        trace = self.root / "cut.h5"
        partial = self.cut_capture(trace, *run_flags, "--prompts", prompts)
        before = partial.read_bytes()
        resume = ["capture", *run_flags, "--prompts", prompts, "-q", "-o", trace, "--resume"]
        other_tau = ["capture", self.model, "--policy", f"flashblock,reuse={reuse},tau=3", *resume[4:]]
        self.refused(USAGE, "tau was", *other_tau)
        for changed, named in ((["--gen-length", 9], "gen_length was 128"), (["--steps", "1"], "recorded_steps"),
                               (["--blocks", "1-2"], "recorded_blocks"), (["--temperature", 1], "temperature was 0"),
                               (["--sequences", "0"], "recorded_sequences"),
                               (["--predictions", "all"], "predictions was \"masked\", and is \"all\" now"),
                               (["--limit", 3], "num_prompts"), (["--batch-size", 2], "batch_size"),
                               (["--denoising-steps", 2], "denoising_steps"),
                               (["--record", "trajectory"], "level")):
            self.refused(USAGE, named, *resume, *changed)
        self.refused(USAGE, "prompts_digest", "capture", *run_flags, "--prompts", others, "-q", "-o", trace,
                     "--resume")
        self.must("calibrate", self.made / "a.h5", "--gamma", 0.9, "-o", reuse, "--quiet", "--force")
        self.refused(USAGE, "reuse_digest", *resume)
        self.assertEqual(partial.read_bytes(), before)
        reuse.write_bytes((self.made / "reuse.json").read_bytes())
        found = re.search(r"resumed: (\d+) of 40 sequences were finished; this run: (\d+) sequence",
                          self.must(*resume))
        if found:  # one was finished when the kill came
            self.assertEqual(int(found.group(1)) + int(found.group(2)), 40)
        # A finished trace is not taken for that of another run either.
        self.assertIn("nothing to resume", self.must(*resume))
        self.refused(USAGE, "gen_length was 128", *resume, "--gen-length", 9)
        self.refused(USAGE, "level", *resume, "--record", "full")


    def train(self, *arguments, out="out", work="work"):
        return ["train", "--out", self.root / out, "--work", self.root / work, "--threads", 1, *arguments]

    def weights(self, out):
        return (self.root / out / "backbone" / "model.safetensors").read_bytes()

    def cut_training(self, *arguments, out, work, stage="backbone"):
        """A run that a signal stopped after a few steps."""
        process = start(*self.train(*arguments, out=out, work=work))
        log = self.root / work / f"{stage}.csv"
        while process.poll() is None and not (log.exists() and log.read_text().count("\n") > 4):
            time.sleep(0.002)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 128 + signal.SIGTERM, err)
        return self.root / work / f"{stage}.safetensors"

    def test_a_resumed_training_equals_one_that_never_stopped(self):
        run_flags = [*TINY_TRAINING, "--steps", 150, "--seed", 7, "--learning-rate", 0.01, "--warmup", 5]
        self.must(*self.train(*run_flags, out="whole", work="whole-work"))
        self.cut_training(*run_flags, out="cut", work="cut-work")
        # No setting given: all come from the state. What decides no weight may differ.
        self.must(*self.train("--resume", "--save-every", 7, "--report-every", 3, "--evaluate-documents", 1,
                              "--evaluate-every", 20, "--minutes", 60, out="cut", work="cut-work"))
        self.assertEqual(self.weights("cut"), self.weights("whole"))

    def test_a_resumed_training_knows_its_tokenizer(self):
        """A state has the path of its tokenizer: it need not be named again, and an error says if it is missing."""
        tokenizer = self.root / "tokenizer"
        shutil.copytree(NEEDLE, tokenizer, ignore=shutil.ignore_patterns("*.safetensors", "backbone", "dflash"))
        flags = [*TINY_TRAINING[:TINY_TRAINING.index("--tokenizer")], "--tokenizer", tokenizer]
        self.cut_training(*flags, "--steps", 5000, out="known", work="known-work")
        resume = self.train("--resume", "--minutes", 0.01, out="known", work="known-work")
        self.must(*resume)
        text = (tokenizer / "tokenizer.json").read_text()
        (tokenizer / "tokenizer.json").write_text(text + " ")
        self.refused(USAGE, ["sha256 of tokenizer.json", "--tokenizer"], *resume)
        (tokenizer / "tokenizer.json").unlink()
        self.refused(USAGE, [f"had tokenizer.json in {tokenizer}, which no longer has it", "HINT: --tokenizer"], *resume)
        self.must(*resume, "--tokenizer", NEEDLE)

    def test_a_resumed_training_refuses_other_settings(self):
        state = self.cut_training(*TINY_TRAINING, "--steps", 5000, out="refused", work="refused-work")
        before = state.read_bytes()
        for option, was, value in (("--steps", 5000, 6), ("--backbone-steps", 5000, 6), ("--seed", 1, 2),
                                   ("--learning-rate", 0.002, 0.5), ("--warmup", 50, 3), ("--decay", 0.3, 0.9),
                                   ("--batch-tokens", 256, 512), ("--first-context", 64, 128),
                                   ("--last-context", 64, 128), ("--advance-below", 0.3, 0.5),
                                   ("--drill-share", 0.4, 0.5), ("--precision", '"float32"', "bfloat16"),
                                   ("--layers", 1, 2), ("--hidden", 32, 64), ("--ffn", 32, 64),
                                   ("--heads", 2, 4), ("--kv-heads", 1, 2), ("--head-dim", 16, 32),
                                   ("--family", '"sdar"', "llada")):
            shown = f'"{value}"' if isinstance(value, str) else value
            self.refused(USAGE, [f"was {was}, and is {shown} now", "leave it out", "--init"],
                         *self.train("--resume", "--tokenizer", NEEDLE, option, value, out="refused", work="refused-work"))
        other = self.root / "other-tokenizer"
        other.mkdir()
        (other / "tokenizer.json").write_text((NEEDLE / "tokenizer.json").read_text() + " ")
        self.refused(USAGE, "sha256 of tokenizer.json", "train", "--resume", "--out", self.root / "refused",
                     "--work", self.root / "refused-work", "--tokenizer", other)
        self.assertEqual(state.read_bytes(), before)

    def test_a_state_without_settings_is_refused(self):
        """As versions wrote it that did not record them."""
        state = self.cut_training(*TINY_TRAINING, "--steps", 5000, out="old", work="old-work")
        raw = state.read_bytes()
        length, = struct.unpack("<Q", raw[:8])
        header = json.loads(raw[8:8 + length])
        del header["__metadata__"]["settings"]
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        state.write_bytes(struct.pack("<Q", len(text)) + text + raw[8 + length:])
        self.refused(FAILED, ["backbone.safetensors", "expected the settings of its run"],
                     *self.train("--resume", "--tokenizer", NEEDLE, out="old", work="old-work"))

    def test_the_longest_context_is_resumed_as_well(self):
        flags = list(TINY_TRAINING)
        flags[flags.index("--last-context") + 1] = 4096
        self.cut_training(*flags, "--steps", 5000, out="long", work="long-work")
        self.must(*self.train("--resume", "--tokenizer", NEEDLE, "--minutes", 0.01, out="long", work="long-work"))

    def test_the_family_is_resumed_as_well(self):
        head_dim = TINY_TRAINING.index("--head-dim")
        flags = [*TINY_TRAINING[2:head_dim], *TINY_TRAINING[head_dim + 2:], "--family", "llada", "--warmup", 2]
        self.must(*self.train(*flags, "--stage", "backbone", "--steps", 2, out="llada", work="llada-causal"))
        init = ["--stage", "diffusion", "--init", self.root / "llada" / "backbone"]
        whole = ["--steps", 60, "--diffusion-learning-rate", 0.01, "--seed", 3]
        self.must(*self.train(*flags, *init, *whole, out="llada-whole", work="llada-whole-work"))
        self.cut_training(*flags, *init, *whole, out="llada-cut", work="llada-cut-work", stage="diffusion")
        self.must(*self.train("--resume", "--tokenizer", NEEDLE, "--evaluate-documents", 1, out="llada-cut",
                              work="llada-cut-work"))
        one, other = (self.root / out / "model.safetensors" for out in ("llada-whole", "llada-cut"))
        self.assertEqual(one.read_bytes(), other.read_bytes())
        self.assertNotEqual(one.read_bytes(), (self.root / "llada" / "backbone" / "model.safetensors").read_bytes())
        self.assertEqual(json.loads((self.root / "llada-cut" / "config.json").read_text())["model_type"], "llada")
        # Weights of the other family do not fit, and say so.
        self.refused(FAILED, "expected weights of the family llada",
                     *self.train(*flags, "--stage", "diffusion", "--init", NEEDLE, "--steps", 1,
                                 out="unfit", work="unfit-work"))

    def test_a_resumed_adapter_equals_one_that_never_stopped(self):
        """Dropout, probes and texts are those of the step, whatever came before it."""
        data = self.root / "texts.jsonl"
        data.write_text("".join(json.dumps({"input_ids": [(i * j) % 256 for i in range(20 + j)]}) + "\n" for j in range(30)))
        flags = ["--stage", "reuse", "--init", self.model, "--data", data, "--lora-rank", 4, "--probes", 3, "--steps", 150,
                 "--start-steps", 2, "--seed", 3, "--first-context", 64, "--last-context", 64, "--evaluate-every", 0]
        self.must(*self.train(*flags, "--evaluate-documents", 0, out="adapter", work="adapter-work"))
        state = self.cut_training(*flags, "--evaluate-documents", 0, out="adapter-cut", work="adapter-cut-work", stage="reuse")
        resume = self.train("--resume", out="adapter-cut", work="adapter-cut-work")
        for option, was, value in (("--lora-rank", 4, 8), ("--unroll", 2, 3), ("--lora-modules", '"qkvo"', "q"),
                                   ("--probes", 3, 4), ("--steps", 150, 151), ("--reuse-weight", 0.5, 1.0)):
            shown = f'"{value}"' if isinstance(value, str) else value
            self.refused(USAGE, [f"was {was}, and is {shown} now"], *resume, option, value)
        before, text = state.read_bytes(), data.read_text()
        data.write_text(text + text.splitlines()[-1].replace("[0", "[1") + "\n")
        self.refused(USAGE, ["the sha256 of --data", "HINT"], *resume)
        data.unlink()
        self.refused(USAGE, [f"--data: {data}: expected a file, got none that can be read", "HINT"], *resume)
        data.write_text(text)
        self.refused(USAGE, ["the digest of --init", "HINT"], *resume, "--init", NEEDLE)
        self.assertEqual(state.read_bytes(), before)
        self.must(*resume, "--save-every", 7, "--evaluate-documents", 2, "--evaluate-every", 20)
        for name in ("adapter_model.safetensors", "adapter_config.json"):
            one, other = ((self.root / out / name).read_bytes() for out in ("adapter", "adapter-cut"))
            self.assertEqual(one, other)

    def test_a_new_training_leaves_no_state_of_another_to_resume(self):
        """--force begins anew: the diffusion state of an older run must not end the new one."""
        work = self.root / "mixed-work"
        shape = [*TINY_TRAINING[2:], "--stage", "all", "--backbone-steps", 2, "--diffusion-steps", 2]
        self.must(*self.train(*shape, out="mixed", work="mixed-work"))
        self.assertTrue((work / "diffusion.safetensors").exists())
        self.cut_training(*TINY_TRAINING[2:], "--stage", "all", "--backbone-steps", 5000, "--force", out="mixed",
                          work="mixed-work")
        self.assertFalse((work / "diffusion.safetensors").exists())


if __name__ == "__main__":
    require_binary()
    unittest.main(argv=["test_command_line_resume.py"], verbosity=2)
