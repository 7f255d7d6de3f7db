"""`blockscope diff --teacher` of a continuous model (video): clean passes are steps, and inputs are timesteps."""

import h5py
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the tests' Python has no torch (scripts/setup.sh --tests)")

import blockscope  # noqa: E402
from test_recording_video import causal  # noqa: E402


def test_a_planted_difference_and_another_timestep(tmp_path):
    a, b = tmp_path / "a.h5", tmp_path / "b.h5"
    causal(a, rows=6)
    causal(b, rows=6)
    found = blockscope.compare(a, b, teacher=True)
    assert found.equal and found.data["rows"] == found.data["recorded_rows"] == 35
    assert found["query"]["elements"] > 0 and found["token"]["elements"] == 0
    with h5py.File(b, "r+") as file:
        clean = int(np.flatnonzero(file["/steps/kind"][:] == 2)[1])
        file["/query/query"][clean, 1, 0, 3, 2] += 4
    first = blockscope.compare(a, b, teacher=True).first
    assert (first["quantity"], first["row_a"], first["layer"], first["position"], first["step"]) == (
        "query", clean, 1, 3, 5)
    with h5py.File(b, "r+") as file:
        file["/steps/timestep"][clean - 1] += 1
    other = blockscope.compare(a, b, teacher=True)
    assert other.inputs["row_a"] == clean - 1 and other.inputs["what"].startswith("timestep: ") and other.first is None


def test_other_rows_of_a_block_are_refused(tmp_path):
    causal(tmp_path / "a.h5", rows=6)
    causal(tmp_path / "b.h5", rows=5)
    with pytest.raises(blockscope.UsageError, match="expected a trace of the same model"):
        blockscope.compare(tmp_path / "a.h5", tmp_path / "b.h5", teacher=True)
