"""Level `full` and the filters of blockscope.record(). The judge is `blockscope capture` replaying the same run with
the same options."""

import subprocess

import h5py
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the tests' Python has no torch (scripts/setup.sh --tests)")
pytest.importorskip("transformers", reason="the tests' Python has no transformers (scripts/setup.sh --tests)")

import blockscope  # noqa: E402
import recorded_loops as loops  # noqa: E402
import recorded_models as models  # noqa: E402
from recording_checks import BINARY, PROMPT, check_array, compare_with_capture, rows_of  # noqa: E402


def capture(name, path, theirs, cache, *options):
    done = subprocess.run(
        [BINARY, "capture", str(models.MODELS / name), "--replay", str(path), "--predictions", "all", "--dtype",
         "float32", "--block-length",
         "16", "--cache", cache, "-o", str(theirs), *map(str, options)],
        capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


LOOPS = [("needle", models.decode_blocks, "commit"), ("needle-bidirectional", models.decode_canvas, "none"),
         ("needle-bidirectional", models.decode_prefix_cache, "prefix"),
         ("needle-bidirectional", models.decode_dual_cache, "dual")]


@pytest.mark.parametrize("name, decode, cache", LOOPS)
def test_full_is_what_capture_writes(tmp_path, name, decode, cache):
    model = models.PlainModel(name)
    mine, theirs = tmp_path / "mine.h5", tmp_path / "theirs.h5"
    from transformers import AutoTokenizer

    with blockscope.record(model, mine, level="full", block_length=16, gen_length=48, array_type="f32",
                           tokenizer=AutoTokenizer.from_pretrained(models.MODELS / name)) as run:
        state = {"state": lambda start: run.step(start=start)} if cache == "dual" else {}
        run.end_sequence(decode(model, PROMPT, 48, 16, **state))
    capture(name, mine, theirs, cache, "--record", "full", "--array-type", "f32")
    compare_with_capture(mine, theirs)
    with h5py.File(mine) as file:
        assert file["/prefix/position"].shape[0] > 0 or cache == "dual"
        assert np.isfinite(file["/hidden/hidden"][rows_of(file) - 2]).all()


@pytest.mark.parametrize("level", ["sets", "full"])
@pytest.mark.parametrize("name, decode, cache", LOOPS[::2])
def test_filters_are_those_of_capture(tmp_path, name, decode, cache, level):
    model = models.PlainModel(name)
    mine, theirs = tmp_path / "mine.h5", tmp_path / "theirs.h5"
    from transformers import AutoTokenizer

    block, heads = (5, [1, 2]) if name == "needle" else (1, [1, 2, 5])
    normaliser = "prefix+block" if level == "full" else "prefix"
    with blockscope.record(model, mine, level=level, block_length=16, gen_length=48, array_type="f32", layers=[0, 3],
                           heads=heads, steps=[1, 3, 4], blocks=[block], set_normaliser=normaliser,
                           tokenizer=AutoTokenizer.from_pretrained(models.MODELS / name)) as run:
        run.end_sequence(decode(model, PROMPT, 48, 16))
    options = ["--array-type", "f32"] if level == "full" else []
    capture(name, mine, theirs, cache, "--record", level, "--layers", "0,3", "--heads", ",".join(map(str, heads)),
            "--steps", "1,3,4", "--blocks", block, "--set-normaliser", normaliser, *options)
    compare_with_capture(mine, theirs)
    with h5py.File(mine) as file:
        assert file["/head"][:].tolist() == heads
        recorded = file["/steps/recorded"][:rows_of(file)] == 1
        assert recorded.sum() == 3 and set(file["/steps/block"][:rows_of(file)][recorded]) == {block}


def test_full_token_by_token(tmp_path):
    """The keys that a step reads are those that the model's own cache holds, in the way that the format says."""
    recorder = models.CallRecorder()
    model = models.qwen3("judge")
    prompt = torch.tensor([[3, 14, 15, 9, 2, 6]])
    plain = models.decode_tokens(model, prompt, 6)
    recorder.calls.clear()
    path = tmp_path / "run.h5"
    with blockscope.record(model, path, level="full", array_type="f32", set_size=3) as run:
        recorded = models.decode_tokens(model, prompt, 6)
        run.end_sequence(recorded)
    assert torch.equal(plain, recorded)
    with h5py.File(path) as file:
        for row in range(1, rows_of(file)):
            calls = recorder.calls[3 * row:3 * row + 3]
            end = int(file["/prefix/end"][row - 1])
            order = np.argsort(file["/prefix/position"][:end])
            for name, item in (("key", 2), ("value", 3)):
                expected = np.stack([call[item][0].numpy() for call in calls])  # [L, K, N + 1, D]
                stored = file["/prefix/" + name][:end][order].transpose(1, 2, 0, 3)
                check_array(name, stored, expected[:, :, :-1], 1e-6)
                check_array(name, file["/kv/" + name][row], expected[:, :, -1:], 1e-6)
        assert file["/steps/context_length"][1:rows_of(file)].tolist() == [6, 7, 8, 9, 10]


def test_full_without_a_cache_is_refused(tmp_path):
    """The format has no place for keys that a step computes and reads in one pass."""
    model = models.PlainModel("needle")
    mask = model.config.mask_token_id
    ids = torch.tensor([PROMPT[:32] + [mask] * 16])
    with pytest.raises(blockscope.UsageError, match=r"positions 0 to 31, which no pass before it stored.*outputs"):
        with blockscope.record(model, tmp_path / "run.h5", level="full", block_length=16, bidirectional=False):
            model(ids, mask=models.block_causal(48, 16))


def test_wrong_filters_are_named(tmp_path):
    model = models.PlainModel("needle")
    for options, message in (({"heads": [0, 99]}, "heads: expected 0 to 5, got 99"),
                             ({"heads": [6]}, "heads: expected 0 to 5, got 6"),
                             ({"heads": []}, "heads: expected at least one"), ({"blocks": [-1]}, "blocks: expected")):
        with pytest.raises(blockscope.UsageError, match=message):
            with blockscope.record(model, tmp_path / "run.h5", block_length=16, force=True, **options):
                models.decode_blocks(model, PROMPT, 16, 16)


def test_full_of_scattered_rows_is_refused(tmp_path):
    """The format has one range of positions for what a row stored."""
    model = loops.CanvasModel()
    for loop, more in ((loops.replaced, {"extra": (3, 17, 44)}), (loops.left_out, {})):
        with pytest.raises(blockscope.UsageError, match=r"level full: a pass that computes some rows.*outputs"):
            with blockscope.record(model, tmp_path / "run.h5", level="full", block_length=8, force=True):
                loop(model, PROMPT[:21], 24, 8, **more)
