"""Recorded videos: what the inputs of a pass say, and what is asked for where they could mean two things."""

import h5py
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the tests' Python has no torch (scripts/setup.sh --tests)")

import blockscope  # noqa: E402
import video_models as videos  # noqa: E402

SHAPE = videos.Shape(window=0)
FRAME, BLOCK = SHAPE.frame, videos.CHUNK * SHAPE.frame
OPTIONS = {"block_length": BLOCK, "array_type": "f32"}


class Named(torch.nn.Module):
    """A model around a CausalVideoModel, which tells the position under several names."""

    def __init__(self, batch=1):
        super().__init__()
        self.model = videos.CausalVideoModel(SHAPE)
        self.noise, self.context, _ = videos.inputs(SHAPE, 15, batch)
        self.kv, self.crossattn = videos.new_caches(self.model, 15, batch)

    def forward(self, x, t, place, current_start=None, start_frame=None, frame=None):
        return self.model(x, t=t, context=self.context, seq_len=1, kv_cache=self.kv, crossattn_cache=self.crossattn,
                          current_start=place)

    @torch.no_grad()
    def step(self, place, timestep, **told):
        x = self.noise[:, :, :3]
        return self(x, torch.full((len(x), 3), float(timestep)), place, **(told or {"current_start": place}))


def record(path, passes, batch=1, **options):
    model = Named(batch)
    with blockscope.record(model, path, decoder_layers=model.model.blocks, **{**OPTIONS, **options}) as run:
        passes(model.step, run)
    with h5py.File(path) as file:
        return {name: file["/steps"][name][:].tolist() for name in ("sequence", "kind", "block", "block_start", "step")}


def refused(path, words, passes, **options):
    with pytest.raises(blockscope.UsageError, match=words) as error:
        record(path, passes, **options)
    assert "HINT" in str(error.value)


# --- steps ------------------------------------------------------------------------------------------------------------


def test_a_timestep_that_rises_from_0_is_asked_about(tmp_path):
    words = "position 0 begins with timestep 0.5 after a clean pass there.*HINT.*denoise.*commit.*prefill"
    refused(tmp_path / "run.h5", words, lambda step, run: (step(0, 0), step(0, 0.5)))


def test_a_timestep_that_rises_from_0_is_stated(tmp_path):
    def passes(step, run):
        for start in (0, BLOCK):
            for timestep, kind in ((0, "denoise"), (0.5, "denoise"), (1, "commit")):
                run.step(kind=kind)
                step(start, timestep)

    found = record(tmp_path / "run.h5", passes)
    assert found["kind"] == [1, 1, 2] * 2 and found["step"] == [1, 2, 3] * 2 and found["block"] == [0] * 3 + [1] * 3


def test_given_frames_of_the_block_itself_are_stated(tmp_path):
    found = record(tmp_path / "run.h5", lambda step, run: (run.step(kind="prefill"), step(0, 0), step(0, 900)))
    assert found["kind"] == [0, 1] and found["sequence"] == [0, 0]


def test_each_video_begins_with_given_frames(tmp_path):
    def passes(step, run):
        for _ in range(2):
            for start, timestep in ((0, 0), (BLOCK, 0), (2 * BLOCK, 900), (2 * BLOCK, 0), (3 * BLOCK, 900)):
                step(start, timestep)

    found = record(tmp_path / "run.h5", passes)
    assert found["sequence"] == [0] * 5 + [1] * 5 and found["kind"] == [0, 0, 1, 2, 1] * 2
    assert found["block"] == [-1, -1, 0, 0, 1] * 2
    assert found["block_start"] == [0, BLOCK, 2 * BLOCK, 2 * BLOCK, 3 * BLOCK] * 2


def test_keys_that_are_written_anew_are_of_the_same_video(tmp_path):
    """After a video without given frames, or where it is stated."""
    found = record(tmp_path / "run.h5", lambda step, run: (
        step(0, 900), step(0, 0), step(BLOCK, 900), step(0, 0), step(2 * BLOCK, 900)))
    assert found["sequence"] == [0] * 5 and found["kind"] == [1, 2, 1, 0, 1]
    found = record(tmp_path / "other.h5", lambda step, run: (
        step(0, 0), step(BLOCK, 900), run.step(kind="prefill"), step(0, 0), step(2 * BLOCK, 900)))
    assert found["sequence"] == [0] * 4 and found["kind"] == [0, 1, 0, 1]


# --- position ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("told", [
    {"current_start": torch.tensor([BLOCK, BLOCK])}, {"current_start": [BLOCK, BLOCK]},
    {"current_start": np.int64(BLOCK)}, {"current_start": torch.tensor(BLOCK), "frame": torch.zeros(1, 3, 4, 3)},
    {"start_frame": torch.tensor([3])}, {"frame": 3}, {"start_frame": torch.rand(2, 3, 4, 3), "frame": 3}])
def test_positions(tmp_path, told):
    found = record(tmp_path / "run.h5", lambda step, run: (step(0, 900), step(BLOCK, 900, **told)), batch=2,
                   tokens_per_frame=FRAME)
    assert found["block_start"] == [0, 0, BLOCK, BLOCK]


@pytest.mark.parametrize("told, words", [
    ({"current_start": torch.tensor([0, BLOCK])}, f"current_start: expected a whole number .*got 0, {BLOCK}"),
    ({"current_start": 36.5}, "current_start: expected a whole number .*got 36.5"),
    ({"current_start": torch.tensor(36.0)}, r"current_start: .*got float32 \[\]"),
    ({"current_start": -BLOCK}, f"current_start: .*got -{BLOCK}"), ({"start_frame": -3}, "start_frame: .*got -3"),
    ({"start_frame": torch.tensor([0, 3])}, "start_frame: .*got 0, 3"),
    ({"frame": torch.zeros(3, 4, 3)}, r"frame: .*got float32 \[3, 4, 3\]. HINT: .*run.step.*start=")])
def test_positions_that_are_none(tmp_path, told, words):
    refused(tmp_path / "run.h5", words, lambda step, run: step(0, 900, **told), batch=2, tokens_per_frame=FRAME)


def test_positions_of_a_part_of_the_batch(tmp_path):
    found = record(tmp_path / "run.h5", lambda step, run: step(0, 900, current_start=[0, 7]), batch=2, batch_rows=[0])
    assert found["block_start"] == [0]


def test_a_picture_of_a_whole_video(tmp_path):
    found = record(tmp_path / "run.h5", lambda step, run: step(0, 900, frame=torch.zeros(1, 3, 4, 3)),
                   bidirectional=True)
    assert found["block_start"] == [0]


# --- sequences and modules --------------------------------------------------------------------------------------------


class Unbatched(Named):
    def forward(self, x, t, place, current_start=None):
        return super().forward(x[None], t, place)[0]

    def step(self, place, timestep):
        return self(self.noise[0, :, :3], torch.full((1, 3), float(timestep)), place, current_start=place)


@pytest.mark.parametrize("applies", [False, True])
@torch.no_grad()
def test_a_latent_without_a_batch(tmp_path, applies):
    model = Unbatched()
    options = {"block_length": BLOCK, "decoder_layers": model.model.blocks}
    words = "attends with 1 sequences, expected 4, the latent's first dimension. HINT: .*batch first"
    with pytest.raises(blockscope.UsageError, match=words):
        with (blockscope.apply(model, "flashblock", **options) if applies
              else blockscope.record(model, tmp_path / "run.h5", **options)):
            model.step(0, 900)
            model.step(0, 500)


class Nested(torch.nn.Module):
    """Cross-attention to the text and, in a module of its own, to a picture, as in Wan's image-to-video model."""

    def __init__(self, own):
        super().__init__()
        self.own, self.image_attn = own, Picture()

    def forward(self, x, context, cache=None):
        q = self.own.split(x)
        return self.image_attn(q).flatten(2) + videos.attend(q, q, q).flatten(2) + self.own(x, context, cache)


class Picture(torch.nn.Module):
    def forward(self, q):
        return videos.attend(q, q[:, :2], q[:, :2])


def test_cross_attention_within_cross_attention(tmp_path):
    """The outer module still runs when the inner one has ended."""
    model = Named()
    for block in model.model.blocks:
        block.cross_attn = Nested(block.cross_attn)
    with blockscope.record(model, tmp_path / "run.h5", decoder_layers=model.model.blocks, **OPTIONS):
        model.step(0, 900)
    skipped = blockscope.open(tmp_path / "run.h5").run["skipped_attention"]
    name = "model.blocks.0.cross_attn"
    assert skipped[:2] == [f"{name}.image_attn: scaled_dot_product_attention",
                           f"{name}: scaled_dot_product_attention"]
