"""blockscope.open(): what a trace says, judged by h5py and NumPy on the same file."""

import json
import os
import pathlib
import pickle
import shutil
import subprocess
import sys
import threading

import h5py
import numpy as np

import blockscope
from conftest import FROZEN, command

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support"))
from trace_arrays import stored_path


def h5(path):
    partial = pathlib.Path(f"{path}.partial")
    return h5py.File(partial if partial.exists() else path, "r", swmr=partial.exists())


def test_facts_are_those_of_info(odd):
    trace = blockscope.open(odd)
    info = json.loads(command("info", odd, "--json"))
    assert (trace.complete, trace.partial, trace.level) == (info["complete"], info["partial"], info["level"])
    assert trace.block_length == info["block_length"] and trace.mask_token_id == info["mask_token_id"]
    assert trace.layers == info["recorded_layers"] and trace.heads == info["recorded_heads"]
    assert trace.run == info["run"] and trace.file_bytes == info["file_bytes"]
    assert {key: trace.model[key] for key in info["model"]} == info["model"]
    with h5(odd) as file:
        assert trace.num_rows == int(file["/steps/committed"][0])
        assert trace.model["num_layers"] == file["model"].attrs["num_layers"]


def test_every_dataset_equals_h5py(odd):
    trace = blockscope.open(odd)
    info = json.loads(command("info", odd, "--json"))
    with h5(odd) as file:
        for dataset in info["datasets"]:
            path, shape = dataset["path"], dataset["shape"]
            if path in ("/model/json", "/run/json"):
                continue
            found = trace.tree[path]
            assert list(found.dims) == dataset["axes"] and list(found.shape) == shape, path
            stored = file[stored_path(file, path)]
            want = stored[tuple(slice(0, n) for n in shape)]
            assert found.dtype == (np.float32 if want.dtype.kind == "f" else want.dtype), path
            np.testing.assert_array_equal(found.values, want, err_msg=path)
            for dim in found.dims:
                if dim in trace.tree.coords:  # the other scales have no values
                    np.testing.assert_array_equal(found[dim].values, file[f"/{dim}"][: found.sizes[dim]])


def test_any_part_of_an_array_is_what_numpy_takes(plain):
    lazy = blockscope.open(plain).tree["attention/external"].variable
    with h5(plain) as file:
        whole = file["/attention/external"][: lazy.shape[0]]
    chance = np.random.default_rng(1)
    for _ in range(200):
        key = []
        for length in whole.shape:
            kind = chance.integers(4)
            if kind == 0:
                key.append(int(chance.integers(-length, length)))
            elif kind == 1:
                step = int(chance.choice([-3, -1, 1, 2, 5]))
                ends = sorted(chance.integers(0, length + 1, 2).tolist())
                # Backwards never empty: of that xarray itself makes an IndexError.
                key.append(slice(*ends, step) if step > 0 else slice(None, None, step))
            elif kind == 2:
                key.append(chance.integers(0, length, chance.integers(0, 4)))
            else:
                key.append(slice(None))
        want = whole
        for axis in reversed(range(whole.ndim)):  # each axis by itself, as xarray indexes
            want = want[(slice(None),) * axis + (key[axis],)]
        np.testing.assert_array_equal(lazy[tuple(key)].values, want, err_msg=str(key))


def test_arrays_are_read_when_they_are_asked_for(plain):
    trace = blockscope.open(plain)
    read = []

    class Spy:
        def arrays(self):
            return trace._core.arrays()

        def read(self, path, start, count, out):
            read.append((path, count))
            trace._core.read(path, start, count, out)

    from blockscope.lazy import tree_of

    tree = tree_of(Spy(), {})
    tree["attention/external"]
    assert {path for path, _ in read} <= {"/" + axis for axis in tree.coords}  # coordinates only
    read.clear()
    tree["attention/external"].isel(row=[1, 2, 7], layer=1, head=0).values
    assert [count[:3] for _, count in read] == [[2, 1, 1], [1, 1, 1]]


# --- texts and trajectories ------------------------------------------------------------------------


def frame_by_h5py(file, sequence, t):
    """Tokens, confidences and steps before the t-th denoising row, from /frames alone."""
    rows = int(file["/steps/committed"][0])
    own = np.flatnonzero(file["/steps/sequence"][:rows] == sequence)
    denoise = own[file["/steps/kind"][:rows][own] == 1]
    assert t <= denoise.size
    before = denoise[t] if t < denoise.size else rows
    length = int(file["/sequences/gen_length"][sequence])
    mask = int(file["model"].attrs["mask_token_id"])
    tokens, confidence = np.full(length, mask), np.full(length, -np.inf, np.float32)
    steps = np.full(length, -1)
    for row in own[own < before]:
        begin = int(file["/frames/delta_end"][row - 1]) if row else 0
        part = slice(begin, int(file["/frames/delta_end"][row]))
        assert file["/frames/insert_end"][row] == 0 and file["/frames/delete_end"][row] == 0
        position = file["/frames/position"][part]
        tokens[position] = file["/frames/token"][part]
        confidence[position] = file["/frames/confidence"][part]
        steps[position] = file["/frames/step"][part]
    return tokens, confidence, steps


def test_frames_and_deltas_equal_h5py(odd):
    trace = blockscope.open(odd)
    with h5(odd) as file:
        for i in range(trace.num_sequences):
            deltas = trace.deltas(i)
            assert len(deltas) == trace.num_steps(i)
            state = None
            for t in range(len(deltas) + 1):
                frame = trace.frame(i, t)
                for found, want in zip((frame.tokens, frame.confidence, frame.steps),
                                       frame_by_h5py(file, i, t)):
                    np.testing.assert_array_equal(found, want)
                assert frame.masks_left == (frame.tokens == trace.mask_token_id).sum()
                if state is not None:
                    delta = deltas[t - 1]
                    state[delta.position] = delta.token
                    np.testing.assert_array_equal(state, frame.tokens)
                state = frame.tokens.copy()
            start, length = (int(file[f"/sequences/prompt_{x}"][i]) for x in ("start", "length"))
            prompt = file["/sequences/prompt_token"][start:start + length]
            np.testing.assert_array_equal(frame.prompt, prompt)
            np.testing.assert_array_equal(trace.sequences[i].prompt, prompt)
            np.testing.assert_array_equal(
                trace.rows(i), np.flatnonzero(file["/steps/sequence"][: trace.num_rows] == i))


def test_texts_equal_h5py():
    trace = blockscope.open(FROZEN)
    assert len(trace.sequences) == 2
    with h5(FROZEN) as file:
        ends = file["/tokenizer/piece_offset"][:]
        raw = file["/tokenizer/piece_bytes"][:].tobytes()
        for i, sequence in enumerate(trace.sequences):
            for name in ("name", "answer", "metric", "text"):
                start, length = (int(file[f"/sequences/{name}_{x}"][i]) for x in ("start", "length"))
                want = file["/sequences/bytes"][start:start + length].tobytes().decode(errors="replace")
                assert getattr(sequence, name) == want
            assert trace.text(i) == sequence.text and sequence.finish_reason in ("length", "stop")
            assert sequence.score == float(file["/sequences/score"][i])
            assert bytes.fromhex(sequence.prompt_hash) == file["/sequences/prompt_hash"][i].tobytes()
            for t in (0, 3):
                tokens = trace.frame(i, t).tokens
                pieces = [b"?" if token == trace.mask_token_id else raw[ends[token]:ends[token + 1]]
                          for token in tokens]
                assert trace.text(i, t, mask="?") == b"".join(pieces).decode(errors="replace")
    assert [s.index for s in trace.sequences[0:2]] == [0, 1] and trace.sequences[-1].index == 1
    assert trace.pieces([-1, 10**9]) == [b"", b""]


def test_a_live_trace_is_followed_to_its_end(tmp_path):
    path = tmp_path / "live.h5"
    writer = subprocess.Popen([os.environ["TRACE_TOOL"], "steered", str(path)], stdin=subprocess.PIPE)
    try:
        while not pathlib.Path(f"{path}.partial").exists():
            assert writer.poll() is None
        trace = blockscope.open(path)
        old = trace.tree["steps/step"]

        def write_until(rows):
            writer.stdin.write(b"row\n" * (rows - trace.num_rows))
            writer.stdin.flush()
            while trace.num_rows < rows:
                trace.refresh()

        write_until(5)
        assert trace.partial and not trace.complete and trace.sequences[0].finish_reason == "unfinished"
        assert old.sizes["row"] == 0 and trace.tree["steps/step"].sizes["row"] == 5
        assert trace.frame(0, 5).steps.max() >= 0
        assert trace.analyze("decoding").means_terms.sum() > 0
        assert trace.text(0, mask="") == trace.text(0, 5, mask="")
        # A second view of the growing file, used in turns with the first.
        second = blockscope.open(path)
        write_until(7)
        assert second.num_rows == 5 and second.tree["steps/pass"].values.tolist()[:5] == list(range(5))
        assert trace.frame(0, 6).tokens.size == second.frame(0, 4).tokens.size
        assert second.refresh() and not second.refresh() and second.num_rows == 7
        writer.stdin.close()
        assert writer.wait(60) == 0
        while not trace.complete:
            trace.refresh()
        assert trace.path == str(path) and trace.sequences[0].finish_reason == "length"
        assert trace.text(0) == "text" and trace.tree["steps/pass"].values.tolist() == list(range(7))
    finally:
        writer.kill()
        writer.wait()


def test_the_text_of_an_unfinished_sequence_comes_from_its_frame(tmp_path):
    path = tmp_path / "cut.h5"
    shutil.copy(FROZEN, path)
    with h5py.File(path, "r+") as file:
        file["/sequences/finish_reason"][1] = 0
    trace = blockscope.open(path)
    assert trace.text(1) == trace.text(1, trace.num_steps(1))
    assert trace.text(1, 0, mask="") == "" and trace.text(0) == blockscope.open(FROZEN).text(0)


def test_threads_and_processes_may_share_a_trace(plain):
    trace = blockscope.open(plain)
    want = [trace.frame(0, t).tokens.tolist() for t in range(3)]
    copy = pickle.loads(pickle.dumps(trace))
    assert copy.num_rows == trace.num_rows and copy.frame(0, 1).tokens.tolist() == want[1]
    array = trace.tree["attention/external"]
    whole, wrong = array.values, []

    def read():
        for t in range(60):
            if trace.frame(0, t % 3).tokens.tolist() != want[t % 3]:
                wrong.append(t)
            row = t % trace.num_rows
            if not np.array_equal(array[row].values, whole[row], equal_nan=True):
                wrong.append(-t)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(3):
        trace.analyze("similarity")
    for thread in threads:
        thread.join(120)
    assert not wrong and not any(thread.is_alive() for thread in threads)


def test_opening_imports_nothing_slow(plain):
    code = ("import sys, blockscope; t = blockscope.open(sys.argv[1]); t.run, t.sequences, repr(t);"
            "slow = lambda: [m for m in ('torch', 'numpy', 'xarray', 'pandas', 'h5py', 'IPython') if m in sys.modules];"
            "print(slow()); t.text(0, 1) if t._core.num_pieces() else 0; t.frame(0, 1); t.deltas(0); print(slow())")
    out = subprocess.run([sys.executable, "-c", code, plain], capture_output=True, text=True, check=True)
    assert out.stdout.split() == ["[]", "['numpy']"]


def test_h5py_may_be_loaded_before_and_after(plain):
    read = "h5py.File(sys.argv[1], 'r')['/steps/step'][:].tolist()"
    ours = "blockscope.open(sys.argv[1]).tree['steps/step'].values.tolist()"
    for code in (f"import sys, h5py; a = {read}; import blockscope; b = {ours}; assert a == b == {read}",
                 f"import sys, blockscope; b = {ours}; import h5py; a = {read}; assert a == b == {ours}",
                 "import sys, h5py, blockscope; f = h5py.File(sys.argv[1], 'r'); g = f['/steps/step'];"
                 f"assert {ours} == g[:].tolist(); f.close(); {ours}"):
        subprocess.run([sys.executable, "-c", code, plain], check=True)
