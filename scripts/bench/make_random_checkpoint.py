#!/usr/bin/env python3
"""Writes a random-weight checkpoint in the Hugging Face layout, for timing only.

    python scripts/bench/make_random_checkpoint.py build/qwen3-0.6b-random
    python scripts/bench/make_random_checkpoint.py build/llada-150m --family llada

The default shape is Qwen3-0.6B with model_type `sdar`, or with --experts `sdar_moe`. llada and dream have about 150M
parameters. sdar_moe and llada2_moe have about 1B, and a token uses 8 of 64 experts. Needs torch and safetensors
(tests/requirements.txt).
"""

import argparse
import json
import pathlib

import torch
from safetensors.torch import save_file

_BASE = dict(layers=12, hidden=768, intermediate=3072, heads=12, kv_heads=12, head_dim=64, vocab=32768,
             block_length=32, positions=40960, experts=0, per_token=4, expert_width=512, logits_std=0.0)
_MOE = dict(_BASE, hidden=1024, heads=16, kv_heads=4, experts=64, per_token=8, expert_width=384, logits_std=5.0)
# logits_std: spread of the logits over the vocabulary. At 5 the best token's probability ranges from 0.1 to 1, so
# strategies with a threshold have different positions to choose from. 0: weights of 0.02, as before training.
SHAPES = {
    "sdar": dict(_BASE, layers=28, hidden=1024, heads=16, kv_heads=8, head_dim=128, vocab=151936, block_length=16),
    "sdar_moe": _MOE,
    "llada": dict(_BASE, logits_std=5.0),
    "dream": dict(_BASE, kv_heads=4, logits_std=5.0),
    "llada2_moe": _MOE,
}

# neutral name: name in the file, for every family
_QWEN = dict(embed="model.embed_tokens", norm="model.norm", head="lm_head", layer="model.layers.{}.",
             norm1="input_layernorm", norm2="post_attention_layernorm", q="self_attn.q_proj", k="self_attn.k_proj",
             v="self_attn.v_proj", o="self_attn.o_proj", q_norm="self_attn.q_norm", k_norm="self_attn.k_norm",
             gate="mlp.gate_proj", up="mlp.up_proj", down="mlp.down_proj", router="mlp.gate",
             expert="mlp.experts.{}.")
_LLADA = dict(embed="model.transformer.wte", norm="model.transformer.ln_f", head="model.transformer.ff_out",
              layer="model.transformer.blocks.{}.", norm1="attn_norm", norm2="ff_norm", q="q_proj", k="k_proj",
              v="v_proj", o="attn_out", gate="ff_proj", up="up_proj", down="ff_out")
_LLADA2 = dict(_QWEN, embed="model.word_embeddings", qkv="attention.query_key_value", o="attention.dense",
               q_norm="attention.query_layernorm", k_norm="attention.key_layernorm")
NAMES = {"sdar": _QWEN, "sdar_moe": _QWEN, "llada": _LLADA, "dream": _QWEN, "llada2_moe": _LLADA2}


def layer_shapes(family: str, a: argparse.Namespace, index: int) -> dict:
    """Neutral name, or a name in the file with its dots -> shape."""
    query, key = a.heads * a.head_dim, a.kv_heads * a.head_dim
    shapes = {"norm1": (a.hidden,), "norm2": (a.hidden,)}
    if family == "llada2_moe":
        shapes["qkv"] = (query + 2 * key, a.hidden)
    else:
        shapes |= {"q": (query, a.hidden), "k": (key, a.hidden), "v": (key, a.hidden)}
    shapes["o"] = (a.hidden, query)
    if family not in ("llada", "dream"):
        shapes |= {"q_norm": (a.head_dim,), "k_norm": (a.head_dim,)}
    if not a.experts or (family == "llada2_moe" and index == 0):
        return shapes | {"gate": (a.intermediate, a.hidden), "up": (a.intermediate, a.hidden),
                         "down": (a.hidden, a.intermediate)}
    shapes["router"] = (a.experts, a.hidden)
    groups = [f"mlp.experts.{e}." for e in range(a.experts)]
    for group in groups + ["mlp.shared_experts."] * (family == "llada2_moe"):
        shapes |= {f"{group}gate_proj.weight": (a.expert_width, a.hidden),
                   f"{group}up_proj.weight": (a.expert_width, a.hidden),
                   f"{group}down_proj.weight": (a.hidden, a.expert_width)}
    return shapes


def tensors_of(family: str, a: argparse.Namespace) -> dict:
    names, width = NAMES[family], a.hidden ** -0.5
    device = "cuda" if torch.cuda.is_available() else "cpu"

    def draw(neutral: str, shape: tuple) -> torch.Tensor:
        if len(shape) == 1:
            return torch.ones(shape, dtype=torch.bfloat16)
        scale = 0.02
        if a.logits_std:
            scale = {"embed": 1.0, "head": a.logits_std * width}.get(neutral, 1.1 * width)
        weight = torch.randn(shape, device=device) * scale
        if neutral == "head" and a.logits_std:
            weight[a.vocab - 1] *= 0.2  # [MASK] is seldom the best token
        return weight.to(torch.bfloat16).cpu()

    tensors = {names["embed"] + ".weight": draw("embed", (a.vocab, a.hidden)),
               names["norm"] + ".weight": draw("norm", (a.hidden,))}
    if not a.tied:
        tensors[names["head"] + ".weight"] = draw("head", (a.vocab, a.hidden))
    for index in range(a.layers):
        prefix = names["layer"].format(index)
        for neutral, shape in layer_shapes(family, a, index).items():
            name = neutral if "." in neutral else names[neutral] + ".weight"
            tensors[prefix + name] = draw(neutral, shape)
        if family == "dream":
            for part, size in (("q", a.heads), ("k", a.kv_heads), ("v", a.kv_heads)):
                bias = torch.randn(size * a.head_dim) * 0.3
                tensors[f"{prefix}{names[part]}.bias"] = bias.to(torch.bfloat16)
        if family == "llada2_moe" and index > 0:
            tensors[prefix + "mlp.gate.expert_bias"] = torch.zeros(a.experts)
    return tensors


def config_of(family: str, a: argparse.Namespace) -> dict:
    mask = a.vocab - 1
    if family == "llada":
        return dict(
            architectures=["LLaDAModelLM"], model_type="llada", activation_type="silu", alibi=False,
            attention_dropout=0.0, attention_layer_norm=False, attention_layer_norm_with_affine=True,
            bias_for_layer_norm=False, block_group_size=1, block_type="llama", d_model=a.hidden,
            embedding_dropout=0.0, embedding_size=a.vocab, eos_token_id=a.vocab - 2, flash_attention=False,
            include_bias=False, include_qkv_bias=False, input_emb_norm=False, layer_norm_type="rms",
            layer_norm_with_affine=True, mask_token_id=mask, max_sequence_length=4096, mlp_hidden_size=a.intermediate,
            mlp_ratio=4, multi_query_attention=None, n_heads=a.heads, n_kv_heads=a.kv_heads, n_layers=a.layers,
            pad_token_id=a.vocab - 2, residual_dropout=0.0, rms_norm_eps=1e-5, rope=True, rope_full_precision=True,
            rope_theta=500000.0, scale_logits=False, torch_dtype="bfloat16", use_cache=False, vocab_size=a.vocab,
            weight_tying=False)
    config = dict(
        hidden_size=a.hidden, intermediate_size=a.intermediate, num_hidden_layers=a.layers,
        num_attention_heads=a.heads, num_key_value_heads=a.kv_heads, head_dim=a.head_dim, vocab_size=a.vocab,
        max_position_embeddings=a.positions, rms_norm_eps=1e-6, rope_theta=1000000.0, rope_scaling=None,
        hidden_act="silu",
        attention_bias=False, tie_word_embeddings=a.tied, torch_dtype="bfloat16", mask_token_id=mask,
        block_size=a.block_length, eos_token_id=0, use_sliding_window=False)
    if family == "dream":
        del config["attention_bias"], config["block_size"], config["head_dim"]
        return config | dict(
            architectures=["DreamModel"], model_type="Dream", attention_dropout=0.0, initializer_range=0.02,
            max_window_layers=a.layers, max_position_embeddings=4096, sliding_window=None, use_cache=True,
            bos_token_id=a.vocab - 2, eos_token_id=a.vocab - 2, pad_token_id=a.vocab - 2)
    if family == "llada2_moe":
        del config["attention_bias"], config["block_size"]
        return config | dict(
            architectures=["LLaDA2MoeModelLM"], model_type="llada2_moe", attention_dropout=0.0,
            block_length=a.block_length, embedding_dropout=0.0, first_k_dense_replace=1, initializer_range=0.02,
            max_position_embeddings=4096, moe_intermediate_size=a.expert_width, moe_router_enable_expert_bias=True,
            n_group=8, norm_head=False, norm_softmax=False, norm_topk_prob=True, num_experts=a.experts,
            num_experts_per_tok=a.per_token, num_shared_experts=1, output_dropout=0.0, output_router_logits=False,
            pad_token_id=a.vocab - 2, partial_rotary_factor=0.5, rotary_dim=a.head_dim // 2,
            routed_scaling_factor=2.5, router_dtype="fp32", score_function="sigmoid", topk_group=4, use_bias=False,
            use_cache=False, use_qk_norm=True, use_qkv_bias=False, use_rmsnorm=True,
            using_split_qkv_in_self_attention=False, num_nextn_predict_layers=0)
    if family == "sdar_moe":
        return config | dict(
            architectures=["SDARMoeForCausalLM"], model_type="sdar_moe", num_experts=a.experts,
            num_experts_per_tok=a.per_token, moe_intermediate_size=a.expert_width, norm_topk_prob=True,
            decoder_sparse_step=1, mlp_only_layers=[])
    return config | dict(architectures=["SDARForCausalLM"], model_type="sdar")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--family", choices=SHAPES, default="sdar")
    for option, value in _BASE.items():
        parser.add_argument("--" + option.replace("_", "-"), type=type(value))
    args = parser.parse_args()
    for option, value in SHAPES[args.family].items():
        if getattr(args, option) is None:
            setattr(args, option, value)
    args.tied = args.family == "sdar"
    family = "sdar_moe" if args.tied and args.experts else args.family
    torch.manual_seed(0)
    tensors = tensors_of(family, args)
    args.folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, args.folder / "model.safetensors", metadata={"format": "pt"})
    (args.folder / "config.json").write_text(json.dumps(config_of(family, args), indent=1) + "\n")
    print(f"{args.folder}: {sum(t.numel() for t in tensors.values()) / 1e6:.0f}M parameters")


if __name__ == "__main__":
    main()
