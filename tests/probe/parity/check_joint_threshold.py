"""joint_threshold and joint_threshold_indel, step by step, against float64 decoders written from their
rules (edit_oracle.py): every block before every step, edits, insertions and deletions; LLaDA2.2's block
routing; replays; what the trace counts; what refuses to run with them."""

import pathlib
import random

import harness

harness.start()

import json  # noqa: E402

import checkpoints  # noqa: E402
import llada2_model  # noqa: E402
import numpy as np  # noqa: E402
from checkpoints import mask_id, spec_of, write_checkpoint  # noqa: E402
from edit_oracle import Options, indel, joint  # noqa: E402
from trace_file import Trace  # noqa: E402

# prompt length, gen length, block length, steps
SHAPES = [(7, 16, 8, 8), (9, 24, 12, 5), (3, 13, 4, 4)]
# threshold, editing threshold, post steps
JOINT = [(0.3, 0.15, 16), (0.15, 0.3, 3), (0.9, 0.2, 1), (0.2, 0.1, 0), (0.3, 0, 16)]
INDEL = [(0.3, 0, 16), (0.2, 0.1, 4), (0.5, 0.2, 0)]
TOO_NEAR, TOO_NEAR_LOGIT, TOO_NEAR_EXPERT = 3e-5, 2e-4, 1e-6


class Totals:
    runs = steps = edited = inserted = deleted = masked = stops = near = escapes = 0


def same(where, ours, expected):
    harness.require(ours == expected, f"{where}: {ours}, expected {expected}")


def apply(state, trace, row):
    """The answer's tokens after a row, by docs/trace_format.md -> positions inserted and deleted."""
    def part(name):
        end = trace.file[f"/frames/{name}"]
        return slice(int(end[row - 1]) if row else 0, int(end[row]))
    frames = trace.file["/frames"]
    d, i, x = part("delta_end"), part("insert_end"), part("delete_end")
    for p, value in zip(frames["position"][d], frames["token"][d]):
        state[p] = int(value)
    places, new = frames["insert_position"][i], frames["insert_token"][i]
    for p, n in reversed(sorted(zip(places, range(len(places))))):
        state.insert(p, int(new[n]))
    for p in sorted(frames["delete_position"][x], reverse=True):
        del state[p]
    return len(places), x.stop - x.start


def compare(where, trace, decoder, prompt, options):
    rows = [r for r in trace.rows_of(0) if trace.rows("/steps/kind")[r] == 1]
    same(f"{where}, steps", len(rows), len(decoder.rows))
    state = [options.mask] * (len(decoder.tokens) - len(prompt))
    before = None
    for row, step in zip(rows, decoder.rows):
        at = f"{where}, block {step.block}, row {row}"
        begin = step.block * options.size
        same(f"{at}, block", (prompt + state)[begin:begin + options.size], step.before)
        same(f"{at}, masks", int(trace.rows("/steps/masks_left")[row]), step.masks)
        changed = 0 if before is None or before.block != step.block else sum(
            a != b for a, b in zip(before.before, step.before))
        same(f"{at}, M", int(trace.rows("/steps/changed")[row]), changed)
        positions, tokens, _ = trace.delta(row)
        held = {p: (prompt + state)[len(prompt) + p] for p in positions}
        edits = {len(prompt) + p - begin: (held[p], t) for p, t in zip(positions, tokens)
                 if held[p] != options.mask and t != options.mask}
        same(f"{at}, edits", edits, {p: pair for p, pair in step.edited.items() if pair[1] != options.mask})
        harness.require(all(p >= 0 for p in positions), f"{at}: a token of the prompt changed")
        moves = apply(state, trace, row)
        same(f"{at}, moves", moves, (max(step.inserted, step.deleted),) * 2)
        same(f"{at}, block after", (prompt + state)[begin:begin + options.size], step.after)
        before = step
        Totals.steps += 1
        Totals.edited += len(edits)
        Totals.masked += sum(pair[1] == options.mask for pair in step.edited.values())
        Totals.inserted += step.inserted
        Totals.deleted += step.deleted
    return rows


def capture(work, name, prompt, shape, *more, expect=0):
    return harness.run("capture", work / name, "--input-ids", ",".join(map(str, prompt)), "--gen-length", shape[1],
                       "--block-length", shape[2], "--denoising-steps", shape[3], "--dtype", "float32", "--threads", 1,
                       "--quiet", "--force", "-o", work / "run.h5", *more, expect=expect)


def run(work, name, model, spec, decode, shape, values, seed, stops=False):
    draw = random.Random(seed)
    prompt = [draw.randrange(spec["vocab"] - 6) for _ in range(shape[0])]
    stop_ids = tuple(range(0, spec["vocab"] - 6, 9)) if stops else ()
    options = Options(mask_id(spec), shape[2], shape[3], shape[1], *values, spec.get("delete_token_id", -1),
                      spec.get("split_token_id", -1), stop_ids)
    model.nearest = float("inf")
    decoder = decode(model, prompt, options)
    if (decoder.margin.value < TOO_NEAR or decoder.logit_margin.value < TOO_NEAR_LOGIT
            or model.nearest < TOO_NEAR_EXPERT):
        Totals.near += 1
        return False
    strategy = "joint_threshold" + ("" if decode is joint else "_indel")
    threshold, editing, post = values
    text = f"{strategy},threshold={threshold},editing_threshold={editing}"
    if editing > 0 or decode is indel:
        text += f",max_post_steps={post}"
    stop = [flag for i in stop_ids for flag in ("--stop-id", i)] or ["--no-stop"]
    capture(work, name, prompt, shape, "--strategy", text, "--record", "summary", *stop)
    trace = Trace(work / "run.h5")
    compare(f"{name}, {shape}, {text}, seed {seed}", trace, decoder, prompt, options)
    reason = int(trace.file["/sequences/finish_reason"][0])
    same(f"{name}, {text}, stopped", reason == 2, decoder.reason == "stop")
    Totals.runs += 1
    Totals.stops += decoder.reason == "stop"
    Totals.escapes += getattr(decoder, "escapes", 0)
    return True


def check_replay(work, name, shape):
    """The steps of the last run under a policy that changes what a pass computes."""
    harness.run("capture", work / name, "--replay", work / "run.h5", "-o", work / "again.h5", "--force", "--quiet",
                "--record", "summary", "--policy", "flashblock,tau=3", "--dtype", "float32", "--threads", 1,
                "--block-length", shape[2])
    first, second = Trace(work / "run.h5"), Trace(work / "again.h5")
    same("replay, rows", second.num_rows, first.num_rows)
    for path in ("position", "token", "step", "insert_position", "insert_token", "delete_position", "delta_end"):
        same(f"replay, {path}", second.file[f"/frames/{path}"][:].tolist(), first.file[f"/frames/{path}"][:].tolist())
    for path in ("changed", "masks_left"):
        same(f"replay, {path}", second.rows(f"/steps/{path}").tolist(), first.rows(f"/steps/{path}").tolist())
    kinds, changed = second.rows("/steps/kind"), second.rows("/steps/changed")
    steps, reads = second.rows("/steps/step"), second.rows("/steps/rows_read")
    since = second.rows("/steps/since_read")
    for row in np.flatnonzero(kinds == 1):
        expected = steps[row] == 1 or since[row] >= 3
        harness.require(bool(reads[row]) == bool(expected),
                        f"row {row}: {since[row]} changes since the last read, M {changed[row]}, read {reads[row]}")


def check_counts(work, said):
    """`info` and `analyze --metric decoding` against the numbers of the oracle's last run."""
    info = json.loads(harness.run("info", work / "run.h5", "--json"))
    for name, value in said.items():
        same(f"info, {name}", info.get(name, 0), value)
    out = work / "decoding.json"
    harness.run("analyze", work / "run.h5", "--metric", "decoding", "--json", out, "--force", "--quiet")
    arrays = {a["name"]: a for a in json.loads(out.read_text())["metrics"][0]["arrays"]}
    edits = arrays["edits_by_step"]
    kinds = edits["axes"][0]["labels"]
    steps = len(edits["axes"][1]["index"])
    for kind, name in (("tokens edited", "tokens_edited"), ("positions inserted", "positions_inserted"),
                       ("positions deleted", "positions_deleted")):
        total = 0.0
        if kind in kinds:
            part = slice(kinds.index(kind) * steps, (kinds.index(kind) + 1) * steps)
            total = sum(v * n for v, n in zip(edits["values"][part], edits["terms"][part]))
        same(f"decoding, {kind}", round(total), said[name])


def indel_spec():
    spec = spec_of("llada2-groups") | dict(expert_capacity=7, block_size=4, block_length=4, seed=77)
    return spec | dict(delete_token_id=spec["vocab"] - 5, split_token_id=spec["vocab"] - 6)


def write_indel(folder, spec):
    """A LLaDA2.2 checkpoint that predicts DELETE and SPLIT more often than chance."""
    folder.mkdir(parents=True, exist_ok=True)
    state = checkpoints._random_llada2(spec)
    for token in ("delete_token_id", "split_token_id"):
        state["lm_head.weight"][spec[token]] *= 1.5
    checkpoints._write_weights(folder, state, 1)
    (folder / "config.json").write_text(json.dumps(llada2_model.config_json(spec, mask_id(spec))))
    return llada2_model.Llada2(spec, state)


def main():
    with harness.temporary_folder() as folder:
        work = pathlib.Path(folder)
        for n, name in enumerate(("sdar-g2", "llada2-groups")):
            spec = spec_of(name)
            model = write_checkpoint(work / name, spec)
            for s, shape in enumerate(SHAPES):
                for v, values in enumerate(JOINT):
                    seed = 1000 * n + 100 * s + 10 * v
                    found = any(run(work, name, model, spec, joint, shape, values, seed + 7777 * i, stops=v == 1)
                                for i in range(40))
                    harness.require(found, f"{name}, {shape}, {values}: no prompt without a near tie")
        harness.require(Totals.edited > 100 and Totals.stops > 0, f"{Totals.edited} edits, {Totals.stops} stops")
        spec = spec_of("sdar-g2")
        model = write_checkpoint(work / "sdar-g2", spec)
        edited = Totals.edited
        harness.require(any(run(work, "sdar-g2", model, spec, joint, SHAPES[0], JOINT[0], i) for i in range(40)),
                        "no prompt without a near tie")
        check_counts(work, dict(tokens_edited=Totals.edited - edited, positions_inserted=0, positions_deleted=0))
        check_replay(work, "sdar-g2", SHAPES[0])
        spec = indel_spec()
        model = write_indel(work / "indel", spec)
        for s, shape in enumerate(SHAPES):
            for v, values in enumerate(INDEL):
                before = (Totals.edited, Totals.inserted, Totals.deleted)
                found = any(run(work, "indel", model, spec, indel, shape, values, 100 * s + 10 * v + 7777 * i)
                            for i in range(60))
                harness.require(found, f"indel, {shape}, {values}: no prompt without a near tie")
                now = np.subtract((Totals.edited, Totals.inserted, Totals.deleted), before).tolist()
                check_counts(work, dict(zip(("tokens_edited", "positions_inserted", "positions_deleted"), now)))
                check_replay(work, "indel", shape)
        harness.require(Totals.inserted > 5 and Totals.deleted > 5,
                        f"{Totals.inserted} insertions, {Totals.deleted} deletions")
        none = ("--strategy", "joint_threshold_indel")
        capture(work, "sdar-g2", [1, 2, 3], SHAPES[0], *none, expect=2)  # no DELETE and SPLIT
        # Blocks of 6 rows, where 4 rows choose their experts together.
        capture(work, "indel", [1, 2, 3], (3, 6, 6, 6), "--strategy", "joint_threshold", expect=2)
    print(f"{Totals.runs} runs, {Totals.steps} steps equal: {Totals.edited} edits, {Totals.masked} tokens masked by an "
          f"edit, {Totals.inserted} insertions, {Totals.deleted} deletions, {Totals.escapes} escapes, {Totals.stops} "
          f"stops; {Totals.near} prompts left out for near ties")


main()
