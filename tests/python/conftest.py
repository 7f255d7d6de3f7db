"""Traces of odd shapes for the tests of the package, and the command as their judge."""

import json
import os
import pathlib
import subprocess

import pytest

BINARY = os.environ["BLOCKSCOPE_BINARY"]
FROZEN = pathlib.Path(__file__).parents[1] / "data" / "trace_schema_1.h5"
ODD = {
    "plain": [],
    "float32": ["--array-type", "f32", "--seed", 2],
    "one of all": ["--layers", 1, "--heads", 1, "--kv-heads", 1, "--block-length", 1,
                   "--sequences", 1, "--blocks", 2],
    "unequal": ["--unequal", "--sequences", 3, "--blocks", 3, "--interleaved", "--seed", 3],
    "filtered": ["--record-layers", "0,2", "--record-heads", "1,2", "--record-kv-heads", "1",
                 "--record-steps", "1,2,4", "--record-blocks", "0"],
    "bad values": ["--nan", 0.2, "--inf", 0.2, "--zero", 0.2, "--seed", 4],
    "partial": ["--partial", "--sequences", 2],
    "aborted": ["--aborted", "--sequences", 2],
    "shadow": ["--policy", "flashblock", "--shadow", "--seed", 5],
    "trajectory": ["--level", "trajectory"],
}


def make(path, *flags):
    subprocess.run([os.environ["MAKE_TRACE"], str(path), *map(str, flags)], check=True)
    return path


def command(*arguments):
    """Standard output of `blockscope`."""
    done = subprocess.run([BINARY, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def analyze_json(*arguments):
    return json.loads(command("analyze", *arguments, "--json", "-"))


@pytest.fixture(params=[*ODD, "frozen"])
def odd(request, tmp_path):
    """A trace of each shape, by the name that it was made with."""
    return FROZEN if request.param == "frozen" else make(tmp_path / "odd.h5", *ODD[request.param])


@pytest.fixture
def plain(tmp_path):
    return make(tmp_path / "plain.h5", "--sequences", 3, "--unequal")
