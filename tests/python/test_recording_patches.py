"""blockscope.record(interventions=...): values of another trace at the same step, and changes of commit passes. The
judges are the other trace's own rows, bit for bit, whole traces of `blockscope capture --intervene`, and plain runs."""

import contextlib
import os
import subprocess

import h5py
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the tests' Python has no torch (scripts/setup.sh --tests)")
pytest.importorskip("transformers", reason="the tests' Python has no transformers (scripts/setup.sh --tests)")

import blockscope  # noqa: E402
import recorded_loops as loops  # noqa: E402
import recorded_models as models  # noqa: E402
from blockscope import _core  # noqa: E402
from blockscope.recording import kernels  # noqa: E402
from recording_checks import BINARY, MASK, PROMPT, SIZE, compare_with_capture, rows_of  # noqa: E402

if not kernels.loaded():
    pytest.skip("this build has no operators", allow_module_level=True)

SHORT = PROMPT[:37]
LOOPS = {"blocks": ("needle", models.decode_blocks, "commit"),
         "canvas": ("needle-bidirectional", models.decode_canvas, "none"),
         "prefix": ("needle-bidirectional", models.decode_prefix_cache, "prefix"),
         "dual": ("needle-bidirectional", models.decode_dual_cache, "dual")}


def record(path, loop, given=None, prompt=SHORT, gen_length=32, block_length=SIZE, model=None, **options):
    name, decode, _ = LOOPS[loop]
    model = models.PlainModel(name) if model is None else model
    from transformers import AutoTokenizer

    options = {"level": "full", "array_type": "f32", "tokenizer": AutoTokenizer.from_pretrained(models.MODELS / name),
               **options}
    with blockscope.record(model, path, block_length=block_length, gen_length=gen_length, attention="replace",
                           interventions=given, **options) as run:
        more = {"state": lambda start: run.step(start=start)} if loop == "dual" else {}
        tokens = decode(model, prompt, gen_length, block_length, **more)
        run.end_sequence(tokens)
    return tokens


def read(path):
    with h5py.File(path) as file:
        count, names = rows_of(file), ["/hidden/hidden", "/query/query", "/steps/step", "/steps/kind"]
        names += ["/attention/" + name
                  for name in ("external", "lse_external", "internal", "lse_internal", "intervened")]
        return {name: file[name][:count] for name in names if name in file}


# --- against the other trace's rows -----------------------------------------------------------------------------------


@pytest.mark.parametrize("what, sides", [("patch_external", ["external"]), ("patch_head", ["external", "internal"])])
@pytest.mark.parametrize("loop", LOOPS)
def test_heads_are_those_of_the_other_run(tmp_path, loop, what, sides):
    other = tmp_path / "other.h5"
    record(other, loop, "scale,by=3,layers=0")
    record(tmp_path / "plain.h5", loop)
    record(tmp_path / "run.h5", loop, f"{what},trace={other},layers=1,heads=1+3,steps=2-9")
    run, plain, theirs = (read(tmp_path / f"{name}.h5") for name in ("run", "plain", "other"))
    hit = (run["/steps/kind"] == 1) & (run["/steps/step"] > 1)
    assert hit.sum() >= 6 and np.array_equal(run["/steps/step"], theirs["/steps/step"])
    for side in sides:
        for name in (f"/attention/{side}", f"/attention/lse_{side}"):
            place = np.ix_(hit, [1], [1, 3])
            assert np.array_equal(run[name][place], theirs[name][place])
            assert not np.array_equal(run[name][place], plain[name][place])
    first = np.flatnonzero(hit)[0]
    for name in ("/attention/external", "/attention/internal", "/attention/lse_internal"):
        assert np.array_equal(run[name][:first], plain[name][:first], equal_nan=True)
        assert np.array_equal(run[name][first, 1][[0, 2, 4, 5]], plain[name][first, 1][[0, 2, 4, 5]])
    if what == "patch_external":
        assert np.array_equal(run["/attention/internal"][first, 1], plain["/attention/internal"][first, 1])
    marked = np.zeros(run["/attention/intervened"].shape, bool)
    marked[np.ix_(hit, [1], [1, 3])] = True
    assert np.array_equal(run["/attention/intervened"] == 1, marked)


@pytest.mark.parametrize("loop", LOOPS)
def test_inputs_are_those_of_the_other_run(tmp_path, loop):
    other = tmp_path / "other.h5"
    record(other, loop, "scale,by=3,layers=0")
    record(tmp_path / "plain.h5", loop)
    record(tmp_path / "run.h5", loop, f"patch_hidden,trace={other},layers=1+4,steps=1-2")
    run, plain, theirs = (read(tmp_path / f"{name}.h5") for name in ("run", "plain", "other"))
    hit = (run["/steps/kind"] == 1) & (run["/steps/step"] <= 2)
    place = np.ix_(hit, [1, 4])
    assert np.array_equal(run["/hidden/hidden"][place], theirs["/hidden/hidden"][place])
    assert not np.array_equal(run["/hidden/hidden"][place], plain["/hidden/hidden"][place])
    np.testing.assert_allclose(run["/query/query"][place], theirs["/query/query"][place], atol=2e-5)
    first = np.flatnonzero(hit)[0]
    assert np.array_equal(run["/hidden/hidden"][first, 0], plain["/hidden/hidden"][first, 0])
    assert not np.array_equal(run["/hidden/hidden"][first, 2], plain["/hidden/hidden"][first, 2])
    later = (run["/steps/kind"] == 1) & (run["/steps/step"] > 2)
    assert not np.array_equal(run["/hidden/hidden"][later][:, 1], theirs["/hidden/hidden"][later][:, 1])
    assert not (run["/attention/intervened"] == 1).any()  # no head is changed itself


@pytest.mark.parametrize("loop", LOOPS)
def test_the_own_values_change_nothing(tmp_path, loop):
    own = tmp_path / "own.h5"
    tokens = record(own, loop, maps="layers=3")
    for index, text in enumerate(("patch_hidden,layers=0-5", "patch_external", "patch_head,layers=2-3")):
        assert torch.equal(record(tmp_path / f"{index}.h5", loop, f"{text},trace={own}"), tokens)
        run, plain = read(tmp_path / f"{index}.h5"), read(own)
        for name in ("/attention/external", "/attention/internal", "/hidden/hidden"):
            np.testing.assert_allclose(run[name], plain[name], atol=3e-4, equal_nan=True)


# --- against the runtime ----------------------------------------------------------------------------------------------


def check_with_capture(tmp_path, loop, given, level="full"):
    name, _, cache = LOOPS[loop]
    mine, theirs = tmp_path / "mine.h5", tmp_path / "theirs.h5"
    record(mine, loop, given, level=level)
    done = subprocess.run(
        [BINARY, "capture", models.MODELS / name, "--replay", mine, "--predictions", "all", "--dtype", "float32",
         "--block-length", str(SIZE), "--cache", cache, "--record", level, "-o", theirs,
         *(["--array-type", "f32"] if level in ("outputs", "full") else []),
         *(word for text in given for word in ("--intervene", text))], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    compare_with_capture(mine, theirs)
    texts = [blockscope.open(path).run["interventions"] for path in (mine, theirs)]
    assert texts[0] == texts[1]


@pytest.mark.parametrize("given", [
    ["patch_external,trace=other.h5,layers=1,heads=0-2"], ["patch_head,trace=other.h5,layers=3+5,steps=2-3"],
    ["patch_hidden,trace=other.h5,layers=2"],
    ["scale,by=0.5,layers=4", "patch_hidden,trace=other.h5,layers=3,blocks=1+3", "hide_keys,top=2,layers=2",
     "patch_head,trace=other.h5,layers=2,heads=4", "noise,by=0.1,layers=2,heads=4",
     "patch_hidden,trace=second.h5,layers=1"]])
@pytest.mark.parametrize("loop", LOOPS)
def test_patches_are_those_of_capture(tmp_path, loop, given):
    record(tmp_path / "other.h5", loop, "scale,by=3,layers=0")
    record(tmp_path / "second.h5", loop, "drop_external,layers=0+1")
    check_with_capture(tmp_path, loop, [text.replace("trace=", f"trace={tmp_path}/") for text in given])


COMMITS = ["scale,by=0.5,layers=1,heads=0+2,commits", "hide_keys,region=first,layers=2,commits",
           "freeze_external,from=2,layers=4,heads=1-3,commits", "noise,by=0.25,seed=7,layers=0,heads=1+4,commits",
           "hide_keys,region=decided,layers=3,commits", "hide_keys,top=2,layers=5,steps=2,commits",
           "drop_head,mean,layers=3,heads=5,blocks=3", "drop_internal,layers=5,heads=4,blocks=3,commits"]


@pytest.mark.parametrize("level", ["trajectory", "summary", "full"])
@pytest.mark.parametrize("given", [COMMITS, ["drop_head,layers=0,commits"], ["drop_external,heads=1,commits"]])
def test_commit_passes_are_those_of_capture(tmp_path, given, level):
    """At level full, the keys that a commit pass stores are compared, too."""
    check_with_capture(tmp_path, "blocks", given, level)


def test_commits_change_the_stored_keys(tmp_path):
    record(tmp_path / "plain.h5", "blocks", "drop_head,layers=0")
    record(tmp_path / "commits.h5", "blocks", "drop_head,layers=0,commits")
    with h5py.File(tmp_path / "plain.h5") as one, h5py.File(tmp_path / "commits.h5") as other:
        end = int(one["/prefix/end"][np.flatnonzero(one["/steps/kind"][()] == 2)[0]])
        begin = end - SIZE
        assert np.array_equal(one["/prefix/key"][:begin], other["/prefix/key"][:begin])
        assert np.array_equal(one["/prefix/key"][begin:end, 0], other["/prefix/key"][begin:end, 0])
        assert np.abs(one["/prefix/key"][begin:end, 1] - other["/prefix/key"][begin:end, 1]).max() > 0.01


# --- loops and models -------------------------------------------------------------------------------------------------


def test_batches(tmp_path):
    """Each sequence gets the values of its own prompt."""
    prompts = torch.tensor([[5 * i % 90 for i in range(24)], [7 * i % 90 for i in range(24)]])

    def both(path, order, given, level="full"):
        model = models.qwen3()
        with blockscope.record(model, tmp_path / path, block_length=8, mask_token_id=MASK, gen_length=16,
                               array_type="f32", level=level, attention="replace", interventions=given):
            models.decode_qwen_blocks(model, prompts[order], 16, 8, MASK)

    both("other.h5", [1, 0], "scale,by=3,layers=0")
    both("run.h5", [0, 1], [f"patch_hidden,trace={tmp_path}/other.h5,layers=1",
                            f"patch_head,trace={tmp_path}/other.h5,layers=2,heads=3"])
    compared = 0
    with h5py.File(tmp_path / "run.h5") as run, h5py.File(tmp_path / "other.h5") as other:
        steps = [{(1 - int(file["/steps/sequence"][row]) if file is other else int(file["/steps/sequence"][row]),
                   int(file["/steps/block_start"][row]), int(file["/steps/step"][row])): row
                  for row in np.flatnonzero(file["/steps/kind"][:rows_of(file)] == 1)} for file in (run, other)]
        for key, row in steps[0].items():
            assert np.array_equal(run["/hidden/hidden"][row, 1], other["/hidden/hidden"][steps[1][key], 1])
            found, wanted = (file["/attention/external"][one, 2, 3]
                             for file, one in ((run, row), (other, steps[1][key])))
            assert np.array_equal(found, wanted)
            compared += 1
    assert compared == 16


def test_token_by_token(tmp_path):
    """Heads of one query, which stand as queries of their KV head."""
    model, prompt = models.qwen3(), torch.tensor([[3, 14, 15, 9, 2, 6]])
    for name, given in (("other", "scale,by=3,layers=0"), ("run", [f"patch_hidden,trace={tmp_path}/other.h5,layers=1",
                                                                   f"patch_head,trace={tmp_path}/other.h5,layers=2"])):
        with blockscope.record(model, tmp_path / f"{name}.h5", level="full", array_type="f32", attention="replace",
                               interventions=given) as run:
            run.end_sequence(models.decode_tokens(model, prompt, 7))
    run, theirs = (read(tmp_path / f"{name}.h5") for name in ("run", "other"))
    rows = run["/steps/kind"] == 1
    assert rows.sum() == 6
    assert np.array_equal(run["/hidden/hidden"][rows, 1], theirs["/hidden/hidden"][rows, 1])
    assert np.array_equal(run["/attention/internal"][rows, 2], theirs["/attention/internal"][rows, 2])
    assert not np.array_equal(run["/attention/internal"][rows, 0], theirs["/attention/internal"][rows, 0])


@pytest.mark.parametrize("named", [False, True])
def test_scattered_positions_and_named_arguments(tmp_path, named):
    """Passes over the block and three other positions: only the block's rows change. The layer's input may be a
    keyword argument."""
    model, other, extra, size = loops.CanvasModel(), tmp_path / "other.h5", [3, 17, 44], 8
    record(other, "canvas", "scale,by=3,layers=0", PROMPT[:21], 24, size, model)
    if named:
        for layer in model.layers:
            layer.register_forward_pre_hook(lambda _, args, kwargs: (
                (), dict(zip(("x", "cos", "sin", "past", "mask", "store"), args))), with_kwargs=True)
    seen = {"before": [], "after": []}

    def watch(which):
        return model.layers[1].register_forward_pre_hook(
            lambda _, args, kwargs: seen[which].append((args[0] if args else kwargs["x"]).clone()), with_kwargs=True)

    watch("before")
    with blockscope.record(model, tmp_path / "run.h5", block_length=size, attention="replace",
                           interventions=f"patch_hidden,trace={other},layers=1,steps=1-2") as run:
        watch("after")
        run.end_sequence(loops.replaced(model, PROMPT[:21], 24, size, extra=extra))
    scattered = 0
    with h5py.File(tmp_path / "run.h5") as mine, h5py.File(other) as theirs:
        rows = {(int(theirs["/steps/block_start"][row]), int(theirs["/steps/step"][row])): row
                for row in range(rows_of(theirs))}
        for row in range(rows_of(mine)):
            start, step = (int(mine[f"/steps/{name}"][row]) for name in ("block_start", "step"))
            before, after = (seen[which][int(mine["/steps/pass"][row])][0] for which in ("before", "after"))
            if step > 2:
                assert torch.equal(before, after)
                continue
            there = np.arange(45) if len(before) == 45 else np.array(sorted({*extra, *range(start, start + size)}))
            inside = torch.from_numpy((there >= start) & (there < start + size))
            wanted = torch.from_numpy(theirs["/hidden/hidden"][rows[start, step], 1])
            assert torch.equal(after[inside], wanted) and torch.equal(after[~inside], before[~inside])
            assert not torch.equal(before[inside], wanted)
            scattered += len(before) < 45
    assert scattered >= 3


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text, words", [
    ("patch_head,trace={low}", "interventions: {low}: expected /attention/external, got a trace of level summary. HINT"
                               ": record it at level outputs"),
    ("patch_hidden,trace={low}", "expected /hidden/hidden, got a trace of level summary. HINT: record it at level "
                                 "full"),
    ("patch_external,trace={some},steps=1,heads=0", "{some}: expected layer 1, got layers 0"),
    ("patch_external,trace={some},steps=1,layers=0", "{some}: expected head 1, got heads 0"),
    ("patch_external,trace={some},layers=0,heads=0", "step 2, got no such recorded row. HINT: choose steps= and"),
    ("patch_hidden,trace={some},layers=0", "step 2, got no such recorded row"),
    ("patch_external,trace={prompt}", "{prompt}: expected the prompt of sequence 0 of this run, got only others"),
    ("patch_hidden,trace={prompt}", "{prompt}: expected the prompt of sequence 0 of this run, got only others"),
    ("patch_external,trace={size}", "{size}: expected blocks of 16 positions, as in this run, got 8"),
    ("patch_external,trace={qwen}", "{qwen}: num_layers: expected the model's 6, got 3"),
    ("patch_hidden,trace={qwen}", "{qwen}: num_layers: expected the model's 6, got 3"),
    ("patch_hidden,trace={low},heads=1", "expected layers, steps, blocks or trace, got 'heads'"),
    ("patch_head,trace={low},commits", "got 'commits'"),
    ("patch_head", "trace: expected the file of a trace, got none"),
    ("patch_head,trace=", "trace: expected a file, got"),
    ("patch_head,trace=/none.h5", "/none.h5"), ("patch_hidden,trace=/none.h5", "/none.h5"),
])
def test_patches_that_do_not_fit(tmp_path, text, words):
    paths = {name: tmp_path / f"{name}.h5" for name in ("low", "some", "prompt", "size", "qwen")}
    for name, path in paths.items():
        if f"{{{name}}}" not in text or name == "qwen":
            continue
        options = {"low": dict(level="summary"), "some": dict(layers=[0], heads=[0], steps=[1]),
                   "prompt": dict(prompt=PROMPT[:36]), "size": dict(block_length=8)}[name]
        record(path, "blocks", gen_length=16, **options)
    if "{qwen}" in text:
        model = models.qwen3()
        with blockscope.record(model, paths["qwen"], block_length=8, mask_token_id=MASK, gen_length=16, level="full"):
            models.decode_qwen_blocks(model, torch.tensor([SHORT[:24]]) % 90, 16, 8, MASK)
    with pytest.raises((blockscope.UsageError, blockscope.TraceError)) as error:
        record(tmp_path / "run.h5", "blocks", text.format(**paths), gen_length=16)
    assert words.format(**paths) in str(error.value) and not (tmp_path / "run.h5").exists()


@pytest.mark.parametrize("what", ["patch_external", "patch_hidden"])
@pytest.mark.parametrize("name, words", [
    ("missing", "missing.h5: can't open the trace"), ("damaged", "damaged.h5"),
    ("low", "low.h5: expected /.*, got a trace of level summary"),
    ("qwen", "qwen.h5: num_layers: expected the model's 6, got 3"),
    ("heads", "heads.h5: num_heads: expected the model's 12, got 6"),
    ("hidden", "hidden.h5: hidden_size: expected the model's 7, got")])
def test_files_that_no_step_can_use_are_told_before_the_loop(tmp_path, what, name, words):
    """Also if no step would use them."""
    path = tmp_path / f"{name}.h5"
    if name == "damaged":
        path.write_text("no trace")
    elif name == "low":
        record(path, "blocks", gen_length=16, level="summary")
    elif name == "qwen":
        model = models.qwen3()
        with blockscope.record(model, path, block_length=8, mask_token_id=MASK, gen_length=16, level="full"):
            models.decode_qwen_blocks(model, torch.tensor([SHORT[:24]]) % 90, 16, 8, MASK)
    elif name != "missing":
        record(path, "blocks", gen_length=16)
    model = models.PlainModel("needle")
    if name == "heads":
        model.config.num_attention_heads = 12
    elif name == "hidden":
        model.config.hidden_size = 7
    run = blockscope.record(model, tmp_path / "run.h5", block_length=SIZE, attention="replace",
                            interventions=f"{what},trace={path},blocks=99")
    with pytest.raises((blockscope.UsageError, blockscope.TraceError), match=words):
        run.__enter__()
    assert not model._forward_hooks and not model._forward_pre_hooks and not list(tmp_path.glob("run.h5*"))


def test_shapes_are_compared_once_a_layer_shows_them(tmp_path):
    other = models.qwen3(kv_heads=4)

    def decode(path, model, given):
        with blockscope.record(model, tmp_path / path, block_length=8, mask_token_id=MASK, gen_length=16,
                               attention="replace", interventions=given):
            models.decode_qwen_blocks(model, torch.tensor([SHORT[:24]]) % 90, 16, 8, MASK)

    decode("other.h5", other, None)
    with pytest.raises(blockscope.UsageError, match="other.h5: num_kv_heads: expected the model's 2, got 4"):
        decode("run.h5", models.qwen3(), f"patch_head,trace={tmp_path}/other.h5")


def opened(path):
    links = (f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd"))
    return sum(os.path.realpath(link) == str(path) for link in links if os.path.islink(link))


@pytest.mark.parametrize("fails", [False, True])
def test_sources_are_open_while_the_recording_is(tmp_path, monkeypatch, fails):
    """The name counts from the folder in which record() was called."""
    record(tmp_path / "other.h5", "blocks", gen_length=16)
    monkeypatch.chdir(tmp_path)
    model, elsewhere = models.PlainModel("needle"), tmp_path / "elsewhere"
    elsewhere.mkdir()
    run = blockscope.record(model, tmp_path / "run.h5", block_length=SIZE, gen_length=16, attention="replace",
                            interventions=["patch_head,trace=other.h5,layers=1", "patch_external,trace=other.h5"])
    monkeypatch.chdir(elsewhere)
    assert opened(tmp_path / "other.h5") == 0
    with contextlib.suppress(KeyError), run:
        assert opened(tmp_path / "other.h5") > 0
        models.decode_blocks(model, SHORT, 16, SIZE)
        if fails:
            raise KeyError
    assert opened(tmp_path / "other.h5") == 0
    if not fails:
        assert (read(tmp_path / "run.h5")["/attention/intervened"] == 1).any()
    run = blockscope.record(model, tmp_path / "second.h5", block_length=SIZE, attention="replace",
                            interventions=[f"patch_head,trace={tmp_path}/other.h5", "patch_head,trace=none.h5"])
    with pytest.raises(blockscope.TraceError, match="elsewhere/none.h5"):
        run.__enter__()
    assert opened(tmp_path / "other.h5") == 0


def test_the_name_need_not_be_utf_8(tmp_path):
    other = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9,1.h5")
    record(other, "blocks", gen_length=16)
    record(tmp_path / "run.h5", "blocks", {"what": "patch_head", "trace": other, "layers": 1}, gen_length=16)
    trace = blockscope.open(tmp_path / "run.h5")
    assert trace.run["interventions"] == [f"patch_head,layers=1,trace={tmp_path}/caf?,1.h5"]


def test_a_source_that_is_still_written(tmp_path):
    """Another view of the file closes it. It opens again with the new rows."""
    path, model, found = tmp_path / "own.h5", models.PlainModel("needle"), []
    sources = []
    with blockscope.record(model, path, block_length=SIZE, gen_length=48) as run:
        def after(*_):
            run.commit()
            if not os.path.exists(f"{path}.partial"):
                return
            trace = blockscope.open(path)
            last = trace.num_rows - 1
            if last < 0:
                return
            steps = {name: int(trace.tree[f"steps/{name}"][last]) for name in ("kind", "block_start", "step")}
            sources[:] = sources or [_core.StepSource(os.fsencode(path), [-1] * 5, ["/attention/external"])]
            if steps["kind"] == 1:
                step = [0, steps["block_start"], SIZE, steps["step"]]
                values = sources[0].values("/attention/external", SHORT, step, 1, [3])
                assert np.array_equal(np.frombuffer(values, np.float32),
                                      trace.tree["attention/external"][last, 1, 3].values.ravel())
                found.append(last)

        model.register_forward_hook(after)
        run.end_sequence(models.decode_blocks(model, SHORT, 48, SIZE))
    assert len(found) > 5
    sources[0].close()
    with pytest.raises(blockscope.UsageError, match="own.h5: the trace is closed"):
        sources[0].values("/attention/external", SHORT, [0, 0, SIZE, 1], 1, [3])


def damage(path, name, place, value):
    with h5py.File(path, "r+") as file:
        row = np.flatnonzero(file["/steps/kind"][:rows_of(file)] == 1)[1]
        file[name][(row, *place)] = value
    return row


@pytest.mark.parametrize("name, place, value, words", [
    ("/attention/external", (1, 0, 3, 2), np.nan, "layer 1, head 0: expected finite values, got nan. HINT: the file"),
    ("/attention/internal", (1, 2, 3, 2), np.inf, "layer 1, head 2: expected finite values, got inf"),
    ("/attention/external", (1, 0, 3), np.nan, "layer 1, head 0: expected finite values, got nan"),  # others have it
    ("/attention/lse_external", (1, 2, 3), np.nan, "layer 1, head 2: expected finite values, got nan"),
    ("/attention/lse_internal", (1, 0, 3), np.inf, "layer 1, head 0: expected finite values, got inf"),
    ("/attention/external", (1, slice(None), 3), np.nan, "expected values of the whole block, got only some positions"),
    ("/attention/lse_internal", (1, slice(None), 3), np.nan, "expected values of the whole block"),
    ("/attention/external", (1, 5), np.nan, None), ("/attention/lse_internal", (1, 5, 3), np.inf, None),
    ("/attention/external", (2, 0), np.nan, None), ("/attention/lse_external", (1, 0), -np.inf, None),
    ("/hidden/hidden", (1, 3, 2), np.inf, "layer 1: expected finite values, got inf"),
    ("/hidden/hidden", (1, 3, 2), np.nan, "layer 1: expected finite values, got nan"),
    ("/hidden/hidden", (1, 3), np.nan, "expected values of the whole block, got only some positions. HINT: record a"),
    ("/hidden/hidden", (2, 3), np.nan, None)])
def test_values_that_no_pass_has(tmp_path, name, place, value, words):
    other = tmp_path / "other.h5"
    record(other, "canvas")
    row = damage(other, name, place, value)
    kind = "patch_hidden,layers=1" if "hidden" in name else "patch_head,layers=1,heads=0+2"
    if words is None:
        record(tmp_path / "run.h5", "canvas", f"{kind},trace={other}")
        return
    with pytest.raises((blockscope.UsageError, blockscope.CorruptTrace)) as error:
        record(tmp_path / "run.h5", "canvas", f"{kind},trace={other}")
    assert words in str(error.value) and f"{name}: row {row}" in str(error.value)
    assert isinstance(error.value, blockscope.CorruptTrace) == ("finite" in words)


def test_commits_of_runs_without_them(tmp_path):
    with pytest.raises(blockscope.UsageError, match="commits: the run has no commit passes of its own"):
        record(tmp_path / "a.h5", "canvas", "drop_head,layers=1,commits")
    model = models.qwen3()
    with pytest.raises(blockscope.UsageError, match="commits: the run has no commit passes of its own"):
        with blockscope.record(model, tmp_path / "b.h5", attention="replace", interventions="drop_head,commits"):
            models.decode_tokens(model, torch.tensor([[3, 14, 15, 9, 2, 6]]), 3)


def test_inputs_that_cannot_be_patched(tmp_path):
    """A pass that computes some rows, an input of another shape, gradients, a layer that doesn't run."""
    other = tmp_path / "other.h5"
    record(other, "canvas")
    given = f"patch_hidden,trace={other},layers=1,steps=2-9"
    model = loops.CanvasModel()
    record(tmp_path / "small.h5", "canvas", None, PROMPT[:21], 24, 8, model)
    with pytest.raises(blockscope.UsageError, match=r"layers\.1: an intervention changes whole blocks"):
        with blockscope.record(model, tmp_path / "a.h5", block_length=8, attention="replace",
                               interventions=f"patch_hidden,trace={tmp_path}/small.h5,layers=1,steps=3"):
            loops.left_out(model, PROMPT[:21], 24, 8)

    model = models.PlainModel("needle-bidirectional")
    own = model.layers[1].forward
    model.layers[1].forward = lambda x, *rest: own(x[0], *rest)
    model.layers[1].register_forward_pre_hook(lambda _, args: ((args[0],), *args[1:]))
    with pytest.raises(blockscope.UsageError, match=r"layers\.1: patch_hidden: the input of the layers can't be seen"):
        record(tmp_path / "b.h5", "canvas", given, model=model, level="summary")

    model = models.qwen3()
    with blockscope.record(model, tmp_path / "qwen.h5", block_length=8, mask_token_id=MASK, level="full"):
        models.decode_qwen_blocks(model, torch.tensor([SHORT[:24]]) % 90, 16, 8, MASK)
    with pytest.raises(blockscope.UsageError, match="interventions have no gradients. HINT: decode within torch"):
        with blockscope.record(model, tmp_path / "c.h5", block_length=8, mask_token_id=MASK, attention="replace",
                               interventions=f"patch_hidden,trace={tmp_path}/qwen.h5"):
            model(torch.tensor([[MASK] * 8]))

    class Skipping(torch.nn.ModuleList):
        def __iter__(self):
            return iter([layer for i, layer in enumerate(super().__iter__()) if i != 1])

    model = models.PlainModel("needle-bidirectional")
    every = list(model.layers)
    model.layers = Skipping(every)
    with pytest.raises(blockscope.UsageError, match=r"layers\.1: patch_hidden: the layer didn't run in this pass"):
        record(tmp_path / "d.h5", "canvas", given, model=model, level="trajectory", decoder_layers=every)
