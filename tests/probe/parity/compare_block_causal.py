"""Compares `blockscope capture` with what the official decoders of block-causal families did (LLaDA2 MoE,
Fast-dLLM v2), as the scripts in official/ dumped it:

    python compare_block_causal.py ORACLE.json...

Pass by pass: its kind, the rows it computed, the positions it decided and their tokens, the best token and the
probability of every mask that it could fill; at the end the tokens up to the first stop token. Logits: every
logits-*.safetensors next to the checkpoints. Needs BLOCKSCOPE_BINARY, h5py and numpy; skipped by ctest.
"""

import json
import pathlib
import sys

import harness
from trace_file import Trace

PREFILL, DENOISE, COMMIT = 0, 1, 2
TOLERANCE = 1e-4


def flags_of(family, parameters):
    stop = parameters["eos_id"] if family == "llada2" else parameters["stop_token"]
    flags = ["--no-stop"] if stop < 0 else ["--stop-id", stop]
    # Nothing is above a threshold of 1: then the quota alone decides.
    dynamic = parameters["threshold"] <= 1.0
    flags += ["--strategy", f"low_confidence_dynamic,threshold={parameters['threshold']}" if dynamic
              else "low_confidence_static"]
    if family == "llada2":
        return flags + ["--gen-length", parameters["gen_length"], "--block-length",
                        parameters["block_length"], "--denoising-steps", parameters["steps"]]
    flags += ["--gen-length", parameters["max_new_tokens"], "--block-length", parameters["block_size"],
              "--sub-block-length", parameters["small_block_size"]]
    return flags + (["--cache", "block"] if parameters["use_block_cache"] else [])


def until_stop(tokens, stop):
    return tokens[:tokens.index(stop) + 1] if stop in tokens else tokens


class Comparison:
    def __init__(self, family):
        self.family = family
        self.shift = 0 if family == "llada2" else 1
        self.cases = self.passes = self.rows = self.skipped = 0
        self.largest = 0.0

    def case(self, folder, method, case):
        parameters = case["parameters"]
        # batch_sample fills a block to its end when it finds a stop token, and overlooks others.
        if case.get("error") or method.startswith("batch-sample") and parameters["stop_token"] >= 0:
            self.skipped += 1
            return
        with harness.temporary_folder() as work:
            path = pathlib.Path(work) / "run.h5"
            harness.run("capture", folder / case["checkpoint"], "--input-ids",
                        ",".join(map(str, case["prompt"])), "--dtype", "float32", "--record", "trajectory",
                        "--threads", 1, "--quiet", "-o", path, *flags_of(self.family, parameters))
            self.compare(case, Trace(path), f"{case['checkpoint']} seed {case['seed']} {parameters}")
        self.cases += 1

    def compare(self, case, trace, name):
        parameters, mask = case["parameters"], case["parameters"]["mask_id"]
        prompt = case["prompt"]
        block = parameters.get("block_length") or parameters["block_size"]
        canvas = prompt + [mask] * int(trace.file["/sequences/gen_length"][0])
        kind = trace.rows("/steps/kind")
        # LLaDA2's official code has no cache: it neither prefills nor commits.
        kinds = (DENOISE,) if self.family == "llada2" else (PREFILL, DENOISE, COMMIT)
        rows = [r for r in trace.rows_of(0) if kind[r] in kinds]
        early = parameters.get("eos_early_stop", False)  # of ours, the block is finished all the same
        harness.require(len(rows) == len(case["passes"]) or early and len(rows) > len(case["passes"]),
                        f"{name}: {len(rows)} passes, official {len(case['passes'])}")
        for row, step in zip(rows, case["passes"]):
            where = f"{name}, row {row}"
            start = int(trace.rows("/steps/block_start")[row])
            harness.require(step["stores"] == (kind[row] != DENOISE), f"{where}: another kind")
            if kind[row] == DENOISE:
                self.predictions(trace, row, step, canvas, start, block, where)
            positions, tokens, _ = trace.delta(row)
            mine = sorted([len(prompt) + p, t] for p, t in zip(positions, tokens))
            harness.require(mine == sorted(step["changed"]),
                            f"{where}: decided {mine}, official {step['changed']}")
            for position, token in mine:
                canvas[position] = token
            self.passes += 1
        if early:
            return
        if self.family == "llada2":
            ours = until_stop(canvas[len(prompt):len(prompt) + parameters["gen_length"]], parameters["eos_id"])
            theirs = case["output"]
        else:
            ours = until_stop(canvas[len(prompt):], parameters["stop_token"])
            theirs = case["output"][len(prompt):]
        harness.require(ours == theirs, f"{name}: generated {ours}, official {theirs}")

    def predictions(self, trace, row, step, canvas, start, block, where):
        whole = canvas[:start + block]
        harness.require(all(step["input"][p] == whole[p] for p in step["positions"]),
                        f"{where}: another input")
        computed = {p: i for i, p in enumerate(step["positions"])}
        valid = trace.rows("/steps/valid")[row]
        mine = [start + i for i in range(block) if valid[i]]
        harness.require(mine == [p for p in step["positions"] if p >= start], f"{where}: rows {mine}")
        for i in range(self.shift, block):
            position = start + i
            token = int(trace.rows("/prediction/token")[row][i])
            at = computed.get(position - self.shift)
            if at is None or not valid[i] or (self.shift and not valid[i - 1]):
                continue
            if step["gap"][at] > TOLERANCE:
                harness.require(token == step["top1"][at], f"{where}: best token of position {position}")
            difference = abs(float(trace.rows("/prediction/confidence")[row][i]) - step["probability"][at])
            self.largest = max(self.largest, difference)
            harness.require(difference < TOLERANCE, f"{where}: probability of {position}: {difference}")
            self.rows += 1


def check_logits(folder):
    checked = 0
    for reference in sorted(folder.glob("*/logits-*.safetensors")):
        harness.run("check", reference.parent, "--reference", reference, "--dtype", "float32", "--tol",
                    TOLERANCE, "--threads", 1)
        checked += 1
    return checked


def main():
    for path in map(pathlib.Path, sys.argv[1:]):
        oracle = json.loads(path.read_text())
        comparison = Comparison(oracle["family"])
        logits = check_logits(path.parent)
        for case in oracle["cases"]:
            comparison.case(path.parent, oracle["method"], case)
        print(f"{path.name}: {logits} references of logits, {comparison.cases} cases, {comparison.passes} "
              f"passes, {comparison.rows} predictions equal; largest difference of a probability "
              f"{comparison.largest:.1e}; {comparison.skipped} left out")


if __name__ == "__main__":
    main()
