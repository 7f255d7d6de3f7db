"""What the tests of `blockscope capture` with bad input share: a checkpoint to damage, and the check
of how a command is refused: one line that says what and where, the documented exit code, and
nothing left under the final name."""

import pathlib

from capture_harness import CheckpointCase, capture

USAGE, FAILED = 2, 1


class RefusalCase(CheckpointCase):
    def refused(self, code, words, *arguments, lines=1, **given):
        """The command fails with `code`, on one line (or `lines`; None: any) that holds every word."""
        return self.check_refusal(code, words, self.attempt(*arguments, **given), lines)

    def attempt(self, *arguments, model=None, output=None, prompt=("--input-ids", "1,2,3"), gen_length=("--gen-length", "4"),
                environment=None):
        """Runs a capture that should fail. -> its output's path, what lay there before, code, stdout, stderr."""
        output = output or self.root / "out.h5"
        before = output.read_bytes() if output.exists() else None
        return output, before, *capture(model or self.model, *prompt, *gen_length, "-o", output, *arguments,
                                        environment=environment)

    def check_refusal(self, code, words, attempt, lines=1):
        output, before, result, out, err = attempt
        with self.subTest(words=words):
            self.assertEqual(result, code, err)
            self.assertEqual(out, "")
            self.assertEqual(len(err.splitlines()), lines or len(err.splitlines()), err)
            self.assertTrue(err.startswith("blockscope: error: "), err)
            for word in [words] if isinstance(words, str) else words:
                self.assertIn(word, err)
            if before is None:
                self.assertFalse(output.exists())
            else:
                self.assertEqual(output.read_bytes(), before)
            self.assertFalse(pathlib.Path(f"{output}.partial").exists())
        return err

    def prompts_file(self, text):
        path = self.root / "prompts.jsonl"
        path.write_text(text)
        return ("--prompts", path)

    def damaged(self, name, content, model=None):
        """A copy of the checkpoint in which one file is missing (None) or replaced."""
        folder = self.root / f"damaged-{len(list(self.root.iterdir()))}"
        folder.mkdir()
        for file in (model or self.model).iterdir():
            if file.name != name:
                (folder / file.name).symlink_to(file)
        if content is not None:
            (folder / name).write_bytes(content)
        return folder
