"""Traces of odd shapes for the tests of the package, and the command as their judge."""

import json
import os
import pathlib
import subprocess

import numpy as np
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


def check_equal(found, metric):
    """An Analysis against a metric of the command's JSON: values to the last bit, terms, axes, words."""
    assert found.attrs["metric"] == metric["metric"] and found.attrs["formula"] == metric["formula"]
    left_out = {k.removeprefix("left out: "): v for k, v in found.attrs.items() if k.startswith("left out: ")}
    assert left_out == metric["left_out"]
    assert found.arrays() == [array["name"] for array in metric["arrays"]]
    for array in metric["arrays"]:
        values = found[array["name"]]
        assert list(values.shape) == array["shape"] and values.attrs["units"] == array["unit"]
        want = np.array([np.nan if v is None else v for v in array["values"]], np.float64)
        # The command writes what is not finite as null.
        got = np.where(np.isfinite(values.values.ravel()), values.values.ravel(), np.nan)
        assert got.tobytes() == want.tobytes() or np.array_equal(got, want, equal_nan=True), array["name"]
        assert found.has_terms(array["name"]) == (array["terms"] is not None)
        if array["terms"] is not None:
            assert found[array["name"] + "_terms"].values.ravel().tolist() == array["terms"]
        for dim, axis in zip(values.dims, array["axes"]):
            assert dim in (axis["name"], f"{axis['name']}_of_{array['name']}")
            index = [float(i) for i in axis.get("index", [])]  # JSON has no value for inf: its text is used instead
            assert values[dim].values.tolist() == (index or axis.get("labels", []))


@pytest.fixture(params=[*ODD, "frozen"])
def odd(request, tmp_path):
    """A trace of each shape, by the name that it was made with."""
    return FROZEN if request.param == "frozen" else make(tmp_path / "odd.h5", *ODD[request.param])


@pytest.fixture
def plain(tmp_path):
    return make(tmp_path / "plain.h5", "--sequences", 3, "--unequal")
