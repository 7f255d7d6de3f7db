#!/usr/bin/env python3
"""Time of a decode step and of the prefill, compared with the official SDAR code on the same CPU, checkpoint and prompt,
and with the machine's limit, all in one run.

    python scripts/bench/make_random_checkpoint.py build/sdar-0.6b --block-length 32
    python scripts/bench/sdar_pair.py SDAR build/sdar-0.6b --context 2048
    python scripts/bench/sdar_pair.py SDAR build/sdar-0.6b --context 8192 --prefill

SDAR is a work tree of JetAstra/SDAR. sdar_official.py says what replaces flash-attn, and needs transformers 4.52.4.
One token a step, greedy on both sides. A step is the time of all blocks over the number of denoising steps, commits
included; a forward pass is the time inside forward passes over their number, LM head included. The official sampler is
the published one (softmax and a draw for every position of the block). In float32 all tokens must be equal, or the exit
code is 1.
"""

import argparse
import pathlib

import limits
import pairs
import torch
from sdar_official import Official


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("repository", type=pathlib.Path, help="work tree of JetAstra/SDAR")
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--cache", default="blockd", help="ours; the official one is block by block")
    parser.add_argument("--batch", type=int, default=1, help="sequences of ours together; the official code has one")
    parser.add_argument("--prefill", action="store_true", help="time the prefill only")
    parser.add_argument("--as-published", action="store_true", help="keep the slow attention of the official prefill")
    parser.add_argument("--no-tokens", action="store_true", help="do not compare the decided tokens")
    pairs.add_run_options(parser, gen_length=64, dtype="bfloat16")
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
    return result | {"prefill": 1e3 * run["prefill_s"]}


def compare_steps(a, shape, machine, mine, his):
    """`mine`, `his`: milliseconds by name, of every run."""
    need = shape.denoising_pass(shape.mean_prefix(a.context, a.gen_length, a.block_length), a.block_length, a.batch)
    theirs_all = lambda name: [a.batch * value for value in his[name]]  # their batch runs one sequence after the other
    print(f"  limit of a pass: {need.describe(machine)}")
    forward = "forward pass" if "forward pass" in mine else "step"  # an older binary does not distinguish them
    print(f"  {forward} of ours over official pass: {pairs.ratios(mine[forward], theirs_all('forward pass'))}; "
          f"over the limit {min(mine[forward]) / 1e3 / need.seconds(machine):.2f}")
    without_sampler = min(s - d + g for s, d, g in zip(his["step"], his["sampling"], his["argmax instead"]))
    print(f"  step, official over ours: {pairs.ratios(theirs_all('step'), mine['step'])}; with argmax in place "
          f"of its sampler {a.batch * without_sampler / min(mine['step']):.2f}")
    at_least = lambda side, *names: [f"{min(side[name]):.3g}" for name in names if name in side]
    step, official_parts = at_least(his, "step")[0], " + ".join(at_least(his, "forward pass", "sampling"))
    print(f"  least: | {a.model.name} | {a.context} | {step} = {official_parts} | "
          f"{' of which '.join(at_least(mine, 'step', forward))} | "
          f"{1e3 * need.seconds(machine):.3g} |")
    if a.batch > 1:
        print(f"  tokens/s: {max(a.batch * 1e3 / s for s in mine['step']):.4g} ours with batch {a.batch}, "
              f"{max(1e3 / s for s in his['step']):.4g} official with 1")


def compare_prefill(a, shape, machine, ours, theirs):
    """In milliseconds, of every run."""
    limit = 1e3 * shape.prefill(a.context, a.block_length).seconds(machine) * a.batch
    note = "as published" if a.as_published else "with a mask of four dimensions"
    print(f"  prefill of {a.context}, official {note}: limit {limit:.4g} ms, ours over it {min(ours) / limit:.2f}; ours over "
          f"official {pairs.ratios([ms / a.batch for ms in ours], theirs)}")


def main() -> None:
    a = parse()
    config, prompt = pairs.begin(a)
    before = limits.measure(a.threads, a.dtype)
    shape = limits.Shape(a.model, a.dtype)
    official = Official(a.repository, a.model, getattr(torch, a.dtype), a.as_published)
    decoding = ["--gen-length", a.gen_length, "--block-length", a.block_length, "--denoising-steps", a.block_length,
                "--strategy", "low_confidence_static", "--cache", a.cache, "--dtype", a.dtype, "--threads", a.threads]
    print(f"{a.model.name}: {config['num_hidden_layers']} layers of {config['hidden_size']}, vocabulary "
          f"{config['vocab_size']}, {a.dtype}, prompt {a.context}, gen {a.gen_length}, B {a.block_length}, cache {a.cache}, "
          f"batch {a.batch}")
    time_ours = lambda options: pairs.time_ours(a.model, [*options, "--context", a.context, "--batch-size", a.batch])
    equal = a.gen_length
    if a.prefill:
        few = decoding.copy()
        few[1], few[5] = a.block_length, 1
        run_ours = lambda: dict(prefill=1e3 * time_ours(few)["prefill_s"])
        run_theirs = lambda: dict(prefill=1e3 * official.prefill(prompt, a.block_length))
    else:
        run_ours = lambda: milliseconds(time_ours(decoding))
        run_theirs = lambda: milliseconds(official.decode(prompt, a.gen_length, a.block_length))
        expected = official.decode(prompt, a.gen_length, a.block_length)["tokens"]  # warms up too
        if not a.no_tokens:
            equal = pairs.equal_tokens(a, pairs.decode_ours(a.model, prompt, decoding)[1], expected)
            print(f"  {equal} of {a.gen_length} tokens equal")
    print("  milliseconds:")
    mine, his = pairs.compare(a, "official", run_ours, run_theirs, ratio=False)
    machine = limits.best(before, limits.measure(a.threads, a.dtype))
    print(f"  machine, best of before and after: {machine}")
    if not a.prefill:
        compare_steps(a, shape, machine, mine, his)
    compare_prefill(a, shape, machine, mine["prefill"], his["prefill"])
    pairs.finish(a, equal == a.gen_length)


if __name__ == "__main__":
    main()
