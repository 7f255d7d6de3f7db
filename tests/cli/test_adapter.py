"""Refusals of `--adapter`: each says what is wrong in which file, and what to do. An adapter of `train --stage reuse`
loads again, and only onto its own base."""

import json
import unittest

import numpy as np

from capture_harness import CONFIG, require_binary, safetensors_bytes, safetensors_parts, write_checkpoint
from command_line_case import FAILED, USAGE, CommandLineCase
from family_case import write_family

RANK = 3
WIDTHS = {"q_proj": (64, 32), "k_proj": (32, 32), "v_proj": (32, 32), "o_proj": (32, 64)}
KEYS = {"peft_type": "LORA", "r": RANK, "lora_alpha": 6, "bias": "none", "target_modules": list(WIDTHS),
        "lora_dropout": 0.1, "base_model_name_or_path": "base", "task_type": "CAUSAL_LM"}


def tensors(layers=range(CONFIG["num_hidden_layers"]), modules=WIDTHS, seed=1):
    random, made = np.random.default_rng(seed), {}
    for layer in layers:
        for module in modules:
            out, width = WIDTHS[module]
            name = f"base_model.model.model.layers.{layer}.self_attn.{module}.lora_"
            made[name + "A.weight"] = random.normal(size=(RANK, width)).astype("<f4")
            made[name + "B.weight"] = random.normal(size=(out, RANK)).astype("<f4")
    return made


def write_adapter(folder, parts=None, **changes):
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps(KEYS | changes))
    (folder / "adapter_model.safetensors").write_bytes(safetensors_bytes(tensors() if parts is None else parts))
    return folder


class Adapters(CommandLineCase):
    def setUp(self):
        super().setUp()
        self.count = 0

    def capture(self, adapter, model=None):
        self.count += 1
        return ["capture", model or self.model, "--adapter", adapter, "--input-ids", "1,2,3,4,5", "--gen-length", 4, "-q",
                "-o", self.root / f"{self.id()}-{self.count}.h5"]

    def refuses(self, words, parts=None, **changes):
        self.count += 1
        adapter = write_adapter(self.root / f"bad-{self.id()}-{self.count}", parts, **changes)
        self.refused(FAILED, ["HINT", str(adapter), *words], *self.capture(adapter))

    def test_an_adapter_changes_the_run_and_its_digest(self):
        names = [write_adapter(self.root / f"good{seed}", tensors(seed=seed)) for seed in (1, 2)]
        digests = set()
        for adapter in (None, *names):
            command = self.capture(adapter)
            if adapter is None:
                del command[2:4]
            self.must(*command)
            model = json.loads(self.must("info", command[-1], "--json"))["model"]
            digests.add(model["digest"])
            self.assertEqual("adapter" in model, adapter is not None)
        self.assertEqual(len(digests), 3)

    def test_keys_that_would_change_the_numbers_are_refused(self):
        for key, value in (("peft_type", "LOHA"), ("bias", "all"), ("use_dora", True), ("init_lora_weights", "pissa"),
                           ("init_lora_weights", "loftq"), ("modules_to_save", ["lm_head"]), ("fan_in_fan_out", True),
                           ("lora_bias", True), ("trainable_token_indices", [1]), ("layer_replication", [[0, 1]]),
                           ("exclude_modules", ["q_proj"]), ("a_key_of_tomorrow", "on")):
            self.refuses([f'key "{key}"', "expected", "got"], **{key: value})

    def test_modules_ranks_and_layers_must_fit(self):
        for changes, words in (
                ({"target_modules": ["q_proj", "gate_proj"]}, ["target_modules", "attention projections", "gate_proj"]),
                ({"target_modules": "all-linear"}, ["target_modules", "a list of module names"]),
                ({"target_modules": []}, ["target_modules"]), ({"target_modules": [3]}, ["target_modules"]),
                ({"r": 0}, ['"r"']), ({"r": "3"}, ['"r"']), ({"lora_alpha": -1}, ["lora_alpha"]),
                ({"layers_to_transform": [2]}, ["layers_to_transform", "0 to 1"]),
                ({"rank_pattern": {"q_proj": 2.5}}, ["q_proj", "2.5"]),
                ({"rank_pattern": {".*q_proj": 2}}, ["regular expression"]),
                ({"alpha_pattern": {"q_proj": 2, "self_attn.q_proj": 3}}, ["alpha_pattern", "one value"])):
            self.refuses(words, **changes)

    def test_tensors_must_be_those_of_the_configuration(self):
        first = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
        self.refuses([first, "[4, 32]", "[3, 32]"], r=4)
        self.refuses(["expected tensor", "layers.1.self_attn.q_proj.lora_A"], tensors(layers=[0]))
        self.refuses(["layers.2.self_attn", "layers 0 to 1"], tensors(layers=range(3)))
        self.refuses(["k_proj", "got this one too"], target_modules=["q_proj", "v_proj", "o_proj"])
        self.refuses(["lora_magnitude_vector"], tensors() | {first.replace("lora_A.weight", "lora_magnitude_vector"):
                                                             np.zeros(64, "<f4")})
        for value in (np.nan, np.inf):
            broken = tensors()
            broken[first][1, 2] = value
            self.refuses([first, "finite"], broken)

    def test_missing_and_broken_files_are_named(self):
        empty = self.root / "empty"
        empty.mkdir()
        self.refused(FAILED, str(empty / "adapter_config.json"), *self.capture(empty))
        (empty / "adapter_config.json").write_text(json.dumps(KEYS))
        self.refused(FAILED, str(empty / "adapter_model.safetensors"), *self.capture(empty))
        (empty / "adapter_model.safetensors").write_bytes(b"12345678")
        self.refused(FAILED, "adapter_model.safetensors", *self.capture(empty))
        (empty / "adapter_config.json").write_text("[1]")
        self.refused(FAILED, "adapter_config.json", *self.capture(empty))

    def test_no_output_replaces_an_adapter(self):
        adapter = write_adapter(self.root / "kept")
        command = self.capture(adapter)
        command[-1] = adapter / "adapter_model.safetensors"
        self.refused(USAGE, "the command reads this file", *command, "--force")

    def test_another_family_is_not_trained_for_reuse(self):
        for family in ("llada", "qwen3"):
            model = (write_checkpoint(self.root / family, model_type=family, architectures=["Qwen3ForCausalLM"])
                     if family == "qwen3" else write_family(self.root / family, family))
            self.refused(FAILED, [str(model), "SDAR's family", f"model_type {family}", "HINT"], "train", "--stage", "reuse",
                         "--init", model, "--out", self.root / "none", "--work", self.root / "none-work")
        words = [str(self.model), "tokenizer.json", "HINT: --data"]
        self.refused(FAILED, words, "train", "--stage", "reuse", "--init", self.model, "--out", self.root / "none", "--work",
                     self.root / "none-work")
        self.refused(USAGE, ["got no --init", "HINT"], "train", "--stage", "reuse", "--out", self.root / "none")

    def test_a_draft_takes_no_adapter(self):
        adapter = write_adapter(self.root / "drafted")
        self.refused(USAGE, "--adapter: does nothing with --draft", *self.capture(adapter), "--draft", self.root)

    def test_a_trained_adapter_loads_on_its_base_alone(self):
        out, data = self.root / "trained", self.root / "texts.jsonl"
        data.write_text(json.dumps({"input_ids": list(range(1, 40))}) + "\n")
        self.must("train", "--stage", "reuse", "--init", self.model, "--data", data, "--out", out, "--work",
                  self.root / "trained-work", "--steps", 3, "--evaluate-documents", 0, "--evaluate-every", 0, "--merge",
                  "--threads", 1)
        self.must(*self.capture(out))
        merged = self.capture(out, out / "merged")
        self.refused(FAILED, ["expected the checkpoint that it was trained on", "HINT"], *merged)
        del merged[2:4]
        self.must(*merged)
        self.assertEqual((out / "merged" / "tokenizer.json").read_bytes(), (self.model / "tokenizer.json").read_bytes())
        header, _ = safetensors_parts(out / "adapter_model.safetensors")
        self.assertEqual(header.pop("__metadata__").keys(), {"format", "blockscope_base_digest"})
        self.assertEqual(header.keys(), tensors().keys())
        other = write_checkpoint(self.root / "other", rope_theta=5000.0)
        self.refused(FAILED, ["expected the checkpoint that it was trained on", str(other)], *self.capture(out, other))


if __name__ == "__main__":
    require_binary()
    unittest.main()
