#!/usr/bin/env python3
"""Tokens a second of `--cache d2cache` and `--cache dllm-cache`, compared with Kamichanw/d2Cache's own code on the same
CPU, checkpoint and prompt.

    python scripts/bench/make_random_checkpoint.py build/llada-150m --family llada
    python scripts/bench/d2cache_pair.py D2CACHE build/llada-150m --cache d2cache --dtype float32 --gen-length 64

D2CACHE is a work tree of the repository at 72feb60. Needs the packages of tests/probe/parity/official/d2cache.py, and h5py.
Their d2cache runs "corrected" (it decides no position that it did not compute), ours with the option `as_released`.
In float32 three things must be equal, or the exit code is 1: what every step decides, which rows of the block it computed,
and how many rows were computed in all.
"""

import argparse
import functools
import os
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests/probe/parity/official"))
import d2cache as official_cases
import pairs
import torch
from safetensors.torch import load_file

CLASSES = {"d2cache": "d2Cache", "dllm-cache": "dLLMCache"}


def load(official, folder, config, dtype, attention):
    model_class, config_class = official.models["dream" if config["model_type"] == "Dream" else "llada"]
    model = model_class._from_config(config_class(**config), attn_implementation=attention).eval()
    model.load_state_dict(load_file(folder / "model.safetensors"))
    return model.to(dtype)


def decode(official, model, prompt, a, cache):
    """-> seconds, [{position: token} of every step]."""
    begin = time.perf_counter()
    record = official.vanilla.vanilla_generate(
        model, torch.tensor([prompt]), block_length=a.block_length, gen_length=a.gen_length,
        mask_token_id=model.config.mask_token_id, threshold=a.threshold, cache_cls=cache)
    seconds = time.perf_counter() - begin
    steps = [{a.context + p: int(delta.decoded_tokens[0, p]) for p in delta.transfer_index[0].tolist()}
             for delta in record.deltas]
    return seconds, steps


def watched_rows(official, model, a, arguments, run):
    """`run(cache)` once -> the rows of every pass, by layer where layers differ."""
    layers, passes = {}, []
    cache = official_cases.cache_class(official, CLASSES[a.cache], arguments, layers)

    def after(module, inputs, keywords, output):
        past = keywords["past_key_values"]
        length = keywords.get("input_ids", inputs[0] if inputs else None).shape[1]
        if layers:
            passes.append([list(layers[i]) for i in sorted(layers)])
            layers.clear()
        elif past.active_q_mask is None:
            passes.append([list(range(length))])
        else:
            passes.append([past.active_q_mask[0].nonzero()[:, 0].tolist()])
    handle = model.register_forward_hook(after, with_kwargs=True)
    _, steps = run(cache)
    handle.remove()
    return passes, steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("repository", type=pathlib.Path, help="work tree of Kamichanw/d2Cache")
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--cache", choices=CLASSES, default="d2cache")
    parser.add_argument("--attention", choices=("eager", "sdpa"), help="theirs; d2cache needs eager")
    pairs.add_run_options(parser)
    pairs.add_block_options(parser)
    parser.add_argument("--current-k", type=int, default=32)
    parser.add_argument("--prompt-interval", type=int, default=50)
    parser.add_argument("--answer-interval", type=int, default=2)
    a = parser.parse_args()
    torch.set_num_threads(a.threads)
    config, prompt = pairs.begin(a)
    os.environ["MASK_TOKEN_ID"] = str(config["mask_token_id"])
    official = official_cases.official_modules(a.repository)
    official.utils.get_token_freq = lambda *_: None  # only pc_sampler uses it
    attention = a.attention or ("eager" if a.cache == "d2cache" else "sdpa")
    model = load(official, a.model, config, getattr(torch, a.dtype), attention)
    official_cases.apply_variant(official, "corrected" if a.cache == "d2cache" else "published")
    if a.cache == "d2cache":
        arguments, cache_text = dict(current_k=a.current_k), f"d2cache,current_k={a.current_k},as_released"
    else:
        arguments = dict(kp=a.prompt_interval, kr=a.answer_interval)
        cache_text = f"dllm-cache,prompt_interval={a.prompt_interval},answer_interval={a.answer_interval}"
    strategy = f"threshold,threshold={a.threshold}"
    cache = functools.partial(getattr(official.cache, CLASSES[a.cache]), **arguments)
    shared = ["--gen-length", a.gen_length, "--block-length", a.block_length, "--dtype", a.dtype, "--threads", a.threads]
    flags = [*shared, "--cache", cache_text, "--strategy", strategy]

    his_passes, his_steps = watched_rows(official, model, a, arguments,
                                         lambda watched: decode(official, model, prompt, a, watched))
    steps, tokens = pairs.decode_ours(a.model, prompt, flags)
    count, rows = pairs.rows_ours(a.model, prompt, cache_text, strategy, shared)
    his_rows = sum(sum(map(len, layers)) / len(layers) for layers in his_passes)
    same = sum(mine["decided"] == his for mine, his in zip(steps, his_steps))
    print(f"{config['model_type']}, {a.dtype}, {a.cache}, prompt {a.context}, gen {a.gen_length}, B {a.block_length}, threshold "
          f"{a.threshold}, their attention {attention}")
    final = {p: t for step in his_steps for p, t in step.items()}
    equal = pairs.equal_tokens(a, tokens, final)
    print(f"  {equal} of {a.gen_length} tokens equal; {same} of {len(his_steps)} steps decide the same (ours has {len(steps)}); "
          f"rows computed {rows:.0f} ours in {count} passes, {his_rows:.0f} theirs in {len(his_passes)}")
    block_same = compare_block_rows(a, config, steps, his_passes)

    def run(seconds, passes):
        return {"tokens/s": a.gen_length / seconds, "ms a pass": 1e3 * seconds / passes}

    pairs.compare(
        a, "d2Cache",
        lambda: run(pairs.time_ours(a.model, [*flags, "--context", a.context, "--seed", a.seed])["blocks_s"], count),
        lambda: run(decode(official, model, prompt, a, cache)[0], len(his_steps)))
    pairs.finish(a, block_same and equal == a.gen_length and same == len(steps) == len(his_steps) and abs(rows - his_rows) < 0.5)


def compare_block_rows(a, config, steps, his_passes) -> bool:
    """d2cache: which positions of the block every step predicted. Its layers compute the same rows."""
    if a.cache != "d2cache":
        return True
    shift = 1 if config["model_type"] == "Dream" else 0
    same, decided = 0, set()
    for step, (rows,) in zip(steps, his_passes):
        block = a.context + len(decided) // a.block_length * a.block_length
        predicted = {row + shift for row in rows}
        same += set(step["block_rows"]) == predicted & set(range(block, block + a.block_length))
        decided |= set(step["decided"])
    print(f"  rows of the block equal at {same} of {len(his_passes)} steps")
    return same == len(his_passes)


if __name__ == "__main__":
    main()
