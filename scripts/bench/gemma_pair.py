#!/usr/bin/env python3
"""A denoising step of DiffusionGemma, compared with transformers' own loop on the same CPU, weights and prompt.

    python scripts/bench/gemma_pair.py build/gemma-300m

makes a random checkpoint of 300 million parameters in that folder, unless it is there. Both sides decode one canvas and
take every step. Both draw tokens of their own, so their texts differ (tests/probe/parity/check_gemma.py compares them);
--per-token 1,2,4,8 also times ours with as many experts a token, from the same weights.
"""

import argparse
import json
import pathlib
import tempfile
import time

import pairs
import torch
import transformers
from moe_pair import a_pass
from transformers import DiffusionGemmaConfig, DiffusionGemmaForBlockDiffusion, DiffusionGemmaTextConfig


def make(folder, canvas, vocab, expert_width):
    """A checkpoint with weights from a normal distribution."""
    kinds = ["full_attention" if i % 6 == 5 else "sliding_attention" for i in range(12)]
    text = DiffusionGemmaTextConfig(
        vocab_size=vocab, hidden_size=640, intermediate_size=1_280, num_hidden_layers=12, num_attention_heads=8,
        num_key_value_heads=4, head_dim=128, global_head_dim=256, num_global_key_value_heads=2, sliding_window=512,
        layer_types=kinds, num_experts=32, top_k_experts=4, moe_intermediate_size=expert_width,
        max_position_embeddings=8_192)
    vision = dict(model_type="gemma4_vision", hidden_size=16, intermediate_size=16, num_hidden_layers=1,
                  num_attention_heads=2, num_key_value_heads=2, head_dim=8)
    torch.manual_seed(0)
    config = DiffusionGemmaConfig(text_config=text, vision_config=vision, canvas_length=canvas)
    model = DiffusionGemmaForBlockDiffusion(config)
    model.to(torch.bfloat16).save_pretrained(folder)
    print(f"{folder}: {sum(p.numel() for p in model.model.decoder.parameters()) / 1e6:.0f} million parameters")


def with_experts(model, folder, count):
    config = json.loads((model / "config.json").read_text())
    config["text_config"]["top_k_experts"] = count
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").symlink_to((model / "model.safetensors").resolve())
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--steps", type=int, default=6, help="denoising steps of the canvas")
    parser.add_argument("--canvas", type=int, default=256)
    parser.add_argument("--vocab", type=int, default=65_536)
    parser.add_argument("--expert-width", type=int, default=256)
    parser.add_argument("--experts", default="grouped_mm", help="theirs: eager, batched_mm or grouped_mm")
    pairs.add_run_options(parser, dtype="bfloat16")
    parser.add_argument("--per-token", help="numbers of experts, separated by commas: ours alone")
    a = parser.parse_args()
    torch.set_num_threads(a.threads)
    if not a.model.exists():
        make(a.model, a.canvas, a.vocab, a.expert_width)
    config = json.loads((a.model / "config.json").read_text())
    text = config["text_config"]
    prompt = pairs.bench_prompt(a.context, text["vocab_size"], -1)
    print(pairs.machine(a.threads))
    print(f"diffusion_gemma, {text['num_experts']} experts, {text['top_k_experts']} a token, {a.dtype}, prompt "
          f"{a.context}, canvas {config['canvas_length']}, {a.steps} steps, compared with transformers "
          f"{transformers.__version__}, {a.experts}")
    model = DiffusionGemmaForBlockDiffusion.from_pretrained(
        a.model, dtype=getattr(torch, a.dtype), attn_implementation="sdpa", experts_implementation=a.experts).eval()
    step, seconds = model._denoising_step, []

    def timed(**keywords):
        begin = time.perf_counter()
        result = step(**keywords)
        seconds.append(time.perf_counter() - begin)
        return result
    model._denoising_step = timed

    def run_theirs():
        seconds.clear()
        model.generate(torch.tensor([prompt]), max_new_tokens=config["canvas_length"], max_denoising_steps=a.steps,
                       t_min=0.4, t_max=0.8, stability_threshold=1, confidence_threshold=1e-30, eos_token_id=None)
        return {"ms a pass": 1e3 * sum(seconds) / len(seconds)}

    def run_ours(folder=a.model):
        return a_pass(pairs.time_ours(folder, [
            "--gen-length", config["canvas_length"], "--denoising-steps", a.steps, "--strategy",
            "canvas,stop_entropy=0", "--context", a.context, "--dtype", a.dtype, "--threads", a.threads]))

    run_theirs()  # warms up
    pairs.compare(a, "transformers", run_ours, run_theirs)
    for count in map(int, a.per_token.split(",")) if a.per_token else ():
        with tempfile.TemporaryDirectory() as folder:
            fewer = with_experts(a.model, pathlib.Path(folder), count)
            times = [run_ours(fewer)["ms a pass"] for _ in range(a.rounds)]
        print(f"  {count} experts a token: {pairs.spread(times)} ms a pass")


if __name__ == "__main__":
    main()
