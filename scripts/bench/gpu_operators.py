"""Operators that read less than everything, on a GPU, beside exact attention of the same run.

    python scripts/bench/gpu_operators.py LIBRARY [--heads 32 --kv-heads 8 --dim 128 --block 32 --sequences 1]

reuse_attention with all heads reused (it must not depend on the prefix), with half of the KV heads;
gather_attention of 1,024 keys at 64k beside split_attention of 1,024 keys that lie together; block_topk and
token_topk at 64k beside split_attention at 64k; merge, page and similarity operators. By turns, medians of CUDA
events after a flush of the L2 cache. Prints Markdown.
"""

import argparse
import sys

import torch

from gpu_attention import measure_copy, time_all


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("library")
    for name, value in (("heads", 32), ("kv-heads", 8), ("dim", 128), ("block", 32), ("sequences", 1), ("repeats", 15)):
        parser.add_argument("--" + name, type=int, default=value)
    parser.add_argument("--dtype", default="bfloat16")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("no CUDA device; skipped")
        return 77
    torch.ops.load_library(options.library)
    ops = torch.ops.blockscope
    dtype, count = getattr(torch, options.dtype), options.sequences
    scale = options.dim**-0.5
    flush = torch.empty(1 << 27, dtype=torch.uint8, device="cuda")
    copy = measure_copy(options.repeats, flush)
    make = lambda heads, rows: torch.randn(count, heads, rows, options.dim, device="cuda", dtype=dtype)
    q = make(options.heads, options.block)
    k_in, v_in = (make(options.kv_heads, options.block) for _ in range(2))
    internal = k_in.nbytes + v_in.nbytes
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {options.dtype}, {options.heads}/"
          f"{options.kv_heads} heads, D {options.dim}, B {options.block}, S {count}; copy {copy:.2f} TB/s\n")
    print("| operator | keys | ms | of copy | beside | its ms | ratio |")
    print("|---|---|---|---|---|---|---|")

    def compare(name, keys, call, read, other_name, other, result=None, inverse=False):
        ms = time_all({"call": call, "other": other}, options.repeats, flush)
        ratio = ms["other"] / ms["call"] if inverse else ms["call"] / ms["other"]
        share = f"{100 * read / ms['call'] / 1e9 / copy:.0f} %" if read else "-"
        print(f"| {name} | {keys} | {ms['call']:.3f} | {share} | {other_name} | {ms['other']:.3f} | "
              f"{'faster ' if inverse else ''}{ratio:.2f} |", flush=True)
        if result:
            results.append(f"result: {result} = {ratio:.2f}")
        return ms["call"]

    results, reused = [], {}
    lse = torch.zeros(count, options.heads, options.block, device="cuda")
    cached = torch.zeros(count, options.heads, options.block, options.dim, device="cuda")
    for length in (4096, 131072):
        k, v = (make(options.kv_heads, length) for _ in range(2))
        lengths = torch.full((count,), length)
        exact = lambda: ops.split_attention(q, k, v, lengths, k_in, v_in, scale)
        all_heads = torch.ones(count, options.heads, dtype=torch.bool)
        half = all_heads.clone()
        half[:, :options.heads // 2] = False
        reuse = lambda mask: ops.reuse_attention(q, k, v, lengths, k_in, v_in, cached, lse, mask, scale)
        reused[length] = compare("reuse_attention, all heads", length, lambda: reuse(all_heads), internal,
                                 "split_attention", exact, "reuse_speedup" if length > 100_000 else None, inverse=True)
        compare("reuse_attention, half", length, lambda: reuse(half), internal + (k.nbytes + v.nbytes) / 2,
                "split_attention", exact, inverse=True)
        del k, v
    results.append(f"result: reuse_flat = {reused[131072] / reused[4096]:.2f}")

    length, chosen = 65536, 1024
    k, v = (make(options.kv_heads, length) for _ in range(2))
    lengths = torch.full((count,), length)
    exact = lambda: ops.split_attention(q, k, v, lengths, k_in, v_in, scale)
    index = torch.stack([torch.randperm(length, device="cuda")[:chosen] for _ in range(count * options.kv_heads)])
    index = index.view(count, options.kv_heads, chosen).int()
    together = torch.full((count,), chosen)
    k_few, v_few = (x[:, :, :chosen].contiguous() for x in (k, v))
    contiguous = lambda: ops.split_attention(q, k_few, v_few, together, k_in, v_in, scale)
    dense = torch.zeros(count, dtype=torch.bool)
    compare("gather_attention", f"{chosen} of {length}",
            lambda: ops.gather_attention(q, k, v, lengths, index, k_in, v_in, scale, dense, None, None),
            k_few.nbytes + v_few.nbytes + internal, f"split_attention, {chosen} together", contiguous, "gather_ratio")
    compare("unselected_attention", f"{length - chosen} of {length}",
            lambda: ops.unselected_attention(q, k, v, lengths, index, scale), k.nbytes + v.nbytes, "split_attention",
            exact)
    lse = exact()[2]
    compare("block_topk", f"{chosen} of {length}", lambda: ops.block_topk(q, k, lengths, lse, chosen, scale), k.nbytes,
            "split_attention", exact, "topk_ratio")
    compare("token_topk", f"{chosen} of {length}", lambda: ops.token_topk(q, k, lengths, lse, chosen, scale), k.nbytes,
            "split_attention", exact)
    bounds = ops.page_bounds(k, lengths, 16)
    compare("page_bounds, pages of 16", length, lambda: ops.page_bounds(k, lengths, 16), k.nbytes, "split_attention",
            exact)
    compare("page_scores", length, lambda: ops.page_scores(q, *bounds, lengths, 16), bounds[0].nbytes * 2,
            "split_attention", exact)
    rows = torch.randn(options.heads * options.block * 64, options.dim, device="cuda").to(dtype)
    compare("cross_step_similarity", f"{len(rows)} rows", lambda: ops.cross_step_similarity(rows, rows),
            2 * rows.nbytes, "split_attention", exact)
    print("\n" + "\n".join(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
