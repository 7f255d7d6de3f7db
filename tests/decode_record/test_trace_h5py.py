"""A trace is read with h5py and numpy alone: the snippets of docs/trace_format.md are run as
written, and their results are compared with what tests/decode_record/trace_fixture.h wrote.
test_trace_h5py.py TRACE_TOOL"""

import hashlib
import math
import pathlib
import re
import subprocess
import sys
import tempfile

import h5py
import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from check_partial import expected, field_numbers  # noqa: E402

ROOT = pathlib.Path(__file__).parents[2]
NUMBERS = field_numbers()


def run_snippets(path):
    """The names that the document's Python blocks define, run on `path`."""
    text = (ROOT / "docs" / "trace_format.md").read_text()
    names = {"path": path}
    blocks = re.findall(r"```python\n(.*?)```", text, re.S)
    assert len(blocks) >= 6, len(blocks)
    for block in blocks:
        exec(block, names)  # noqa: S102: our own document
    return names


def check_arrays(trace, rows, recorded):
    layers = trace["/layer"].shape[0]
    checked = 0
    for name, number in NUMBERS.items():
        recorders = name.startswith(("/prediction/", "/attention/", "/sets/", "/query/", "/hidden/",
                                     "/kv/", "/summary/"))
        if not recorders or name not in trace:
            continue
        data = trace[name]
        axes = [dim[0].name.strip("/") for dim in data.dims]
        assert axes[0] == "row", (name, axes)
        for row in [r for r in range(rows) if recorded[r]][:: max(1, rows // 5)]:
            values = data[row]
            parts = [values]
            if "layer" in axes:
                parts = [np.take(values, i, axis=axes.index("layer") - 1) for i in range(layers)]
            for layer, part in enumerate(parts):
                want = expected(number, row, layer, part.size, data.dtype).reshape(part.shape)
                assert np.array_equal(part, want), (name, row, layer)
                checked += 1
    assert checked > 100, checked


def check_frames(names, rows):
    """Replays the tokens that the fixture decides, without its deltas."""
    trace = names["trace"]
    sequence = trace["/steps/sequence"][:rows]
    mask = trace["/model"].attrs["mask_token_id"]
    for s in range(2):
        tokens = np.full(200, mask)
        decided = 0
        for row in np.flatnonzero(sequence == s):
            state = names["frame_before"](int(row))
            assert np.array_equal(state[0], tokens), (s, row)
            assert np.all((state[2] == -1) == np.isneginf(state[1]))
            assert state[2].max() == decided - 1
            if trace["/steps/kind"][row] != 1:
                continue
            at = int(trace["/steps/block"][row]) * 4 + (int(trace["/steps/step"][row]) - 1) * 2
            tokens[at : at + 2] = row % 90, (row + 1) % 90
            decided += 1


def check_sequences(names):
    trace = names["trace"]
    assert int(trace["/sequences/committed"][0]) == 2
    for s in range(2):
        prompt = (np.arange(4 + s) * 3 + s) % 90
        digest = hashlib.sha256(prompt.astype("<i8").tobytes()).digest()
        assert trace["/sequences/prompt_hash"][s].tobytes() == digest
        start = int(trace["/sequences/prompt_start"][s])
        assert np.array_equal(trace["/sequences/prompt_token"][start : start + 4 + s], prompt)
        assert names["text"]("name", s) == f"task-{s}"
        assert names["text"]("answer", s) == f"answer {s}"
        assert names["text"]("text", s) == f"text {s}"
    assert names["piece"][42] == b"piece42"
    assert names["run"] == {"version": "test", "policy": "exact"}


def check_prefix(names, rows):
    trace = names["trace"]
    row = rows - 1
    keys = names["prefix"]("key", row, 1)
    length = 4 + int(trace["/steps/sequence"][row])
    want = expected(NUMBERS["/prefix/key"], 0, 1, keys.size).reshape(keys.shape)
    assert keys.shape == (length, 2, 8) and np.array_equal(keys, want)


def check_xarray(tree):
    attention = tree["attention"].to_dataset()
    axes = ("row", "layer", "head", "block_position", "channel")
    assert attention["external"].dims == axes, attention["external"].dims
    assert attention["layer"].values.tolist() == [0, 2]
    assert attention["head"].values.tolist() == [0, 1, 3]
    one = attention["external"].sel(layer=2, head=3, row=7).values
    want = expected(NUMBERS["/attention/external"], 7, 1, 3 * one.size)
    assert np.array_equal(one, want.reshape(3, *one.shape)[2])
    assert math.isinf(tree["summary"].to_dataset()["tau"].values[3])
    tree.close()


def check(tool, folder, array_type):
    path = f"{folder}/{array_type}.h5"
    subprocess.run([tool, "fixture", path, array_type], check=True)
    names = run_snippets(path)
    trace, rows = names["trace"], names["rows"]
    assert rows == 202 and trace["/run/complete"][0] == 1
    assert trace.attrs["format"] == b"blockscope-trace" and trace.attrs["lse_base"] == b"e"
    assert trace["/attention/external"].dtype == np.float32
    for name in NUMBERS:
        if name in trace and name.count("/") > 1:  # the scales themselves are at the root
            assert all(len(dim) == 1 for dim in trace[name].dims), name
    check_arrays(trace, rows, trace["/steps/recorded"][:rows])
    check_frames(names, rows)
    check_sequences(names)
    check_prefix(names, rows)
    check_xarray(names["tree"])
    trace.close()


def main(tool):
    with tempfile.TemporaryDirectory() as folder:
        for array_type in ("bf16", "f32"):
            check(tool, folder, array_type)
    print("read back with h5py", h5py.version.version)


if __name__ == "__main__":
    main(sys.argv[1])
