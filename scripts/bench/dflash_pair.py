#!/usr/bin/env python3
"""Tokens per second of drafted decoding, compared with the official DFlash code on the same CPU, pair and prompt, in
one run.

    python scripts/bench/dflash_pair.py DFLASH [--second] [--shape 0.6b] [--context 256] [--gen-length 48] [--rounds 3]

DFLASH is a work tree of z-lab/dflash, with --second (a DFlash 2 draft) at 07ebd93 or newer. Target (Qwen3) and draft have
random weights, so almost no drafted token is accepted. A round is then one pass of each for about one token, and tokens
per second measure the cost of a round. Both sides are greedy and run in turns. The official cache is transformers'
DynamicCache; for older versions of the loop with a crop() that takes their argument. Ours is `blockscope capture --record
trajectory`, with its own seconds. Both sides include the prefill. In float32 all tokens and acceptance lengths must be
equal, or the exit code is 1. Newer versions of the loop end with shorter blocks, whose lengths are not compared."""

import argparse
import importlib.util
import itertools
import json
import pathlib
import re
import subprocess
import tempfile
import time

import h5py
import pairs
import torch
from safetensors.torch import save_file
from transformers import DynamicCache, Qwen3Config, Qwen3ForCausalLM

SHAPES = {
    "tiny": dict(hidden_size=64, intermediate_size=160, num_hidden_layers=6, num_attention_heads=4,
                 num_key_value_heads=2, head_dim=16, vocab_size=512),
    "0.6b": dict(hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, num_attention_heads=16,
                 num_key_value_heads=8, head_dim=128, vocab_size=151936),
}


SECOND = {"conv_kernel_size": 2, "conv_group_size": 16, "selector_rank": 256, "selector_top_k": 16,
          "output_multiplier": 0.2, "final_logit_softcapping": 20.0}


class Cache(DynamicCache):
    def crop(self, length):
        more = self.get_seq_length() - length
        if more > 0:
            super().crop(-more)


def official(folder):
    spec = importlib.util.spec_from_file_location("dflash_model", folder / "dflash" / "model.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module._cuda_time = time.perf_counter
    if not hasattr(module, "_make_cache"):
        module.DynamicCache = Cache
    return module


def make_pair(module, shape, dtype, folder, layers, block_size, second):
    torch.manual_seed(1)
    common = dict(max_position_embeddings=40960, attn_implementation="sdpa", initializer_range=0.05)
    target = Qwen3ForCausalLM(Qwen3Config(**SHAPES[shape], **common, tie_word_embeddings=True)).to(dtype).eval()
    config = Qwen3Config(**{**SHAPES[shape], "num_hidden_layers": layers}, **common, tie_word_embeddings=True)
    span = target.config.num_hidden_layers - 4
    config.dflash_config = {"mask_token_id": config.vocab_size - 1,
                            "target_layer_ids": sorted({round(1 + i * span / (layers - 1)) for i in range(layers)})}
    config.num_target_layers, config.block_size = target.config.num_hidden_layers, block_size
    if second:
        config.dflash_config |= SECOND
        config.architectures = ["DFlash2DraftModel"]
    kind = module.DFlash2DraftModel if second else module.DFlashDraftModel
    draft = kind(config).eval()
    for name, weight in draft.named_parameters():
        if "base_kernel" in name:
            weight.data.normal_(0, 0.1)[:, 0] += 1
    draft = draft.to(dtype)
    target.save_pretrained(folder / "target")
    (folder / "draft").mkdir()
    # A published file has the selector's tables without ".weight" (`DFlash2DraftModel.from_pretrained`).
    save_file({name.replace("_codebook.weight", "_codebook"): value for name, value in draft.state_dict().items()},
              folder / "draft" / "model.safetensors")
    keys = config.to_dict() | {"architectures": [kind.__name__]}
    (folder / "draft" / "config.json").write_text(json.dumps(keys))
    return target, draft


def ours(a, folder, prompt):
    trace = folder / "run.h5"
    done = subprocess.run(
        [pairs.BINARY, "capture", folder / "target", "--draft", folder / "draft", "--input-ids", ",".join(map(str, prompt)),
         "--gen-length", str(a.gen_length), "--no-stop", "--record", "trajectory", "-o", trace, "--force", "-q", "--dtype",
         a.dtype, "--threads", str(a.threads)], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    speed = float(re.search(r"([0-9.]+) tokens/s", done.stdout)[1])
    with h5py.File(trace) as file:
        rows = int(file["/steps/committed"][0])
        accepted = file["/draft/accepted"][:rows][file["/steps/kind"][:rows] == 1] + 1
        tokens = dict(zip(file["/frames/position"][:].tolist(), file["/frames/token"][:].tolist()))
    return speed, ([tokens[i] for i in range(a.gen_length)], accepted.tolist())


def start_of(lengths):
    """The position of the answer with which each round begins."""
    return itertools.accumulate(lengths[:-1], initial=0)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("repository", type=pathlib.Path, help="work tree of z-lab/dflash")
    parser.add_argument("--shape", choices=SHAPES, default="0.6b")
    pairs.add_run_options(parser, gen_length=48, dtype="bfloat16")
    parser.add_argument("--layers", type=int, default=5, help="of the draft")
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--second", action="store_true", help="a DFlash 2 draft: convolutions and a selector")
    a = parser.parse_args()
    torch.set_num_threads(a.threads)
    print(pairs.machine(a.threads))
    module = official(a.repository)
    with tempfile.TemporaryDirectory(prefix="dflash-") as name:
        folder = pathlib.Path(name)
        target, draft = make_pair(module, a.shape, getattr(torch, a.dtype), folder, a.layers, a.block_size, a.second)
        prompt = torch.randint(0, target.config.vocab_size - 1, (a.context,)).tolist()

        def decode_theirs():
            begin = time.perf_counter()
            found = module.dflash_generate(draft, target, torch.tensor([prompt]), a.gen_length, None, 0.0,
                                           return_stats=True)
            speed = a.gen_length / (time.perf_counter() - begin)
            return speed, (found.output_ids[0, a.context:].tolist(), found.acceptance_lengths)

        (_, expected), (_, decided) = decode_theirs(), ours(a, folder, prompt)  # warms up too
        whole = sum(1 for start in start_of(expected[1]) if start + a.block_size <= a.gen_length)
        same = decided[0] == expected[0] and decided[1][:whole] == expected[1][:whole]
        print(f"{a.shape}, {a.dtype}, {'DFlash 2' if a.second else 'DFlash'}, prompt {a.context}, {a.gen_length} tokens in "
              f"{len(decided[1])} rounds of {a.block_size}, "
              f"{a.layers} layers of the draft; tokens and acceptance lengths {'equal' if same else 'differ'}")
        pairs.compare(a, "official", lambda: {"tokens/s": ours(a, folder, prompt)[0]}, lambda: {"tokens/s": decode_theirs()[0]})
        pairs.finish(a, same)


if __name__ == "__main__":
    main()
