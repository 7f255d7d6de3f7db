"""blockscope.apply() in loops of continuous video models, against FlashBlock's released rule in float64
(video_calibration.py): which heads reuse whose pair, and every merged output."""

import gc
import weakref

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the tests' Python has no torch (scripts/setup.sh --tests)")

import blockscope  # noqa: E402
import video_models as models  # noqa: E402
import video_calibration as reference  # noqa: E402
from applied_videos import STEPS, file_of, made, masks_of  # noqa: E402


def applied(model, loop, shape, policy, batch=2, watch=True, **options):
    watcher = reference.Watcher()
    models.watch(model, watcher.see if watch else None)
    noise, context, _ = models.inputs(shape, batch=batch)
    with blockscope.apply(model, policy, block_length=models.CHUNK * shape.frame,
                          sinks=shape.sinks * shape.frame or None) as run:
        def tell(start, timestep, branch):
            watcher.tell(start, timestep, branch)
            run.step(start=start, timestep=timestep, branch=branch)

        video = loop(model, noise, context, tell=tell, **options)
    models.watch(model, None)
    return video, watcher.passes, run.summary()


@pytest.mark.parametrize("kind, name", [("causal", "rolling"), ("causal", "whole"), ("causal", "in place"),
                                        ("wan", "rolling"), ("wan", "whole")])
def test_every_output_is_that_of_the_released_rule(tmp_path, kind, name):
    model, loop, shape = made(kind, name)
    masks = masks_of(shape, 7)
    path = file_of(tmp_path / "reuse.json", shape, masks)
    video, passes, summary = applied(model, loop, shape, f"flashblock,reuse={path}")
    rule, history, read = reference.Reuse(masks), 0, 0
    assert len(passes) == summary["passes"] == 35
    for one in passes:
        for layer, (q, k, v, out) in one.calls.items():
            wanted = rule.merged(layer, one.step, *reference.parts(q, k, v))
            assert np.abs(wanted - out).max() < 2e-5 * np.abs(wanted).max(), (one.chunk, one.step, layer)
            heads = masks.get((layer, one.step), np.ones(shape.heads, bool)).sum()
            history += (k.shape[2] - q.shape[2]) * shape.heads * len(q)
            read += (k.shape[2] - q.shape[2]) * heads * len(q)
    assert (summary["key_rows"], summary["key_rows_read"]) == (history, read) and 0 < read < history
    assert summary["denoising_steps"] == 70 and summary["steps_reused"] == 2 * 7 * 4
    plain = loop(model, *models.inputs(shape, batch=2)[:2])
    assert not torch.allclose(video, plain, atol=1e-3)


def test_a_recorded_video_is_calibrated_and_applied(tmp_path, recwarn):
    """From the recording to the run with its masks, which are the released ones."""
    model, loop, shape = made("causal", "rolling")
    noise, context, _ = models.inputs(shape, batch=1)
    watcher = reference.Watcher()
    models.watch(model, watcher.see)
    with blockscope.record(model, tmp_path / "run.h5", level="summary", block_length=models.CHUNK * shape.frame,
                           sinks=shape.sinks * shape.frame):
        loop(model, noise, context, tell=watcher.tell)
    found = blockscope.open(tmp_path / "run.h5").calibrate(gamma=0.85, reference="kept", lse_bound=0.05, by_step=True,
                                                           provisional=True)
    found.save(tmp_path / "reuse.json")
    wanted = reference.calibrate(watcher.passes)
    masks = {place: entry["mask"] for place, entry in wanted.items()}
    assert reference.margin(wanted) > 1e-6  # no near-tie
    for (layer, step), mask in masks.items():  # from 1 in the file
        of_step = [first <= step + 1 and step + 1 <= (last or step + 1) for first, last in found.step_ranges]
        assert np.array_equal(found.reuse[of_step.index(True), layer], ~mask)
    _, passes, summary = applied(model, loop, shape, f"flashblock,reuse={tmp_path / 'reuse.json'}", batch=1)
    assert not [one for one in recwarn if "other weights" in str(one.message)]
    rule = reference.Reuse(masks)
    for one in passes:
        for layer, (q, k, v, out) in one.calls.items():
            true = rule.merged(layer, one.step, *reference.parts(q, k, v))
            assert np.abs(true - out).max() < 2e-5 * np.abs(true).max()
    assert 0 < summary["saving"] < 1
    with pytest.warns(UserWarning, match="other weights"):
        path = file_of(tmp_path / "other.json", shape, masks_of(shape, 1))
        applied(model, loop, shape, f"flashblock,reuse={path}", batch=1)


@pytest.mark.parametrize("kind, doubled", [("causal", False), ("wan", False), ("wan", True)])
def test_branches_of_guidance_keep_their_own_pairs(tmp_path, kind, doubled):
    model, loop, shape = made(kind, "rolling")
    masks = masks_of(shape, 11)
    path = file_of(tmp_path / "reuse.json", shape, masks)
    more = {"negative": models.inputs(shape, batch=2)[2], **({"doubled": True} if doubled else {})}
    _, passes, summary = applied(model, loop, shape, f"flashblock,reuse={path}", **more)
    rules = {branch: reference.Reuse(masks) for branch in (0, 1)}
    assert {one.branch for one in passes} == ({0} if doubled else {0, 1})
    for one in passes:
        for layer, (q, k, v, out) in one.calls.items():
            wanted = rules[one.branch].merged(layer, one.step, *reference.parts(q, k, v))
            assert np.abs(wanted - out).max() < 2e-5 * np.abs(wanted).max(), (one.branch, one.chunk, one.step, layer)
    assert (summary["sequences"], summary["denoising_steps"]) == (4, 140)


@pytest.mark.parametrize("kind", ["causal", "wan"])
def test_without_a_file_the_clean_pass_reads(kind):
    model, loop, shape = made(kind, "rolling")
    _, passes, summary = applied(model, loop, shape, "flashblock")
    masks = {(layer, step): np.zeros(shape.heads, bool) for layer in range(shape.layers) for step in STEPS if step < 4}
    rule = reference.Reuse(masks)
    for one in passes:
        for layer, (q, k, v, out) in one.calls.items():
            wanted = rule.merged(layer, one.step, *reference.parts(q, k, v))
            assert np.abs(wanted - out).max() < 2e-5 * np.abs(wanted).max()
    assert summary["saving"] == pytest.approx(0.6)


def test_exact_and_sparse_policies():
    model, loop, shape = made("causal", "rolling")
    noise, context, _ = models.inputs(shape, batch=2)
    plain = loop(model, noise, context)
    video, _, summary = applied(model, loop, shape, "exact", watch=False)
    assert torch.allclose(video, plain, atol=2e-5) and summary["saving"] == 0
    size = models.CHUNK * shape.frame
    video, _, summary = applied(model, loop, shape, f"mage,k={4 * size}", watch=False)
    assert torch.allclose(video, plain, atol=2e-5)  # every key is in the set
    assert applied(model, loop, shape, "mage,k=4", watch=False)[2]["saving"] > 0.5


@pytest.mark.parametrize("policy, words", [
    *((f"flashblock,{option}", rf"policy flashblock,{option}: {option.partition('=')[0]}: counts decided tokens")
      for option in ("tau=3", "count=step", "refresh=near", "sure=0.5")),
    ("sparsed,k=4", "how many a video has isn't known. HINT: add per_block")])
def test_options_that_count_tokens_are_refused(policy, words):
    model, loop, shape = made("causal", "rolling")
    with pytest.raises(blockscope.UsageError, match=words):
        applied(model, loop, shape, policy, watch=False)


def test_sparsed_per_block_and_the_settings_of_a_video():
    model, loop, shape = made("causal", "rolling")
    assert applied(model, loop, shape, "sparsed,k=4,per_block", watch=False)[2]["saving"] > 0
    with blockscope.apply(model, "flashblock", block_length=models.CHUNK * shape.frame,
                          sinks=shape.sinks * shape.frame) as run:
        loop(model, *models.inputs(shape)[:2])
    assert run._policy.settings == {"policy": "flashblock"}


@pytest.mark.parametrize("policy", ["flashblock", "mage,k=4", "exact", "recording"])
def test_no_tensor_stays(tmp_path, monkeypatch, policy):
    model, loop, shape = made("causal", "whole")
    alive, size, make = [], models.CHUNK * shape.frame, models.new_caches

    def new_caches(*given):
        caches = make(*given)
        alive.extend(weakref.ref(one["k"]) for one in caches[0])
        return caches

    monkeypatch.setattr(models, "new_caches", new_caches)
    with (blockscope.record(model, tmp_path / "run.h5", block_length=size, level="summary") if policy == "recording"
          else blockscope.apply(model, policy, block_length=size)) as run:
        loop(model, *models.inputs(shape, frames=9)[:2])
        if policy == "recording":
            alive += [weakref.ref(one.external) for one in run._batch.sequences[0].kept.values()
                      if one.external is not None]
        if policy == "flashblock":
            alive += [weakref.ref(pair[0]) for pair in run._policy._pairs.values()]
        assert len(alive) > 3 or policy in ("mage,k=4", "exact")
    gc.collect()
    assert len(alive) >= 3 and not [one().shape for one in alive if one() is not None]
    assert policy == "recording" or run.summary()["denoising_steps"] > 0


def test_a_rolling_cache_must_tell(tmp_path):
    model, loop, shape = made("wan", "rolling")
    noise, context, _ = models.inputs(shape)
    with pytest.raises(blockscope.UsageError, match="the cache has dropped some.*sinks=N"):
        with blockscope.apply(model, "flashblock", block_length=models.CHUNK * shape.frame) as run:
            loop(model, noise, context, tell=lambda start, timestep, branch: run.step(start=start))
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())
