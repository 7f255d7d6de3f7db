"""`blockscope frequencies`, and what a run does with its table: the counts against Python's own, a table
for another vocabulary, damage, and the options of the strategies in /run/json and under --resume."""

import collections
import hashlib
import json
import unittest

from capture_harness import VOCAB, byte_tokenizer, require_binary, run, write_checkpoint
from command_line_case import FAILED, USAGE, CommandLineCase


class Frequencies(CommandLineCase):
    def setUp(self):
        super().setUp()
        self.text = self.root / "text.txt"
        self.text.write_text("The quick brown fox.<|im_end|>\nNaïve façade, 3.14 €.\n\n  two  blanks\r\n")
        self.table = self.root / "table.json"
        if not self.table.exists():
            self.must("frequencies", self.model, self.text, "-o", self.table, "-q")

    def capture(self, options, *arguments, trace="pc.h5"):
        return ["capture", self.model, "--input-ids", "1,2,3,4,5", "--gen-length", 6, "-q", "-o",
                self.root / trace, "--force", "--strategy", f"pc_sampler{options}", *arguments]

    def test_counts_are_those_of_the_bytes(self):
        """The tokenizer has one token a byte, and one for each special text."""
        long = self.root / "long.txt"  # pieces can't end after a line, nor between any two bytes
        long.write_bytes(("aé€" * 500_000).encode())
        empty = self.root / "empty.txt"
        empty.write_bytes(b"")
        out = self.root / "counts.json"
        said = self.must("frequencies", self.model, self.text, long, empty, "-o", out, "-q", "--force")
        plain = self.text.read_bytes().replace(b"<|im_end|>", b"")
        want = collections.Counter(plain) + collections.Counter(long.read_bytes())
        want[258] += 1
        got = json.loads(out.read_text())
        self.assertEqual(dict(got["counts"]), dict(want))
        self.assertEqual([i for i, _ in got["counts"]], sorted(want))
        self.assertEqual((got["tokens"], got["texts"], got["vocab_size"]), (sum(want.values()), 3, VOCAB))
        self.assertEqual(got["tokenizer"], hashlib.sha256((self.model / "tokenizer.json").read_bytes()).hexdigest())
        self.assertIn(f"{sum(want.values())} tokens of 3 texts, {len(want)} of {VOCAB} ids seen", said)

    def test_what_is_no_text_is_refused(self):
        out = self.root / "none.json"
        broken, empty = self.root / "broken.txt", self.root / "nothing.txt"
        broken.write_bytes(b"good\n\xff\xfe bad")
        empty.write_bytes(b"")
        for text, says in ((broken, "UTF-8"), (empty, "at least one token"), (self.root, "expected a text file"),
                           (self.root / "nowhere.txt", "expected a text file")):
            self.refused(FAILED, [str(text), says], "frequencies", self.model, text, "-o", out)
        self.refused(USAGE, "--revision", "frequencies", self.model, self.text, "-o", out, "--revision", "x")
        self.assertFalse(out.exists())

    def test_a_table_for_another_vocabulary_is_refused(self):
        larger = write_checkpoint(self.root / "larger", vocab_size=VOCAB + 4)
        other = write_checkpoint(self.root / "other-tokenizer")
        tokenizer = byte_tokenizer()
        tokenizer["added_tokens"][0]["content"] = "<|end|>"
        (other / "tokenizer.json").write_text(json.dumps(tokenizer))
        bare = write_checkpoint(self.root / "no-tokenizer")
        (bare / "tokenizer.json").unlink()
        for model, says in ((larger, [f"vocab_size: expected {VOCAB + 4}", f"got {VOCAB}"]),
                            (other, ["tokenizer: expected", "another vocabulary"]), (bare, "tokenizer.json")):
            self.refused(FAILED, says, "capture", model, "--input-ids", "1", "-o", self.root / "x.h5",
                         "--strategy", f"pc_sampler,frequencies={self.table}")

    def test_a_damaged_table_is_refused(self):
        good = json.loads(self.table.read_text())
        bad = self.root / "bad.json"
        for change, says in (({"tokens": good["tokens"] + 1}, "the sum of the counts"), ({"format": "x"}, "format"),
                             ({"format_version": 2}, "format_version"), ({"counts": [[3, 1], [3, 1]]}, "counts"),
                             ({"counts": [[VOCAB, 1]]}, "counts"), ({"counts": [[1, -1]]}, "counts"),
                             ({"counts": [[1, 2, 3]]}, "an id and its count"), ({"tokens": 0}, "tokens")):
            bad.write_text(json.dumps(good | change))
            self.refused(FAILED, [str(bad), says], *self.capture(f",frequencies={bad}"))
        bad.write_text(self.table.read_text()[:-40])
        self.refused(FAILED, str(bad), *self.capture(f",frequencies={bad}"))
        self.refused(FAILED, "nowhere.json", *self.capture(f",frequencies={self.root / 'nowhere.json'}"))
        self.refused(USAGE, ["strategy 'pc_sampler'", "expected frequencies=FILE"], *self.capture(""))

    def test_the_table_decides_and_the_run_says_so(self):
        orders = []
        # The greedy tokens of this model are nearly all 7, drawn ones are not.
        for often in ("", "\a" * 5000):  # token 7, the likeliest of most
            text, table = self.root / "corpus.txt", self.root / "corpus.json"
            text.write_text("".join(map(chr, range(32, 127))) + often)
            self.must("frequencies", self.model, text, "-o", table, "-q", "--force")
            self.must(*self.capture(f",frequencies={table},pc_lambda=0", "--temperature", 1, "--seed", 5))
            info = json.loads(self.must("info", self.root / "pc.h5", "--json"))["run"]
            self.assertEqual(info["frequencies_digest"], hashlib.sha256(table.read_bytes()).hexdigest())
            orders.append(self.must("export", self.root / "pc.h5"))
        self.assertNotEqual(*orders)

    def test_resume_compares_every_option_of_a_strategy(self):
        def check(strategy, changes, trace):
            command = ["capture", self.model, "--input-ids", "1,2,3", "--gen-length", 6, "-q", "-o",
                       self.root / trace, "--strategy"]
            self.must(*command, strategy)
            self.assertIn("nothing to resume", self.must(*command, strategy, "--resume"))
            for option, value in changes:
                self.refused(USAGE, f"{option} was", *command, f"{strategy},{option}={value}", "--resume")

        check("low_confidence_static", (("rank_by", "margin"), ("quota", "linear"), ("density_sigma", 2)), "static.h5")
        check("klass", (("kl_threshold", 0.5), ("kl_history", 3), ("threshold", 0.8), ("klass_choose", "max_conf")),
              "klass.h5")
        other = self.root / "other.json"
        self.must("frequencies", self.model, self.table, "-o", other, "-q", "--force")
        check(f"pc_sampler,frequencies={self.table}", (("pc_lambda", 1), ("pc_alpha", 1)), "table.h5")
        self.refused(USAGE, "frequencies_digest", "capture", self.model, "--input-ids", "1,2,3", "--gen-length", 6, "-o",
                     self.root / "table.h5", "--strategy", f"pc_sampler,frequencies={other}", "--resume")

    def test_every_command_that_decodes_takes_the_strategies(self):
        given = ["--strategy", f"pc_sampler,frequencies={self.table},density_sigma=4,quota=linear"]
        prompts = ["--input-ids", "1,2,3", "--gen-length", 4]
        text = self.must("verify", self.model, *prompts, "--policy", "recent,k=2", "-q", *given)
        self.assertIn("pc_sampler, lambda 0.25, alpha 10, density sigma 4, linear quota", text)
        self.must("verify", self.model, *prompts, "--policy", "recent,k=2", "-q", "--strategy", "klass")
        self.must("bench", self.model, "--context", 8, "--gen-length", 4, "--levels", "off", "--runs", 1, *given)
        code, _, err = run("eval", self.model, "--tasks", "needle", "--contexts", 64, "--per-cell", 1, "-q", *given)
        self.assertEqual(code, 0, err)


if __name__ == "__main__":
    require_binary()
    unittest.main()
