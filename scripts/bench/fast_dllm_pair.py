#!/usr/bin/env python3
"""Tokens a second of `--cache dual` (or none, prefix), compared with NVlabs/Fast-dLLM's own code on the same CPU,
checkpoint and prompt, with the same threshold.

    python scripts/bench/make_random_checkpoint.py build/llada-150m --family llada
    python scripts/bench/fast_dllm_pair.py FAST_DLLM build/llada-150m --dtype float32

FAST_DLLM is a work tree of the repository; needs torch, transformers 4.52 and h5py. In float32 all tokens and the
number of passes must be equal, or the exit code is 1.
"""

import argparse
import contextlib
import io
import os
import pathlib
import sys
import time
import types

os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
import pairs
import torch
from safetensors.torch import load_file


class Llada:
    def __init__(self, repository, folder, config, dtype):
        sys.path.insert(0, str(repository / "llada"))
        import generate
        from model.modeling_llada import LLaDAConfig, LLaDAModelLM
        self.generate = {"none": generate.generate, "prefix": generate.generate_with_prefix_cache,
                         "dual": generate.generate_with_dual_cache}
        self.mask = config["mask_token_id"]
        self.model = LLaDAModelLM(LLaDAConfig(**config)).eval()
        self.model.load_state_dict(load_file(folder / "model.safetensors"))
        self.model.to(dtype)

    def decode(self, prompt, a):
        tokens, passes = self.generate[a.cache](
            self.model, torch.tensor([prompt]), steps=a.gen_length, gen_length=a.gen_length,
            block_length=a.block_length, mask_id=self.mask, threshold=a.threshold)
        return tokens[0].tolist()


class Dream:
    def __init__(self, repository, folder, config, dtype):
        sys.path.insert(0, str(repository / "dream"))
        from model import generation_utils_block
        from model.configuration_dream import DreamConfig
        from model.modeling_dream import DreamModel
        self.module, self.config = generation_utils_block, config
        self.model = DreamModel(DreamConfig(**config)).eval()
        self.model.load_state_dict(load_file(folder / "model.safetensors"))
        self.model.to(dtype)
        for function in ("diffusion_generate", "_sample"):
            bound = types.MethodType(getattr(generation_utils_block.DreamGenerationMixin, function), self.model)
            setattr(self.model, function, bound)

    def decode(self, prompt, a):
        ids = {key: self.config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
        generation = self.module.DreamGenerationConfig(
            temperature=0.0, steps=a.gen_length, alg="confidence_threshold", max_new_tokens=a.gen_length,
            mask_token_id=self.config["mask_token_id"], **ids)
        with contextlib.redirect_stdout(io.StringIO()):
            tokens = self.model.diffusion_generate(
                torch.tensor([prompt]), generation_config=generation, attention_mask=torch.ones(1, len(prompt)),
                threshold=a.threshold, block_length=a.block_length, dual_cache=a.cache == "dual")
        return tokens[0].tolist()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("repository", type=pathlib.Path, help="work tree of NVlabs/Fast-dLLM")
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--cache", choices=("none", "prefix", "dual"), default="dual")
    pairs.add_run_options(parser)
    pairs.add_block_options(parser)
    a = parser.parse_args()
    torch.set_num_threads(a.threads)
    config, prompt = pairs.begin(a)
    kind = Dream if config["model_type"] == "Dream" else Llada
    with contextlib.redirect_stdout(io.StringIO()):
        theirs = kind(a.repository, a.model, dict(config), getattr(torch, a.dtype))
    flags = ["--gen-length", a.gen_length, "--block-length", a.block_length, "--cache", a.cache, "--strategy",
             f"threshold,threshold={a.threshold}", "--dtype", a.dtype, "--threads", a.threads]
    passes = []
    theirs.model.register_forward_hook(lambda *_: passes.append(1))

    def decode_theirs():
        passes.clear()
        begin = time.perf_counter()
        return theirs.decode(prompt, a), time.perf_counter() - begin

    def run(seconds, count):
        return {"tokens/s": a.gen_length / seconds, "ms a pass": 1e3 * seconds / count}

    def run_ours():
        timing = pairs.time_ours(a.model, [*flags, "--context", a.context, "--seed", a.seed])
        if timing["denoising_passes"] != len(steps):
            sys.exit(f"bench made {timing['denoising_passes']} passes, capture {len(steps)}: not the same run")
        return run(timing["blocks_s"], len(steps))

    expected, _ = decode_theirs()  # warms up too
    steps, tokens = pairs.decode_ours(a.model, prompt, flags)
    equal = pairs.equal_tokens(a, tokens, expected)
    name = f"{config['model_type']}, {a.dtype}, cache {a.cache}, prompt {a.context}, gen {a.gen_length}, B {a.block_length}"
    print(f"{name}, threshold {a.threshold}: {equal} of {a.gen_length} tokens equal; passes {len(steps)} ours, "
          f"{len(passes)} theirs")
    pairs.compare(a, "Fast-dLLM", run_ours, lambda: run(decode_theirs()[1], len(passes)))
    pairs.finish(a, equal == a.gen_length)


if __name__ == "__main__":
    main()
