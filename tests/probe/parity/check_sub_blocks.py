"""Fast-dLLM v2: sub-blocks, token shift and block cache, row by row against oracle_sub_blocks.py, and what the
recorder makes of passes that compute a part of their block."""

import dataclasses
import json
import pathlib
import shutil

import harness
import numpy as np
from checkpoints import mask_id, spec_of, write_checkpoint
from oracle_sub_blocks import DENOISE, PREFILL, Options, decode
from trace_file import Trace

CONFIDENCE_TOLERANCE = 1e-4
NEAR_TIE_LOGITS = 1e-4
NEAR_TIE_CHOICE = 1e-5
REASONS = {1: "length", 2: "stop"}


@dataclasses.dataclass
class Case:
    name: str
    checkpoint: str
    block: int
    sub: int
    threshold: float
    lengths: list
    gen_length: int
    batch: int = 3
    stop: bool = False
    overrides: dict = dataclasses.field(default_factory=dict)


CASES = [
    Case("several tokens a pass", "v2-gqa", 8, 4, 0.3, [5, 8, 19, 3], 24),
    Case("one token a pass", "v2-gqa", 8, 2, 1.0, [16, 7], 17),
    Case("one sub-block", "v2-tied-mqa-bf16", 8, 8, 0.4, [9, 24], 16),
    Case("block of 32", "v2-mha-sharded", 32, 8, 0.3, [40, 32, 3], 64, overrides={"seed": 47}),
    Case("a prompt of exactly one block", "v2-gqa", 4, 2, 0.5, [4, 5], 12),
    Case("stop ids", "v2-gqa", 8, 4, 0.3, [5, 8, 19], 32, stop=True),
    Case("[MASK] is often the best token", "v2-gqa", 8, 4, 0.3, [6, 16], 16,
         overrides={"mask_bias": 2.0, "seed": 36}),
]


def make_prompts(spec, case):
    generator = np.random.default_rng(7 + spec["seed"])
    return [generator.integers(0, spec["vocab"] - 5, n).tolist() for n in case.lengths]


def our_run(folder, case, checkpoint, prompts, options, level="trajectory"):
    lines = folder / "prompts.jsonl"
    lines.write_text("".join(json.dumps({"input_ids": ids}) + "\n" for ids in prompts))
    flags = []
    for token in options.stop_ids:
        flags += ["--stop-id", token]
    if options.block_cache:
        flags += ["--cache", "block"]
    if level == "full":
        flags += ["--array-type", "f32", "--set-size", 4]
    trace = folder / "run.h5"
    harness.run("capture", checkpoint, "--prompts", lines, "--record", level, "-o", trace, "--force", "--quiet",
                "--dtype", "float32", "--threads", 1, "--batch-size", case.batch, "--gen-length",
                options.gen_length, "--block-length", options.block_length, "--sub-block-length",
                options.sub_block_length, "--strategy", f"low_confidence_dynamic,threshold={options.threshold}", *flags)
    return Trace(trace)


def compare_row(trace, row, expected, prompt_length, size, where):
    def same(name, ours, theirs):
        harness.require(ours == theirs, f"{where}: {name}: ours {ours}, oracle {theirs}")

    value = lambda name: int(trace.rows(f"/steps/{name}")[row])
    same("kind", value("kind"), expected.kind)
    same("block", value("block"), expected.block)
    same("step", value("step"), expected.step)
    if expected.kind != PREFILL:
        same("N", value("context_length"), expected.context_length)
        same("M", value("changed"), expected.changed)
        same("masks left", value("masks_left"), expected.masks_left)
        same("rows", np.flatnonzero(trace.rows("/steps/valid")[row]).tolist(), expected.computed)
    positions, tokens, confidence = trace.delta(row)
    same("positions", [prompt_length + p for p in positions], expected.positions)
    same("tokens", tokens, expected.tokens)
    theirs = list(expected.confidence)
    if expected.kind == DENOISE:
        token = trace.rows("/prediction/token")[row].tolist()
        probability = trace.rows("/prediction/confidence")[row].tolist()
        same("best tokens", token, [expected.predicted.get(p, (-1,))[0] for p in range(size)])
        for p in range(size):
            if p not in expected.predicted:
                same(f"no probability of {p}", np.isnan(probability[p]), True)
            else:
                confidence.append(probability[p])
                theirs.append(expected.predicted[p][1])
    worst = max([abs(a - b) for a, b in zip(confidence, theirs, strict=True)], default=0.0)
    harness.require(worst <= CONFIDENCE_TOLERANCE, f"{where}: confidence differs by {worst}")
    return worst


def fresh(folder):
    """A checkpoint in shards and one in a file do not share a folder."""
    shutil.rmtree(folder, ignore_errors=True)
    return folder


def check_case(folder, case, block_cache):
    spec = spec_of(case.checkpoint, **case.overrides)
    checkpoint = fresh(folder / "checkpoint")
    model = write_checkpoint(checkpoint, spec)
    prompts = make_prompts(spec, case)
    options = Options(mask_id(spec), case.block, case.sub, case.threshold, case.gen_length, block_cache)
    outcomes = [decode(model, ids, options) for ids in prompts]
    if case.stop:
        first = outcomes[0].tokens[len(prompts[0]):]
        options.stop_ids = (first[len(first) // 2],)
        outcomes = [decode(model, ids, options) for ids in prompts]
        harness.require(any(o.reason == "stop" for o in outcomes), f"{case.name}: nothing stopped")
    for outcome in outcomes:
        harness.require(outcome.logit_margin > NEAR_TIE_LOGITS and outcome.choice_margin > NEAR_TIE_CHOICE,
                        f"{case.name}: near ties: {outcome.logit_margin}, {outcome.choice_margin}")
    trace = our_run(folder, case, checkpoint, prompts, options)
    worst, compared = 0.0, 0
    for index, (ids, outcome) in enumerate(zip(prompts, outcomes)):
        where = f"{case.name}, {'block cache, ' if block_cache else ''}prompt of {len(ids)}"
        rows = trace.rows_of(index)
        harness.require(len(rows) == len(outcome.rows), f"{where}: {len(rows)} rows, {len(outcome.rows)}")
        for row, expected in zip(rows, outcome.rows):
            worst = max(worst, compare_row(trace, row, expected, len(ids), case.block, f"{where}, row {row}"))
            compared += 1
        reason = REASONS[int(trace.file["/sequences/finish_reason"][index])]
        harness.require(reason == outcome.reason, f"{where}: ended by {reason}, oracle {outcome.reason}")
        length = int(trace.file["/sequences/gen_length"][index])
        harness.require(length == len(outcome.tokens) - len(ids), f"{where}: {length} positions")
    partial = sum(len(r.computed) < case.block for o in outcomes for r in o.rows if r.kind == DENOISE)
    print(f"{case.name:32} block cache {'on ' if block_cache else 'off'} {compared:4} rows, {partial:3} of a "
          f"sub-block, confidence within {worst:.1e}")
    return compared


def check_arrays(folder):
    """Level full with the block cache: rows that a pass does not compute hold NaN, the others all values;
    summaries are means over the rows of both steps."""
    case = CASES[3]
    spec = spec_of(case.checkpoint, **case.overrides)
    write_checkpoint(fresh(folder / "checkpoint"), spec)
    options = Options(mask_id(spec), case.block, case.sub, case.threshold, case.gen_length, True)
    trace = our_run(folder, case, folder / "checkpoint", make_prompts(spec, case), options, "full")
    valid = trace.rows("/steps/valid").astype(bool)
    kind, previous = trace.rows("/steps/kind"), trace.rows("/steps/previous")
    step, context = trace.rows("/steps/step"), trace.rows("/steps/context_length")
    partial = 0
    for row in np.flatnonzero(kind == 1):
        partial += not valid[row].all()
        for path, axis in (("/attention/internal", 2), ("/attention/lse_internal", 2), ("/query/query", 2),
                           ("/hidden/hidden", 1), ("/attention/external", 2)):
            there = np.isfinite(trace.file[path][row])
            rows = np.moveaxis(there, axis, 0).reshape(case.block, -1)
            harness.require((rows.all(1) == valid[row]).all() and (rows.any(1) == valid[row]).all(),
                            f"row {row}: {path} is not there where /steps/valid says so")
        harness.require(np.isfinite(trace.file["/kv/key"][row]).all(), f"row {row}: a key is missing")
        sets = trace.file["/sets/topk_token"][row]
        harness.require((sets[:, :, ~valid[row]] == -1).all(), f"row {row}: a set of no query")
        if context[row] >= 4:
            harness.require((sets[:, :, valid[row]] >= 0).all(), f"row {row}: a set is missing")
        if step[row] == 1:
            continue
        both = valid[row] & valid[previous[row]]
        now, then = (trace.file["/attention/internal"][r][:, :, both].astype(np.float64)
                     for r in (row, previous[row]))
        cosine = (now * then).sum(-1) / np.sqrt((now**2).sum(-1) * (then**2).sum(-1))
        ours = trace.file["/summary/similarity_internal"][row]
        if not both.any():
            harness.require(np.isnan(ours).all(), f"row {row}: similarity of nothing")
        else:
            harness.require(np.abs(ours - cosine.mean(-1)).max() < 1e-5, f"row {row}: similarity")
    harness.require(partial > 5, f"only {partial} passes over a sub-block")
    path = folder / "run.h5"
    harness.run("analyze", path, "--quiet", "--json", folder / "out.json", "--force")
    harness.run("report", path, "-o", folder / "out.html", "--quiet")
    print(f"level full: {partial} passes over a sub-block hold NaN elsewhere")


def check_replay(folder):
    """A replay of a run under another policy takes the same tokens."""
    case = CASES[0]
    spec = spec_of(case.checkpoint, **case.overrides)
    write_checkpoint(fresh(folder / "checkpoint"), spec)
    options = Options(mask_id(spec), case.block, case.sub, case.threshold, case.gen_length)
    first = our_run(folder, case, folder / "checkpoint", make_prompts(spec, case), options)
    path = folder / "again.h5"
    harness.run("capture", folder / "checkpoint", "--replay", folder / "run.h5", "-o", path, "--force",
                "--record", "summary", "--policy", "flashblock,tau=2", "--block-length", case.block,
                "--sub-block-length", case.sub, "--quiet", "--dtype", "float32", "--threads", 1)
    second = Trace(path)
    for index in range(first.num_sequences):
        ours = [second.delta(r)[:2] for r in second.rows_of(index)]
        theirs = [first.delta(r)[:2] for r in first.rows_of(index)]
        harness.require(ours == theirs, f"replay of sequence {index}: {ours}, {theirs}")


def check_refusals(folder):
    write_checkpoint(folder / "v2", spec_of("v2-gqa"))
    write_checkpoint(folder / "sdar", spec_of("sdar-g2"))
    given = ("--input-ids", "1,2,3", "-o", folder / "no.h5")
    harness.run("capture", folder / "v2", *given, "--sub-block-length", 3, expect=2)
    harness.run("capture", folder / "v2", *given, "--gen-length", 3, expect=2)
    harness.run("capture", folder / "v2", *given, "--cache", "block", "--policy", "flashblock", expect=2)
    harness.run("capture", folder / "sdar", *given, "--sub-block-length", 2, expect=2)
    harness.run("capture", folder / "sdar", *given, "--cache", "block", expect=2)


def main():
    harness.start()
    with harness.temporary_folder() as path:
        folder = pathlib.Path(path)
        rows = sum(check_case(folder, case, cache) for case in CASES for cache in (False, True))
        print(f"{rows} rows equal")
        check_arrays(folder)
        check_replay(folder)
        check_refusals(folder)


if __name__ == "__main__":
    main()
