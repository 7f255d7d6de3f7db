"""The video models of the tests: which keys their self-attention reads, in which order, and that guidance by a second
call and by a doubled batch are one thing. And the reference's parts, on their passes."""

import numpy as np
import pytest
import torch
import video_models as models
import video_calibration as reference
import wan_like_models as wan

SHAPES = {"rolling": models.Shape(), "in place": models.Shape(in_place=True), "whole": models.Shape(window=0, sinks=0),
          "no sinks": models.Shape(sinks=0), "narrow": models.Shape(layers=2, window=6, sinks=3)}


def watched(kind, shape, batch=2, **options):
    model, loop = dict(causal=(models.CausalVideoModel, models.causal_loop),
                       wan=(wan.WanLikeModel, wan.wan_like_loop))[kind]
    model, watcher = model(shape).double(), reference.Watcher()
    noise, context, negative = models.inputs(shape, batch=batch, dtype=torch.float64)
    models.watch(model, watcher.see)
    if options.pop("guided", False):
        options["negative"] = negative
    video = loop(model, noise, context, tell=watcher.tell, **options)
    models.watch(model, None)
    return video, watcher


@pytest.mark.parametrize("kind", ["causal", "wan"])
@pytest.mark.parametrize("name", SHAPES)
def test_keys_are_sinks_the_window_and_the_chunk(kind, name):
    shape = SHAPES[name]
    _, watcher = watched(kind, shape)
    size, sinks, window = (n * shape.frame for n in (models.CHUNK, shape.sinks, shape.window))
    assert [(p.chunk, p.step) for p in watcher.passes] == [(c, s) for c in range(7) for s in range(5)]
    clean = {}  # position: key and value that the clean pass gives, of the first layer
    for one in watcher.passes:
        assert one.start == one.chunk * size
        q, k, v, _ = one.calls[0]
        first = max(0, one.start + size - window) if window else 0
        kept = min(sinks, first)
        positions = [*range(kept), *range(max(first, kept), one.start)]
        assert k.shape[2] == len(positions) + size
        assert (q.shape[2], k.shape[1]) == (size, shape.heads)
        for i, position in enumerate(positions):
            assert np.array_equal(np.stack([k[:, :, i], v[:, :, i]]), clean[position])
        if one.step == 4:
            clean.update((one.start + i, np.stack([k[:, :, i - size], v[:, :, i - size]])) for i in range(size))


@pytest.mark.parametrize("kind", ["causal", "wan"])
def test_parts_merge_to_the_attention(kind):
    _, watcher = watched(kind, models.Shape())
    for one in watcher.passes:
        for q, k, v, out in one.calls.values():
            for late in (0, 5):
                assert np.abs(reference.merge(*reference.parts(q, k, v, late)) - out).max() < 1e-12


def test_a_video_does_not_depend_on_how_the_cache_is_written():
    assert torch.equal(watched("causal", SHAPES["rolling"])[0], watched("causal", SHAPES["in place"])[0])


def test_two_calls_and_a_doubled_batch_give_one_video():
    plain, calls = (watched("wan", models.Shape(), guided=guided) for guided in (False, True))
    doubled, watcher = watched("wan", models.Shape(), guided=True, doubled=True)
    assert torch.allclose(calls[0], doubled, atol=1e-12)
    assert not torch.allclose(calls[0], plain[0], atol=0.1)
    assert len(calls[1].of(0)) == len(calls[1].of(1)) == len(watcher.passes) == 35
    assert watcher.passes[0].calls[0][0].shape[0] == 2 * calls[1].passes[0].calls[0][0].shape[0]


def test_calibration_of_a_head_by_hand():
    """One head, followed with torch in the order of the released code."""
    _, watcher = watched("causal", models.Shape(), batch=3)
    layer, head, gamma, bound = 1, 1, 0.85, 0.06
    found = reference.calibrate(watcher.passes, gamma=gamma, bound=bound)
    sums, refreshed = {}, 0
    for one in watcher.passes:
        q, k, v, _ = (torch.from_numpy(x[:, head]) for x in one.calls[layer])
        before = k.shape[1] - q.shape[1]
        if before == 0:
            continue
        scores = q @ k[:, :before].mT / q.shape[-1] ** 0.5
        out, lse = scores.softmax(-1) @ v[:, :before], scores.logsumexp(-1)
        if one.step == 0:
            kept = out, lse
            continue
        cos, change = torch.cosine_similarity(out, kept[0], dim=-1).mean(), (lse - kept[1]).abs().mean()
        sums.setdefault(one.step, []).append(torch.stack([cos, change]))
        if cos < gamma or change > bound:
            kept, refreshed = (out, lse), refreshed + 1
    assert 0 < refreshed < 24  # the kept pair is neither step 0's alone nor the step's before
    for step, values in sums.items():
        mean, entry = torch.stack(values).mean(0), found[layer, step]
        assert [entry["cos"][head], entry["lse"][head]] == pytest.approx(mean.tolist(), abs=1e-12)
        assert entry["mask"][head] == bool((mean[0] < gamma) | (mean[1] > bound))
