"""The values that `analyze --metric draft` must give for traces, counted with h5py and numpy alone, following
docs/drafts.md.

What a round added is taken from /frames, not from the lengths of prompts and answers."""

import collections
import json
import re

import h5py
import numpy as np

ENTROPY = [0, 0.01, 0.03, 0.1, 0.3, 1, 2, 3, 4, 6]
MASS = [i / 10 for i in range(10)]
POWERS = [0, 1, *(2**i for i in range(1, 25))]
BEHIND = "reached positions behind the answer's end"
NON_FINITE = "values that are NaN or infinite"
UNKNOWN = "values of reached positions that are not known"


def span(value, edges, whole):
    """Label of the bin [edge, next edge) that holds the value."""
    i = int(np.searchsorted(edges, value, side="right")) - 1
    if i + 1 == len(edges):
        return f"{edges[i]:g}+"
    last = edges[i + 1] - 1 if whole else edges[i + 1]
    return f"{edges[i]:g}" if whole and last == edges[i] else f"{edges[i]:g}-{last:g}"


def rank_label(rank):
    return "none" if rank < 0 else span(rank, POWERS, True)


class Mean:
    def __init__(self):
        self.values = []

    def cell(self):
        return (float(np.mean(self.values)) if self.values else np.nan, len(self.values))


class Trace:
    """Draft's passes of sequences that were not aborted, and what is known about them."""

    def __init__(self, path):
        self.path, self.file = str(path), h5py.File(path, "r", swmr=str(path).endswith(".partial"))
        f, self.rows = self.file, int(self.file["/steps/committed"][0])
        column = lambda name: f[name][:self.rows]
        self.block_length, self.vocab = int(f.attrs["block_length"]), int(f["/model"].attrs["vocab_size"])
        self.sequence, self.context, self.recorded = (column(f"/steps/{n}") for n in
                                                      ("sequence", "context_length", "recorded"))
        self.start, ends = column("/steps/block_start"), column("/frames/delta_end")
        self.decided = np.diff(np.concatenate([[0], ends]))
        self.accepted = column("/draft/accepted")
        self.drafted_rank_under_target, self.target_rank_under_draft, self.draft_entropy, self.target_entropy = (
            column(f"/draft/{n}") for n in ("drafted_rank_under_target", "target_rank_under_draft", "draft_entropy", "target_entropy"))
        count = int(f["/sequences/committed"][0])
        self.end = f["/sequences/prompt_length"][:count] + f["/sequences/gen_length"][:count]
        text = f["/sequences/bytes"][:].tobytes()
        self.names = [text[a:a + n].decode() for a, n in zip(f["/sequences/name_start"][:count],
                                                             f["/sequences/name_length"][:count])]
        aborted = f["/sequences/aborted"][:count]
        self.drafts = [r for r in range(self.rows) if f["/steps/kind"][r] == 1 and not aborted[self.sequence[r]]]
        model = json.loads(f["/model/json"][:].tobytes())
        self.imported = "imported_from" in model
        self.has_mass = "attention" in f and "lse_internal" in f["attention"] and "draft" not in model  # a target's
        # From the anchor, the last drafted position has no row of the draft.
        self.drafted = ((f["/steps/valid"][:self.rows] > 0) | (column("/draft/token") >= 0)).astype(int).sum(1) - 1
        self.shift = int(f["/model"].attrs["logit_shift"])
        self.chosen, self.of_target = ((column(f"/draft/candidate_{n}") for n in ("chosen", "target"))
                                       if "draft_candidates" in f.attrs else (None, None))
        self.cost = {n: f[f"/draft/cost/{n}"][:] for n in ("block_length", "draft_ns", "target_ns")} \
            if "draft_costs" in f.attrs else None

    def reached(self, row):
        """Positions that belong to the answer and before which everything was accepted; those after its end."""
        every = [p for p in range(1, self.drafted[row] + 1) if self.accepted[row] >= p - 1]
        end = self.end[self.sequence[row]]
        return [p for p in every if self.start[row] + p < end], [p for p in every if self.start[row] + p >= end]


def mass_of(external, internal):
    with np.errstate(over="ignore", invalid="ignore"):
        value = 1 / (1 + np.exp(internal.astype(np.float64) - external.astype(np.float64)))
    return np.where((np.isfinite(external) | (external == -np.inf)) & np.isfinite(internal), value, np.nan)


class Reference:
    """arrays: {name: {labels: (value, terms or None)}}; left_out."""

    def __init__(self, traces, sequences=None):
        self.shares = collections.defaultdict(lambda: collections.defaultdict(list))
        self.means = collections.defaultdict(lambda: collections.defaultdict(Mean))
        self.left_out = collections.Counter()
        self.lengths, self.block_length = collections.Counter(), traces[0].block_length
        self.vocab, self.traces = traces[0].vocab, traces
        self.has_mass = all(trace.has_mass for trace in traces)
        self.has_selector = all(trace.chosen is not None for trace in traces)
        self.times = []  # of each trace with costs: its rounds' lengths, its costs
        first = 0
        for trace in traces:
            chosen = [r for r in trace.drafts if sequences is None or trace.sequence[r] in sequences]
            for row in chosen:
                self.add_round(trace, row, first)
            if trace.cost is None:
                self.left_out["traces without /draft/cost: no predicted speed-up"] += 1
            else:
                self.times.append(([int(trace.decided[r]) + 1 for r in chosen], trace.cost))
            first += len(trace.names)

    def add_round(self, trace, row, first_sequence):
        length = int(trace.decided[row]) + 1
        self.lengths[length] += 1
        depth = span(trace.context[row], POWERS, True)
        self.means["length_by_depth"][depth].values.append(length)
        sequence = int(trace.sequence[row])
        self.means["length_by_sequence"][str(first_sequence + sequence)].values.append(length)
        self.means["length_by_task"][re.sub(r"(?<=.)([-_./:# ]\d+)+$", "", trace.names[sequence])].values.append(length)
        inside, behind = trace.reached(row)
        self.left_out[BEHIND] += len(behind)
        for p in inside:
            self.add_position(trace, row, p, depth)
        if self.has_mass:
            self.add_masses(trace, row, inside)

    def add_position(self, trace, row, p, depth):
        taken = bool(trace.accepted[row] >= p)
        verdict = "accepted" if taken else "refused"
        self.shares["acceptance"][str(p)].append(taken)
        self.shares["by_depth"][depth].append(taken)
        ranks = {"by_drafted_rank_under_target": trace.drafted_rank_under_target[row, p], "by_target_rank_under_draft": trace.target_rank_under_draft[row, p]}
        for name, rank in ranks.items():
            if rank < 0 and (trace.imported or name == "by_drafted_rank_under_target"):
                self.left_out[UNKNOWN] += 1
            else:
                self.shares[name][rank_label(rank)].append(taken)
        for name in ("draft_entropy", "target_entropy"):
            value = float(getattr(trace, name)[row, p])
            if not np.isnan(value):
                self.shares["by_" + name][span(value, ENTROPY, False)].append(taken)
                self.means["means"][f"{name.replace('_', ' ')}, {verdict}"].values.append(value)
            else:
                self.left_out[UNKNOWN] += 1
        if self.has_selector:
            self.add_selection(int(trace.chosen[row, p]), int(trace.of_target[row, p]), p, taken)
        if trace.imported and trace.target_rank_under_draft[row, p] < 0:
            return
        rank, size = int(trace.target_rank_under_draft[row, p]), 1
        while True:
            self.shares["within_best"][str(size)].append(0 <= rank < size)
            if size >= self.vocab:
                break
            size *= 2

    def add_selection(self, chosen, of_target, p, taken):
        self.shares["among_candidates"][str(p)].append(of_target >= 0)
        self.shares["by_chosen"][str(chosen)].append(taken)
        named = self.shares["selector"]
        named["target's token among the candidates"].append(of_target >= 0)
        named["chose another than the most probable"].append(chosen != 0)
        if chosen:
            named["accepted, another chosen"].append(taken)
            named["most probable was right, another chosen"].append(of_target == 0)
        else:
            named["accepted, most probable chosen"].append(taken)

    def add_masses(self, trace, row, inside):
        if not trace.recorded[row]:
            self.left_out["rows that the recorder's filters left out: no external mass"] += 1
            return
        masses = mass_of(trace.file["/attention/lse_external"][row], trace.file["/attention/lse_internal"][row])
        heads = [str(h) for h in trace.file["/head"][:]]
        for slot, layer in enumerate(str(n) for n in trace.file["/layer"][:]):
            for p in inside:
                taken = bool(trace.accepted[row] >= p)
                for name, value in zip(heads, masses[slot, :, p - trace.shift]):
                    if np.isfinite(value):
                        self.means["mass_accepted" if taken else "mass_refused"][layer, name].values.append(value)
                mean = masses[slot, :, p - trace.shift].mean()
                if np.isnan(mean):
                    self.left_out[NON_FINITE] += 1
                else:
                    self.shares["by_external_mass"][layer, span(mean, MASS, False)].append(taken)

    def speedup(self):
        found = collections.defaultdict(dict)
        rounds = sum(len(lengths) for lengths, _ in self.times)
        for b in range(1, self.block_length + 1):
            tokens = draft = target = alone = 0.0
            for lengths, cost in self.times:
                own = sum(min(length, b) for length in lengths)
                times = {n: np.interp(b, cost["block_length"], cost[n]) for n in ("draft_ns", "target_ns")}
                tokens, alone = tokens + own, alone + own * float(cost["target_ns"][0])
                draft, target = draft + len(lengths) * times["draft_ns"], target + len(lengths) * times["target_ns"]
            for name, value in (("tokens_per_round", tokens / rounds), ("draft_time", draft / rounds / 1e6),
                                ("target_time", target / rounds / 1e6), ("speedup", alone / (draft + target))):
                found[name][str(b)] = (value, rounds)
        return found

    def arrays(self):
        arrays = {name: {label: (float(np.mean(taken)), len(taken)) for label, taken in bins.items()}
                  for name, bins in self.shares.items()}
        arrays |= {name: {label: mean.cell() for label, mean in means.items()} for name, means in self.means.items()}
        rounds = sum(self.lengths.values())
        every = [taken for bins in self.shares["acceptance"].values() for taken in bins]
        tokens = sum(length * count for length, count in self.lengths.items()) / rounds
        arrays.setdefault("means", {})
        arrays["means"] |= {"tokens a round": (tokens, rounds),
                            "acceptance": (float(np.mean(every)) if every else np.nan, len(every))}
        arrays["lengths"] = {str(n): (self.lengths[n], None) for n in range(1, self.block_length + 1)}
        arrays["survival"] = {str(p): (sum(c for n, c in self.lengths.items() if n > p) / rounds, rounds)
                              for p in range(1, self.block_length)}
        return arrays | (self.speedup() if self.times else {})
