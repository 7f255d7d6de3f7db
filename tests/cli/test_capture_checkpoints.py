"""`blockscope capture` on checkpoints that are incomplete, damaged or made to mislead, and on chat
prompts: through the real command line, byte by byte."""

import json
import struct
import unittest

import capture_harness as harness
import h5py
from capture_harness import capture, safetensors_parts, write_sharded
from capture_refusal import FAILED, RefusalCase

TENSOR = "model.norm.weight"  # damaged in the cases below
IM_START, IM_END = 257, 258   # of the byte tokenizer
CHATML = ("{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + "
          "message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
          "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")


def packed(header, data):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


class Checkpoints(RefusalCase):
    def refused_weights(self, words, content):
        self.refused(FAILED, ["model.safetensors", "HINT", *words],
                     model=self.damaged("model.safetensors", content))

    def refused_entry(self, words, **changes):
        """One tensor's entry of the header is changed, the data stay."""
        header, data = safetensors_parts(self.model / "model.safetensors")
        header[TENSOR] = header[TENSOR] | changes
        self.refused_weights([TENSOR, *words], packed(header, data))

    def test_a_header_that_is_longer_than_the_file_or_lies_about_its_length(self):
        header, data = safetensors_parts(self.model / "model.safetensors")
        whole = packed(header, data)
        for length in (len(whole), 2**31, 2**63, 2**64 - 1, 2**64 - 8):
            self.refused_weights([str(length)], struct.pack("<Q", length) + whole[8:])
        for content in (b"", b"\x07", whole[:8], whole[:400], whole[:-1]):
            self.refused_weights([], content)
        self.refused_weights([], whole + b"\0" * 16)           # bytes no tensor owns
        self.refused_weights([], packed(b"[" * 100000, data))  # not an object
        self.refused_weights([], packed(b'{"a":' * 100000, data))

    def test_offsets_that_overlap_leave_holes_or_lie_outside_the_file(self):
        header, data = safetensors_parts(self.model / "model.safetensors")
        begin, end = header[TENSOR]["data_offsets"]
        size = end - begin
        for there in (0, begin - 4):  # one of the two that overlap is named
            self.refused_weights(["overlaps"], packed(
                header | {TENSOR: header[TENSOR] | {"data_offsets": [there, there + size]}}, data))
        self.refused_weights(["hole"], packed(
            header | {TENSOR: header[TENSOR] | {"data_offsets": [begin + 4, end + 4]}}, data))
        outside = len(data)
        self.refused_entry([], data_offsets=[outside, outside + size])
        for offsets in ([end, begin], [begin, end - 4], [begin, end + 4], [2**62, 2**62 + size],
                        [2**64 - size, 2**64], [-4, size - 4], [begin], [begin, end, end], [],
                        [begin, begin + 0.5], [str(begin), str(end)], None, {"0": 1}):
            self.refused_entry([], data_offsets=offsets)

    def test_counts_that_are_absurd(self):
        for shape in ([2**62], [2**32, 2**32], [2**61, 8], [-32], [2**70], [1] * 33, [1e300],
                      [32, 0], [0], [], "32", None):
            self.refused_entry([], shape=shape)
        # A million tensors of nothing: refused for what is missing, without much memory or time.
        many = {f"t{i}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
                for i in range(200000)}
        model = self.damaged("model.safetensors", packed(many, b""))
        code, out, err = capture(model, "--input-ids", "1,2", "-o", self.root / "many.h5")
        self.assertEqual((code, out), (FAILED, ""), err)
        self.assertLess(len(err), 10000)
        self.assertFalse((self.root / "many.h5").exists())

    def test_dtypes_that_are_none(self):
        for dtype in ("NaN", "nan", "f32", "F32 ", "F8_E4M3", "INF", "", "F" * 100000, None, 32):
            self.refused_entry([], dtype=dtype)
        # A dtype of the right size that is no floating point number.
        header, data = safetensors_parts(self.model / "model.safetensors")
        content = packed(header | {TENSOR: header[TENSOR] | {"dtype": "I32"}}, data)
        self.refused(FAILED, [TENSOR, "I32"], lines=4,
                     model=self.damaged("model.safetensors", content))

    def test_a_name_that_comes_twice(self):
        header, data = safetensors_parts(self.model / "model.safetensors")
        text = json.dumps(header)
        entry = json.dumps(header[TENSOR])
        self.refused_weights([TENSOR, "twice"],
                             packed(f'{{"{TENSOR}": {entry}, {text[1:]}'.encode(), data))

    def test_shards(self):
        folder = write_sharded(self.root / "sharded", self.model, 3)
        output = self.root / "sharded.h5"
        code, _, err = capture(folder, "--input-ids", "1,2,3", "--gen-length", "4", "-o", output)
        self.assertEqual(code, 0, err)
        whole = self.root / "whole.h5"
        code, _, err = capture(self.model, "--input-ids", "1,2,3", "--gen-length", "4", "-o", whole)
        self.assertEqual(code, 0, err)
        harness.assert_same_trajectories(harness.trajectories(output), harness.trajectories(whole))

        shard = "model-00002-of-00003.safetensors"
        index = "model.safetensors.index.json"
        content = json.loads((folder / index).read_text())
        name = next(n for n, file in content["weight_map"].items() if file == shard)
        (folder / shard).rename(folder / "hidden")
        self.refused(FAILED, [shard, "3 shards", "1 missing", "HINT"], model=folder)
        (folder / shard).write_bytes((folder / "hidden").read_bytes()[:-8])
        self.refused(FAILED, [shard, "HINT"], model=folder)
        (folder / "hidden").rename(folder / shard)

        def with_map(change):
            (folder / index).write_text(json.dumps({"weight_map": content["weight_map"] | change}))
            return folder

        self.refused(FAILED, [index, name], model=with_map({name: "../model/model.safetensors"}))
        self.refused(FAILED, [index, name], model=with_map({name: "model-00001-of-00003.safetensors"}))
        self.refused(FAILED, ["model-00009-of-00003.safetensors", "HINT"],
                     model=with_map({"extra": "model-00009-of-00003.safetensors"}))
        (folder / index).write_text("{")
        self.refused(FAILED, index, model=folder)

    def chat_model(self, template):
        return self.damaged("chat_template.jinja", template.encode())

    def prompt_tokens(self, model, prompt):
        output = self.root / "chat.h5"
        code, _, err = capture(model, *prompt, "--gen-length", "4", "-o", output, "--force")
        self.assertEqual(code, 0, err)
        with h5py.File(output) as file:
            return [file["/sequences/prompt_token"][s:s + n].tolist() for s, n in
                    zip(file["/sequences/prompt_start"][:], file["/sequences/prompt_length"][:])]

    def test_chat_messages_become_chatml(self):
        model = self.chat_model(CHATML)
        system, user, answer = "Be brief.", "What is 2\u00b2?", "4"
        messages = [[("user", user)], [("system", system), ("user", user)],
                    [("user", user), ("assistant", answer), ("user", "Sure?\n")]]
        lines = [json.dumps({"messages": [{"role": role, "content": text} for role, text in chat]})
                 for chat in messages]

        def turn(role, text):
            return [IM_START, *f"{role}\n{text}".encode(), IM_END, *b"\n"]

        expected = [sum((turn(*message) for message in chat), []) +
                    [IM_START, *b"assistant\n"] for chat in messages]
        self.assertEqual(self.prompt_tokens(model, self.prompts_file("\n".join(lines))), expected)
        self.assertEqual(self.prompt_tokens(model, ("--prompt", user, "--chat")), expected[:1])
        self.assertEqual(self.prompt_tokens(model, ("--prompt", user)), [list(user.encode())])

    def test_templates_that_cannot_be_evaluated(self):
        line = json.dumps({"messages": [{"role": "user", "content": "Hi"}]})
        for template, words in (("{% for message in messages %}", ":1: "), ("\n{% import 'x' as x %}", [":2: ", "import"]),
                                ("{{ cycler.__init__.__globals__ }}", [":1: ", "function"]),
                                ("{{ messages | tojson }}", [":1: ", '"tojson"']),
                                (CHATML.replace("message['content']", "message['text']"), "undefined"),
                                ("{{ '<|im_start|>assistant' }}", "shows the user's message")):
            model = self.chat_model(template)
            words = ["chat_template.jinja", "HINT", "pass it as text", *([words] if isinstance(words, str) else words)]
            self.refused(FAILED, words, model=model, prompt=self.prompts_file(line))
            self.refused(FAILED, words, model=model, prompt=("--prompt", "Hi", "--chat"))
        self.refused(FAILED, ["chat_template", "HINT"], prompt=self.prompts_file(line))

    def test_a_template_that_writes_the_date(self):
        for template, told in (("{{ strftime_now('%Y') }}" + CHATML, True), (CHATML, False)):
            code, _, err = capture(self.chat_model(template), "--prompt", "Hi", "--chat", "--gen-length", "4",
                                   "-o", self.root / "date.h5", "--force")
            self.assertEqual(code, 0, err)
            self.assertEqual("today's date" in err, told, err)

    def test_chat_prompts_that_cannot_be_rendered(self):
        model = self.chat_model(CHATML)
        for message in ({"role": "tool", "content": "x"}, {"role": "user", "content": 7},
                        {"role": "user", "content": "<|MASK|>"}):
            self.refused(FAILED, "prompts.jsonl:1", model=model,
                         prompt=self.prompts_file(json.dumps({"messages": [message]})))


if __name__ == "__main__":
    harness.require_binary()
    unittest.main(verbosity=2)
