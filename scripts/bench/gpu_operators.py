"""Operators that read less than everything, on a GPU, compared with exact attention of the same run.

    python scripts/bench/gpu_operators.py LIBRARY [--heads 32 --kv-heads 8 --dim 128 --block 32 --sequences 1]

- reuse_attention with all heads reused (must not depend on the prefix), with half of the KV heads, and with every
  second one (the worst case of a library that reads adjacent heads);
- gather_attention of 1,024 keys at 64k, compared with split_attention of 1,024 adjacent keys;
- block_topk and token_topk at 64k, compared with split_attention at 64k;
- merge, page and similarity operators.

The sides run in turns; times are medians of CUDA events after a flush of the L2 cache. Prints Markdown.
"""

import argparse
import sys

import torch

from gpu_attention import measure_copy, time_all


class Table:
    """Rows of an operator compared with another one, printed as they are measured; `results` for the end."""

    def __init__(self, options):
        self.options, self.results = options, []
        self.ops, self.scale = torch.ops.blockscope, options.dim**-0.5
        self.dtype = getattr(torch, options.dtype)
        self.flush = torch.empty(1 << 27, dtype=torch.uint8, device="cuda")
        self.copy = measure_copy(options.repeats, self.flush)
        self.q = self.make(options.heads, options.block)
        self.k_in, self.v_in = (self.make(options.kv_heads, options.block) for _ in range(2))
        self.internal = self.k_in.nbytes + self.v_in.nbytes
        print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {options.dtype}, {options.heads}/"
              f"{options.kv_heads} heads, D {options.dim}, B {options.block}, S {options.sequences}; copy {self.copy:.2f} TB/s\n")
        print("| operator | keys | ms | of copy | compared with | its ms | ratio |")
        print("|---|---|---|---|---|---|---|")

    def make(self, heads, rows):
        return torch.randn(self.options.sequences, heads, rows, self.options.dim, device="cuda", dtype=self.dtype)

    def split_attention(self, k, v, length):
        lengths = torch.full((self.options.sequences,), length)
        return lambda: self.ops.split_attention(self.q, k, v, lengths, self.k_in, self.v_in, self.scale)

    def compare(self, name, keys, call, read, other_name, other, result=None, inverse=False):
        ms = time_all({"call": call, "other": other}, self.options.repeats, self.flush)
        ratio = ms["other"] / ms["call"] if inverse else ms["call"] / ms["other"]
        share = f"{100 * read / ms['call'] / 1e9 / self.copy:.0f} %" if read else "-"
        print(f"| {name} | {keys} | {ms['call']:.3f} | {share} | {other_name} | {ms['other']:.3f} | "
              f"{'faster ' if inverse else ''}{ratio:.2f} |", flush=True)
        if result:
            self.results.append(f"result: {result} = {ratio:.2f}")
        return ms["call"]


def compare_reuse(table):
    """All heads reused, and half of them, after a short and a long prefix."""
    options, reused = table.options, {}
    count = options.sequences
    lse = torch.zeros(count, options.heads, options.block, device="cuda")
    cached = torch.zeros(count, options.heads, options.block, options.dim, device="cuda")
    for length in (4096, 131072):
        k, v = (table.make(options.kv_heads, length) for _ in range(2))
        lengths = torch.full((count,), length)
        exact = table.split_attention(k, v, length)
        all_heads = torch.ones(count, options.heads, dtype=torch.bool)
        half = all_heads.clone()
        half[:, :options.heads // 2] = False
        second = torch.arange(options.heads).div(options.heads // options.kv_heads, rounding_mode="floor") % 2 == 0
        reuse = lambda mask: table.ops.reuse_attention(table.q, k, v, lengths, table.k_in, table.v_in, cached, lse, mask,
                                                       table.scale)
        reused[length] = table.compare("reuse_attention, all heads", length, lambda: reuse(all_heads), table.internal,
                                       "split_attention", exact, "reuse_speedup" if length > 100_000 else None, inverse=True)
        for name, mask in (("half", half), ("every second KV head", second)):
            table.compare(f"reuse_attention, {name}", length, lambda: reuse(mask), table.internal + (k.nbytes + v.nbytes) / 2,
                          "split_attention", exact, inverse=True)
        del k, v
    table.results.append(f"result: reuse_flat = {reused[131072] / reused[4096]:.2f}")


def compare_sets(table, length=65536, chosen=1024):
    """Reading and choosing `chosen` of `length` keys, pages of them, and similarity."""
    options, ops, q, scale = table.options, table.ops, table.q, table.scale
    count = options.sequences
    k, v = (table.make(options.kv_heads, length) for _ in range(2))
    lengths = torch.full((count,), length)
    exact = table.split_attention(k, v, length)
    index = torch.stack([torch.randperm(length, device="cuda")[:chosen] for _ in range(count * options.kv_heads)])
    index = index.view(count, options.kv_heads, chosen).int()
    k_few, v_few = (x[:, :, :chosen].contiguous() for x in (k, v))
    dense = torch.zeros(count, dtype=torch.bool)
    table.compare("gather_attention", f"{chosen} of {length}",
                  lambda: ops.gather_attention(q, k, v, lengths, index, table.k_in, table.v_in, scale, dense, None, None),
                  k_few.nbytes + v_few.nbytes + table.internal, f"split_attention, {chosen} together",
                  table.split_attention(k_few, v_few, chosen), "gather_ratio")
    table.compare("unselected_attention", f"{length - chosen} of {length}",
                  lambda: ops.unselected_attention(q, k, v, lengths, index, scale), k.nbytes + v.nbytes, "split_attention",
                  exact)
    lse = exact()[2]
    table.compare("block_topk", f"{chosen} of {length}", lambda: ops.block_topk(q, k, lengths, lse, chosen, scale), k.nbytes,
                  "split_attention", exact, "topk_ratio")
    table.compare("token_topk", f"{chosen} of {length}", lambda: ops.token_topk(q, k, lengths, lse, chosen, scale), k.nbytes,
                  "split_attention", exact)
    bounds = ops.page_bounds(k, lengths, 16)
    table.compare("page_bounds, pages of 16", length, lambda: ops.page_bounds(k, lengths, 16), k.nbytes, "split_attention",
                  exact)
    table.compare("page_scores", length, lambda: ops.page_scores(q, *bounds, lengths, 16), bounds[0].nbytes * 2,
                  "split_attention", exact)
    rows = torch.randn(options.heads * options.block * 64, options.dim, device="cuda").to(table.dtype)
    table.compare("cross_step_similarity", f"{len(rows)} rows", lambda: ops.cross_step_similarity(rows, rows),
                  2 * rows.nbytes, "split_attention", exact)


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
    table = Table(options)
    compare_reuse(table)
    compare_sets(table)
    print("\n" + "\n".join(table.results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
