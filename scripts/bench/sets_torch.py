"""Recall and union size: ours compared with torch, in one run, on the same data.

    scripts/bench/sets_torch.py build/release/tests/bench_sets [--threads 2] [--work FOLDER]
                                [--rows 24] [--layers 4] [--context 32768] [--k 512]

Recall (with the probability that the sets cover) and union use sets of a trace of level full. Both sides read them from
the file, torch through h5py. With torch, membership is by scatter and gather on a table of positions, the fastest of the
ways that were tried (isin and unique are slower). The script checks that both sides give the same numbers. Times are the
best of --repeat runs, with files in the page cache."""

import argparse
import json
import os
import subprocess
import tempfile
import time

import h5py
import torch


def best(repeat, body):
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        result = body()
        times.append(time.perf_counter() - start)
    return min(times), result


def ours(tool, *words):
    done = subprocess.run([tool, *map(str, words)], capture_output=True, text=True, check=True)
    return json.loads(done.stdout) if done.stdout.strip() else None


def line(what, size, torch_seconds, our_seconds):
    print(f"| {what} | {size / torch_seconds / 1e9:.2f} | {size / our_seconds / 1e9:.2f} | "
          f"{torch_seconds / our_seconds:.1f}x |", flush=True)


def torch_recall(path, k, context):
    """Mean recall per layer, and the probability that step 1's set and the step's own set cover."""
    with h5py.File(path, "r") as file:
        sets, probability = file["/sets/topk"], file["/sets/probability"]
        total = torch.zeros(3, sets.shape[1], dtype=torch.float64)
        first = torch.from_numpy(sets[0]).long()  # [layer, kv_head, k]
        member = torch.zeros(*first.shape[:2], context, dtype=torch.bool).scatter_(2, first, True)
        for row in range(1, sets.shape[0]):
            there = member.gather(2, torch.from_numpy(sets[row]).long())
            now = torch.from_numpy(probability[row])
            total[0] += there.sum(-1).double().mean(-1) / k
            total[1] += (now * there).sum(-1).double().mean(-1)
            total[2] += now.sum(-1).double().mean(-1)
        return (total[:2] / (sets.shape[0] - 1)).reshape(-1).tolist()


def torch_union(path, k, context):
    with h5py.File(path, "r") as file:
        sets = file["/sets/topk_token"]
        rows, layers, heads = sets.shape[:3]
        total = torch.zeros(layers, dtype=torch.float64)
        for row in range(rows):
            for layer in range(layers):  # chunk by chunk: the whole row does not fit in the cache
                now = torch.from_numpy(sets[row, layer]).reshape(heads, -1).long()
                member = torch.zeros(heads, context, dtype=torch.bool).scatter_(1, now, True)
                total[layer] += member.sum(-1).double().mean() / k
        return (total / rows).tolist()


def bench_metric(args, trace, metric, reference, size):
    seconds, want = best(args.repeat, lambda: reference(trace, args.k, args.context))
    got = ours(args.tool, "metric", "--trace", trace, "--metric", metric, "--threads", args.threads,
               "--repeat", args.repeat)
    assert all(abs(a - b) < 1e-6 for a, b in zip(got["means"], want)), (got["means"], want)
    line(f"{metric} of {args.rows} rows, k {args.k}, N {args.context:,}", size, seconds,
         got["seconds"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tool", help="the bench_sets program")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--rows", type=int, default=24)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--kv-heads", type=int, default=8)
    parser.add_argument("--block", type=int, default=32)
    parser.add_argument("--context", type=int, default=32768)
    parser.add_argument("--k", type=int, default=512)
    parser.add_argument("--work", help="folder for the data (default: a temporary one)")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    with tempfile.TemporaryDirectory(dir=args.work) as folder:
        args.work = folder
        print(f"torch {torch.__version__}, {args.threads} threads, GB/s of sets")
        print("| what | torch | blockscope | faster |\n|---|---|---|---|")
        trace = os.path.join(folder, "sets.h5")
        ours(args.tool, "make", "--output", trace, "--rows", args.rows, "--layers", args.layers,
             "--kv-heads", args.kv_heads, "--block", args.block, "--k", args.k,
             "--context", args.context)
        block_sets = args.rows * args.layers * args.kv_heads * args.k * 4
        bench_metric(args, trace, "recall", torch_recall, 2 * block_sets)  # and probabilities
        bench_metric(args, trace, "union_size", torch_union, block_sets * args.block)


if __name__ == "__main__":
    main()
