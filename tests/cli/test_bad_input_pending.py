"""What bad input should lead to and does not yet. Each case is marked @unittest.expectedFailure and turns this file red as soon
as it holds: then the mark goes, and the case moves to the file of its kind (test_family_*.py, test_interchange_refusals.py)."""

import json
import unittest

from capture_harness import BLOCK, require_binary, run
from capture_refusal import FAILED, USAGE
from family_case import BIDIRECTIONAL, FAMILIES, TOKEN_BY_TOKEN, FamilyCase, side_by_side
from interchange_files import MASK, VOCAB, klass_run, wino_run

LENGTH = ("--gen-length", 2 * BLOCK)


class Pending(FamilyCase):
    def all_end(self, cases):
        """cases: (exit code, words, model, arguments, words that must not be there); one assertion for all of them."""
        def attempt(number, case):
            model, arguments = case[2], case[3]
            prompt = {"prompt": ()} if "--prompts" in arguments else {}
            length = () if {"--prompts", "--gen-length"} & set(arguments) else LENGTH
            return self.attempt(*arguments, model=model, output=self.root / f"{self.id()}-{number}.h5", gen_length=length,
                                **prompt)

        wrong = []
        for (code, words, _, _, *no), (_, _, got, _, err) in zip(cases, side_by_side(attempt, enumerate(cases)), strict=True):
            if got != code or any(word not in err for word in words) or any(word in err for word in (no or [()])[0]):
                wrong.append((got, err))
        self.assertEqual(wrong, [])

    def imports_refused(self, documents):
        """documents: (content, the place that has to be named)."""
        wrong = []
        for content, place in documents:
            source, output = self.root / "in.json", self.root / "imported.h5"
            source.write_text(json.dumps(content))
            code, _, err = run("import", source, "-o", output, "--force", "--vocab-size", VOCAB, "--mask-token-id", MASK)
            if code != FAILED or place not in err:
                wrong.append((place, code, err))
        self.assertEqual(wrong, [])

    def damaged_weights(self):
        def change(tensors):
            tensors["surprise.weight"] = tensors.pop(sorted(tensors)[0])
        return [self.with_tensors(family, change) for family in FAMILIES]

    @unittest.expectedFailure
    def test_weights_that_do_not_fit_come_with_a_hint(self):
        self.all_end([(FAILED, ["missing (1)", "HINT"], model, ()) for model in self.damaged_weights()])

    @unittest.expectedFailure
    def test_weights_that_do_not_fit_are_named_by_their_file(self):
        self.all_end([(FAILED, ["missing (1)", f"{model}/model.safetensors"], model, ()) for model in self.damaged_weights()])

    @unittest.expectedFailure
    def test_a_key_of_config_that_is_wrong_comes_with_a_hint(self):
        models = [self.with_config("llada", {}, ("n_layers",)), self.with_config("Dream", {"num_key_value_heads": "2"}),
                  self.with_config("sdar_moe", {"num_experts_per_tok": 9}), self.with_config("sdar", {"hidden_act": "gelu"}),
                  self.with_config("llada2_moe", {"score_function": "softmax"}),
                  self.with_config("qwen2", {"rms_norm_eps": "1e-6"})]
        self.all_end([(FAILED, ["config.json: key", "HINT"], model, ()) for model in models])

    @unittest.expectedFailure
    def test_options_that_do_not_fit_come_with_a_hint(self):
        self.all_end([(USAGE, [option, "HINT"], self.models[family], (option, value)) for option, value, family in (
            ("--cache", "Dual", "llada"), ("--sub-block-length", 3, "Fast_dLLM_Qwen"), ("--stop-id", 9999, "sdar"),
            ("--block-length", 513, "Dream"))])

    @unittest.expectedFailure
    def test_a_llada_without_the_keys_that_choose_its_layers_is_refused(self):
        """Where a key is absent the official configuration is another model: LayerNorm, sequential blocks, no RoPE."""
        keys = ("layer_norm_type", "block_type", "rope")
        models = [self.with_config("llada", {}, (key,)) for key in keys]
        self.all_end([(FAILED, [f'{model}/config.json: key "{key}"', "got nothing"], model, ())
                      for key, model in zip(keys, models, strict=True)])

    @unittest.expectedFailure
    def test_numbers_of_key_heads_that_contradict_each_other_are_refused(self):
        """n_kv_heads is 2 here; the official model raises."""
        self.all_end([(FAILED, ["multi_query_attention", "n_kv_heads"],
                       self.with_config("llada", {"multi_query_attention": value}), ())
                      for value in (True, False)])

    @unittest.expectedFailure
    def test_a_line_with_a_gen_length_that_is_too_short_is_named(self):
        lines = self.prompts_file('{"input_ids": [1], "gen_length": 8}\n{"input_ids": [1], "gen_length": 3}\n')
        self.all_end([(FAILED, ["prompts.jsonl:2", "at least the block length 8, got 3"], self.models["Fast_dLLM_Qwen"], lines)])

    @unittest.expectedFailure
    def test_a_gen_length_on_the_command_line_that_the_model_refuses_is_a_usage_error(self):
        """As the one that Fast-dLLM v2 refuses, and --block-length."""
        self.all_end([(USAGE, ["--gen-length", "a multiple of the block length"], self.models[family], ("--gen-length", 10))
                      for family in BIDIRECTIONAL])

    @unittest.expectedFailure
    def test_a_cache_for_a_model_without_blocks_does_nothing(self):
        self.all_end([(USAGE, ["--cache: does nothing", "token by token"], self.models[family], ("--cache", cache),
                       ["block-causal"])
                      for family in TOKEN_BY_TOKEN for cache in ("none", "dual", "block")])

    @unittest.expectedFailure
    def test_the_hint_for_a_table_that_is_no_file_is_of_tables(self):
        self.all_end([(FAILED, [str(path), "HINT: blockscope frequencies"], self.with_tokenizer("llada"),
                       ("--strategy", "pc_sampler", "--frequencies", path), ["checkpoint"])
                      for path in (self.root, self.root / "nowhere.json")])

    @unittest.expectedFailure
    def test_a_table_of_less_than_no_texts_is_refused(self):
        model, text, table = self.with_tokenizer("llada"), self.root / "text.txt", self.root / "table.json"
        text.write_text("abc")
        run("frequencies", model, text, "-o", table, "-q", "--force")
        table.write_text(json.dumps(json.loads(table.read_text()) | {"texts": -4}))
        self.all_end([(FAILED, [str(table), "texts", "-4"], model, ("--strategy", "pc_sampler", "--frequencies", table))])

    @unittest.expectedFailure
    def test_facts_around_imported_frames_are_checked(self):
        facts = {"format": "blockscope-frames", "format_version": 2, "vocab_size": VOCAB, "mask_token_id": MASK,
                 "block_length": 6,
                 "bidirectional": True}
        record = wino_run(2, block=6).record()
        self.imports_refused(
            [(facts | {"block_length": value, "sequences": [record]}, "block_length") for value in (-1, "6", {}, 5, 2**70)] +
            [(facts | {"sequences": [record | {"sequence": value}]}, "sequence") for value in (-1, "0", [], 0.5)])

    @unittest.expectedFailure
    def test_an_imported_delta_without_a_list_of_positions_is_refused(self):
        record = wino_run(2, block=6).record()
        record["deltas"].insert(0, record["deltas"][0] | {"transfer_index": None})
        self.imports_refused([(record, "deltas[0].transfer_index")])

    @unittest.expectedFailure
    def test_an_imported_divergence_below_zero_is_refused(self):
        steps, _ = klass_run(1)
        steps[0]["all_tokens"][0]["kl_divergence"] = -100
        self.imports_refused([(steps, "kl_divergence")])


if __name__ == "__main__":
    require_binary()
    unittest.main(verbosity=2)
