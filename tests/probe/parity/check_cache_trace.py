"""What a trace says about a cache, compared with the float64 decoder of canvas_oracle.py: positions computed and
entries written at every layer, rows of the block left out, staleness against a pass without cache; KLASS's
divergence; and `analyze --metric cache` against numpy on the same file."""

import itertools
import json
import pathlib
import random

import harness

harness.start()

import canvas_oracle as oracle  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from canvas_checkpoints import spec_of, write_checkpoint  # noqa: E402
from check_canvas import TOO_NEAR, TOO_NEAR_LOGIT, cache_flags  # noqa: E402
from oracle_decoder import Options  # noqa: E402
from trace_file import Trace  # noqa: E402

NAMES = ("llada-gqa-padded", "dream")
CACHES = [oracle.Cache("none"), oracle.Cache("prefix"), oracle.Cache("dual"),
          oracle.Cache("dllm-cache", prompt_interval=5, answer_interval=3, transfer_ratio=0.3),
          oracle.Cache("dllm-cache", prompt_interval=4, answer_interval=4, transfer_ratio=0.0),
          oracle.Cache("d2cache", current_k=3, sigma=10.0, rollout_p=0.05, inflate_window=0),
          oracle.Cache("d2cache", current_k=5, sigma=3.0, rollout_p=0.2, inflate_window=3)]
SHAPE = (7, 16, 8)  # prompt, gen length, block length
BLOCK_ARRAYS = ("/attention/lse_external", "/attention/lse_internal")
SUMMARIES = ("/summary/similarity_internal", "/summary/external_mass", "/summary/query_gap")


class Totals:
    rows = cosines = 0
    largest = 0.0


def positions(trace, what, row, layer):
    """Positions that a row computed, from the bare datasets."""
    ends = trace.rows(f"/cache/{what}_end")
    at = row * ends.shape[1] + layer
    begin, end = (int(ends.flat[at - 1]) if at else 0), int(ends.flat[at])
    starts, stops = (trace.file[f"/cache/{what}_{name}"][begin:end] for name in ("start", "stop"))
    return [p for a, b in zip(starts, stops) for p in range(a, b)]


def mean_cosine(a, b, rows):
    """a, b [heads, L, D]: mean over rows, heads concatenated."""
    if not len(rows):
        return float("nan")
    x, y = (t[:, rows].transpose(0, 1).flatten(1) for t in (a, b))
    return float(torch.cosine_similarity(x, y, dim=-1).mean())


def expected_steps(model, prompt, options, cache, shift):
    """-> the oracle's outcome, and by step and layer: rows, keys, values, the three cosines."""
    steps = []
    begin = [len(prompt)]

    def watch(state, tokens):
        while options.mask_id not in tokens[begin[0]:begin[0] + options.block_length]:
            begin[0] += options.block_length
        truth = oracle.State(model, len(tokens))
        oracle.forward_rows(model, truth, tokens, list(range(len(tokens))))
        layers = []
        for index, (rows, keys, values, z) in enumerate(state.log):
            kept_keys, kept_values = ([p for p in range(len(tokens)) if p not in set(w)] for w in (keys, values))
            mine = [i for i, p in enumerate(rows) if begin[0] <= p < begin[0] + options.block_length]
            attention = float("nan")
            if mine:
                whole = truth.log[index][3][[rows[i] for i in mine]]
                attention = float(torch.cosine_similarity(z[mine], whole, dim=-1).mean())
            layers.append((list(rows), list(keys), list(values),
                           mean_cosine(state.k[index], truth.k[index], kept_keys),
                           mean_cosine(state.v[index], truth.v[index], kept_values), attention))
        steps.append(layers)

    return oracle.decode(model, prompt, options, cache, shift, watch), steps


def check_row(where, trace, row, layers, begin, size):
    computed = [p in set(layers[0][0]) for p in range(begin, begin + size)]
    got = trace.rows("/steps/valid")[row]
    harness.require(got.tolist() == computed, f"{where}: valid {got}, expected {computed}")
    for index, (rows, keys, values, *cosines) in enumerate(layers):
        for what, want in (("query", rows), ("key", keys), ("value", values)):
            got = positions(trace, what, row, index)
            harness.require(got == want, f"{where}, layer {index}: {what} {got}, expected {want}")
        for name, want in zip(("key", "value", "attention"), cosines):
            got = float(trace.rows(f"/shadow/{name}_cosine")[row, index])
            harness.require(np.isnan(got) == np.isnan(want), f"{where}, layer {index}: {name} {got}, {want}")
            if not np.isnan(want):
                Totals.largest = max(Totals.largest, abs(got - want))
                harness.require(abs(got - want) < 2e-5, f"{where}, layer {index}: {name} {got}, {want}")
                Totals.cosines += 1
        here = np.isin(np.arange(begin, begin + size), rows)
        for name in BLOCK_ARRAYS:
            there = ~np.isnan(trace.rows(name)[row, index])
            harness.require((there == here).all(), f"{where}, layer {index}: {name} at {there}, computed {here}")
    Totals.rows += 1


def check_summaries(where, trace, row, layers, before, begin, size, first):
    """Means over the rows of the block that both steps computed."""
    for index in range(len(layers)):
        now, then, start = ({p - begin for p in step[index][0] if begin <= p < begin + size}
                            for step in (layers, before or layers, first))
        internal = trace.rows("/attention/internal")[row, index].astype(np.float64)
        mass = trace.rows("/summary/external_mass")[row, index]
        outside, inside = (trace.rows(n)[row, index].astype(np.float64) for n in BLOCK_ARRAYS)
        want = np.full(len(mass), np.nan) if not now else (1 / (1 + np.exp(inside - outside)))[:, sorted(now)].mean(1)
        np.testing.assert_allclose(mass, want, rtol=2e-5, err_msg=f"{where}, layer {index}")
        if before is None:
            continue
        rows = sorted(now & then)
        similarity = trace.rows("/summary/similarity_internal")[row, index]
        previous = trace.rows("/attention/internal")[row - 1, index].astype(np.float64)
        unit = [x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (internal, previous)]
        want = (unit[0] * unit[1]).sum(-1)[:, rows].mean(1) if rows else np.full(len(mass), np.nan)
        np.testing.assert_allclose(similarity, want, rtol=2e-5, atol=1e-6, err_msg=f"{where}, layer {index}")
        rows = sorted(now & start)
        q, base = (trace.rows("/query/query")[r, index].astype(np.float64) for r in (row, first_row(trace, row)))
        unit = [x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (q, base)]
        gap = np.linalg.norm(unit[0] - unit[1], axis=-1)
        want = gap[:, rows].mean(1) if rows else np.full(len(mass), np.nan)
        np.testing.assert_allclose(trace.rows("/summary/query_gap")[row, index], want, rtol=1e-4, atol=1e-6,
                                   err_msg=f"{where}, layer {index}")


def first_row(trace, row):
    return row - int(trace.rows("/steps/step")[row]) + 1


def same(name, got, want):
    got = np.array([np.nan if v is None else v for v in got], float)
    np.testing.assert_allclose(got, np.array(want, float).ravel(), rtol=1e-6, atol=1e-7, equal_nan=True, err_msg=name)


def check_analysis(work, path, trace):
    out = work / "cache.json"
    harness.run("analyze", path, "--metric", "cache", "--json", out, "--force", "-q")
    arrays = {a["name"]: a for a in json.loads(out.read_text())["metrics"][0]["arrays"]}
    step = trace.rows("/steps/step")
    layers, steps = trace.rows("/cache/query_end").shape[1], int(step.max())
    length = len(trace.prompt(0)) + int(trace.file["/sequences/gen_length"][0])
    count = {what: np.array([[len(positions(trace, what, r, layer)) for layer in range(layers)]
                             for r in range(trace.num_rows)]) for what in ("query", "key", "value")}

    def by_step(values, rows=slice(None)):
        cells = np.full((layers, steps), np.nan)
        for layer, s in itertools.product(range(layers), range(steps)):
            mine = values[rows][step[rows] == s + 1, layer]
            if np.isfinite(mine).any():
                cells[layer, s] = np.nanmean(mine)
        return cells

    same("rows", arrays["rows"]["values"], by_step(count["query"]))
    same("saved", arrays["saved"]["values"], 1 - by_step(count["query"]) / length)
    same("keys", arrays["keys"]["values"], by_step(count["key"]))
    same("values", arrays["values"]["values"], by_step(count["value"]))
    block = trace.rows("/steps/block")
    same("rows_by_block", arrays["rows_by_block"]["values"],
         [[count["query"][(block == b) & (step == s + 1)].mean() if ((block == b) & (step == s + 1)).any() else np.nan
           for s in range(steps)] for b in sorted(set(block.tolist()))])
    cosines = {n: trace.rows(f"/shadow/{n}") for n in ("key_cosine", "value_cosine", "attention_cosine")}
    for name, values in cosines.items():
        same(name, arrays[name]["values"], by_step(values))
    decided = int(trace.rows("/frames/delta_end")[-1])
    means = [count["query"].mean(), 1 - count["query"].sum() / count["query"].size / length, count["key"].mean(),
             count["value"].mean(), decided / trace.num_rows]
    means += [np.nanmean(v) if np.isfinite(v).any() else np.nan for v in cosines.values()]
    same("means", arrays["means"]["values"], means)


def run(work, name, model, cache, seed):
    spec, (prompt_length, gen_length, size) = spec_of(name), SHAPE
    draw = random.Random(seed)
    prompt = [draw.randrange(spec["vocab"] - 4) for _ in range(prompt_length)]
    options = Options("threshold", spec["mask"], size, size, gen_length, threshold=0.2)
    outcome, expected = expected_steps(model, prompt, options, cache, 1 if spec["family"] == "dream" else 0)
    if outcome.margin < TOO_NEAR or outcome.logit_margin < TOO_NEAR_LOGIT or options.mask_id in outcome.tokens:
        return False
    path = work / "run.h5"
    shadow = ["--shadow"] if cache.kind != "none" else []
    harness.run("capture", work / name, "--input-ids", ",".join(map(str, prompt)), "--gen-length", gen_length,
                "--block-length", size, "--denoising-steps", size, "--strategy", "threshold,threshold=0.2",
                *cache_flags(cache), *shadow, "--no-stop", "--dtype", "float32", "--record", "full",
                "--array-type", "f32", "--set-size", 4, "--threads", 1, "--quiet", "--force", "-o", path)
    trace = Trace(path)
    harness.require(trace.num_rows == len(expected), f"{name}, {cache}: {trace.num_rows} rows, {len(expected)}")
    block = trace.rows("/steps/block")
    for row, layers in enumerate(expected):
        where, begin = f"{name}, {cache}, row {row}", prompt_length + int(block[row]) * size
        if not shadow:
            whole = all(positions(trace, "query", row, i) == list(range(prompt_length + gen_length))
                        for i in range(spec["layers"]))
            harness.require(whole and "/shadow" not in trace.file, f"{where}: not the whole canvas")
            continue
        check_row(where, trace, row, layers, begin, size)
        first = int(trace.rows("/steps/step")[row]) == 1
        check_summaries(where, trace, row, layers, None if first else expected[row - 1], begin, size,
                        expected[first_row(trace, row)])
    if shadow:
        check_analysis(work, path, trace)
    harness.run("report", path, "-o", work / "page.html", "--force")
    page = (work / "page.html").read_text()
    several = int(trace.rows("/steps/step").max()) > 1  # maps need two steps of a block
    shown = "What the cache kept" in page and ("kv-step-similarity" in page) == several
    harness.require(shown, f"{name}, {cache}: no section, or no map")
    return True


def check_klass(work, name, model):
    """/prediction/kl against the oracle's probabilities, kept from step to step."""
    spec, (prompt_length, gen_length, size) = spec_of(name), SHAPE
    prompt = [random.Random(7).randrange(spec["vocab"] - 4) for _ in range(prompt_length)]
    path = work / "klass.h5"
    harness.run("capture", work / name, "--input-ids", ",".join(map(str, prompt)), "--gen-length", gen_length,
                "--block-length", size, "--denoising-steps", size, "--strategy", "klass", "--no-stop", "--dtype",
                "float32", "--record", "trajectory", "--threads", 1, "--quiet", "--force", "-o", path)
    trace = Trace(path)
    harness.require(int(trace.file.attrs["has_kl"]) == 1, "klass: no has_kl")
    tokens = prompt + [spec["mask"]] * gen_length
    shift = 1 if spec["family"] == "dream" else 0
    before = {}  # of each position, at the step before
    for row in range(trace.num_rows):
        begin = prompt_length + int(trace.rows("/steps/block")[row]) * size
        state = oracle.State(model, len(tokens))
        logits, _ = oracle.forward_rows(model, state, tokens, list(range(len(tokens))))
        now = {p: logits[p - shift].softmax(-1).numpy() for p in range(begin, len(tokens))}
        kl = trace.rows("/prediction/kl")[row]
        if row == 0:
            harness.require(np.isnan(kl).all(), f"klass: {kl} at the first step")
        else:
            want = [(now[p] * (np.log(now[p] + 1e-12) - np.log(before[p] + 1e-12))).sum()
                    for p in range(begin, begin + size)]
            np.testing.assert_allclose(kl, want, rtol=1e-3, atol=2e-5, err_msg=f"klass, row {row}")
        before = now
        for at, token in zip(*trace.delta(row)[:2]):
            tokens[prompt_length + at] = token


def main():
    with harness.temporary_folder() as folder:
        work = pathlib.Path(folder)
        for n, name in enumerate(NAMES):
            model = write_checkpoint(work / name, name)
            for c, cache in enumerate(CACHES):
                found = any(run(work, name, model, cache, 500 + 100 * n + 10 * c + 1000 * i) for i in range(20))
                harness.require(found, f"{name}, {cache}: no prompt without a near tie")
            check_klass(work, name, model)
    print(f"{Totals.rows} rows, {Totals.cosines} cosines; largest difference {Totals.largest:.1e}")


if __name__ == "__main__":
    main()
