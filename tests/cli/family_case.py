"""A tiny random checkpoint of every family that `blockscope capture` runs, written byte by byte without torch, and
what the tests of all families share: checkpoints with one change, and many refused commands side by side."""

import concurrent.futures
import json
import os
import pathlib

import numpy as np
from capture_harness import (BLOCK, CONFIG, VOCAB, byte_tokenizer, safetensors_bytes, safetensors_parts, tensor_shapes)
from capture_refusal import RefusalCase

EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "norm_topk_prob": True}
QWEN_EXPERTS = EXPERTS | {"decoder_sparse_step": 1, "mlp_only_layers": []}
# For each family: its class, and the keys that it has in addition to the harness's, or that are absent (None).
FAMILIES = {
    "llada": ("LLaDAModelLM", {
        "block_type": "llama", "layer_norm_type": "rms", "activation_type": "silu", "alibi": False, "rope": True,
        "rope_full_precision": True, "attention_layer_norm": False, "input_emb_norm": False, "scale_logits": False,
        "include_bias": False, "include_qkv_bias": False, "bias_for_layer_norm": False, "layer_norm_with_affine": True,
        "embedding_size": VOCAB, "head_dim": None, "block_size": None, "block_length": BLOCK}),
    "Dream": ("DreamModel", {"head_dim": None, "attention_bias": None, "block_size": None, "block_length": BLOCK,
                             "use_sliding_window": False}),
    "Fast_dLLM_Qwen": ("Fast_dLLM_QwenForCausalLM", {"block_size": None, "bd_size": 2 * BLOCK, "attention_bias": None}),
    "llada2_moe": ("LLaDA2MoeModelLM", EXPERTS | {
        "n_group": 2, "topk_group": 1, "num_shared_experts": 1, "first_k_dense_replace": 1, "routed_scaling_factor": 2.5,
        "score_function": "sigmoid", "router_dtype": "fp32", "moe_router_enable_expert_bias": True,
        "partial_rotary_factor": 0.5, "rotary_dim": 8, "use_bias": False, "use_qkv_bias": False, "use_qk_norm": True,
        "attention_bias": None}),
    "llama": ("LlamaForCausalLM", {"mask_token_id": None, "block_size": None, "mlp_bias": False, "pretraining_tp": 1}),
    "stable_diffcoder": ("StableDiffcoderForCausalLM", {"model_type": "llama", "mlp_bias": False}),
    "nemotron_labs_diffusion": ("NemotronLabsDiffusionModel", {
        "rope_theta": None, "rope_scaling": None, "dlm_paradigm": "bidirectional", "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "original_max_position_embeddings": 8,
            "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.25}}),
    "qwen2": ("Qwen2ForCausalLM", {"mask_token_id": None, "block_size": None, "attention_bias": None}),
    "qwen3_moe": ("Qwen3MoeForCausalLM", QWEN_EXPERTS | {"mask_token_id": None, "block_size": None}),
    "sdar_moe": ("SDARMoeForCausalLM", QWEN_EXPERTS),
    "sdar": ("SDARForCausalLM", {}),
}
BIDIRECTIONAL, TOKEN_BY_TOKEN = ("llada", "Dream"), ("qwen2", "qwen3_moe", "llama", "nemotron_labs_diffusion")
BLOCK_CAUSAL = ("sdar", "sdar_moe", "llada2_moe", "Fast_dLLM_Qwen")
_LLADA_KEYS = {"num_hidden_layers": "n_layers", "hidden_size": "d_model", "intermediate_size": "mlp_hidden_size",
               "num_attention_heads": "n_heads", "num_key_value_heads": "n_kv_heads", "tie_word_embeddings": "weight_tying",
               "max_position_embeddings": "max_sequence_length", "hidden_act": None, "attention_bias": None}
_LLADA_NAMES = (("model.layers.", "model.transformer.blocks."), ("input_layernorm", "attn_norm"),
                ("self_attn.o_proj", "attn_out"),
                ("post_attention_layernorm", "ff_norm"), ("mlp.gate_proj", "ff_proj"), ("mlp.down_proj", "ff_out"),
                ("lm_head", "model.transformer.ff_out"), ("self_attn.", ""), ("mlp.", ""),
                ("model.embed_tokens", "model.transformer.wte"), ("model.norm", "model.transformer.ln_f"))
_NEMOTRON_NAMES = (("model.", "encoder."), ("lm_head", "diffusion_head"))
_LLADA2_NAMES = (("self_attn.o_proj", "attention.dense"), ("self_attn.q_norm", "attention.query_layernorm"),
                 ("self_attn.k_norm", "attention.key_layernorm"), ("embed_tokens", "word_embeddings"))


def family_config(family):
    architecture, own = FAMILIES[family]
    config = CONFIG | {"model_type": family, "architectures": [architecture]}
    if family == "llada":
        config = {_LLADA_KEYS.get(key, key): value for key, value in config.items()}
        config.pop(None)
    return {key: value for key, value in (config | own).items() if value is not None or key not in own}


def _head_dim(family):
    return 8 if FAMILIES[family][1].get("head_dim", 0) is None else CONFIG["head_dim"]  # None: of hidden and heads


def _experts(family, shapes):
    """The feed-forward of every layer that has experts, in their stead."""
    width, hidden, count = EXPERTS["moe_intermediate_size"], CONFIG["hidden_size"], EXPERTS["num_experts"]
    result = {}
    for name, shape in shapes.items():
        layer, _, part = name.partition(".mlp.")
        if not part or (family == "llada2_moe" and layer.endswith(".0")):
            result[name] = shape
            continue
        shape = (hidden, width) if part.startswith("down") else (width, hidden)
        groups = [f"experts.{e}" for e in range(count)] + ["shared_experts"] * (family == "llada2_moe")
        result |= {f"{layer}.mlp.{group}.{part}": shape for group in groups}
        result[f"{layer}.mlp.gate.weight"] = (count, hidden)
        if family == "llada2_moe":
            result[f"{layer}.mlp.gate.expert_bias"] = (count,)
    return result


def _renamed(shapes, names):
    result = {}
    for name, shape in shapes.items():
        for ours, theirs in names:
            name = name.replace(ours, theirs)
        result[name] = shape
    return result


def family_shapes(family):
    """Name -> shape of every tensor of the published layout."""
    shapes = tensor_shapes(CONFIG | {"head_dim": _head_dim(family)})
    if family in ("llada", "Dream", "Fast_dLLM_Qwen", "qwen2", "llama", "stable_diffcoder",
                  "nemotron_labs_diffusion"):
        shapes = {name: shape for name, shape in shapes.items() if not name.endswith(("q_norm.weight", "k_norm.weight"))}
    if family in ("Dream", "Fast_dLLM_Qwen", "qwen2"):
        shapes |= {name.replace("weight", "bias"): shape[:1] for name, shape in shapes.items()
                   if any(part in name for part in ("q_proj", "k_proj", "v_proj"))}
    if "num_experts" in FAMILIES[family][1]:
        shapes = _experts(family, shapes)
    if family == "llada2_moe":
        for layer in range(CONFIG["num_hidden_layers"]):
            parts = [shapes.pop(f"model.layers.{layer}.self_attn.{part}_proj.weight") for part in "qkv"]
            shapes[f"model.layers.{layer}.attention.query_key_value.weight"] = (sum(p[0] for p in parts), parts[0][1])
    return _renamed(shapes, {"llada": _LLADA_NAMES, "llada2_moe": _LLADA2_NAMES,
                             "nemotron_labs_diffusion": _NEMOTRON_NAMES}.get(family, ()))


def write_family(folder, family, seed=0, **more):
    """Without a tokenizer, so that the text of a sequence is its token ids."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True)
    random = np.random.default_rng(seed)
    tensors = {}
    for name, shape in sorted(family_shapes(family).items()):
        noise = random.standard_normal(shape)
        tensors[name] = 1 + 0.2 * noise if "norm" in name or "ln_f" in name else 0.4 * noise
    (folder / "config.json").write_text(json.dumps(family_config(family) | more))
    (folder / "model.safetensors").write_bytes(safetensors_bytes(tensors))
    return folder


def write_canvases(folder, vocab=320, hidden=8, head=4, windows=False):
    """A DiffusionGemma checkpoint of one layer that sees all keys; with `windows`, after one with a window and heads of
    twice the size."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True)
    kinds = ["sliding_attention"] * windows + ["full_attention"]
    local = 2 * head if windows else head
    ropes = {"full_attention": {"rope_type": "proportional", "rope_theta": 5000.0, "partial_rotary_factor": 0.5},
             "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0}}
    text = {"vocab_size": vocab, "hidden_size": hidden, "intermediate_size": 6, "num_hidden_layers": len(kinds),
            "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": local, "global_head_dim": head, "rms_norm_eps": 1e-6,
            "num_global_key_value_heads": 1, "sliding_window": 4, "layer_types": kinds, "num_experts": 2,
            "top_k_experts": 1, "moe_intermediate_size": 3, "max_position_embeddings": 256,
            "rope_parameters": {kind: ropes[kind] for kind in kinds}}
    (folder / "config.json").write_text(json.dumps(
        {"model_type": "diffusion_gemma", "architectures": ["DiffusionGemmaForBlockDiffusion"], "canvas_length": 4,
         "text_config": text}))
    mlp = {"gate_proj": (6, hidden), "up_proj": (6, hidden), "down_proj": (hidden, 6)}
    norms = ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm",
             "post_feedforward_layernorm_1", "post_feedforward_layernorm_2", "pre_feedforward_layernorm_2")
    layer = {"router.proj.weight": (2, hidden), "router.scale": (hidden,), "router.per_expert_scale": (2,),
             "experts.gate_up_proj": (2, 6, hidden), "experts.down_proj": (2, hidden, 3), "layer_scalar": (1,)}
    layer |= {f"{norm}.weight": (hidden,) for norm in norms} | {f"mlp.{name}.weight": mlp[name] for name in mlp}
    shapes = {"model.decoder.norm.weight": (hidden,), "model.decoder.embed_tokens.weight": (vocab, hidden),
              "model.decoder.self_conditioning.pre_norm.weight": (hidden,)}
    shapes |= {f"model.decoder.self_conditioning.{name}.weight": mlp[name] for name in mlp}
    for index, kind in enumerate(kinds):
        size = head if kind == "full_attention" else local
        own = {"q_proj": (2 * size, hidden), "k_proj": (size, hidden), "o_proj": (hidden, 2 * size), "q_norm": (size,),
               "k_norm": (size,)} | ({"v_proj": (size, hidden)} if kind != "full_attention" else {})
        attention = {f"self_attn.{name}.weight": shape for name, shape in own.items()}
        shapes |= {f"model.decoder.layers.{index}.{name}": shape for name, shape in (layer | attention).items()}
        shapes[f"model.encoder.language_model.layers.{index}.layer_scalar"] = (1,)
    random = np.random.default_rng(0)
    tensors = {name: 0.4 * random.standard_normal(shape) + (len(shape) == 1) for name, shape in sorted(shapes.items())}
    (folder / "model.safetensors").write_bytes(safetensors_bytes(tensors))
    return folder


def side_by_side(call, jobs):
    """call(*job) of every job, as many at a time as there are cores, in order."""
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(lambda job: call(*job), jobs))


class FamilyCase(RefusalCase):
    """A checkpoint of every family in self.models."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.models = {family: write_family(cls.root / family, family) for family in FAMILIES}

    def with_config(self, family, change, drop=()):
        config = {key: value for key, value in (family_config(family) | change).items() if key not in drop}
        return self.damaged("config.json", json.dumps(config).encode(), self.models[family])

    def with_tensors(self, family, change):
        """`change` gets the tensors by name."""
        header, data = safetensors_parts(self.models[family] / "model.safetensors")
        tensors = {name: np.frombuffer(data[slice(*entry["data_offsets"])], "<f4").reshape(entry["shape"])
                   for name, entry in header.items()}
        change(tensors)
        return self.damaged("model.safetensors", safetensors_bytes(tensors), self.models[family])

    def with_tokenizer(self, family, change=None, **files):
        """The byte tokenizer, which `change` may alter, and other files by their names without dots."""
        tokenizer = byte_tokenizer()
        if change:
            change(tokenizer)
        folder = self.damaged("tokenizer.json", json.dumps(tokenizer).encode(), self.models[family])
        for name, text in files.items():
            (folder / name.replace("__", ".")).write_text(text)
        return folder

    def all_refused(self, cases, lines=1):
        """cases: (exit code, words, model, arguments of capture but its prompt and output, its prompt or None)."""
        def attempt(index, case):
            prompt = {} if len(case) < 5 or case[4] is None else {"prompt": case[4]}
            length = () if "--gen-length" in case[3] else ("--gen-length", "8")
            return self.attempt(*case[3], model=case[2], output=self.root / f"refused-{index}.h5", gen_length=length, **prompt)

        return [self.check_refusal(case[0], case[1], result, lines)
                for case, result in zip(cases, side_by_side(attempt, enumerate(cases)), strict=True)]
