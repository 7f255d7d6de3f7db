"""Compares `blockscope capture --policy flashblock` with the official engine of FlashBlock, as `official/flashblock.py` dumped
it, and both with float64 (`flashblock_oracle.py`):

    python compare_flashblock.py ORACLE.json [--policy TEXT] [--count since_read|step] [--refresh all|rows]

Every pass: kind, step, input, rows that read, the tokens counted, what it decided; per layer A_out, L_out and the merged
output; best token and probability of every position. --policy is that of the trace (`{tau}` is the case's), --count and
--refresh are the rule that float64 follows, too. Needs BLOCKSCOPE_BINARY, h5py and numpy (torch reads the weights).
"""

import argparse
import json
import pathlib
import sys

import attention_math as am
import flashblock_oracle
import harness
import numpy as np
from trace_file import Trace

NEAR = 1e-4    # decisions that are nearer than this to another one may differ
TOLERANCE = dict(external=1e-4, lse_external=1e-4, merged=1e-4, probability=1e-4, logits=1e-4)
EXACT = ("kind", "step", "start", "input", "rows_read", "since_read", "decided")


def engine_rows(folder, case, sequence):
    arrays = np.load(folder / case["arrays"])
    rows = []
    for index, row in enumerate(case["rows"]):
        if row["sequence"] != sequence:
            continue
        commit = row["kind"] == "saving"
        decided = [[i, row["output"][i]] for i in row["decided"] if row["output"][i] != row["input"][i]]
        rows.append(dict(kind="commit" if commit else "denoise", step=0 if commit else row["step"] + 1, start=row["start"],
                         input=row["input"], rows_read=len(row["input"]) * row["reads"], since_read=row["dirty"], decided=decided,
                         top1=np.array(row["top1"]), probability=np.array(row["probability"]),
                         **{name: arrays[name][index] for name in ("external", "lse_external", "merged", "logits")}))
    return rows[:-1]  # ours has no commit of the last block, which no pass reads


def near_tie(row, decided):
    """Whether the two choices, of as many positions, differ only by positions whose scores are as good as equal."""
    positions = [i for i, _ in {tuple(one) for one in row["decided"]} ^ {tuple(one) for one in decided}]
    return (len(row["decided"]) == len(decided) and len(positions) == len(set(positions)) and
            np.ptp(row["probability"][positions]) < NEAR)


def trace_rows(trace, sequence, parameters):
    prompt, size, mask = trace.prompt(sequence), parameters["block_length"], parameters["mask_id"]
    count = int(trace.file["/sequences/gen_length"][sequence])
    canvas = prompt + [mask] * (-(-(len(prompt) + count) // size) * size - len(prompt))
    rows = []
    for r in map(int, trace.rows_of(sequence)):
        if (kind := int(trace.rows("/steps/kind")[r])) == 0:
            continue
        start = int(trace.rows("/steps/block_start")[r])
        get = lambda name: trace.file[f"/attention/{name}"][r].astype(np.float64)  # noqa: E731
        external, internal = ((get(side), get(f"lse_{side}")) for side in ("external", "internal"))
        decided = sorted([len(prompt) + p - start, token] for p, token in zip(*trace.delta(r)[:2]))
        reused = trace.file["/attention/reused"][r].astype(bool)
        harness.require(reused.all() or not reused.any(), f"row {r}: some heads reused and some did not")
        rows.append(dict(kind=("denoise", "commit")[kind - 1], step=int(trace.rows("/steps/step")[r]), start=start,
                         input=canvas[start:start + size], rows_read=size * (not reused.any()), decided=decided,
                         external=external[0],
                         lse_external=external[1], merged=am.merge([external, internal])[0],
                         top1=trace.rows("/prediction/token")[r],
                         probability=trace.rows("/prediction/confidence")[r].astype(np.float64),
                         changed=int(trace.rows("/steps/changed")[r])))
        if trace.has("/steps/since_read"):
            rows[-1] |= {name: int(trace.rows(f"/steps/{name}")[r]) for name in ("since_read", "rows_read")}
            harness.require(reused.all() == (rows[-1]["rows_read"] < size), f"row {r}: rows read and heads that reuse disagree")
        for position, token in decided:
            canvas[start + position] = token
    return rows


def predicted(rows, parameters, **rule_options):
    """How many rows each pass reads, by the rule, from tokens and probabilities of the rows alone."""
    rule, reads, size, steps = None, [], parameters["block_length"], parameters["denoising_steps"]
    for row in rows:
        if row["step"] == 1:
            rule = flashblock_oracle.Rule(parameters["tau"], size, **rule_options)
        reads.append(size if row["kind"] == "commit" else int(rule.rows().sum()))
        if row["kind"] == "denoise":
            masked = [i for i in range(size) if row["input"][i] == parameters["mask_id"]]
            picked = flashblock_oracle.choose(row["probability"], masked, flashblock_oracle.quota(size, steps, row["step"] - 1),
                                              parameters["threshold"])
            rule.after(len(picked), [i for i, _ in row["decided"]])
    return reads


class Pair:
    """What two sides were found to have in common, and where they first differ."""

    def __init__(self, name):
        self.name, self.rows, self.sequences, self.near, self.differences = name, 0, 0, 0, []
        self.attention = self.predictions = 0
        self.largest = dict.fromkeys(TOLERANCE, 0.0)

    def compare(self, where, first, second):
        self.sequences += 1
        for index, (a, b) in enumerate(zip(first, second)):
            found = self.row(a, b)
            if found:
                self.differences.append(f"{self.name}, {where}, row {index} ({a['kind']}, block at {a['start']}, step "
                                        f"{a['step']}): {'; '.join(found)}")
                return
            self.rows += 1
        if len(first) != len(second):
            self.differences.append(f"{self.name}, {where}: {len(first)} and {len(second)} rows")

    def row(self, a, b):
        found = [name for name in EXACT if name in a and name in b and a[name] != b[name]]
        if found == ["decided"] and near_tie(a, b["decided"]):
            self.near += 1
            found = [] if "float64" in self.name else ["near-tie, decided"]
        found = [f"{name} {a[name.split()[-1]]} and {b[name.split()[-1]]}" for name in found]
        if found:
            return found
        both = ~(np.isnan(a["probability"]) | np.isnan(b["probability"]))
        self.predictions += int(both.sum())
        self.attention += not np.isnan(a["merged"]).all()
        sure = both & (a["probability"] > 0)
        if "logits" in b:
            best = np.sort(b["logits"], -1)
            sure &= best[:, -1] - best[:, -2] > NEAR
        if not np.array_equal(a["top1"][sure], b["top1"][sure]):
            found.append(f"best tokens {a['top1'][sure]} and {b['top1'][sure]}")
        for name, most in TOLERANCE.items():
            if name not in a or name not in b:
                continue
            x, y = (np.asarray(one[name], np.float64) for one in (a, b))
            if name == "probability":
                x, y = x[both], y[both]
            elif np.isnan(x).all():  # the trace has no attention of this row
                continue
            if not np.array_equal(np.isfinite(x), np.isfinite(y)):
                found.append(f"{name}: infinite or missing at other places")
                continue
            finite = np.isfinite(y)
            error = np.abs(x[finite] - y[finite]).max(initial=0.0) / max(1.0, np.abs(y[finite]).max(initial=0.0))
            self.largest[name] = max(self.largest[name], error)
            if error > most:
                found.append(f"{name} differs by {error:.1e}")
        return found


def capture(folder, case, policy, work):
    parameters = case["parameters"]
    lines = work / "prompts.jsonl"
    lines.write_text("".join(json.dumps(dict(id=f"p{i}", input_ids=prompt, gen_length=parameters["gen_length"])) + "\n"
                             for i, prompt in enumerate(case["prompts"])))
    harness.run("capture", folder / case["checkpoint"], "--prompts", lines, "--block-length", parameters["block_length"],
                "--denoising-steps", min(parameters["denoising_steps"], parameters["block_length"]), "--strategy",
                f"low_confidence_dynamic,threshold={parameters['threshold']}", "--batch-size", parameters["slots"], "--no-stop",
                "--record", "full", "--array-type", "f32", "--dtype", "float32", "--threads", 1, "--quiet", "--policy",
                policy.format(tau=parameters["tau"]), "-o", work / "run.h5")
    return Trace(work / "run.h5")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("oracle", type=pathlib.Path)
    parser.add_argument("--policy", default="flashblock,tau={tau},count=since_read")
    parser.add_argument("--count", choices=["since_read", "step"], default="since_read")
    parser.add_argument("--refresh", choices=["all", "rows"], default="all")
    arguments = parser.parse_args()
    rule = dict(count=arguments.count, refresh=arguments.refresh)
    oracle, folder = json.loads(arguments.oracle.read_text()), arguments.oracle.parent
    totals = []
    for number, case in enumerate(oracle["cases"], 1):
        pairs = [Pair("ours, engine"), Pair("ours, float64"), Pair("engine, float64")]
        decoder = flashblock_oracle.Decoder(folder / case["checkpoint"])
        reads = reuses = 0
        with harness.temporary_folder() as work:
            trace = capture(folder, case, arguments.policy, pathlib.Path(work))
            for index, prompt in enumerate(case["prompts"]):
                where, parameters = f"run {number} ({case['checkpoint']}), sequence {index}", case["parameters"]
                ours, engine = trace_rows(trace, index, parameters), engine_rows(folder, case, index)
                pairs[0].compare(where, ours, engine)
                pairs[1].compare(where, ours, decoder.decode(prompt, parameters, ours, **rule))
                pairs[2].compare(where, engine, decoder.decode(prompt, parameters, engine))
                if [row["rows_read"] for row in ours] != predicted(ours, parameters, **rule):
                    pairs[1].differences.append(f"{where}: the tokens of the trace predict other reading passes")
                denoise = [row["rows_read"] > 0 for row in engine if row["kind"] == "denoise"]
                reads, reuses = reads + sum(denoise), reuses + len(denoise) - sum(denoise)
            trace.file.close()
        print(f"run {number}: {case['checkpoint']}, " + ", ".join(f"{k} {v}" for k, v in case["parameters"].items()) +
              f", {len(case['prompts'])} sequences; denoising passes that read {reads}, reuse {reuses}")
        for pair in pairs:
            values = ", ".join(f"{name} {value:.1e}" for name, value in pair.largest.items() if value)
            print(f"    {pair.name}: {pair.rows} rows equal, {pair.near} near-ties; largest differences {values}")
            for difference in pair.differences:
                print(f"    DIFFERENT: {difference}")
        totals += pairs
    for name in dict.fromkeys(pair.name for pair in totals):
        mine = [pair for pair in totals if pair.name == name]
        largest = {k: max(pair.largest[k] for pair in mine) for k in TOLERANCE}
        values = ", ".join(f"{k} {value:.1e}" for k, value in largest.items() if value)
        print(f"{name}: {sum(p.sequences for p in mine)} sequences, {sum(p.rows for p in mine)} rows equal "
              f"({sum(p.attention for p in mine)} with attention, {sum(p.predictions for p in mine)} predictions), "
              f"{sum(p.near for p in mine)} near-ties, {sum(len(p.differences) for p in mine)} sequences differ; {values}")
    sys.exit(any(pair.differences for pair in totals))


if __name__ == "__main__":
    main()
