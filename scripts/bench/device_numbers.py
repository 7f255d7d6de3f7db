"""Measures the numbers of this machine's CPU for `blockscope study time --predict FILE`, and prints them as JSON:
device_numbers.py [--threads N] > here.json

Nothing in it comes from Blockscope: every rate is one of torch, on shapes of a block's pass. So a prediction from
these numbers can be compared with Blockscope's own times. Nothing else should run meanwhile."""

import argparse
import datetime
import json
import os
import pathlib

import torch

import limits

F = torch.nn.functional
ROWS = 32  # of a block
LARGE = 96 << 20  # bytes of weights that no cache holds


def rate_of_weights(dtype, rows):
    """FLOP a second of `rows` rows times weights of 1024 x 3072 that come from memory, one product after another."""
    inner, columns = 1024, 3072
    count = max(LARGE // (inner * columns * dtype.itemsize), 2)
    weights = [torch.randn(columns, inner).to(dtype) for _ in range(count)]
    x = torch.randn(rows, inner).to(dtype)
    seconds = limits._least(lambda: [F.linear(x, w) for w in weights])
    return 2 * rows * inner * columns * count / seconds


def rate_of_attention(dtype):
    """FLOP a second of a block's attention over 8,192 keys, 16/8 heads of 128, heads folded into queries or not."""
    heads, kv_heads, keys, dim = 16, 8, 8192, 128
    k, v = (torch.randn(1, kv_heads, keys, dim).to(dtype) for _ in range(2))
    folded = torch.randn(1, kv_heads, heads // kv_heads * ROWS, dim).to(dtype)
    plain = torch.randn(1, heads, ROWS, dim).to(dtype)
    wide = [t.repeat_interleave(heads // kv_heads, 1) for t in (k, v)]
    seconds = min(limits._least(lambda: F.scaled_dot_product_attention(folded, k, v), 7),
                  limits._least(lambda: F.scaled_dot_product_attention(plain, *wide), 7))
    return 4 * heads * ROWS * keys * dim / seconds


def cache_bandwidth():
    """Bytes a second of reading 4 MB again and again."""
    buffer = torch.ones(1 << 20)
    return 50 * buffer.nbytes / limits._least(lambda: [buffer.sum() for _ in range(50)])


def small_kernel():
    """Seconds of an operator on 32 rows of 192, which both threads share: what a kernel costs beyond its work."""
    x = torch.randn(ROWS, 2048)
    return limits._least(lambda: [torch.mul(x, 2.0, out=x) for _ in range(1000)]) / 1000


def processor():
    facts = dict(line.split("\t: ", 1) for line in pathlib.Path("/proc/cpuinfo").read_text().split("\n\n")[0].split("\n")
                 if "\t: " in line or "\t\t: " in line) if pathlib.Path("/proc/cpuinfo").exists() else {}
    facts = {key.strip(): value for key, value in facts.items()}
    flags = facts.get("flags", "").split()
    with_ = [text for flag, text in (("avx512f", "AVX-512"), ("avx512_bf16", "bf16"), ("amx_bf16", "AMX")) if flag in flags]
    return facts.get("model name", "CPU"), ", ".join(with_) or "without AVX-512", "amx_bf16" in flags


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    threads = parser.parse_args().threads
    torch.set_num_threads(threads)
    name, instructions, has_amx = processor()
    source = f"scripts/bench/device_numbers.py, {datetime.date.today()}, torch {torch.__version__.split('+')[0]}"

    def number(value, what):
        return {"value": float(f"{value:.3g}"), "source": f"{what}; {source}"}

    peaks = {dtype: limits.product_rate(getattr(torch, dtype)) for dtype in ("bfloat16", "float32")}
    rows_rate = rate_of_weights(torch.bfloat16, ROWS)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    l3 = pathlib.Path("/sys/devices/system/cpu/cpu0/cache/index3/size")
    cache = int(l3.read_text().strip().rstrip("K")) << 10 if l3.exists() else 16 << 20
    print(json.dumps({
        "device": f"{threads} cores of an {name} ({instructions}{'' if has_amx else ', no AMX'})",
        "memory_bytes": number(memory, "the system"),
        "memory_bandwidth": number(limits.read_bandwidth(threads), "plain reads of 1 GiB"),
        "bandwidth_efficiency": {"value": 1, "source": "the bandwidth is a measured one"},
        "flops": {dtype: number(peak, "large products") for dtype, peak in peaks.items()},
        "product_efficiency": number(min(rows_rate / peaks["bfloat16"], 1), f"bfloat16, {ROWS} rows by weights from memory"),
        "attention_efficiency": number(min(rate_of_attention(torch.bfloat16) / peaks["bfloat16"], 1),
                                       f"bfloat16, scaled_dot_product_attention, {ROWS} positions, 8,192 keys"),
        "launch_seconds": number(small_kernel(), f"{ROWS} rows of 2,048, times a number"),
        "cache_bytes": number(cache, "the last cache"),
        "cache_bandwidth": number(cache_bandwidth(), "plain reads of 4 MB"),
    }, indent=1))


if __name__ == "__main__":
    main()
