#!/usr/bin/env python3
"""What blockscope.record() adds to a denoising step of transformers' Qwen3. It is compared with the unrecorded step, and
with plain Python hooks that compute the same A_in, A_out and LSEs and write them, with the queries, with h5py:

    PYTHONPATH=build/release/python python scripts/bench/recording.py [--shape 0.6b] [--context 1024] [--rounds 5]

Weights are random, B = 32, and each step decides one token of a block of masks. All sides run in turns in one process, a
block each. A step's time is the median of the block's steps; the least of all rounds counts. "+replace": with
attention="replace". The hooks also save the queries. They do not compute steps, similarities or sets."""

import argparse
import os
import statistics
import tempfile
import time
import warnings

import h5py
import numpy as np
import torch
from transformers import AttentionInterface, DynamicCache, Qwen3Config, Qwen3ForCausalLM
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface

import blockscope

SHAPES = {
    "5m": dict(hidden_size=256, intermediate_size=640, num_hidden_layers=6, num_attention_heads=4, num_key_value_heads=2,
               head_dim=64, vocab_size=4096),
    "150m": dict(hidden_size=768, intermediate_size=2048, num_hidden_layers=16, num_attention_heads=12,
                 num_key_value_heads=4, head_dim=64, vocab_size=32768),
    "0.6b": dict(hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, num_attention_heads=16,
                 num_key_value_heads=8, head_dim=128, vocab_size=151936),
}
BLOCK = 32


class Hooks:
    """What people write: the attention once more in two parts, and a file."""

    def __init__(self, path, config):
        shape = (config.num_hidden_layers, config.num_attention_heads, BLOCK, config.head_dim)
        self.file = h5py.File(path, "w")
        self.sets = {name: self.file.create_dataset(name, (0, *shape), "f4", maxshape=(None, *shape), chunks=(1, 1, *shape[1:]))
                     for name in ("external", "internal", "query")}
        self.lses = {name: self.file.create_dataset(name, (0, *shape[:3]), "f4", maxshape=(None, *shape[:3]),
                                                    chunks=(1, *shape[:3])) for name in ("lse_external", "lse_internal")}
        self.step = -1

    def attention(self, layer, q, k, v, scale):
        if q.shape[2] != BLOCK:
            return
        if layer == 0:
            self.step += 1
            for data in (*self.sets.values(), *self.lses.values()):
                data.resize(self.step + 1, 0)
        group = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(group, 1).float(), v.repeat_interleave(group, 1).float()
        for name, part in (("external", slice(0, k.shape[2] - BLOCK)), ("internal", slice(k.shape[2] - BLOCK, None))):
            scores = q.float() @ k[:, :, part].transpose(-1, -2) * scale
            lse = scores.logsumexp(-1)
            self.sets[name][self.step, layer] = ((scores - lse[..., None]).exp() @ v[:, :, part])[0].numpy()
            self.lses["lse_" + name][self.step, layer] = lse[0].numpy()
        self.sets["query"][self.step, layer] = q[0].float().numpy()


hooks = None


def hooked(module, query, key, value, attention_mask, scaling=None, **kwargs):
    if hooks is not None:
        hooks.attention(module.layer_idx, query, key, value, scaling)
    return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **kwargs)


@torch.no_grad()
def block(model, prompt, steps):
    """Seconds of each denoising step."""
    mask = model.config.vocab_size - 1
    cache, start = DynamicCache(config=model.config), prompt.shape[1]
    positions = torch.arange(start + BLOCK).unsqueeze(0)
    seen = torch.zeros(1, 1, BLOCK, start + BLOCK, dtype=model.dtype)
    model(prompt, past_key_values=cache, position_ids=positions[:, :start], logits_to_keep=1)
    ids, times = torch.full((1, BLOCK), mask), []
    for step in range(steps):
        begin = time.perf_counter()
        logits = model(ids, past_key_values=cache, position_ids=positions[:, start:], attention_mask=seen).logits
        cache.crop(-BLOCK)
        best = logits[0, step, :mask].argmax()
        ids = ids.clone()
        ids[0, step] = best
        times.append(time.perf_counter() - begin)
    return times


def main():
    global hooks
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=SHAPES, default="0.6b")
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="bfloat16")
    parser.add_argument("--levels", nargs="*", default=["trajectory", "summary", "sets", "outputs",
                                                           "summary+replace", "outputs+replace"])
    a = parser.parse_args()
    warnings.filterwarnings("ignore", "blockscope.record: the tokens that")
    AttentionInterface.register("hooked", hooked)
    AttentionMaskInterface.register("hooked", ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])
    torch.manual_seed(1)
    config = Qwen3Config(**SHAPES[a.shape], max_position_embeddings=40960, tie_word_embeddings=True,
                         attn_implementation="hooked")
    with torch.device("cpu"):
        model = Qwen3ForCausalLM(config).to(getattr(torch, a.dtype)).eval()
    prompt = torch.randint(0, config.vocab_size - 1, (1, a.context))
    best = {}
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(a.rounds):
            for side in ("unrecorded", *a.levels, "hooks"):
                path = os.path.join(folder, "trace.h5")
                if side == "unrecorded":
                    times = block(model, prompt, a.steps)
                elif side == "hooks":
                    hooks = Hooks(path, config)
                    times = block(model, prompt, a.steps)
                    hooks.file.close()
                    hooks = None
                else:
                    level, _, way = side.partition("+")
                    with blockscope.record(model, path, level=level, block_length=BLOCK, gen_length=BLOCK, force=True,
                                           mask_token_id=config.vocab_size - 1, attention=way or "observe") as run:
                        times = block(model, prompt, a.steps)
                        run.end_sequence(reason="stop")
                best[side] = min(best.get(side, 1e9), statistics.median(times[1:]))
                if os.path.exists(path):
                    os.remove(path)
    print(f"{a.shape}, {a.dtype}, {a.context} tokens of prefix, B = {BLOCK}, {torch.get_num_threads()} threads, torch "
          f"{torch.__version__}, NumPy {np.__version__}")
    for side, seconds in best.items():
        print(f"{side:16} {seconds * 1e3:9.2f} ms a step  {seconds / best['unrecorded']:6.3f}x")


if __name__ == "__main__":
    main()
