"""The flashblock policy: its rule, what it reuses and what its shadow says, replayed in numpy from
traces read with h5py alone.

Which heads reused must follow from M alone, of the step or summed since the last read; a reused row
must carry the A_out, L_out of the row it took them from; /shadow must hold the exact values and
/attention the exact ones wherever nothing was reused. Fed with an exact run's trajectory, tau = 1
with M >= 1 everywhere reuses nothing and must record the same numbers bit for bit.
"""

import json
import pathlib

import attention_math as am
import check_attention
import harness
import numpy as np
from check_attention import Case, Worst
from checkpoints import spec_of, write_checkpoint
from oracle_decoder import DENOISE
from trace_file import Trace

CASE = Case("flashblock", "sdar-g3-tied", ["--denoising-steps", 8], lengths=(3, 17, 30))
SAME_WHEN_NOTHING_IS_REUSED = [
    "/attention/external", "/attention/internal", "/attention/lse_external",
    "/attention/lse_internal", "/query/query", "/hidden/hidden", "/kv/key", "/kv/value",
    "/prefix/key", "/prefix/value", "/prediction/token", "/prediction/confidence",
    "/frames/position", "/frames/token", "/frames/confidence", "/steps/kind", "/steps/block",
    "/steps/step", "/steps/context_length", "/steps/changed", "/steps/masks_left"]


def check_rule(trace, spec, tau, mask, count="since_read", starts=(1,)):
    """Every head of every row: reused or not, and if reused, whose pair. mask: [layers, heads], or
    [ranges, layers, heads] for ranges that begin with the steps `starts`. -> (reused, fresh)"""
    mask = np.asarray(mask).reshape(len(starts), spec["layers"], spec["heads"])
    kinds, steps = trace.rows("/steps/kind"), trace.rows("/steps/step")
    changed, counts = trace.rows("/steps/changed"), [0, 0]
    since_read, rows_read = trace.rows("/steps/since_read"), trace.rows("/steps/rows_read")
    block = int(trace.file.attrs["block_length"])
    for index in range(trace.num_sequences):
        for row in (int(r) for r in trace.rows_of(index) if kinds[r] == DENOISE):
            counted = changed[row] + (since if steps[row] > 1 and count == "since_read" else 0)
            may = steps[row] > 1 and counted < tau
            if count == "since_read":
                harness.require(since_read[row] == counted,
                                f"row {row}: since_read {since_read[row]}, not {counted}")
            harness.require(rows_read[row] == (0 if may else block),
                            f"row {row}: rows_read {rows_read[row]}")
            since = counted if may else 0
            reused = trace.file["/attention/reused"][row].astype(bool)
            here = mask[np.searchsorted(starts, steps[row], side="right") - 1]
            harness.require(np.array_equal(reused, here & may),
                            f"row {row}, step {steps[row]}, M {changed[row]}: {reused}")
            output = trace.file["/attention/external"][row]
            lse = trace.file["/attention/lse_external"][row]
            if steps[row] > 1:
                # What the step before used: its own pair or the one it had taken over.
                harness.require(np.array_equal(output[reused], before[0][reused])
                                and np.array_equal(lse[reused], before[1][reused]),
                                f"row {row}: a reused head carries another pair than its source")
                counts[0] += int(reused.sum())
                # The row of the head's own last read, by the rule or by its mask.
                for layer, head in zip(*np.nonzero(reused)):
                    first = own[layer, head]
                    harness.require(
                        np.array_equal(output[layer, head],
                                       trace.file["/attention/external"][first][layer, head]),
                        f"row {row}, layer {layer}, head {head}: not the pair of row {first}")
            counts[1] += int((~reused).sum())
            own = np.where(reused, own if steps[row] > 1 else row, row)
            before = (output, lse)
    return counts


def check_shadow(trace, case, spec, worst):
    """/shadow is exact, the fresh heads of /attention too, and the output error follows."""
    for index in range(trace.num_sequences):
        rows = check_attention.RowChecker(trace, case, spec, index, worst)
        for row in rows.rows:
            for layer in range(spec["layers"]):
                check_shadow_row(trace, rows, row, layer, worst)


def check_shadow_row(trace, rows, row, layer, worst):
    get = lambda path: trace.file[path][row, layer].astype(np.float64)
    count = int(trace.rows("/steps/context_length")[row])
    query, key, value = get("/query/query"), get("/kv/key"), get("/kv/value")
    outer = am.scores_of(query, rows.key[layer, :, :count], rows.scale)
    external = am.attention(outer, rows.value[layer, :, :count])
    internal = am.attend(query, key, value, rows.scale)
    worst.add("shadow A_out", get("/shadow/external"), external[0], 2e-5)
    worst.add("shadow L_out", get("/shadow/lse_external"), external[1], 2e-5)
    worst.add("A_in under reuse", get("/attention/internal"), internal[0], 2e-5)
    fresh = trace.file["/attention/reused"][row, layer] == 0
    worst.add("fresh A_out", get("/attention/external")[fresh], external[0][fresh], 2e-5)
    used = am.merge([(get("/attention/external"), get("/attention/lse_external")), internal])[0]
    exact = am.merge([external, internal])[0]
    norm = lambda x: np.sqrt((x**2).sum((-2, -1)))
    worst.add("output error", get("/shadow/output_error"), norm(used - exact) / norm(exact), 1e-5)


def write_reuse_file(path, trace, spec):
    """A calibration file that lets every second head reuse."""
    model = trace.json("/model/json")
    mask = (np.arange(spec["layers"] * spec["heads"]) % 2).reshape(spec["layers"], spec["heads"])
    path.write_text(json.dumps({
        "format": "blockscope-reuse", "format_version": 1,
        "model": {"layers": spec["layers"], "heads": spec["heads"], "digest": model["digest"]},
        "reuse": mask.astype(bool).tolist()}))
    return mask.astype(bool)


def write_file_by_step(path, trace, spec):
    """Masks that differ between steps 1-2, 3-4 and from step 5 on: some heads read in one range and
    reuse in the next, others the other way. Row errors for `bound`. -> masks, starts"""
    model = trace.json("/model/json")
    shape = (3, spec["layers"], spec["heads"])
    masks = np.random.default_rng(3).random(shape) < 0.6
    path.write_text(json.dumps({
        "format": "blockscope-reuse", "format_version": 2,
        "model": {"layers": spec["layers"], "heads": spec["heads"], "digest": model["digest"]},
        "step_ranges": [[1, 2], [3, 4], [5, None]], "reuse": masks.tolist(),
        "row_errors": [{"masks": 0.01 * (i + 1), "known": 0.0, "decided": 0.5 * (i + 1)}
                       for i in range(3)]}))
    return masks, [1, 3, 5]


def check_bound(trace, masks, starts, bound):
    """Every step reuses iff the error that its rows predict is below the bound. -> reusing steps"""
    kinds, steps = trace.rows("/steps/kind"), trace.rows("/steps/step")
    left, changed = trace.rows("/steps/masks_left"), trace.rows("/steps/changed")
    rows_read = trace.rows("/steps/rows_read")
    length = int(trace.file.attrs["block_length"])
    reusing = [0, 0]
    for index in range(trace.num_sequences):
        for row in (int(r) for r in trace.rows_of(index) if kinds[r] == DENOISE):
            # Without taking tokens back, every changed row is a decided one until the next read.
            decided = changed[row] + (since if steps[row] > 1 else 0)
            scale = np.searchsorted(starts, steps[row], side="right")
            error = np.sqrt((left[row] * 0.01 * scale + decided * 0.5 * scale) / length)
            may = bool(steps[row] > 1 and error < bound)
            harness.require(abs(error - bound) > 1e-9, "a tie: choose another bound")
            harness.require((rows_read[row] == 0) == may, f"row {row}: predicted {error:.3f}")
            reused = trace.file["/attention/reused"][row].astype(bool)
            harness.require(np.array_equal(reused, masks[scale - 1] & may), f"row {row}: {reused}")
            since = decided if may else 0
            reusing[int(may)] += int(steps[row] > 1)
    harness.require(min(reusing) > 0, f"bound {bound}: all later steps decide alike: {reusing}")
    return reusing[1]


def probabilities_left(trace):
    """For each later step of a block: its row, and the n-th largest probability of the tokens other
    than [MASK] that the step before predicted and left masked. n: how many it decided."""
    kinds, steps = trace.rows("/steps/kind"), trace.rows("/steps/step")
    decided = trace.rows("/steps/changed")
    token = trace.file["/prediction/token"][:len(kinds)]
    mask = trace.file["/model"].attrs["mask_token_id"]
    confidence = trace.file["/prediction/confidence"][:len(kinds)]
    for index in range(trace.num_sequences):
        rows = [int(r) for r in trace.rows_of(index) if kinds[r] == DENOISE]
        for before, row in zip(rows, rows[1:]):
            if steps[row] > 1:
                left = (token[row] >= 0) & (token[before] != mask)  # -1: not a mask now
                ordered = [*np.sort(confidence[before][left])[::-1], 0]
                yield row, ordered[max(min(max(decided[row], 1), left.sum()) - 1, 0)]


def check_sure(trace, tau, sure):
    """Every step reuses iff tau allows it and the step before was sure of a token that it left.
    -> reusing steps"""
    since_read, rows_read = trace.rows("/steps/since_read"), trace.rows("/steps/rows_read")
    reusing = {True: 0, False: 0}
    for row, left in probabilities_left(trace):
        harness.require(abs(left - sure) > 1e-7, "a tie: choose another probability")
        may = bool(since_read[row] < tau and left >= sure)
        harness.require((rows_read[row] == 0) == may,
                        f"row {row}: {since_read[row]} decided, {left:.6f} left, sure {sure}")
        reusing[may] += int(since_read[row] < tau)
    harness.require(min(reusing.values()) > 0, f"sure {sure}: all steps decide alike: {reusing}")
    return reusing[True]


def run(folder, checkpoint, spec, *flags):
    return check_attention.capture(folder, CASE, checkpoint, spec, flags)


def compare_equal(first, second):
    for path in SAME_WHEN_NOTHING_IS_REUSED:
        a, b = first.file[path][:], second.file[path][:]
        harness.require(np.array_equal(a, b, equal_nan=a.dtype.kind == "f"),
                        f"{path}: differs although nothing was reused")


def check_replay(folder, checkpoint, spec):
    """tau = 1 under the replay of an exact run whose every step changed something."""
    exact = run(folder, checkpoint, spec)
    changed = exact.rows("/steps/changed")
    later = (exact.rows("/steps/kind") == DENOISE) & (exact.rows("/steps/step") > 1)
    harness.require((changed[later] >= 1).all() and later.sum() > 15, "the run has idle steps")
    source = folder / "exact.h5"
    exact.file.close()
    (folder / "full.h5").rename(source)
    output = folder / "replayed.h5"
    common = ["capture", checkpoint, "--replay", source, "--record", "full", "--array-type", "f32",
              "--dtype", "float32", "--threads", 1, "--batch-size", 2, "--set-size",
              CASE.set_size, "--denoising-steps", 8, "-o", output, "--force", "--quiet"]
    for flags in (["--policy", "flashblock,tau=1"], ["--policy", "exact"]):
        harness.run(*common, *flags)
        compare_equal(Trace(source), Trace(output))
    # And with reuse the trajectory is still the recorded one, while the attention is not.
    harness.run(*common, "--policy", "flashblock,tau=3")
    reusing, exact = Trace(output), Trace(source)
    for path in ("/frames/position", "/frames/token", "/steps/changed"):
        harness.require(np.array_equal(reusing.file[path][:], exact.file[path][:]),
                        f"{path}: the replay left the recorded trajectory")
    harness.require(reusing.rows("/attention/reused").any()
                    and not np.array_equal(reusing.file["/attention/external"][:],
                                           exact.file["/attention/external"][:]),
                    "tau = 3 reused nothing")


def main():
    harness.start()
    worst = Worst()
    with harness.temporary_folder() as path:
        folder = pathlib.Path(path)
        spec = spec_of(CASE.checkpoint)
        checkpoint = folder / "checkpoint"
        write_checkpoint(checkpoint, spec)
        all_heads = np.ones((spec["layers"], spec["heads"]), bool)
        rules = [(count, tau) for count in ("since_read", "step") for tau in (1, 2, 3)]
        for count, tau in [*rules, ("since_read", 5)]:
            trace = run(folder, checkpoint, spec, "--policy",
                        f"flashblock,tau={tau},count={count}", "--shadow")
            reused, fresh = check_rule(trace, spec, tau, all_heads, count)
            check_shadow(trace, CASE, spec, worst)
            print(f"count {count}, tau {tau}: {reused} of {reused + fresh} head rows reused", flush=True)
        mask = write_reuse_file(folder / "reuse.json", trace, spec)
        trace = run(folder, checkpoint, spec, "--policy",
                    f"flashblock,tau=3,reuse={folder / 'reuse.json'}", "--shadow")
        reused, fresh = check_rule(trace, spec, 3, mask)
        check_shadow(trace, CASE, spec, worst)
        print(f"tau 3, every second head: {reused} of {reused + fresh} head rows reused")
        harness.require(reused > 0, "nothing was reused")
        masks, starts = write_file_by_step(folder / "by_step.json", trace, spec)
        for tau in (3, 100):
            trace = run(folder, checkpoint, spec, "--policy",
                        f"flashblock,tau={tau},reuse={folder / 'by_step.json'}", "--shadow")
            reused, fresh = check_rule(trace, spec, tau, masks, starts=starts)
            check_shadow(trace, CASE, spec, worst)
            print(f"tau {tau}, masks by step: {reused} of {reused + fresh} head rows reused")
            harness.require(reused > 0, "nothing was reused")
        for bound in (0.4, 0.7):
            trace = run(folder, checkpoint, spec, "--policy",
                        f"flashblock,bound={bound},reuse={folder / 'by_step.json'}")
            print(f"bound {bound}: {check_bound(trace, masks, starts, bound)} steps reuse")
        masked = ["--predictions", "masked"]
        trace = run(folder, checkpoint, spec, *masked)
        for share in (0.3, 0.6):
            sure = np.quantile([left for _, left in probabilities_left(trace)], share)
            for tau in (2, 100):
                trace = run(folder, checkpoint, spec, *masked, "--policy",
                            f"flashblock,tau={tau},sure={sure:.6f}")
                reusing = check_sure(trace, tau, round(sure, 6))
                print(f"tau {tau}, sure {sure:.6f}: {reusing} steps reuse")
        check_replay(folder, checkpoint, spec)
    for name, (count, error) in worst.errors.items():
        print(f"  {name:20} {count:8} values, largest error {error:.1e}")


if __name__ == "__main__":
    main()
