"""Options that would do nothing, names of outputs, index lists, and text on its way to a terminal, in
the commands that read traces: test_options.py MAKE_TRACE"""

import os
import pathlib
import subprocess
import sys

import h5py
import numpy as np

from capture_harness import BINARY, cached_trace, capture, require_binary, run, sparse_trace, temporary_folder
from drafted_trace import drafted_trace
from family_case import write_family

USAGE = 2
OF_RUN = {"--layer": "1", "--head": "0", "--step": "2", "--from-summary": None, "--set-sizes": "2",
          "--taus": "2", "--count": "step", "--sink-factor": "2"}
# What each metric looks at; every other pair with OF_RUN is idle.
METRICS = {
    "similarity": ("--layer", "--head", "--step", "--from-summary"),
    "recall": ("--layer", "--head", "--step", "--from-summary", "--set-sizes"),
    "union_size": ("--layer", "--head", "--step", "--from-summary"),
    "entropy": ("--layer", "--head", "--step"),
    "distance": ("--layer", "--head", "--step"),
    "regions": ("--layer", "--head", "--step"),
    "heads": ("--layer", "--head"),
    "sinks": ("--layer", "--head", "--step", "--sink-factor"),
    "est_acc": ("--layer", "--head", "--step"),
    "selection": ("--layer", "--head", "--step"),
    "router": ("--layer", "--step"),
    "cache": ("--layer", "--step"),
    "draft": ("--layer", "--head"),
    "query_statistics": ("--layer", "--head", "--step", "--from-summary"),
    "decoding": ("--step", "--taus", "--count"),
    "settling": ("--step",),
    "similarity_states": ("--layer", "--head", "--step"),
    "drift": ("--layer",),
    "token_matrix": ("--layer",),
    "external_mass": ("--layer", "--head", "--step", "--from-summary"),
    "reuse_error": ("--layer", "--head", "--step", "--from-summary", "--taus", "--count"),
    "kept_pair": ("--layer", "--head", "--step", "--from-summary", "--taus", "--count"),
}
# Command, then the option that does nothing there.
IDLE = [
    (["analyze", "T", "--list"], ["traces"]),
    *[(["analyze", "--list"], option) for option in (
        ["--csv", "f"], ["--json", "f"], ["--hdf5", "f"], ["--metric", "recall"], ["--by", "layer"],
        ["--layer", "0"], ["--threads", "1"], ["--quiet"], ["--force"], ["--backbone", "T"])],
    *[(["analyze", "T", "--matrix", "token"], option) for option in (
        ["--taus", "1"], ["--set-sizes", "2"], ["--sink-factor", "2"], ["--from-summary"], ["--threads", "1"],
        ["--memory", "9"])],
    *[(["analyze", "T", "--matrix", "step"], option) for option in (["--step", "1"], ["--row-a", "0"])],
    *[(["analyze", "T", "--matrix", "token", "--row-a", "1", "--row-b", "2"], option) for option in (
        ["--step", "1"], ["--block", "0"], ["--sequence", "0"])],
    (["analyze", "T", "--backbone", "U"], ["--taus", "1"]),
    (["analyze", "T", "--backbone", "U"], ["--set-sizes", "2"]),
    (["analyze", "T", "--metric", "recall", "--from-summary"], ["--set-sizes", "2"]),
    (["analyze", "T"], ["--force"]), (["analyze", "T", "--csv", "-"], ["--force"]),
    (["analyze", "T", "--csv", "-"], ["--by", "layer"]), (["analyze", "T", "-q"], ["--by", "layer"]),
    (["analyze", "T"], ["--field", "query"]), (["analyze", "T"], ["--row-a", "1"]),
    (["export", "T"], ["--force"]), (["export", "T", "-o", "-"], ["--force"]),
    (["info", "T", "--json"], ["--datasets"]),
    (["repack", "T", "-o", "f"], ["--level", "3"]), (["repack", "T", "-o", "f"], ["--copy"]),
    (["repack", "T", "U", "--merge", "--compress", "deflate", "-o", "f"], ["--copy"]),
    (["repack", "T", "U", "--merge", "--repair", "-o", "f"], ["--copy"]),
    (["view", "T"], ["--patience", "3"]), (["view", "T"], ["--force"]),
    *[(["view", "T", "--panel", "heads", "--csv", "f"], option) for option in (
        ["--light"], ["--dark"], ["--colormap", "magma"], ["--width", "900"], ["--height", "900"],
        ["--scale", "2"])],
]
# Commands whose output is text, and whose output can't be.
TEXT = [["analyze", "T", "--metric", "decoding", "--csv"], ["analyze", "T", "--metric", "decoding", "--json"],
        ["export", "T", "-o"], ["calibrate", "T", "--gamma", "0", "-o"]]
BINARIES = [["analyze", "T", "--hdf5"], ["repack", "T", "-o"], ["view", "T", "--screenshot"],
          ["report", "T", "-o", "f", "--figures"]]
LISTS = ["--layer", "--head", "--step", "--block", "--sequence", "--set-sizes"]


def make(tool, path, *flags):
    subprocess.run([tool, path, "--digest", "0123456789abcdef" * 4, *flags], check=True)


def ran(folder, command):
    traces = {"T": folder / "run.h5", "U": folder / "other.h5", "f": folder / "f"}
    return run(*[traces.get(word, word) for word in command])


def refused(folder, command, *words):
    code, out, err = ran(folder, command)
    assert code == USAGE and out == "" and len(err.splitlines()) == 1, (command, code, out, err)
    for word in words:
        assert word in err, (command, word, err)
    assert {p.name for p in folder.iterdir()} == {"run.h5", "other.h5"}, command


def test_an_idle_option_is_refused_with_every_metric(folder):
    listed = run("analyze", "--list")[1].splitlines()[1:]
    assert [line.split()[0] for line in listed] == list(METRICS)
    with temporary_folder() as place:
        decoded = routed_trace(place)  # made traces have no /spread
        check_every_metric(folder, {"selection": sparse_trace(place), "draft": drafted_trace(place),
                                    "cache": cached_trace(place), "router": decoded, "entropy": decoded,
                                    "distance": decoded, "regions": decoded, "heads": decoded, "kept_pair": decoded})


def routed_trace(place):
    """A trace of a model with experts; None where this build can't decode."""
    model, path = pathlib.Path(place) / "experts", pathlib.Path(place) / "routed.h5"
    write_family(model, "sdar_moe")
    code, _, err = capture(model, "--input-ids", "1,2,3", "--gen-length", 8, "--record", "summary", "--record-router",
                           "-o", path)
    assert code == 0 or "LibTorch" in err, err
    return path if code == 0 else None


def check_every_metric(folder, trace_of):
    for metric, looks_at in METRICS.items():
        trace = trace_of.get(metric, "T")
        for option, value in OF_RUN.items():
            if trace is None:
                continue
            command = ["analyze", trace, "--metric", metric, option] + ([value] if value else [])
            if option in looks_at:
                code, _, err = ran(folder, command)
                assert code == 0, (command, err)
            else:
                refused(folder, command, f"{option}: does nothing without")


def test_an_idle_option_is_refused_in_every_command(folder):
    for command, option in IDLE:
        refused(folder, command if option == ["traces"] else command + option,
                f"{option[0]}: does nothing")


def test_one_name_means_the_standard_output(folder):
    for command in TEXT:
        code, to_pipe, err = ran(folder, command + ["-"])
        assert code == 0, (command, err)
        code, _, err = ran(folder, command + ["f"])
        assert code == 0 and (folder / "f").read_text() == to_pipe != "", (command, err)
        (folder / "f").unlink()
    for command in BINARIES:
        refused(folder, command + ["-"], "standard output")
    refused(folder, ["analyze", "T", "--csv", "-", "--json", "-"], "only one output")
    refused(folder, ["calibrate", "T", "--gamma", "0", "--json", "-o", "-"], "only one output")


def test_an_option_is_no_name_of_an_output(folder):
    for command in TEXT + BINARIES:
        refused(folder, command + ["--force"], "got an option", "./--force")


def test_index_lists_have_one_grammar(folder):
    for option in LISTS:
        for wrong in ("0-", "-1", "2-1", "1,,2", "x", "1-2-3"):
            refused(folder, ["analyze", "T", "--metric", "recall", f"{option}={wrong}"], option, "A-B")
    refused(folder, ["analyze", "T", "--by", "layer,layer"], "--by layer,layer", "twice")
    assert "A-B" in ran(folder, ["analyze", "--help"])[1]


def test_names_of_prompts_steer_no_terminal(folder):
    path = folder / "run.h5"
    with h5py.File(path, "r+") as file:
        start = int(file["sequences/name_start"][0])
        file["sequences/bytes"][start:start + 3] = np.frombuffer(b"\x1b[2", dtype=np.uint8)
    raw = subprocess.run([BINARY, "export", path], capture_output=True, check=True).stdout
    assert b"\x1b[2" in raw
    shown = subprocess.run(["script", "-qec", f"'{BINARY}' export {path}", "/dev/null"],
                           capture_output=True, check=True).stdout
    assert b"\x1b" not in shown and b"\\x1b[2" in shown, shown[:300]
    odd = folder / "a\x1b[2Jb.h5"
    path.rename(odd)
    for command in (["info", odd], ["analyze", odd, "--metric", "decoding"],
                    ["calibrate", odd, "--gamma", "0", "-o", folder / "\x1b.json"],
                    ["analyze", odd, "--metric", "decoding", "--csv", folder / "\x1b.csv"],
                    ["repack", odd, "-o", folder / "\x1b.h5"], ["analyze", odd, "--metric", "none"]):
        code, out, err = run(*command)
        assert "\x1b" not in out + err, (command, out, err)


if __name__ == "__main__":
    require_binary()
    for name, test in list(globals().items()):
        if not name.startswith("test_") or (len(sys.argv) > 2 and sys.argv[2] not in name):
            continue
        with temporary_folder() as place:
            folder = pathlib.Path(place)
            make(sys.argv[1], folder / "run.h5")
            make(sys.argv[1], folder / "other.h5", "--blocks", "3")
            os.chdir(folder)  # a file named - or --force would be in this folder
            test(folder)
            os.chdir("/")
        print(f"{name}: ok", flush=True)
