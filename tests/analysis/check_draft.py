"""`blockscope analyze --metric draft` and the report's section of drafts against draft_reference.py, on traces of
random pairs in both layouts: greedy, sampled, filtered, cut and resumed, several together. Then damaged ones."""

import json
import os
import pathlib
import re
import shutil
import signal
import sys
import time

import h5py
import numpy as np

ROOT = pathlib.Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "probe" / "parity"), str(ROOT / "cli")]

import harness
from capture_harness import run, start
from dflash_checkpoints import Shape, write_draft, write_pair, write_target
from draft_reference import BEHIND, NON_FINITE, UNKNOWN, Reference, Trace
from report_page import Page, check_captions, check_self_contained

checked = cells_with_terms = 0


def write_prompts(path, vocab, lengths, gen_lengths, seed=0):
    random = np.random.default_rng(seed)
    lines = [{"id": f"{('copy', 'sum-2', '')[i % 3]}-{i:03d}", "gen_length": gen_lengths[i % len(gen_lengths)],
              "input_ids": random.integers(0, vocab - 1, length).tolist()} for i, length in enumerate(lengths)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def capture(folder, name, *flags, prompts="prompts.jsonl"):
    out = folder / name
    code, said, error = run("capture", folder / "target", "--draft", folder / "draft", "--prompts", folder / prompts,
                            "--no-stop", "--dtype", "float32", "--threads", 1, "-o", out, "--force", *flags)
    assert code == 0, error
    return out


def metric(*arguments):
    code, out, error = run("analyze", *arguments, "--metric", "draft", "--json", "-")
    assert code == 0, error
    return json.loads(out)["metrics"][0]


def labels(axis):
    return axis.get("labels") or [f"{index:g}" for index in axis["index"]]


def compare(name, ours, reference):
    """Every cell of ours, and none of the reference's that ours lacks."""
    global checked, cells_with_terms
    wanted = reference.arrays()
    for array in ours["arrays"]:
        expected = dict(wanted.pop(array["name"], {}))
        for i, at in enumerate(np.ndindex(*array["shape"])):
            key = tuple(labels(axis)[k] for axis, k in zip(array["axes"], at))
            value, terms = expected.pop(key[0] if len(key) == 1 else key, (np.nan, 0))
            got = np.nan if array["values"][i] is None else array["values"][i]
            where = f"{name}: {array['name']} {key}"
            assert (np.isnan(got) and np.isnan(value)) or abs(got - value) <= 1e-9 * max(1, abs(value)), \
                (where, got, value)
            got_terms = array["terms"][i] if array["terms"] else None
            assert got_terms == terms, (where, got_terms, terms)
            checked, cells_with_terms = checked + 1, cells_with_terms + bool(terms)
        assert not expected, (name, array["name"], expected)
    assert not wanted, (name, list(wanted))
    left_out = {reason: count for reason, count in reference.left_out.items() if count}
    assert ours["left_out"] == left_out, (name, ours["left_out"], left_out)


def check(name, *paths, flags=(), sequences=None):
    reference = Reference([Trace(path) for path in paths], sequences)
    ours = metric(*paths, *flags)
    compare(name, ours, reference)
    if len(paths) == 1 and not flags:  # the values of `info` for the same rounds
        code, out, _ = run("info", paths[0], "--json")
        told, here = json.loads(out)["tokens_per_round"], ours["arrays"][0]["values"][0]
        assert code == 0 and abs(told - here) < 1e-12, (name, told, here)
    return reference


def check_pairs(folder):
    """-> traces to damage."""
    z, own, always = folder / "z", folder / "own", folder / "always"
    write_pair(z, Shape(vocab=5, block_size=8, seed=100))
    write_prompts(z / "prompts.jsonl", 5, (3, 20, 60, 1, 33, 7), (60, 25))
    greedy = capture(z, "greedy.h5", "--record", "summary")
    total = check("greedy", greedy).left_out
    assert total[BEHIND] > 0
    sampled = check("sampled", capture(z, "sampled.h5", "--record", "summary", "--temperature", 1, "--seed", 3))
    assert len(sampled.shares["by_drafted_rank_under_target"]["0"]) > sum(sampled.shares["by_drafted_rank_under_target"]["0"]), "as if greedy"
    short = capture(z, "short.h5", "--record", "trajectory", "--block-length", 3, "--no-draft-cost")
    check("blocks of 3, no cost", short)
    check("blocks of 2", capture(z, "two.h5", "--record", "trajectory", "--block-length", 2))
    code, _, error = run("repack", greedy, "--compress", "deflate", "-o", z / "small.h5", "-q")
    assert code == 0, error
    check("compressed", z / "small.h5")
    check("in batches", capture(z, "batch.h5", "--record", "summary", "--batch-size", 4))
    target = check("the target's trace", capture(z, "target.h5", "--record", "summary", "--recorded-model", "target"))
    assert not target.has_mass and target.lengths == check("again", greedy).lengths
    check_imported(z, greedy)
    part = capture(z, "part.h5", "--record", "summary", "--layers", "1", "--heads", "0,3", "--sequences", "0,2-4")
    check("filtered", part)
    check("chosen", part, flags=("--sequence", "2,5"), sequences={2, 5})
    check("several", greedy, capture(z, "other.h5", "--record", "summary", prompts=write_prompts(
        z / "other.jsonl", 5, (9, 2, 30), (40,), seed=1).name))
    check("one without attention", greedy, capture(z, "bare.h5", "--record", "trajectory", "--no-draft-cost",
                                                     prompts="other.jsonl"))
    write_pair(own, Shape(vocab=9, draft_vocab=5, target_layers=(0, 2, 4), seed=44))
    write_prompts(own / "prompts.jsonl", 9, (4, 11, 1), (50,))
    assert check("speculators", capture(own, "own.h5", "--record", "sets")).shares["by_target_rank_under_draft"]["none"]
    check_certain(always)
    check_second(folder / "second")
    return greedy, short


def rows_of(page, name):
    return page.figures[name]["rows"]


def number(text):
    return float(text.replace(",", "").replace("\u2013", "nan"))


def same(text, value):
    wanted = 6e-5 if abs(value) >= 1e-3 else 6e-3 * abs(value)
    assert abs(number(text) - value) <= wanted or np.isnan(value), (text, value)


def check_second(folder):
    """A draft with a selector, and one that samples from the anchor."""
    write_pair(folder, Shape(vocab=12, block_size=8, second=(2, 16, 6, 4), seed=1))
    write_prompts(folder / "prompts.jsonl", 12, (3, 20, 9), (60, 25))
    found = check("selector", capture(folder, "run.h5", "--record", "summary"))
    assert all(any(values) for values in found.shares["selector"].values()) and len(found.shares["by_chosen"]) == 4
    code, _, error = run("report", folder / "run.h5", "-o", folder / "page.html")
    assert code == 0, error
    page = Page((folder / "page.html").read_text(encoding="utf-8"))
    assert re.search(r"Model\s*draft\b.*?Target\s*target\b", page.text, re.DOTALL), "the pair's names"
    for label, values in found.shares["by_chosen"].items():
        row, = (row for row in rows_of(page, "draft-reasons") if row[:2] == ["candidate", label])
        same(row[2], np.mean(values))
        assert number(row[3]) == len(values)
    for label, values in found.shares["selector"].items():
        row, = (row for row in rows_of(page, "draft-means") if row[0] == f"selector: {label}")
        same(row[1], np.mean(values))
    for label, values in found.shares["among_candidates"].items():
        row, = (row for row in rows_of(page, "draft-positions") if row[0] == label)
        same(row[3], np.mean(values))
    for name, value in (("candidate_chosen", 4), ("candidate_target", -2)):
        spoiled = folder / "spoiled.h5"
        shutil.copy(folder / "run.h5", spoiled)
        with h5py.File(spoiled, "r+") as file:
            file[f"/draft/{name}"][3] = value
        refused(spoiled, f"/draft/{name}", "row 3", f"got {value}")
    check("selector, the target's trace", capture(folder, "target.h5", "--recorded-model", "target"))
    anchor = folder / "anchor"
    write_pair(anchor, Shape(vocab=6, draft_vocab=6, target_layers=(1, 3), from_anchor=True, seed=8))
    write_prompts(anchor / "prompts.jsonl", 6, (4, 11, 1), (50,))
    trace = capture(anchor, "run.h5", "--record", "summary")
    assert check("from the anchor", trace).block_length == 6 and Trace(trace).shift == 1


def check_imported(folder, trace):
    """Another engine's rounds: all values of ours, then drafts of other lengths with few known values."""
    lines = [json.loads(line) for line in run("export", trace, "--format", "rounds", "-o", "-")[1].splitlines()]
    random, last = np.random.default_rng(1), {}
    for name in ("all", "little"):
        path = folder / f"{name}.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        code, _, error = run("import", path, "-o", path.with_suffix(".h5"))
        assert code == 0, error
        last[name] = check(f"imported, {name}", path.with_suffix(".h5"))
        for line in lines:
            if "drafted" not in line:
                continue
            for key in ("target_rank_under_draft", "drafted_rank_under_target", "draft_entropy"):
                line.pop(key, None)
            count = line["accepted"] + int(random.integers(0, 3))
            line |= {key: values[:count] for key, values in line.items() if isinstance(values, list)}
    every, little = last["all"], last["little"]
    assert 0 < little.lengths.pop(1) < every.lengths.pop(1) and little.lengths == every.lengths  # some drafted nothing
    assert little.left_out[UNKNOWN] > 100 and every.left_out[UNKNOWN] == 0


def check_certain(folder):
    """Both models hold every token for as likely, so all drafts are accepted."""
    shape = Shape(vocab=6, block_size=16, layers=4, target_layers=(1,))
    target = write_target(folder / "target", shape)
    target.model.norm.weight.data.zero_()
    target.float().save_pretrained(folder / "target")
    tensors, _ = write_draft(folder / "draft", shape)
    write_draft(folder / "draft", shape, tensors | {"norm.weight": tensors["norm.weight"] * 0})
    write_prompts(folder / "prompts.jsonl", 6, (5, 9), (40, 1))
    reference = check("all accepted", capture(folder, "run.h5", "--record", "summary"))
    assert reference.lengths[16] > 0 and all(all(v) for v in reference.shares["acceptance"].values())
    write_prompts(folder / "one.jsonl", 6, (5, 9), (1,))
    out = capture(folder, "one.h5", "--record", "summary", prompts="one.jsonl")
    assert not check("answers of one token", out).shares["acceptance"]
    for command in (("analyze", out), ("report", out, "-o", folder / "one.html"),
                    ("analyze", out, "--hdf5", folder / "one-metrics.h5", "-q")):
        assert run(*command)[0] == 0, command


def check_cut(folder):
    """A run that was cut: its rows so far, and after --resume, with the times of its first part."""
    write_pair(folder, Shape(vocab=5, block_size=8, seed=100))
    write_prompts(folder / "prompts.jsonl", 5, [10] * 40, (200,))
    flags = ["capture", folder / "target", "--draft", folder / "draft", "--prompts", folder / "prompts.jsonl",
             "--no-stop", "--dtype", "float32", "--threads", 1, "--record", "summary", "-o", folder / "cut.h5", "-q"]
    process, partial = start(*flags), pathlib.Path(f"{folder / 'cut.h5'}.partial")
    while process.poll() is None:
        try:
            with h5py.File(partial, "r", swmr=True, locking=False) as file:
                if int(file["/sequences/committed"][0]) > 2:
                    break
        except (OSError, KeyError):
            pass
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL, "the run ended too early"
    with h5py.File(partial, "r", swmr=True) as file:
        before = {name: item[:] for name, item in file["/draft/cost"].items()}
    check("cut", partial)
    code, _, error = run(*flags, "--resume", "--no-draft-cost")
    assert code == 0, error
    with h5py.File(folder / "cut.h5") as file:
        assert file["/sequences/aborted"][:].any()
        after = {name: item[:] for name, item in file["/draft/cost"].items()}
    assert all(np.array_equal(before[name], after[name]) for name in before) and before.keys() == after.keys()
    check("resumed", folder / "cut.h5")


def check_values_that_are_not_there(folder, trace):
    path = folder / "spoiled.h5"
    shutil.copy(trace, path)
    with h5py.File(path, "r+") as file:
        drafts = np.flatnonzero(file["/draft/accepted"][:int(file["/steps/committed"][0])] >= 0)
        file["/draft/draft_entropy"][drafts[3], 1] = np.nan
        file["/attention/lse_external"][drafts[5], 0, 2, 1] = np.nan
        file["/attention/lse_internal"][drafts[6], 1, 0, 1] = np.inf
        file["/attention/lse_external"][drafts[7], 1, :, 1] = -np.inf
    left_out = check("spoiled", path).left_out
    assert (left_out[UNKNOWN], left_out[NON_FINITE]) == (1, 2)


def refused(path, *words, command=("analyze", "--metric", "draft")):
    code, out, error = run(command[0], path, *command[1:])
    assert code == 1 and not out, (words, code, out, error)
    assert error.startswith("blockscope: error: ") and len(error.splitlines()) == 1, error
    for word in (path.name, *words):
        assert word in error, (word, error)


def check_damage(folder, trace, without):
    cost = "/draft/cost/"

    def put(name, at, value):
        return lambda file: file[cost + name].__setitem__(at, value)

    def replace(name, values):
        def change(file):
            old = file[cost + name]
            dtype = old.dtype
            del file[cost + name]
            file.create_dataset(cost + name, data=np.array(values, dtype))
        return change

    cases = [(put("block_length", 0, 2), ["draft_cost", "entry 0", "block_length", "1 to 1", "got 2"]),
             (put("block_length", 2, 2), ["entry 2", "block_length", "3 to 8", "got 2"]),
             (put("block_length", 3, 7), ["entry 3", "block_length", "8 to 8", "got 7"]),
             (put("block_length", 3, 9), ["entry 3", "block_length", "got 9"]),
             (put("context_length", 1, 0), ["entry 1", "context_length", "got 0"]),
             (put("context_length", 0, -1), ["entry 0", "context_length", "got -1"]),
             (put("draft_ns", 0, 5), ["entry 0", "draft_ns", "0 to 0", "got 5"]),
             (put("draft_ns", 1, 0), ["entry 1", "draft_ns", "got 0"]),
             (put("draft_ns", 3, -4), ["entry 3", "draft_ns", "got -4"]),
             (put("target_ns", 0, 0), ["entry 0", "target_ns", "got 0"]),
             (put("target_ns", 2, 2**62), ["entry 2", "target_ns", f"got {2**62}"]),
             (replace("draft_ns", [0, 1, 1]), ["/draft/cost/draft_ns", "expected [4]", "got [3]"]),
             (replace("block_length", []), ["/draft/cost/block_length", "expected [4]", "got [0]"]),
             (lambda file: file.__delitem__(cost + "target_ns"), ["/draft/cost/target_ns"]),
             (lambda file: file.attrs.modify("draft_costs", np.int64(3)), ["expected [3]", "got [4]"]),
             (lambda file: file.attrs.modify("draft_costs", np.int64(-1)), ["draft_costs", "got -1"]),
             (lambda file: file.attrs.modify("draft_costs", np.int64(2**40)), ["draft_costs", f"got {2**40}"]),
             (lambda file: file.attrs.__delitem__("has_draft"), ["draft_cost", "without a draft"])]
    for number, (change, words) in enumerate(cases):
        path = folder / f"damaged-{number}.h5"
        shutil.copy(trace, path)
        with h5py.File(path, "r+") as file:
            change(file)
        refused(path, *words)
        refused(path, *words, command=("info",))
    draft_row = int(np.flatnonzero(Trace(trace).accepted >= 0)[4])
    for name, value, words in (("accepted", -1, ["/draft/accepted", f"row {draft_row}", "0 to 7", "got -1"]),
                               ("accepted", 8, ["/draft/accepted", f"row {draft_row}", "-1 to 7", "got 8"]),
                               ("target_rank_under_draft", 5, ["/draft/target_rank_under_draft", "-1 to 4", "got 5"]),
                               ("drafted_rank_under_target", -2, ["/draft/drafted_rank_under_target", "-1 to 4", "got -2"])):
        path = folder / f"damaged-{name}{value}.h5"
        shutil.copy(trace, path)
        with h5py.File(path, "r+") as file:
            file[f"/draft/{name}"][draft_row] = value
        refused(path, *words)
    bare = folder / "no-draft.h5"
    code, _, error = run("capture", without.parent / "target", "--input-ids", "1,2,3", "--gen-length", 4, "--no-stop",
                         "-q", "-o", bare)
    assert code == 0, error
    refused(bare, "draft needs /draft/accepted", "--draft DRAFT")
    code, out, _ = run("analyze", bare, "--json", "-")
    said = json.loads(out)
    assert code == 0 and "draft" not in [m["metric"] for m in said["metrics"] + said["unavailable"]]


def check_report(folder, trace, without):
    """The section's numbers are the metric's; without a cost a sentence replaces the figure."""
    code, _, error = run("report", trace, "-o", folder / "page.html", "--figures", folder / "figures")
    assert code == 0, error
    page = Page((folder / "page.html").read_text(encoding="utf-8"))
    check_self_contained(page)
    check_captions(page)
    arrays = {name: list(cells.items()) for name, cells in Reference([Trace(trace)]).arrays().items()}
    for row, (label, (count, _)) in zip(rows_of(page, "draft-lengths")[1:], arrays["lengths"], strict=True):
        assert (row[0], number(row[1])) == (label, count)
    survival, acceptance = dict(arrays["survival"]), dict(arrays["acceptance"])
    for position, of_all, of_reached, reached in rows_of(page, "draft-positions")[1:]:
        same(of_all, survival[position][0])
        same(of_reached, acceptance[position][0])
        assert number(reached) == acceptance[position][1]
    for b, tokens, draft, target, speedup in rows_of(page, "draft-speedup")[1:]:
        for text, name in ((tokens, "tokens_per_round"), (draft, "draft_time"), (target, "target_time"),
                           (speedup, "speedup")):
            same(text, dict(arrays[name])[b][0])
    best = max((value, int(b)) for b, (value, _) in arrays["speedup"])
    caption = page.figures["draft-speedup"]["caption"]
    assert ("No block length" if best[1] == 1 else f"blocks of {best[1]} with") in caption, caption
    by = {"draft entropy": "by_draft_entropy", "target entropy": "by_target_entropy", "candidates": "within_best",
          "context length": "by_depth"}
    seen = set()
    for name, label, share, n in rows_of(page, "draft-reasons")[1:]:
        seen.add(name)
        if name in by and number(n) > 0:
            value, terms = dict(arrays[by[name]])[label]
            same(share, value)
            assert number(n) == terms
    assert seen == {*by, "external mass"}, seen
    drawn = {f"draft-{n}.svg" for n in ("lengths", "positions", "reasons", "speedup")}
    assert drawn <= set(os.listdir(folder / "figures"))
    code, _, error = run("report", without, "-o", folder / "bare.html")
    page = Page((folder / "bare.html").read_text(encoding="utf-8"))
    assert code == 0 and "draft-speedup" not in page.figures and "--no-draft-cost" in page.text, error


def main():
    harness.start()
    with harness.temporary_folder() as name:
        folder = pathlib.Path(name)
        trace, without = check_pairs(folder)
        check_cut(folder / "cut")
        check_values_that_are_not_there(folder, trace)
        check_damage(folder, trace, without)
        check_report(folder, trace, without)
    print(f"{checked} values, {cells_with_terms} with terms")
    assert cells_with_terms > 500


if __name__ == "__main__":
    main()
