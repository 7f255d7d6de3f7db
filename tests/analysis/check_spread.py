"""The metrics `entropy`, `distance`, `regions` and `heads` of captures against means with h5py and numpy: exact
attention, heads that reuse, a bidirectional model, and what is left out."""

import json
import sys
import tempfile
from pathlib import Path

import h5py
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "cli"))

from capture_harness import MODELS, capture, require_binary, run  # noqa: E402
from family_case import write_family  # noqa: E402
from test_attention_map import expected  # noqa: E402


def metric(path, name, *flags):
    code, out, err = run("analyze", path, "--metric", name, "--json", "-", "--quiet", *flags)
    assert code == 0, err
    return json.loads(out)["metrics"][0]


def values(found, name):
    array = next(array for array in found["arrays"] if array["name"] == name)
    shape = [len(axis["index"] if "index" in axis else axis["labels"]) for axis in array["axes"]]
    terms = np.array(array.get("terms") or []).reshape(shape)
    return np.array([np.nan if x is None else x for x in array["values"]]).reshape(shape), terms


def same(found, want, what):
    np.testing.assert_allclose(found, want, rtol=1e-9, atol=1e-12, err_msg=what)


def mean(x, axis):
    known = ~np.isnan(x)
    count = known.sum(axis)
    with np.errstate(invalid="ignore"):
        return np.where(known, x, 0).sum(axis) / np.where(count, count, np.nan), count


def check(path):
    compared = 0
    with h5py.File(path) as file:
        steps = {name: file["/steps/" + name][()] for name in
                 ("kind", "recorded", "step", "context_length", "sequence", "block")}
        rows = np.flatnonzero((steps["kind"] == 1) & (steps["recorded"] == 1))
        of = {name: file["/spread/" + name][()].astype(np.float64) for name in
              ("entropy", "largest", "distance", "offset", "region", "answer_block")}
        distance, offset = file["/distance"][()].tolist(), file["/offset"][()].tolist()
        regions = file.attrs["regions"].decode().split(",")
    step = steps["step"][rows]

    entropy = metric(path, "entropy")
    for name, cells in (("entropy", of["entropy"][..., 2]), ("entropy_internal", of["entropy"][..., 1]),
                        ("largest", of["largest"][..., 2]), ("effective_keys", np.exp(of["entropy"][..., 2])),
                        ("entropy_external", np.where((steps["context_length"] > 0)[:, None, None],
                                                      of["entropy"][..., 0], np.nan))):
        found, terms = values(entropy, name)
        for t in range(1, found.shape[2] + 1):
            want, count = mean(cells[rows[step == t]], 0)
            same(found[:, :, t - 1], want, name)
            assert (terms[:, :, t - 1] == count).all(), name
            compared += count.sum()
    unknown = int(np.isnan(of["entropy"][rows][..., 2]).sum())
    assert (entropy["left_out"].get("values of heads that reused A_out", 0) > 0) == (unknown > 0)

    shares = metric(path, "distance")
    for name, axis in (("distance", distance), ("offset", offset)):
        found, terms = values(shares, "by_" + name)
        array = next(array for array in shares["arrays"] if array["name"] == "by_" + name)
        assert array["axes"][2]["index"] == axis, (array["axes"][2]["index"], axis)
        want, count = mean(of[name][rows], 0)
        same(found, want, name)
        assert (terms == count).all()
    whole = np.concatenate([of["distance"], of["offset"]], -1)
    assert np.allclose(whole[rows].sum(-1)[~np.isnan(whole[rows].sum(-1))], 1, atol=1e-5)
    previous = {(s, b, t): row for row, s, b, t in zip(rows, *(steps[name][rows] for name in
                                                               ("sequence", "block", "step")))}
    for name, other in (("agreement", lambda t: t - 1), ("agreement_first", lambda t: 1)):
        found, terms = values(shares, name)
        cells = {t: [] for t in range(1, found.shape[2] + 1)}
        for (s, b, t), row in previous.items():
            before = previous.get((s, b, other(t)))
            if t > 1 and before is not None:
                cells.setdefault(t, []).append(1 - np.abs(whole[row] - whole[before]).sum(-1) / 2)
        for t, cell in cells.items():
            if t > found.shape[2]:  # no head knows its weights in two such steps
                assert np.isnan(cell).all()
            elif cell:
                want, count = mean(np.stack(cell), 0)
                same(found[:, :, t - 1], want, name)
                assert (terms[:, :, t - 1] == count).all()
                compared += count.sum()
            else:
                assert np.isnan(found[:, :, t - 1]).all() and not terms[:, :, t - 1].any()

    found_regions = metric(path, "regions")
    found, terms = values(found_regions, "regions")
    assert found_regions["arrays"][0]["axes"][2]["labels"] == regions
    want, count = mean(of["region"][rows], 0)
    same(found, want, "regions")
    found, terms = values(found_regions, "answer_blocks")
    blocks = of["answer_block"][rows]
    want, count = mean(blocks, 0)
    same(found, want, "answer_block")
    assert (terms == count).all()
    answers = of["region"][rows][..., regions.index("answer")]
    assert np.nansum(blocks[..., 0]) > 0 and np.allclose(blocks.sum(-1), answers, atol=1e-5, equal_nan=True)
    found, terms = values(found_regions, "regions_by_step")
    for t in range(1, found.shape[1] + 1):
        want, count = mean(of["region"][rows[step == t]], (0, 1, 2))
        same(found[:, t - 1], want, "regions_by_step")
        assert (terms[:, t - 1] == count).all()
    return compared


def retrieval(file, rows, layers, heads):
    """Share of the copied tokens whose position in the prompt gets the head's largest weight, [L, H], and their number.
    One block of up to 4 deciding steps, so every step counts."""
    ends = file["/frames/delta_end"][()]
    hits = []
    prompt = file["/sequences/prompt_token"][:int(file["/sequences/prompt_length"][0])].tolist()
    generated, copied = {}, []
    for row in rows:
        of_row = slice(ends[row - 1] if row else 0, ends[row])
        decided = dict(zip(file["/frames/position"][of_row].tolist(), file["/frames/token"][of_row].tolist()))
        places = [p for p, token in decided.items() if token in prompt]
        if places:
            copied.append((row, [(p, decided[p]) for p in places]))
    steps = [copied[i * len(copied) // min(4, len(copied))] for i in range(min(4, len(copied)))]
    for row, tokens in steps:
        start = int(file["/steps/block_start"][row])
        hit = np.zeros((len(tokens), layers, heads))
        for layer in range(layers):
            places, weights = expected(file, row, layer, False)
            for i, (p, token) in enumerate(tokens):
                best = places[weights[:, p + len(prompt) - start].argmax(-1)]
                hit[i, layer] = [at < len(prompt) and prompt[at] == token for at in best]
        hits.extend(hit)
    return np.mean(hits, 0), len(hits)


def check_heads(path):
    found = metric(path, "heads")
    with h5py.File(path) as file:
        rows = np.flatnonzero((file["/steps/kind"][()] == 1) & (file["/steps/recorded"][()] == 1))
        layers, heads = len(file["/layer"]), len(file["/head"])
        keys = file["/steps/context_length"][()] + file["/steps/valid"][()].sum(-1)
        share = {"first": file["/spread/region"][()][rows][..., 0],
                 "local": file["/spread/offset"][()][rows].sum(-1) +
                 file["/spread/distance"][()][rows][..., np.abs(file["/distance"][()]) < 32].sum(-1),
                 "diffuse": file["/spread/entropy"][()][rows][..., 2] / np.log(keys[rows])[:, None, None]}
        for name, cells in share.items():
            np.testing.assert_allclose(values(found, name)[0], cells.astype(float).mean(0), rtol=1e-5, err_msg=name)
        score, terms = values(found, "retrieval")
        want, count = retrieval(file, rows, layers, heads)
        assert (terms == count).all() and count > 2, (terms, count)
        np.testing.assert_allclose(score, want, atol=1e-12)
    kind = np.where(score >= 0.1, 3, np.where(values(found, "first")[0] >= 0.3, 2, np.where(
        values(found, "local")[0] >= 0.5, 1, 0)))
    assert np.array_equal(values(found, "class")[0], kind)
    assert {0, 1, 3} & set(kind.ravel())


def check_older_trace(path, older):
    """A trace from before answer blocks were told apart, together with one of today, in either order."""
    code, _, err = capture(MODELS / "needle", "--input-ids", "5,6,7,8,9,10,11", "--gen-length", 48, "-o", older)
    assert code == 0, err
    with h5py.File(older, "a") as file:
        for name in ("/spread/answer_block", "/answer_block"):
            del file[name]
        del file.attrs["has_answer_blocks"]
    alone, without = metric(path, "regions"), metric(older, "regions")
    assert "answer_blocks" not in {array["name"] for array in without["arrays"]}
    count = values(alone, "regions")[1] + values(without, "regions")[1]
    for traces in ((path, older), (older, path)):
        both = metric(traces[0], "regions", traces[1])
        same(values(both, "answer_blocks")[0], values(alone, "answer_blocks")[0], "answer_blocks")
        assert (values(both, "regions")[1] == count).all() and (count > values(alone, "regions")[1]).all()


def main():
    require_binary()
    compared = 0
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        prompts = ["--prompts", MODELS / "needle" / "demo.jsonl", "--limit", 3, "--gen-length", 32]
        llada = folder / "llada"
        write_family(llada, "llada")
        runs = {"exact": [MODELS / "needle", *prompts, "--batch-size", 2],
                "reuse": [MODELS / "needle", *prompts, "--policy", "flashblock,tau=4"],
                "part": [MODELS / "needle", *prompts, "--layers", "1,3", "--heads", "0,4", "--steps", "1-5,8-16"],
                "canvas": [llada, "--input-ids", "5,6,7,8,9,10,11", "--gen-length", 16, "--block-length", 4]}
        for name, arguments in runs.items():
            path = folder / f"{name}.h5"
            code, _, err = capture(*arguments, "--record", "summary", "-o", path)
            assert code == 0, err
            compared += check(path)
        check_older_trace(folder / "exact.h5", folder / "older.h5")
        whole = folder / "whole.h5"
        code, _, err = capture(MODELS / "needle", "--prompts", MODELS / "needle" / "demo.jsonl", "--limit", 1,
                               "--gen-length", 16, "--record", "full", "--array-type", "f32", "-o", whole)
        assert code == 0, err
        check_heads(whole)
        below = metric(folder / "exact.h5", "heads")
        assert np.isnan(values(below, "retrieval")[0]).all()
        code, _, err = run("analyze", folder / "exact.h5", "--hdf5", folder / "all.h5", "-q")
        assert code == 0, err
        code, _, err = run("analyze", folder / "exact.h5", folder / "canvas.h5", "--metric", "distance")
        assert code != 0 and err.startswith("blockscope: error"), err
    assert compared > 3000, compared
    print(f"{compared} values compared")


main()
