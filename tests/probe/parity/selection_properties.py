"""What must hold of the sparse policies whatever a judge says: with all keys they are exact, a
residual's first step is, and `random` draws as it promises."""

import dataclasses

import harness
import numpy as np
from oracle_decoder import DENOISE
from selection_math import Policy
from selection_run import capture, make_prompts, recorded_sets, steps_of


def check_everything(folder, case, policy, checkpoints, trace, counts):
    """With k >= N every policy is exact, but for SparseD's one set for the run: it lacks what is
    committed after it was taken, and the judge alone compares it."""
    if policy.run_wide:
        return
    checkpoint, layers = checkpoints.get(case)
    exact = capture(folder, case, Policy("exact"), checkpoint, make_prompts(layers.spec, case),
                    name="exact.h5")
    harness.require(trace.names() == exact.names(), "other sequences")
    for path in ("/frames/delta_end", "/frames/position", "/frames/token", "/prediction/token"):
        harness.require(np.array_equal(trace.file[path][:], exact.file[path][:]),
                        f"{policy.flags()}: {path} is not exact's")
    for path in ("/attention/external", "/attention/lse_external", "/attention/internal",
                 "/query/query", "/prediction/confidence"):
        ours, theirs = trace.rows(path), exact.rows(path)
        same = np.isfinite(theirs)
        harness.require(np.array_equal(np.isfinite(ours), same), f"{path}: other holes")
        difference = float(np.abs(ours[same] - theirs[same]).max())
        counts["exact"] = max(counts["exact"], difference)
        harness.require(difference <= 1e-4, f"{policy.flags()}: {path} differs by {difference}")
    error = float(np.nanmax(trace.rows("/shadow/output_error")))
    harness.require(error <= 1e-5, f"{policy.flags()}: output error {error} with all keys")


def check_first_steps(trace, where):
    """A residual is kept at a block's first step, where everything is read, and merged later."""
    first = (trace.rows("/steps/kind") == DENOISE) & (trace.rows("/steps/step") == 1)
    harness.require(first.sum() > 3, f"{where}: hardly any block")
    for name in ("external", "lse_external"):
        harness.require(np.array_equal(trace.rows(f"/attention/{name}")[first],
                                       trace.rows(f"/shadow/{name}")[first]),
                        f"{where}: {name} of a first step is not exact")
    harness.require((trace.rows("/attention/lse_residual")[first] == -np.inf).all()
                    and (trace.rows("/shadow/output_error")[first] == 0).all(),
                    f"{where}: a first step merged something")


def draws_of(trace, spec):
    """{(prompt, block, layer, KV head): (N, set)}, the same at every step of the block."""
    draws = {}
    for index, name in enumerate(trace.names()):
        for row in steps_of(trace, index):
            block, count = (int(trace.rows(f"/steps/{n}")[row]) for n in
                            ("block", "context_length"))
            for layer in range(spec["layers"] if count else 0):
                for kv, chosen in enumerate(recorded_sets(trace, row, layer)):
                    drawn = (count, tuple(chosen))
                    harness.require(draws.setdefault((name, block, layer, kv), drawn) == drawn,
                                    f"{name}, row {row}: another draw than a step before")
    return draws


def check_draws(folder, checkpoints, case, counts):
    """k distinct positions of the prefix, one draw per block, layer and KV head, by the seed."""
    checkpoint, layers = checkpoints.get(case)
    prompts, policy = make_prompts(layers.spec, case), case.policies[0]
    draws = draws_of(capture(folder, case, policy, checkpoint, prompts), layers.spec)
    for (name, *_), (count, chosen) in draws.items():
        harness.require(len(chosen) == min(policy.k, count) and max(chosen) < count,
                        f"{name}: drew {chosen} of {count}")
    partial = {key: drawn for key, drawn in draws.items() if drawn[0] > 16}
    harness.require(len(set(partial.values())) == len(partial) > 20, "a draw is there twice")
    alone = dataclasses.replace(case, batch=1)
    harness.require(draws_of(capture(folder, alone, policy, checkpoint, prompts[::-1]),
                             layers.spec) == draws, "the batch changes the draws")
    other = draws_of(capture(folder, case, dataclasses.replace(policy, seed=4), checkpoint,
                             prompts), layers.spec)
    harness.require(not any(other[key] == drawn for key, drawn in partial.items() if key in other),
                    "another seed, the same draw")
    # Uniform: the mean of all drawn positions, as shares of the prefix, is 1/2.
    shares = np.concatenate([(np.array(s) + 0.5) / n for n, s in partial.values()])
    deviations = abs(shares.mean() - 0.5) / (12 * len(shares)) ** -0.5
    harness.require(deviations < 4, f"the draws lean: {deviations:.1f} standard deviations")
    counts["draws"] = len(draws)
