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
BEHIND = "reached positions beyond the answer's length"
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
        self.confidence, self.token = column("/draft/confidence"), column("/draft/token")
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

    def answers(self):
        """Token by position of every sequence, without masks: what all rows of /frames left."""
        f, mask = self.file, int(self.file["/model"].attrs["mask_token_id"])
        ends = f["/frames/delta_end"][:self.rows]
        positions, tokens = f["/frames/position"][:ends[-1]], f["/frames/token"][:ends[-1]]
        found = [{} for _ in self.names]
        starts = f["/sequences/prompt_length"][:len(self.names)]
        for row, (first, end) in enumerate(zip([0, *ends[:-1]], ends)):
            sequence = int(self.sequence[row])
            for at in range(first, end):
                found[sequence][int(starts[sequence] + positions[at])] = int(tokens[at])
        return [{p: t for p, t in answer.items() if t != mask} for answer in found]

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
        self.by_depth, self.first_rounds, self.first_sure = [], [], []
        self.sure_refused, self.unsure_target, self.shifted = [], [], [0, 0, 0, 0]
        self.times = []  # of each trace with costs: its rounds' lengths, its costs
        first = 0
        for trace in traces:
            chosen = [r for r in trace.drafts if sequences is None or trace.sequence[r] in sequences]
            for row in chosen:
                self.add_round(trace, row, first)
            self.add_symptoms(trace, chosen)
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

    def add_symptoms(self, trace, chosen):
        """What docs/drafts.md measures for each symptom."""
        answers, seen = trace.answers(), set()
        for row in chosen:
            sequence, inside = int(trace.sequence[row]), trace.reached(row)[0]
            first = sequence not in seen
            seen.add(sequence)
            for p in inside:
                taken, confidence = bool(trace.accepted[row] >= p), float(trace.confidence[row, p])
                self.by_depth.append((int(trace.context[row]), taken))
                if p == 1 and first:
                    self.first_rounds.append(taken)
                sure = confidence >= np.float32(0.9)
                if p == 1 and not np.isnan(confidence):
                    self.first_sure.append(sure and not taken)
                if sure:
                    self.sure_refused.append(not taken)
                if not taken and not np.isnan(trace.target_entropy[row, p]):
                    self.unsure_target.append(bool(trace.target_entropy[row, p] >= 1))
            answer = answers[sequence]
            for p in range(1, trace.drafted[row] + 1):
                place = trace.start[row] + p
                before, own, after = (answer.get(int(place + k)) for k in (-1, 0, 1))
                token = int(trace.token[row, p])
                if place >= trace.end[sequence] or token < 0 or None in (before, own, after) or own in (before, after):
                    continue
                for i, same in enumerate((True, token == own, token == before, token == after)):
                    self.shifted[i] += same

    def window(self):
        """(smallest ratio, positions on the smaller side, whether there is a verdict)"""
        found = []
        for depth in POWERS[1:]:
            before, after = ([taken for at, taken in self.by_depth if (at < depth) == side] for side in (True, False))
            if before and after:
                share = np.mean(before)
                found.append((np.mean(after) / share if share else np.nan, min(len(before), len(after)), share >= 0.3))
        clear = [(ratio, count) for ratio, count, good in found if count >= 100 and good]
        if clear:
            return (*min(clear, key=lambda one: one[0]), True)
        most = max(found, key=lambda one: one[1], default=(np.nan, 0))
        return most[0], most[1], False

    def symptoms(self):
        compared, own, before, after = self.shifted
        ratio, count, clear = self.window()
        share = lambda values: (float(np.mean(values)) if values else np.nan, len(values))
        numbers = {"window": (ratio, count), "target_layers": share(self.first_sure),
                   "template": share(self.first_rounds),
                   "slot": ((max(before, after) - own) / compared if compared else np.nan, compared),
                   "sure_and_wrong": share(self.sure_refused), "unsure_target": share(self.unsure_target)}
        limits = {"window": (-0.5, 100 if clear else np.inf), "target_layers": (0.2, 30), "template": (-0.5, 10),
                  "slot": (0.1, 100), "sure_and_wrong": (0.3, 100), "unsure_target": (0.5, 30)}  # below 0: at most
        verdicts = {name: (float(np.sign(limits[name][0]) * value >= limits[name][0])
                           if terms >= limits[name][1] else np.nan, terms) for name, (value, terms) in numbers.items()}
        return {"symptoms": numbers, "symptom_seen": verdicts}

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
        return arrays | self.symptoms() | (self.speedup() if self.times else {})
