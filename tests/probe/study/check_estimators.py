"""`study estimators` and `study union` against numpy: every set, share and error computed again in
float64 from the queries, keys and values of a full trace of the same run. The rules are those of the
papers (MAGE, eqs. 1-3; Quest, section 3.3), not of the code. Usage: BLOCKSCOPE_BINARY=... MODEL"""

import csv
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import h5py
import numpy as np

SIZES, PAGES, BLOCK = (8, 16, 32), (16, 4), 16
METHODS = ("oracle", "mage", "mage+flashblock", "sparsed", "recent")


def blockscope(*arguments):
    subprocess.run([os.environ["BLOCKSCOPE_BINARY"], *map(str, arguments)], check=True,
                   stdout=subprocess.DEVNULL)


class Trace:
    """The denoising rows of a full trace, with what each layer saw."""

    def __init__(self, path):
        self.file = h5py.File(path)
        self.sequence = self.file["/steps/sequence"][:]
        self.rows = np.flatnonzero(self.file["/steps/kind"][:] == 1)
        self.step = self.file["/steps/step"][:]
        self.block = self.file["/steps/block"][:]
        self.layers = self.file["/query/query"].shape[1]

    def prefix(self, name, row, layer):
        end = int(self.file["/prefix/end"][row - 1]) if row else 0
        mine = self.file["/prefix/sequence"][:end] == self.sequence[row]
        order = np.argsort(self.file["/prefix/position"][:end][mine])
        return self.file["/prefix/" + name][:end, layer][mine][order].transpose(1, 0, 2).astype(float)


def merged(parts):
    """Attention over disjoint keys, each (output, lse); -inf: no keys."""
    top = np.max([lse for _, lse in parts], axis=0)
    weights = [np.exp(lse - top) for _, lse in parts]
    total = sum(weights)
    return sum(w[..., None] * out for w, (out, _) in zip(weights, parts)) / total[..., None]


def attention(q, k, v):
    """(output, lse) of q [H, B, D] over k, v [K, n, D]."""
    group = q.shape[0] // k.shape[0]
    scores = np.einsum("hbd,hnd->hbn", q, np.repeat(k, group, 0)) / np.sqrt(q.shape[-1])
    if scores.shape[-1] == 0:
        return np.zeros_like(q), np.full(q.shape[:2], -np.inf)
    top = scores.max(-1, keepdims=True)
    weights = np.exp(scores - top)
    total = weights.sum(-1, keepdims=True)
    out = np.einsum("hbn,hnd->hbd", weights / total, np.repeat(v, group, 0))
    return out, (top + np.log(total))[..., 0]


def restricted(q, k, v, sets):
    """attention() where KV head h sees sets[h] alone."""
    group = q.shape[0] // k.shape[0]
    parts = [attention(q[h * group:(h + 1) * group], k[h:h + 1, keys], v[h:h + 1, keys])
             for h, keys in enumerate(sets)]
    return np.concatenate([out for out, _ in parts]), np.concatenate([lse for _, lse in parts])


def best(scores, count):
    return np.argsort(-scores, kind="stable")[:count]


def page_keys(pages, page, length):
    return np.concatenate([np.arange(p * page, min((p + 1) * page, length)) for p in pages])


def bounds(k, page):
    """Largest and least key of every page, [K, P, D] each."""
    cuts = np.arange(0, k.shape[1], page)
    return np.maximum.reduceat(k, cuts, axis=1), np.minimum.reduceat(k, cuts, axis=1)


class Means:
    def __init__(self):
        self.sums = {}

    def add(self, key, values):
        total = self.sums.setdefault(key, [0.0, 0])
        total[0] += float(np.sum(values))
        total[1] += np.size(values)

    def mean(self, key):
        return self.sums[key][0] / self.sums[key][1]


def quest_sets(query, k, page, size):
    """Quest's keys of each head for the block, and for each token. `query`: [heads, group, BLOCK, dim]."""
    high, low = bounds(k, page)
    upper = np.maximum(query[:, :, :, None] * high[:, None, None], query[:, :, :, None] * low[:, None, None]).sum(-1)
    keys = lambda scores: page_keys(best(scores, -(-size // page)), page, k.shape[1])
    return ([keys(scores) for scores in upper.mean((1, 2))],
            [[set(keys(scores)) for scores in tokens] for tokens in upper.mean(1)])


def add_set(means, at, chosen, exact_token, exact_block):
    """How much of the exact sets a method's set of each head holds."""
    size = at[1]
    for head, keys in enumerate(chosen):
        means.add((*at, "recall"), len(set(keys) & set(exact_block[head])) / size)
        for wanted in exact_token[head]:
            means.add((*at, "est_acc"), len(wanted & set(keys)) / size)


def measure(trace):
    means, unions = Means(), {k: [] for k in SIZES}
    first, residual, run_set = {}, {}, {}
    for row in trace.rows:
        step, key = int(trace.step[row]), (int(trace.sequence[row]), int(trace.block[row]))
        # SparseD's step: int(0.2 T) + 1 counted from 0 (its release), T as planned: a first block
        # with prompt tokens in it takes fewer.
        own = trace.rows[trace.sequence[trace.rows] == trace.sequence[row]]
        run_step = int(np.searchsorted(own, row))
        capture = int(0.2 * BLOCK * len(set(trace.block[own]))) + 1
        for layer in range(trace.layers):
            q = trace.file["/query/query"][row, layer].astype(float)
            k, v = trace.prefix("key", row, layer), trace.prefix("value", row, layer)
            inner = attention(q, *(trace.file["/kv/" + n][row, layer].astype(float)
                                   for n in ("key", "value")))
            heads, group, length = k.shape[0], q.shape[0] // k.shape[0], k.shape[1]
            outer = attention(q, k, v)
            exact = merged([outer, inner])
            scores = np.einsum("hbd,hnd->hbn", q, np.repeat(k, group, 0)) / np.sqrt(q.shape[-1])
            weights = np.exp(scores - outer[1][..., None]).reshape(heads, group, BLOCK, length)
            tokens, block = weights.mean(1), weights.mean((1, 2))
            for size in SIZES:
                assert length > size
                exact_token = [[set(best(t, size)) for t in head] for head in tokens]
                exact_block = [best(head, size) for head in block]
                sets = {"oracle": exact_block, "recent": [np.arange(length - size, length)] * heads}
                if step == 1:
                    first[key, layer, size] = exact_block
                    rest = [np.setdiff1d(np.arange(length), keys) for keys in exact_block]
                    residual[key, layer, size] = restricted(q, k, v, rest)
                    unions[size] += [len(set().union(*head)) for head in exact_token]
                else:
                    sets["mage"] = sets["mage+flashblock"] = first[key, layer, size]
                if run_step == capture:
                    run_set[key[0], layer, size] = exact_block
                elif run_step > capture:
                    sets["sparsed"] = run_set[key[0], layer, size]
                for page in PAGES:
                    sets[f"quest p={page}"], per_token = quest_sets(q.reshape(heads, group, BLOCK, -1), k, page, size)
                    for head, tokens_of_head in enumerate(per_token):
                        for t, keys in enumerate(tokens_of_head):
                            means.add((f"quest per token p={page}", size, step > 1, "est_acc"),
                                      len(keys & exact_token[head][t]) / size)
                for name, chosen in sets.items():
                    add_set(means, (name, size, step > 1), chosen, exact_token, exact_block)
                    part = restricted(q, k, v, chosen)
                    means.add((name, size, step > 1, "covered"), np.exp(part[1] - outer[1]))
                    parts = [part, inner]
                    if name == "mage+flashblock":
                        parts.append(residual[key, layer, size])
                    error = merged(parts) - exact
                    for quantity, values in (("l1", np.abs(error)), ("squared", error**2), ("reference", exact**2)):
                        means.add((name, size, step > 1, quantity), values)
    return means, unions


def main() -> None:
    model = pathlib.Path(sys.argv[1])
    random = np.random.default_rng(5)
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        prompts = root / "prompts.jsonl"
        prompts.write_text("".join(
            json.dumps({"id": f"p{n}", "input_ids": random.integers(0, 900, n).tolist()}) + "\n"
            for n in (90, 133)))
        common = [model, "--prompts", prompts, "--gen-length", 32, "--no-stop", "--dtype", "float32",
                  "-q"]
        blockscope("capture", *common, "--record", "full", "--array-type", "f32", "-o", root / "x.h5")
        study = [*common, "--k", ",".join(map(str, SIZES)), "--pages", ",".join(map(str, PAGES)),
                 "--no-figures"]
        blockscope("study", "estimators", *study, "-o", root)
        blockscope("study", "union", *study, "-o", root)
        means, unions = measure(Trace(root / "x.h5"))
        compared = 0
        for line in csv.DictReader((root / "estimators.csv").open()):
            if (line["layer"], line["step"]) != ("all", "2-") or line["method"] == "random":
                continue
            at = (line["method"], int(line["k"]), True)
            want = {q: means.mean((*at, q)) for q in ("est_acc", "recall", "covered", "l1")
                    if (*at, q) in means.sums}
            if (*at, "squared") in means.sums:
                want["relative_l2"] = np.sqrt(means.mean((*at, "squared")) / means.mean((*at, "reference")))
            for name, value in want.items():
                got = float(line[name])
                # Sets of float32 probabilities differ where two keys tie to seven digits.
                assert abs(got - value) <= 2e-3 * max(1.0, abs(value)), (line["method"], at, name, got, value)
                compared += 1
            assert int(line["tokens"]) == means.sums[(*at, "est_acc")][1], line
        assert compared == len(SIZES) * (5 * (len(METHODS) + len(PAGES)) + len(PAGES)), compared
        for line in csv.DictReader((root / "union.csv").open()):
            if line["quantity"] == "union":
                size = int(line["k"])
                values = np.sort(unions[size]) / size
                want = {"mean": values.mean(), "median": values[int(0.5 * (len(values) - 1))],
                        "95 %": values[int(0.95 * (len(values) - 1))], "largest": values[-1]}
                assert abs(float(line["value"]) - want[line["of"]]) <= 2e-2, (line, want)
                assert int(line["n"]) == len(values), line
            else:
                name = {"token": "quest per token p={}", "block": "quest p={}"}[line["of"]]
                want = means.mean((name.format(line["page"]), int(line["k"]), False, "est_acc"))
                assert abs(float(line["value"]) - want) <= 2e-3, (line, want)
    print(f"{compared} means agree with numpy")


if __name__ == "__main__":
    main()
