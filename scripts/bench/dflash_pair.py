#!/usr/bin/env python3
"""Tokens per second of drafted decoding beside the official DFlash code on the same CPU, pair and prompt, in one run.

    python scripts/bench/dflash_pair.py DFLASH [--shape 0.6b] [--context 256] [--gen-length 48] [--rounds 3]

DFLASH is a work tree of z-lab/dflash. Target (Qwen3) and draft have random weights, so hardly a drafted token is accepted: a round is
one pass of each for about one token, and tokens per second say what a round costs. Both sides greedy, by turns; the official cache
is transformers' DynamicCache, whose crop() takes what this version asks for. Ours is `blockscope capture --record trajectory`,
its own seconds, prefill included on both sides. In float32 all tokens and acceptance lengths must be equal, or the exit code is 1."""

import argparse
import importlib.util
import os
import pathlib
import re
import statistics
import subprocess
import tempfile
import time

import h5py
import torch
from transformers import DynamicCache, Qwen3Config, Qwen3ForCausalLM

SHAPES = {
    "tiny": dict(hidden_size=64, intermediate_size=160, num_hidden_layers=6, num_attention_heads=4,
                 num_key_value_heads=2, head_dim=16, vocab_size=512),
    "0.6b": dict(hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, num_attention_heads=16,
                 num_key_value_heads=8, head_dim=128, vocab_size=151936),
}


class Cache(DynamicCache):
    def crop(self, length):
        more = self.get_seq_length() - length
        if more > 0:
            super().crop(-more)


def official(folder):
    spec = importlib.util.spec_from_file_location("dflash_model", folder / "dflash" / "model.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.DynamicCache, module._cuda_time = Cache, time.perf_counter
    return module


def make_pair(module, shape, dtype, folder, layers, block_size):
    torch.manual_seed(1)
    common = dict(max_position_embeddings=40960, attn_implementation="sdpa", initializer_range=0.05)
    target = Qwen3ForCausalLM(Qwen3Config(**SHAPES[shape], **common, tie_word_embeddings=True)).to(dtype).eval()
    config = Qwen3Config(**{**SHAPES[shape], "num_hidden_layers": layers}, **common, tie_word_embeddings=True)
    config.dflash_config, config.block_size = {"mask_token_id": config.vocab_size - 1}, block_size
    config.num_target_layers = target.config.num_hidden_layers
    draft = module.DFlashDraftModel(config).to(dtype).eval()
    target.save_pretrained(folder / "target")
    draft.save_pretrained(folder / "draft")
    return target, draft


def ours(a, binary, folder, prompt):
    trace = folder / "run.h5"
    done = subprocess.run(
        [binary, "capture", folder / "target", "--draft", folder / "draft", "--input-ids", ",".join(map(str, prompt)),
         "--gen-length", str(a.gen_length), "--no-stop", "--record", "trajectory", "-o", trace, "--force", "-q", "--dtype",
         a.dtype], capture_output=True, text=True, check=True)
    speed = float(re.search(r"([0-9.]+) tokens/s", done.stdout)[1])
    with h5py.File(trace) as file:
        rows = int(file["/steps/committed"][0])
        accepted = file["/draft/accepted"][:rows][file["/steps/kind"][:rows] == 1] + 1
        tokens = dict(zip(file["/frames/position"][:].tolist(), file["/frames/token"][:].tolist()))
    return speed, [tokens[i] for i in range(a.gen_length)], accepted.tolist()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("repository", type=pathlib.Path, help="work tree of z-lab/dflash")
    parser.add_argument("--shape", choices=SHAPES, default="0.6b")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="bfloat16")
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--gen-length", type=int, default=48)
    parser.add_argument("--layers", type=int, default=5, help="of the draft")
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--binary", default="build/release/bin/blockscope")
    a = parser.parse_args()
    module = official(a.repository)
    with tempfile.TemporaryDirectory(prefix="dflash-") as name:
        folder = pathlib.Path(name)
        target, draft = make_pair(module, a.shape, getattr(torch, a.dtype), folder, a.layers, a.block_size)
        prompt = torch.randint(0, target.config.vocab_size - 1, (a.context,)).tolist()
        speeds = {"official": [], "ours": []}
        for _ in range(a.rounds):
            begin = time.perf_counter()
            found = module.dflash_generate(draft, target, torch.tensor([prompt]), a.gen_length, None, 0.0,
                                           return_stats=True)
            speeds["official"].append(a.gen_length / (time.perf_counter() - begin))
            speed, tokens, accepted = ours(a, os.path.abspath(a.binary), folder, prompt)
            speeds["ours"].append(speed)
        same = tokens == found.output_ids[0, a.context:].tolist() and accepted == found.acceptance_lengths
    best = {side: max(values) for side, values in speeds.items()}
    print(f"{a.shape}, {a.dtype}, prompt {a.context}, {a.gen_length} tokens in {len(accepted)} rounds of {a.block_size}, "
          f"{a.layers} layers of the draft, {torch.get_num_threads()} threads")
    for side, values in speeds.items():
        print(f"{side:9} {best[side]:7.2f} tokens/s at best, median {statistics.median(values):.2f}")
    print(f"ours over official {best['ours'] / best['official']:.2f}; tokens and acceptance lengths "
          f"{'equal' if same else 'differ'}")
    raise SystemExit(0 if same or a.dtype != "float32" else 1)


if __name__ == "__main__":
    main()
