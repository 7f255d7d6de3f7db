"""split_attention on a GPU, compared with unsplit attention over the same keys: scaled_dot_product_attention, and
flex_attention and FlashInfer where they can be imported and compiled. split_attention is timed with its own kernels,
with torch's flash attention for the prefix (BLOCKSCOPE_SPLIT), and as the table of kernels/cuda/library_attention.cpp
chooses.

    python scripts/bench/gpu_attention.py LIBRARY [--lengths 4096 32768 131072] [--sequences 1 4]

Both sides run in turns in one process; times are medians of CUDA events. Keys are larger than the L2
cache, or the cache is flushed before each call. Bandwidth counts every byte of K and V once, and is
compared with that of a copy in the same run. The other side gets external and internal keys in one
tensor, concatenated before the clock starts. Every backend that accepts the tensor is tried, with the
queries of a group folded into rows (one KV head, G * T rows) and with enable_gqa. Prints Markdown.
"""

import argparse
import os
import statistics
import sys

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention


def time_all(calls, repeats, flush):
    """Median milliseconds of each call, by turns."""
    times = {name: [] for name in calls}
    for turn in range(repeats + 3):
        for name, call in calls.items():
            flush.zero_()
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda._sleep(200_000)  # the launches wait in the queue: host time is not measured
            begin.record()
            call()
            end.record()
            end.synchronize()
            if turn >= 3:
                times[name].append(begin.elapsed_time(end))
    return {name: statistics.median(values) for name, values in times.items()}


def sdpa_calls(q, k, v, scale):
    """Each backend, with each way to pass the groups that works on this GPU."""
    sequences, heads, queries, dim = q.shape
    folded = q.reshape(sequences, k.shape[1], -1, dim)
    calls = {}
    for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION,
                    SDPBackend.CUDNN_ATTENTION, SDPBackend.MATH):
        for way in ("folded", "gqa"):
            def call(backend=backend, way=way):
                with sdpa_kernel(backend):
                    if way == "folded":
                        return scaled_dot_product_attention(folded, k, v, scale=scale)
                    return scaled_dot_product_attention(q, k, v, scale=scale, enable_gqa=True)
            try:
                call()
                torch.cuda.synchronize()
            except (RuntimeError, torch.OutOfMemoryError):
                torch.cuda.empty_cache()
                continue
            calls[f"{backend.name.split('_')[0].lower()} {way}"] = call
    return calls


def flex_calls(q, k, v, scale):
    try:
        from torch.nn.attention.flex_attention import flex_attention
        compiled = torch.compile(flex_attention, dynamic=False)
        call = lambda: compiled(q, k, v, scale=scale, enable_gqa=True)
        call()
        return {"flex": call}
    except Exception as error:  # no Triton, no C compiler, a shape it refuses
        print(f"flex_attention: {type(error).__name__}: {str(error).splitlines()[0][:100]}", file=sys.stderr)
        return {}


def flashinfer_calls(q, k, v, scale):
    """Batched prefill over ragged keys, planned before the clock starts; needs tokens before heads."""
    try:
        import flashinfer
        sequences, heads, queries, dim = q.shape
        kv_heads, length = k.shape[1:3]
        flat = lambda x: x.transpose(1, 2).reshape(-1, x.shape[1], dim).contiguous()
        ends = lambda rows: torch.arange(sequences + 1, dtype=torch.int32, device="cuda") * rows
        rows, keys, values = flat(q), flat(k), flat(v)
        wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(
            torch.zeros(256 << 20, dtype=torch.uint8, device="cuda"), "NHD")
        wrapper.plan(ends(queries), ends(length), heads, kv_heads, dim, causal=False, sm_scale=scale,
                     q_data_type=q.dtype, kv_data_type=k.dtype)
        call = lambda: wrapper.run(rows, keys, values).view(sequences, queries, heads, dim).transpose(1, 2)
        call()
        return {"flashinfer": call}
    except Exception as error:  # not installed, another interface
        print(f"FlashInfer: {type(error).__name__}: {str(error).splitlines()[0][:100]}", file=sys.stderr)
        return {}


def through(name, call):
    """The call with BLOCKSCOPE_SPLIT; "table": without."""
    def run():
        if name == "table":
            os.environ.pop("BLOCKSCOPE_SPLIT", None)
        else:
            os.environ["BLOCKSCOPE_SPLIT"] = name
        return call()
    return run


def measure_copy(repeats, flush):
    """Terabytes a second that a copy reads and writes."""
    source = torch.empty(1 << 28, dtype=torch.float32, device="cuda").normal_()
    target = torch.empty_like(source)
    ms = time_all({"copy": lambda: target.copy_(source)}, repeats, flush)["copy"]
    return 2 * source.nbytes / ms / 1e9


def compare(options, block, sequences, length, copy, flush):
    """Prints a row. -> terabytes a second that split_attention reads, and its time over the best other's."""
    ops, dtype = torch.ops.blockscope, getattr(torch, options.dtype)
    make = lambda heads, rows: torch.randn(sequences, heads, rows, options.dim,
                                           device="cuda", dtype=dtype)
    q, k_in, v_in = make(options.heads, block), *(
        make(options.kv_heads, block) for _ in range(2))
    k, v = (make(options.kv_heads, length) for _ in range(2))
    k_all, v_all = torch.cat([k, k_in], 2), torch.cat([v, v_in], 2)
    lengths = torch.full((sequences,), length)
    scale = options.dim**-0.5
    split = lambda: ops.split_attention(q, k, v, lengths, k_in, v_in, scale)
    ours = {name: through(name, split) for name in ("own", "library", "table")}
    unsplit = scaled_dot_product_attention(q, k_all, v_all, scale=scale, enable_gqa=True)
    for name, call in ours.items():
        error = (call()[0].float() - unsplit.float()).abs().max().item()
        assert error < 0.02, f"{name}: results differ by {error}"
    others = {} if options.without_flex else flex_calls(q, k_all, v_all, scale)
    others |= flashinfer_calls(q, k_all, v_all, scale)
    for name in list(others):
        error = (others[name]().float() - unsplit.float()).abs().max().item()
        if not error < 0.02:
            print(f"{name} left out: its results differ by {error}", file=sys.stderr)
            del others[name]
    ms = time_all({**ours, **sdpa_calls(q, k_all, v_all, scale), **others}, options.repeats, flush)
    own, library, chosen = (ms.pop(name) for name in ours)
    best = min(ms, key=ms.get)
    rate = (k_all.nbytes + v_all.nbytes) / chosen / 1e9
    others = ", ".join(f"{name} {value:.3f}" for name, value in ms.items())
    print(f"| {block} | {sequences} | {length} | {own:.3f} | {library:.3f} | {chosen:.3f} | {rate:.2f} TB/s, "
          f"{100 * rate / copy:.0f} % | {best} {ms[best]:.3f} | {chosen / ms[best]:.2f} | {others} |", flush=True)
    return rate, chosen / ms[best]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("library")
    parser.add_argument("--lengths", type=int, nargs="+", default=[4096, 32768, 131072])
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--blocks", type=int, nargs="+", default=[32])
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--kv-heads", type=int, default=8)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--without-flex", action="store_true", help="spare the time of compiling flex_attention")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("no CUDA device; skipped")
        return 77
    torch.ops.load_library(options.library)
    flush = torch.empty(1 << 27, dtype=torch.uint8, device="cuda")
    copy = measure_copy(options.repeats, flush)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {options.dtype}, "
          f"{options.heads}/{options.kv_heads} heads, D {options.dim}; copy {copy:.2f} TB/s\n")
    print("| B | S | N | own kernels, ms | library, ms | by the table, ms "
          "| of copy | best unsplit, ms | ratio | others, ms |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    worst = {"ratio": 0.0, "of copy": 1.0}
    for block in options.blocks:
        for sequences in options.sequences:
            for length in options.lengths:
                rate, ratio = compare(options, block, sequences, length, copy, flush)
                if length >= 8192:
                    worst["ratio"] = max(worst["ratio"], ratio)
                    worst["of copy"] = min(worst["of copy"], rate / copy)
    if worst["ratio"] > 0.0:
        print(f"\nresult: split_ratio = {worst['ratio']:.2f}\nresult: split_of_copy = {100 * worst['of copy']:.0f} %")
    return 0


if __name__ == "__main__":
    sys.exit(main())
