"""Plugins: MAGE and Quest as plugins have the tokens, sets and reads of the built-in ones, and faults are named."""

import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

import blockscope
from conftest import BINARY

torch = pytest.importorskip("torch")
import plugin_methods  # noqa: E402, F401

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[1]
NEEDLE = ROOT / "models" / "needle"
DEMO = NEEDLE / "demo.jsonl"


@pytest.fixture(scope="module")
def model():
    return blockscope.Model(NEEDLE)


def lines(count):
    return [json.loads(line) for line in DEMO.read_text().splitlines()[:count]]


def capture(model, path, policy, **options):
    return model.capture(lines(3), output=path, record="outputs", progress=False,
                         **{"gen_length": 32, "policy": policy, "batch_size": 2, **options})


@pytest.mark.parametrize("mine, theirs", [
    ("my_mage,k=16", "mage,k=16"), ("my_quest,k=16,page=4", "quest,k=16,page=4"), ("all_keys", "exact"),
    ("empty", "exact")])
@pytest.mark.parametrize("shadow", [False, True])
def test_plugins_equal_the_built_in_policies(model, tmp_path, mine, theirs, shadow):
    shadow = shadow and theirs != "exact"
    one = capture(model, tmp_path / "mine.h5", mine, shadow=shadow)
    other = capture(model, tmp_path / "theirs.h5", theirs, shadow=shadow)
    assert one.run["policy"] == mine.split(",")[0]
    tree, expected = one.tree, other.tree
    for name in ("attention/external", "attention/lse_external", "attention/internal", "steps/kind"):
        assert np.array_equal(tree[name].values, expected[name].values, equal_nan=True), name
    for index in range(3):
        assert one.text(index) == other.text(index)
    if theirs != "exact":
        # The order within a set is the policy's own.
        mine_sets = np.sort(tree["attention/selected"].values, -1)
        assert np.array_equal(mine_sets, np.sort(expected["attention/selected"].values, -1))


@pytest.mark.parametrize("mine, theirs", [("my_mage,k=16", "mage,k=16"), ("my_quest,k=16,page=4", "quest,k=16,page=4")])
def test_verify_counts_the_same_reads(model, mine, theirs):
    options = {"prompts": lines(2), "gen_length": 32, "repeats": 1, "progress": False}
    one, other = model.verify(mine, **options), model.verify(theirs, **options)

    def reads(found):
        return {key: value for key, value in flat(found.data)
                if ("rows" in key or "read" in key or "kl" in key) and "predicted" not in key}  # a plugin's can't be

    def flat(value, path=""):
        if isinstance(value, dict):
            for key, item in value.items():
                yield from flat(item, f"{path}/{key}")
        elif isinstance(value, list):
            for index, item in enumerate(value):
                yield from flat(item, f"{path}/{index}")
        else:
            yield path, value

    ours, built_in = reads(one), reads(other)
    assert ours.keys() == built_in.keys() and len(ours) > 30
    assert ours == built_in


def test_a_replay_and_an_intervention_run_under_a_plugin(model, tmp_path):
    first = capture(model, tmp_path / "first.h5", "my_mage,k=16")
    again = model.capture(output=tmp_path / "again.h5", replay=first.path, policy="my_mage,k=16", record="outputs",
                          progress=False)
    assert again.text(0) == first.text(0)
    changed = capture(model, tmp_path / "changed.h5", "my_mage,k=16", intervene=["drop_head,layers=1,heads=0"])
    assert "interventions" in changed.run


def test_a_strategy_equals_the_built_in_one(model, tmp_path):
    one = capture(model, tmp_path / "mine.h5", "exact", strategy="my_static")
    other = capture(model, tmp_path / "theirs.h5", "exact", strategy="low_confidence_static")
    assert [one.text(i) for i in range(3)] == [other.text(i) for i in range(3)]
    for index in range(3):
        for mine, theirs in zip(one.deltas(index), other.deltas(index)):
            assert mine.position.tolist() == theirs.position.tolist()


def shell(*words):
    """The binary, which starts the `python3` of PATH for --plugin."""
    path = f"{pathlib.Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run([BINARY, *map(str, words)], capture_output=True, text=True, env={**os.environ, "PATH": path})


def test_the_command_line_loads_a_file(model, tmp_path):
    words = ["capture", NEEDLE, "--prompts", DEMO, "--limit", 3, "--gen-length", 32, "--batch-size", 2, "--record", "outputs",
             "-q"]
    done = shell(*words, "--plugin", HERE / "plugin_methods.py", "--policy", "my_mage,k=16", "-o", tmp_path / "run.h5")
    assert done.returncode == 0, done.stderr
    here = capture(model, tmp_path / "here.h5", "my_mage,k=16")
    assert here.compare(tmp_path / "run.h5", ignore_timing=True).equal
    shown = shell("help", "policy", "my_mage", "--plugin", HERE / "plugin_methods.py")
    assert "k=..." in shown.stdout and "largest mean probability" in shown.stdout


def raise_it(keys):
    raise KeyError("mine")


WRONG = {
    "too_far": (lambda keys: ([[keys.shape[2]]] * keys.shape[1], 0), "expected -1 or 0 to"),
    "negative": (lambda keys: [[-2]] * keys.shape[1], "got -2"),
    "doubled": (lambda keys: [3, 3], "expected every position once, got 3 twice"),
    "shape": (lambda keys: torch.zeros(2, 3, 4, dtype=torch.int64), "expected [k]"),
    "floats": (lambda keys: torch.zeros(4), "expected whole numbers, got Float"),
    "nan": (lambda keys: torch.full((4,), float("nan")), "expected whole numbers, got Float"),
    "nothing_like_it": (lambda keys: "x", "expected a tensor"),
    "raises": (raise_it, "KeyError: 'mine'"),
    "many": (lambda keys: range(keys.shape[2]), "expected at most 2"),
    "rows": (lambda keys: ([1], -5), "expected 0 or more, got -5"),
    "real rows": (lambda keys: ([1], 2.5), "expected another type of result"),
    "no rows": (lambda keys: ([1], None), "expected another type of result"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_choice_names_layer_and_step_and_keeps_the_trace(model, tmp_path, name):
    positions, words = WRONG[name]

    @blockscope.policy("wrong")
    class Wrong:
        def __init__(self, k: int = 2):
            pass

        def choose(self, layer, q, keys, step):
            if layer < 1 or step.step < 2 or keys.shape[2] < 5:
                return None
            return positions(keys)

    with pytest.raises(blockscope.Error) as error:
        capture(model, tmp_path / "run.h5", "wrong")
    text = str(error.value)
    assert words in text and "choose(), layer 1, step 2 of block" in text and "rows are safe in" in text, text
    assert not (tmp_path / "run.h5").exists() and (tmp_path / "run.h5.partial").exists()
    if name == "raises":
        assert isinstance(error.value.__cause__, KeyError)


@pytest.mark.parametrize("change, words", [
    ({"external": lambda a: a.external * float("nan")}, "expected finite numbers"),
    ({"internal": lambda a: a.internal * float("nan"), "out": lambda a: a.out}, "expected finite numbers"),
    ({"rows_scored": lambda a: 0.5}, "expected another type of result"),
    ({"external": lambda a: a.external[:, :1]}, "external: expected ["),
    ({"lse_internal": lambda a: None}, "expected lse_internal, got a result without it"),
    ({"keys_read": lambda a: 10**6}, "keys_read: expected a number from 0")])
def test_wrong_parts_are_refused(model, tmp_path, change, words):
    @blockscope.policy("wrong_parts")
    class WrongParts:
        def attend(self, layer, q, k_in, v_in, external, step, ops):
            found = ops.split_attention(q, external.key, external.value, k_in, v_in, ext_len=external.length)
            parts = found._asdict()
            if layer == 1:
                parts.pop("out")
                parts.update({name: value(found) for name, value in change.items()})
            return parts

    with pytest.raises(blockscope.Error) as error:
        capture(model, tmp_path / "run.h5", "wrong_parts")
    assert words in str(error.value) and "layer 1, step 1" in str(error.value)


@pytest.mark.parametrize("positions, words", [([], "expected at least one position"), ([99], "got 99"), ([0, 0], "twice"),
                                              (["a"], "whole numbers")])
def test_a_wrong_strategy_is_refused(model, tmp_path, positions, words):
    @blockscope.strategy("wrong_strategy")
    def wrong(scores, state):
        return [state.masked[0]] * 2 if positions == [0, 0] else positions

    with pytest.raises(blockscope.Error) as error:
        capture(model, tmp_path / "run.h5", "exact", strategy="wrong_strategy")
    assert words in str(error.value) and "strategy wrong_strategy" in str(error.value)


def test_names_and_signatures_are_checked(tmp_path):
    with pytest.raises(blockscope.UsageError, match="built-in"):
        @blockscope.policy("mage")
        class Mine:
            def choose(self, layer, q, keys, step):
                return None
        blockscope.Model(NEEDLE)
    assert blockscope.Model(NEEDLE)  # the refused one is forgotten
    with pytest.raises(blockscope.UsageError, match="int, float, str or bool"):
        @blockscope.policy("listy")
        class Listy:
            def __init__(self, sizes=(1, 2)):
                pass
    first, second = tmp_path / "a.py", tmp_path / "b.py"
    text = "import blockscope\n@blockscope.policy('twice')\nclass A:\n    def choose(self, layer, q, keys, step): return None\n"
    first.write_text(text)
    second.write_text(text)
    blockscope.plugins.load(first)
    blockscope.plugins.load(first)  # again: the file may have changed
    with pytest.raises(blockscope.UsageError, match="expected another name"):
        blockscope.plugins.load(second)
    with pytest.raises(blockscope.UsageError, match="found none"):
        blockscope.plugins.load(tmp_path / "missing.py")
    (tmp_path / "bad.py").write_text("import nothing_of_this_name\n")
    with pytest.raises(blockscope.Error, match="ModuleNotFoundError"):
        blockscope.plugins.load(tmp_path / "bad.py")


def test_a_class_without_a_method_is_refused(model):
    @blockscope.policy("methodless")
    class Methodless:
        pass

    with pytest.raises(blockscope.UsageError, match="either choose"):
        model.decode("x", gen_length=16, policy="methodless", progress=False)


def test_options_are_checked(model):
    for policy, words in [("my_mage,k=none", "k: expected a whole number"), ("my_mage,size=3", "expected k, got 'size'"),
                          ("my_mage,k=0", "from 1")]:
        with pytest.raises(blockscope.UsageError) as error:
            model.decode("x", gen_length=16, policy=policy, progress=False)
        assert words in str(error.value)


def test_memory_lives_as_long_as_the_sequence(model):
    seen = []

    @blockscope.policy("remembering")
    class Remembering:
        def choose(self, layer, q, keys, step):
            if layer == 0:
                step.memory.setdefault("steps", []).append((step.sequence, step.run_step))
                seen.append(step.memory["steps"])
            return None

    model.decode(lines(5), gen_length=32, batch_size=3, policy="remembering", progress=False)
    assert len({id(steps) for steps in seen}) == 5
    for steps in seen:
        assert len({sequence for sequence, _ in steps}) == 1
        assert [step for _, step in steps] == list(range(1, len(steps) + 1))


def test_a_prompt_without_a_whole_block_has_nothing_to_choose(model):
    for mine, theirs in (("my_mage,k=16", "mage,k=16"), ("my_quest,k=16,page=4", "quest,k=16,page=4")):
        one, other = (model.decode([[5, 9, 17]], gen_length=48, policy=policy, progress=False)[0] for policy in (mine, theirs))
        assert one.text == other.text


def test_the_example_of_the_documents_runs(model, tmp_path):
    blockscope.plugins.load(ROOT / "docs" / "examples" / "losa.py")
    trace = capture(model, tmp_path / "run.h5", "losa,k=32", shadow=True)
    assert (trace.tree["attention/selected"].values >= 0).any() and trace.text(0)
    saved = model.verify("losa,k=32", prompts=lines(2), gen_length=32, repeats=1, progress=False)
    assert saved.data


@pytest.fixture(scope="module")
def bidirectional():
    return blockscope.Model(ROOT / "models" / "needle-bidirectional")


def test_a_cache_equals_the_built_in_one(bidirectional, tmp_path):
    options = {"record": "outputs", "gen_length": 32, "progress": False}
    one = bidirectional.capture(lines(2), output=tmp_path / "mine.h5", cache="my_dual", **options)
    other = bidirectional.capture(lines(2), output=tmp_path / "theirs.h5", cache="dual", **options)
    for name in ("attention/external", "attention/lse_external", "attention/internal"):
        assert np.array_equal(one.tree[name].values, other.tree[name].values, equal_nan=True), name
    assert [one.text(i) for i in range(2)] == [other.text(i) for i in range(2)]
    assert one.run["cache"] == "my_dual"


@pytest.mark.parametrize("rows, words", [
    (lambda state: [0, 0], "expected every position once, got 0 twice"),
    (lambda state: range(state.length + 1), "expected positions from 0 to"),
    (lambda state: range(state.block_start, state.block_end), "expected all"),
    (lambda state: range(state.length) if state.step == 1 else [0], "predicts a mask of the block"),
    (lambda state: ["a"], "whole numbers")])
def test_a_wrong_cache_is_refused(bidirectional, tmp_path, rows, words):
    @blockscope.cache("wrong_cache")
    class WrongCache:
        def rows(self, state):
            return rows(state)

    with pytest.raises(blockscope.Error) as error:
        bidirectional.capture(lines(1), output=tmp_path / "run.h5", cache="wrong_cache", gen_length=32, progress=False)
    assert words in str(error.value) and "cache wrong_cache" in str(error.value)


def test_a_cache_hears_what_was_chosen(bidirectional):
    heard = []

    @blockscope.cache("hearing")
    class Hearing:
        def __init__(self, every: int = 2):
            self.every = every

        def rows(self, state):
            assert len(state.tokens) == state.length
            return range(state.length) if state.step % self.every == 1 else range(state.block_start, state.block_end)

        def end_step(self, state, selected, confidence):
            heard.append((state.run_step, selected, len(confidence)))

    decoded = bidirectional.decode(lines(1), cache="hearing,every=3", gen_length=32, progress=False)
    assert [step for step, _, _ in heard] == list(range(1, len(heard) + 1)) and len(heard) == len(decoded[0].frames) - 1
    assert all(count == 32 for _, _, count in heard) and sum(len(chosen) for _, chosen, _ in heard) == 32
    with pytest.raises(blockscope.UsageError, match="keys outside the block change"):
        blockscope.Model(NEEDLE).decode("x", cache="hearing", gen_length=16, progress=False)


def test_the_example_equals_exact_if_every_token_reads_everything(model, tmp_path):
    blockscope.plugins.load(ROOT / "docs" / "examples" / "losa.py")
    for policy in ("losa,k=4096", "losa,k=16,active=1.0,page=1"):
        model.decode(lines(1), gen_length=16, policy=policy, progress=False)
    one = capture(model, tmp_path / "one.h5", "losa,k=4096")
    other = capture(model, tmp_path / "other.h5", "exact")
    assert np.array_equal(one.tree["attention/external"].values, other.tree["attention/external"].values, equal_nan=True)


def test_the_error_names_the_sequence(model, tmp_path):
    @blockscope.policy("wrong_later")
    class WrongLater:
        def attend(self, layer, q, k_in, v_in, external, step, ops):
            found = ops.split_attention(q, external.key, external.value, k_in, v_in, ext_len=external.length,
                                        scale=step.scale)._asdict()
            if step.sequence == 1 and layer == 2:
                found["lse_external"] = found["lse_external"] * float("nan")
            return found

    with pytest.raises(blockscope.Error, match="layer 2, step 1 of block .* of sequence 1: expected finite"):
        capture(model, tmp_path / "run.h5", "wrong_later")


def test_what_observing_counts(model):
    def read_to_choose(**methods):
        blockscope.policy("watching")(type("Watching", (), {"choose": lambda self, layer, q, keys, step: None, **methods}))
        found = model.verify("watching", prompts=lines(1), gen_length=16, repeats=1, progress=False)
        return "read to choose" in str(found)

    def observe(self, layer, q, keys, lse, step):
        return None

    assert not read_to_choose() and read_to_choose(observe=observe)
    assert not read_to_choose(observe=observe, observes=lambda self, layer, step: False)


@pytest.mark.parametrize("field, words", [("key_read", "got key_read"), ("residual", "keeps_residual = True"),
                                          ("rows_scored", "expected 0 or more")])
def test_fields_that_would_be_ignored(model, tmp_path, field, words):
    @blockscope.policy("odd_fields")
    class OddFields:
        def attend(self, layer, q, k_in, v_in, external, step, ops):
            parts = ops.split_attention(q, external.key, external.value, k_in, v_in, ext_len=external.length,
                                        scale=step.scale)._asdict()
            odd = {"residual": parts["external"], "lse_residual": parts["lse_external"]}
            return {**parts, **(odd if field == "residual" else {field: -1})}

    with pytest.raises(blockscope.Error) as error:
        capture(model, tmp_path / "run.h5", "odd_fields")
    assert words in str(error.value)


def test_methods_are_checked_when_the_class_is_made():
    with pytest.raises(blockscope.UsageError, match="expected observe"):
        blockscope.policy("misspelt")(type("M", (), {"choose": lambda self, *a: None, "observ": lambda self: None}))
    with pytest.raises(blockscope.UsageError, match="expected 4 arguments after self"):
        blockscope.policy("short")(type("S", (), {"choose": lambda self, layer, q: None}))


def test_an_empty_list_reads_nothing_and_decode_keeps_no_rows(model):
    @blockscope.policy("nothing_read")
    class NothingRead:
        def choose(self, layer, q, keys, step):
            return [], 0

    assert model.decode(lines(1), gen_length=16, policy="nothing_read", progress=False)[0].frames

    @blockscope.policy("falling")
    class Falling:
        def choose(self, layer, q, keys, step):
            return [0] if step.step == 1 else boom

    with pytest.raises(blockscope.Error) as error:
        model.decode(lines(1), gen_length=16, policy="falling", progress=False)
    assert "safe" not in str(error.value) and "resume" not in str(error.value)
    with pytest.raises(blockscope.UsageError, match="resume: does nothing for decode"):
        model.decode("x", resume=True, progress=False)


def boom():
    raise KeyError("mine")


@pytest.mark.parametrize("method, words", [("begin_pass", "begin_pass()"), ("remove", "remove()"),
                                           ("selected_size", "selected_size()"), ("setup", "policy raising")])
def test_other_methods_that_raise(model, tmp_path, method, words):
    def fail(self, *given):
        raise KeyError("mine")

    cls = type("Raising", (), {"choose": lambda self, *given: None, method: fail})
    blockscope.policy("raising")(cls)
    with pytest.raises(blockscope.Error) as error:
        capture(model, tmp_path / "run.h5", "raising")
    assert words in str(error.value) and "KeyError" in str(error.value)


def test_ctrl_c_within_a_plugin_keeps_the_rows(model, tmp_path):
    @blockscope.policy("interrupted")
    class Interrupted:
        def choose(self, layer, q, keys, step):
            if step.sequence == 1:
                raise KeyboardInterrupt
            return None

    with pytest.raises(KeyboardInterrupt, match="rows are safe"):
        capture(model, tmp_path / "run.h5", "interrupted", batch_size=1)
    assert blockscope.open(tmp_path / "run.h5").num_rows > 0 and not (tmp_path / "run.h5").exists()


def test_a_failing_plugin_in_the_shell(tmp_path):
    file = tmp_path / "failing.py"
    file.write_text("import blockscope\n\n@blockscope.policy('failing')\nclass Failing:\n"
                    "    def choose(self, layer, q, keys, step):\n        if step.step > 1: raise KeyError('mine')\n")
    words = ["capture", NEEDLE, "--prompts", DEMO, "--limit", 1, "--gen-length", 16, "--record", "outputs", "-q", "--plugin",
             file, "--policy", "failing", "-o", tmp_path / "run.h5"]
    done = shell(*words)
    assert done.returncode == 1 and "KeyError: 'mine'" in done.stderr and "begin again with --force" in done.stderr
    assert f'{file}", line 6, in choose' in done.stderr  # the traceback of the plugin's own code
    assert (tmp_path / "run.h5.partial").exists() and not (tmp_path / "run.h5").exists()
    file.write_text(file.read_text().replace("step.step > 1", "False"))
    resumed = shell(*words, "--resume")
    assert resumed.returncode == 2 and "failing_sha256" in resumed.stderr
    for given in (("--plugin",), ("--plugin", "--policy"), ("--plugin", tmp_path / "none.py")):
        assert shell("help", "policy", *given).returncode == 2


def test_a_plugin_can_not_start_a_command(model, tmp_path):
    for method in ("choose", "observe"):
        def start(self, *given):
            model.decode("x", gen_length=16, progress=False)

        blockscope.policy("nested")(type("Nested", (), {"choose": lambda self, *given: None, method: start}))
        with pytest.raises(blockscope.Error, match="started another one"):
            capture(model, tmp_path / f"{method}.h5", "nested")


def test_studies_compare_plugins(model, tmp_path):
    options = {"contexts": [256], "per_cell": 1, "no_figures": True, "progress": False}
    needle = model.study("needle", output=tmp_path / "needle", k=[8, 16], depths=1, policies="my_mage,losa,page=4", **options)
    rows = {(row["method"], row["k"]): row for row in needle.rows if row["depth"] == "all"}
    for k in ("8", "16"):
        for what in ("accuracy", "equal_to_exact", "keys_not_read", "rows_scored"):
            assert rows["my_mage", k][what] == rows["mage", k][what]
        assert ("losa,page=4", k) in rows
    estimators = model.study("estimators", output=tmp_path / "estimators", k=[8, 16], pages=[4],
                             policies="my_mage,my_quest,page=4", **options)
    found = {(row["method"], row["k"], row["layer"], row["head"], row["step"]): row for row in estimators.rows}
    for mine, theirs in (("my_mage", "mage"), ("my_quest,page=4", "quest p=4")):
        places = [place[1:] for place in found if place[0] == theirs]
        assert places and all(found[mine, *place]["recall"] == found[theirs, *place]["recall"] for place in places)
    residual = model.study("residual", output=tmp_path / "residual", densities=[0.3], policies="my_mage,k=16", **options)
    assert "my_mage,k=16" in {row["method"] for row in residual.rows}
    for study, policies in (("needle", "mage"), ("estimators", "my_mage,my_mage")):
        with pytest.raises(blockscope.UsageError, match="has it already"):
            model.study(study, output=tmp_path / "twice", k=[8], policies=policies, **options)
