"""Files of draft rounds for the tests of `import`, `export` and `diff`, from a model of drafting played here."""

import json
import pathlib
import random
import unittest

from capture_harness import run, temporary_folder

VOCAB, MASK, BLOCK = 60, 59, 6


def play(seed, prompt, gen_length, block=BLOCK, drafted_at_most=None):
    """Rounds as the definitions have them: the target's answer is random, a draft guesses it with a chance of 0.7 and
    is cut where it first differs. -> the answer's tokens, rounds."""
    chance = random.Random(seed)
    answer = [chance.randrange(VOCAB) for _ in range(gen_length + 2 * block)]
    rounds, at = [], 0
    while at + 1 < gen_length:
        count = block - 1 if drafted_at_most is None else chance.randint(0, drafted_at_most)
        target = [answer[at + 1 + i] for i in range(count)]
        drafted = [t if chance.random() < 0.7 else (t + 1 + chance.randrange(VOCAB - 1)) % VOCAB for t in target]
        accepted = next((i for i in range(count) if drafted[i] != target[i]), count)
        # After the first wrong guess the target gets other tokens, so it decides others.
        target = target[:accepted + 1] + [chance.randrange(VOCAB) for _ in range(count - accepted - 1)]
        rounds.append({"position": len(prompt) + at, "token": answer[at], "drafted": drafted, "accepted": accepted,
                       "next": answer[at + accepted + 1], "target": target})
        at += accepted + 1
    return answer[:gen_length], rounds


HEADER = {"format": "blockscope-rounds", "format_version": 1, "engine": "vLLM", "engine_version": "0.0", "target": "t",
          "draft": "d", "vocab_size": VOCAB, "block_size": BLOCK, "mask_token_id": MASK, "stop_token_ids": []}


def written(rounds, keep, sequence="r"):
    """Lines of a sequence with some members of each round left out."""
    return [{"sequence": sequence} | {k: v for k, v in r.items() if k == "drafted" or k in keep} for r in rounds]


class RoundCase(unittest.TestCase):
    def setUp(self):
        self.folder = temporary_folder()
        self.root = pathlib.Path(self.folder.name)
        self.source, self.output = self.root / "in.jsonl", self.root / "out.h5"

    def tearDown(self):
        self.folder.cleanup()

    def must(self, *arguments):
        code, out, err = run(*arguments)
        self.assertEqual(code, 0, (arguments, err))
        return out

    def write(self, lines, path=None):
        (path or self.source).write_text("".join(json.dumps(line) + "\n" for line in lines))

    def imported(self, lines, name, *flags):
        self.write(lines)
        path = self.root / f"{name}.h5"
        self.must("import", self.source, "-o", path, "--force", *flags)
        return path

    def refused(self, words, *flags, code=1, source=None):
        self.output.unlink(missing_ok=True)
        got, out, err = run("import", source or self.source, "-o", self.output, *flags)
        self.assertEqual(got, code, (words, err or out))
        self.assertEqual(err.count("\n"), 1, err)
        self.assertIn(words, err)
        self.assertEqual([p.name for p in self.root.iterdir() if p.name.startswith("out")], [])
