"""A checkpoint of each family with one tensor or one key of config.json that is wrong: `blockscope capture` says which,
what it expected and what it got, and writes nothing. Damaged files: test_capture_checkpoints.py."""

import json
import unittest

import numpy as np
from capture_harness import CONFIG, VOCAB, capture, require_binary
from capture_refusal import FAILED
from family_case import FamilyCase, family_config, family_shapes

ABSENT = object()
VECTOR = CONFIG["hidden_size"]
# A tensor that few other families have, and one that would change the numbers if it counted.
TENSORS = {
    "llada": ("model.transformer.blocks.1.ff_out.weight", "model.transformer.blocks.0.attn_out.bias"),
    "Dream": ("model.layers.1.self_attn.k_proj.bias", "model.layers.0.self_attn.q_norm.weight"),
    "Fast_dLLM_Qwen": ("model.layers.0.self_attn.v_proj.bias", "model.layers.1.self_attn.o_proj.bias"),
    "llada2_moe": ("model.layers.1.mlp.gate.expert_bias", "model.layers.0.mlp.experts.0.up_proj.weight"),
    "stable_diffcoder": ("lm_head.weight", "model.layers.0.self_attn.q_proj.bias"),
    "nemotron_labs_diffusion": ("diffusion_head.weight", "encoder.layers.0.self_attn.q_norm.weight"),
    "llama": ("model.layers.1.self_attn.o_proj.weight", "model.layers.0.self_attn.q_norm.weight"),
    "qwen2": ("model.layers.1.self_attn.q_proj.bias", "model.layers.0.self_attn.o_proj.bias"),
    "qwen3_moe": ("model.layers.1.mlp.experts.3.down_proj.weight", "model.layers.0.mlp.shared_expert.up_proj.weight"),
    "sdar_moe": ("model.layers.0.mlp.gate.weight", "model.layers.0.mlp.experts.4.up_proj.weight"),
    "sdar": ("model.layers.1.self_attn.q_norm.weight", "model.layers.2.input_layernorm.weight"),
}
LONGROPE = {"rope_type": "longrope", "factor": 2.0}
NO_KEY = "no such key"
OTHER_ROPE = ('rope_scaling: key "rope_type"', "default, linear, dynamic, yarn or llama3", '"longrope"')
# family: (key, value, the key that is named if it is another, expected, got). Of a family what few others have; all keys:
# tests/probe/checkpoint/test_model_config.cpp, test_llada_config.cpp and test_llada2_config.cpp.
KEYS = {
    "llada": [
        ("n_layers", ABSENT, "", "an integer from 1", "nothing"), ("n_heads", 5, "n_kv_heads", "a divisor of n_heads (5)", "2"),
        ("d_model", 36, "", "an even multiple of the 4 heads", "36"), ("layer_norm_type", ABSENT, "", '"rms"', "nothing"),
        ("block_type", ABSENT, "", '"llama"', "nothing"), ("rope", ABSENT, "", "true", "nothing"),
        ("multi_query_attention", True, "", "no value together with n_kv_heads 2", "true"),
        ("embedding_size", VOCAB - 1, "", f"an integer from {VOCAB}", str(VOCAB - 1))],
    "Dream": [
        ("num_key_value_heads", "2", "", "an integer from 1", '"2"'), ("use_sliding_window", True, "", "false", "true"),
        ("hidden_size", 34, "head_dim", "no multiple of the 4", "nothing"), ("block_length", 0, "", "an integer from 1", "0")],
    "Fast_dLLM_Qwen": [
        ("bd_size", "8", "", "an integer", '"8"'), ("num_experts", 4, "", "nothing", "4"),
        ("partial_rotary_factor", 0.5, "", "1.0 or nothing", "0.5"), ("rope_scaling", LONGROPE, *OTHER_ROPE)],
    "llada2_moe": [
        ("n_group", 3, "", "a divisor of the 4 experts", "3"), ("topk_group", ABSENT, "", "an integer from 1 to 2", "nothing"),
        ("rotary_dim", 4, "", "8, head_dim times", "4"), ("score_function", "softmax", "", '"sigmoid"', '"softmax"'),
        ("expert_capacity", 48, "", "an integer from 0 to 4", "48"), ("capacity_factor", 1.25, "", NO_KEY, "1.25"),
        ("drop_tokens", True, "", "false or nothing", "true"), ("token_drop_policy", "probs", "", NO_KEY, '"probs"'),
        ("expert_choice", True, "", "false or nothing", "true")],
    "llama": [
        ("mlp_bias", True, "", "false", "true"), ("pretraining_tp", 2, "", "1 or nothing", "2"),
        ("attention_multiplier", 0.5, "", NO_KEY, "0.5"), ("rope_scaling", LONGROPE, *OTHER_ROPE)],
    "stable_diffcoder": [("model_type", "qwen3", "", '"llama"', '"qwen3"'), ("block_size", 0, "", "an integer from 1", "0")],
    "nemotron_labs_diffusion": [
        ("attention_bias", True, "", "false", "true"), ("sliding_window", 64, "", "null", "64"),
        ("tie_word_embeddings", True, "", "false", "true"),
        ("dlm_paradigm", "block_diff", "", '"bidirectional" or "autoregressive"', '"block_diff"')],
    "qwen2": [
        ("rms_norm_eps", "1e-6", "", "a number", '"1e-6"'),
        ("layer_types", ["full_attention", "sliding_attention"], "", '"full_attention" for every layer',
         '["full_attention","sliding_attention"]'),
        ("layer_types", ["full_attention"], "", '"full_attention" for every layer (2)', '["full_attention"]'),
        ("eos_token_id", VOCAB, "", f"an id from 0 to {VOCAB - 1} or a list of them", str(VOCAB))],
    "qwen3_moe": [
        ("num_experts", ABSENT, "", "an integer from 0", "nothing"), ("mlp_only_layers", [2], "", "layers from 0 to 1", "[2]"),
        ("num_local_experts", 3, "num_experts", "the 3 of num_local_experts", "4")],
    "sdar_moe": [("num_experts_per_tok", 9, "", "an integer from 1 to 4", "9")],
    "sdar": [("hidden_act", "gelu", "", '"silu"', '"gelu"'), ("attention_sinks", True, "", "false or nothing", "true"),
             ("final_logit_softcapping", 30.0, "", NO_KEY, "30.0"), ("residual_multiplier", 0.22, "", "1 or nothing", "0.22"),
             ("eos_token_id", -7, "", "an id from 0 to", "-7"), ("eos_token_id", [1, 99999], "", "an id from 0 to", "[1,99999]"),
             ("architectures", ["Qwen3ForCausalLM"], "", '["SDARForCausalLM"] for model_type "sdar"', '["Qwen3ForCausalLM"]')],
}


def text_of(shape):
    return f"[{', '.join(map(str, shape))}]"


class FamilyCheckpoints(FamilyCase):
    """That these checkpoints are right without the fault: test_family_decoding.py decodes them all."""

    def test_tensors_that_do_not_fit(self):
        """One that is missing, one that the family does not have and one of another shape, of each family."""
        cases = []
        for family, (gone, extra) in TENSORS.items():
            shapes = family_shapes(family)
            norm, = (name for name in shapes if name.endswith(("model.norm.weight", "encoder.norm.weight", "ln_f.weight")))

            def change(tensors, gone=gone, extra=extra, norm=norm):
                del tensors[gone]
                tensors[extra] = np.zeros((3, 2), "<f4")
                tensors[norm] = tensors[norm][:-1]
            model = self.with_tensors(family, change)
            cases.append((FAILED, [
                f'{model}/model.safetensors: the weights do not fit config.json (model_type "{family}")',
                f"  missing (1):\n    {gone} {text_of(shapes[gone])}\n", f"  unknown (1):\n    {extra} [3, 2]\n",
                f"  wrong shape or dtype (1):\n    {norm}: expected [{VECTOR}] of F32, F16 or BF16, got [{VECTOR - 1}] of F32",
                "HINT: weights and config.json must belong to one model"], model, ()))
        self.all_refused(cases, lines=None)

    def test_a_key_of_config_that_is_missing_or_wrong(self):
        cases = []
        for family, keys in KEYS.items():
            for key, value, named, expected, got in keys:
                model = self.with_config(family, {} if value is ABSENT else {key: value}, (key,) if value is ABSENT else ())
                named = named if "key" in named else f'key "{named or key}"'
                cases.append((FAILED, [f"{model}/config.json", f"{named}: expected ", expected, f"got {got}", "HINT: "], model,
                              ()))
        self.all_refused(cases)

    def test_a_config_that_says_two_things(self):
        """A key that is there twice, something after the JSON, and an LM head next to a tied embedding."""
        cases = []
        for family in ("llada", "Dream", "llada2_moe", "sdar"):
            text = json.dumps(family_config(family))
            for change, words in ((text[:-1] + ', "rope_theta": 3.0}', 'each member of an object once, got "rope_theta" twice'),
                                  (text + "\0" + text, "got a NUL byte"), (text + "\0", "got a NUL byte")):
                model = self.damaged("config.json", change.encode(), self.models[family])
                cases.append((FAILED, [f"{model}/config.json", words, "HINT: "], model, ()))
            key = "weight_tying" if family == "llada" else "tie_word_embeddings"
            model = self.with_config(family, {key: True})
            cases.append((FAILED, [f"{model}: tensor ", f"because {key} is true", "HINT: "], model, ()))
        self.all_refused(cases)

    def test_an_lm_head_that_is_a_copy_is_taken(self):
        def copy(tensors):
            tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
        model = self.with_tensors("sdar", copy)
        (model / "config.json").unlink()
        (model / "config.json").write_text(json.dumps(family_config("sdar") | {"tie_word_embeddings": True}))
        code, _, err = capture(model, "--input-ids", "1,2,3", "--gen-length", "4", "-o", self.root / "copy.h5")
        self.assertEqual(code, 0, err)

    def test_block_lengths_and_masks_that_do_not_fit(self):
        cases = []
        for family in ("llada", "Fast_dLLM_Qwen"):
            folder = self.with_config(family, {"mask_token_id": VOCAB})
            cases.append((FAILED, [str(folder), "config.json:mask_token_id", f"expected 0 to {VOCAB - 1}, got {VOCAB}",
                                   "HINT: decide with --mask-token-id"], folder, ()))
        for family in ("Dream", "llada2_moe"):
            folder = self.with_config(family, {}, ("mask_token_id",))
            cases.append((FAILED, [f'{folder}/config.json: model_type "{family}"', "no mask token id", "HINT: pass --mask-token-id"], folder, ()))
        folder = self.with_config("Fast_dLLM_Qwen", {"block_size": 2})
        cases.append((FAILED, ["config.json:bd_size says 8", "config.json:block_size says 2", "HINT: decide with --block-length"],
                      folder, ()))
        self.all_refused(cases)


if __name__ == "__main__":
    require_binary()
    unittest.main(verbosity=2)
