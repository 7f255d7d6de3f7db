"""blockscope.record_engine(): requests of a small engine (recorded_engine.py) that share passes. The judge: every
dataset of each request equals, bit for bit, that of blockscope.record() while a module decodes the request alone."""

import os
import pathlib
import subprocess
import sys

import h5py
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the tests' Python has no torch (scripts/setup.sh --tests)")

import blockscope  # noqa: E402
from recorded_engine import MASK, SIZE, Canvas, Engine, Model, Sequence, Tokens, record_alone, serve  # noqa: E402
from recording_checks import rows_of  # noqa: E402

OPTIONS = dict(block_length=SIZE, set_size=3)
BY_RANGE = {"delta_end": ("position", "token", "step", "confidence"), "delete_end": ("delete_position",),
            "insert_end": ("insert_position", "insert_token", "insert_step", "insert_confidence")}
OF_THE_FILE = {"sequence", "pass", "pass_time_ns", "previous"}  # numbers of passes, rows and sequences; time


@pytest.fixture(scope="module")
def model():
    return Model()


def sequences(count=3):
    numbers = torch.Generator().manual_seed(1)
    shapes = (("a", 10, 2), ("b", 21, 3), ("c", 3, 2))
    return [Sequence(name, torch.randint(0, MASK, (length,), generator=numbers).tolist(), blocks, chunk=8)
            for name, length, blocks in shapes[:count]]


def arrays_of(path, name):
    """Everything that a trace has of a sequence, by name. The first axis is that of its rows, where there is one."""
    with h5py.File(path) as file:
        trace = blockscope.open(path)
        sequence = [one.name for one in trace.sequences].index(name)
        rows = np.flatnonzero(file["/steps/sequence"][:rows_of(file)] == sequence)
        found = {"prompt": trace.sequences[sequence].prompt, "reason": trace.sequences[sequence].finish_reason,
                 "level": trace.level, "model": {key: value for key, value in file["/model"].attrs.items()}}
        for group in ("steps", "attention", "query", "sets", "spread", "summary", "prediction", "hidden", "kv", "map"):
            for key, values in (file[group].items() if group in file else ()):
                if isinstance(values, h5py.Dataset) and len(values) >= rows_of(file) and key not in OF_THE_FILE:
                    found[f"{group}/{key}"] = values[rows]
        for ends, keys in BY_RANGE.items():
            for key in keys:
                found["frames/" + key] = by_range(file["frames/" + ends], file["frames/" + key], rows)
        for key in ("key", "value") if "prefix" in file else ():
            found["prefix/" + key] = by_range(file["prefix/end"], file["prefix/" + key], rows)
        for step in range(1, int(file["/steps/kind"][rows].tolist().count(1)) + 1):
            frame = trace.frame(sequence, step)
            found[f"frame {step}"] = np.concatenate([frame.tokens, frame.steps])
    return found


def fail(*args, **kwargs):
    raise RuntimeError("out of memory")


def by_range(ends, values, rows):
    ends = np.concatenate([[0], ends[()]])
    return np.concatenate([np.empty((0, *values.shape[1:]))] + [values[ends[row]:ends[row + 1]] for row in rows])


def check(path, judged, name):
    mine, theirs = arrays_of(path, name), arrays_of(judged, name)
    assert mine.keys() == theirs.keys()
    for key, value in theirs.items():
        assert equal(mine[key], value), (name, key)
    return mine


def equal(a, b):
    return np.array_equal(a, b, equal_nan=isinstance(b, np.ndarray) and b.dtype.kind == "f")


@pytest.mark.parametrize("level, keys, page_size, joins", [
    ("outputs", "dense", 1, [0]), ("outputs", "fresh", 1, [0, 2, 3]), ("outputs", "stored", 16, [0, 1, 0]),
    ("summary", "fresh", 16, [0, 3]), ("trajectory", "fresh", 1, [2, 1, 0]), ("full", "fresh", 16, [0, 2, 3]),
    ("full", "dense", 1, [0, 9, 5]), ("sets", "stored", 1, [4, 0, 2])])
def test_requests_that_share_passes(tmp_path, model, level, keys, page_size, joins):
    with blockscope.record_engine(model, tmp_path / "run.h5", level=level, **OPTIONS) as run:
        serve(Engine(model, keys, page_size), run, sequences(len(joins)), joins)
    for one in sequences(len(joins)):
        record_alone(model, one, tmp_path / f"{one.name}.h5", level=level, **OPTIONS)
        found = check(tmp_path / "run.h5", tmp_path / f"{one.name}.h5", one.name)
        assert level == "trajectory" or np.isfinite(found["summary/hidden_gap"]).any()
        assert len(found["steps/kind"]) > 2 and (level != "full" or len(found["prefix/key"]) == len(one.tokens))
    with h5py.File(tmp_path / "run.h5") as file:  # passes were shared, and no request has the same ones
        assert len(joins) == 1 or len(set(file["/steps/pass"][()])) < rows_of(file)


@pytest.mark.parametrize("options", [
    dict(layers=[0, 2], heads=[1, 2], steps=[1]), dict(array_type="f32", set_normaliser="prefix+block"),
    dict(gen_length=12, maps="layers=1;positions=40"), dict(regions=[{"region": "start", "positions": [0, 1]}])])
def test_options(tmp_path, model, options):
    with blockscope.record_engine(model, tmp_path / "run.h5", **OPTIONS, **options) as run:
        serve(Engine(model), run, sequences(2), [0, 1])
    for one in sequences(2):
        record_alone(model, one, tmp_path / f"{one.name}.h5", **OPTIONS, **options)
        check(tmp_path / "run.h5", tmp_path / f"{one.name}.h5", one.name)


@pytest.mark.parametrize("keys", ["dense", "fresh", "stored"])
def test_a_canvas_with_keys_around_the_block(tmp_path, model, keys):
    def canvases():
        return [Canvas(one.name, one.prompt, 2) for one in sequences(2)]

    with blockscope.record_engine(model, tmp_path / "run.h5", **OPTIONS) as run:
        serve(Engine(model, keys, 16), run, canvases(), [0, 1])
    for one in canvases():
        record_alone(model, one, tmp_path / f"{one.name}.h5", **OPTIONS)
        check(tmp_path / "run.h5", tmp_path / f"{one.name}.h5", one.name)


@pytest.mark.parametrize("level", ["outputs", "full"])
def test_token_by_token(tmp_path, level):
    def both():
        return [Tokens("a", list(range(7)), 4), Tokens("b", list(range(20, 25)), 6)]

    model = Model()
    model.config.mask_token_id = None
    options = dict(level=level, set_size=3)
    with blockscope.record_engine(model, tmp_path / "run.h5", **options) as run:
        serve(Engine(model, page_size=4), run, both(), [0, 1])
    for one in both():
        record_alone(model, one, tmp_path / f"{one.name}.h5", **options)
        found = check(tmp_path / "run.h5", tmp_path / f"{one.name}.h5", one.name)
        assert found["steps/kind"].tolist() == [0] + [1] * (one.end - len(one.prompt) - 1)


def test_a_prompt_whose_keys_another_request_computed(tmp_path, model):
    """A prefix cache: "late" gets the first eight tokens' pages of "early", so its first pass begins after them."""
    early = Sequence("early", list(range(8)), 1)
    late = Sequence("late", [*range(8), 40, 41, 42, 43, 44], 2)
    alone = Sequence("late", late.prompt, 2, chunk=8)
    with blockscope.record_engine(model, tmp_path / "run.h5", **OPTIONS) as run:
        engine = Engine(model, page_size=4)
        engine.step(run, [early])
        engine.pages["late"], late.start = engine.pages["early"][:2], 8
        run.begin_sequence("late", prompt=late.prompt)
        serve(engine, run, [early, late], [0, 1])
    record_alone(model, alone, tmp_path / "late.h5", **OPTIONS)
    mine, theirs = (arrays_of(path, "late") for path in (tmp_path / "run.h5", tmp_path / "late.h5"))
    for key in ("attention/external", "attention/lse_internal", "prediction/confidence", "steps/context_length",
                "steps/kind", "prompt", "frame 1", "frame 3"):  # but its first row, the prefill of those tokens
        theirs[key] = theirs[key][1:] if "/" in key else theirs[key]
        assert equal(mine[key], theirs[key]), key
    assert np.isfinite(mine["attention/external"][-2]).all()


def test_full_needs_the_keys_of_the_whole_prompt(tmp_path, model):
    one = Sequence("a", list(range(12)), 1)
    engine = Engine(model)
    engine.pages["a"], one.start = [engine.free.pop() for _ in range(8)], 8
    with pytest.raises(blockscope.UsageError, match="level full: the pass stores keys from position 8, and"):
        with blockscope.record_engine(model, tmp_path / "run.h5", level="full", **OPTIONS) as run:
            run.begin_sequence("a", prompt=one.prompt)
            with torch.no_grad():
                engine.cache = [tuple(torch.zeros_like(x) for x in pair) for pair in engine.cache]
                engine.step(run, [one])


@pytest.mark.parametrize("level", ["outputs", "full"])
def test_a_request_whose_keys_are_dropped_and_computed_again(tmp_path, model, level):
    """Preemption in the middle of a block: the engine runs all whole blocks again, then goes on with the block."""
    one, = sequences(1)
    with blockscope.record_engine(model, tmp_path / "run.h5", level=level, **OPTIONS) as run:
        engine = Engine(model, page_size=4)
        while one.start < 12:
            engine.step(run, [one])
        engine.step(run, [one])
        assert MASK in one.next()
        del engine.pages["a"]
        one.start, one.whole = 0, 12
        engine.change["logits"] = fail
        with pytest.raises(RuntimeError):
            engine.step(run, [one])
        engine.change = {}
        engine.step(run, [one])  # a chunk of eight, and the rest
        while not one.done:
            engine.step(run, [one])
        run.end_sequence("a", one.tokens)
    alone, = sequences(1)
    record_alone(model, alone, tmp_path / "a.h5", level=level, **OPTIONS)
    check(tmp_path / "run.h5", tmp_path / "a.h5", "a")  # the passes over what is known aren't recorded


@pytest.mark.parametrize("level", ["outputs", "full"])
def test_keys_that_are_computed_again_with_the_block(tmp_path, model, level):
    """Preemption before a commit: one pass over all whole blocks is the commit, too."""
    one, alone = sequences(1) + sequences(1)
    with blockscope.record_engine(model, tmp_path / "run.h5", level=level, **OPTIONS) as run:
        engine = Engine(model, page_size=4)
        while MASK in one.tokens:
            engine.step(run, [one])
        del engine.pages["a"]
        one.start, one.whole, one.chunk = 0, 16, 16
        engine.step(run, [one])
        assert one.done
        run.end_sequence("a")
    record_alone(model, alone, tmp_path / "a.h5", level=level, **OPTIONS)
    mine, theirs = (arrays_of(path, "a") for path in (tmp_path / "run.h5", tmp_path / "a.h5"))
    for key, value in theirs.items():
        if key != "prefix/key" and key != "prefix/value":  # of the last block, from a pass of another length
            assert equal(mine[key], value), key
    for key in ("prefix/key", "prefix/value") if level == "full" else ():
        assert np.abs(mine[key].astype(float) - theirs[key]).max() < 0.02 and mine[key].shape == theirs[key].shape


# --- what can't be recorded -------------------------------------------------------------------------------------------


def changed(place, value):
    """The arguments of a call with one of them changed: value(it)."""
    def change(*args, **kwargs):
        if isinstance(place, str):
            return args, {**kwargs, place: value(kwargs[place])}
        return (*args[:place], value(args[place]), *args[place + 1:]), kwargs
    return change


def only(requests):
    """Of run.batch(): as if the pass were of one of the requests alone, named otherwise."""
    return lambda *args, **kwargs: ((requests, *args[1:]), kwargs)


WRONG = {
    r"layer 0: q: expected floats \[8, H, D\], got torch.float32 \[8, 32\]":
        ("attention", changed(1, lambda q: q.flatten(1))),
    r"layer 0: q: expected floats \[8, H, D\], got torch.float32 \[7, 4, 8\]":
        ("attention", changed(1, lambda q: q[1:])),
    r"layer 0: q: expected the 4 heads of model.config, got 2. HINT: with tensor parallelism":
        ("attention", changed(1, lambda q: q[:, :2])),
    r"layer 0: k: expected floats \[8, K, D\], got torch.int64": ("attention", changed(2, lambda k: k.long())),
    r"layer 0: expected k and v, cache=, or all three": ("attention", changed(2, lambda k: None)),
    r"layer 0: out: expected floats \[8, H, D\], got torch.float32 \[8, 32\]":
        ("attention", changed("out", lambda out: out.flatten(1))),
    r"layer: expected 0 to 2, got 3": ("attention", changed(0, lambda layer: 3)),
    r"layer 1: stated twice in the pass over requests 'a', 'b'": ("attention", changed(0, lambda layer: max(layer, 1))),
    r"layer 0: out: expected the shape of q, \[8, 4, 8\], got \[8, 2, 8\]":
        ("attention", changed("out", lambda out: out[:, :2])),
    r"cache: keys: expected \[pages, page_size, 2, D\] or .*got \[64\]":
        ("attention", changed("cache", lambda cache: [x[:, 0, 0, 0] for x in cache])),
    r"cache: keys: expected \[pages, page_size, 2, D\] or .*got \[64, 2, 4, 8\]. HINT: .*HND":
        ("attention", changed("cache", lambda cache: [x.transpose(1, 2) for x in cache])),
    r"cache: keys: expected floats of 16 bits or more, got torch.float8_e4m3fn: quantised keys aren't recorded. HINT":
        ("attention", changed("cache", lambda cache: [x.to(torch.float8_e4m3fn) for x in cache])),
    r"cache: expected \(keys, values\)": ("attention", changed("cache", lambda cache: cache[0])),
    r"run.batch: pages: expected one list for each of 2 requests, got 1": ("batch", changed("pages", lambda p: p[:1])),
    r"pages: for 8 keys in pages of 4 expected numbers from 0 to 63, the cache's pages, got 64":
        ("batch", changed("pages", lambda p: [[64, 64, 64], p[1]])),
    r"pages: for 8 keys in pages of 4 expected numbers from 0 to 63, the cache's pages, got -1":
        ("batch", changed("pages", lambda p: [[3, -1, 3], p[1]])),
    r"request 'a': pages: for 8 keys in pages of 4 expected 2 pages, got 1":
        ("batch", changed("pages", lambda p: [p[0][:1], p[1]])),
    r"expected as many tokens and positions as the lengths add up to, 9, got 8 and 8. HINT: leave out padding":
        ("batch", changed(3, lambda lengths: [5, 4])),
    r"expected different requests.*got requests \['a', 'a'\]": ("batch", only(["a", "a"])),
    r"positions: expected whole numbers of at least 0": ("batch", changed(2, lambda p: [-1, *p[1:]])),
    r"request 'a': positions: expected consecutive ones, got \[8, 10, 11, 12\]":
        ("batch", changed(2, lambda p: [8, 10, 11, 12, *p[4:]])),
    r"request 'a': the pass begins at position 16, and positions 12 to 15 were never an input":
        ("batch", changed(2, lambda p: [16, 17, 18, 19, *p[4:]])),
    r"request 'a': position 4, which it had computed before: expected token \d+ as before, got \d+":
        ("batch", changed(2, lambda p: [4, 5, 6, 7, *p[4:]])),
    r"request 'z': its first pass begins at position 8.* got 0. HINT: if the engine has their keys":
        ("batch", only(["z", "b"])),
    r"run.logits: expected floats \[8, V\], got torch.float32 \[7, 60\]": ("logits", changed(0, lambda x: x[1:])),
    r"run.logits: rows: request 'a': expected its last tokens \[2, 3\], got \[1, 2\]":
        ("logits", lambda x: ((x[:3],), {"rows": [1, 2, 7]}))}


def one_wrong_pass(run, model, method, change):
    """Two requests in step: the second pass of both blocks is wrong."""
    engine, batch = Engine(model, page_size=4), [Sequence(name, list(range(8)), 2) for name in "ab"]
    engine.step(run, batch)
    engine.step(run, batch)
    assert all(MASK in one.next() for one in batch)
    engine.change[method] = change
    engine.step(run, batch)


@pytest.mark.parametrize("message", WRONG)
def test_wrong_arguments(tmp_path, model, message):
    with pytest.raises(blockscope.UsageError, match=message):
        with blockscope.record_engine(model, tmp_path / "run.h5", **OPTIONS) as run:
            one_wrong_pass(run, model, *WRONG[message])
    with h5py.File(tmp_path / "run.h5.partial", swmr=True) as file:
        assert rows_of(file) == 4 and file["/run/complete"][0] == 0
        assert file["/steps/kind"][:4].tolist() == [0, 1, 0, 1] or file["/steps/kind"][:4].tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize("level", ["outputs", "full"])
def test_keys_that_are_not_the_engine_s(tmp_path, model, level):
    """The pages of another request: what they give isn't the layer's result. A request that joins later counts too."""
    engine = Engine(model)
    batch = [Sequence(name, list(range(first, first + 9)), 2) for first, name in enumerate("abc")]
    with pytest.raises(blockscope.UsageError, match="request 'b': layer 0: .*differs from what the model got by"):
        with blockscope.record_engine(model, tmp_path / "run.h5", level=level, **OPTIONS) as run:
            engine.step(run, batch[:1])
            engine.step(run, batch)
            engine.change["batch"] = changed("pages", lambda pages: np.array([pages[0], pages[2], pages[1]]))
            engine.step(run, batch)


@pytest.mark.parametrize("method, level, message", [
    ("attention", "summary", r"run.attention\(\) of layers 0, 1, 2. HINT: .*CUDA graph"),
    ("hidden", "full", r"run.hidden\(\) of layers 0, 1, 2. HINT"),
    ("logits", "trajectory", r"the logits of request '[ab]', which denoises. HINT: run.logits\(\) after the last layer")])
def test_what_is_not_stated(tmp_path, model, method, level, message):
    class Silent:
        def __getattr__(self, name):
            return (lambda *args, **kwargs: None) if name == method else getattr(run, name)

    with pytest.raises(blockscope.UsageError, match="the pass over requests '[ab]', '[ab]' ended without " + message):
        with blockscope.record_engine(model, tmp_path / "run.h5", level=level, **OPTIONS) as run:
            for _ in range(2):
                serve(Engine(model), Silent(), [Sequence(name, list(range(8)), 2) for name in "ab"], [0, 0])


@pytest.mark.parametrize("caught", [False, True])
def test_an_exception_inside_a_pass(tmp_path, model, caught):
    """The engine's own error continues. If the engine runs the pass again, the trace is as if nothing had happened."""
    batch = sequences(2)
    engine = Engine(model)
    with pytest.raises(RuntimeError, match="out of memory" if not caught else "the end"):
        with blockscope.record_engine(model, tmp_path / "run.h5", **OPTIONS) as run:
            for number in range(4):
                engine.step(run, batch)
            engine.change["logits"] = fail
            with pytest.raises(RuntimeError) if caught else open(tmp_path / "unused", "w"):
                engine.step(run, batch)
            engine.change = {}
            run.attention(0, None)  # outside of a pass it does nothing
            serve(engine, run, batch, [0, 0])
            raise RuntimeError("the end")
    path = tmp_path / "run.h5.partial"
    if not caught:  # the failed pass's input showed what the ones before it decided
        assert arrays_of(path, "a")["frames/token"].size == 4
        return
    one, = sequences(1)
    record_alone(model, one, tmp_path / "alone.h5", **OPTIONS)
    mine, theirs = arrays_of(path, "a"), arrays_of(tmp_path / "alone.h5", "a")
    for key in ("attention/external", "summary/query_gap", "prediction/kl_step1", "steps/step", "frame 3"):
        assert equal(mine[key], theirs[key]), key


def test_logits_that_are_not_shifted(tmp_path, model):
    with pytest.raises(blockscope.UsageError, match="request '[ab]': logit_shift: 1, but all [0-9]+ tokens"):
        with blockscope.record_engine(model, tmp_path / "run.h5", level="trajectory", logit_shift=1, **OPTIONS) as run:
            serve(Engine(model), run, [Sequence(name, list(range(8)), 9) for name in "ab"], [0, 1])


def test_requests_by_name(tmp_path, model):
    with blockscope.record_engine(model, tmp_path / "run.h5", **OPTIONS) as run:
        one, two = sequences(2)
        engine = Engine(model)
        engine.step(run, [one])
        with pytest.raises(blockscope.UsageError, match="request 'a': expected a new one, and it has begun"):
            run.begin_sequence("a", prompt=[1])
        with pytest.raises(blockscope.UsageError, match=r"request 'b': expected one that is being recorded \('a'\)"):
            run.end_sequence("b")
        with pytest.raises(blockscope.UsageError, match="kind: expected prefill, denoise, commit, got 'x'"):
            run.step("a", kind="x")
        serve(engine, run, [one, two], [0, 0])
        with pytest.raises(blockscope.UsageError, match="request 'a': expected a new one, and it has ended. HINT"):
            engine.step(run, [Sequence("a", list(range(8)), 1)])
        with pytest.raises(blockscope.UsageError, match="request 'c': position 1: expected token 9 of the prompt that"):
            run.begin_sequence("c", prompt=[0, 9, 2])
            engine.step(run, [Sequence("c", list(range(8)), 1)])
        with pytest.raises(blockscope.UsageError, match="got one within another"):
            with run.batch(["d"], [1, 2, 3, 4], range(4), [4]), run.batch(["e"], [1, 2, 3, 4], range(4), [4]):
                pass
        run.end_sequence("c")
    assert blockscope.open(tmp_path / "run.h5").complete
    with pytest.raises(blockscope.UsageError, match="the recording isn't open"):
        with run.batch(["e"], [1], [0], [1]):
            pass


@pytest.mark.parametrize("chunk", [4, 8])
def test_what_is_stated_of_a_request(tmp_path, model, chunk):
    one = Sequence("a", [1, 2, 3, MASK, 5, 6, 7, 8], 1, chunk=chunk)  # the prompt holds the mask
    with blockscope.record_engine(model, tmp_path / "run.h5", **OPTIONS) as run:
        run.begin_sequence("a", prompt=torch.tensor(one.prompt), gen_length=12)
        run.step("a", kind="prefill")
        engine = Engine(model)
        one.take = lambda logits: setattr(one, "start", chunk)
        engine.step(run, [one])
        del one.take
        while not one.done:
            engine.step(run, [one])
    trace = blockscope.open(tmp_path / "run.h5")
    assert trace.sequences[0].prompt.tolist() == one.prompt and trace.sequences[0].gen_length == 12
    assert trace.tree["steps/kind"].values.tolist() == [0] * (8 // chunk) + [1, 1, 2]
    assert not trace.model["bidirectional"]


class Passes:
    """Passes at level trajectory, which need no layers."""

    def __init__(self, run, vocabulary=60):
        self.run, self.vocabulary = run, vocabulary

    def __call__(self, request, start, tokens, error=None, rows=None):
        with self.run.batch([request], tokens, range(start, start + len(tokens)), [len(tokens)]):
            if error is not None:
                raise error
            self.run.logits(torch.zeros(len(tokens) if rows is None else len(rows), self.vocabulary), rows)


def tokens_of(path):
    trace = blockscope.open(path)
    return trace.sequences[0].prompt.tolist(), trace.frame(0, len(trace.deltas(0))).tokens.tolist()


def causal(path, **options):
    plain = Model()
    plain.config.mask_token_id = None
    return blockscope.record_engine(plain, path, level="trajectory", block_length=1, **options)


@pytest.mark.parametrize("gen_length", [None, 4])
def test_a_pass_that_failed_loses_no_token(tmp_path, gen_length):
    with causal(tmp_path / "run.h5") as run:
        run.begin_sequence("a", prompt=[1, 2, 3], gen_length=gen_length)
        passes = Passes(run)
        passes("a", 0, [1, 2, 3])
        with pytest.raises(KeyError):
            passes("a", 3, [4], KeyError())
        passes("a", 3, [4])
        passes("a", 4, [5])
        run.end_sequence("a", [1, 2, 3, 4, 5, 6])
    prompt, answer = tokens_of(tmp_path / "run.h5")
    assert prompt == [1, 2, 3] and answer[:3] == [4, 5, 6]


@pytest.mark.parametrize("again", [[[1, 2, 3, 4, 5]], [[1, 2, 3], [4, 5]], [[1, 2, 3], [4, 5, 6]], [[1, 2, 3, 4, 5, 6]]])
def test_keys_are_computed_again_token_by_token(tmp_path, again):
    with causal(tmp_path / "run.h5") as run:
        passes, start = Passes(run), 0
        for tokens in ([1, 2, 3], [4], [5]):
            passes("a", start, tokens)
            start += len(tokens)
        start = 0
        for tokens in again:
            passes("a", start, tokens)
            start += len(tokens)
        if start == 5:
            passes("a", 5, [6])
        passes("a", 6, [7])
        run.end_sequence("a", [1, 2, 3, 4, 5, 6, 7, 8])
    assert tokens_of(tmp_path / "run.h5") == ([1, 2, 3], [4, 5, 6, 7, 8])
    steps = blockscope.open(tmp_path / "run.h5").tree["steps"]
    assert steps["kind"].values.tolist() == [0, 1, 1, 1, 1] and steps["block_start"].values[1:].tolist() == [3, 4, 5, 6]


@pytest.mark.parametrize("chunks", [[8], [4, 4]])
def test_a_stated_prompt_may_hold_the_mask(tmp_path, model, chunks):
    prompt = [1, 2, MASK, 4, 5, 6, 7, 8]
    with blockscope.record_engine(model, tmp_path / "run.h5", level="trajectory", **OPTIONS) as run:
        run.begin_sequence("a", prompt=prompt)
        passes, start = Passes(run), 0
        for length in chunks:
            passes("a", start, prompt[start:start + length])
            start += length
        with pytest.raises(blockscope.UsageError, match="the logits of request 'a', which denoises"):
            passes("a", 8, [MASK] * 4, rows=[])
        passes("a", 8, [MASK] * 4)
        run.end_sequence("a", [*prompt, 1, 2, 3, 4])
    assert tokens_of(tmp_path / "run.h5") == (prompt, [1, 2, 3, 4])


def test_the_example(tmp_path):
    """docs/examples/engine_adapter.py: what it writes."""
    example = pathlib.Path(__file__).parents[2] / "docs" / "examples" / "engine_adapter.py"
    subprocess.run([sys.executable, example, tmp_path / "run.h5"], check=True, env=os.environ)
    trace = blockscope.open(tmp_path / "run.h5")
    prompts = {one.name: one.prompt.tolist() for one in trace.sequences}
    assert trace.complete and prompts == {"first": list(range(8)), "second": [30, 31, 32, 33]}
    passes, sequences = (trace.tree["steps/" + name].values for name in ("pass", "sequence"))
    assert len(set(passes)) == 12 and {0, 1} == set(sequences) and len(passes) == 18
    assert np.isfinite(trace.tree["attention/external"].values[trace.tree["steps/kind"].values == 1]).all()


def test_arguments_of_record_engine(tmp_path, model):
    with pytest.raises(blockscope.UsageError, match="layers: expected 0 to 2, got 3"):
        blockscope.record_engine(model, tmp_path / "run.h5", layers=[3], **OPTIONS)
    with pytest.raises(blockscope.UsageError, match="model: expected a torch.nn.Module, got str"):
        blockscope.record_engine("model", tmp_path / "run.h5", **OPTIONS)
    with pytest.raises(blockscope.UsageError, match="Linear: model.config: expected num_hidden_layers, found none"):
        blockscope.record_engine(torch.nn.Linear(1, 1), tmp_path / "run.h5", mask_token_id=1, **OPTIONS)
    (tmp_path / "run.h5").touch()
    with pytest.raises(blockscope.UsageError, match="exists already"):
        blockscope.record_engine(model, tmp_path / "run.h5", **OPTIONS).__enter__()
