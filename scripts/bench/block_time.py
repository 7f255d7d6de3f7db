#!/usr/bin/env python3
"""Time per output block by method, compared with a model of bytes and FLOPs: `blockscope study time` over a random
prefix.

    python scripts/bench/block_time.py build/qwen3-0.6b-random --contexts 8192
    python scripts/bench/block_time.py build/bench/models/gpu-8b-random --device cuda --contexts 131072 --batches 1,4

The model of a pass is the longer of two times. The first reads weights of the layers and the LM head, keys and values of
the method, and the data for its choosing, once at the read bandwidth. The second does the products at the rate of large
ones. A block is its denoising passes and a commit, which reads everything. Both rates are measured before and after, in
this process; the better ones count. Prints Markdown; exit code 1 if nothing could be measured.
"""

import argparse
import csv
import pathlib
import subprocess
import sys
import tempfile

import torch

import limits
import pairs

METHODS = ("exact", "mage", "flashblock", "mage+flashblock")


def device_rates(dtype):
    """For the current GPU: bytes a second that a copy reads and writes, FLOP a second of a large product."""
    def least(work):
        times = []
        for _ in range(8):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            work()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) / 1e3)
        return min(times)
    one, other = (torch.empty(1 << 30, dtype=torch.uint8, device="cuda") for _ in range(2))
    a, b = (torch.randn(8192, 8192, device="cuda").to(getattr(torch, dtype)) for _ in range(2))
    return limits.Machine(2 * one.nbytes / least(lambda: other.copy_(one)), 2 * 8192**3 / least(lambda: a @ b))


def rates(device, threads, dtype):
    if device == "cpu":
        return limits.measure(threads, dtype)
    measured = device_rates(dtype)
    torch.cuda.empty_cache()  # the memory is blockscope's
    return measured


def block_need(shape, row, exact, batch, block):
    """(denoising pass, commit) of a method: limits.Need. Rows of the study's CSV: bytes and FLOP a step over external keys."""
    inside = 4 * shape.layers * shape.query * batch * block * block
    weights = shape.width * (shape.layer_weights + shape.head_weights)
    logits = 2 * batch * (block + 1) / 2 * shape.head_weights
    layers = 2 * batch * block * shape.layer_weights
    external = float(row["attention_bytes"]) + float(row["choosing_bytes"])
    return (limits.Need(weights + external, layers + logits + inside + float(row["attention_flops"])),
            limits.Need(shape.width * shape.layer_weights + float(exact["attention_bytes"]),
                        layers + inside + float(exact["attention_flops"])))


def study(options, context, batch, folder):
    command = [pairs.BINARY, "study", "time", options.model, "--contexts", context, "--k", options.k, "--taus", 2, "--pages",
               16, "--blocks", options.blocks, "--repeats", options.repeats, "--dtype", options.dtype, "--block-length",
               options.block_length, "--batch-size", batch, "--no-figures", "-q", "-o", folder]
    command += ["--threads", options.threads] if options.device == "cpu" else ["--device", options.device]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode:
        return done.stderr.strip().splitlines()[-1], {}
    with (pathlib.Path(folder) / "time.csv").open() as lines:
        return "", {row["method"].removesuffix(" tau=2"): row for row in csv.DictReader(lines)}


def main():
    numbers = lambda text: [int(number) for number in text.split(",")]
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="bfloat16")
    parser.add_argument("--contexts", type=numbers, default=[8192])
    parser.add_argument("--batches", type=numbers, default=[1])
    parser.add_argument("--k", type=int, default=1024)
    parser.add_argument("--block-length", type=int, default=32)
    parser.add_argument("--blocks", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    shape = limits.Shape(options.model, options.dtype)
    before = rates(options.device, options.threads, options.dtype)
    measured = []
    for context in options.contexts:
        for batch in options.batches:
            with tempfile.TemporaryDirectory() as folder:
                measured.append((context, batch, *study(options, context, batch, folder)))
    machine = limits.best(before, rates(options.device, options.threads, options.dtype))
    print(f"{options.model.name}, {options.dtype}, B {options.block_length}, k {options.k}, {options.blocks} blocks, median of "
          f"{options.repeats}; {machine}\n")
    print("| context | batch | method | ms a block | times faster | bytes and FLOPs say, ms | measured over that |")
    print("|---|---|---|---|---|---|---|")
    worst = {}
    for context, batch, error, rows in measured:
        if error:
            print(f"| {context} | {batch} | failed: {error} | | | | |")
        for method in METHODS if rows else ():
            row = rows[method]
            step, commit = block_need(shape, row, rows["exact"], batch, options.block_length)
            model_ms = 1e3 * (int(row["steps"]) * step.seconds(machine) + commit.seconds(machine))
            ratio = float(row["block_ms"]) / model_ms
            worst[batch] = max(worst.get(batch, 0), ratio)
            print(f"| {context} | {batch} | {method} | {float(row['block_ms']):.1f} | {float(row['speedup']):.2f} "
                  f"[{float(row['speedup_least']):.2f}, {float(row['speedup_most']):.2f}] | {model_ms:.1f} | {ratio:.2f} |")
    print()
    for batch, ratio in worst.items():
        print(f"result: block_model_{batch} = {ratio:.2f} times at worst, batch {batch}")
    return 0 if worst else 1


if __name__ == "__main__":
    sys.exit(main())
