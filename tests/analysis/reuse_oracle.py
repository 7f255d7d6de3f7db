"""Similarity, reuse error and savings of a trace in float64, with h5py and numpy alone, from the
definitions: docs/trace_format.md, FlashBlock (arXiv 2602.05305) section 4.2 and eq. 9."""

import json

import h5py
import numpy as np
from attention_math import merge


class Sums:
    """Of one (layer, head) under one tau: sum e^2, |e|, ref^2, ref * merged; positions."""

    def __init__(self):
        self.values = np.zeros(4)
        self.terms = 0

    def add(self, values, terms):
        self.values += values
        self.terms += terms


class Trace:
    def __init__(self, path):
        self.file = h5py.File(path, "r", swmr=str(path).endswith(".partial"))
        rows = int(self.file["/steps/committed"][0])
        column = lambda name: self.file[f"/steps/{name}"][:rows]
        self.step, self.M, self.N = column("step"), column("changed"), column("context_length")
        self.recorded, self.valid = column("recorded") == 1, column("valid") == 1
        self.sequence, self.block, self.kind = column("sequence"), column("block"), column("kind")
        sequences = int(self.file["/sequences/committed"][0])
        self.aborted = self.file["/sequences/aborted"][:sequences] == 1
        self.layers, self.heads = self.file["/layer"][:], self.file["/head"][:]
        model = self.file["/model"].attrs
        self.shape = tuple(int(model[n]) for n in ("num_layers", "num_heads", "num_kv_heads"))
        run = json.loads(self.file["/run/json"][:].tobytes())
        self.exact = "shadow" if run.get("policy", "exact") != "exact" else "attention"
        self.cache = {}
        self.counts = {}
        self.has_arrays = f"/{self.exact}/external" in self.file

    def blocks(self):
        """Lists of denoising rows, by step."""
        groups = {}
        for row in np.flatnonzero(self.kind == 1):
            if not self.aborted[self.sequence[row]]:
                groups.setdefault((self.sequence[row], self.block[row]), []).append(int(row))
        return list(groups.values())

    def reuses(self, row, tau, count="since_read"):
        """By tau, for `count` tokens decided since the block's last read or changed by this step."""
        if (tau, count) not in self.counts:
            found = self.counts[tau, count] = {}
            for rows in self.blocks():
                since = 0
                for at in rows:
                    since = self.M[at] + (since if count == "since_read" else 0)
                    found[at] = bool(self.step[at] > 1 and since < tau)
                    since = since if found[at] else 0
        return self.counts[tau, count][row]

    def read(self, path, row):
        if path not in self.cache:  # whole: the traces of these tests are small
            self.cache[path] = self.file[path][: len(self.kind)].astype(np.float64)
        return self.cache[path][row]

    def attention(self, row):
        """-> A_out, L_out (exact), A_in, L_in: [layer, head, B, D] and [layer, head, B]."""
        return [self.read(path, row) for path in
                (f"/{self.exact}/external", f"/{self.exact}/lse_external", "/attention/internal",
                 "/attention/lse_internal")]


def pairs_of(trace, from_summary):
    """-> {(layer slot, head slot): [(mean cosine, positions)]} of adjacent recorded steps."""
    pairs = {}
    for rows in trace.blocks():
        for before, now in zip(rows, rows[1:]):
            if trace.N[now] == 0 or not (trace.recorded[before] and trace.recorded[now]):
                continue
            both = trace.valid[before] & trace.valid[now]
            if from_summary:
                means = trace.read("/summary/similarity_external", now)
                terms = np.where(np.isfinite(means), both.sum(), 0)
            else:
                x, y = (trace.read(f"/{trace.exact}/external", row)[:, :, both]
                        for row in (before, now))
                with np.errstate(all="ignore"):
                    cosine = (x * y).sum(-1) / np.sqrt((x * x).sum(-1) * (y * y).sum(-1))
                good = np.isfinite(cosine)
                terms = good.sum(-1)
                means = np.where(good, cosine, 0).sum(-1) / np.maximum(terms, 1)
            for at in zip(*np.nonzero(terms)):
                pairs.setdefault(tuple(int(i) for i in at), []).append((means[at], terms[at]))
    return pairs


def statistics(pairs):
    """-> mean weighted by positions; deviation, error, 5th percentile of the pairs; count."""
    x, w = (np.array(column, dtype=np.float64) for column in zip(*pairs))
    mean, n = (w * x).sum() / w.sum(), len(x)
    deviation = np.nan
    if n > 1:
        deviation = np.sqrt((w * (x - mean) ** 2).sum() / w.sum() * n / (n - 1))
    return mean, deviation, deviation / np.sqrt(n), np.percentile(x, 5), n


def step_sums(trace, row, source):
    """-> [4, layer, head] sums of the step that took its external pair from row `source`."""
    external, lse_external, internal, lse_internal = trace.attention(row)
    old = trace.attention(source)
    ok = trace.valid[row]
    with np.errstate(all="ignore"):
        true, got = (merge([tuple(pair), (internal, lse_internal)])[0][:, :, ok]
                     for pair in ((external, lse_external), old[:2]))
        error = got - true
        return np.array([(part).sum((-2, -1)) for part in
                         (error**2, np.abs(error), true**2, got * true)])


def errors_of(trace, tau, from_summary, only_step=None, count="since_read"):
    """-> {(layer slot, head slot): (Sums where reused, Sums where recomputed)}, hidden steps."""
    cells = {(l, h): (Sums(), Sums()) for l in range(len(trace.layers))
             for h in range(len(trace.heads))}
    hidden = 0
    for rows in trace.blocks():
        source = None
        for row in rows:
            reuses = trace.reuses(row, tau, count)
            if not reuses:
                source = row if trace.recorded[row] else None
            if not trace.recorded[row] or trace.N[row] == 0:
                continue
            if only_step not in (None, trace.step[row]):
                continue
            if from_summary:
                known = {2: 0, 3: 1, 4: 2, np.inf: 3}
                if reuses and (tau not in known or count != "since_read"):
                    return None, 0  # not in the file
                sums = trace.read("/summary/reuse_error", row)[known.get(tau, 0)]
                sums = np.moveaxis(sums, -1, 0)
                if not reuses:
                    sums = np.array([0 * sums[2], 0 * sums[2], sums[2], sums[2]])
            elif source is None:
                hidden += 1
                continue
            else:
                sums = step_sums(trace, row, source)
            for (layer, head), cell in cells.items():
                values = sums[:, layer, head]
                if np.isfinite(values).all():
                    cell[0 if reuses else 1].add(values, int(trace.valid[row].sum()))
    return cells, hidden


def savings_of(traces, tau, count="since_read"):
    """-> sums over denoising steps with a prefix: N, B N, and the same where the rule reuses."""
    totals, steps = np.zeros(4), np.zeros(2, int)
    for trace in traces:
        for row in (row for rows in trace.blocks() for row in rows if trace.N[row] > 0):
            parts = np.array([trace.N[row], trace.N[row] * trace.valid[row].sum()], float)
            reuses = trace.reuses(row, tau, count)
            totals += np.concatenate([parts, parts * reuses])
            steps += [1, reuses]
    return totals, steps


def mask_of(similarity, gamma, group, kv_group):
    mask = np.nan_to_num(similarity, nan=-2.0) > gamma
    if kv_group:
        whole = mask.reshape(len(mask), -1, group).all(-1)
        mask = np.repeat(whole, group, axis=1)
    return mask


def predicted(traces, mask, totals, errors):
    """What reuse by `mask` [layer, head] saves and costs, named as in the calibration file. totals:
    of savings_of, errors: errors_of each trace; without them (not in the summaries) only savings."""
    layers, heads, kv_heads = traces[0].shape
    point = {"heads": int(mask.sum()),
             "byte_saving": totals[2] / totals[0] * mask.reshape(layers, kv_heads, -1).all(-1).mean(),
             "flop_saving": totals[3] / totals[1] * mask.mean()}
    if None in errors:
        return point
    reused, fresh, masked = Sums(), Sums(), Sums()
    for cells in errors:
        for (layer, head), (where_reused, where_fresh) in cells.items():
            reused.add(where_reused.values, where_reused.terms)
            fresh.add(where_fresh.values, where_fresh.terms)
            if mask[traces[0].layers[layer], traces[0].heads[head]]:
                masked.add(where_reused.values, where_reused.terms)
    channels = traces[0].file["/model"].attrs["head_dim"]
    divide = lambda a, b: a / b if b else np.nan
    return point | {
        "terms": reused.terms,
        "terms_reused": masked.terms,
        "relative_l2_reused": divide(masked.values[0], masked.values[2]) ** 0.5,
        "mean_l1_reused": divide(masked.values[1], masked.terms * channels),
        "relative_l2": divide(masked.values[0], reused.values[2]) ** 0.5,
        "mean_l1": divide(masked.values[1], reused.terms * channels),
        "relative_l2_all_steps": divide(masked.values[0], reused.values[2] + fresh.values[2]) ** 0.5}
