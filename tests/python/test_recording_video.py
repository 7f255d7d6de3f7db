"""Recorded videos: every value of the trace against numpy's in float64 from what the model's own watcher saw
(video_reference.py), and the loop's result against the loop without a recording."""

import h5py
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the tests' Python has no torch (scripts/setup.sh --tests)")

import blockscope  # noqa: E402
import video_models as videos  # noqa: E402
import wan_like_models as wan  # noqa: E402
from blockscope.recording import kernels  # noqa: E402
from conftest import command  # noqa: E402
from video_reference import check_rows  # noqa: E402

SHAPE = videos.Shape()
BLOCK = videos.CHUNK * SHAPE.frame
SINKS = SHAPE.sinks * SHAPE.frame
TIMESTEPS = [*videos.TIMESTEPS, 0.0]


def watched(model):
    calls = []
    videos.watch(model, lambda *call: calls.append(call))
    return calls


def causal(path, shape=SHAPE, frames=21, batch=1, branches=None, **options):
    """The loop in LongLive's calls, recorded and not: calls, recorded result, plain result."""
    model = videos.CausalVideoModel(shape)
    noise, context, other = videos.inputs(shape, frames, batch)
    negative = other if branches else None
    plain = videos.causal_loop(model, noise, context, negative)
    calls = watched(model)
    options = {"block_length": BLOCK, "sinks": SINKS, "array_type": "f32", **options}
    with blockscope.record(model, path, **options) as run:
        tell = (lambda start, timestep, branch: run.step(branch=branch)) if branches else None
        result = videos.causal_loop(model, noise, context, negative, tell=tell)
    assert torch.equal(plain, result)
    return calls


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("level", ["outputs", "summary"])
def test_values_of_sinks_and_a_rolling_window(tmp_path, level, in_place):
    path = tmp_path / "run.h5"
    calls = causal(path, videos.Shape(in_place=in_place), level=level)
    steps = check_rows(path, calls, BLOCK, SHAPE.layers)
    assert steps["kind"].tolist() == [1, 1, 1, 1, 2] * 7
    assert steps["step"].tolist() == [1, 2, 3, 4, 5] * 7
    assert steps["block"].tolist() == [block for block in range(7) for _ in range(5)]
    assert steps["block_start"].tolist() == [block * BLOCK for block in range(7) for _ in range(5)]
    assert np.allclose(steps["timestep"], TIMESTEPS * 7)
    assert steps["context_length"].tolist() == [n * BLOCK for n in (0, 1, 2, 3, 3, 3, 3) for _ in range(5)]
    assert "external" not in h5py.File(path)["attention"] or level == "outputs"


def test_values_without_a_window(tmp_path):
    path = tmp_path / "run.h5"
    calls = causal(path, videos.Shape(window=0), frames=12, sinks=None)
    steps = check_rows(path, calls, BLOCK, SHAPE.layers)
    assert steps["context_length"].tolist() == steps["block_start"].tolist()


@pytest.mark.parametrize("rows, wanted", [
    (None, range(36)), (4, [0, 9, 18, 27]), ([5, 3, 35], [3, 5, 35]), (np.array([7]), [7])])
def test_rows(tmp_path, rows, wanted):
    """Arrays hold the chosen rows; the sums are of all rows whatever they are."""
    path = tmp_path / "run.h5"
    calls = causal(path, frames=9, rows=rows)
    check_rows(path, calls, BLOCK, SHAPE.layers)
    with h5py.File(path) as file:
        assert file["/block_position"][:].tolist() == list(wanted)
        assert file.attrs["block_tokens"] == BLOCK and file.attrs["block_length"] == len(wanted)
        assert file.attrs["format_version"] == 3


@pytest.mark.parametrize("pair_steps", [1, 2, 12])
def test_comparisons_end_at_pair_steps(tmp_path, pair_steps):
    path = tmp_path / "run.h5"
    calls = causal(path, frames=6, level="summary", pair_steps=pair_steps)
    check_rows(path, calls, BLOCK, SHAPE.layers)
    assert h5py.File(path)["/summary/step_pair"].shape[1] == pair_steps


def test_values_without_the_library(tmp_path, monkeypatch):
    """As on a GPU: torch's operators compute."""
    monkeypatch.setattr(kernels, "loaded", lambda: False)
    path = tmp_path / "run.h5"
    check_rows(path, causal(path, frames=9), BLOCK, SHAPE.layers)
    assert blockscope.open(path).run["kernels"] == "torch"


def test_values_of_bfloat16(tmp_path):
    """Kept pairs are in the model's type, as in FlashBlock's released code, so small errors are its rounding."""
    model, path = videos.CausalVideoModel(SHAPE).to(torch.bfloat16), tmp_path / "run.h5"
    noise, context, _ = videos.inputs(SHAPE, 9, dtype=torch.bfloat16)
    calls = watched(model)
    with blockscope.record(model, path, block_length=BLOCK, array_type="f32"):
        videos.causal_loop(model, noise, context)
    check_rows(path, calls, BLOCK, SHAPE.layers, tolerance=5e-3, errors=False)


def test_large_blocks_keep_64_rows(tmp_path):
    shape = videos.Shape(height=8, width=5)
    path = tmp_path / "run.h5"
    calls = causal(path, shape, frames=6, block_length=120, sinks=120)
    check_rows(path, calls, 120, SHAPE.layers)
    with h5py.File(path) as file:
        assert file["/block_position"][:].tolist() == [i * 120 // 64 for i in range(64)]


def test_a_batch(tmp_path):
    path = tmp_path / "run.h5"
    calls = causal(path, frames=9, batch=2)
    for slot in range(2):
        check_rows(path, calls, BLOCK, SHAPE.layers, slot, slot)


def test_two_branches_are_two_sequences(tmp_path):
    path = tmp_path / "run.h5"
    calls = causal(path, frames=9, branches=True)
    layers = SHAPE.layers
    for branch in range(2):
        own = [call for i, call in enumerate(calls) if i // layers % 2 == branch]
        check_rows(path, own, BLOCK, layers, sequence=branch)
    trace = blockscope.open(path)
    assert [one.name for one in trace.sequences] == ["", "branch 1"]


def test_two_videos_are_two_sequences(tmp_path):
    model, path = videos.CausalVideoModel(SHAPE), tmp_path / "run.h5"
    noise, context, other = videos.inputs(SHAPE, 6)
    calls = watched(model)
    with blockscope.record(model, path, block_length=BLOCK, array_type="f32") as run:
        run.begin_sequence(name="first")
        videos.causal_loop(model, noise, context)
        videos.causal_loop(model, noise, other)
    for sequence, first in ((0, 0), (1, 30)):
        check_rows(path, calls[first:first + 30], BLOCK, SHAPE.layers, sequence=sequence)
    assert [one.name for one in blockscope.open(path).sequences] == ["first", ""]


@pytest.mark.parametrize("doubled", [False, True])
def test_a_model_that_is_told_no_position(tmp_path, doubled):
    """In the call of diffusers; guidance doubles the batch, of which one half is recorded."""
    shape = videos.Shape(window=0)
    model, path = wan.WanLikeModel(shape), tmp_path / "run.h5"
    noise, context, negative = videos.inputs(shape, 12)
    negative = negative if doubled else None
    plain = wan.wan_like_loop(model, noise, context, negative, doubled)
    calls = watched(model)
    with blockscope.record(model, path, block_length=BLOCK, array_type="f32",
                           batch_rows=[0] if doubled else None) as run:
        result = wan.wan_like_loop(model, noise, context, negative, doubled,
                                   tell=lambda start, timestep, branch: run.step(start=start))
    assert torch.equal(plain, result)
    check_rows(path, calls, BLOCK, shape.layers)
    facts = blockscope.open(path).run
    assert facts["skipped_attention"] == [f"blocks.{i}.attn2: scaled_dot_product_attention" for i in range(3)]


def test_a_rolling_cache_that_is_stated(tmp_path):
    """The keys are stated pass by pass; the same rows follow from sinks=."""
    shape, paths = videos.Shape(window=6), [tmp_path / "stated.h5", tmp_path / "sinks.h5"]
    noise, context, _ = videos.inputs(shape, 15)
    sinks, last = shape.sinks * shape.frame, 3 * shape.frame

    def external(start):
        return [(0, sinks), (start - last, start)] if start > sinks + last else [(0, start)]

    for path, options in zip(paths, ({}, {"sinks": sinks})):
        model = wan.WanLikeModel(shape)
        calls = watched(model)
        with blockscope.record(model, path, block_length=BLOCK, array_type="f32", **options) as run:
            def tell(start, timestep, branch):
                run.step(start=start, external=None if options else external(start))

            wan.wan_like_loop(model, noise, context, tell=tell)
        check_rows(path, calls, BLOCK, shape.layers)
    assert "the traces are equal" in command("diff", *paths, "--ignore-timing")


def test_a_whole_video_is_one_block(tmp_path):
    """A model without chunks: no external keys, every step is one of a single block."""
    shape = videos.Shape()
    model, path = wan.WanLikeModel(shape), tmp_path / "run.h5"
    noise, context, _ = videos.inputs(shape, 3)
    calls = watched(model)
    with torch.no_grad(), blockscope.record(model, path, block_length=BLOCK, array_type="f32",
                                            bidirectional=True):
        for timestep in videos.TIMESTEPS:
            model(noise, torch.tensor([timestep]), context)
    steps = check_rows(path, calls, BLOCK, shape.layers)
    assert steps["step"].tolist() == [1, 2, 3, 4] and not steps["context_length"].any()


def test_a_list_inside_the_layers_is_not_that_of_the_layers(tmp_path):
    """As the feed-forward of diffusers' Wan, which has as many modules as the model has layers."""
    shape = videos.Shape(window=0)
    model, path = wan.WanLikeModel(shape), tmp_path / "run.h5"
    for block in model.blocks:
        block.ffn = Fold(block.ffn)
    noise, context, _ = videos.inputs(shape, 3)
    calls = watched(model)
    with torch.no_grad(), blockscope.record(model, path, block_length=BLOCK, array_type="f32", bidirectional=True):
        model(noise, torch.tensor([1000.0]), context)
    check_rows(path, calls, BLOCK, shape.layers)


class Fold(torch.nn.Module):
    def __init__(self, modules):
        super().__init__()
        self.net = torch.nn.ModuleList(modules)

    def forward(self, x):
        for module in self.net:
            x = module(x)
        return x


def test_a_clean_pass_with_context_noise(tmp_path):
    model, path = videos.CausalVideoModel(SHAPE), tmp_path / "run.h5"
    noise, context, _ = videos.inputs(SHAPE, 6)
    with blockscope.record(model, path, level="trajectory", block_length=BLOCK, context_noise=100.0):
        videos.causal_loop(model, noise, context, context_noise=100.0)
    with h5py.File(path) as file:
        assert file["/steps/kind"][:].tolist() == [1, 1, 1, 1, 2] * 2


def test_given_frames_are_a_prefill(tmp_path):
    """A clean pass over a position that was not denoised writes keys of given frames."""
    shape = videos.Shape(window=0)
    model, path = videos.CausalVideoModel(shape), tmp_path / "run.h5"
    noise, context, _ = videos.inputs(shape, 6)
    kv, crossattn = videos.new_caches(model, 6, 1)
    calls = watched(model)
    with torch.no_grad(), blockscope.record(model, path, block_length=BLOCK, array_type="f32"):
        for start, timestep in ((0, 0.0), (BLOCK, 1000.0), (BLOCK, 500.0), (BLOCK, 0.0)):
            model(noise[:, :, :3], t=torch.full((1, 3), timestep), context=context, seq_len=1, kv_cache=kv,
                  crossattn_cache=crossattn, current_start=start)
    steps = check_rows(path, calls, BLOCK, shape.layers)
    assert steps["kind"].tolist() == [0, 1, 1, 2] and steps["step"].tolist() == [0, 1, 2, 3]
    assert steps["block_start"].tolist() == [0, BLOCK, BLOCK, BLOCK]


class Wrapper(torch.nn.Module):
    """As LongLive's: other names, the frames before the channels, the position in tokens or in frames."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, noisy_image_or_video, conditional_dict, timestep, kv_cache=None, crossattn_cache=None,
                current_start=None, start_frame=None):
        start = start_frame * SHAPE.frame if current_start is None else current_start
        return self.model(noisy_image_or_video.transpose(1, 2), t=timestep, seq_len=32760, kv_cache=kv_cache,
                          context=conditional_dict["prompt_embeds"], crossattn_cache=crossattn_cache,
                          current_start=start).transpose(1, 2)


@pytest.mark.parametrize("how", ["tokens", "frames"])
def test_a_wrapper_like_long_lives(tmp_path, how):
    model = videos.CausalVideoModel(SHAPE)
    outer, path = Wrapper(model), tmp_path / "run.h5"
    noise, context, _ = videos.inputs(SHAPE, 6, batch=2)
    calls = watched(model)

    def call(x, t, context, seq_len, kv_cache, crossattn_cache, current_start, cache_start):
        place = {"start_frame": current_start // SHAPE.frame} if how == "frames" else {"current_start": current_start}
        return outer(x.transpose(1, 2), {"prompt_embeds": context}, t, kv_cache, crossattn_cache,
                     **place).transpose(1, 2)

    call.shape = SHAPE
    with blockscope.record(outer, path, block_length=BLOCK, array_type="f32", decoder_layers=model.blocks,
                           tokens_per_frame=SHAPE.frame):
        videos.causal_loop(call, noise, context)
    for slot in range(2):
        steps = check_rows(path, calls, BLOCK, SHAPE.layers, slot, slot)
        assert steps["block_start"].tolist() == [0] * 5 + [BLOCK] * 5
    facts = blockscope.open(path).model
    assert facts["modality"] == "continuous" and facts["frames_per_block"] == videos.CHUNK
