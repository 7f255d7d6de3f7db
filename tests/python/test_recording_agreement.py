"""Recordings of numbers that aren't finite: a NaN in one of two results is a difference, and one in both is none."""

import math

import h5py
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the tests' Python has no torch (scripts/setup.sh --tests)")

import blockscope  # noqa: E402
import recorded_models as models  # noqa: E402
import video_models as videos  # noqa: E402
from blockscope.recording import agreement, large_blocks, passes  # noqa: E402

SHAPE = videos.Shape(window=0)
BLOCK = videos.CHUNK * SHAPE.frame
SIZE = 8


@pytest.mark.parametrize("merged, used, wanted", [
    ([1, 2, 4], [1, 2, 4], 0), ([1, 2, 3], [1, 2, 4], 0.25), ([math.nan, 2, 4], [1, 2, 4], math.inf),
    ([1, 2, 4], [math.nan, 2, 4], math.inf), ([math.nan, 2, 3], [math.nan, 2, 4], 0.25),
    ([math.nan] * 3, [math.nan] * 3, 0), ([math.inf, -math.inf, 4], [math.inf, -math.inf, 4], 0),
    ([math.inf, 2, 4], [-math.inf, 2, 4], math.inf), ([math.inf, 2, 4], [1, 2, 4], math.inf), ([0, 0], [0, 0], 0)])
def test_differences(merged, used, wanted):
    found = agreement.difference(torch.tensor(merged, dtype=torch.float32), torch.tensor(used, dtype=torch.float32))
    assert found == wanted
    if wanted == 0:
        agreement.require(found, torch.float32, "here")
    else:
        with pytest.raises(blockscope.UsageError, match="here: .*differs from what the model got"):
            agreement.require(found, torch.float32, "here")
    with pytest.raises(blockscope.UsageError):
        agreement.require(math.nan, torch.float32, "here")


@torch.no_grad()
def record(path, attend):
    model = videos.CausalVideoModel(SHAPE)
    noise, context, _ = videos.inputs(SHAPE, 6)
    kv, crossattn = videos.new_caches(model, 6, 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(videos, "attend", attend)
        with blockscope.record(model, path, level="summary", block_length=BLOCK, array_type="f32"):
            for start, timestep in ((0, 900), (0, 0), (BLOCK, 900), (BLOCK, 500)):
                model(noise[:, :, :3], t=torch.full((1, 3), float(timestep)), context=context, seq_len=1, kv_cache=kv,
                      crossattn_cache=crossattn, current_start=start)


@pytest.mark.parametrize("head", range(SHAPE.heads))
def test_a_large_block_that_gives_nan_for_a_number(tmp_path, monkeypatch, head):
    own = large_blocks._split

    def split(*args):
        found = own(*args)
        if args[-2] == head:
            found[0][2] = math.nan
        return found

    monkeypatch.setattr(large_blocks, "_split", split)
    with pytest.raises(blockscope.UsageError, match="blocks.0: .*differs from what the model got by inf"):
        record(tmp_path / "run.h5", videos.attend)


def test_rows_that_are_not_finite_are_counted(tmp_path):
    """5 rows of the second head see NaN; the sums have the others."""
    own, path = videos.attend, tmp_path / "run.h5"

    def attend(q, k, v):
        if k.shape[1] > BLOCK:
            q = q.clone()
            q[:, 3:8, 1] = math.nan
        return own(q, k, v)

    record(path, attend)
    with h5py.File(path) as file:
        pairs, steps = file["/summary/step_pair"][:4], file["/steps/step"][:4]
        kept = file["/summary/kept_pair"][:4]
    assert steps.tolist() == [1, 2, 1, 2]
    first = pairs[3, 0, 0]  # [head, sum] of the first layer, with step 1
    assert first[:, 0].tolist() == [BLOCK, BLOCK - 5, BLOCK, BLOCK] and np.isfinite(first).all()
    assert kept[3, 0, 0, :, 1, 0].tolist() == first[:, 0].tolist()


def test_a_block_of_tokens_that_gives_nan_for_a_number(tmp_path, monkeypatch):
    own = passes.split_attention

    def split(*args, **options):
        out, *parts = own(*args, **options)
        return out.index_fill(1, torch.tensor([0]), math.nan), *parts

    monkeypatch.setattr(passes, "split_attention", split)
    model = models.PlainModel("needle")
    with pytest.raises(blockscope.UsageError, match="layers.0: .*differs from what the model got by inf"):
        with blockscope.record(model, tmp_path / "run.h5", block_length=SIZE):
            models.decode_blocks(model, list(range(1, 25)), SIZE, SIZE)
