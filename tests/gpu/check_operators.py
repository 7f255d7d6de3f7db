"""Every CUDA operator against float64 on the CPU, on the GPU of this machine.

    python tests/gpu/check_operators.py LIBRARY [--seed N] [--only NAME]

LIBRARY is libblockscope_kernels_cuda.so (libblockscope_kernels.so in the same folder). Inputs are random, from
a new seed each time unless one is given; memory that operators take for results and workspace is filled
with NaN first, and so is the cache after every length. Prints the largest error of each operator and
type relative to the limit of kernels/ops.h (1.0 is the limit); exit status 1 if one is above it, 77
without a GPU.
"""

import argparse
import math
import os
import pathlib
import random
import sys

import torch

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support"))
import attention_math as am  # noqa: E402

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


class Case:
    """A random problem; the tensors have the layout of a cache or a projection."""

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
        return am.attend(q, k, v, self.scale), am.attend(q, k_in, v_in, self.scale)


def rounding(dtype):
    return {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}[dtype]


def add_split(worst, name, case, got, external, internal, extra=(), library=False):
    """The five results of split_attention and its like, against pairs of each sequence.

    library: A_out may have 16 bits."""
    score = max([1.0] + [lse[lse.isfinite()].abs().max().item()
                         for pairs in (external, internal) for _, lse in pairs
                         if lse.isfinite().any()])
    value = max([1.0] + [x[x.isfinite()].abs().float().max().item()
                         for x in (case.v_ext, case.v_in, *(pair[0] for pairs in (external, *extra) for pair in pairs))
                         if x.isfinite().any()])
    stack = lambda pairs, i: torch.stack([pair[i] for pair in pairs])
    merged = [am.merge(parts) for parts in zip(external, internal, *extra)]
    rounded = rounding(case.dtype) * value
    worst.add(f"{name} external", got[1], stack(external, 0), 2e-5 * value * score + rounded * library, case)
    worst.add(f"{name} lse_external", got[2], stack(external, 1), 2e-5 * score, case)
    worst.add(f"{name} internal", got[3], stack(internal, 0), 2e-5 * value * score, case)
    worst.add(f"{name} lse_internal", got[4], stack(internal, 1), 2e-5 * score, case)
    worst.add(f"{name} out", got[0], stack(merged, 0),
              2e-5 * value * score + rounded * (1 + library), case)


def through(name, call):
    """The result with our kernels alone (own), or with the library wherever it can (library)."""
    os.environ["BLOCKSCOPE_SPLIT"] = name
    result = call()
    del os.environ["BLOCKSCOPE_SPLIT"]
    return result


def check_split(ops, rng, dtype, worst):
    case = Case(rng, dtype)
    poison()
    split = lambda: ops.split_attention(case.q, case.k_ext, case.v_ext, case.ext_len, case.k_in, case.v_in,
                                        case.scale)
    pairs = [case.reference(s) for s in range(len(case.lengths))]
    parts = [p[0] for p in pairs], [p[1] for p in pairs]
    add_split(worst, "split_attention", case, through("own", split), *parts)
    add_split(worst, "split_attention by the library", case, through("library", split), *parts,
              library=case.dtype != torch.float32)


def check_reuse(ops, rng, dtype, worst):
    case = Case(rng, dtype)
    count = len(case.lengths)
    cached = torch.randn(count, case.heads, case.queries, case.dim, device=DEVICE)
    cached_lse = torch.randn(count, case.heads, case.queries, device=DEVICE) * 4.0
    mask = torch.rand(rng.choice([1, count]), case.heads) < rng.choice([0.0, 0.5, 0.9, 1.0])
    mask = mask.expand(count, case.heads)  # of all sequences: the library can read the prefix
    rows = torch.rand(count, case.queries) < rng.choice([0.0, 0.1, 0.5, 1.0])
    refresh = rng.choice([None, rows])
    taken = mask.unsqueeze(-1).expand(count, case.heads, case.queries)
    if refresh is not None:
        taken = taken & ~rows.unsqueeze(1)
    pairs = [case.reference(s) for s in range(count)]
    group = case.heads // case.kv_heads
    unread = taken.reshape(count, case.kv_heads, group * case.queries).all(-1)
    case.k_ext[unread.to(DEVICE)] = math.nan  # must not be read
    poison()
    reuse = lambda: ops.reuse_attention(case.q, case.k_ext, case.v_ext, case.ext_len, case.k_in, case.v_in,
                                        cached, cached_lse, mask, case.scale, refresh)
    got, joined = through("own", reuse), through("library", reuse)
    external = []
    for s, (fresh, _) in enumerate(pairs):
        reused = taken[s]
        external.append((torch.where(reused.unsqueeze(-1), cached[s].cpu().double(), fresh[0]),
                         torch.where(reused, cached_lse[s].cpu().double(), fresh[1])))
    internal = [p[1] for p in pairs]
    add_split(worst, "reuse_attention", case, got, external, internal)
    add_split(worst, "reuse_attention by the library", case, joined, external, internal,
              library=case.dtype != torch.float32)
    expected = torch.where(unread, 0, case.ext_len.view(-1, 1)).double()
    for result in (got, joined):
        worst.add("reuse_attention keys_read", result[5], expected, 0.5, case)


def random_sets(rng, case):
    """[S, K, k] positions in random order, -1 where a prefix is shorter; and which keys they are."""
    k = rng.choice([1, 7, 64, 300, 2000])
    index = torch.full((len(case.lengths), case.kv_heads, k), -1, dtype=torch.int32)
    chosen = torch.zeros(len(case.lengths), case.kv_heads, case.k_ext.shape[2], dtype=torch.bool)
    for s, length in enumerate(case.lengths):
        for h in range(case.kv_heads):
            some = torch.randperm(length)[:k]
            index[s, h, :len(some)] = some.int()
            chosen[s, h, some] = True
    return index.to(DEVICE), chosen


def set_reference(case, s, keep):
    """Attention of a sequence over the external keys in keep [K, N]."""
    q, k, v = (x[s].cpu().double().nan_to_num(0.0) for x in (case.q, case.k_ext, case.v_ext))
    return am.attend(q, k, v, case.scale, keep[:, None, None])


def prefix_of(case):
    return torch.arange(case.k_ext.shape[2]).view(1, 1, -1) < case.ext_len.view(-1, 1, 1)


def check_gather(ops, rng, dtype, worst):
    case = Case(rng, dtype)
    count = len(case.lengths)
    index, chosen = random_sets(rng, case)
    dense = torch.rand(count) < rng.choice([0.0, 0.3])
    keep = torch.where(dense.view(-1, 1, 1), prefix_of(case), chosen)
    external = [set_reference(case, s, keep[s]) for s in range(count)]
    internal = [case.reference(s)[1] for s in range(count)]
    case.k_ext[~keep.to(DEVICE)] = math.nan  # must not be read
    case.v_ext[~keep.to(DEVICE)] = math.nan
    residual = torch.randn(count, case.heads, case.queries, case.dim, device=DEVICE)
    lse = torch.randn(count, case.heads, case.queries, device=DEVICE)
    lse[torch.rand(lse.shape, device=DEVICE) < 0.2] = -math.inf
    given = rng.random() < 0.5
    extra = [[(residual[s].cpu().double(), lse[s].cpu().double()) for s in range(count)]]
    poison()
    got = ops.gather_attention(case.q, case.k_ext, case.v_ext, case.ext_len, index, case.k_in,
                               case.v_in, case.scale, dense, residual if given else None,
                               lse if given else None)
    add_split(worst, "gather_attention", case, got, external, internal, extra if given else ())
    worst.add("gather_attention keys_read", got[5], keep.sum(-1).double(), 0.5, case)


def check_unselected(ops, rng, dtype, worst):
    case = Case(rng, dtype)
    index, chosen = random_sets(rng, case)
    keep = prefix_of(case) & ~chosen
    pairs = [set_reference(case, s, keep[s]) for s in range(len(case.lengths))]
    case.k_ext[~keep.to(DEVICE)] = math.nan
    case.v_ext[~keep.to(DEVICE)] = math.nan
    poison()
    got = ops.unselected_attention(case.q, case.k_ext, case.v_ext, case.ext_len, index, case.scale)
    output, lse = (torch.stack([p[i] for p in pairs]) for i in range(2))
    score = max(1.0, lse[lse.isfinite()].abs().max().item() if lse.isfinite().any() else 1.0)
    worst.add("unselected_attention output", got[0], output, 2e-5 * 6.0 * score, case)
    worst.add("unselected_attention lse", got[1], lse, 2e-5 * score, case)


def check_merge(ops, rng, dtype, worst):
    rows, dim = rng.choice([1, 5, 300]), rng.choice([1, 48, 128, 300])
    parts = rng.choice([1, 2, 3, 17, 64])
    outputs = [torch.randn(rows, dim, device=DEVICE).to(dtype) for _ in range(parts)]
    lses = [torch.randn(rows, device=DEVICE) * 5.0 for _ in range(parts)]
    for lse in lses:
        lse[torch.rand(rows, device=DEVICE) < 0.3] = -math.inf
    for output, lse in zip(outputs, lses):
        output[lse.isinf()] = math.nan  # must not be read
    pairs = [(o.cpu().double().nan_to_num(0.0), l.cpu().double()) for o, l in zip(outputs, lses)]
    out, lse = am.merge(pairs)
    poison()
    got = ops.merge_attention(outputs, lses)
    worst.add("merge_attention out", got[0], out, 2e-5 + 5.0 * rounding(dtype), f"{rows} x {dim}, {parts}")
    worst.add("merge_attention lse", got[1], lse, 2e-5 * 20.0, f"{rows} x {dim}, {parts}")


def check_set(worst, name, index, probability, expected, case):
    """One set [k] against probabilities [length]: positions by their probability, ties to the lower."""
    index, probability = index.cpu().long(), probability.cpu().double()
    count = min(len(index), len(expected))
    best = expected.sort(descending=True).values[:count]
    wrong = (index[count:] != -1).any() or (probability[count:] != 0).any() or (
        index[:count].unique().numel() != count) or (count and index[:count].min() < 0)
    same = probability[1:count] == probability[:max(count - 1, 0)]
    falling = (probability[1:count] <= probability[:max(count - 1, 0)]).all()
    ordered = (index[1:count][same] > index[:max(count - 1, 0)][same]).all()
    if wrong or not falling or not ordered:
        return worst.add(name, torch.tensor([math.nan]), torch.zeros(1).double(), 1.0, case)
    if count:
        at = expected[index[:count]]
        # Scores of 16 take 2e-5 of the exponential's argument.
        worst.add(name, probability[:count] / at.clamp_min(1e-30), torch.ones(count).double(), 3e-4, case)
        worst.add(f"{name} rank", at / best.clamp_min(1e-30), torch.ones(count).double(), 3e-4, case)


def check_topk(ops, rng, dtype, worst):
    case = Case(rng, dtype)
    k = rng.choice([1, 7, 64, 300, 2000])
    count = len(case.lengths)
    probabilities, lses = [], []
    for s, length in enumerate(case.lengths):
        keys = case.k_ext[s, :, :length].cpu().double()
        scores = am.scores_of(case.q[s].cpu().double().clamp(-4, 4), keys, case.scale)
        lses.append(am.attention(scores, keys)[1])
        probabilities.append([am.mean_probability(scores, lses[-1], case.kv_heads, per_token)
                              for per_token in (False, True)])
    case.q.clamp_(-4, 4)
    lse = torch.stack(lses).float().to(DEVICE)
    poison()
    block = ops.block_topk(case.q, case.k_ext, case.ext_len, lse, k, case.scale)
    token = ops.token_topk(case.q, case.k_ext, case.ext_len, lse, k, case.scale)
    for s in range(count):
        for h in range(case.kv_heads):
            check_set(worst, "block_topk", block[0][s, h], block[1][s, h],
                      probabilities[s][0][h], case)
            for t in {0, case.queries - 1}:
                check_set(worst, "token_topk", token[0][s, h, t], token[1][s, h, t],
                          probabilities[s][1][h, t], case)
            distinct = token[0][s, h].unique()
            worst.add("token_topk union", token[2][s, h], (distinct >= 0).sum().cpu().double(), 0.5, case)


def check_pages(ops, rng, dtype, worst):
    case = Case(rng, dtype)
    page = rng.choice([1, 16, 50, 64])
    pages = -(-case.k_ext.shape[2] // page)
    shape = (len(case.lengths), case.kv_heads, pages, case.dim)
    top, bottom = torch.zeros(shape).double(), torch.zeros(shape).double()
    tokens = torch.full((shape[0], shape[1], case.queries, pages), -math.inf).double()
    poison()
    got = ops.page_bounds(case.k_ext, case.ext_len, page)
    for s, length in enumerate(case.lengths):
        there = -(-length // page)
        bounds = am.page_bounds(case.k_ext[s, :, :length].cpu().double(), page)
        top[s, :, :there], bottom[s, :, :there] = bounds
        tokens[s, :, :, :there] = am.page_scores(case.q[s].cpu().double(), bounds)
    worst.add("page_bounds", torch.stack(got), torch.stack([top, bottom]), 1e-30, case)
    score = max(1.0, tokens[tokens.isfinite()].abs().max().item() if tokens.isfinite().any() else 1.0)
    poison()
    worst.add("page_scores", ops.page_scores(case.q, *got, case.ext_len, page), tokens.mean(2),
              2e-5 * score, case)
    worst.add("token_page_scores", ops.token_page_scores(case.q, *got, case.ext_len, page), tokens,
              2e-5 * score, case)


def check_prefill(ops, rng, dtype, worst):
    case = Case(rng, dtype)
    block = rng.choice([1, 4, 8, 32, 1000])
    start = rng.choice([0, 0, block, max(0, max(case.lengths) - case.queries)])
    poison()
    got = ops.prefill_attention(case.q, case.k_ext, case.v_ext, case.ext_len, block, case.scale, start)
    expected = torch.zeros(case.q.shape).double()
    score = 1.0
    for s, length in enumerate(case.lengths):
        k, v = (x[s, :, :length].cpu().double() for x in (case.k_ext, case.v_ext))
        for t in range(case.queries):
            end = min(length, ((start + t) // block + 1) * block)
            out, lse = am.attend(case.q[s, :, t:t + 1].cpu().double(), k[:, :end], v[:, :end], case.scale)
            expected[s, :, t:t + 1] = out
            score = max(score, lse.abs().max().item() if lse.isfinite().all() else 1.0)
    worst.add("prefill_attention", got, expected, (2e-5 * score + rounding(dtype)) * 6.0, case)


def check_similarity(ops, rng, dtype, worst):
    rows, dim = rng.choice([1, 5, 300]), rng.choice([1, 7, 48, 128, 300])
    a = torch.randn(rows, dim, device=DEVICE).to(dtype)
    b = (a.float() + torch.randn(rows, dim, device=DEVICE) * rng.choice([0.1, 3.0])).to(dtype)
    b[0] = 0.0
    x, y = a.cpu().double(), b.cpu().double()
    norms = x.norm(dim=-1) * y.norm(dim=-1)
    expected = torch.where(norms > 0, (x * y).sum(-1) / norms, 0.0)
    poison()
    worst.add("cross_step_similarity", ops.cross_step_similarity(a, b), expected, 1e-6, f"{rows} x {dim}")


def check_statistics(ops, rng, dtype, worst):
    """What a recorder compares at a step; its inputs are float32 in every run, queries have the type."""
    heads, block, dim = rng.choice([1, 4, 32]), rng.choice([3, 16, 33]), rng.choice([16, 100, 128])
    pair = lambda: (torch.randn(2, heads, block, dim, device=DEVICE), torch.randn(2, heads, block, device=DEVICE))
    external, internal, last, older = pair(), pair(), pair(), pair()
    external[1][1, 0, 1] = -math.inf
    for side in (external, internal):
        for values in side:
            values[1, :, -1] = math.nan  # a row that the pass did not compute
    kinds = torch.randint(0, 3, (block,), dtype=torch.uint8)
    x, first = (torch.randn(2, heads, block, dim, device=DEVICE).to(dtype) for _ in range(2))
    case = f"{heads} heads, B {block}, D {dim}, {dtype}"
    poison()
    mass, similar_external, similar_internal, errors, kept = ops.step_statistics(
        *external, *internal, last[0], older[0], [last[0], older[0]], [last[1], older[1]],
        [kinds, torch.empty(0, dtype=torch.uint8)], 1)
    gap, block_gap = ops.step_gaps(x, first, 1)

    def add(name, got, expected):
        worst.add(name, got, expected, 2e-5 * max(1.0, expected[expected.isfinite()].abs().max().item()), case)

    sides = {name: tuple(values[1].cpu().double() for values in side)
             for name, side in {"out": external, "in": internal, "last": last, "older": older}.items()}
    share = lambda name: torch.sigmoid(sides[name][1] - sides["in"][1])
    merge = lambda name: sides["in"][0] + share(name).unsqueeze(-1) * (sides[name][0] - sides["in"][0])
    cosine = lambda a, b: torch.nn.functional.cosine_similarity(sides[a][0], sides[b][0], dim=-1, eps=1e-12)
    add("step_statistics mass", mass, share("out").nanmean(-1))
    add("step_statistics external", similar_external, cosine("out", "last").nanmean(-1))
    add("step_statistics internal", similar_internal, cosine("in", "older").nanmean(-1))
    ref = merge("out")
    for t, name in enumerate(("last", "older")):
        got, error = merge(name), merge(name) - ref
        there = ~error.isnan().any(-1)
        sums = lambda values, rows: torch.where(rows.unsqueeze(-1), values, 0.0).sum((-1, -2))
        add("step_statistics errors", errors[t],
            torch.stack([sums(v, there) for v in (error**2, error.abs(), ref**2, ref * got)], -1))
        change = (sides[name][1] - sides["out"][1]).abs()
        if t == 1:
            continue
        for kind in range(3):
            rows = there & change.isfinite() & (kinds == kind)
            one = lambda values: torch.where(rows, values, 0.0).sum(-1)
            add("step_statistics kept", kept[t, :, kind],
                torch.stack([one(torch.ones_like(change)), one(cosine(name, "out")), one(change),
                             sums(error**2, rows), sums(ref**2, rows)], -1))
    unit = lambda rows: torch.nn.functional.normalize(rows[1].cpu().double(), dim=-1)
    difference = unit(x) - unit(first)
    add("step_gaps", gap, difference.norm(dim=-1).mean(-1))
    add("step_gaps of the block", block_gap, difference.mean(1).norm(dim=-1))


def check_rows(ops, rng, dtype, worst):
    width = rng.choice([5, 64, 768, 1024, 1100, 2560, 4096])
    shape = (rng.choice([1, 3]), rng.choice([1, 7, 32]), width)
    eps, first = rng.choice([1e-5, 1e-6]), rng.random() < 0.5
    x, y, up = (torch.randn(*shape, device=DEVICE).to(dtype) for _ in range(3))
    weight = torch.randn(width, device=DEVICE).to(dtype)
    poison()
    got = [ops.rms_norm_rows(x, weight, eps, first), *ops.add_rms_norm_rows(x, y, weight, eps, first),
           ops.silu_multiply(x, up)]

    def norm(rows):
        rows = rows.cpu().double()
        return rows * torch.rsqrt((rows**2).mean(-1, keepdim=True) + eps) * weight.cpu().double()

    gate = x.cpu().double()
    expected = [norm(x), (x + y).cpu().double(), norm(x + y), torch.nn.functional.silu(gate) * up.cpu().double()]
    for name, a, b in zip(["rms_norm_rows", "add_rms_norm_rows sum", "add_rms_norm_rows norm", "silu_multiply"], got, expected):
        # Two roundings: before the weight, and after it.
        worst.add(name, a, b, (2e-6 + 2 * rounding(dtype)) * max(1.0, b.abs().max().item()), f"{shape} {dtype}")


def check_rotation(ops, rng, dtype, worst):
    dim = rng.choice([48, 64, 80, 128, 128, 256])
    turning = rng.choice([dim, dim, dim // 2])
    count, tokens, heads, kv_heads = rng.choice([1, 3]), rng.choice([1, 32, 100]), rng.choice([8, 14]), rng.choice([1, 2])
    joint = torch.randn(count, tokens, heads + kv_heads, dim, device=DEVICE).to(dtype).transpose(1, 2)
    q, k = joint[:, :heads], joint[:, heads:]  # as one product leaves them
    weights = [torch.randn(dim, device=DEVICE).to(dtype) if rng.random() < 0.7 else None for _ in range(2)]
    angle = torch.randn(rng.choice([1, count]), 1, tokens, turning, device=DEVICE)
    table = rng.choice([torch.float32, dtype])
    cos, sin = angle.cos().to(table), angle.sin().to(table)
    poison()
    got = ops.norm_rotate_rows(q, k, *weights, cos, sin, 1e-6, False)
    for name, x, weight, out in zip("qk", (q, k), weights, got):
        x = x.cpu().double()
        if weight is not None:
            x = x * torch.rsqrt((x**2).mean(-1, keepdim=True) + 1e-6) * weight.cpu().double()
        low, high = x[..., :turning // 2], x[..., turning // 2:turning]
        turned = x[..., :turning] * cos.cpu().double() + torch.cat([-high, low], -1) * sin.cpu().double()
        expected = torch.cat([turned, x[..., turning:]], -1)
        # Roundings of the norm (2), of both products and of their sum.
        limit = (4e-6 + 5 * rounding(dtype)) * max(1.0, expected.abs().max().item())
        worst.add(f"norm_rotate_rows {name}", out, expected, limit, f"{tuple(x.shape)} {turning} {dtype} {table}")


CHECKS = {
    "rows": check_rows, "rotation": check_rotation,
    "split_attention": check_split, "reuse_attention": check_reuse, "gather_attention": check_gather,
    "unselected_attention": check_unselected, "merge_attention": check_merge, "topk": check_topk,
    "pages": check_pages, "prefill_attention": check_prefill, "cross_step_similarity": check_similarity,
    "statistics": check_statistics}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("library")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    parser.add_argument("--cases", type=int, default=60, help="of each operator and type")
    parser.add_argument("--only", help="one of: " + ", ".join(CHECKS))
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
