#!/usr/bin/env python3
"""Times SDAR's block-by-block decoding on transformers' Qwen3 or Qwen3-MoE modelling code, to be compared with
`blockscope bench` on the same checkpoint, context and machine.

    python scripts/bench/transformers_decode.py models/needle --context 1024 --gen-length 64

The loop is SDAR's generate.py: prefill, per block `block_length` greedy low-confidence steps that
read the KV cache and do not keep what they write, and one commit pass. Attention is torch's SDPA.
"""

import argparse
import json
import pathlib
import statistics
import time

import torch
from transformers import (DynamicCache, Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig,
                          Qwen3MoeForCausalLM)


def stacked(weights: dict, config: dict) -> dict:
    """One tensor an expert, as published, to transformers' tensors of all experts."""
    result = {name: tensor for name, tensor in weights.items() if ".experts." not in name}
    for layer in range(config["num_hidden_layers"]):
        p = f"model.layers.{layer}.mlp.experts."
        part = lambda e, name: weights.pop(f"{p}{e}.{name}_proj.weight")
        experts = range(config["num_experts"])
        result[p + "gate_up_proj"] = torch.stack([torch.cat([part(e, "gate"), part(e, "up")]) for e in experts])
        result[p + "down_proj"] = torch.stack([part(e, "down") for e in experts])
    return result


def load(folder: pathlib.Path, dtype: torch.dtype) -> tuple[torch.nn.Module, dict]:
    from safetensors.torch import load_file

    config = json.loads((folder / "config.json").read_text())
    known = {k: v for k, v in config.items() if k not in ("architectures", "model_type", "torch_dtype")}
    weights = load_file(folder / "model.safetensors")
    if "num_experts" in config:
        weights = stacked(weights, config)
        model = Qwen3MoeForCausalLM(Qwen3MoeConfig(
            **known, attn_implementation="sdpa", experts_implementation="eager")).to(dtype)
    else:
        model = Qwen3ForCausalLM(Qwen3Config(**known, attn_implementation="sdpa")).to(dtype)
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
    model.tie_weights()
    return model.eval(), config


@torch.inference_mode()
def decode(model, prompt: torch.Tensor, gen_length: int, block: int, mask_id: int) -> dict:
    cache = DynamicCache()
    length = prompt.shape[1] // block * block
    blocks = (prompt.shape[1] + gen_length + block - 1) // block
    x = torch.full((1, blocks * block), mask_id)
    x[:, : prompt.shape[1]] = prompt

    def forward(tokens: torch.Tensor, start: int, mask: torch.Tensor | None):
        positions = torch.arange(start, start + tokens.shape[1]).unsqueeze(0)
        return model(tokens, attention_mask=mask, position_ids=positions, past_key_values=cache,
                     use_cache=True)

    begin = time.perf_counter()
    if length:
        ids = torch.arange(length) // block
        allowed = ids.unsqueeze(1) >= ids.unsqueeze(0)
        bias = torch.zeros(1, 1, length, length, dtype=model.dtype).masked_fill(
            ~allowed, torch.finfo(model.dtype).min)
        forward(x[:, :length], 0, bias)
    prefill = time.perf_counter() - begin
    begin = time.perf_counter()
    denoising = passes = tokens = 0
    for index in range(length // block, blocks):
        start = index * block
        current = x[:, start : start + block].clone()
        everything = torch.zeros(1, 1, block, start + block, dtype=model.dtype)
        while (current == mask_id).any():
            logits = forward(current, start, everything).logits
            cache.crop(-block)  # a denoising pass keeps nothing
            probability, token = torch.softmax(logits.float(), -1).max(-1)
            probability = torch.where(current == mask_id, probability, -1.0)
            position = probability[0].argmax()
            # The mask token can be the best on random weights. Take it anyway, so every run does the
            # same number of steps.
            current[0, position] = token[0, position] if token[0, position] != mask_id else 0
            denoising, passes, tokens = denoising + 1, passes + 1, tokens + 1
        forward(current, start, everything)
        passes += 1
        x[:, start : start + block] = current
    return {"prefill_s": prefill, "blocks_s": time.perf_counter() - begin, "tokens": tokens,
            "denoising_passes": denoising, "block_passes": passes, "sequence": x[0].tolist()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--gen-length", type=int, default=64)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--dtype", default="bfloat16")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    model, config = load(args.model, getattr(torch, args.dtype))
    generator = torch.Generator().manual_seed(0)
    prompt = torch.randint(0, config["vocab_size"] - 1, (1, args.context), generator=generator)
    prompt[prompt == config["mask_token_id"]] = 0
    block = config["block_size"]
    runs = [decode(model, prompt, args.gen_length, block, config["mask_token_id"])
            for _ in range(args.runs + 1)][1:]  # the first run warms up
    middle = {key: statistics.median(run[key] for run in runs) for key in runs[0] if key != "sequence"}
    print(f"transformers: context {args.context}, gen length {args.gen_length}, B {block}, "
          f"{torch.get_num_threads()} threads, median of {args.runs}")
    print(f"prefill {middle['prefill_s']:.3f} s, {middle['tokens'] / middle['blocks_s']:.1f} "
          f"tokens/s, {middle['blocks_s'] / middle['denoising_passes'] * 1e3:.3f} ms a denoising "
          f"step, {middle['blocks_s'] / middle['block_passes'] * 1e3:.3f} ms a pass")


if __name__ == "__main__":
    main()
