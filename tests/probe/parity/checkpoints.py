"""Random-weight checkpoints in the Hugging Face layout, of many shapes, for the parity tests.

Every spec is built as transformers' own Llama, Ministral3, Qwen2, Qwen3 or Qwen3-MoE model, or as llada2_model.py,
with seeded weights that are far from the usual initialisation: large enough that attention and logits are not flat,
norm weights not 1. transformers' save_pretrained writes the `llama` and `qwen` ones. The others are written with the
config keys and tensor names of the published checkpoints.
"""

import json
import pathlib

import llada2_model
import torch
import transformers
from safetensors.torch import save_file

MASK_FROM_END = 3  # the mask id of a spec is vocab - 3: neither the first nor the last id

_DEFAULTS = dict(
    model_type="sdar", hidden=64, heads=4, kv_heads=2, head_dim=32, layers=2, intermediate=96,
    vocab=131, tied=False, bias=False, rope=None, theta=10000.0, positions=512, dtype="float32",
    experts=0, per_token=2, expert_width=40, normalise=True, sparse_step=1, dense_layers=(),
    groups=1, kept_groups=1, shared=1, dense_first=1, partial=0.5, scaling=2.5,
    shards=1, block_length=4, std=0.25, norm_std=0.3, mask_bias=0.0, seed=1)

# rope: the keys of transformers' rope_parameters without rope_theta
SPECS = {
    "sdar-g2": {},
    "sdar-g3-tied": dict(hidden=48, heads=6, kv_heads=2, head_dim=16, layers=3, intermediate=80,
                         vocab=97, tied=True, block_length=8, seed=2),
    "sdar-g4-bf16-sharded": dict(heads=8, kv_heads=2, head_dim=20, vocab=301, dtype="bfloat16",
                                 shards=3, block_length=5, seed=3),
    "sdar-g1-fp16": dict(hidden=40, heads=5, kv_heads=5, head_dim=12, intermediate=64, vocab=113,
                         dtype="float16", seed=4),
    "sdar-mqa-bias-sharded": dict(hidden=56, heads=3, kv_heads=1, head_dim=24, vocab=149,
                                  bias=True, shards=2, theta=1e6, seed=5),
    "sdar-yarn": dict(rope=dict(rope_type="yarn", factor=4.0,
                                original_max_position_embeddings=16, beta_fast=4.0),
                      positions=64, block_length=8, seed=6),
    "sdar-one-layer": dict(hidden=32, heads=2, kv_heads=1, head_dim=64, layers=1, vocab=100,
                           intermediate=48, block_length=5, seed=7),
    "sdar-d128-b32": dict(hidden=96, heads=4, kv_heads=1, head_dim=128, theta=1e6, vocab=211,
                          block_length=32, seed=13),
    "qwen3-g2": dict(model_type="qwen3", seed=8),
    "qwen3-linear-tied": dict(model_type="qwen3", tied=True, hidden=48, heads=8, kv_heads=4,
                              head_dim=16, rope=dict(rope_type="linear", factor=2.5), seed=9),
    "qwen3-llama3-bf16": dict(model_type="qwen3", dtype="bfloat16", head_dim=64, seed=10,
                              rope=dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0,
                                        high_freq_factor=4.0,
                                        original_max_position_embeddings=64)),
    "qwen3-yarn-sharded": dict(model_type="qwen3", shards=3, bias=True, positions=64, seed=11,
                               rope=dict(rope_type="yarn", factor=2.0, attention_factor=1.3,
                                         original_max_position_embeddings=32)),
    "qwen2-g2": dict(model_type="qwen2", hidden=96, heads=6, kv_heads=3, head_dim=16, seed=14),
    "qwen2-tied-bf16-sharded": dict(model_type="qwen2", tied=True, hidden=64, heads=4, kv_heads=1,
                                    head_dim=16, dtype="bfloat16", shards=3, theta=1e6, seed=15),
    "qwen3moe-8": dict(model_type="qwen3_moe", experts=8, per_token=3, seed=16),
    "qwen3moe-raw-weights": dict(model_type="qwen3_moe", experts=5, per_token=1, normalise=False,
                                 layers=3, sparse_step=2, shards=2, seed=17),
    "sdarmoe-16": dict(model_type="sdar_moe", experts=16, per_token=4, layers=3, dense_layers=(1,),
                       block_length=8, seed=18),
    "sdarmoe-bf16": dict(model_type="sdar_moe", experts=6, per_token=2, dtype="bfloat16", seed=19),
    "llada2-groups": dict(model_type="llada2_moe", experts=16, per_token=4, groups=4, kept_groups=2,
                          layers=3, theta=6e5, block_length=8, seed=21),
    "llada2-mqa-bias-sharded": dict(model_type="llada2_moe", experts=12, per_token=3, groups=3,
                                    kept_groups=2, bias=True, heads=3, kv_heads=1, head_dim=24,
                                    partial=0.25, shards=2, shared=2, seed=22),
    "llada2-one-expert": dict(model_type="llada2_moe", experts=8, per_token=1, groups=2, kept_groups=1,
                              dense_first=0, shared=0, partial=1.0, scaling=1.5, block_length=5, seed=23),
    "llada2-tied-bf16": dict(model_type="llada2_moe", experts=6, per_token=2, tied=True, kv_heads=4,
                             dtype="bfloat16", seed=24),
    "v2-gqa": dict(model_type="Fast_dLLM_Qwen", head_dim=16, block_length=8, std=0.35, seed=31),
    "v2-tied-mqa-bf16": dict(model_type="Fast_dLLM_Qwen", tied=True, kv_heads=1, head_dim=16, theta=1e6,
                             dtype="bfloat16", block_length=8, std=0.35, seed=32),
    "v2-mha-sharded": dict(model_type="Fast_dLLM_Qwen", hidden=48, heads=3, kv_heads=3, head_dim=16, layers=3,
                           shards=3, block_length=32, std=0.35, seed=33),
    "llama31-g2": dict(model_type="llama", theta=5e5, seed=41,
                       rope=dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                 original_max_position_embeddings=64)),
    "llama-tied-bias-bf16": dict(model_type="llama", tied=True, bias=True, kv_heads=1, head_dim=16,
                                 dtype="bfloat16", shards=2, seed=42),
    "llama2-mha": dict(model_type="llama", kv_heads=4, head_dim=16, layers=3, seed=43),
    "stable-diffcoder": dict(model_type="stable_diffcoder", head_dim=16, theta=5e5, seed=44),
    "stable-diffcoder-mqa-bf16": dict(model_type="stable_diffcoder", kv_heads=1, head_dim=32, dtype="bfloat16",
                                      shards=2, seed=45),
    "a2d-qwen3-tied": dict(model_type="a2d-qwen3", tied=True, head_dim=16, block_length=8, seed=46),
    "a2d-qwen2": dict(model_type="a2d-qwen2", head_dim=16, block_length=8, seed=47),
    # Query scales of 1, 1.17, 1.27, ... from position 16, 32, ... on; the rope of the published 3B has factor 0.25.
    "nemotron-scaled": dict(model_type="nemotron_labs_diffusion", positions=256, seed=48, rope=dict(
        rope_type="yarn", factor=16.0, original_max_position_embeddings=16, beta_fast=32.0, beta_slow=1.0, mscale=1.0,
        mscale_all_dim=1.0, llama_4_scaling_beta=0.25)),
    "nemotron-3b-rope-bf16": dict(model_type="nemotron_labs_diffusion", positions=64, kv_heads=1, dtype="bfloat16",
                                  shards=2, seed=49, rope=dict(
        rope_type="yarn", factor=0.25, original_max_position_embeddings=256, beta_fast=32.0, beta_slow=1.0, mscale=1.0,
        mscale_all_dim=1.0, llama_4_scaling_beta=0.1)),
    "qwen3-dynamic": dict(model_type="qwen3", positions=32, seed=12,
                          rope=dict(rope_type="dynamic", factor=3.0)),
}


def spec_of(name, **overrides):
    return {**_DEFAULTS, **SPECS.get(name, {}), **overrides}


def mask_id(spec):
    return spec["vocab"] - MASK_FROM_END


def _experts(spec):
    return dict(num_experts=spec["experts"], num_experts_per_tok=spec["per_token"],
                moe_intermediate_size=spec["expert_width"], norm_topk_prob=spec["normalise"],
                decoder_sparse_step=spec["sparse_step"], mlp_only_layers=list(spec["dense_layers"]))


def model_config(spec):
    """Of the class whose arithmetic the checkpoint has; SDAR's is Qwen3's."""
    llama = (transformers.LlamaConfig, dict(head_dim=spec["head_dim"], attention_bias=spec["bias"]))
    kinds = {**dict.fromkeys(("qwen2", "Fast_dLLM_Qwen", "a2d-qwen2"), (transformers.Qwen2Config, {})),
             **dict.fromkeys(("llama", "stable_diffcoder"), llama),
             "nemotron_labs_diffusion": (transformers.Ministral3Config, dict(head_dim=spec["head_dim"])),
             "moe": (transformers.Qwen3MoeConfig,
                     dict(head_dim=spec["head_dim"], attention_bias=spec["bias"], **_experts(spec)))}
    kind, own = kinds.get("moe" if spec["experts"] else spec["model_type"], (
        transformers.Qwen3Config, dict(head_dim=spec["head_dim"], attention_bias=spec["bias"])))
    return kind(
        vocab_size=spec["vocab"], hidden_size=spec["hidden"], **own,
        intermediate_size=spec["intermediate"], num_hidden_layers=spec["layers"],
        num_attention_heads=spec["heads"], num_key_value_heads=spec["kv_heads"],
        max_position_embeddings=spec["positions"], rms_norm_eps=1e-6,
        tie_word_embeddings=spec["tied"],
        rope_parameters=dict(rope_theta=spec["theta"], **(spec["rope"] or {"rope_type": "default"})),
        eos_token_id=None, bos_token_id=None, pad_token_id=None, attn_implementation="eager")


def random_model(spec):
    """-> transformers' model, float32, whose weights are exactly representable in the spec's dtype."""
    model = transformers.AutoModelForCausalLM.from_config(model_config(spec), dtype=torch.float32,
                                                          attn_implementation="eager").eval()
    generator = torch.Generator().manual_seed(spec["seed"])
    dtype = getattr(torch, spec["dtype"])
    with torch.no_grad():
        for name, weight in sorted(model.named_parameters()):
            noise = torch.randn(weight.shape, generator=generator)
            if "norm" in name:
                base = 1.6 if name.endswith(("q_norm.weight", "k_norm.weight")) else 1.0
                weight.copy_(base + spec["norm_std"] * noise)
            elif "embed" in name:
                weight.copy_(noise * (0.3 if spec["tied"] else 1.0))
            else:
                weight.copy_(noise * spec["std"])
        if spec["mask_bias"]:  # makes [MASK] the argmax now and then
            row = model.lm_head.weight[mask_id(spec)]
            row.copy_(row * spec["mask_bias"])
        for weight in model.parameters():
            weight.copy_(weight.to(dtype).float())
    return model


def _random_llada2(spec):
    """-> name: tensor, exactly representable in the spec's dtype; the bias is float32, as published."""
    generator = torch.Generator().manual_seed(spec["seed"])
    dtype = getattr(torch, spec["dtype"])
    state = {}
    for name, shape in sorted(llada2_model.weight_shapes(spec).items()):
        noise = torch.randn(shape, generator=generator)
        if "norm" in name:
            weight = (1.6 if "query_" in name or "key_layer" in name else 1.0) + spec["norm_std"] * noise
        elif "embed" in name:
            weight = noise * (0.3 if spec["tied"] else 1.0)
        else:
            weight = noise * spec["std"]
        state[name] = weight if name.endswith("expert_bias") else weight.to(dtype)
    return state


def _sdar_config(spec):
    experts = _experts(spec) if spec["experts"] else {}
    own = {"sdar": ("SDARForCausalLM", {"block_size": spec["block_length"]}),
           "sdar_moe": ("SDARMoeForCausalLM", {"block_size": spec["block_length"]}),
           "Fast_dLLM_Qwen": ("Fast_dLLM_QwenForCausalLM", {"bd_size": spec["block_length"]}),
           "stable_diffcoder": ("StableDiffcoderForCausalLM", {"model_type": "llama", "mlp_bias": False}),
           "a2d-qwen2": ("A2DQwen2LMHeadModel", {}), "a2d-qwen3": ("A2DQwen3LMHeadModel", {}),
           "nemotron_labs_diffusion": ("NemotronLabsDiffusionModel", {
               "block_size": spec["block_length"], "dlm_paradigm": "bidirectional", "ar_loss_weight": 1.0})}
    architecture, keys = own[spec["model_type"]]
    config = {
        **experts, "architectures": [architecture], "model_type": spec["model_type"], "hidden_act": "silu",
        "vocab_size": spec["vocab"], "hidden_size": spec["hidden"],
        "intermediate_size": spec["intermediate"], "num_hidden_layers": spec["layers"],
        "num_attention_heads": spec["heads"], "num_key_value_heads": spec["kv_heads"],
        "head_dim": spec["head_dim"], "max_position_embeddings": spec["positions"],
        "rms_norm_eps": 1e-6, "rope_theta": spec["theta"], "rope_scaling": spec["rope"],
        "tie_word_embeddings": spec["tied"], "attention_bias": spec["bias"],
        "torch_dtype": spec["dtype"], "use_sliding_window": False, "sliding_window": None,
        "mask_token_id": mask_id(spec), **keys,
    }
    if spec["model_type"] == "nemotron_labs_diffusion":
        config["rope_parameters"] = {"rope_theta": config.pop("rope_theta"), **config.pop("rope_scaling")}
    return config


def _expert_by_expert(state):
    """Published checkpoints hold one tensor an expert; transformers keeps them stacked."""
    result = {}
    for name, tensor in state.items():
        stem, _, last = name.rpartition(".")
        if not stem.endswith(".mlp.experts"):
            result[name] = tensor
            continue
        for expert, weight in enumerate(tensor):
            parts = dict(zip(("gate_proj", "up_proj"), weight.chunk(2))) if last == "gate_up_proj" else {
                "down_proj": weight}
            for part, value in parts.items():
                result[f"{stem}.{expert}.{part}.weight"] = value.contiguous()
    return result


def _write_weights(folder, state, shards):
    if shards == 1:
        save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
        return
    names = sorted(state)
    weight_map = {}
    for index in range(shards):
        file = f"model-{index + 1:05d}-of-{shards:05d}.safetensors"
        part = names[index::shards]
        save_file({name: state[name] for name in part}, folder / file, metadata={"format": "pt"})
        weight_map.update({name: file for name in part})
    total = sum(tensor.numel() * tensor.element_size() for tensor in state.values())
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map}))


def write_checkpoint(folder, spec):
    """Writes the checkpoint and returns its model (float32)."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    if spec["model_type"] == "llada2_moe":
        state = _random_llada2(spec)
        _write_weights(folder, state, spec["shards"])
        config = llada2_model.config_json(spec, mask_id(spec))
        (folder / "config.json").write_text(json.dumps(config, indent=2))
        return llada2_model.Llada2(spec, state)
    model = random_model(spec)
    dtype = getattr(torch, spec["dtype"])
    if spec["model_type"].startswith(("qwen", "llama")):
        stored = random_model(spec).to(dtype)
        stored.save_pretrained(folder, max_shard_size="40KB" if spec["shards"] > 1 else "5GB")
        return model
    state = {name: tensor.detach().to(dtype).contiguous()
             for name, tensor in model.state_dict().items()
             if not (spec["tied"] and name == "lm_head.weight")}
    state = _expert_by_expert(state)
    if spec["model_type"] == "nemotron_labs_diffusion":
        state = {name.replace("model.", "encoder.", 1).replace("lm_head.", "diffusion_head."): tensor
                 for name, tensor in state.items()}
    _write_weights(folder, state, spec["shards"])
    (folder / "config.json").write_text(json.dumps(_sdar_config(spec), indent=2))
    return model


def block_causal_mask(length, block_length, dtype=torch.float32):
    """[1, 1, T, T] additive: 0 where the key's block is not after the query's, else the minimum."""
    block = torch.arange(length) // block_length
    allowed = block[:, None] >= block[None, :]
    return torch.where(allowed, 0.0, torch.finfo(dtype).min).to(dtype)[None, None]
