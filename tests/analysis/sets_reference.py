"""Recall, union size, EstAcc, query statistics and decoding statistics straight from their
definitions with h5py and numpy, following docs/trace_format.md only. Slow and plain on purpose:
the reference for analysis/{recall,union_size,estimation_accuracy,query_statistics,decoding_totals}."""

import collections
import json
import math
import pathlib
import sys

import h5py
import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support"))
from trace_arrays import stored_path

DENOISE, COMMIT = 1, 2
ENDED = (1, 2, 3)  # finish reasons: length, stop, replayed


class Means:
    """Weighted means by cell; values that are not finite are counted and left out."""

    def __init__(self):
        self.sums = collections.defaultdict(float)
        self.terms = collections.Counter()
        self.non_finite = 0

    def add(self, cell, value, terms=1):
        if not math.isfinite(value):
            self.non_finite += 1
            return
        self.sums[cell] += float(value) * terms
        self.terms[cell] += terms

    def mean(self, cell):
        return self.sums[cell] / self.terms[cell] if self.terms[cell] else math.nan

    def over(self, keep):
        """Means over all cells that agree in `keep`, a function of the cell."""
        merged = Means()
        for cell, terms in self.terms.items():
            merged.sums[keep(cell)] += self.sums[cell]
            merged.terms[keep(cell)] += terms
        return merged


class Trace:
    def __init__(self, path):
        self.path = path
        self.file = h5py.File(path, "r", swmr=path.endswith(".partial"))
        self.rows = int(self.file["/steps/committed"][0])
        self.step = {name: self.file["/steps/" + name][: self.rows] for name in self.file["steps"]
                     if name != "committed"}
        self.step["changed"] = self.file[stored_path(self.file, "/steps/changed")][: self.rows]
        sequences = int(self.file["/sequences/committed"][0])
        self.aborted = self.file["/sequences/aborted"][:sequences]
        self.finish = self.file["/sequences/finish_reason"][:sequences]
        self.score = self.file["/sequences/score"][:sequences]
        self.prompt_length = self.file["/sequences/prompt_length"][:sequences]
        self.run = json.loads(self.file["/run/json"][:].tobytes())
        self.k = int(self.file.attrs["set_size"])
        self.block_length = int(self.file.attrs["block_length"])
        self.layers = self.axis("layer")
        self.heads = self.axis("head")
        self.kv_heads = self.axis("kv_head")

    def axis(self, name):
        return [int(i) for i in self.file["/" + name][:]]

    def has(self, path):
        return path in self.file

    def at(self, path, row, layer=None):
        """Values of one row, of one layer slot if given, as float64 or int64."""
        values = self.file[path][row] if layer is None else self.file[path][row, layer]
        values = np.asarray(values)
        return values.astype(np.float64 if values.dtype.kind not in "iu" else np.int64)

    def blocks(self):
        """Denoising rows by (sequence, block), ascending by step; aborted sequences left out."""
        found = collections.defaultdict(list)
        for row in range(self.rows):
            if self.step["kind"][row] != DENOISE or self.aborted[self.step["sequence"][row]]:
                continue
            found[int(self.step["sequence"][row]), int(self.step["block"][row])].append(row)
        for rows in found.values():
            rows.sort(key=lambda row: self.step["step"][row])
        return found

    def recorded(self):
        """(row, t, N, row of step 1 or None) of every recorded denoising step."""
        for rows in self.blocks().values():
            first = next((r for r in rows if self.step["step"][r] == 1 and
                          self.step["recorded"][r]), None)
            for row in rows:
                if self.step["recorded"][row]:
                    yield (row, int(self.step["step"][row]), int(self.step["context_length"][row]),
                           first)

    def valid(self, row):
        return np.flatnonzero(self.step["valid"][row])

    def delta(self, row):
        f = self.file["frames"]
        begin = int(f["delta_end"][row - 1]) if row else 0
        part = slice(begin, int(f["delta_end"][row]))
        return f["position"][part], f["confidence"][part]


def recall(traces, sizes):
    result = {name: Means() for name in ("recall", "covered", "covered_at_most", "covered_by_own")}
    trivial = collections.Counter()
    for trace in traces:
        for row, t, n, first in trace.recorded():
            if t == 1:
                continue
            for k in sizes:
                trivial[k] += n <= k
            if first is None:
                continue
            for layer in range(len(trace.layers)):
                one, now = (trace.at("/sets/topk", r, layer) for r in (first, row))
                p = trace.at("/sets/probability", row, layer)
                for head in range(len(trace.kv_heads)):
                    for k in sizes:
                        if n <= k:
                            continue
                        cell = (layer, head, t, k)
                        anchor = set(one[head, :k].tolist())
                        common = anchor & set(now[head, :k].tolist())
                        result["recall"].add(cell, len(common) / k)
                        inside = [j for j, position in enumerate(now[head]) if position in anchor]
                        covered = p[head, inside].sum()
                        smallest = p[head, min(n, trace.k) - 1]
                        result["covered"].add(cell, covered)
                        result["covered_at_most"].add(
                            cell, covered + (k - len(inside)) * smallest)
                        result["covered_by_own"].add(cell, p[head, :k].sum())
    return result, trivial


def unions(traces, from_tokens=True):
    """Means by (layer, kv_head, t) and the plain list of (layer, t, |U|)."""
    means, sizes = Means(), []
    for trace in traces:
        tokens = from_tokens and trace.has("/sets/topk_token")
        for row, t, n, _ in trace.recorded():
            if n <= trace.k:
                continue
            for layer in range(len(trace.layers)):
                if tokens:
                    sets = trace.at("/sets/topk_token", row, layer)[:, trace.valid(row)]
                    counts = [len(np.unique(part)) for part in sets]
                else:
                    counts = trace.at("/sets/union_size", row, layer)
                for head, count in enumerate(counts):
                    means.add((layer, head, t), count / trace.k)
                    sizes.append((layer, t, int(count)))
    return means, sizes


def estimation_accuracy(traces):
    means = Means()
    for trace in traces:
        for row, t, n, first in trace.recorded():
            if n <= trace.k:
                continue
            for layer in range(len(trace.layers)):
                tokens = trace.at("/sets/topk_token", row, layer)
                for estimator, source in ((0, row), (1, first)):
                    if source is None:
                        continue
                    chosen = trace.at("/sets/topk", source, layer)
                    for head in range(len(trace.kv_heads)):
                        for i in trace.valid(row):
                            share = np.isin(tokens[head, i], chosen[head]).sum() / trace.k
                            means.add((estimator, layer, head, t), share)
    return means


def selection(traces):
    """Means of block and token accuracy by (layer, kv_head, t), of the covered probability and of the
    output error by (layer, head, t): what a sparse policy's sets held."""
    block, token, covered, error = (Means() for _ in range(4))
    for trace in traces:
        for row, t, n, _ in trace.recorded():
            for layer in range(len(trace.layers)):
                read = [set(members[members >= 0])
                        for members in trace.at("/attention/selected", row, layer)]
                most = max(len(members) for members in read)
                used = trace.at("/attention/lse_external", row, layer)
                everything = most == 0 and np.isfinite(used).any()
                if everything or n <= most:
                    continue
                valid = trace.valid(row)
                exact = trace.at("/shadow/lse_external", row, layer)
                wrong = trace.at("/shadow/output_error", row, layer)
                for head in range(len(trace.heads)):
                    share = np.minimum(np.exp(used[head, valid] - exact[head, valid]), 1.0)
                    covered.add((layer, head, t), share.mean(), len(valid))
                    error.add((layer, head, t), wrong[head])
                if not trace.has("/sets/topk") or most == 0:
                    continue
                own = trace.at("/sets/topk", row, layer)
                for head, members in enumerate(read):
                    size = min(len(members), trace.k)
                    block.add((layer, head, t), len(members & set(own[head][:size])) / size)
                    if trace.has("/sets/topk_token"):
                        tokens = trace.at("/sets/topk_token", row, layer)[head]
                        shares = [len(members & set(tokens[i][:size])) / size for i in valid]
                        token.add((layer, head, t), np.mean(shares), len(valid))
    return {"block_accuracy": block, "token_accuracy": token, "covered": covered,
            "output_error": error}


def covered_by_sets(trace):
    """The same covered probability for a trace whose sets hold the whole prefix: the sum of
    /sets/probability over the keys read, by (layer, kv_head, t). No log-sum-exp is looked at."""
    means = Means()
    for row, t, n, _ in trace.recorded():
        assert n <= trace.k
        for layer in range(len(trace.layers)):
            for head, members in enumerate(trace.at("/attention/selected", row, layer)):
                members = members[members >= 0]
                if len(members) == 0 or n <= len(members):
                    continue
                own = trace.at("/sets/topk", row, layer)[head]
                probability = trace.at("/sets/probability", row, layer)[head]
                means.add((layer, head, t), probability[np.isin(own, members)].sum(),
                          len(trace.valid(row)))
    return means


def unit(x):
    norm = np.linalg.norm(x, axis=-1, keepdims=True)
    return np.divide(x, norm, out=np.zeros_like(x), where=norm != 0)


def query_statistics(traces, from_summary=False, keep=lambda trace, row: True):
    """Means S1 by (t), S2 by (layer, t), S3, S4 by (layer, head, t), S5 by (layer, kv_head, t)."""
    s1, s2, s3, s4, s5 = (Means() for _ in range(5))
    for trace in traces:
        hidden = not from_summary and trace.has("/hidden/hidden")
        query = not from_summary and trace.has("/query/query")
        for row, t, n, first in trace.recorded():
            if t == 1 or not keep(trace, row):
                continue
            kl = trace.at("/prediction/kl_step1", row)
            kl = kl[np.isfinite(kl)]
            if kl.size:
                s1.add((t,), kl.mean(), kl.size)
            valid = trace.valid(row)
            for layer in range(len(trace.layers)):
                if not hidden:
                    s2.add((layer, t), trace.at("/summary/hidden_gap", row, layer))
                elif first is not None:
                    a, b = (unit(trace.at("/hidden/hidden", r, layer)[valid]) for r in (row, first))
                    s2.add((layer, t), np.linalg.norm(a - b, axis=-1).mean())
                for head in range(len(trace.heads)):
                    if not query:
                        s3.add((layer, head, t), trace.at("/summary/query_gap", row, layer)[head])
                        s4.add((layer, head, t),
                               trace.at("/summary/query_block_gap", row, layer)[head])
                    elif first is not None:
                        a, b = (unit(trace.at("/query/query", r, layer)[head][valid])
                                for r in (row, first))
                        s3.add((layer, head, t), np.linalg.norm(a - b, axis=-1).mean())
                        s4.add((layer, head, t), np.linalg.norm(a.mean(0) - b.mean(0)))
                if first is None or n <= trace.k or not trace.has("/sets/topk"):
                    continue
                one, now = (trace.at("/sets/topk", r, layer) for r in (first, row))
                for head in range(len(trace.kv_heads)):
                    s5.add((layer, head, t), np.isin(now[head], one[head]).sum() / trace.k)
    return s1, s2, s3, s4, s5


def decoding(traces, taus):
    result = {name: Means() for name in ("tokens", "steps", "confidence", "M", "accuracy")}
    settled, blocks, below = collections.Counter(), collections.Counter(), collections.Counter()
    for trace in traces:
        shift = 1 if trace.run.get("decoding") == "autoregressive" else 0
        for sequence in {s for s, _ in trace.blocks()}:
            if trace.finish[sequence] in ENDED and math.isfinite(trace.score[sequence]):
                result["accuracy"].add((), trace.score[sequence])
        for (sequence, block), rows in trace.blocks().items():
            last, since = {}, {}
            for row in rows:
                t = int(trace.step["step"][row])
                positions, confidence = trace.delta(row)
                result["tokens"].add((t,), len(positions))
                for value in confidence:
                    result["confidence"].add((t,), value)
                for p in positions:
                    last[int(p + trace.prompt_length[sequence] - trace.step["block_start"][row] -
                             shift)] = t
                changed = int(trace.step["changed"][row])
                if t > 1:
                    result["M"].add((t,), changed)
                for tau in taus:  # tokens decided since the last step that read
                    since[tau] = 0 if t == 1 else since[tau] + changed
                    below[tau] += t > 1 and since[tau] < tau
                    if since[tau] >= tau:
                        since[tau] = 0
            for position, t in last.items():
                settled[t, position] += 1
            mine = np.flatnonzero(trace.step["sequence"] == sequence)
            ended = (trace.finish[sequence] in ENDED or
                     trace.step["block"][mine[-1]] > block or
                     trace.step["kind"][mine[-1]] == COMMIT)
            if ended:
                result["steps"].add((), len(rows))
                blocks[len(rows)] += 1
    return result, settled, blocks, below
