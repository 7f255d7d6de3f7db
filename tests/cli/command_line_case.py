"""What the tests of the rules in docs/command_line.md share: their files, and how a refusal looks."""

import pathlib

from capture_harness import CheckpointCase, run, write_prompts

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
NEEDLE = REPOSITORY / "models" / "needle"
USAGE, FAILED = 2, 1
TINY_TRAINING = ["--stage", "backbone", "--layers", 1, "--hidden", 32, "--ffn", 32, "--heads", 2,
                 "--kv-heads", 1, "--head-dim", 16, "--batch-tokens", 256, "--first-context", 64,
                 "--last-context", 64, "--evaluate-documents", 0, "--evaluate-every", 0,
                 "--tokenizer", NEEDLE]


class CommandLineCase(CheckpointCase):
    """One checkpoint, prompts, a full trace, a merged one and a calibration file for all tests."""

    def setUp(self):
        super().setUp()
        self.made = self.root / "made"
        if self.made.exists():
            return
        self.made.mkdir()
        for name, seed in (("a", 1), ("b", 2)):
            prompts = write_prompts(self.made / f"{name}.jsonl", 2, seed, 6, 20)
            self.must("capture", self.model, "--prompts", prompts, "--record", "full", "--set-size",
                      4, "-q", "-o", self.made / f"{name}.h5")
        # Prompts of one file have the names of the other: only then are they two runs.
        (self.made / "b.jsonl").write_text((self.made / "b.jsonl").read_text().replace('"p', '"q'))
        (self.made / "b.h5").unlink()
        self.must("capture", self.model, "--prompts", self.made / "b.jsonl", "--record", "full",
                  "--set-size", 4, "-q", "-o", self.made / "b.h5")
        self.must("repack", self.made / "a.h5", self.made / "b.h5", "--merge", "-o",
                  self.made / "merged.h5")
        self.must("calibrate", self.made / "a.h5", "--gamma", "-1", "-o", self.made / "reuse.json",
                  "--quiet")

    def must(self, *arguments, environment=None):
        code, out, err = run(*arguments, environment=environment)
        self.assertEqual(code, 0, err)
        return out

    def refused(self, code, words, *arguments, environment=None):
        result, out, err = run(*arguments, environment=environment)
        with self.subTest(arguments=[str(a) for a in arguments]):
            self.assertEqual(result, code, err or out)
            line = err.splitlines()[-1] if err else ""
            self.assertTrue(line.startswith("blockscope: error: "), err)
            for word in [words] if isinstance(words, str) else words:
                self.assertIn(word, line)
        return err

    def outputs(self):
        """(command without its output, flag of the output, files it reads), for every output."""
        made, model = self.made, self.model
        trace, merged, reuse, prompts = (made / n for n in ("a.h5", "merged.h5", "reuse.json",
                                                           "a.jsonl"))
        weights = [model / "config.json", model / "model.safetensors", model / "tokenizer.json"]
        parts = [merged, made / "a.h5", made / "b.h5"]
        decode = ["--gen-length", 4]
        yield ["capture", model, "--prompts", prompts, *decode], "-o", [prompts, *weights]
        yield ["capture", model, "--replay", trace], "-o", [trace]
        yield (["capture", model, "--prompts", prompts, "--policy", f"flashblock,reuse={reuse}"],
               "-o", [reuse])
        yield ["eval", model, "--per-cell", 1], "--json", weights
        yield ["frequencies", model, prompts], "-o", [prompts, *weights]
        for flag in ("--csv", "--json"):
            yield ["lens", model, trace], flag, [trace, *weights]
        for flag in ("-o", "--csv"):
            yield (["verify", model, "--policy", f"flashblock,reuse={reuse}", "--prompts", prompts, *decode], flag,
                   [reuse, prompts, *weights])
        for flag in ("--csv", "--json", "--hdf5"):
            yield ["analyze", merged], flag, parts
        yield ["analyze", trace, "--backbone", made / "b.h5"], "--csv", [trace, made / "b.h5"]
        for flag in ("--csv", "--json"):
            yield ["diff", trace, trace, "--teacher"], flag, [trace]
        yield ["report", merged], "-o", parts
        yield ["calibrate", merged, "--gamma", 0], "-o", parts
        yield ["export", merged], "-o", parts
        yield ["repack", merged, "--copy", "--merge"], "-o", parts
        for flag in ("--screenshot", "--csv"):
            yield ["view", merged, "--reuse", reuse, "--panel", "heads"], flag, [*parts, reuse]
