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

import attention_math as am
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


class Means:
    def __init__(self):
        self.sums = {}

    def add(self, key, values):
        total = self.sums.setdefault(key, [0.0, 0])
        total[0] += float(np.sum(values))
        total[1] += np.size(values)

    def mean(self, key):
        return self.sums[key][0] / self.sums[key][1]


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
            heads, length, scale = k.shape[0], k.shape[1], q.shape[-1] ** -0.5
            inner = am.attend(q, *(trace.file["/kv/" + n][row, layer].astype(float)
                                   for n in ("key", "value")), scale)
            scores = am.scores_of(q, k, scale)
            outer = am.attention(scores, v)
            exact = am.merge([outer, inner])[0]
            tokens, block = (am.mean_probability(scores, outer[1], heads, per_token) for per_token in (True, False))
            restricted = lambda sets: am.attention(scores, v, am.members(sets, length)[:, None, None])
            for size in SIZES:
                assert length > size
                exact_token = [[set(t) for t in head] for head in am.best(tokens, size)]
                exact_block = am.best(block, size)
                sets = {"oracle": exact_block, "recent": [np.arange(length - size, length)] * heads}
                if step == 1:
                    first[key, layer, size] = exact_block
                    rest = [np.setdiff1d(np.arange(length), keys) for keys in exact_block]
                    residual[key, layer, size] = restricted(rest)
                    unions[size] += [len(set().union(*head)) for head in exact_token]
                else:
                    sets["mage"] = sets["mage+flashblock"] = first[key, layer, size]
                if run_step == capture:
                    run_set[key[0], layer, size] = exact_block
                elif run_step > capture:
                    sets["sparsed"] = run_set[key[0], layer, size]
                for page in PAGES:
                    upper = am.page_scores(q, am.page_bounds(k, page))
                    taken = -(-size // page)
                    sets[f"quest p={page}"] = [am.page_keys(s, page, length) for s in am.best(upper.mean(1), taken)]
                    for head, per_token in enumerate(am.best(upper, taken)):
                        for t, s in enumerate(per_token):
                            keys = set(am.page_keys(s, page, length))
                            means.add((f"quest per token p={page}", size, step > 1, "est_acc"),
                                      len(keys & exact_token[head][t]) / size)
                for name, chosen in sets.items():
                    at = (name, size, step > 1)
                    for head, keys in enumerate(chosen):
                        means.add((*at, "recall"), len(set(keys) & set(exact_block[head])) / size)
                        for wanted in exact_token[head]:
                            means.add((*at, "est_acc"), len(wanted & set(keys)) / size)
                    part = restricted(chosen)
                    means.add((*at, "covered"), np.exp(part[1] - outer[1]))
                    parts = [part, inner]
                    if name == "mage+flashblock":
                        parts.append(residual[key, layer, size])
                    error = am.merge(parts)[0] - exact
                    means.add((*at, "l1"), np.abs(error))
                    means.add((*at, "squared"), error**2)
                    means.add((*at, "reference"), exact**2)
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
