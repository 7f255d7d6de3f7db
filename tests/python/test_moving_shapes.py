"""The shipped video model (models/moving-shapes): its cache against attention with a mask, and what it draws."""

import pathlib
import sys

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")

ROOT = pathlib.Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs" / "training"))

import moving_shapes as shapes  # noqa: E402
import moving_shapes_model  # noqa: E402


@pytest.fixture(scope="module")
def model():
    return shapes.load(ROOT / "models" / "moving-shapes")


def masked(self, q, k, v):
    """Teacher-forced attention from its definition: one mask over both copies of the video's tokens."""
    config = self.config
    frame = torch.arange(config.num_frames).repeat_interleave(config.frame_tokens).repeat(2)
    noisy = torch.arange(2).repeat_interleave(len(frame) // 2)
    chunk = frame // config.chunk_frames
    start = (chunk * config.chunk_frames)[:, None]  # of the query's chunk
    recent = config.window_frames - config.sink_frames - config.chunk_frames
    past = (frame < start) & ((frame < config.sink_frames) | (frame >= start - recent)) & (noisy == 0)
    own = (chunk[:, None] == chunk) & (noisy[:, None] == noisy)
    q, k, v = (part.transpose(1, 2) for part in (q, k, v))
    result = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=past | own)
    return result.transpose(1, 2).flatten(2)


@torch.no_grad()
def test_chunks_over_the_cache_equal_one_masked_pass(model, monkeypatch):
    config = model.config
    captions, true = shapes.batch(2, config.num_frames, seed=1)
    noise = torch.randn(true.shape, generator=torch.Generator().manual_seed(1))
    timestep = torch.tensor([1000., 750., 500., 250., 900., 100., 600.]).repeat_interleave(3).repeat(2, 1)
    noisy, none = shapes.add_noise(true, noise, timestep), torch.zeros_like(timestep)
    context, both = model.encode(shapes.words_of(captions)), torch.cat([none, timestep], 1)
    trained = model(torch.cat([true, noisy], 1), both, context)
    monkeypatch.setattr(moving_shapes_model.SelfAttention, "teacher_forced", masked)
    wanted = model(torch.cat([true, noisy], 1), both, context)
    torch.testing.assert_close(trained, wanted, rtol=0, atol=1e-4)
    cache = model.new_cache(2)
    for first in range(0, config.num_frames, config.chunk_frames):
        for part, times, offset in ((noisy, timestep, config.num_frames), (true, none, 0)):
            got = model(part[:, first:first + 3], times[:, first:first + 3], context, kv_cache=cache,
                        current_start=first * config.frame_tokens)
            torch.testing.assert_close(got, wanted[:, offset + first:offset + first + 3], rtol=0, atol=1e-4)
    assert int(cache[0]["global_end_index"]) == config.num_frames * config.frame_tokens
    assert int(cache[0]["local_end_index"]) == config.window_frames * config.frame_tokens


@torch.no_grad()
def test_a_chunk_out_of_order_is_refused(model):
    chunk, tokens = torch.zeros(1, 3, 3, shapes.SIZE, shapes.SIZE), 3 * model.config.frame_tokens
    context = model.encode(shapes.words_of(torch.zeros(1, 4, dtype=torch.long)))
    with pytest.raises(ValueError, match=f"expected 0 .* found {tokens}"):
        model(chunk, torch.zeros(1, 3), context, kv_cache=model.new_cache(1), current_start=tokens)


def test_the_score_tells_the_truth_from_other_videos():
    captions, videos = shapes.batch(16, 21, seed=2)
    for choices, frames in zip(captions.tolist(), videos):
        prompt = shapes.prompt_of(choices)
        assert shapes.parse(prompt) == choices
        assert shapes.score(frames, prompt) == 1
        for i, words in enumerate(shapes.CAPTION[:2]):  # another colour, another shape
            other = [*choices[:i], (choices[i] + 1) % len(words), *choices[i + 1:]]
            assert shapes.score(frames, shapes.prompt_of(other)) == 0
        assert shapes.score(frames[:1].repeat(21, 1, 1, 1), prompt) < 0.5  # a shape that stands still
        assert shapes.score(torch.zeros_like(frames) - 1, prompt) == 0


def test_a_prompt_without_a_colour_is_refused():
    with pytest.raises(ValueError, match="expected one of red, .* found 0 of them"):
        shapes.parse("a circle at left moving right")


def test_the_shipped_model_draws_what_the_prompt_says(model):
    prompts = ["a red circle at left moving right", "a blue square at top-right moving down-left",
               "a green triangle at middle moving up", "a cyan circle at bottom moving up-left"]
    scores = [shapes.score(frames, prompt) for frames, prompt in zip(shapes.generate(model, prompts), prompts)]
    assert sum(scores) / len(scores) > 0.75, scores
