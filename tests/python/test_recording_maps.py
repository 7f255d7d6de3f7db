"""blockscope.record(maps=...): /map/weight against a float64 softmax of the stored queries and keys and of those that
the model got, `blockscope capture --record-maps`, and Trace.attention_map of a trace without stored keys."""

import subprocess

import attention_math as am
import h5py
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the tests' Python has no torch (scripts/setup.sh --tests)")
pytest.importorskip("transformers", reason="the tests' Python has no transformers (scripts/setup.sh --tests)")

import blockscope  # noqa: E402
import recorded_loops as loops  # noqa: E402
import recorded_models as models  # noqa: E402
from recording_checks import BINARY, MASK, PROMPT, SIZE, Kept, compare_with_capture, rows_of  # noqa: E402

SHORT = PROMPT[:37]
HALF = dict(rtol=2 ** -10, atol=1e-6)  # float16; its smallest numbers are 6e-8
LOOPS = {"blocks": ("needle", models.decode_blocks, "commit"),
         "canvas": ("needle-bidirectional", models.decode_canvas, "none"),
         "prefix": ("needle-bidirectional", models.decode_prefix_cache, "prefix"),
         "dual": ("needle-bidirectional", models.decode_dual_cache, "dual")}


def weights_of(scores):
    return np.exp(scores - np.logaddexp.reduce(scores, -1)[..., None])


def stored_weights(file, row, slot):
    """Positions [N + B] and weights [H, B, N + B] of a row of level full, by the rules of docs/trace_format.md."""
    start, size = int(file["/steps/block_start"][row]), file["/query/query"].shape[3]
    both_sides = bool(file["/model"].attrs["bidirectional"])
    last = row if both_sides else row - 1
    end = int(file["/prefix/end"][last]) if last >= 0 else 0
    keys = {int(p): file["/prefix/key"][i, slot] for i, p in enumerate(file["/prefix/position"][:end])}
    outside = sorted(p for p in keys if not start <= p < start + size)
    inside = file["/kv/key"][row, slot].swapaxes(0, 1)
    places = [*outside, *range(start, start + size)]
    all_keys = np.stack([*(keys[p] for p in outside), *inside]).swapaxes(0, 1).astype(np.float64)
    query = file["/query/query"][row, slot].astype(np.float64)
    return np.array(places), weights_of(am.scores_of(query, all_keys, float(file.attrs["softmax_scale"])))


def record(path, loop, prompt=SHORT, gen_length=32, **options):
    name, decode, _ = LOOPS[loop]
    model = models.PlainModel(name)
    from transformers import AutoTokenizer

    with blockscope.record(model, path, block_length=SIZE, gen_length=gen_length, array_type="f32",
                           tokenizer=AutoTokenizer.from_pretrained(models.MODELS / name), **options) as run:
        more = {"state": lambda start: run.step(start=start)} if loop == "dual" else {}
        run.end_sequence(decode(model, prompt, gen_length, SIZE, **more))


def denoising(file):
    count = rows_of(file)
    return np.flatnonzero((file["/steps/kind"][:count] == 1) & (file["/steps/recorded"][:count] == 1))


@pytest.mark.parametrize("attention", ["observe", "replace"])
@pytest.mark.parametrize("loop", LOOPS)
def test_is_the_softmax_of_the_stored_queries_and_keys(tmp_path, loop, attention):
    record(tmp_path / "run.h5", loop, level="full", attention=attention, maps="layers=1,4;heads=0,3-5")
    with h5py.File(tmp_path / "run.h5") as file:
        assert file["/map_layer"][()].tolist() == [1, 4] and file["/map_head"][()].tolist() == [0, 3, 4, 5]
        positions = 80 if loop == "blocks" else 69  # blocks of 16 from the first token, or from the prompt's end
        assert file["/map/weight"].shape[1:] == (2, 4, SIZE, positions) and file["/map/weight"].dtype == np.float16
        rows = denoising(file)
        assert len(rows) >= 8
        for row in rows:
            for slot, layer in enumerate((1, 4)):
                places, weights = stored_weights(file, row, layer)
                found = file["/map/weight"][row, slot].astype(np.float64)
                np.testing.assert_allclose(found[..., places], weights[[0, 3, 4, 5]], **HALF)
                assert np.isnan(np.delete(found, places, -1)).all()
                assert len(places) > SIZE or row == 0
        others = np.setdiff1d(np.arange(rows_of(file)), rows)
        assert np.isnan(file["/map/weight"][others]).all()


@pytest.mark.parametrize("loop", LOOPS)
def test_a_trace_of_level_summary_is_enough(tmp_path, loop):
    """Trace.attention_map reads /map, and gives what it computes from a trace with queries and keys."""
    record(tmp_path / "low.h5", loop, level="summary", maps={"heads": [0, 3], "steps": "1-2"})
    record(tmp_path / "full.h5", loop, level="full")
    low, full = (blockscope.open(tmp_path / f"{name}.h5") for name in ("low", "full"))
    for choice in (dict(layer=2, head=3, step=2), dict(layer=5, head=0, step=1)):
        ours, theirs = (trace.attention_map(**choice)["attention"] for trace in (low, full))
        assert list(ours.coords["key"].values) == list(theirs.coords["key"].values)
        np.testing.assert_allclose(ours.values, theirs.values, **HALF)
    with pytest.raises(blockscope.TraceError, match="has no recorded weights"):
        low.attention_map(layer=2, head=3, step=3)
    with pytest.raises(blockscope.TraceError, match="the weights of head 1 were not recorded"):
        low.attention_map(layer=2, head=1, step=2)
    done = subprocess.run([BINARY, "analyze", tmp_path / "low.h5", "--matrix", "attention", "--layer", "2", "--csv",
                           "-"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("filters", [
    ("", {}), ("layers=0,5;heads=1-2;steps=1,3", {}),
    ("heads=2", dict(layers=[1, 3], heads=[2, 4], steps=[1, 2], blocks=[1, 3]))])
@pytest.mark.parametrize("loop", LOOPS)
def test_is_what_capture_writes(tmp_path, loop, filters):
    text, options = filters
    mine, theirs = tmp_path / "mine.h5", tmp_path / "theirs.h5"
    if options and loop != "blocks":
        options = {**options, "blocks": [1]}  # there are two
    record(mine, loop, level="sets", maps=text or {}, **options)
    name, _, cache = LOOPS[loop]
    given = [word for option, values in options.items() for word in (f"--{option}", ",".join(map(str, values)))]
    done = subprocess.run(
        [BINARY, "capture", models.MODELS / name, "--replay", mine, "--predictions", "all", "--dtype", "float32",
         "--block-length", str(SIZE), "--cache", cache, "--record", "sets", "-o", theirs, *given,
         "--record-maps", text or "heads=0-5"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    compare_with_capture(mine, theirs)
    with h5py.File(mine) as file:
        assert np.isfinite(file["/map/weight"][()]).any()
    assert blockscope.open(mine).run["map_steps"] == blockscope.open(theirs).run["map_steps"]


@pytest.mark.parametrize("of", [np.array, torch.tensor, tuple])
def test_lists_of_any_kind(tmp_path, of):
    record(tmp_path / "run.h5", "canvas", level="summary", layers=of([4, 1, 3]), steps=of([1, 2]),
           maps={"layers": of([4, 1]), "heads": of([2]), "positions": np.int64(69)})
    with h5py.File(tmp_path / "run.h5") as file:
        assert file["/map_layer"][()].tolist() == [1, 4] and file["/map_head"][()].tolist() == [2]
        assert file["/layer"][()].tolist() == [1, 3, 4]
    record(tmp_path / "one.h5", "canvas", level="summary", layers=3, maps={"layers": torch.tensor(3)})
    assert blockscope.open(tmp_path / "one.h5").layers == [3]


def test_the_default_is_a_row_with_weights(tmp_path):
    record(tmp_path / "run.h5", "blocks", level="summary", maps="layers=1;steps=2")
    trace = blockscope.open(tmp_path / "run.h5")
    blocks = sorted(set(trace.tree["steps/block"].values[trace.tree["steps/step"].values == 2].tolist()))
    assert len(blocks) >= 2
    assert trace.attention_map().identical(trace.attention_map(step=2, block=blocks[0]))
    for block in blocks:
        assert trace.attention_map(block=block).identical(trace.attention_map(step=2, block=block, sequence=0))
    with pytest.raises(blockscope.UsageError):
        trace.attention_map(block=77)
    with pytest.raises(blockscope.TraceError, match="has no recorded weights"):
        trace.attention_map(step=1)
    record(tmp_path / "full.h5", "blocks", level="full", maps="layers=1;steps=2")  # has the weights of every step
    trace = blockscope.open(tmp_path / "full.h5")
    assert trace.attention_map().identical(trace.attention_map(step=1))


def test_masks_and_rows_that_are_left_out(tmp_path):
    """Within the block each query sees only what stands before it; NaN for rows that a pass didn't compute."""
    model = models.PlainModel("needle")
    kept = Kept(model, lambda q, k, v, mask: torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(k.shape[2] - q.shape[2]),
        enable_gqa=True))
    with blockscope.record(model, tmp_path / "causal.h5", block_length=SIZE, gen_length=32, maps="layers=2") as run:
        run.end_sequence(models.decode_blocks(model, SHORT, 32, SIZE))
    with h5py.File(tmp_path / "causal.h5") as file:
        for row in denoising(file):
            q, k, _ = kept.calls[int(file["/steps/pass"][row]) * 6 + 2]
            scores = am.scores_of(q, k, q.shape[-1] ** -0.5)
            unseen = np.arange(k.shape[1]) > k.shape[1] - SIZE + np.arange(SIZE)[:, None]
            found = file["/map/weight"][row, 0].astype(np.float64)
            np.testing.assert_allclose(found[..., :k.shape[1]], weights_of(np.where(unseen, -np.inf, scores)), **HALF)
            assert (found[0, 0, :k.shape[1]] == 0).sum() >= SIZE - 1

    model = loops.CanvasModel()
    with blockscope.record(model, tmp_path / "part.h5", block_length=8, maps={"layers": 1}) as run:
        run.end_sequence(loops.left_out(model, PROMPT[:21], 24, 8))
    missing = 0
    with h5py.File(tmp_path / "part.h5") as file:
        for row in denoising(file):
            found, lse = file["/map/weight"][row, 0], file["/attention/lse_internal"][row, 1]
            assert np.array_equal(np.isnan(found).all(-1), np.isnan(lse))
            assert np.array_equal(np.isnan(found).any(-1), np.isnan(lse))
            np.testing.assert_allclose(np.nansum(found.astype(np.float64), -1)[~np.isnan(lse)], 1, atol=5e-3)
            missing += int(np.isnan(lse).sum())
    assert missing > 0


def test_layers_that_choose_their_rows(tmp_path):
    model = loops.ChoosyModel()
    with blockscope.record(model, tmp_path / "run.h5", block_length=8, maps="heads=1") as run:
        run.end_sequence(loops.choosy(model, PROMPT[:21], 24, 8))
    with h5py.File(tmp_path / "run.h5") as file:
        lse = file["/attention/lse_internal"][denoising(file)][:, :, 1]
        found = file["/map/weight"][denoising(file)][:, :, 0]
        assert np.array_equal(np.isnan(found).all(-1), np.isnan(lse)) and np.isnan(lse).any()
        assert np.isfinite(lse).any()


def test_windows_and_batches(tmp_path):
    """A cache that has dropped the first keys: they are there and have no weight. A batch of two sequences."""
    recorder, model = models.CallRecorder("maps"), models.qwen3("maps")
    prompt = torch.tensor([[5 * i % 90 for i in range(24)], [7 * i % 90 for i in range(24)]])
    with blockscope.record(model, tmp_path / "run.h5", block_length=8, mask_token_id=MASK, gen_length=16,
                           maps="layers=1;heads=3") as run:
        run.end_sequence(models.decode_qwen_blocks(model, prompt, 16, 8, MASK))
    compared = 0
    with h5py.File(tmp_path / "run.h5") as file:
        for row in denoising(file):
            _, q, k, _ = recorder.calls[int(file["/steps/pass"][row]) * 3 + 1]
            slot = int(file["/steps/sequence"][row])
            scores = am.scores_of(q[slot].numpy(), k[slot].numpy(), q.shape[-1] ** -0.5)
            found = file["/map/weight"][row, 0, 0].astype(np.float64)
            np.testing.assert_allclose(found[:, :k.shape[2]], weights_of(scores)[3], **HALF)
            compared += slot
    assert compared > 3
    from blockscope.recording.layer_maps import LayerMap, map_of_row
    from blockscope.recording.steps import Kind, Pass

    weights = torch.rand(1, 2, 4, 3 + 4).half()
    one = Pass(Kind.DENOISE, 10, 4, 2, 10, 1, 10, 0, [True] * 4)
    found = map_of_row([LayerMap(weights, ((7, 10),)), None], 0, one, 2, 16)
    assert torch.equal(found[0, ..., 7:14], weights[0]) and (found[0, ..., :7] == 0).all()
    assert found[0, ..., 14:].isnan().all() and found[1].isnan().all()


def test_token_by_token(tmp_path):
    recorder, model = models.CallRecorder("token-maps"), models.qwen3("token-maps")
    with blockscope.record(model, tmp_path / "run.h5", maps="steps=1", gen_length=7) as run:
        run.end_sequence(models.decode_tokens(model, torch.tensor([[3, 14, 15, 9, 2, 6]]), 7))
    with h5py.File(tmp_path / "run.h5") as file:
        assert file["/map/weight"].shape == (7, 3, 4, 1, 13)
        for row in range(1, 7):
            for layer in range(3):
                _, q, k, _ = recorder.calls[row * 3 + layer]
                found = file["/map/weight"][row, layer, :, 0].astype(np.float64)
                weights = weights_of(am.scores_of(q[0].numpy(), k[0].numpy(), 0.25))[:, 0]
                np.testing.assert_allclose(found[:, :5 + row + 1], weights, **HALF)
                assert np.isnan(found[:, 5 + row + 1:]).all()


def test_sequences_of_several_lengths(tmp_path):
    model = models.PlainModel("needle-bidirectional")
    options = dict(block_length=SIZE, level="summary")

    def two(path, maps, prompts):
        with blockscope.record(model, path, maps=maps, **options) as run:
            for prompt in prompts:
                run.end_sequence(models.decode_canvas(model, prompt, 16, SIZE))

    two(tmp_path / "longest.h5", "layers=1;positions=60", [SHORT, PROMPT[:40]])
    two(tmp_path / "first.h5", "layers=1", [PROMPT[:40], SHORT])
    with h5py.File(tmp_path / "longest.h5") as one, h5py.File(tmp_path / "first.h5") as other:
        assert one.attrs["map_positions"] == 60 and other.attrs["map_positions"] == 56
        places = [np.isfinite(file["/map/weight"][denoising(file)[0], 0, 0, 0]).sum() for file in (one, other)]
        assert places == [53, 56]
    with pytest.raises(blockscope.UsageError, match="maps: expected sequences of at most 53 positions, .* got 56"):
        two(tmp_path / "a.h5", "layers=1", [SHORT, PROMPT[:40]])
    with pytest.raises(blockscope.UsageError, match="maps: the length of the sequence isn't known. HINT: .*gen_length"):
        blocks = models.PlainModel("needle")
        with blockscope.record(blocks, tmp_path / "b.h5", block_length=SIZE, maps={}):
            models.decode_blocks(blocks, SHORT, 16, SIZE)


@pytest.mark.parametrize("maps, options, words", [
    ("layers=9", {}, "maps: layers: expected recorded ones, 0,1,2,3,4,5, got 9"),
    ("layers=1", dict(layers=[0, 3]), "maps: layers: expected recorded ones, 0,3, got 1"),
    ("heads=7", {}, "maps: heads: expected recorded ones, 0,1,2,3,4,5, got 7"),
    ("heads=0-2", dict(heads=[0, 2]), "maps: heads: expected recorded ones, 0,2, got 1"),
    ("steps=3", dict(steps=[1, 2]), "maps: steps: expected recorded ones, 1,2, got 3"),
    ("heads=", {}, "maps: expected layers=, heads=, steps= or positions= with a list such as 0-3,7, got 'heads='"),
    ("keys=1", {}, "got 'keys=1'"), ({"keys": 1}, {}, "got 'keys=1'"),
    ("heads=1;heads=0", {}, "maps: expected heads= once, got it twice"),
    ("steps=0", {}, "maps: steps: expected indices"),
    ("layers=x", {}, "maps: layers: expected a number or a range of numbers, got 'x'"),
    ({"layers": []}, {}, "maps: layers: expected whole numbers"),
    ({"layers": [1.5]}, {}, "maps: layers: expected whole numbers"),
    ({"layers": np.array([1.5, 2])}, {}, "maps: layers: expected whole numbers"),
    ({"layers": np.array([True, False])}, {}, "maps: layers: expected whole numbers"),
    ({"layers": torch.tensor(1.5)}, {}, "maps: layers: expected whole numbers"),
    ("layers=\u0661", {}, "maps: layers: expected a number or a range of numbers, got '\u0661'"),
    ("layers=\udc80", {}, "maps: layers: expected a number"), ("layers=1\0", {}, "maps: layers: expected a number"),
    ({}, dict(layers=np.array([1.5])), "layers: expected whole numbers of at least 0, got array([1.5])"),
    ({}, dict(steps=0), "steps: expected whole numbers of at least 1, got 0"),
    ({}, dict(layers="1"), "layers: expected whole numbers of at least 0, got '1'"),
    ({}, dict(layers=[True]), "layers: expected whole numbers of at least 0, got [True]"),
    ({}, dict(layers=[]), "layers: expected at least one, got none"),
    (7, {}, "maps: expected a text or an object, got 7"),
    ("positions=60,61", {}, "positions: expected one number, got 2"),
    ("positions=8", {}, "maps: expected sequences of at most 8 positions"),
    ({}, dict(level="trajectory"), "maps: does nothing without level=\"summary\" or above. HINT: add that"),
])
def test_what_is_refused(tmp_path, maps, options, words):
    with pytest.raises(blockscope.UsageError) as error:
        record(tmp_path / "run.h5", "canvas", maps=maps, **options)
    assert words in str(error.value) and not (tmp_path / "run.h5").exists()
