#!/usr/bin/env python3
"""Time of a decode step and of the prefill beside the official SDAR code on the same CPU, checkpoint and prompt, and
beside what the machine allows, all in one run.

    python scripts/bench/make_random_checkpoint.py build/sdar-0.6b --block-length 32
    python scripts/bench/sdar_pair.py SDAR build/sdar-0.6b --context 2048
    python scripts/bench/sdar_pair.py SDAR build/sdar-0.6b --context 8192 --prefill

SDAR is a work tree of JetAstra/SDAR; sdar_official.py says what stands in for flash-attn, and needs transformers 4.52.4.
One token a step, greedy on both sides. A step is the time of all blocks over the number of denoising steps, commits
included; a forward pass is the time inside forward passes over their number, LM head included. The official sampler is
the published one (softmax and a draw for every position of the block). In float32 all tokens must be equal, or the exit code is 1.
"""

import argparse
import json
import pathlib
import sys

import limits
import pairs
import torch
from sdar_official import Official


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("repository", type=pathlib.Path, help="work tree of JetAstra/SDAR")
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="bfloat16")
    parser.add_argument("--cache", default="blockd", help="ours; the official one is block by block")
    parser.add_argument("--batch", type=int, default=1, help="sequences of ours together; the official code has one")
    parser.add_argument("--prefill", action="store_true", help="time the prefill only")
    parser.add_argument("--as-published", action="store_true", help="leave the official prefill its slow attention")
    parser.add_argument("--no-tokens", action="store_true", help="do not compare what is decided")
    pairs.add_run_options(parser, gen_length=64)
    parser.add_argument("--block-length", type=int, default=32)
    return parser.parse_args()


def milliseconds(run):
    """A run's seconds as milliseconds: the step, a forward pass, and a step's other parts where they are known."""
    steps = run["denoising_passes"]
    result = dict(step=1e3 * run["blocks_s"] / steps)
    if "forward_s" in run:
        result["forward pass"] = 1e3 * run["forward_s"] / run["block_passes"]
        result["step without forward"] = 1e3 * (run["blocks_s"] - run["forward_s"]) / steps
    if "sampling_s" in run:
        result |= {"sampling": 1e3 * run["sampling_s"] / steps, "argmax instead": 1e3 * run["greedy_s"] / steps}
    return result


def show(label, runs):
    columns = [milliseconds(run) for run in runs]
    print(f"  {label}, ms, least / median / most: " +
          "; ".join(f"{name} {pairs.spread([c[name] for c in columns])}" for name in columns[0]))
    return columns


def compare_steps(a, shape, machine, ours, theirs):
    need = shape.denoising_pass(shape.mean_prefix(a.context, a.gen_length, a.block_length), a.block_length, a.batch)
    mine, his = show("blockscope", ours), show("official", theirs)
    column = lambda columns, name: [c[name] for c in columns]
    theirs_all = lambda name: [a.batch * value for value in column(his, name)]  # a batch, one sequence after the other
    print(f"  limit of a pass: {need.describe(machine)}")
    forward = "forward pass" if "forward pass" in mine[0] else "step"  # an older binary does not tell them apart
    least = min(column(mine, forward))
    print(f"  {forward} of ours over official pass: {pairs.ratios(column(mine, forward), theirs_all('forward pass'))}; "
          f"over the limit {least / 1e3 / need.seconds(machine):.2f}")
    without_sampler = min(c["step"] - c["sampling"] + c["argmax instead"] for c in his)
    print(f"  step, official over ours: {pairs.ratios(theirs_all('step'), column(mine, 'step'))}; with argmax in place "
          f"of its sampler {a.batch * without_sampler / min(column(mine, 'step')):.2f}")
    at_least = lambda columns, *names: [f"{min(column(columns, name)):.3g}" for name in names if name in columns[0]]
    step, official_parts = at_least(his, "step")[0], " + ".join(at_least(his, "forward pass", "sampling"))
    print(f"  least: | {a.model.name} | {a.context} | {step} = {official_parts} | {' of which '.join(at_least(mine, 'step', forward))} | "
          f"{1e3 * need.seconds(machine):.3g} |")
    if a.batch > 1:
        print(f"  tokens/s: {max(a.batch * 1e3 / s for s in column(mine, 'step')):.4g} ours with batch {a.batch}, "
              f"{max(1e3 / s for s in column(his, 'step')):.4g} official with 1")


def compare_prefill(a, shape, machine, ours, theirs):
    need = shape.prefill(a.context, a.block_length)
    least = min(ours)
    note = "as published" if a.as_published else "with a mask of four dimensions"
    print(f"  prefill of {a.context}, s: blockscope {pairs.spread(ours)}; official ({note}) {pairs.spread(theirs)}; limit "
          f"{need.seconds(machine) * a.batch:.4g}, ours over it {least / need.seconds(machine) / a.batch:.2f}; ours over "
          f"official {pairs.ratios([s / a.batch for s in ours], theirs)}")


def main() -> None:
    a = parse()
    print(pairs.machine(a.threads))
    before = limits.measure(a.threads, a.dtype)
    shape = limits.Shape(a.model, a.dtype)
    config = json.loads((a.model / "config.json").read_text())
    prompt = pairs.bench_prompt(a.context, config["vocab_size"], config["mask_token_id"])
    official = Official(a.repository, a.model, getattr(torch, a.dtype), a.as_published)
    decoding = ["--gen-length", a.gen_length, "--block-length", a.block_length, "--denoising-steps", a.block_length,
                "--strategy", "low_confidence_static", "--cache", a.cache, "--dtype", a.dtype, "--threads", a.threads]
    print(f"{a.model.name}: {config['num_hidden_layers']} layers of {config['hidden_size']}, vocabulary "
          f"{config['vocab_size']}, {a.dtype}, prompt {a.context}, gen {a.gen_length}, B {a.block_length}, cache {a.cache}, "
          f"batch {a.batch}")
    if a.prefill:
        few = decoding.copy()
        few[1], few[5] = a.block_length, 1
        ours, theirs = pairs.by_turns(
            a.rounds, lambda: pairs.time_ours(a.model, [*few, "--context", a.context, "--batch-size", a.batch])["prefill_s"],
            lambda: official.prefill(prompt, a.block_length))
    else:
        expected = official.decode(prompt, a.gen_length, a.block_length)  # warms up too
        equal = a.gen_length
        if not a.no_tokens:
            _, tokens = pairs.decode_ours(a.model, prompt, decoding)
            equal = sum(tokens.get(i) == expected["tokens"][i] for i in range(a.context, a.context + a.gen_length))
            print(f"  {equal} of {a.gen_length} tokens equal")
        ours, theirs = pairs.by_turns(
            a.rounds, lambda: pairs.time_ours(a.model, [*decoding, "--context", a.context, "--batch-size", a.batch]),
            lambda: official.decode(prompt, a.gen_length, a.block_length))
    machine = limits.best(before, limits.measure(a.threads, a.dtype))
    print(f"  machine, best of before and after: {machine}")
    if a.prefill:
        compare_prefill(a, shape, machine, ours, theirs)
        return
    compare_steps(a, shape, machine, ours, theirs)
    compare_prefill(a, shape, machine, *([run["prefill_s"] for run in side] for side in (ours, theirs)))
    if a.dtype == "float32" and equal < a.gen_length:
        sys.exit("tokens differ")


if __name__ == "__main__":
    main()
