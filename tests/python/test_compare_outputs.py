"""What blockscope.compare() makes of a loop's outputs, scores and pictures, and that no cache of theirs stays."""

import base64
import gc
import json
import struct
import weakref

import pytest

torch = pytest.importorskip("torch", reason="the tests' Python has no torch (scripts/setup.sh --tests)")

import applied_videos as video  # noqa: E402
import blockscope  # noqa: E402
import video_models as models  # noqa: E402

REUSE = "flashblock"


def compared(output, *, model=None, prompts=("a cat",), policy=REUSE, **options):
    """output(latent) is what the loop returns."""
    plain, loop, shape = video.made("causal", "rolling")
    noise, context, _ = models.inputs(shape, frames=9)
    options = {"repeats": 1, "replay": False, **options}
    torch.manual_seed(5)
    before = torch.get_rng_state()
    found = blockscope.compare(model or plain, lambda model, prompt: output(loop(model, noise, context)), prompts,
                               policy=policy, block_length=models.CHUNK * shape.frame,
                               sinks=shape.sinks * shape.frame, **options)
    assert torch.equal(torch.get_rng_state(), before)  # the caller's random numbers
    return found


def picture(latent):
    return (latent[0, 0] * 40 + 128).clamp(0, 255).to(torch.uint8)


@pytest.mark.parametrize("output, positions, compares", [
    (lambda x: x.numpy(), 0, True), (picture, 0, True), (lambda x: picture(x).numpy(), 0, True),
    (lambda x: (x * 100).long(), 432, True), (lambda x: (x * 100).long().numpy(), 432, True),
    (lambda x: [x, x], 0, False), (lambda x: {"video": x}, 0, False), (lambda x: [x.numpy()] * 2, 0, False),
    (lambda x: str(x.sum().item()), 0, True)])
def test_kinds_of_outputs(output, positions, compares):
    agreement = compared(output)["settings"][0]["agreement"]
    wanted = [torch.as_tensor(found) for found in outputs_of(output)]
    assert agreement["positions"] == positions
    assert (agreement["sequences"], agreement["identical"]) == (int(compares), 0)
    if positions or not wanted:
        assert agreement["relative_l2"] is None
    else:
        exact, other = (x.double() for x in wanted)
        assert agreement["relative_l2"] == pytest.approx(((other - exact).norm() / exact.norm()).item())


def outputs_of(output):
    """Of both sides, where they are numbers."""
    model, loop, shape = video.made("causal", "rolling")
    noise, context, _ = models.inputs(shape, frames=9)
    exact = output(loop(model, noise, context))
    with blockscope.apply(model, REUSE, block_length=models.CHUNK * shape.frame, sinks=shape.sinks * shape.frame):
        mine = output(loop(model, noise, context))
    return [exact, mine] if hasattr(exact, "shape") else []


@pytest.mark.parametrize("kind", ["tensor", "array"])
def test_a_loop_that_returns_one_buffer(kind):
    buffer = torch.zeros(1, 4, 9, 4, 3)
    found = compared(lambda x: buffer.copy_(x) if kind == "tensor" else buffer.copy_(x).numpy())
    agreement = found["settings"][0]["agreement"]
    assert agreement["identical"] == 0 and agreement["relative_l2"] > 1e-3


def test_numbers_that_are_not_finite_are_saved_as_null(tmp_path):
    found = compared(lambda x: x * torch.inf, score=lambda output, prompt: -torch.inf)
    found.save(tmp_path / "compare.json")

    def refuse(word):
        raise AssertionError(word)

    data = json.loads((tmp_path / "compare.json").read_text(), parse_constant=refuse)
    assert data["settings"][0]["agreement"]["relative_l2"] is None
    assert data["reference"]["free_running"]["scores"] == [None]


def test_pictures_are_few_and_small():
    shades = torch.arange(40, dtype=torch.uint8).view(40, 1, 1).expand(40, 12, 600)
    frames = compared(lambda x: x, frames=lambda x: shades, prompts=[1, 2])["settings"][0]["frames"]
    assert [one["frame"] for one in frames] == 2 * [i * 40 // 24 for i in range(24)]
    for one in frames:
        assert struct.unpack(">II", base64.b64decode(one["policy"])[16:24]) == (200, 4)  # each third pixel
    small = compared(lambda x: x, frames=lambda x: shades[:, :, :256])["settings"][0]["frames"]
    assert struct.unpack(">II", base64.b64decode(small[0]["exact"])[16:24]) == (256, 12)


@pytest.mark.parametrize("options, words, runs", [
    ({"score": 3}, r"score: expected a function score\(output, prompt\), got 3", 0),
    ({"frames": "all"}, r"frames: expected a function frames\(output\), got 'all'", 0),
    ({"prompts": None}, r"prompts: expected a list .*, got None. HINT: prompts=\[prompt\]", 0),
    ({"prompts": "ab"}, "prompts: expected a list .*, got 'ab'", 0),
    ({"score": lambda output, prompt: "good"}, "score: expected a function that returns a number, got 'good'", 1),
    ({"frames": lambda output: output}, "frames: .*uint8.*, got float32", 1)])
def test_what_is_refused_early(options, words, runs):
    made = []
    with pytest.raises(blockscope.UsageError, match=words):
        compared(lambda x: made.append(x) or x, repeats=3, **{"prompts": [1, 2], **options})
    assert len(made) == runs


class Noisy(torch.nn.Module):
    """Draws a random number at each pass."""

    def __init__(self, model):
        super().__init__()
        self.model, self.shape, self.config = model, model.shape, model.config

    def forward(self, x, t, context, seq_len, kv_cache=None, crossattn_cache=None, current_start=0, cache_start=None):
        found = self.model(x, t, context, seq_len, kv_cache, crossattn_cache, current_start, cache_start)
        return found + 0.1 * torch.randn(())


def test_random_numbers_of_a_pass():
    found = compared(lambda x: x, model=Noisy(video.made("causal", "rolling")[0]), replay=True, policy="exact")
    # The shadow pass draws what the exact pass drew. The exact run goes on with the numbers of its own.
    assert all(one["relative_l2"] < 1e-5 for one in found["settings"][0]["replay"]["output_by_step"])
    assert found["settings"][0]["agreement"]["relative_l2"] < 1e-5


def test_attention_that_is_changed_in_place(monkeypatch):
    attend = models.attend
    monkeypatch.setattr(models, "attend", lambda q, k, v: attend(q, k, v).mul_(2.0))
    replay = compared(lambda x: x, replay=True, policy="exact")["settings"][0]["replay"]
    assert replay["propagated"]["relative_l2"] < 1e-5


def test_a_cache_that_is_not_copied_is_refused(tmp_path):
    model, _, shape = video.made("causal", "rolling")
    held = {}

    class Elsewhere(Noisy):
        def forward(self, x, t, context, seq_len, kv_cache=None, crossattn_cache=None, current_start=0,
                    cache_start=None):
            if current_start == 0 and t.max() == 1000.0 and not self.inside:
                held["cache"] = models.new_caches(self, 9, 1)[0]
            self.inside = current_start == 0 and t.max() == 1000.0
            return self.model(x, t, context, seq_len, held["cache"], None, current_start)

    wrapped = Elsewhere(model)
    wrapped.inside = False
    path = video.file_of(tmp_path / "reuse.json", shape, video.masks_of(shape, 3))
    made = []
    with pytest.raises(blockscope.UsageError, match="replay: the exact run gave another output.*replay=False"):
        compared(lambda x: made.append(x) or x, model=wrapped, replay=True, policy=f"flashblock,reuse={path}",
                 prompts=[1, 2])
    assert len(made) == 3  # of the first prompt


def test_no_cache_stays_between_prompts(monkeypatch):
    seen, make = [], models.new_caches

    def new_caches(*given):
        gc.collect()
        assert not [one for one in seen if one() is not None]
        caches = make(*given)
        seen.extend(weakref.ref(one["k"]) for one in caches[0])
        return caches

    monkeypatch.setattr(models, "new_caches", new_caches)
    compared(lambda x: x, prompts=[1, 2], replay=True)
    assert len(seen) == 2 * 3 * 3  # prompts, runs, layers
