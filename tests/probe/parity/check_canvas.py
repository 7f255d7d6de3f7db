"""LLaDA and Dream, with every cache and several strategies, against a float64 decoder written from the
rules: every pass, what it predicts and decides, and which rows it computes."""

import pathlib
import random

import harness

harness.start()

import canvas_oracle as oracle  # noqa: E402
from canvas_checkpoints import SPECS, spec_of, write_checkpoint  # noqa: E402
from oracle_decoder import Options  # noqa: E402
from trace_file import Trace  # noqa: E402

# prompt length, gen length, block length, steps a block
SHAPES = [(7, 16, 8, 8), (1, 12, 4, 2), (19, 10, 5, 5), (5, 24, 24, 6)]
STRATEGIES = [("low_confidence_static", {}), ("threshold", {"threshold": 0.3}), ("factor", {"factor": 1.4}),
              ("klass", {"threshold": 0.15, "kl_threshold": 0.5}),
              ("klass", {"threshold": 0.1, "kl_threshold": 2.0, "klass_choose": "max_conf"}),
              ("klass", {"threshold": 0.1, "kl_threshold": 2.0, "klass_choose": "min_kl"}),
              ("prefix_ordered", {"threshold": 0.25, "rank_by": "margin"}),
              ("threshold", {"threshold": 0.2, "quota": "carry"}),
              ("low_confidence_static", {"quota": "linear", "density_sigma": 3.0}),
              ("low_confidence_static", {"rank_by": "negative_entropy"})]
CACHES = [oracle.Cache("none"), oracle.Cache("prefix"), oracle.Cache("dual"),
          oracle.Cache("dllm-cache", prompt_interval=5, answer_interval=3, transfer_ratio=0.3),
          oracle.Cache("dllm-cache", prompt_interval=4, answer_interval=4, transfer_ratio=0.0),
          oracle.Cache("d2cache", current_k=5, sigma=3.0, rollout_p=0.2, inflate_window=3),
          oracle.Cache("d2cache", current_k=3, sigma=10.0, rollout_p=0.05, inflate_window=0),
          oracle.Cache("d2cache", current_k=5, sigma=3.0, rollout_p=0.2, inflate_window=3, as_released=True)]
OPTIONS = {"dllm-cache": ("prompt_interval", "answer_interval", "transfer_ratio"),
           "d2cache": ("current_k", "rollout_p", "inflate_window")}
TOO_NEAR, TOO_NEAR_LOGIT = 5e-5, 2e-4


class Totals:
    runs = steps = predictions = near = 0
    late = unseen = 0  # steps after the last that was planned; linear ones with masks that they don't predict
    largest = 0.0


def cache_flags(cache):
    text = ",".join([cache.kind, *(f"{name}={getattr(cache, name)}" for name in OPTIONS.get(cache.kind, ()))])
    if cache.kind == "d2cache":
        text += f",certainty_sigma={cache.sigma}" + (",as_released" if cache.as_released else "")
    return ["--cache", text]


def compare(where, trace, expected, prompt, options):
    rows = [r for r in trace.rows_of(0) if trace.rows("/steps/kind")[r] == 1]
    harness.require(len(rows) == len(expected.steps), f"{where}: {len(rows)} steps, expected {len(expected.steps)}")
    for row, step in zip(rows, expected.steps):
        at = f"{where}, block {step.block}, step {step.step}"
        start = len(prompt) + step.block * options.block_length
        got = [int(trace.rows(f"/steps/{name}")[row]) for name in ("block", "step", "block_start", "context_length")]
        want = [step.block, step.step, start, len(prompt) + options.gen_length - options.block_length]
        harness.require(got == want, f"{at}: block, step, start and N are {got}, expected {want}")
        positions, tokens, confidence = trace.delta(row)
        decided = sorted(zip((len(prompt) + p for p in positions), tokens))
        harness.require(decided == sorted(zip(step.positions, step.tokens)),
                        f"{at}: decided {decided}, expected {list(zip(step.positions, step.tokens))}")
        for i, predicted in enumerate(step.predicted):
            if not predicted:
                continue
            harness.require(int(trace.rows("/prediction/token")[row][i]) == step.top1[i], f"{at}: best token of {i}")
            error = abs(float(trace.rows("/prediction/confidence")[row][i]) - step.confidence[i])
            Totals.largest = max(Totals.largest, error)
            harness.require(error < 1e-4, f"{at}: confidence of {i} differs by {error}")
            Totals.predictions += 1
        Totals.steps += 1
        Totals.late += step.step > options.steps
        Totals.unseen += options.quota == "linear" and step.unseen > 0


def run(work, name, model, shape, strategy, cache, seed):
    spec = spec_of(name)
    prompt_length, gen_length, block_length, steps = shape
    kind, values = strategy
    if kind != "low_confidence_static" and values.get("quota") != "carry":
        steps = block_length
    draw = random.Random(seed)
    prompt = [draw.randrange(spec["vocab"] - 4) for _ in range(prompt_length)]
    options = Options(kind, spec["mask"], block_length, steps, gen_length, **values)
    expected = oracle.decode(model, prompt, options, cache, 1 if spec["family"] == "dream" else 0)
    if expected.margin < TOO_NEAR or expected.logit_margin < TOO_NEAR_LOGIT:
        Totals.near += 1
        return False
    path = work / "run.h5"
    text = ",".join([kind, *(f"{option}={value}" for option, value in values.items())])
    harness.run("capture", work / name, "--input-ids", ",".join(map(str, prompt)), "--gen-length", gen_length,
                "--block-length", block_length, "--denoising-steps", steps, "--strategy", text,
                *cache_flags(cache), "--no-stop", "--dtype", "float32", "--record", "trajectory", "--threads", 1,
                "--quiet", "--force", "-o", path)
    where = f"{name}, {cache}, {kind}, {shape}, seed {seed}"
    compare(where, Trace(path), expected, prompt, options)
    Totals.runs += 1
    return True


def main():
    with harness.temporary_folder() as folder:
        work = pathlib.Path(folder)
        for n, name in enumerate(SPECS):
            model = write_checkpoint(work / name, name)
            for c, cache in enumerate(CACHES):
                for s, strategy in enumerate(STRATEGIES):
                    # Rows that dllm-cache keeps predict what they did: their KLs are all 0, a tie.
                    if cache.kind == "dllm-cache" and strategy[1].get("klass_choose") == "min_kl":
                        continue
                    # A step that decides nothing leaves every cosine of dllm-cache at 1, a tie: the linear
                    # quota takes the shape in which each step decides.
                    linear = strategy[1].get("quota") == "linear"
                    # Where [MASK] is often the best token, KLASS changes too little to distinguish positions.
                    if spec_of(name)["mask_scale"] > 1 and not (linear and cache.kind in ("prefix", "dual")):
                        continue
                    shape = SHAPES[-1 if linear else (n + c + s) % len(SHAPES)]
                    # Another prompt where a decision is too near to another one.
                    found = any(run(work, name, model, shape, strategy, cache, 100 * n + 10 * c + s + 1000 * i)
                                for i in range(40))
                    harness.require(found, f"{name}, {cache}, {strategy}: no prompt without a near tie")
    harness.require(Totals.late > 0, "no block took more steps than planned: the carried quota was not tried")
    harness.require(Totals.unseen > 0, "the linear quota never had a mask to count that no row predicts")
    harness.require(all(oracle.Rules.several[name] for name in ("all", "max_conf", "min_kl")),
                    f"klass never had several positions to choose from: {oracle.Rules.several}")
    print(f"{Totals.runs} runs, {Totals.steps} steps ({Totals.late} late), {Totals.predictions} predictions equal; largest difference "
          f"of a confidence {Totals.largest:.1e}; {Totals.near} prompts left out for near ties")


if __name__ == "__main__":
    main()
