"""Every CUDA operator against float64 on the CPU, on the GPU of this machine.

    python tests/gpu/check_operators.py LIBRARY [--seed N] [--only NAME]

LIBRARY is libblockscope_kernels_cuda.so (libblockscope_kernels.so beside it). Inputs are random, from
a new seed each time unless one is given; memory that operators take for results and workspace is filled
with NaN first, and so is the cache behind every length. Prints the largest error of each operator and
type relative to the limit of kernels/ops.h (1.0 is the limit); exit status 1 if one is above it, 77
without a GPU.
"""

import argparse
import math
import random
import sys

import torch

DEVICE = "cuda"
TYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


class Worst:
    """Largest error / limit of each name."""

    def __init__(self):
        self.ratio = {}

    def add(self, name, got, expected, limit, case):
        got = got.detach().cpu().double()
        same_nan = torch.equal(got.isnan(), expected.isnan())
        same_inf = torch.equal(got.isinf(), expected.isinf()) and torch.equal(
            got[got.isinf()], expected[expected.isinf()])
        finite = expected.isfinite()
        error = (got - expected)[finite].abs().max().item() if finite.any() else 0.0
        ratio = error / limit if same_nan and same_inf else math.inf
        if ratio > 1.0:
            print(f"FAILED {name}: error {error:.3g}, limit {limit:.3g}, NaN as expected: {same_nan}, "
                  f"infinities: {same_inf}; {case}")
        self.ratio[name] = max(self.ratio.get(name, 0.0), ratio)


def poison():
    """Memory that the allocator gives out next holds NaN."""
    blocks = [torch.full((size,), math.nan, device=DEVICE)
              for size in [64, 1 << 12, 1 << 16, 1 << 20, 1 << 24, 1 << 26] for _ in range(3)]
    del blocks


def attention(q, k, v, scale):
    """float64 attention of q [H, T, D] over k, v [K, N, D]: output and lse; 0 and -inf without keys."""
    group = q.shape[0] // k.shape[0]
    k, v = k.repeat_interleave(group, 0), v.repeat_interleave(group, 0)
    scores = q @ k.transpose(1, 2) * scale
    if k.shape[1] == 0:
        return torch.zeros_like(q), torch.full(q.shape[:2], -math.inf, dtype=q.dtype)
    lse = scores.logsumexp(-1)
    return (scores - lse.unsqueeze(-1)).exp() @ v, lse


def merge(parts):
    lses = torch.stack([lse for _, lse in parts])
    lse = lses.logsumexp(0)
    weights = (lses - lse).exp().nan_to_num(0.0)
    return sum(w.unsqueeze(-1) * out for w, (out, _) in zip(weights, parts)), lse


class Case:
    """A random problem; the tensors lie as a cache or a projection would leave them."""

    def __init__(self, rng, dtype):
        self.kv_heads = rng.choice([1, 2, 3, 8])
        self.heads = self.kv_heads * rng.choice([1, 2, 4, 5, 7, 8])
        self.dim = rng.choice([48, 64, 72, 80, 96, 100, 112, 128, 128, 128, 192, 256, 33])
        self.queries = rng.choice([1, 2, 4, 7, 8, 16, 32, 33, 64])
        self.internal = rng.choice([self.queries, self.queries, 0, 5])
        longest = rng.choice([0, 1, 63, 64, 65, 300, 1000, 5000])
        self.lengths = [rng.randint(0, longest) for _ in range(rng.choice([1, 2, 3]))]
        self.lengths[0] = longest
        self.spare = rng.choice([0, 1, 40])
        self.scale = 1.0 / math.sqrt(self.dim)
        self.dtype = dtype
        self.layout = rng.choice(["plain", "tokens", "odd"])
        capacity = longest + self.spare
        count = len(self.lengths)
        self.q = self.tensor(count, self.heads, self.queries) * rng.choice([1.0, 1.0, 8.0])
        self.k_ext = self.tensor(count, self.kv_heads, capacity)
        self.v_ext = self.tensor(count, self.kv_heads, capacity)
        self.k_in = self.tensor(count, self.kv_heads, self.internal)
        self.v_in = self.tensor(count, self.kv_heads, self.internal)
        for s, length in enumerate(self.lengths):
            self.k_ext[s, :, length:] = math.nan
            self.v_ext[s, :, length:] = math.nan
        self.ext_len = torch.tensor(self.lengths)

    def tensor(self, *shape):
        values = torch.randn(*shape, self.dim, device=DEVICE).to(self.dtype)
        if self.layout == "plain":
            return values
        pad = 0 if self.layout == "tokens" else 3
        storage = torch.full((shape[0], shape[2], shape[1], self.dim + pad), math.nan,
                             dtype=self.dtype, device=DEVICE)
        view = storage.transpose(1, 2)[..., pad:]
        view.copy_(values)
        return view

    def __str__(self):
        return (f"H {self.heads} K {self.kv_heads} D {self.dim} T {self.queries} T_in {self.internal} "
                f"lengths {self.lengths} + {self.spare} {self.dtype} {self.layout}")

    def reference(self, s, queries=None, keep=None):
        """External and internal pairs of a sequence; `keep` [K][positions] selects external keys."""
        q, length = self.q[s].cpu().double(), self.lengths[s]
        k, v = (x[s, :, :length].cpu().double() for x in (self.k_ext, self.v_ext))
        k_in, v_in = self.k_in[s].cpu().double(), self.v_in[s].cpu().double()
        return attention(q, k, v, self.scale), attention(q, k_in, v_in, self.scale)


def rounding(dtype):
    return {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}[dtype]


def add_split(worst, name, case, got, external, internal, extra=()):
    """The five results of split_attention and its like, against pairs of each sequence."""
    score = max([1.0] + [lse[lse.isfinite()].abs().max().item()
                         for pairs in (external, internal) for _, lse in pairs
                         if lse.isfinite().any()])
    value = max([1.0] + [x[x.isfinite()].abs().float().max().item()
                         for x in (case.v_ext, case.v_in, *(e[0] for e in external))
                         if x.isfinite().any()])
    stack = lambda pairs, i: torch.stack([pair[i] for pair in pairs])
    merged = [merge([*parts]) for parts in zip(external, internal, *extra)]
    worst.add(f"{name} external", got[1], stack(external, 0), 2e-5 * value * score, case)
    worst.add(f"{name} lse_external", got[2], stack(external, 1), 2e-5 * score, case)
    worst.add(f"{name} internal", got[3], stack(internal, 0), 2e-5 * value * score, case)
    worst.add(f"{name} lse_internal", got[4], stack(internal, 1), 2e-5 * score, case)
    worst.add(f"{name} out", got[0], stack(merged, 0),
              2e-5 * value * score + rounding(case.dtype) * value, case)


def check_split(ops, rng, dtype, worst):
    case = Case(rng, dtype)
    poison()
    got = ops.split_attention(case.q, case.k_ext, case.v_ext, case.ext_len, case.k_in, case.v_in,
                              case.scale)
    pairs = [case.reference(s) for s in range(len(case.lengths))]
    add_split(worst, "split_attention", case, got, [p[0] for p in pairs], [p[1] for p in pairs])


def check_reuse(ops, rng, dtype, worst):
    case = Case(rng, dtype)
    count = len(case.lengths)
    cached = torch.randn(count, case.heads, case.queries, case.dim, device=DEVICE)
    cached_lse = torch.randn(count, case.heads, case.queries, device=DEVICE) * 4.0
    mask = torch.rand(count, case.heads) < rng.choice([0.0, 0.5, 0.9, 1.0])
    pairs = [case.reference(s) for s in range(count)]
    group = case.heads // case.kv_heads
    unread = mask.view(count, case.kv_heads, group).all(-1)
    case.k_ext[unread.to(DEVICE)] = math.nan  # must not be read
    poison()
    got = ops.reuse_attention(case.q, case.k_ext, case.v_ext, case.ext_len, case.k_in, case.v_in,
                              cached, cached_lse, mask, case.scale)
    external = []
    for s, (fresh, _) in enumerate(pairs):
        reused = mask[s].view(-1, 1)
        external.append((torch.where(reused.unsqueeze(-1), cached[s].cpu().double(), fresh[0]),
                         torch.where(reused, cached_lse[s].cpu().double(), fresh[1])))
    add_split(worst, "reuse_attention", case, got, external, [p[1] for p in pairs])
    expected = torch.where(unread, 0, case.ext_len.view(-1, 1)).double()
    worst.add("reuse_attention keys_read", got[5], expected, 0.5, case)


CHECKS = {"split_attention": check_split, "reuse_attention": check_reuse}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("library")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    parser.add_argument("--cases", type=int, default=60, help="of each operator and type")
    parser.add_argument("--only", help="one operator")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("no CUDA device; skipped")
        return 77
    torch.ops.load_library(options.library)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, seed {options.seed}")
    failed = False
    for name, check in CHECKS.items():
        if options.only not in (None, name):
            continue
        for type_name, dtype in TYPES.items():
            worst = Worst()
            for i in range(options.cases):
                seed = options.seed + i
                torch.manual_seed(seed)
                check(torch.ops.blockscope, random.Random(seed), dtype, worst)
            for part, ratio in worst.ratio.items():
                print(f"{part:40s} {type_name:9s} {ratio:8.4f} of the limit, {options.cases} cases")
                failed = failed or ratio > 1.0
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
