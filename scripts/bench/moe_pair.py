#!/usr/bin/env python3
"""A denoising step of a mixture of experts, compared with the official modelling code: transformers' Qwen3-MoE for
`sdar_moe`, dFactory's LLaDA2 MoE for `llada2_moe`. Both sides keep the keys of finished blocks and decode the same prompt.

    python scripts/bench/make_random_checkpoint.py build/moe-1b --family sdar_moe
    python scripts/bench/moe_pair.py build/moe-1b [--experts grouped_mm]
    python scripts/bench/make_random_checkpoint.py build/llada2-1b --family llada2_moe
    python scripts/bench/moe_pair.py build/llada2-1b --dfactory DFACTORY

--experts: transformers 5's implementation (eager, batched_mm, grouped_mm); transformers 4 has only its loop. dFactory's
code needs transformers 4.52. --per-token 1,2,4,8 also times ours with as many experts a token, from the same weights.
"""

import argparse
import json
import os
import pathlib
import sys
import tempfile

os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
import pairs
import torch
import transformers
import transformers_decode
from safetensors.torch import load_file


def load(a, config, dtype):
    if config["model_type"] == "llada2_moe":
        sys.path[:0] = [str(a.dfactory / "models"),
                        str(pathlib.Path(__file__).resolve().parents[2] / "tests/probe/parity/official")]
        import llada2
        llada2.stub_veomni()
        from llada2_moe.configuration_llada2_moe import LLaDA2MoeConfig
        from llada2_moe.modeling_llada2_moe import LLaDA2MoeModelLM

        class Config(LLaDA2MoeConfig):
            model_type = "llada2_moe"  # expert by expert, as published
        model = LLaDA2MoeModelLM._from_config(Config(**config), attn_implementation="sdpa", torch_dtype=dtype).eval()
        model.load_state_dict(load_file(a.model / "model.safetensors"))
        return model.to(dtype), "dFactory"
    known = {k: v for k, v in config.items() if k not in ("architectures", "model_type", "torch_dtype")}
    more = {"torch_dtype": dtype}
    if transformers.__version__ >= "5":
        more = {"dtype": dtype, "experts_implementation": a.experts}
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "model.safetensors").symlink_to((a.model / "model.safetensors").resolve())
        (folder / "config.json").write_text(json.dumps(
            known | {"model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"]}))
        model = transformers.Qwen3MoeForCausalLM.from_pretrained(folder, attn_implementation="sdpa", **more).eval()
    version = f"transformers {transformers.__version__}"
    return model, version + (f", {a.experts}" if transformers.__version__ >= "5" else "")


def with_experts(model, folder, count):
    """The same weights, `count` experts a token."""
    config = json.loads((model / "config.json").read_text()) | {"num_experts_per_tok": count}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").symlink_to((model / "model.safetensors").resolve())
    return folder


def a_pass(run):
    return {"ms a pass": 1e3 * run["blocks_s"] / run["block_passes"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--dfactory", type=pathlib.Path, help="work tree of inclusionAI/dFactory")
    parser.add_argument("--experts", default="grouped_mm")
    pairs.add_run_options(parser, gen_length=32, dtype="bfloat16")
    parser.add_argument("--per-token", help="numbers of experts, separated by commas: ours alone")
    a = parser.parse_args()
    torch.set_num_threads(a.threads)
    config, prompt = pairs.begin(a)
    block = config.get("block_size", config.get("block_length"))
    model, name = load(a, config, getattr(torch, a.dtype))
    # Their code commits a block in a separate pass.
    flags = ["--gen-length", a.gen_length, "--dtype", a.dtype, "--threads", a.threads, "--cache", "commit"]

    def decode_theirs():
        return transformers_decode.decode(model, torch.tensor([prompt]), a.gen_length, block, config["mask_token_id"])

    def run_ours(folder=a.model):
        return a_pass(pairs.time_ours(folder, [*flags, "--context", a.context]))

    expected = decode_theirs()["sequence"]  # warms up too
    _, tokens = pairs.decode_ours(a.model, prompt, flags)
    equal = pairs.equal_tokens(a, tokens, expected)
    print(f"{config['model_type']}, {config['num_experts']} experts, {config['num_experts_per_tok']} a token, {a.dtype}, prompt "
          f"{a.context}, B {block}, compared with {name}: {equal} of {a.gen_length} tokens equal")
    pairs.compare(a, "theirs", run_ours, lambda: a_pass(decode_theirs()))
    for count in map(int, a.per_token.split(",")) if a.per_token else ():
        with tempfile.TemporaryDirectory() as folder:
            fewer = with_experts(a.model, pathlib.Path(folder), count)
            times = [run_ours(fewer)["ms a pass"] for _ in range(a.rounds)]
        reads = config["num_experts"] * (1 - (1 - count / config["num_experts"]) ** block)
        print(f"  {count} experts a token (about {reads:.0f} of {config['num_experts']} read a layer): ms a pass {pairs.spread(times)}")
    pairs.finish(a, equal == a.gen_length)


if __name__ == "__main__":
    main()
