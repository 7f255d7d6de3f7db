"""The limits of this machine, and what a pass of a dense Qwen3-like model needs. The limits are the read bandwidth and the
rate of products, measured in the same run as the times that are compared with them.
"""

import concurrent.futures
import json
import pathlib
import time
from dataclasses import dataclass

import numpy as np
import torch

_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


def _least(work, repeats=5):
    def once():
        begin = time.perf_counter()
        work()
        return time.perf_counter() - begin
    return min(once() for _ in range(repeats))


def read_bandwidth(threads):
    """Bytes a second that `threads` threads read of a 1 GiB buffer: the best of some plain reductions."""
    buffer = torch.ones(1 << 28, dtype=torch.float32)
    slices = np.array_split(buffer.numpy(), threads)
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        works = [buffer.sum, lambda: torch.dot(buffer, buffer), lambda: list(pool.map(np.max, slices))]
        return buffer.nbytes / min(map(_least, works))


def product_rate(dtype):
    """FLOP a second of large products with torch's current number of threads: the best of some shapes."""
    def seconds_per_flop(rows, inner, columns):
        a = torch.randn(rows, inner).to(dtype)
        w = torch.randn(columns, inner).to(dtype)
        return _least(lambda: torch.nn.functional.linear(a, w), 4) / (2 * rows * inner * columns)
    return 1 / min(seconds_per_flop(*shape) for shape in ((2048, 1024, 3072), (2048, 2048, 2048), (4096, 4096, 4096)))


@dataclass
class Machine:
    bandwidth: float  # bytes a second
    products: float  # FLOP a second

    def __str__(self):
        return f"reads {self.bandwidth / 1e9:.1f} GB/s, products {self.products / 1e9:.0f} GFLOP/s"


def measure(threads, dtype):
    """dtype by its name; leaves torch with this number of threads."""
    torch.set_num_threads(threads)
    return Machine(read_bandwidth(threads), product_rate(getattr(torch, dtype)))


def best(first, second):
    return Machine(max(first.bandwidth, second.bandwidth), max(first.products, second.products))


@dataclass
class Need:
    """Bytes that must be read, and FLOP of the products."""
    bytes: float
    flop: float

    def seconds(self, machine):
        return max(self.bytes / machine.bandwidth, self.flop / machine.products)

    def describe(self, machine):
        return (f"{1e3 * self.seconds(machine):.4g} ms (reading {1e3 * self.bytes / machine.bandwidth:.4g}, "
                f"products {1e3 * self.flop / machine.products:.4g})")


class Shape:
    """The numbers of a dense Qwen3-like config.json."""

    def __init__(self, folder: pathlib.Path, dtype: str):
        c = json.loads((folder / "config.json").read_text())
        self.width, self.layers = _BYTES[dtype], c["num_hidden_layers"]
        self.query = c["num_attention_heads"] * c["head_dim"]
        self.key = c["num_key_value_heads"] * c["head_dim"]
        self.layer_weights = self.layers * c["hidden_size"] * (
            2 * self.query + 2 * self.key + 3 * c["intermediate_size"])
        self.head_weights = c["vocab_size"] * c["hidden_size"]

    def denoising_pass(self, prefix, block, batch=1):
        """A pass over one block a sequence after `prefix` cached positions; logits of the masked half only."""
        kv = 2 * self.layers * self.key * prefix
        rows, logit_rows = batch * block, batch * (block + 1) / 2
        attention = 4 * self.layers * self.query * rows * (prefix + block)
        return Need(self.width * (self.layer_weights + self.head_weights + batch * kv),
                    2 * rows * self.layer_weights + 2 * logit_rows * self.head_weights + attention)

    def prefill(self, length, block):
        """A block-causal prefill without logits."""
        blocks = length // block
        seen = block * block * blocks * (blocks + 1) / 2
        return Need(self.width * self.layer_weights,
                    2 * blocks * block * self.layer_weights + 4 * self.layers * self.query * seen)

    def mean_prefix(self, context, gen_length, block):
        """Cached positions before a block, averaged over the blocks that a run decodes."""
        starts = range(context // block * block, context + gen_length, block)
        return sum(starts) / len(starts)
