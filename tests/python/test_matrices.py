"""similarity_matrix() and compare_backbone(): `blockscope analyze --matrix` and `--backbone`, bit for bit in its JSON
and CSV, and the cosines by NumPy."""

import csv
import io

import h5py
import numpy as np
import pytest

import blockscope
from conftest import FROZEN, analyze_json, check_equal, command, make


@pytest.fixture(scope="module")
def full(tmp_path_factory):
    """Level full, 6 query heads on 3 KV heads; layers 0 and 2."""
    return make(tmp_path_factory.mktemp("full") / "full.h5", "--level", "full", "--sequences", 3, "--steps", 4,
                "--heads", 6, "--kv-heads", 3, "--layers", 3, "--record-layers", "0,2", "--seed", 8)


def by_csv(*arguments):
    """Values of one array in the order of its cells, as texts."""
    rows = list(csv.DictReader(io.StringIO(command("analyze", *arguments, "--csv", "-"))))
    assert rows and len({row["array"] for row in rows}) == 1
    return [row["value"] for row in rows]


CASES = [
    ("token", {}, []),
    ("token", dict(field="internal", layer=2, head=5, steps=[1, 3]),
     ["--field", "internal", "--layer", 2, "--head", 5, "--step", "1,3"]),
    ("token", dict(field="query", steps=2, sequences=[1, 2], blocks=1),
     ["--field", "query", "--step", 2, "--sequence", "1,2", "--block", 1]),
    ("token", dict(field="hidden", rows=(4, 2)), ["--field", "hidden", "--row-a", 4, "--row-b", 2]),
    ("token", dict(field="key", head=3), ["--field", "key", "--head", 3]),
    ("step", {}, []),
    ("step", dict(field="value", layer=2, head=1, sequences=2), ["--field", "value", "--layer", 2, "--head", 1,
                                                                 "--sequence", 2]),
    ("step", dict(field="hidden", blocks=1), ["--field", "hidden", "--block", 1]),
]


@pytest.mark.parametrize("kind, choices, flags", CASES)
def test_a_matrix_is_the_command_s(full, kind, choices, flags):
    found = blockscope.open(full).similarity_matrix(kind, **choices)
    metric, = analyze_json(full, "--matrix", kind, *flags)["metrics"]
    check_equal(found, metric)
    name = choices.get("field", "external")
    assert found.attrs["title"] == metric["title"] and found.arrays() == [name] == list(found.data_vars)
    assert found[name].attrs["long_name"] == metric["arrays"][0]["description"]
    in_csv = [float(value) if value else np.nan for value in by_csv(full, "--matrix", kind, *flags)]
    assert np.array_equal(np.array(in_csv), found[name].values.ravel(), equal_nan=True)
    assert np.isfinite(found[name].values).any()
    assert blockscope.similarity_matrix(full, kind, **choices).equals(found)


def test_cosines_are_those_of_numpy(full):
    def cosines(a, b):
        return (a * b).sum(-1) / (np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1))

    with h5py.File(full) as file:
        rows = np.arange(file["/steps/step"].shape[0])
        first = rows[(file["/steps/sequence"][:] == 1) & (file["/steps/block"][:] == 0) & (file["/steps/kind"][:] == 1)]
        a, b = (file["/attention/internal"][row, 1, 4].astype(np.float64) for row in first[[0, 2]])
    found = blockscope.similarity_matrix(full, "token", field="internal", layer=2, head=4, steps=[1, 3], sequences=1,
                                         blocks=0)
    want = cosines(a[:, None], b[None])
    both = np.isfinite(want) & np.isfinite(found.internal.values)
    assert both.any()
    np.testing.assert_allclose(found.internal.values[both], want[both], atol=1e-5)


@pytest.mark.parametrize("choices, flags", [
    ({}, []),
    (dict(layer=2, head=4, step=3, block=1, sequence=2),
     ["--layer", 2, "--head", 4, "--step", 3, "--block", 1, "--sequence", 2]),
])
def test_an_attention_map_is_the_command_s(full, choices, flags):
    found = blockscope.open(full).attention_map(**choices)
    metric, = analyze_json(full, "--matrix", "attention", *flags)["metrics"]
    check_equal(found, metric)
    assert found.attention.dims == ("position", "key") and found.attrs["title"] == metric["title"]
    np.testing.assert_allclose(found.attention.sum("key"), 1.0, atol=1e-6)
    assert blockscope.attention_map(full, **choices).equals(found)


def test_an_attention_map_that_there_is_not(full, tmp_path):
    trace = blockscope.open(full)
    for choices, words in [
        (dict(layer=1), "layer: 1 was not recorded. HINT: the trace has 0,2"),
        (dict(head=6), "head: 6 was not recorded"),
        (dict(step=0), "step: expected 1"),
        (dict(step=40), "matrix: none of .* step 40 recorded"),
        (dict(sequence=9), "matrix: none of 0 blocks"),
    ]:
        with pytest.raises(blockscope.UsageError, match=words):
            trace.attention_map(**choices)
    low = make(tmp_path / "low.h5", "--level", "outputs")
    with pytest.raises(blockscope.TraceError, match="low.h5.*--record full"):
        blockscope.attention_map(low)


def test_a_matrix_that_there_is_not(full, tmp_path):
    trace = blockscope.open(full)
    for choices, words in [
        (dict(kind="rows"), "kind: expected token or step"),
        (dict(field="nothing"), "field: expected external, internal"),
        (dict(layer=1), "layer: 1 was not recorded. HINT: the trace has 0,2"),
        (dict(head=6), "head: 6 was not recorded"),
        (dict(field="hidden", head=0), "head: hidden states have no heads"),
        (dict(steps=[1, 2, 3]), "steps: a token matrix takes two steps"),
        (dict(steps=40), "matrix: none of .* steps 40 and 41 recorded. HINT: sequences, blocks and steps"),
        (dict(sequences=9), "matrix: none of 0 blocks"),
        (dict(rows=(0, 10**6)), "rows: expected a row below"),
        (dict(rows=(0, 1, 2)), "rows: expected two rows"),
        (dict(rows=(0, 1), steps=1), "rows: expected two rows without steps"),
        (dict(kind="step", steps=1), "HINT: kind='token' takes two"),
        (dict(kind="step", rows=(0, 1)), "HINT: kind='token' takes two"),
        (dict(layer=-1), "layer: expected 0"),
    ]:
        with pytest.raises(blockscope.UsageError, match=words):
            trace.similarity_matrix(**{"kind": "token", **choices})
    low = make(tmp_path / "low.h5", "--level", "summary")
    with pytest.raises(blockscope.TraceError, match="low.h5.*--record outputs"):
        blockscope.similarity_matrix(low, "token")
    with pytest.raises(blockscope.TraceNotFound):
        blockscope.similarity_matrix(tmp_path / "none.h5", "token")
    one = trace.similarity_matrix("step")
    with pytest.raises(blockscope.UsageError, match="no array of step_similarity adds up"):
        one + one
    assert not one.figures()


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """A trained model and its backbone, which saw the same rows and answered differently."""
    folder = tmp_path_factory.mktemp("pair")
    common = ["--level", "full", "--sequences", 2, "--blocks", 2, "--steps", 4]
    return (make(folder / "a.h5", *common, "--seed", 3),
            make(folder / "b.h5", *common, "--seed", 3, "--correlation", 0.3))


def test_the_backbone_beside_the_model(pair):
    trained, backbone = pair
    for choices, flags in [({}, []), (dict(layers=[0, 2], steps=[2, 3]), ["--layer", "0,2", "--step", "2-3"]),
                           (dict(sequences=1, threads=1), ["--sequence", 1]),
                           (dict(from_summary=True), ["--from-summary"])]:
        found = blockscope.open(trained).compare_backbone(backbone, **choices)
        root = analyze_json(trained, "--backbone", backbone, *flags)
        metric, = root["metrics"]
        check_equal(found, metric)
        assert found.attrs["traces"].split("\n") == root["traces"]
        assert found.stages.dims == ("stage", "model") and found.relative_change.notnull().any()
    assert blockscope.compare_backbone(trained, trained).relative_change.fillna(0).values.any() == 0


def test_a_backbone_that_does_not_pair(pair, tmp_path):
    trained, _ = pair
    with pytest.raises(blockscope.UsageError):
        blockscope.compare_backbone(trained, FROZEN)
    with pytest.raises(blockscope.TraceNotFound, match="none.h5"):
        blockscope.compare_backbone(trained, tmp_path / "none.h5")
    with pytest.raises(blockscope.UsageError, match="layers: 9 was not recorded"):
        blockscope.compare_backbone(trained, trained, layers=9)
    with pytest.raises(blockscope.TraceError):
        low = make(tmp_path / "low.h5", "--level", "trajectory")
        blockscope.compare_backbone(low, low)
