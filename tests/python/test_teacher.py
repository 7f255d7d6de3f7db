"""`blockscope diff --teacher` and blockscope.compare(teacher=True): differences planted with h5py, judged by NumPy on the
same files."""

import json
import shutil
import subprocess

import h5py
import numpy as np
import pytest

import blockscope
from conftest import BINARY, make

TOLERANCE = 1e-3
# name: dataset, axis of heads, whether it has channels, range
QUANTITIES = {
    "hidden": ("/hidden/hidden", False, True), "query": ("/query/query", True, True),
    "key": ("/kv/key", True, True), "value": ("/kv/value", True, True),
    "lse_internal": ("/attention/lse_internal", True, False), "lse_external": ("/attention/lse_external", True, False),
    "internal": ("/attention/internal", True, True), "external": ("/attention/external", True, True)}


def teacher(a, b, *flags):
    """-> exit code, the JSON, the text."""
    done = subprocess.run([BINARY, "diff", a, b, "--teacher", "--json", "-", *map(str, flags)], capture_output=True,
                          text=True)
    said = subprocess.run([BINARY, "diff", a, b, "--teacher", *map(str, flags)], capture_output=True, text=True)
    assert done.returncode == said.returncode
    return done.returncode, json.loads(done.stdout) if done.stdout else done.stderr, said.stdout


def values_of(file, name):
    """[row, layer, head, position, channel] in float64; -1 and NaN as they are."""
    if name == "merged":
        out, inside, a, b = (file[f"/attention/{x}"][:].astype(np.float64) for x in
                             ("external", "internal", "lse_external", "lse_internal"))
        with np.errstate(invalid="ignore"):
            top = np.maximum(a, b)
            weight_a, weight_b = np.exp(a - top)[..., None], np.exp(b - top)[..., None]
        return ((weight_a * np.nan_to_num(out) + weight_b * inside) / (weight_a + weight_b)).astype(np.float32)
    path, heads, channels = QUANTITIES[name]
    values = file[path][:].astype(np.float64)
    if not heads:
        values = values[:, :, None]
    return values if channels else values[..., None]


def oracle(path_a, path_b, name):
    """-> by layer (elements, different, largest, largest relative), the first difference: row, layer, position, head."""
    with h5py.File(path_a) as a, h5py.File(path_b) as b:
        rows = np.flatnonzero(a["/steps/kind"][:int(a["/steps/committed"][0])] == 1)
        there = (a["/steps/valid"][:] == 1)[rows][:, None, None, :]
        x, y = values_of(a, name)[rows], values_of(b, name)[rows]
    with np.errstate(invalid="ignore"):
        size = np.maximum(np.abs(x), np.abs(y)).max(-1, keepdims=True)
        if name.startswith("lse"):
            size = np.maximum(size, 1)
        difference = np.abs(x - y)
        share = np.where(difference == 0, 0, difference / size)
    beyond = (difference > TOLERANCE * size) & there[..., None]
    counted = there[..., None] & ~np.isnan(x)
    layers = []
    for layer in range(x.shape[1]):
        inside = counted[:, layer]
        layers.append((int(inside.sum()), int(beyond[:, layer].sum()), float(difference[:, layer][inside].max()),
                       float(share[:, layer][inside].max())))
    order = np.argwhere(beyond.any(-1).swapaxes(2, 3))  # row, layer, position, head
    return layers, (int(rows[order[0][0]]), *map(int, order[0][1:])) if len(order) else None


def check(found, path_a, path_b, names=(*QUANTITIES, "merged")):
    for quantity in found["quantities"]:
        if quantity["name"] not in names:
            continue
        layers, first = oracle(path_a, path_b, quantity["name"])
        for layer, wanted in zip(quantity["by_layer"], layers, strict=True):
            got = tuple(layer[key] for key in ("elements", "different", "largest", "largest_relative"))
            assert got[:2] == wanted[:2], (quantity["name"], got, wanted)
            assert np.allclose(got[2:], wanted[2:], rtol=2e-6, atol=1e-12), (quantity["name"], got, wanted)
        place = quantity["first"]
        if place is not None:
            place = place["row_a"], place["layer"], place["position"], max(place["head"] or 0, 0)
        assert place == first, (quantity["name"], place, first)


@pytest.fixture(params=["plain", "unequal", "bf16"])
def pair(request, tmp_path):
    flags = {"plain": ["--array-type", "f32"], "bf16": ["--seed", 3, "--invalid", 1],
             "unequal": ["--array-type", "f32", "--unequal", "--interleaved", "--sequences", 3, "--invalid", 1]}
    a = make(tmp_path / "a.h5", *flags[request.param])
    return a, shutil.copy(a, tmp_path / "b.h5"), np.random.default_rng(5)


def denoising(file):
    return np.flatnonzero(file["/steps/kind"][:int(file["/steps/committed"][0])] == 1)


@pytest.mark.parametrize("name", QUANTITIES)
def test_one_planted_difference(pair, name):
    a, b, random = pair
    path, heads, channels = QUANTITIES[name]
    with h5py.File(b, "r+") as file:
        row = int(random.choice(denoising(file)))
        layer, position, channel = int(random.integers(3)), int(random.integers(3)), int(random.integers(8))
        head = int(random.integers(file[path].shape[2])) if heads else 0
        at = (row, layer, *((head,) if heads else ()), position, *((channel,) if channels else ()))
        before = float(file[path][at])
        file[path][at] = before + 0.5
        after = float(file[path][at])
    code, found, text = teacher(a, b, "--range-tol", TOLERANCE)
    first = found["first"]
    assert code == 1 and not found["equal"] and found["inputs"] is None
    assert (first["quantity"], first["row_a"], first["row_b"], first["layer"], first["position"]) == (
        name, row, row, layer, position)
    assert first["head"] == (head if heads else None) and first["channel"] == (channel if channels else None)
    assert (first["a"], first["b"]) == (before, after)
    label = {"lse_internal": "L_in", "lse_external": "L_out", "internal": "A_in", "external": "A_out"}.get(name, name)
    assert f"first difference: {label} in sequence" in text and f"(row {row}), layer {layer}, position {position}" in text
    check(found, a, b)
    assert {q["name"] for q in found["quantities"] if q.get("different")} <= {name, "merged"}
    other = blockscope.compare(a, b, teacher=True, tolerance=TOLERANCE)
    assert other.data == found and other.first == first and other[name]["different"] == 1
    assert teacher(a, b, "--range-tol", 10)[0] == 0


def test_differences_of_all_sizes(pair):
    """Many, below and above the tolerance, in all quantities at once."""
    a, b, random = pair
    with h5py.File(b, "r+") as file:
        for path, *_ in QUANTITIES.values():
            values = file[path][:]
            noise = 10 ** random.uniform(-7, -1, values.shape) * random.choice([-1, 0, 0, 1], values.shape)
            file[path][:] = (values * (1 + noise)).astype(values.dtype)
    _, found, _ = teacher(a, b, "--range-tol", TOLERANCE)
    check(found, a, b)
    firsts = [(q["first"]["row_a"], q["first"]["layer"], i) for i, q in enumerate(found["quantities"])
              if q.get("first") and q["first"]["layer"] is not None]
    row, layer, quantity = min(firsts)
    assert found["first"] == found["quantities"][quantity]["first"]
    csv = subprocess.run([BINARY, "diff", a, b, "--teacher", "--range-tol", str(TOLERANCE), "--csv", "-"],
                         capture_output=True, text=True).stdout.splitlines()
    wanted = [f"{q['name']},{layer['layer']},{layer['elements']},{layer['different']}" for q in found["quantities"]
              for layer in q.get("by_layer", [])]
    assert [line.rsplit(",", 2)[0] for line in csv[1:] if not line.startswith(("token,", "confidence,"))] == wanted


def test_predictions_come_after_all_layers(pair):
    a, b, _ = pair
    with h5py.File(b, "r+") as file:
        row = int(denoising(file)[1])
        file["/prediction/confidence"][row, 1] += 0.25
        position = int(np.flatnonzero(file["/prediction/token"][row] >= 0)[0])
        file["/prediction/token"][row, position] = (file["/prediction/token"][row, position] + 1) % 3
    _, found, text = teacher(a, b)
    assert (found["first"]["quantity"], found["first"]["row_a"], found["first"]["position"]) == ("token", row, position)
    assert "look at: a near-tie if the confidences are close" in text
    with h5py.File(b, "r+") as file:
        file["/query/query"][row, 2] += 1
    assert teacher(a, b)[1]["first"]["quantity"] == "query"  # of the same row
    with h5py.File(b, "r+") as file:
        file["/hidden/hidden"][int(denoising(file)[2]), 0] += 1
    assert teacher(a, b)[1]["first"]["quantity"] == "query"  # a later row


def test_quantities_come_in_computing_order(pair):
    """Within a layer, before positions and heads do."""
    a, b, _ = pair
    with h5py.File(b, "r+") as file:
        row = int(denoising(file)[1])
        file["/attention/lse_external"][row, 1, 0, 0] += 1
        file["/query/query"][row, 1, 0, 0, 0] += 1
        file["/hidden/hidden"][row, 1, 2, 5] += 1
    first = teacher(a, b)[1]["first"]
    assert (first["quantity"], first["layer"], first["position"], first["channel"]) == ("hidden", 1, 2, 5)


def test_values_that_are_not_numbers(pair):
    a, b, _ = pair
    with h5py.File(b, "r+") as file:
        row = int(denoising(file)[0])
        file["/attention/internal"][row, 1, 2, 0, 3] = np.nan
        file["/query/query"][row, 2, 1, 0] = np.nan
    _, found, text = teacher(a, b)
    by_name = {q["name"]: q for q in found["quantities"]}
    assert found["first"]["quantity"] == "internal" and by_name["internal"]["different"] == 1
    assert by_name["query"]["different"] == 8 and by_name["internal"]["largest_relative"] is None
    assert "nan in B" in text


def test_inputs_that_differ(pair, tmp_path):
    a, b, _ = pair
    with h5py.File(b, "r+") as file:
        file["/query/query"][int(denoising(file)[-1])] += 1
        ends = file["/frames/delta_end"][:]
        sequence, rows = file["/steps/sequence"][:], denoising(file)
        row = next(r for r in rows if ends[r] > ends[r - 1] and any(n > r and sequence[n] == sequence[r] for n in rows))
        reads = next(n for n in rows if n > row and sequence[n] == sequence[row])
        decided = int(ends[row]) - 1
        position = int(file["/frames/position"][decided])
        token = int(file["/frames/token"][decided])
        file["/frames/token"][decided] = (token + 1) % 3
    code, found, text = teacher(a, b)
    assert found["inputs"]["row_a"] == reads
    with h5py.File(a) as file:
        prompt = int(file["/sequences/prompt_length"][found["inputs"]["sequence_a"]])
    assert code == 1 and found["first"] is None
    assert found["inputs"]["what"].startswith(f"token at position {prompt + position} (the answer's {position}): {token} "
                                              f"in A, {(token + 1) % 3} in B")
    assert "nothing after it was compared" in text and f"--replay {a}" in text
    other = make(tmp_path / "other.h5", "--seed", 77, "--array-type", "f32")
    code, error, _ = teacher(a, other)
    assert code in (1, 2)
    layers = make(tmp_path / "layers.h5", "--layers", 2)
    code, error, _ = teacher(a, layers)
    assert code == 2 and "num_layers 3 there, 2 here" in error
    plain = make(tmp_path / "plain.h5", "--level", "trajectory")
    with pytest.raises(blockscope.UsageError, match="tolerance: expected a number of at least 0, got -1"):
        blockscope.compare(a, plain, teacher=True, tolerance=-1)


def test_what_both_have(tmp_path):
    """Other layers, heads, levels and steps: the shared ones."""
    a = make(tmp_path / "a.h5", "--array-type", "f32")
    some = make(tmp_path / "some.h5", "--array-type", "f32", "--record-layers", "1,2", "--record-heads", "1,2",
                "--record-kv-heads", "0,1", "--level", "outputs", "--record-steps", "2,3")
    with h5py.File(some, "r+") as file:
        row = int(np.flatnonzero(file["/steps/recorded"][:int(file["/steps/committed"][0])] *
                                 (file["/steps/kind"][:int(file["/steps/committed"][0])] == 1))[0])
        file["/query/query"][row, 1, 0, 2, 4] += 3
    _, found, text = teacher(a, some)
    first = found["first"]
    assert (found["layers"], found["heads"]) == ([1, 2], [1, 2])
    assert (first["quantity"], first["layer"], first["head"], first["position"]) == ("query", 2, 1, 2)
    assert found["recorded_rows"] == found["rows"] // 2
    missing = {q["name"]: q["missing"] for q in found["quantities"] if q["missing"]}
    assert missing["hidden"] == "B has no /hidden/hidden" and missing["expert"] == "neither has /router/expert"
    assert "not compared: hidden: B has no /hidden/hidden" in text
