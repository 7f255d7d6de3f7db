"""Every number and every heatmap of a report page against h5py and numpy: check_numbers(page,
folder of its figures, trace, backbone's trace or None)."""

import re

import numpy as np

import reuse_oracle
import sets_reference
from figure_cells import LEVELS, heatmaps

DIGITS = 6e-5  # four decimals are shown
PATHS = ("/attention/external", "/attention/internal")


def number(text):
    return np.nan if text == "\u2013" else float(text.replace(",", ""))


def close(got, wanted, what):
    got = number(got) if isinstance(got, str) else got
    both_none = np.isnan(got) and np.isnan(wanted)
    # Numbers below 0.001 are shown with three digits.
    assert both_none or abs(got - wanted) < max(DIGITS, 6e-3 * abs(wanted) * (abs(wanted) < 1e-3)), \
        (what, got, wanted)


def equal(got, wanted, what):
    assert number(got) == wanted, (what, got, wanted)


def rows_of(page, name, header):
    rows = page.figures[name]["rows"]
    assert rows[0] == header, (name, rows[0])
    return rows[1:]


def check_recall(page, trace):
    rows = page.figures["recall"]["rows"]
    sizes = [int(name.removeprefix("k = ")) for name in rows[0][1:]]
    assert sizes and max(sizes) <= trace.k
    means = sets_reference.recall([trace], sizes)[0]["recall"].over(lambda cell: cell[2:])
    for step, *values in rows[1:]:
        for k, value in zip(sizes, values):
            close(value, means.mean((int(step), k)), ("recall", step, k))
    assert {t for t, _ in means.terms} == {int(row[0]) for row in rows[1:]}
    assert f"n = {sum(means.terms.values()):,} terms" in page.figures["recall"]["caption"]


def check_union(page, trace):
    rows = rows_of(page, "union-size", ["|U| / k", "count, all steps", "count, step 1"])
    caption = page.figures["union-size"]["caption"]
    sizes = sets_reference.unions([trace])[1]
    for column, name, chosen in ((1, "All steps", sizes),
                                 (2, "Step 1", [s for s in sizes if s[1] == 1])):
        shares = np.array([size / trace.k for *_, size in chosen])
        for row in rows:
            low, high = (float(v) for v in re.findall(r"[\d.]+", row[0]))
            equal(row[column], ((shares >= low) & (shares < high)).sum(), ("union", name, row[0]))
        assert sum(number(row[column]) for row in rows) == len(shares)
        told = re.search(name + r": p5 ([\d.]+), p50 ([\d.]+), p95 ([\d.]+), max ([\d.]+) "
                         r"\(n = ([\d,]+)\)", caption)
        wanted = np.quantile(shares, [0.05, 0.5, 0.95, 1.0], method="inverted_cdf")
        assert np.allclose([float(v) for v in told.groups()[:4]], wanted, atol=6e-3), (told, wanted)
        equal(told.group(5), len(shares), "union")


def check_estimation(page, trace):
    rows = rows_of(page, "estimation-accuracy", ["layer", "block oracle", "first-step oracle"])
    means = sets_reference.estimation_accuracy([trace])
    later = sets_reference.Means()
    for (estimator, layer, head, t), terms in means.terms.items():
        if t > 1:
            later.sums[estimator, layer] += means.sums[estimator, layer, head, t]
            later.terms[estimator, layer] += terms
    for layer, row in enumerate(rows):
        last = layer == len(trace.layers)
        assert row[0] == ("all" if last else str(trace.layers[layer]))
        for estimator in (0, 1):
            of = later.over(lambda cell: cell[:1]) if last else later
            close(row[1 + estimator], of.mean((estimator,) if last else (estimator, layer)), row)


def check_gamma(page, traces, similarity):
    header = ["\u03c4", "\u03b3", "heads", "bytes saved", "FLOPs saved", "error where reused",
              "error over all heads", "terms where reused"]
    layers, heads, kv_heads = traces[0].shape
    known = {}
    for tau, gamma, *values in rows_of(page, "gamma-curve", header):
        tau = int(tau)
        if tau not in known:
            errors = [reuse_oracle.errors_of(trace, tau, False)[0] for trace in traces]
            known[tau] = reuse_oracle.savings_of(traces, tau)[0], errors
        mask = reuse_oracle.mask_of(similarity, float(gamma), heads // kv_heads, False)
        wanted = reuse_oracle.predicted(traces, mask, *known[tau])
        what = ("gamma curve", tau, gamma)
        equal(values[0], wanted["heads"], what)
        equal(values[5], wanted["terms_reused"], what)
        for value, name in zip(values[1:5], ("byte_saving", "flop_saving", "relative_l2_reused",
                                             "relative_l2_all_steps")):
            close(value, wanted[name], (*what, name))
    assert sorted(known) == [2, 3, 4]


def check_reuse_error(page, trace):
    rows = page.figures["reuse-error"]["rows"]
    for column, name in enumerate(rows[0][1:], 1):
        cells, _ = reuse_oracle.errors_of(trace, float(name.removeprefix("\u03c4 = ")), False)
        for layer, row in enumerate(rows[1:]):
            assert row[0] == str(trace.layers[layer])
            sums = sum(cells[layer, head][0].values for head in range(len(trace.heads)))
            close(row[column], np.sqrt(sums[0] / sums[2]), ("reuse error", name, row[0]))


def check_stages(page, trace, backbone):
    names = ["S1 KL of predictions \u2193", "S2 hidden gap \u2193", "S3 query gap \u2193",
             "S4 block query gap \u2193", "S5 recall \u2191"]
    def means(of):
        stages = sets_reference.query_statistics([of])
        return [(m.mean(()), m.terms[()]) for m in (s.over(lambda cell: ()) for s in stages)]
    if backbone is None:
        rows = rows_of(page, "query-stages", ["stage", "mean over steps t > 1", "n"])
        for row, name, (mean, terms) in zip(rows, names, means(trace), strict=True):
            assert row[0] == name
            close(row[1], mean, row)
            equal(row[2], terms, row)
        return
    rows = rows_of(page, "query-stages", ["stage", "backbone", "trained", "change"])
    for row, name, plain, trained in zip(rows, names, means(backbone), means(trace), strict=True):
        assert row[0] == name
        for cell, (mean, terms) in zip(row[1:3], (plain, trained)):
            shown, n = re.fullmatch(r"([\d.e+-]+) \(n = ([\d,]+)\)", cell).groups()
            close(shown, mean, row)
            equal(n, terms, row)
        change = 100 * (trained[0] - plain[0]) / abs(plain[0])
        assert abs(float(row[3].removesuffix(" %")) - change) < 0.51, (row, change)


def check_decoding(page, folder, trace):
    result, settled, _, below = sets_reference.decoding([trace], (1, 2, 3, 4))
    over = {name: means.over(lambda cell: ()) for name, means in result.items()}
    names = {"tokens per step": "tokens", "steps per block": "steps",
             "confidence at transfer": "confidence", "M": "M", "accuracy": "accuracy"}
    rows = rows_of(page, "decoding-means", ["quantity", "mean", "n"])
    later = over["M"].terms[()]
    for name, mean, terms in rows:
        if name.startswith("share"):
            close(mean, below[int(name.split()[-1])] / later, name)
            equal(terms, later, name)
        else:
            close(mean, over[names[name]].mean(()), name)
            equal(terms, over[names[name]].terms[()], name)
    assert len(rows) == sum(np.isfinite(m.mean(())) for m in over.values()) + 4 * (later > 0)
    for step, tokens, confidence in rows_of(page, "decoding-steps",
                                            ["step", "tokens", "confidence"]):
        close(tokens, result["tokens"].mean((int(step),)), ("tokens", step))
        close(confidence, result["confidence"].mean((int(step),)), ("confidence", step))
    steps = max(t for t, in result["tokens"].terms)
    cells = np.zeros((trace.block_length, steps))
    for (t, position), count in settled.items():
        cells[position, t - 1] = count
    check_colours(folder / "settled.svg", [cells], 0.0, cells.max())


def check_colours(path, wanted, low, high):
    """The drawing's cells against plots [row, column] on a scale from low to high. Neighbours in the
    palette may round to nearly the same colour: one level either way."""
    shown = low + (high - low) * heatmaps(path, wanted[0].shape)
    assert len(shown) == len(wanted), (path, len(shown), len(wanted))
    np.testing.assert_allclose(shown, wanted, rtol=0, atol=1.6 * (high - low) / LEVELS,
                               err_msg=str(path))


def cosines(a, b):
    """[i, j] of vectors a[i], b[j]."""
    a, b = (x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (a, b))
    return np.einsum("...ic,...jc->...ij", a, b)


def scale_of(caption):
    return float(re.search(r"One colour scale, from (\S+) to 1\.", caption).group(1))


def check_heatmaps(page, folder, trace):
    caption = page.figures["token-similarity"]["caption"]
    sequence, block, layer = (int(v) for v in re.search(
        r"Sequence (\d+), block (\d+), layer (\d+)", caption).groups())
    together = re.search(r"head (\d+)[;.]", caption)
    rows = [row for row in trace.blocks()[sequence, block] if trace.step["recorded"][row]]
    head = [trace.heads.index(int(together.group(1)))] if together else slice(None)
    def values(row, path):
        return trace.at(path, row, trace.layers.index(layer))[head]
    pairs = [(a, b) for a, b in zip(rows, rows[1:])
             if trace.step["step"][b] == trace.step["step"][a] + 1]
    shown = [tuple(int(v) for v in match) for match in re.findall(
        r"steps (\d+) \u2192 (\d+)", (folder / "token-similarity.svg").read_text())]
    by_steps = {(int(trace.step["step"][a]), int(trace.step["step"][b])): (a, b) for a, b in pairs}
    assert shown and f"{len(shown)} of {len(pairs)} pairs" in caption, (shown, caption)
    plots = []
    for path in PATHS:
        for steps in shown:
            # Heads are concatenated per token; step s runs along x, step s + 1 along y.
            first, second = (np.concatenate(values(row, path), axis=-1) for row in by_steps[steps])
            plots.append(cosines(first, second).T)
    check_colours(folder / "token-similarity.svg", plots, scale_of(caption), 1.0)
    plots = []
    for path in PATHS:
        of = [values(row, path) for row in rows]
        unit = [x / np.linalg.norm(x, axis=-1, keepdims=True) for x in of]
        plots.append(np.array([[(a * b).sum(-1).mean() for b in unit] for a in unit]))
    check_colours(folder / "step-similarity.svg", plots,
                  scale_of(page.figures["step-similarity"]["caption"]), 1.0)


def head_means(file_trace):
    """{path: Means by (layer slot, head slot, step s of the pair)} of sim(s, s + 1)."""
    result = {path: sets_reference.Means() for path in PATHS}
    for rows in file_trace.blocks().values():
        for before, row in zip(rows, rows[1:]):
            step = file_trace.step
            if not (step["recorded"][before] and step["recorded"][row]) or \
                    step["step"][row] != step["step"][before] + 1:
                continue
            valid = np.intersect1d(file_trace.valid(before), file_trace.valid(row))
            for path in PATHS[int(step["context_length"][row] == 0):]:
                a, b = (file_trace.at(path, r)[:, :, valid] for r in (before, row))
                norms = np.sqrt((a * a).sum(-1) * (b * b).sum(-1))
                means = ((a * b).sum(-1) / norms).mean(-1)
                for (layer, head), mean in np.ndenumerate(means):
                    result[path].add((layer, head, int(step["step"][before])), mean, valid.size)
    return result


def check_similarity(page, trace):
    means = head_means(trace)
    external, internal = (means[path] for path in PATHS)
    rows = rows_of(page, "head-similarity", ["layer", "head", "A_in", "A_out", "terms"])
    by_head = [m.over(lambda cell: cell[:2]) for m in (external, internal)]
    assert len(rows) == len(trace.layers) * len(trace.heads)
    for layer, head, inside, out, terms in rows:
        cell = trace.layers.index(int(layer)), trace.heads.index(int(head))
        close(inside, by_head[1].mean(cell), ("A_in", layer, head))
        close(out, by_head[0].mean(cell), ("A_out", layer, head))
        equal(terms, by_head[0].terms[cell], ("terms", layer, head))
    by_step = [m.over(lambda cell: cell[2:]) for m in (external, internal)]
    rows = rows_of(page, "similarity-over-steps", ["step", "A_out", "A_in", "terms of A_out"])
    for step, out, inside, terms in rows:
        close(out, by_step[0].mean((int(step),)), ("A_out", step))
        close(inside, by_step[1].mean((int(step),)), ("A_in", step))
        equal(terms, by_step[0].terms[int(step),], ("terms", step))
    steadier = sum(by_head[0].mean(cell) > by_head[1].mean(cell) for cell in by_head[0].terms)
    whole = [m.over(lambda cell: ()).mean(()) for m in (external, internal)]
    told = re.search(r"A out is steadier than A in in (\d+) of (\d+) heads.* adjacent steps is ([\d.]+) for A out ?,.* "
                     r"and ([\d.]+) for A in ?, attention inside the block \(n = ([\d,]+)\)",
                     " ".join(page.text.split()))
    assert (int(told[1]), int(told[2])) == (steadier, len(by_head[0].terms)), told
    close(told[3], whole[0], "finding")
    close(told[4], whole[1], "finding")
    equal(told[5], sum(external.terms.values()), "finding")


def check_mass(page, folder, trace):
    means = sets_reference.Means()
    for row, _, n, _ in trace.recorded():
        if n > 0:
            out, inside = (trace.at(f"/attention/lse_{side}", row)[..., trace.valid(row)]
                           for side in ("external", "internal"))
            for cell, mass in np.ndenumerate((1 / (1 + np.exp(inside - out))).mean(-1)):
                means.add(cell, mass, out.shape[-1])
    rows = rows_of(page, "external-mass", ["layer", "head", "external mass", "terms"])
    for layer, head, mass, terms in rows:
        cell = trace.layers.index(int(layer)), trace.heads.index(int(head))
        close(mass, means.mean(cell), ("mass", layer, head))
        equal(terms, means.terms[cell], ("mass", layer, head))
    shape = len(trace.layers), len(trace.heads)
    cells = np.array([means.mean(cell) for cell in np.ndindex(shape)]).reshape(shape)
    assert len(rows) == cells.size
    check_colours(folder / "external-mass.svg", [cells], 0.0, 1.0)


def check_numbers(page, folder, path, backbone=None):
    trace = sets_reference.Trace(str(path))
    reuse = reuse_oracle.Trace(path)
    similarity = np.full(reuse.shape[:2], np.nan)
    for (layer, head), pairs in reuse_oracle.pairs_of(reuse, False).items():
        similarity[reuse.layers[layer], reuse.heads[head]] = reuse_oracle.statistics(pairs)[0]
    check_similarity(page, trace)
    check_heatmaps(page, folder, trace)
    check_mass(page, folder, trace)
    check_gamma(page, [reuse], similarity)
    check_reuse_error(page, reuse)
    check_recall(page, trace)
    check_union(page, trace)
    check_estimation(page, trace)
    check_stages(page, trace, backbone and sets_reference.Trace(str(backbone)))
    check_decoding(page, folder, trace)
