"""The sparse policies: whole captures against a float64 decoder written from the papers.

Every case runs its prompts as batches, free or replayed, and the judge (sparse_decoder.py,
selection_math.py) decodes each prompt alone. Compared are the trajectory, the sets that were read
(equal as sets; -1 throughout in steps that read everything), A_out and L_out of the keys that were
read, A_in, L_in, the residual, the queries of every layer, the exact values in addition, and the
error of the output.

Near ties: sets, tokens and positions are compared for equality and nothing is forgiven. The prompts
are such that no set's last score is nearer than NEAR_TIE_SET of itself to the next one, and no
token or position nearer to another one than in check_trajectories.py; a case that comes nearer
fails and needs another seed.
"""

import pathlib

import harness
import numpy as np
from check_attention import Worst
from check_trajectories import NEAR_TIE_CHOICE, NEAR_TIE_LOGITS
from checkpoints import mask_id
from oracle_decoder import COMMIT, DENOISE, Options, decode_with
from selection_cases import CASES, EVERYTHING, RANDOM
from selection_math import Margin, Selector
from selection_properties import check_draws, check_everything, check_first_steps
from selection_run import (Checkpoints, capture, make_prompts, recorded_sets, replayed_choices,
                           steps_of)
from sparse_decoder import SparseForward

NEAR_TIE_SET = 2e-5
TOLERANCE = 2e-4  # of the largest value of a row's layer, at least of 1; confidences: absolute
VALUES = {"/query/query": "query", "/attention/external": "external",
          "/attention/lse_external": "lse_external", "/attention/internal": "internal",
          "/attention/lse_internal": "lse_internal", "/attention/residual": "residual",
          "/attention/lse_residual": "lse_residual", "/shadow/external": "shadow",
          "/shadow/lse_external": "lse_shadow", "/shadow/output_error": "output_error"}


def judge(trace, index, prompt, case, policy, layers, margins, replay):
    """Decodes the prompt in float64. -> (outcome, rows of layers)"""
    size, length = layers.spec["block_length"], len(prompt["input_ids"])
    strategy, values = case.options
    options = Options(strategy, mask_id(layers.spec), size, case.steps, prompt["gen_length"],
                      **values)
    mine = steps_of(trace, index)

    def given(at):
        sets = recorded_sets(trace, mine[at.run_step - 1], at.layer)
        count = policy.size(at.key.shape[1])
        harness.require(not count or sets and all(len(s) == count for s in sets),
                        f"{prompt['id']}, row {mine[at.run_step - 1]}: drew {sets}, not {count}")
        return sets or [np.zeros(0, int)] * layers.spec["kv_heads"]

    blocks = -(-(length + prompt["gen_length"]) // size) - length // size
    forward = SparseForward(layers, options, blocks * case.steps,
                            Selector(policy, margins, given))
    choices = replayed_choices(replay, index, length, size) if replay else None
    outcome = decode_with(forward.logits, prompt["input_ids"], options, choices)
    return outcome, forward.rows


def compare_steps(trace, index, prompt, outcome, where):
    """Kinds of rows, N, M, transfers, predictions; -> largest difference of a confidence."""
    length, worst = len(prompt["input_ids"]), 0.0
    rows = [int(r) for r in trace.rows_of(index)
            if trace.rows("/steps/kind")[r] in (DENOISE, COMMIT)]
    # The last block is not committed: no pass would read its keys.
    judged = outcome.rows[:-1] if outcome.rows[-1].kind == COMMIT else outcome.rows
    harness.require(len(rows) == len(judged), f"{where}: {len(rows)} rows, the judge has "
                                                 f"{len(judged)}")
    for row, expected in zip(rows, judged):
        positions, tokens, _ = trace.delta(row)
        names = ("kind", "block", "step", "context_length", "changed", "masks_left")
        ours = [*(int(trace.rows(f"/steps/{n}")[row]) for n in names),
                [length + p for p in positions], tokens]
        theirs = [expected.kind, expected.block, expected.step, expected.context_length,
                  expected.changed, expected.masks_left, expected.positions, expected.tokens]
        harness.require(ours == theirs, f"{where}, row {row}: {ours}, the judge has {theirs}")
        if expected.kind == DENOISE:
            best = trace.rows("/prediction/token")[row].tolist()
            harness.require(best == expected.top1, f"{where}, row {row}: best tokens {best}, "
                                                   f"the judge has {expected.top1}")
            ours = trace.rows("/prediction/confidence")[row]
            worst = max(worst, float(np.abs(ours - expected.top1_confidence).max()))
    return worst


def compare_sets(trace, row, layer, count, expected, where):
    ours = recorded_sets(trace, row, layer)
    if expected is None or not any(len(s) for s in expected):
        harness.require(ours is None, f"{where}: read {ours}, the judge reads no set")
        return 0
    harness.require(ours is not None, f"{where}: no set, the judge has {expected}")
    for kv, (a, b) in enumerate(zip(ours, expected, strict=True)):
        harness.require(np.array_equal(a, b), f"{where}, KV head {kv}, N {count}: read "
                                              f"{a.tolist()}, the judge {b.tolist()}")
    return len(ours)


def compare_layers(trace, index, judged, policy, worst, counts, where):
    selects = policy.name != "exact"
    for row, layers in zip(steps_of(trace, index), judged, strict=True):
        count = int(trace.rows("/steps/context_length")[row])
        for layer, expected in enumerate(layers):
            here = f"{where}, row {row}, layer {layer}"
            if selects:
                sets = compare_sets(trace, row, layer, count, expected.selected, here)
                counts["sets"] += sets
                counts["dense"] += sets == 0 and count > 0
            for path, name in VALUES.items():
                if not trace.has(path):
                    wanted = selects and (policy.residual or "residual" not in path)
                    harness.require(not wanted, f"{where}: {path} is missing")
                    continue
                theirs = getattr(expected, name)
                finite = np.abs(theirs[np.isfinite(theirs)]).max(initial=0.0)
                worst.add(path, trace.rows(path)[row, layer], theirs, TOLERANCE,
                          max(1.0, finite))
    if selects:
        check_size(trace, policy, where)
        for row in trace.rows_of(index):
            harness.require(trace.rows("/steps/kind")[row] == DENOISE
                            or (trace.rows("/attention/selected")[row] == -1).all(),
                            f"{where}, row {row}: a prefill or commit has a set")


def check_size(trace, policy, where):
    """The attribute and the axis: what a step reads at most, whatever the prompts are, if k is."""
    size = int(trace.file.attrs["selected_size"])
    used = int((trace.rows("/attention/selected") >= 0).sum(-1).max())
    expected = policy.k
    if policy.name == "quest":
        expected = -(-policy.k // policy.page) * policy.page
    harness.require(size == trace.rows("/attention/selected").shape[-1] >= used
                    and (not policy.k or size == expected),
                    f"{where}: selected_size {size}, {used} read, expected {expected}")


def check_case(folder, checkpoints, case, policy, worst, counts):
    checkpoint, layers = checkpoints.get(case)
    prompts, replay = make_prompts(layers.spec, case), None
    if case.replayed:
        replay = capture(folder, case, case.replayed, checkpoint, prompts, name="source.h5")
    trace = capture(folder, case, policy, checkpoint, prompts,
                    folder / "source.h5" if replay else None)
    where = f"{case.name}, {' '.join(map(str, policy.flags()))}"
    margins = Margin()
    for prompt in prompts:
        index = trace.names().index(prompt["id"])
        outcome, judged = judge(trace, index, prompt, case, policy, layers, margins, replay)
        here = f"{where}, {prompt['id']}"
        choice = outcome.choice_margin if not replay else float("inf")
        near = (outcome.logit_margin <= NEAR_TIE_LOGITS or choice <= NEAR_TIE_CHOICE
                or margins.value <= NEAR_TIE_SET)
        harness.require(not near, f"{here}: a near tie ({outcome.logit_margin:.1e} in logits, "
                        f"{choice:.1e} in a choice, {margins.value:.1e} of a set's edge); choose "
                        "another seed")
        compare_layers(trace, index, judged, policy, worst, counts, here)
        difference = compare_steps(trace, index, prompt, outcome, here)
        harness.require(difference <= TOLERANCE, f"{here}: confidence differs by {difference}")
        for name, value in (("logits", outcome.logit_margin), ("choice", choice),
                            ("edge", margins.value)):
            counts[name] = min(counts[name], value)
        counts["confidence"] = max(counts["confidence"], difference)
        counts["rows"] += len(judged)
        counts["sequences"] += 1
    return trace


def main():
    harness.start()
    worst = Worst()
    counts = {name: 0 for name in ("rows", "sequences", "sets", "dense", "confidence", "exact")}
    counts |= {name: float("inf") for name in ("logits", "choice", "edge")}
    with harness.temporary_folder() as path:
        folder = pathlib.Path(path)
        checkpoints = Checkpoints(folder)
        for case in CASES:
            for policy in case.policies:
                trace = check_case(folder, checkpoints, case, policy, worst, counts)
                if policy.residual:
                    check_first_steps(trace, f"{case.name}, {policy.name}")
                if case is EVERYTHING:
                    check_everything(folder, case, policy, checkpoints, trace, counts)
            print(f"{case.name}: {len(case.policies)} policies", flush=True)
        check_draws(folder, checkpoints, RANDOM, counts)
    print(f"{counts['sequences']} sequences, {counts['rows']} steps, {counts['sets']} sets, "
          f"{counts['dense']} layers of steps that read everything, {counts['draws']} draws")
    print(f"nearest decision: {counts['logits']:.1e} in logits, {counts['choice']:.1e} in "
          f"confidence, {counts['edge']:.1e} of the score at a set's edge")
    print(f"largest difference: confidence {counts['confidence']:.1e}, k >= N from exact "
          f"{counts['exact']:.1e}")
    for name, (count, error) in worst.errors.items():
        print(f"  {name:26} {count:9} values, largest error {error:.1e}")


if __name__ == "__main__":
    main()
