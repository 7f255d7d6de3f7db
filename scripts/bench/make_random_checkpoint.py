#!/usr/bin/env python3
"""Writes a random-weight checkpoint in the Hugging Face layout, for timing only.

    python scripts/bench/make_random_checkpoint.py build/qwen3-0.6b-random

The default shape is Qwen3-0.6B with model_type `sdar`, with --experts `sdar_moe`; needs torch and
safetensors (tests/requirements.txt).
"""

import argparse
import json
import pathlib

import torch
from safetensors.torch import save_file


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--layers", type=int, default=28)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--intermediate", type=int, default=3072)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--kv-heads", type=int, default=8)
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--vocab", type=int, default=151936)
    parser.add_argument("--block-length", type=int, default=16)
    parser.add_argument("--experts", type=int, default=0)
    parser.add_argument("--per-token", type=int, default=4)
    parser.add_argument("--expert-width", type=int, default=512)
    args = parser.parse_args()

    torch.manual_seed(0)
    weights = {
        "model.embed_tokens.weight": (args.vocab, args.hidden),
        "model.norm.weight": (args.hidden,),
    }
    for layer in range(args.layers):
        p = f"model.layers.{layer}."
        weights |= {
            p + "input_layernorm.weight": (args.hidden,),
            p + "post_attention_layernorm.weight": (args.hidden,),
            p + "self_attn.q_proj.weight": (args.heads * args.head_dim, args.hidden),
            p + "self_attn.k_proj.weight": (args.kv_heads * args.head_dim, args.hidden),
            p + "self_attn.v_proj.weight": (args.kv_heads * args.head_dim, args.hidden),
            p + "self_attn.o_proj.weight": (args.hidden, args.heads * args.head_dim),
            p + "self_attn.q_norm.weight": (args.head_dim,),
            p + "self_attn.k_norm.weight": (args.head_dim,),
        }
        parts = {p + "mlp.": args.intermediate}
        if args.experts:
            weights[p + "mlp.gate.weight"] = (args.experts, args.hidden)
            parts = {f"{p}mlp.experts.{e}.": args.expert_width for e in range(args.experts)}
        for name, width in parts.items():
            weights |= {
                name + "gate_proj.weight": (width, args.hidden),
                name + "up_proj.weight": (width, args.hidden),
                name + "down_proj.weight": (args.hidden, width),
            }
    tensors = {
        name: torch.ones(shape, dtype=torch.bfloat16)
        if len(shape) == 1
        else (torch.randn(shape) * 0.02).to(torch.bfloat16)
        for name, shape in weights.items()
    }
    args.folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, args.folder / "model.safetensors", metadata={"format": "pt"})
    config = {
        "architectures": ["SDARForCausalLM"],
        "model_type": "sdar",
        "hidden_size": args.hidden,
        "intermediate_size": args.intermediate,
        "num_hidden_layers": args.layers,
        "num_attention_heads": args.heads,
        "num_key_value_heads": args.kv_heads,
        "head_dim": args.head_dim,
        "vocab_size": args.vocab,
        "max_position_embeddings": 40960,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "rope_scaling": None,
        "hidden_act": "silu",
        "attention_bias": False,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "mask_token_id": args.vocab - 1,
        "block_size": args.block_length,
        "eos_token_id": 0,
        "use_sliding_window": False,
    }
    if args.experts:
        config |= {"architectures": ["SDARMoeForCausalLM"], "model_type": "sdar_moe",
                   "num_experts": args.experts, "num_experts_per_tok": args.per_token,
                   "moe_intermediate_size": args.expert_width, "norm_topk_prob": True}
    print(f"{sum(t.numel() for t in tensors.values()) / 1e6:.1f} million parameters")
    (args.folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")


if __name__ == "__main__":
    main()
