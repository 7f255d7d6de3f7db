"""Texts of all families: token frequencies of another vocabulary or that are no table, tokenizers and chat templates that
this runtime does not reproduce exactly, and the turns of templates. Tables with other damage: test_frequencies.py; ChatML:
test_capture_checkpoints.py."""

import json
import unittest

import h5py
from capture_harness import MASK, VOCAB, capture, require_binary, run
from capture_refusal import FAILED
from family_case import FamilyCase

# The turns of LLaDA's and LLaDA2's templates, in words of our own; Dream's, SDAR's and Fast-dLLM's are ChatML.
LLADA = ("{% for m in messages %}{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>\n\n' + m['content'] + '<|eot_id|>' }}"
         "{% endfor %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}")
LLADA2 = ("{% for m in messages %}{{ '<role>' + m['role'] + '</role>' + m['content'] + '<|role_end|>' }}{% endfor %}"
          "{{ '<role>ASSISTANT</role>' }}")
LLADA_TURNS = "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
LLADA2_TURNS = "<role>user</role>Hi<|role_end|><role>ASSISTANT</role>"


def changed(*path_and_value):
    """Of a tokenizer.json, or of any object: the value at a path."""
    *path, last, value = path_and_value

    def change(document):
        for key in path:
            document = document[key]
        document[last] = value
    return change


class FamilyTexts(FamilyCase):
    def table(self, name, model, change=None):
        text, path = self.root / "corpus.txt", self.root / f"{name}.json"
        text.write_text("Frequencies of bytes.\n")
        code, _, err = run("frequencies", model, text, "-o", path, "-q")
        self.assertEqual(code, 0, err)
        if change:
            table = json.loads(path.read_text())
            change(table)
            path.write_text(json.dumps(table))
        return path

    def test_token_frequencies_that_are_no_table_of_this_vocabulary(self):
        llada, sdar = self.with_tokenizer("llada"), self.with_tokenizer("sdar")
        other = self.with_tokenizer("Dream", changed("added_tokens", 0, "content", "<|end|>"))
        whole = self.table("whole", llada)
        tokens = json.loads(whole.read_text())["tokens"]
        ids = [token for token, _ in json.loads(whole.read_text())["counts"]]
        again = "HINT: blockscope frequencies MODEL text.txt -o FILE makes a table"

        def file(name, text):
            path = self.root / name
            path.write_text(text)
            return path

        def damaged(name, *change):
            table = json.loads(whole.read_text())
            changed(*change)(table)
            return file(name, json.dumps(table))

        cases = [
            (llada, damaged("larger", "vocab_size", VOCAB + 1), [f"vocab_size: expected {VOCAB}", f"got {VOCAB + 1}", again]),
            (other, whole, ["tokenizer: expected ", "another vocabulary", again]),
            (sdar, damaged("negative", "counts", 0, 1, -3), [f"counts[0][1]: expected an integer from 1 to {tokens}, got -3"]),
            (sdar, damaged("beyond", "counts", -1, 0, VOCAB), [f"to {VOCAB - 1}, got {VOCAB}"]),
            (llada, damaged("half", "counts", 0, 1, 0.5), ["counts[0][1]: expected an integer", "got 0.5"]),
            (llada, damaged("nan", "counts", 0, 1, float("nan")), ["expected JSON", "line 1", "invalid literal", again]),
            (llada, damaged("none", "counts", []), [f"tokens: expected 0, the sum of the counts, got {tokens}", again]),
            (llada, file("words", "the 12\nof 7\n"), ["expected JSON", "line 1, column 2", again]),
            (llada, file("nothing", ""), ["expected JSON", "unexpected end of input", again]),
            (llada, file("cut", whole.read_text()[:-30]), ["expected JSON", "unexpected end of input", again]),
            (llada, damaged("texts", "texts", -4), ["texts: expected an integer from 1", "got -4"]),
            (llada, damaged("falling", "counts", 2, 0, ids[0]), [f"counts[2][0]: expected an id above {ids[1]}", "ids must rise",
                                                                 f"got {ids[0]}", again]),
            (llada, self.root, ["expected a regular file, got a folder", again]),
            (llada, self.root / "nowhere", ["expected a regular file, got nothing", again])]
        self.all_refused([(FAILED, [str(path), *words], model, ("--strategy", f"pc_sampler,frequencies={path}"))
                          for model, path, words in cases])
        # One of another family with the same tokenizer and size of the vocabulary is the same table.
        code, _, err = capture(sdar, "--input-ids", "1", "--gen-length", 4, "--strategy", f"pc_sampler,frequencies={whole}",
                               "-o", self.root / "same.h5")
        self.assertEqual(code, 0, err)

    def test_tokenizers_that_are_not_exact(self):
        cases = []
        for family, change, place, expected, got in (
                ("llada", changed("model", "type", "WordLevel"), "model.type", "BPE or Unigram", '"WordLevel"'),
                ("Dream", changed("model", "type", "WordPiece"), "model.type", "BPE or Unigram", '"WordPiece"'),
                ("llada2_moe", changed("model", "byte_fallback", 1), "model.byte_fallback", "true or false", "1"),
                ("sdar", changed("pre_tokenizer", {"type": "Metaspace", "replacement": "__"}),
                 "pre_tokenizer.replacement", "one character", '"__"'),
                ("Fast_dLLM_Qwen", changed("normalizer", {"type": "Nmt"}), "normalizer.type", "one of NFC", '"Nmt"'),
                ("qwen2", changed("decoder", {"type": "WordPiece"}), "decoder.type", "one of ByteLevel", '"WordPiece"')):
            model = self.with_tokenizer(family, change)
            cases.append((FAILED, [f"{model}/tokenizer.json: key {place}: expected {expected}", f"got {got}"], model, (),
                          ("--prompt", "ab")))
        # Dream is published with the two files of GPT-2's tokenizer, Llama 2 also with SentencePiece's.
        for family, name, got, hint in (("Dream", "vocab.json", "none", "pass --input-ids"),
                                        ("llama", "tokenizer.model", "tokenizer.model only", "write it with Python's")):
            model = self.damaged(name, b"{}", self.models[family])
            cases.append((FAILED, [str(model), f"expected tokenizer.json to read text prompts, got {got}",
                                   f"HINT: {hint}", "pass --input-ids"],
                          model, (), ("--prompt", "ab")))
        self.all_refused(cases)

    def test_chat_templates_of_other_families(self):
        line = self.prompts_file('{"messages": [{"role": "user", "content": "Hi"}]}\n')
        in_config = json.dumps({"chat_template": LLADA})
        for number, (family, files, text) in enumerate((
                ("llada", {"chat_template__jinja": LLADA}, LLADA_TURNS),
                ("llada", {"tokenizer_config__json": in_config}, LLADA_TURNS),
                ("llada2_moe", {"chat_template__jinja": LLADA2}, LLADA2_TURNS))):
            model = self.with_tokenizer(family, **files)
            output = self.root / f"turns{number}.h5"
            for prompt in (line, ("--prompt", "Hi", "--chat")):
                code, _, err = capture(model, *prompt, "--gen-length", 4, "-o", output, "--force")
                self.assertEqual(code, 0, err)
                with h5py.File(output) as file:
                    self.assertEqual(bytes(file["/sequences/prompt_token"][:].tolist()).decode(), text)

    def test_checkpoints_without_a_chat_template(self):
        bare = self.with_tokenizer("Dream")
        self.all_refused([(FAILED, ["chat_template", "HINT"], bare, (), ("--prompt", "Hi", "--chat"))])

    def test_a_tokenizer_of_another_model(self):
        larger = self.with_tokenizer("llada", lambda tokenizer: tokenizer["added_tokens"].append(
            tokenizer["added_tokens"][0] | {"id": VOCAB + 7, "content": "<|far|>"}))
        mask = self.with_tokenizer("sdar", changed("added_tokens", 3, "id", VOCAB))
        self.all_refused([
            (FAILED, [f"expected an id from 0 to {VOCAB - 1}, got {VOCAB + 7}",
                      "HINT: tokenizer and model must belong together"], larger,
             (), ("--prompt", "a<|far|>")),
            (FAILED, ["the mask token id is contradictory", f"config.json:mask_token_id says {MASK}",
                      f"tokenizer.json:<|MASK|> says {VOCAB}", "HINT: decide with --mask-token-id"], mask, (),
                      ("--prompt", "a"))])


if __name__ == "__main__":
    require_binary()
    unittest.main(verbosity=2)
