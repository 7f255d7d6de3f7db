"""Traces that reach other files: test_trace_outside.py TRACE_TOOL

Links, external storage, virtual datasets and filters of plugins, in every kind of dataset. Nothing of
what they lead to is read or written, by any command. h5py makes the files, and reads them readily: what they
lead to is good."""

import pathlib
import shutil
import subprocess
import sys

import h5py

from capture_harness import MODELS, require_binary, run, run_tests
from outside_trace import REACHES, made_anew, to_a_link_of_another_file, to_a_soft_link
import test_trace_damage as damage

# Of every kind of storage; /layer, /model/json and the attributes of /model are read before the rest.
NAMES = ("/layer", "/model/json", "/run/json", "/tokenizer/piece_bytes", "/steps/committed", "/run/complete",
         "/sequences/bytes", "/sequences/finish_reason", "/steps/kind", "/frames/token", "/frames/delta_end",
         "/prediction/token", "/attention/lse_external", "/attention/external")
GROUPS = ("/model", "/frames", "/attention")


def commands(path, folder):
    yield from damage.commands(path, folder)
    yield "info", path, "--json"
    yield "export", path, "--format", "step_map"
    yield "diff", folder / "a.h5", path
    yield "diff", path, folder / "a.h5", "--ignore-aborted"
    yield "calibrate", path, "-o", folder / "never.json", "--gamma", 0.5
    yield "repack", path, folder / "a.h5", "--merge", "-o", folder / "never.h5"
    yield "capture", MODELS / "needle", "--replay", path, "-q", "-o", folder / "never.h5"


def refuses(command, name):
    code, out, err = run(*command)
    if "LibTorch" in err or "is not installed" in err:
        return  # a build without the runtime
    damage.one_error_line(code, err, name, "expected", "HINT")
    assert out == "", (command, out)


def test_what_leads_out_of_a_trace_is_refused_by_every_command(folder):
    good = damage.fixture(folder)
    other = folder / "other.h5"
    shutil.copy(good, other)
    bad = folder / "bad.h5"
    for number, (name, reach) in enumerate((n, r) for n in NAMES for r in REACHES):
        shutil.copy(good, bad)
        with h5py.File(bad, "r+") as file:
            reach(file, name, other)
        chosen = list(commands(bad, folder))
        for command in chosen if number % 7 == 0 else chosen[:2]:
            refuses(command, f"bad.h5:{name}")
        assert not list(folder.glob("never*")), (name, reach.__name__)
    for group in GROUPS:
        for reach in (to_a_link_of_another_file, to_a_soft_link):
            shutil.copy(good, bad)
            with h5py.File(bad, "r+") as file:
                reach(file, group, other)
            for command in list(commands(bad, folder))[:4]:
                refuses(command, f"bad.h5:{group}")


def test_a_merged_trace_refers_to_what_it_was_merged_of_alone(folder):
    first, second, merged = folder / "a.h5", folder / "b.h5", folder / "run.h5"
    damage.fixture(folder)
    shutil.copy(first, second)
    with h5py.File(second, "r+") as file:
        file["/steps/pass_time_ns"][:] += 1  # another run
    code, _, err = run("repack", first, second, "--merge", "-o", merged)
    assert code == 0, err
    assert run("info", merged, "--datasets")[0] == 0
    name = "/attention/external"
    stranger = folder / "stranger.h5"
    shutil.copy(first, stranger)
    for named in (b"stranger.h5", bytes(first), b"../" + folder.name.encode() + b"/stranger.h5"):
        bad = folder / "bad.h5"
        shutil.copy(merged, bad)
        with h5py.File(bad, "r+") as file:
            def change(plist, old, named=named):
                rows = old.shape[0] // 2
                for at, source in ((0, named), (rows, b"b.h5")):
                    to = h5py.h5s.create_simple(old.shape)
                    count = (rows, *old.shape[1:])
                    to.select_hyperslab((at, *[0] * (old.ndim - 1)), count)
                    plist.set_virtual(to, source, name.encode(), h5py.h5s.create_simple(count))

            made_anew(file, name, change)
        refuses(("info", bad, "--datasets"), f"bad.h5:{name}")
    assert run("info", merged, "--datasets")[0] == 0


def test_a_resume_writes_nothing_behind_a_link(folder):
    partial = damage.killed(folder, 60)
    subprocess.run([damage.TOOL, "resume", folder / "k.h5"], check=True, stdout=subprocess.DEVNULL)
    victim = folder / "victim.h5"
    shutil.copy(partial, victim)
    whole = partial.read_bytes()
    for name in ("/frames/token", "/steps/committed", "/sequences/aborted", "/attention/external"):
        for reach in (to_a_link_of_another_file, to_a_soft_link):
            partial.write_bytes(whole)
            with h5py.File(partial, "r+", libver="latest") as file:
                reach(file, name, victim)
            before = partial.read_bytes(), victim.read_bytes()
            code, err, _ = damage.resume(folder / "k.h5")
            assert code == 1 and f"k.h5.partial:{name}" in err and "expected" in err, (name, err)
            assert (partial.read_bytes(), victim.read_bytes()) == before, (name, reach.__name__)


if __name__ == "__main__":
    require_binary()
    damage.TOOL = sys.argv[1]
    run_tests(globals())
