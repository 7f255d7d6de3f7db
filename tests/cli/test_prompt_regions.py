"""Parts of a prompt as regions: roles of a chat template and --regions, against the offsets of the tokenizers package and
against sums of float64 weights. Which files are refused, and what commands do with the names."""

import json
import shutil
import unittest

import h5py
import numpy as np
from capture_harness import MODELS, CheckpointCase, capture, require_binary, run
from test_attention_map import expected
from tokenizers import Tokenizer

TEMPLATE = ("{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content | trim }}<|im_end|>\n"
            "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
MESSAGES = [{"role": "system", "content": "user"}, {"role": "user", "content": " Text: Note: Viola ring salmon. "},
            {"role": "assistant", "content": "salmon"}, {"role": "user", "content": "Q: Viola\nA:"}]
TEXT = ("Text: The old house. Q: who has salmon?\nA: Note: Viola ring salmon. Note: Linda nickel birch. Note: Rita quiver "
        "magnet. Note: Petra velvet stone. Note: Yara ruby ivory.")


def names_of(file):
    names = file.attrs["regions"].decode().split(",")
    return [names[i] for i in file["/sequences/prompt_region"][()]]


class PromptRegions(CheckpointCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.needle = cls.root / "needle"
        shutil.copytree(MODELS / "needle", cls.needle, ignore=shutil.ignore_patterns("dflash", "backbone"))
        (cls.needle / "chat_template.jinja").write_text(TEMPLATE)

    def recorded(self, name, *arguments):
        path = self.root / f"{name}.h5"
        code, _, err = capture(self.needle, "--gen-length", 16, "-o", path, "--force", *arguments)
        self.assertEqual(code, 0, err)
        return path

    def rules(self, rules):
        path = self.root / "regions.json"
        path.write_text(rules if isinstance(rules, str) else json.dumps(rules))
        return path

    def spans(self, text, spans):
        """Names by token: of (begin, end, name) in characters."""
        found = Tokenizer.from_file(str(self.needle / "tokenizer.json")).encode(text, add_special_tokens=False)
        names = ["first" if i < 4 else "prompt" for i in range(len(found.ids))]
        for i, (begin, end) in enumerate(found.offsets):
            for first, last, name in spans:
                if begin < last and end > first:
                    names[i] = name
        return found.ids, names

    def test_roles_of_a_chat(self):
        lines = self.root / "chat.jsonl"
        lines.write_text(json.dumps({"messages": MESSAGES}) + "\n")
        path = self.recorded("chat", "--prompts", lines, "--record", "full", "--array-type", "f32")
        text, spans = "", []
        for message in MESSAGES:
            text += f"<|im_start|>{message['role']}\n"
            content = message["content"].strip()
            spans.append((len(text), len(text) + len(content), message["role"]))
            text += content + "<|im_end|>\n"
        ids, names = self.spans(text + "<|im_start|>assistant\n", spans)
        with h5py.File(path) as file:
            self.assertEqual(file.attrs["regions"].decode(), "first,prompt,system,user,assistant,answer,decided,masks,after")
            self.assertEqual(file["/sequences/prompt_token"][()].tolist(), ids)
            self.assertEqual(names_of(file), names)
            self.check_sums(file)

    def check_sums(self, file):
        names = file.attrs["regions"].decode().split(",")
        of_token = file["/sequences/prompt_region"][()]
        rows = np.flatnonzero((file["/steps/kind"][()] == 1) & (file["/steps/recorded"][()] == 1))
        for row in rows[:: max(1, len(rows) // 4)]:
            places, weights = expected(file, row, 3, False)
            start = int(file["/steps/block_start"][row])
            mean = weights.mean(1)
            found = file["/spread/region"][row, 3]
            for i in range(len(names) - 4):
                of_region = [p < min(start, len(of_token)) and of_token[p] == i for p in places]
                np.testing.assert_allclose(found[:, i], mean[:, of_region].sum(-1), atol=3e-5, err_msg=names[i])
            answer = (places >= len(of_token)) & (places < start)
            np.testing.assert_allclose(found[:, -4], mean[:, answer].sum(-1), atol=3e-5)
            np.testing.assert_allclose(found.sum(-1), 1, atol=1e-4)

    def test_messages_that_are_not_found_are_noted(self):
        lines = self.root / "shouted.jsonl"
        lines.write_text(json.dumps({"messages": MESSAGES[3:]}) + "\n")
        self.addCleanup((self.needle / "chat_template.jinja").write_text, TEMPLATE)
        for template, noted in ((TEMPLATE, False), (TEMPLATE.replace(
                "{{ message.content | trim }}", "{% if 'Viola' in message.content %}Q: Linda{% else %}"
                "{{ message.content | trim }}{% endif %}"), True)):
            (self.needle / "chat_template.jinja").write_text(template)
            path = self.root / "shouted.h5"
            code, _, err = capture(self.needle, "--gen-length", 8, "-o", path, "--force", "--prompts", lines)
            self.assertEqual(code, 0, err)
            self.assertEqual("is not found among the prompt's tokens" in err, noted)
            with h5py.File(path) as file:
                self.assertEqual(b"user" in file.attrs["regions"], not noted)

    def test_named_parts(self):
        rules = [{"region": "question", "between": ["Q:", "A:"]}, {"region": "names", "text": "Viola ring"},
                 {"region": "head", "positions": "0-2"}]
        path = self.recorded("parts", "--prompt", TEXT, "--regions", self.rules(rules), "--record", "full", "--array-type",
                             "f32")
        question = TEXT.index("Q:") + 2, TEXT.index("A:"), "question"
        notes = TEXT.index("Viola ring"), TEXT.index("Viola ring") + len("Viola ring"), "names"
        ids, names = self.spans(TEXT, [question, notes])
        names[:3] = ["head"] * 3
        with h5py.File(path) as file:
            self.assertEqual(file.attrs["regions"].decode(),
                             "first,prompt,question,names,head,answer,decided,masks,after")
            self.assertEqual(file["/sequences/prompt_token"][()].tolist(), ids)
            self.assertEqual(names_of(file), names)
            self.check_sums(file)
        code, out, err = run("analyze", path, "--metric", "regions", "--json", "-", "-q")
        self.assertEqual(code, 0, err)
        self.assertEqual(json.loads(out)["metrics"][0]["arrays"][0]["axes"][2]["labels"],
                         ["first", "prompt", "question", "names", "head", "answer", "decided", "masks", "after"])
        code, _, err = run("report", path, "-o", self.root / "parts.html", "--force", "-q")
        self.assertEqual(code, 0, err)
        self.assertTrue("question" in (self.root / "parts.html").read_text())

    def test_a_token_and_what_hides_it(self):
        token = self.spans("Viola", [])[0][0]
        rules = self.rules([{"region": "that", "token": token}])
        arguments = ["--prompt", "Viola ring salmon.\nQ: Viola\nA:", "--regions", rules, "--record", "full", "--array-type",
                     "f32"]
        by_region, by_token = (self.recorded("hidden", *arguments, "--intervene", f"hide_keys,{what}")
                               for what in ("region=that", f"token={token}"))
        with h5py.File(by_region) as one, h5py.File(by_token) as other:
            for name in ("attention/external", "prediction/confidence"):
                self.assertTrue(np.array_equal(one[name][()], other[name][()], equal_nan=True))
            self.assertIn("that", names_of(one))
        code, _, err = capture(self.needle, *arguments, "--intervene", "hide_keys,region=those", "-o", self.root / "x.h5")
        self.assertTrue(code != 0 and "expected one of first, prompt, that, answer" in err, err)

    def test_traces_without_regions_take_such_prompts(self):
        lines = self.root / "chat.jsonl"
        lines.write_text(json.dumps({"messages": MESSAGES}) + "\n")
        self.recorded("trajectory", "--prompts", lines, "--record", "trajectory")
        parts = self.recorded("parts", "--prompt", TEXT, "--regions", self.rules([{"region": "a", "text": "house"}]))
        again = self.root / "again.h5"
        code, _, err = capture(self.needle, "--replay", parts, "--record", "trajectory", "-o", again, "--force")
        self.assertEqual(code, 0, err)
        for arguments in (["--prompt", TEXT, "--record", "trajectory", "--regions", self.root / "regions.json"],
                          ["--replay", parts, "--regions", self.root / "regions.json"]):
            code, _, err = capture(self.needle, *arguments, "-o", self.root / "idle.h5")
            self.assertTrue(code == 2 and "--regions" in err and "does nothing" in err, err)

    def test_a_part_in_the_first_block_is_hidden(self):
        """The end of this prompt lies inside the first block, where /spread counts it as decided."""
        prompt = "Text: The old house.\nQ: Viola\nA:"
        changed = []
        for what in ("region=end", None):
            if what is None:
                with h5py.File(changed[0]) as file:
                    places = np.flatnonzero([name == "end" for name in names_of(file)])
                    self.assertEqual(int(file["/steps/block_start"][1]), 0)
                what = "positions=" + "+".join(map(str, places))
            changed.append(self.recorded(what[:6], "--prompt", prompt, "--regions",
                                         self.rules([{"region": "end", "between": ["Q:", "A:"]}]), "--record", "full",
                                         "--array-type", "f32", "--intervene", f"hide_keys,{what}"))
        # Both names of such a token hide it: its part, and what its place is.
        decided = self.recorded("decided", "--prompt", prompt, "--regions", self.root / "regions.json", "--intervene",
                                "hide_keys,region=decided")
        with h5py.File(decided) as file:
            rows = (file["/steps/kind"][()] == 1) & (file["/steps/block"][()] == 0)
            self.assertTrue(rows.any() and (file["/attention/intervened"][()][rows] == 1).all())
            first = file["/attention/lse_internal"][np.flatnonzero(rows)[0]]
        with h5py.File(changed[0]) as file:  # more keys are hidden than the part's
            self.assertTrue((first < file["/attention/lse_internal"][np.flatnonzero(rows)[0]]).any())
        with h5py.File(changed[0]) as one, h5py.File(changed[1]) as other:
            self.assertTrue((one["/attention/intervened"][()][one["/steps/kind"][()] == 1] == 1).all())
            self.assertTrue(np.array_equal(one["/attention/internal"][()], other["/attention/internal"][()],
                                           equal_nan=True))

    def test_damaged_names_are_refused(self):
        path = self.recorded("damaged", "--prompt", TEXT)
        for names in ("a", "first,prompt,answer,decided,after,masks", "first,prompt,answer"):
            with h5py.File(path, "r+") as file:
                del file.attrs["regions"]
                file.attrs.create("regions", np.bytes_(names))
            code, _, err = run("report", path, "-o", self.root / "damaged.html", "--force", "-q")
            self.assertTrue(code == 1 and "regions: expected first, prompt" in err, (code, err))

    def test_names_that_a_trace_can_not_hold(self):
        for name in ("a\0b", "a\nb", "a" * 201, "a,b", "first", ""):
            with self.subTest(name[:9]):
                path = self.rules([{"region": name, "positions": "1-2"}])
                code, _, err = capture(self.needle, "--input-ids", "5,6,7,8", "--regions", path, "-o", self.root / "no.h5")
                self.assertEqual(code, 2)
                self.assertIn("expected a name of at most 200 bytes", err)
        path = self.rules([{"region": "ä" * 100, "positions": "1-2"}])
        with h5py.File(self.recorded("long", "--input-ids", "5,6,7,8", "--regions", path)) as file:
            self.assertIn("ä" * 100, file.attrs["regions"].decode().split(","))
        path = self.rules('[{"region": "a", "token": 18446744073709551615}]')
        code, _, err = capture(self.needle, "--input-ids", "5,6,7,8", "--regions", path, "-o", self.root / "no.h5")
        self.assertIn('"token": 18446744073709551615', err)

    def test_a_replay_keeps_the_parts(self):
        first = self.recorded("first", "--prompt", TEXT, "--regions",
                              self.rules([{"region": "question", "between": ["Q:", "A:"]}]))
        again = self.root / "again.h5"
        code, _, err = capture(self.needle, "--replay", first, "-o", again, "--force")
        self.assertEqual(code, 0, err)
        with h5py.File(first) as one, h5py.File(again) as other:
            self.assertEqual(names_of(one), names_of(other))
            np.testing.assert_allclose(one["/spread/region"][()], other["/spread/region"][()], atol=1e-6)

    def test_resume_needs_the_same_parts(self):
        path = self.recorded("kept", "--prompt", TEXT, "--regions", self.rules([{"region": "a", "positions": "4-6"}]))
        code, _, err = capture(self.needle, "--gen-length", 16, "-o", path, "--resume", "--prompt", TEXT, "--regions",
                               self.rules([{"region": "a", "positions": "4-7"}]))
        self.assertTrue(code != 0, err)

    def test_what_is_refused(self):
        for rules, words in (
            ("[", "no JSON"), ("[]", "got 0"), ("{}", "object"), ("[1]", '"region"'),
            ([{"region": "first", "text": "Q"}], "not one of first"), ([{"region": "a,b", "text": "Q"}], "a,b"),
            ([{"region": "a"}], "got 0 of them"), ([{"region": "a", "text": "Q", "token": 3}], "got 2 of them"),
            ([{"region": "a", "text": 3}], 'got "text": 3'), ([{"region": "a", "token": -3}], 'got "token": -3'),
            ([{"region": "a", "where": "x"}], 'got "where"'), ([{"region": "a", "positions": "x"}], "positions"),
            ([{"region": "a", "positions": "4-4000"}], "expected positions of the prompt"),
            ([{"region": "a", "token": 1000}], "expected token 1000, got none"),
            ([{"region": "a", "text": "Zebra"}], 'the text "Zebra", got none'),
            ([{"region": "a", "between": ["A:", "Q:"]}], 'between "A:" and "Q:", got none'),
            ([{"region": "a", "text": "Viola"}, {"region": "b", "text": "Viola ring"}], 'which is in "a", too'),
        ):
            with self.subTest(words):
                out = self.root / "refused.h5"
                code, _, err = capture(self.needle, "--prompt", TEXT, "--gen-length", 16, "--regions", self.rules(rules),
                                       "-o", out)
                self.assertTrue(code == 2 and words in err and not out.exists(), (code, err))


if __name__ == "__main__":
    require_binary()
    unittest.main()
