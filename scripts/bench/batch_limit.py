#!/usr/bin/env python3
"""Tokens a second of `blockscope bench` with batches and threads, each compared with the machine's limit.

    python scripts/bench/batch_limit.py build/sdar-0.6b --batches 1,4,16 --thread-counts 1,2

One token a step and sequence. The limit is that of the denoising passes alone: the time for reading weights and caches,
or for the products, whichever is longer at the rate that as many threads reach in this run.
"""

import argparse
import pathlib

import limits
import pairs


def main() -> None:
    numbers = lambda text: [int(number) for number in text.split(",")]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--batches", type=numbers, default=[1, 4, 16])
    parser.add_argument("--thread-counts", type=numbers, default=[1, 2])
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="bfloat16")
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--gen-length", type=int, default=32)
    parser.add_argument("--block-length", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    a = parser.parse_args()
    print(pairs.machine(max(a.thread_counts)))
    shape = limits.Shape(a.model, a.dtype)
    prefix = shape.mean_prefix(a.context, a.gen_length, a.block_length)
    print(f"{a.model.name}, {a.dtype}, prompt {a.context}, gen {a.gen_length}, B {a.block_length}: the best of {a.rounds}")
    first = None
    for threads in a.thread_counts:
        machine = limits.measure(threads, a.dtype)
        print(f"  {threads} threads: {machine}")
        for batch in a.batches:
            runs = [pairs.time_ours(a.model, [
                "--context", a.context, "--gen-length", a.gen_length, "--block-length", a.block_length, "--denoising-steps",
                a.block_length, "--dtype", a.dtype, "--threads", threads, "--batch-size", batch]) for _ in range(a.rounds)]
            speed = max(run["tokens"] / run["blocks_s"] for run in runs)
            most = batch / shape.denoising_pass(prefix, a.block_length, batch).seconds(machine)
            first = first or (speed, most)
            print(f"    batch {batch}: {speed:.4g} tokens/s ({speed / first[0]:.2f} times the first), limit {most:.4g} "
                  f"({most / first[1]:.2f} times), {100 * speed / most:.0f} % of it")


if __name__ == "__main__":
    main()
