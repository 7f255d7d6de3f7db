"""Blocks and steps of a trace, and metrics that are written in Python, against h5py, NumPy and the built-in metrics."""

import csv
import json
import os
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest

import blockscope
from conftest import BINARY, ODD, make

h5py = pytest.importorskip("h5py")


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own")
    return {name: make(folder / f"{name.replace(' ', '_')}.h5", *flags) for name, flags in ODD.items()}


def similarity(before, after):
    """Cosine of A_out from step to step."""
    a, b = before.external.astype(np.float64), after.external.astype(np.float64)
    dot, norms = (a * b).sum(-1), np.sqrt((a * a).sum(-1) * (b * b).sum(-1))
    with np.errstate(invalid="ignore", divide="ignore"):
        cosine = np.where(norms == 0, 0.0, dot / norms)
    finite = np.isfinite(cosine)
    terms = finite.sum(-1)
    with np.errstate(invalid="ignore"):
        return np.where(finite, cosine, 0).sum(-1) / terms, terms


@pytest.fixture(autouse=True)
def registered():
    blockscope.metric("mine", level="outputs", dims=["layer", "head", "step"])(similarity)
    yield


@pytest.mark.parametrize("name", ["plain", "float32", "one of all", "unequal", "filtered", "bad values", "partial"])
def test_every_step_is_there_once_with_its_arrays(traces, name):
    trace = blockscope.open(traces[name])
    with h5py.File(trace.path, locking=False) as file:
        columns = {key: file[f"steps/{key}"][:trace.num_rows] for key in ("kind", "recorded", "sequence", "block", "step")}
        wanted = {(int(columns["sequence"][row]), int(columns["block"][row]), int(columns["step"][row])): row
                  for row in np.flatnonzero((columns["kind"] == 1) & (columns["recorded"] == 1))}
        found = {}
        for block in trace.blocks():
            assert [step.step for step in block] == sorted(step.step for step in block) and len(block) == len(block.steps)
            for step in block:
                found[block.sequence, block.index, step.step] = step
        assert {place: step.row for place, step in found.items()} == wanted
        for place, step in found.items():
            stored = file["attention/external"][step.row]
            assert np.array_equal(step.external, stored.astype(np.float32), equal_nan=True)
            assert step.masks_left == file["steps/masks_left"][step.row]
            assert np.array_equal(step["prediction/token"], file["prediction/token"][step.row])
        array = step.array("external")
        assert array.dims == ("layer", "head", "block_position", "channel") and array.layer.values.tolist() == trace.layers


def test_filters(traces):
    trace = blockscope.open(traces["unequal"])
    layers = trace.layers[::2]
    for block in trace.blocks(layers=layers, steps=[1, 2], sequences=1):
        assert block.sequence == 1 and all(step.step <= 2 for step in block)
        places = [trace.layers.index(layer) for layer in layers]
        for step in block:
            assert np.array_equal(step.external, trace.tree["attention/external"].values[step.row][places], equal_nan=True)
            assert step.array("external").layer.values.tolist() == layers
    assert [block.index for block in trace.blocks(blocks=0)] and all(block.index == 0 for block in trace.blocks(blocks=0))
    with pytest.raises(blockscope.UsageError, match="99 was not recorded"):
        next(trace.blocks(layers=[99]))
    step = next(trace.blocks()).steps[0]
    with pytest.raises(AttributeError, match="no such array"):
        step.nothing
    with pytest.raises(blockscope.UsageError, match="step.names lists them"):
        step["attention/nothing"]
    assert "attention/external" in step.names


def test_pairs_have_no_gaps(traces):
    trace = blockscope.open(traces["filtered"])  # steps 1, 2 and 4
    assert [(before.step, after.step) for block in trace.blocks() for before, after in block.pairs()]
    assert all(after.step == before.step + 1 for block in trace.blocks() for before, after in block.pairs())


def test_aborted_sequences_are_left_out(traces):
    trace = blockscope.open(traces["aborted"])
    aborted = {sequence.index for sequence in trace.sequences if sequence.aborted}
    assert aborted and not aborted & {block.sequence for block in trace.blocks()}


@pytest.mark.parametrize("name", ["plain", "float32", "unequal", "filtered", "one of all"])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_metric_equals_the_built_in_one(traces, name, threads):
    trace = blockscope.open(traces[name])
    theirs = trace.analyze("similarity", by=["layer", "head", "step"])
    mine = trace.analyze("mine", threads=threads)
    at = {"step": mine.step.values}
    assert np.array_equal(mine.mine_terms.values, theirs.similarity_external_terms.sel(at).transpose(*mine.mine.dims).values)
    assert np.allclose(mine.mine.values, theirs.similarity_external.sel(at).transpose(*mine.mine.dims).values, atol=1e-6,
                       equal_nan=True)
    by_layer, expected = trace.analyze("mine", by="layer"), trace.analyze("similarity", by="layer")
    assert np.allclose(by_layer.mine, expected.similarity_external, atol=1e-6, equal_nan=True)


def test_threads_change_no_bit(traces):
    one, two = (blockscope.open(traces["unequal"]).analyze("mine", threads=threads) for threads in (1, 2))
    assert one.identical(two)


def test_sums_over_traces(traces, tmp_path):
    other = make(tmp_path / "other.h5", "--seed", 9)
    together = blockscope.analyze([traces["plain"], other], "mine")
    added = blockscope.analyze(traces["plain"], "mine") + blockscope.analyze(other, "mine")
    assert np.array_equal(together.mine_terms, added.mine_terms)
    assert np.allclose(together.mine, added.mine, rtol=1e-12, equal_nan=True)


def test_steps_blocks_and_sequences(traces):
    trace = blockscope.open(traces["unequal"])

    @blockscope.metric(level="trajectory", dims=["sequence", "block"])
    def num_steps(block):
        """Steps of a block."""
        return len(block)

    @blockscope.metric(level="trajectory", dims=["step"])
    def masks(step):
        """Masks left."""
        return step.masks_left

    @blockscope.metric(level="trajectory", dims=["sequence"])
    def num_blocks(sequence):
        """Blocks of a sequence."""
        return {"blocks": len(sequence), "steps": (sum(map(len, sequence)), 2)}

    found = trace.analyze([num_steps, masks, num_blocks])
    for block in trace.blocks():
        assert found["num_steps"].num_steps.sel(sequence=block.sequence, block=block.index) == len(block)
    tree = trace.tree["steps"].to_dataset()
    denoising = tree.sel(row=tree.kind == 1)
    for step in found["masks"].step.values:
        assert found["masks"].masks.sel(step=step) == denoising.masks_left.values[denoising.step.values == step].mean()
    assert found["num_blocks"].steps_terms.values.tolist() == [2] * trace.num_sequences
    assert "Steps of a block" in blockscope.metrics()["num_steps"]


def test_values_that_are_not_finite_have_no_terms(traces):
    @blockscope.metric(level="trajectory", dims=["step"])
    def odd(step):
        """Infinite at step 2."""
        return float("inf") if step.step == 2 else float("nan") if step.step == 3 else 1.0

    found = blockscope.open(traces["plain"]).analyze(odd)
    assert found.odd_terms.sel(step=[2, 3]).values.tolist() == [0, 0] and found.odd_terms.sel(step=1) > 0
    assert np.isnan(found.odd.sel(step=[2, 3])).all() and found.odd.sel(step=1) == 1


def test_mixed_with_built_in_metrics(traces):
    both = blockscope.open(traces["plain"]).analyze(["mine", "similarity"])
    assert set(both) == {"mine", "similarity"}


def test_wrong_metrics(traces):
    trace = blockscope.open(traces["plain"])
    with pytest.raises(blockscope.UsageError, match="built-in metric has it"):
        blockscope.metric("similarity")(similarity)
    with pytest.raises(blockscope.UsageError, match="level: expected"):
        blockscope.metric("x", level="everything")(similarity)
    with pytest.raises(blockscope.UsageError, match="expected a function of"):
        blockscope.metric("x")(lambda a, b, c: 0)
    with pytest.raises(blockscope.UsageError, match="with @blockscope.metric"):
        trace.analyze(len)

    def check(function, words, **facts):
        blockscope.metric("wrong", **facts)(function)
        with pytest.raises(blockscope.Error) as error:
            trace.analyze("wrong")
        assert words in str(error.value), str(error.value)

    check(lambda before, after: before.external, "expected an axis for each of ['layer', 'head'], got [")
    check(lambda before, after: 1 / 0, "ZeroDivisionError: division by zero")
    check(lambda before, after: np.zeros((1, 1)), "axis layer: expected")
    check(lambda before, after: np.zeros((after.step, 2)), "expected values of one shape")
    check(lambda block: 1.0, "has no axis step", of="block", dims=["step"])
    check(lambda before, after: None, "found none in what is selected")
    check(lambda before, after: (np.ones((1, 1)), 0.5), "terms: expected whole numbers")
    check(lambda before, after: "text", "expected numbers")
    check(lambda before, after: np.zeros((3, 4)), "dims: hed: expected head", dims=["layer", "hed"])
    for name, given in (("heads", [0]), ("taus", [2]), ("memory_mib", 5), ("from_summary", True)):
        with pytest.raises(blockscope.UsageError, match=f"{name}: does nothing"):
            trace.analyze("mine", **{name: given})
    with pytest.raises(blockscope.UsageError, match="of: expected pair"):
        blockscope.metric("x", of="pairs")(similarity)
    level = blockscope.open(traces["trajectory"])
    with pytest.raises(blockscope.TraceError, match="needs --record outputs"):
        level.analyze("mine")


def test_two_functions_of_one_name_stay_two(traces):
    def made(value):
        @blockscope.metric("constant", level="trajectory", dims=["step"])
        def constant(step):
            """A constant."""
            return value
        return constant

    one, two = made(1.0), made(2.0)
    trace = blockscope.open(traces["plain"])
    assert (trace.analyze(one).constant == 1).all() and (trace.analyze(two).constant == 2).all()
    assert (trace.analyze("constant").constant == 2).all()


def test_negative_values_have_no_map(traces):
    @blockscope.metric(level="outputs", dims=["layer", "head", "step"])
    def signed(before, after):
        """Mean difference of A_out."""
        return (after.external - before.external).mean((2, 3)) - 10

    assert set(blockscope.open(traces["plain"]).analyze(signed).figures()) == {"signed-steps"}


def test_memory_does_not_grow_with_the_file(tmp_path):
    def peak(sequences):
        path = make(tmp_path / f"{sequences}.h5", "--sequences", sequences, "--blocks", 4)
        trace = blockscope.open(path)
        trace.analyze("mine", threads=1)
        tracemalloc.start()
        trace.analyze("mine", threads=1)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most, os.path.getsize(path)

    small, small_bytes = peak(4)
    large, large_bytes = peak(64)
    assert large_bytes > 4 * small_bytes and large - small < 0.05 * (large_bytes - small_bytes)


def test_figures_and_report(traces):
    @blockscope.metric(level="outputs", dims=["layer", "head", "step"], formula="mean |A_out(s + 1) - A_out(s)|", unit="1")
    def moved(before, after):
        """Mean change of A_out <by step>"""
        return abs(after.external - before.external).mean((2, 3))

    @blockscope.metric(level="trajectory", dims=["sequence"])
    def block_count(sequence):
        """Blocks of a sequence"""
        return len(sequence)

    trace = blockscope.open(traces["plain"])
    figures = trace.analyze(moved).figures()
    assert set(figures) == {"moved-heads", "moved-steps"} and "<svg" in figures["moved-heads"].svg
    page = trace.report(metrics=[moved, "block_count"])
    assert {"moved-heads", "moved-steps"} <= set(page.figures)
    assert "Own metrics" in page.html and "Mean change of A<sub>out</sub> &lt;by step&gt;" in page.html
    assert "block_count" in page.html
    with pytest.raises(blockscope.UsageError, match="with @blockscope.metric"):
        trace.report(metrics=[len])
    with pytest.raises(blockscope.UsageError, match="a name of letters"):
        blockscope.metric("mine; x")(similarity)


def test_text_html(traces):
    trace = blockscope.open(traces["plain"])
    frame = trace.frame(0, trace.num_steps(0))
    page = trace.text_html(0, values=np.linspace(0, 1, frame.tokens.size))
    shown = page._repr_html_()
    assert shown.count("<span") == frame.tokens.size and "title=" in shown
    assert "rgba" in trace.text_html(0)._repr_html_()  # the confidences
    with pytest.raises(blockscope.UsageError, match=f"expected {frame.tokens.size} values"):
        trace.text_html(0, values=[1.0])


def test_changes_lead_from_frame_to_frame(traces):
    trace = blockscope.open(traces["plain"])
    steps = trace.changes(0)
    assert len(steps) == trace.num_steps(0) == len(trace.deltas(0))
    for t, step in enumerate(steps):
        before, after = trace.frame(0, t).tokens, trace.frame(0, t + 1).tokens
        assert step.position.tolist() == np.flatnonzero(before != after).tolist()
        assert np.array_equal(step.before, before[step.position]) and np.array_equal(step.after, after[step.position])
        assert step.of("decided").size == step.position.size and step.inserted == step.deleted == 0
    with pytest.raises(blockscope.UsageError, match="expected one of decided, edited, taken back, moved"):
        steps[0].of("changed")
    block = next(trace.blocks(sequences=[0]))
    assert [one.row for one in block.changes] == block.rows.tolist()


def test_an_edit_is_underlined():
    from blockscope.text_html import TextHtml

    page = TextHtml([b"a", b"<"], np.array([1, 2]), [0.5, 0.6], ["", "replaced '<b>' at step 3"]).html
    assert page.count("underline") == 1 and "replaced &#x27;&lt;b&gt;&#x27; at step 3" in page and "<b>" not in page


def test_a_saved_result_is_the_commands(traces, tmp_path):
    import json

    from conftest import command

    trace = blockscope.open(traces["plain"])
    found = trace.analyze("similarity")
    for ending in ("csv", "json", "h5"):
        found.save(tmp_path / f"here.{ending}")
    command("analyze", traces["plain"], "--metric", "similarity", "--csv", tmp_path / "there.csv", "--json",
            tmp_path / "there.json", "--hdf5", tmp_path / "there.h5")
    assert (tmp_path / "here.csv").read_text() == (tmp_path / "there.csv").read_text()
    here, there = (json.loads((tmp_path / f"{side}.json").read_text())["metrics"][0]["arrays"] for side in ("here", "there"))
    assert here == there
    with h5py.File(tmp_path / "here.h5") as one, h5py.File(tmp_path / "there.h5") as other:
        assert np.array_equal(one["similarity/similarity_external"], other["similarity/similarity_external"], equal_nan=True)
    with pytest.raises(blockscope.UsageError):
        found.save(tmp_path / "here.csv")
    found.save(tmp_path / "here.csv", force=True)
    with pytest.raises(blockscope.UsageError, match="ends in .csv"):
        found.save(tmp_path / "here.txt")


@pytest.mark.parametrize("make, message", [
    (lambda: blockscope.metric("x", dims="layer"), "dims: expected a list of different names, got 'layer'"),
    (lambda: blockscope.metric("x", dims=["layer", "layer"]), "expected a list of different names"),
    (lambda: blockscope.policy(type("Bare", (), {})), "@blockscope.policy: expected a name"),
    (lambda: blockscope.policy("two words"), "expected a name of letters"),
    (lambda: blockscope.strategy(""), "@blockscope.strategy: expected a name"),
    (lambda: blockscope.policy("x")(len), "policy x: expected a class, got <built-in function len>"),
    (lambda: blockscope.cache("x")(type("C", (), {"row": len})), "cache x: expected a method rows"),
])
def test_decorators_check_their_arguments(make, message):
    with pytest.raises(blockscope.UsageError, match=message):
        made = make()
        made(lambda before, after: 0.0)


@pytest.mark.parametrize("returned, message", [
    ({"a": np.ones(3), "a_terms": np.ones(3)}, "expected the name of an array, got that of terms"),
    ({"layer": np.ones(3)}, "expected the name of an array, got that of an axis"),
    ((np.ones(3), -np.ones(3, int)), "terms: expected whole numbers from 0, got array\\(\\[-1"),
    ((np.ones(3), np.full(3, 0.5)), "terms: expected whole numbers from 0"),
    ((np.ones(3), np.ones(2, int)), "terms: expected the shape of the values \\[3\\], got \\[2\\]"),
    (np.ones(3, complex), "expected numbers, got complex"),
    (np.ones((3, 3)), "metric wrong: sequence 0, block 0, step 1: expected an axis for each of"),
])
def test_what_a_metric_returns_is_checked(traces, returned, message):
    @blockscope.metric("wrong", dims=["layer"])
    def wrong(before, after):
        return returned

    with pytest.raises(blockscope.UsageError, match=message):
        blockscope.analyze(traces["plain"], wrong, progress=False)


def test_whole_floats_are_terms_and_what_is_left_out_is_counted(traces):
    @blockscope.metric("partly", dims=["layer"])
    def partly(before, after):
        return np.array([1.0, np.nan, 3.0]), np.array([2.0, 5.0, 1.0])

    found = blockscope.analyze(traces["plain"], partly, progress=False)
    calls = int(found.partly_terms.values[0]) // 2
    assert found.partly_terms.values.tolist() == [2 * calls, 0, calls]
    assert found.attrs["left out: values that are NaN or infinite"] == 5 * calls
    assert (found + found).attrs["left out: values that are NaN or infinite"] == 10 * calls

    @blockscope.metric("twice", dims=["layer"])
    def twice(before, after):
        return {"one": np.array([1.0, np.nan, 3.0]), "other": np.array([np.inf, np.nan, 3.0])}

    assert blockscope.analyze(traces["plain"], twice, progress=False).attrs[
        "left out: values that are NaN or infinite"] == 3 * calls


def test_sums_are_of_one_code(traces):
    def made(factor):
        text = f"import blockscope\n@blockscope.metric('of_code', dims=['layer'], formula='m')\n" \
               f"def of_code(step):\n    return abs(step.external).mean((1, 2, 3)) * {factor}\n"
        names = {"__name__": "of_code"}
        exec(text, names)
        return names["of_code"]

    one, other = (blockscope.analyze(traces["plain"], made(factor), progress=False) for factor in (1, 100))
    same = blockscope.analyze(traces["plain"], made(1), progress=False)
    assert one.attrs["plugin_sha256"] == same.attrs["plugin_sha256"] != other.attrs["plugin_sha256"]
    assert float((one + same).of_code_terms.sum()) == 2 * float(one.of_code_terms.sum())
    with pytest.raises(blockscope.UsageError, match="expected results with one plugin_sha256"):
        one + other
    assert "/" not in blockscope.analyze(traces["plain"], "mine", progress=False).attrs["formula"]


def test_a_class_without_source_has_a_digest():
    from blockscope._source import digest

    def made(first):
        names = {"__name__": "__main__"}
        exec(f"class Cell:\n    def choose(self, layer, q, keys, step):\n        return range({first}, 8), 0\n", names)
        return names["Cell"]

    assert digest(made(0), "<notebook>") == digest(made(0), "<notebook>") != digest(made(3), "<notebook>") != ""


def test_such_a_digest_is_the_same_in_every_process():
    """It depends neither on the lines before the class nor on the order of sets."""
    cell = "class Cell:\n    names = {'a', 'b', 'c'}\n    def choose(self, layer, k=4):\n        return layer in {'a', 'b'}\n"

    def found(source, seed):
        code = f"import blockscope._source as s\nexec({source!r})\nprint(s.digest(Cell, '<notebook>'))"
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                              env={**os.environ, "PYTHONHASHSEED": seed}).stdout

    first = found(cell, "1")
    assert found("\n\n" + cell, "2") == first
    for old, new in (("'c'", "'d'"), ("k=4", "k=5"), ("layer in", "layer not in"), ("{'a', 'b'}", "{'a'}")):
        assert found(cell.replace(old, new), "1") != first, (old, new)


PLUGIN = '''
import blockscope


@blockscope.metric("moved", level="outputs", dims=["layer", "head", "step"], formula="mean |A_out(s+1) - A_out(s)|")
def moved(before, after):
    """Mean change of A_out"""
    return abs(after.external - before.external).mean(axis=(2, 3))


@blockscope.metric("of_full", level="full", dims=["layer"])
def of_full(step):
    """Needs keys"""
    return abs(step["kv/key"]).mean(axis=(1, 2, 3))


@blockscope.metric("broken", level="trajectory", dims=["step"])
def broken(step):
    """Fails"""
    raise KeyError("mine")
'''


def shell(*words):
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    return subprocess.run([BINARY, *map(str, words)], capture_output=True, text=True, env={**os.environ, "PATH": path})


def rows_of(done):
    assert done.returncode == 0, done.stderr
    return list(csv.DictReader(done.stdout.splitlines()))


def test_the_command_line_takes_metrics_of_a_file(traces, tmp_path):
    plugin = tmp_path / "moved.py"
    plugin.write_text(PLUGIN)
    path = traces["float32"]
    trace = blockscope.open(path)
    rows = rows_of(shell("analyze", path, "--plugin", plugin, "--metric", "moved,similarity", "--csv", "-"))
    assert {row["metric"] for row in rows} == {"moved", "similarity"}
    with h5py.File(path, locking=False) as file:
        external = file["attention/external"][:]
    rows = [row for row in rows if row["metric"] == "moved"]
    sums = {}
    for block in trace.blocks():
        for before, after in block.pairs():
            change = np.abs(external[after.row] - external[before.row]).astype(np.float64).mean(axis=(2, 3))
            for (i, h), value in np.ndenumerate(change):
                sums.setdefault((before.step, trace.layers[i], h), []).append(value)
    found = {(int(row["step"]), int(row["layer"]), int(row["head"])): row for row in rows}
    assert found.keys() == sums.keys()
    for place, values in sums.items():
        finite = [value for value in values if np.isfinite(value)]
        assert int(found[place]["terms"]) == len(finite)
        if finite:
            assert float(found[place]["value"]) == pytest.approx(np.mean(finite), rel=1e-6)
    step, layer, head = sorted(sums)[0]
    narrow = rows_of(shell("analyze", path, f"--plugin={plugin}", "--metric", "moved", "--step", step, "--layer", layer, "--head",
                           head, "--csv", "-"))
    assert narrow == [found[step, layer, head]]  # a pair counts as its first step


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    return make(tmp_path_factory.mktemp("own") / "outputs.h5", "--level", "outputs")


def test_what_the_command_line_refuses(outputs, tmp_path):
    plugin = tmp_path / "moved.py"
    plugin.write_text(PLUGIN)
    path = outputs
    listed = shell("analyze", "--plugin", plugin, "--list")
    assert listed.returncode == 0 and "Mean change of A_out" in listed.stdout
    for words, code, text in (
            (["--metric", "of_full"], 1, "needs --record full or above"),
            (["--metric", "nothing"], 2, "moved, of_full, broken"),
            (["--metric", "moved", "--by", "k"], 2, "the axes are head, layer, step"),
            (["--metric", "moved", "--taus", "3"], 2, "--taus: does nothing"),
            (["--metric", "decoding", "--head", "0"], 2, "--head: does nothing"),
            (["--matrix", "token"], 2, "--plugin"),
            (["--metric", "broken", "--csv", tmp_path / "no.csv"], 1, "metric broken: <blockscope.Step")):
        done = shell("analyze", path, "--plugin", plugin, *words)
        assert done.returncode == code and text in done.stderr, (words, done.returncode, done.stderr)
        assert done.stderr.splitlines()[-1].startswith("blockscope: error: ")
    assert "KeyError: 'mine'" in done.stderr and not list(tmp_path.glob("no.csv*"))
    plugin.write_text(PLUGIN[:PLUGIN.index("@blockscope.metric(\"broken\"")])
    found = json.loads(shell("analyze", path, "--plugin", plugin, "--json", "-").stdout)
    assert "moved" in [metric["metric"] for metric in found["metrics"]]
    assert "of_full" in [metric["metric"] for metric in found["unavailable"]]
    done = shell("info", path, "--plugin", plugin)
    assert done.returncode == 2 and "--plugin" in done.stderr


def test_more_that_the_command_line_refuses(tmp_path):
    path = make(tmp_path / "one.h5", "--level", "outputs", "--steps", 1)
    plugin, other = tmp_path / "moved.py", tmp_path / "other.py"
    plugin.write_text(PLUGIN[:PLUGIN.index("@blockscope.metric(\"of_full\"")] + '''
@blockscope.metric("parts", level="outputs", dims=["layer", "part"])
def parts(step):
    """Two parts"""
    return abs(step.external).mean(axis=(1, 2, 3))[:, None].repeat(2, 1)
''')
    other.write_text(plugin.read_text())
    done = shell("analyze", path, "--plugin", plugin, "--plugin", other)
    assert done.returncode == 2 and f"metric moved: expected another name, because {plugin} has it too" in done.stderr
    done = shell("analyze", path, "--plugin", plugin, "--by", "part")
    assert done.returncode == 0 and "expected two steps in a row" in done.stdout, done.stderr
    assert shell("analyze", path, "--plugin", plugin, "--metric", "moved").returncode == 1
    done = shell("report", path, "--plugin", plugin, "-o", tmp_path / "page.html")
    assert done.returncode == 0 and "moved is not on the page: metric moved" in done.stderr
    plugin.write_text(PLUGIN[:PLUGIN.index("@blockscope.metric(\"moved\"")] + '''
@blockscope.metric("ends", level="outputs", dims=["layer"])
def ends(step):
    """Ends Python"""
    raise SystemExit(3)
''')
    done = shell("analyze", path, "--plugin", plugin, "--metric", "ends")
    assert done.returncode == 1 and "metric ends: SystemExit: 3" in done.stderr


def test_a_report_of_the_command_line_shows_them(outputs, tmp_path):
    plugin = tmp_path / "moved.py"
    plugin.write_text(PLUGIN[:PLUGIN.index("@blockscope.metric(\"broken\"")])
    done = shell("report", outputs, "--plugin", plugin, "-o", tmp_path / "page.html")
    assert done.returncode == 0 and "of_full needs --record full or above, and the trace has outputs" in done.stderr, done.stderr
    page = (tmp_path / "page.html").read_text()
    assert "Own metrics" in page and "Mean change of A_out" in page and "Needs keys" not in page
