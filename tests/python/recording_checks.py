"""What the tests of blockscope.record() share: how a trace is judged."""

import os

import attention_math as am
import h5py
import numpy as np
import recording_reference as reference

BINARY = os.environ["BLOCKSCOPE_BINARY"]
PROMPT = [int(x) for x in np.random.default_rng(3).integers(0, 900, 75)]
MASK = 96  # of the random Qwen3
SIZE = 16  # of a block in check_rows


def rows_of(file):
    return int(file["/steps/committed"][0])


def check_array(path, got, expected, tolerance):
    expected = np.asarray(expected, np.float64)
    got = got.astype(np.float64)
    finite = np.isfinite(expected)
    largest = max(np.abs(expected[finite]).max(initial=0.0), 1.0)
    with np.errstate(invalid="ignore"):
        wrong = np.where(finite, ~(np.abs(got - expected) <= tolerance * largest),
                         (got != expected) & ~(np.isnan(got) & np.isnan(expected)))
    first = tuple(int(i) for i in np.argwhere(wrong)[0]) if wrong.any() else ()
    assert not wrong.any(), (f"{path}: {wrong.sum()} of {wrong.size} wrong, the first at {list(first)}: expected "
                             f"{expected[first]}, got {got[first]}")


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
                assert np.nanmax(np.abs(x.astype(float) - y), initial=0) <= (1 / 32 if path == "/sets/recall" else 2), path
            elif x.dtype == np.float16:  # each is rounded to it
                check_array(path, x, y, 2 ** -11 + 1e-4)
            elif x.dtype.kind == "f":
                check_array(path, x, y, 1e-4)
            else:
                assert np.array_equal(x, y), path


def compare_traces(mine, theirs, apart=frozenset()):
    """Every dataset and attribute of two recordings of the same passes, to the last bit. Only torch's float32 sums may
    differ in some last bits, because heads may stand elsewhere in its vectors. -> number of rows"""
    copied = ("/query", "/hidden", "/kv", "/prefix", "/prediction", "/frames", "/sequences")

    def datasets(file):
        found = {}
        file.visititems(lambda path, item: found.update({"/" + path: item}) if isinstance(item, h5py.Dataset) else None)
        return found

    with h5py.File(mine) as a, h5py.File(theirs) as b:
        ours, others = datasets(a), datasets(b)
        assert sorted(ours) == sorted(others)
        assert dict(a["/model"].attrs) == dict(b["/model"].attrs)
        for path, values in others.items():
            x, y = ours[path][()], values[()]
            if path in {"/run_byte", "/run/json", "/steps/pass_time_ns", *apart}:
                continue
            assert x.shape == y.shape and x.dtype == y.dtype, path
            if x.dtype != np.float32 or path.startswith(copied):
                assert x.tobytes() == y.tobytes(), path
            else:
                assert np.allclose(x, y, rtol=1e-5, atol=0, equal_nan=True), path
        return rows_of(a)


def split(q, k, v, inside, change):
    """[H, B, D] of both parts and their lse [H, B]; change(scores [B, N], head) is what the model makes of them."""
    scores = np.stack([change(one, head) for head, one in enumerate(am.scores_of(q, k, q.shape[-1] ** -0.5))])
    return [x for part in (~inside, inside) for x in am.attention(scores[..., part], v[:, part])]


class Kept:
    """In place of a PlainModel's attention: another one, whose queries, keys and values stay in float64."""

    def __init__(self, model, attend):
        self.calls, self._attend = [], attend
        for layer in model.layers:
            layer.attend = self

    def __call__(self, q, k, v, mask):
        self.calls.append(tuple(x[0].double().numpy().copy() for x in (q, k, v)))
        return self._attend(q, k, v, mask)


def check_rows(path, calls, layers, change, where=lambda rows, keys: (keys - SIZE, 0), tolerance=2e-5):
    """Every denoising row; where(T, N): first of the block's keys, first of its rows."""
    with h5py.File(path) as file:
        kinds, numbers = file["/steps/kind"][:rows_of(file)], file["/steps/pass"][:rows_of(file)]
        assert (kinds == 1).sum() >= 3
        prompt, bins = int(file["/sequences/prompt_length"][0]), int(file.attrs["distance_bins"])
        both_sides = bool(file["/model"].attrs.get("bidirectional", 0))
        for row in np.flatnonzero(kinds == 1):
            for layer in range(layers):
                q, k, v = calls[numbers[row] * layers + layer]
                begin, first = where(q.shape[1], k.shape[1])
                keys = np.arange(k.shape[1])
                inside = (keys >= begin) & (keys < begin + SIZE)
                rows = np.arange(first, first + SIZE)
                expected = split(q[:, rows], k, v, inside,
                                 lambda scores, head: change(scores, head, rows[:, None], keys, q.shape[1]))
                for name, value in zip(("external", "lse_external", "internal", "lse_internal"), expected):
                    check_array(name, file["/attention/" + name][row, layer], value, tolerance)
                scores = am.scores_of(q[:, rows], k, q.shape[-1] ** -0.5)
                scores = np.stack([change(one, head, rows[:, None], keys, q.shape[1]) for head, one in enumerate(scores)])
                start = int(file["/steps/block_start"][row])
                spread = reference.spread(scores, keys + start - begin, start, SIZE, prompt, [True] * SIZE, bins,
                                          both_sides)
                for name, value in spread.items():
                    got = file["/spread/" + name][row, layer]
                    if name == "region":  # which of the block's tokens are masks isn't known here
                        got = np.concatenate([got[:, :3], 0 * got[:, :1], got[:, 3:4] + got[:, 4:5], got[:, 5:]], 1)
                    check_array("/spread/" + name, got, value, tolerance)
