"""A checkpoint of each family with one tensor or one key of config.json that is wrong: `blockscope capture` says which,
what it expected and what it got, and writes nothing. Damaged files: test_capture_checkpoints.py."""

import unittest

import numpy as np
from capture_harness import VOCAB, capture, require_binary
from capture_refusal import FAILED
from family_case import FAMILIES, FamilyCase, family_shapes, side_by_side

ABSENT = object()
# A tensor that few other families have, and one that would change the numbers if it counted.
TENSORS = {
    "llada": ("model.transformer.blocks.1.ff_out.weight", "model.transformer.blocks.0.attn_out.bias"),
    "Dream": ("model.layers.1.self_attn.k_proj.bias", "model.layers.0.self_attn.q_norm.weight"),
    "Fast_dLLM_Qwen": ("model.layers.0.self_attn.v_proj.bias", "model.layers.1.self_attn.o_proj.bias"),
    "llada2_moe": ("model.layers.1.mlp.gate.expert_bias", "model.layers.0.mlp.experts.0.up_proj.weight"),
    "qwen2": ("model.layers.1.self_attn.q_proj.bias", "model.layers.0.self_attn.o_proj.bias"),
    "qwen3_moe": ("model.layers.1.mlp.experts.3.down_proj.weight", "model.layers.0.mlp.shared_expert.up_proj.weight"),
    "sdar_moe": ("model.layers.0.mlp.gate.weight", "model.layers.0.mlp.experts.4.up_proj.weight"),
    "sdar": ("model.layers.1.self_attn.q_norm.weight", "model.layers.2.input_layernorm.weight"),
}
LONGROPE = {"rope_type": "longrope", "factor": 2.0}
OTHER_ROPE = ('rope_scaling: key "rope_type"', "default, linear, dynamic, yarn or llama3", '"longrope"')
# family: (key, value, the key that is named if it is another, expected, got). More keys of SDAR, of experts and of LLaDA2:
# tests/probe/checkpoint/test_model_config.cpp and test_llada2_config.cpp.
KEYS = {
    "llada": [
        ("n_layers", ABSENT, "", "an integer from 1", "nothing"), ("d_model", 4.5, "", "an integer", "4.5"),
        ("n_heads", "4", "", "an integer", '"4"'), ("n_heads", 5, "n_kv_heads", "a divisor of n_heads (5)", "2"),
        ("d_model", 36, "", "an even multiple of the 4 heads", "36"),
        ("block_type", "sequential", "", '"llama"', '"sequential"'), ("layer_norm_type", "default", "", '"rms"', '"default"'),
        ("activation_type", "gelu", "", '"silu"', '"gelu"'), ("alibi", True, "", "false", "true"),
        ("rope", False, "", "true", "false"), ("include_bias", True, "", "false", "true"),
        ("include_qkv_bias", "no", "", "true or false", '"no"'), ("scale_logits", True, "", "false", "true"),
        ("input_emb_norm", True, "", "false", "true"), ("attention_layer_norm", True, "", "false", "true"),
        ("embedding_size", VOCAB - 1, "", f"an integer from {VOCAB}", str(VOCAB - 1)),
        ("max_sequence_length", ABSENT, "", "an integer from 1", "nothing"), ("rope_scaling", LONGROPE, *OTHER_ROPE)],
    "Dream": [
        ("hidden_act", "gelu", "", '"silu"', '"gelu"'), ("num_key_value_heads", 3, "", "a divisor of num_attention_heads (4)",
                                                         "3"),
        ("num_key_value_heads", ABSENT, "", "an integer", "nothing"), ("hidden_size", 34, "head_dim", "no multiple of the 4",
                                                                       "nothing"),
        ("rope_theta", ABSENT, "", "a number", "nothing"), ("use_sliding_window", True, "", "false", "true"),
        ("rope_scaling", LONGROPE, *OTHER_ROPE), ("tie_word_embeddings", "yes", "", "true or false", '"yes"'),
        ("mask_token_id", -1, "", "an integer from 0", "-1"), ("block_length", 0, "", "an integer from 1", "0")],
    "Fast_dLLM_Qwen": [
        ("hidden_act", "relu", "", '"silu"', '"relu"'), ("bd_size", "8", "", "an integer", '"8"'),
        ("num_hidden_layers", ABSENT, "", "an integer from 1", "nothing"), ("rope_scaling", LONGROPE, *OTHER_ROPE),
        ("num_experts", 4, "", "nothing", "4"), ("partial_rotary_factor", 0.5, "", "1.0 or nothing", "0.5")],
    "llada2_moe": [
        ("n_group", 3, "", "a divisor of the 4 experts", "3"), ("n_group", 4, "", "groups of two or more", "4"),
        ("topk_group", ABSENT, "", "an integer from 1 to 2", "nothing"), ("num_experts", "4", "", "an integer", '"4"'),
        ("num_experts_per_tok", 3, "", "an integer from 1 to 2", "3"), ("rotary_dim", 4, "", "8, head_dim times", "4"),
        ("score_function", "softmax", "", '"sigmoid"', '"softmax"'), ("rope_scaling", LONGROPE, *OTHER_ROPE)],
    "qwen2": [
        ("hidden_act", "gelu_new", "", '"silu"', '"gelu_new"'),
        ("rms_norm_eps", "1e-6", "", "a number", '"1e-6"'),
        ("layer_types", ["full_attention", "sliding_attention"], "", '"full_attention" for every layer',
         '["full_attention","sliding_attention"]')],
    "qwen3_moe": [
        ("num_experts_per_tok", 5, "", "an integer from 1 to 4", "5"),
        ("num_experts", ABSENT, "", "an integer from 0", "nothing"),
        ("num_local_experts", 3, "num_experts", "the 3 of num_local_experts", "4"),
        ("mlp_only_layers", [2], "", "layers from 0 to 1", "[2]"), ("decoder_sparse_step", 0, "", "an integer from 1 to 2", "0"),
        ("norm_topk_prob", "yes", "", "true or false", '"yes"')],
    "sdar_moe": [
        ("num_experts_per_tok", 0, "", "an integer from 1 to 4", "0"),
        ("moe_intermediate_size", ABSENT, "", "an integer", "nothing"),
        ("mlp_only_layers", ["1"], "", "layers from 0 to 1", '["1"]')],
    "sdar": [
        ("architectures", ["Qwen3ForCausalLM"], "", '["SDARForCausalLM"] for model_type "sdar"', '["Qwen3ForCausalLM"]'),
        ("model_type", "SDAR", "", 'one of "sdar"', '"SDAR"'), ("torch_dtype", "int8", "", '"float32"', '"int8"')],
}


def text_of(shape):
    return f"[{', '.join(map(str, shape))}]"


class FamilyCheckpoints(FamilyCase):
    def refused_tensors(self, change, told):
        """`told(family, name, shape)`: the words of the one category that the message has, and of no other."""
        cases = [(FAILED, [f'model_type "{family}"', "do not fit config.json"],
                  self.with_tensors(family, lambda tensors, f=family: change(tensors, *TENSORS[f])), ())
                 for family in FAMILIES]
        for family, case, err in zip(FAMILIES, cases, self.all_refused(cases, lines=None), strict=True):
            with self.subTest(family=family):
                self.assertIn(str(case[2]), err)
                title, *words = told(family)
                for other in ("missing (", "unknown (", "wrong shape or dtype ("):
                    self.assertEqual(f"  {other}1):" in err, other == f"{title} (", err)
                for word in words:
                    self.assertIn(word, err)

    def test_a_tensor_that_is_missing(self):
        self.refused_tensors(lambda tensors, there, _: tensors.pop(there), lambda family: (
            "missing", f"{TENSORS[family][0]} {text_of(family_shapes(family)[TENSORS[family][0]])}"))

    def test_a_tensor_that_the_family_does_not_have(self):
        def add(tensors, _, extra):
            tensors[extra] = np.zeros((3, 2), "<f4")
        self.refused_tensors(add, lambda family: ("unknown", f"{TENSORS[family][1]} [3, 2]"))

    def test_a_tensor_of_another_shape(self):
        def cut(tensors, there, _):
            tensors[there] = tensors[there][:-1]

        def told(family):
            name = TENSORS[family][0]
            rows, *rest = family_shapes(family)[name]
            return ("wrong shape or dtype", f"{name}: expected {text_of([rows, *rest])}", f"got {text_of([rows - 1, *rest])}")
        self.refused_tensors(cut, told)

    def test_a_key_of_config_that_is_missing_or_wrong(self):
        cases = []
        for family, keys in KEYS.items():
            for key, value, named, expected, got in keys:
                model = self.with_config(family, {} if value is ABSENT else {key: value}, (key,) if value is ABSENT else ())
                named = named if "key" in named else f'key "{named or key}"'
                cases.append((FAILED, [f"{model}/config.json", f"{named}: expected ", expected, f"got {got}"], model, ()))
        self.all_refused(cases)

    def test_block_lengths_and_masks_that_do_not_fit(self):
        cases = []
        for family in ("llada", "Dream", "Fast_dLLM_Qwen", "llada2_moe"):
            folder = self.with_config(family, {"mask_token_id": VOCAB})
            cases.append((FAILED, [str(folder), "config.json:mask_token_id", f"expected 0 to {VOCAB - 1}, got {VOCAB}"], folder,
                          ()))
            folder = self.with_config(family, {}, ("mask_token_id",))
            cases.append((FAILED, [f'model_type "{family}"', "no mask token id", "HINT: pass --mask-token-id"], folder, ()))
        folder = self.with_config("Fast_dLLM_Qwen", {"block_size": 2})
        cases.append((FAILED, ["config.json:bd_size says 8", "config.json:block_size says 2", "HINT: decide with --block-length"],
                      folder, ()))
        self.all_refused(cases)

    def test_checkpoints_that_are_right_are_taken(self):
        """Else every refusal above could be of something else."""
        outputs = {family: self.root / f"right-{family}.h5" for family in FAMILIES}
        runs = side_by_side(capture, [(self.models[family], "--input-ids", "1,2,3", "--gen-length", 8, "-o", output)
                                      for family, output in outputs.items()])
        for (family, output), (code, _, err) in zip(outputs.items(), runs, strict=True):
            self.assertEqual((code, err), (0, ""), family)
            self.assertTrue(output.exists())


if __name__ == "__main__":
    require_binary()
    unittest.main(verbosity=2)
