"""What goes wrong with `blockscope analyze`: bad traces, bad flags, full disks, Ctrl-C.
test_analyze_faults.py MAKE_TRACE"""

import json
import os
import pathlib
import resource
import shutil
import signal
import sys
import time

import h5py

from capture_harness import cached_trace, require_binary, run, sparse_trace, start, temporary_folder
from drafted_trace import drafted_trace
from test_analyze import analyze, check_exports_agree, make

LEVEL_OF = {"recall": "sets", "est_acc": "full"}


def refused(*arguments, code, says):
    error = analyze(*arguments, code=code)
    assert error.startswith("blockscope: error: ") and error.count("\n") == 1, error
    for text in [says] if isinstance(says, str) else says:
        assert text in error, f"{text!r} is not in {error!r}"


def metric(root, name):
    return next(m for m in root["metrics"] if m["metric"] == name)


def test_files_that_are_no_whole_trace(folder):
    path = make(folder / "a.h5")
    (folder / "text.h5").write_text("no trace")
    refused(folder / "text.h5", code=1, says="text.h5")
    refused(folder / "absent.h5", code=1, says="absent.h5")
    refused(folder, code=1, says=str(folder))
    shutil.copy(path, folder / "newer.h5")
    with h5py.File(folder / "newer.h5", "r+") as file:
        file.attrs.modify("format_version", 99)
    refused(folder / "newer.h5", code=1, says=["newer.h5", "99"])
    whole = path.read_bytes()
    for part in (0.1, 0.5, 0.9, 0.99):
        (folder / "cut.h5").write_bytes(whole[:int(len(whole) * part)])
        refused(folder / "cut.h5", code=1, says="cut.h5")
    refused(path, folder / "cut.h5", "--json", folder / "out.json", code=1, says="cut.h5")
    assert not (folder / "out.json").exists()


def test_a_trace_left_by_a_crash_is_analysed(folder):
    make(folder / "a.h5", "--partial")
    root = json.loads(analyze(folder / "a.h5", "--json", "-"))
    assert root["traces"] == [str(folder / "a.h5.partial")]
    assert sum(n or 0 for n in metric(root, "similarity")["arrays"][0]["terms"]) > 0


def test_a_trace_without_rows(folder):
    path = make(folder / "a.h5")
    with h5py.File(path, "r+") as file:
        file["/steps/committed"][0] = 0
    refused(path, code=1, says=["a.h5", "nothing to analyse", "0 rows"])


def test_values_of_a_policy_are_not_taken_for_exact_ones(folder):
    path = make(folder / "a.h5", "--policy", "flashblock")
    for name in ("similarity", "external_mass"):
        refused(path, "--metric", name, code=1, says=["flashblock", "--policy exact", "--shadow"])
    code, out, err = run("analyze", path)
    if code == 0:
        assert "similarity" in out and "--shadow" in out, out
    else:
        assert "--shadow" in err, err
    refused(path, "--matrix", "token", code=1, says=["flashblock", "--shadow"])


def test_a_level_that_lacks_what_a_metric_needs(folder):
    path = make(folder / "a.h5", "--level", "summary")
    for name, level in LEVEL_OF.items():
        refused(path, "--metric", name, code=1, says=[name, f"--record {level}"])
    out = analyze(path)
    for name, level in LEVEL_OF.items():
        assert f"{name}: needs --record {level}" in out, out
    refused(path, "--matrix", "token", code=1, says="--record outputs")
    bare = make(folder / "b.h5", "--level", "trajectory")
    refused(bare, "--metric", "similarity", code=1, says="--record summary")


def test_sets_that_hold_every_key_are_counted_apart(folder):
    path = make(folder / "a.h5", "--prompt", 2, "--set-size", 16, "--blocks", 1)
    recall = metric(json.loads(analyze(path, "--metric", "recall", "--set-sizes", 16, "--json", "-")),
                    "recall")
    assert all(v is None for array in recall["arrays"] for v in array["values"])
    assert any("N <= k" in reason and n > 0 for reason, n in recall["left_out"].items()), recall
    refused(path, "--metric", "recall", "--set-sizes", "17", code=2, says="17")


def test_blocks_with_one_step_and_bad_values_are_counted(folder):
    path = make(folder / "one.h5", "--steps", 1)
    result = metric(json.loads(analyze(path, "--json", "-")), "similarity")
    assert result["left_out"]["blocks with one step"] == 4
    path = make(folder / "nan.h5", "--nan", 0.5, "--inf", 0.5)
    root = json.loads(analyze(path, "--json", "-"))
    for name in ("similarity", "external_mass"):
        result = metric(root, name)
        assert result["left_out"]["values that are NaN or infinite"] > 0
        for array in result["arrays"]:
            assert all((v is None) == (n == 0) for v, n in zip(array["values"], array["terms"]))
    assert "values that are NaN or infinite" in analyze(path, "--metric", "similarity")


def test_traces_that_do_not_belong_together(folder):
    a = make(folder / "a.h5")
    for flags, field in ((["--digest", "9876"], "digest"), (["--layers", 2], "layers"),
                         (["--record-heads", "1,2"], "heads"), (["--set-size", 2], "k")):
        b = make(folder / "b.h5", *flags)
        refused(a, b, code=2, says=["a.h5", "b.h5", field])
        b.unlink()


def test_flags(folder):
    path = make(folder / "a.h5", "--record-layers", "0,2")
    refused(code=2, says="at least one trace")
    refused(path, "--metric", "similaritty", code=2, says=["similaritty", "similarity", "recall"])
    refused(path, "--layer", "1", code=2, says=["--layer", "0,2"])
    refused(path, "--layer", "3", code=2, says="--layer")
    refused(path, "--head", "4", code=2, says="--head")
    refused(path, "--sequence", "9", code=2, says=["--sequence", "matches nothing"])
    refused(path, "--block", "9", code=2, says="matches nothing")
    refused(path, "--metric", "similarity", "--step", "50", code=2, says=["--step", "1,2,3"])
    refused(path, "--step", "0", code=2, says="--step")
    refused(path, "--taus", "x", code=2, says="--taus")
    refused(path, "--memory", "0", code=2, says="--memory")
    refused(path, "--matrix", "rows", code=2, says="--matrix")
    refused(path, "--matrix", "token", "--layer", "0,2", code=2, says="--layer")
    refused(path, "--matrix", "token", "--row-a", "1", code=2, says="--row-b")
    refused(path, "--matrix", "token", "--row-a", "1", "--row-b", "999", code=2, says="--row-b")
    refused(path, "--matrix", "token", "--step", "7", code=2, says="steps 7 and 8")
    refused(path, "--by", "bogus", code=2, says=["--by bogus", "head, k, kv_head, layer"])
    refused(path, "--by", "layer,bogus", code=2, says=["--by layer,bogus", "both axes"])
    refused(path, "--matrix", "token", "--by", "bogus", code=2, says="--by bogus")
    assert "similarity" in analyze("--list")
    out = analyze("--help")
    assert "--metric" in out and "Examples:" in out


def test_metrics_without_an_axis_are_named(folder):
    path = make(folder / "a.h5")
    out = analyze(path, "--metric", "similarity,recall", "--by", "kv_head")
    assert "\nrecall: " in out and "\nsimilarity: " not in out, out
    assert "note: not shown, without the axis kv_head: similarity\n" in out, out
    assert "without the axis" not in analyze(path, "--metric", "similarity", "--by", "head")


def test_a_wrong_axis_is_told_before_the_pass(folder):
    # Every metric over no step has the axes that it has over all of them.
    made = make(folder / "a.h5")
    for name in [line.split()[0] for line in analyze("--list").splitlines()[1:]]:
        if name in ("entropy", "distance", "regions", "heads"):  # made traces have no /spread: check_spread.py
            continue
        if name == "router":  # no shipped model has experts: probe.parity.router asks for each of its axes
            continue
        path = {"selection": sparse_trace, "cache": cached_trace,
                "draft": drafted_trace}.get(name, lambda _: made)(folder)
        if path is None:
            continue
        full = metric(json.loads(analyze(path, "--metric", name, "--json", "-")), name)
        axes = {axis["name"] for array in full["arrays"] for axis in array["axes"]}
        for axis in axes:
            analyze(path, "--metric", name, "--by", axis)


def test_one_of_something_is_not_many(folder):
    path = make(folder / "a.h5", "--sequences", 1, "--blocks", 1)
    assert "\n1 sequence, 1 block, 4 denoising steps\n" in analyze(path)


def test_a_trace_given_twice_is_refused(folder):
    path = make(folder / "a.h5")
    other = make(folder / "b.h5", "--seed", 2)
    (folder / "symbolic.h5").symlink_to(path)
    os.link(path, folder / "hard.h5")
    shutil.copy(path, folder / "copy.h5")
    for command in ("repack",), ("repack", "--copy"):
        flags = [*command, "--merge", path, other, "-o", folder / f"merged{len(command)}.h5"]
        assert run(*flags)[0] == 0, flags
    outputs = {"analyze": ["--csv", folder / "out.csv"],
               "calibrate": ["--gamma", "0.5", "-o", folder / "out.json"],
               "report": ["-o", folder / "out.html"]}
    before = sorted(folder.iterdir())
    for command, output in outputs.items():
        for again in ("a.h5", "symbolic.h5", "hard.h5", "copy.h5", "merged1.h5", "merged2.h5"):
            code, out, err = run(command, path, other, folder / again, *output)
            assert code == 2 and "twice" in err and again in err, (command, again, code, err)
            assert str(path) in err or str(other) in err, (command, again, err)
            assert sorted(folder.iterdir()) == before
    code, _, err = run("repack", "--merge", path, folder / "hard.h5", "-o", folder / "out.h5")
    assert code == 2 and "a.h5" in err and "hard.h5" in err and "twice" in err, err
    assert sorted(folder.iterdir()) == before
    analyze(path, other, "--metric", "similarity")


def test_the_memory_limit_does_not_change_the_result(folder):
    path = make(folder / "a.h5", "--block-length", 64, "--head-dim", 512, "--blocks", 1,
                "--array-type", "f32", "--sequences", 1, "--level", "outputs")
    small = analyze(path, "--metric", "similarity", "--memory", "4", "--json", "-")
    assert small == analyze(path, "--metric", "similarity", "--threads", "3", "--json", "-")


def test_a_memory_limit_below_one_layer_is_refused_with_the_smallest_that_works(folder):
    path = make(folder / "a.h5", "--block-length", 64, "--head-dim", 2048, "--blocks", 1, "--layers",
                1, "--array-type", "f32", "--sequences", 1, "--level", "outputs", "--steps", 2)
    with h5py.File(path) as file:
        layer = file["/attention/external"].chunks
    # A_out and A_in of this step and of the one before, and as much again for the queue.
    smallest = -(-2 * 4 * 4 * layer[2] * layer[3] * layer[4] >> 20)
    flags = [path, "--metric", "similarity", "--memory"]
    refused(*flags, 1, code=2, says=["a.h5", "got 1 MiB", f"HINT: --memory {smallest},"])
    refused(*flags, smallest - 1, code=2, says=f"HINT: --memory {smallest},")
    analyze(*flags, smallest, "--json", "-")


def test_outputs(folder):
    path = make(folder / "a.h5")
    kept = folder / "kept.csv"
    kept.write_text("mine")
    refused(path, "--csv", kept, code=2, says=["kept.csv", "--force"])
    assert kept.read_text() == "mine"
    analyze(path, "--csv", kept, "--force")
    assert kept.read_text().startswith("metric,")
    whole = path.read_bytes()
    refused(path, "--hdf5", path, "--force", code=2, says="reads this file")
    assert path.read_bytes() == whole
    refused(path, "--csv", "-", "--json", "-", code=2, says="standard output")
    refused(path, "--hdf5", "-", code=2, says="standard output")
    refused(path, "--csv", folder / "x", "--json", folder / "x", code=2, says="two outputs")
    refused(path, "--json", folder / "no" / "x.json", code=1, says="x.json")
    refused(path, "--json", "/dev/full", "--force", code=2, says="/dev/full")
    with open("/dev/full", "w") as full:
        import subprocess
        process = subprocess.run([os.environ["BLOCKSCOPE_BINARY"], "analyze", str(path), "--csv", "-"],
                                 stdout=full, stderr=subprocess.PIPE)
    assert process.returncode == 1 and b"standard output" in process.stderr, process
    assert sorted(p.name for p in folder.iterdir()) == ["a.h5", "kept.csv"]


def test_a_full_disk_leaves_nothing(folder):
    path = make(folder / "a.h5")

    def full_disk():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))

    for kind in ("csv", "json", "hdf5"):
        code, _, err = run("analyze", path, f"--{kind}", folder / "out", before=full_disk)
        assert code == 1 and err.startswith("blockscope: error: "), (kind, code, err)
        assert [p.name for p in folder.iterdir()] == ["a.h5"], kind


def test_ctrl_c_leaves_nothing(folder):
    path = make(folder / "a.h5", "--sequences", 500, "--blocks", 4)
    arguments = ["analyze", path, "--csv", folder / "out.csv"]
    begin = time.monotonic()
    code, _, err = run(*arguments)
    assert code == 0, err
    seconds = time.monotonic() - begin
    (folder / "out.csv").unlink()
    for number in (signal.SIGINT, signal.SIGTERM):
        process = start(*arguments)
        time.sleep(seconds * 0.4)
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 128 + number, (process.returncode, err)
        assert "nothing was written" in err
        assert [p.name for p in folder.iterdir()] == ["a.h5"]


if __name__ == "__main__":
    require_binary()
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            with temporary_folder() as folder:
                test(pathlib.Path(folder))
            print(f"{name}: ok")
