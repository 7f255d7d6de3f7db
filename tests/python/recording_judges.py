"""What the tests of blockscope.record() share: how a trace is judged."""

import os

import h5py
import numpy as np

BINARY = os.environ["BLOCKSCOPE_BINARY"]
PROMPT = [int(x) for x in np.random.default_rng(3).integers(0, 900, 75)]
MASK = 96  # of the random Qwen3


def rows_of(file):
    return int(file["/steps/committed"][0])


def check_array(path, got, expected, tolerance):
    expected = np.asarray(expected, np.float64)
    got = got.astype(np.float64)
    assert np.array_equal(np.isnan(got), np.isnan(expected)), path
    assert np.array_equal(np.isinf(got), np.isinf(expected)), path
    finite = np.isfinite(expected)
    if finite.any():
        largest = max(np.abs(expected[finite]).max(), 1.0)
        assert np.abs(got[finite] - expected[finite]).max() <= tolerance * largest, path


def compare_with_capture(mine, theirs):
    """Every dataset of the two, but what only says how the trace was made."""
    apart = {"/model/json", "/run/json", "/model_byte", "/run_byte", "/steps/pass_time_ns", "/sequences/bytes",
             "/text_byte", "/sequences/finish_reason", "/sequences/score"}
    with h5py.File(mine) as a, h5py.File(theirs) as b:
        names = []
        b.visititems(lambda path, item: names.append("/" + path) if isinstance(item, h5py.Dataset) else None)
        ours = []
        a.visititems(lambda path, item: ours.append("/" + path) if isinstance(item, h5py.Dataset) else None)
        assert sorted(names) == sorted(ours)
        for key in a["/model"].attrs:
            assert a["/model"].attrs[key] == b["/model"].attrs[key], key
        assert rows_of(a) == rows_of(b)
        for path in names:
            x, y = a[path][()], b[path][()]
            if path in apart or path.startswith("/sequences/") and path.endswith(("_start", "_length")) and \
                    "prompt" not in path:
                continue
            assert x.shape == y.shape and x.dtype == y.dtype, path
            if path in ("/sets/topk", "/sets/topk_token"):  # near ties may fall either way
                assert (x == y).mean() > 0.995, (path, (x == y).mean())
            elif path in ("/sets/recall", "/sets/union_size"):
                assert np.nanmax(np.abs(x.astype(float) - y)) <= (1 / 32 if path == "/sets/recall" else 2), path
            elif x.dtype.kind == "f":
                check_array(path, x, y, 1e-4)
            else:
                assert np.array_equal(x, y), path
