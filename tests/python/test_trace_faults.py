"""blockscope.open() of files that are no trace, damaged or missing, and requests for values that a trace lacks."""

import os
import pathlib
import random
import shutil

import h5py
import numpy as np
import pytest

import blockscope
from conftest import FROZEN, make
from hostile_trace import spoil


def refused(error, path, *words):
    with pytest.raises(error) as raised:
        blockscope.open(path)
    assert type(raised.value) is error and str(path) in str(raised.value)
    for word in words:
        assert word in str(raised.value)
    return str(raised.value)


def test_files_that_are_no_traces_are_refused(tmp_path, plain):
    refused(blockscope.TraceNotFound, tmp_path / "none.h5", "No such file")
    assert issubclass(blockscope.TraceNotFound, FileNotFoundError)
    refused(blockscope.NotATrace, tmp_path, "folder")
    text = tmp_path / "text.h5"
    text.write_text("no trace")
    refused(blockscope.NotATrace, text)
    other = tmp_path / "other.h5"
    with h5py.File(other, "w") as file:
        file["x"] = 1
    refused(blockscope.NotATrace, other)
    newer = tmp_path / "newer.h5"
    shutil.copy(plain, newer)
    with h5py.File(newer, "r+") as file:
        file.attrs.modify("format_version", 99)
    refused(blockscope.UnsupportedVersion, newer, "99")
    size = plain.stat().st_size
    for share in (0.3, 0.9, 0.999):
        os.truncate(plain, int(size * share))
        with pytest.raises(blockscope.TraceError, match="plain.h5"):
            blockscope.open(plain)


def test_damaged_files_raise_nothing_but_our_errors(tmp_path):
    original = make(tmp_path / "original.h5", "--sequences", 2).read_bytes()
    chance, refused = random.Random(1), 0
    for number in range(60):
        path = tmp_path / "hostile.h5"
        path.write_bytes(original)
        told = f"round {number}: {spoil(path, chance)}"
        try:
            with blockscope.open(path) as trace:
                for sequence in trace.sequences:
                    for t in range(trace.num_steps(sequence.index) + 1):
                        trace.frame(sequence.index, t)
                    trace.deltas(sequence.index)
                for node in trace.tree.subtree:
                    for variable in node.data_vars.values():
                        assert variable.values.shape == variable.shape
                trace.analyze()
        except blockscope.Error as error:
            refused += 1
            assert "hostile.h5" in str(error), (told, error)
    assert 20 < refused < 60


def test_messages_with_names_that_are_not_utf8(tmp_path):
    with pytest.raises(blockscope.TraceNotFound):
        blockscope.open(os.fsencode(tmp_path) + b"/\xff.h5")
    shutil.copy(FROZEN, os.fsencode(tmp_path) + b"/\xff.h5")
    trace = blockscope.open(os.fsencode(tmp_path) + b"/\xff.h5")
    assert os.fsencode(trace.path).endswith(b"\xff.h5") and repr(trace) and trace._repr_html_()
    assert trace.analyze("decoding").attrs["traces"]


def test_what_is_not_there_is_refused(plain):
    trace = blockscope.open(plain)
    for index in (3, -1, 2**40):
        for ask in (trace.text, trace.deltas, trace.rows, lambda i: trace.frame(i, 0)):
            with pytest.raises(blockscope.UsageError, match=r"expected a sequence in \[0, 3\)"):
                ask(index)
    for index in (3, -4):
        with pytest.raises(IndexError):
            trace.sequences[index]
    for t in (-1, 10**6):
        with pytest.raises(blockscope.FrameError, match="expected a frame in"):
            trace.frame(0, t)
    for bad in ("0", 1.5, None):
        with pytest.raises(blockscope.UsageError, match="whole number"):
            trace.frame(bad, 0)
    with pytest.raises(KeyError):
        trace.tree["attention/nothing"]
    with pytest.raises(blockscope.UsageError, match="no such dataset"):
        trace._core.read("/nothing", [0], [1], np.empty(1))
    with pytest.raises(blockscope.UsageError, match="box"):
        trace._core.read("/steps/step", [0], [trace.num_rows + 1], np.empty(1))
    with pytest.raises(blockscope.UsageError, match="buffer"):
        trace._core.read("/steps/step", [0], [1], np.empty(7, np.uint8))
    lazy = trace.tree["steps/step"]
    with trace:
        pass
    for ask in (lambda: trace.text(0), trace.refresh, lambda: lazy.values, lambda: trace.analyze("decoding")):
        with pytest.raises(blockscope.UsageError, match="closed"):
            ask()


def test_a_deleted_file_stays_readable_where_it_is_open(plain):
    trace = blockscope.open(plain)
    want, steps = trace.text(0), trace.tree["steps/step"]
    plain.unlink()
    assert trace.text(0) == want and steps.values.size == trace.num_rows
    with pytest.raises(blockscope.TraceNotFound):
        trace.analyze("decoding")
