"""FlashBlock's video calibration over recorded videos: masks, similarities and drifts against its released procedure
(Caesarhhh/Flash_Block, video/inference.py:236-301 and wan/modules/causal_model.py:969-1009) in float64, over what the
model's own watcher saw."""

import json

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the tests' Python has no torch (scripts/setup.sh --tests)")

import blockscope  # noqa: E402
import video_models as videos  # noqa: E402
from conftest import command  # noqa: E402
from video_reference import Seen, cosines  # noqa: E402

SHAPE = videos.Shape()
BLOCK = videos.CHUNK * SHAPE.frame
STEPS = 5  # the clean pass is the last one


def record(path, batch, frames=15, **options):
    model = videos.CausalVideoModel(SHAPE)
    noise, context, _ = videos.inputs(SHAPE, frames, batch)
    calls = []
    videos.watch(model, lambda *call: calls.append(call))
    with blockscope.record(model, path, block_length=BLOCK, sinks=SHAPE.sinks * SHAPE.frame, **options):
        videos.causal_loop(model, noise, context)
    return calls


def official(calls, batch, gamma, bound):
    """cos, |dL| [step - 2, layer, head]: means over chunks with a history; the batch decides together what is kept."""
    layers, size = SHAPE.layers, SHAPE.layers * STEPS
    totals = np.zeros((2, STEPS - 1, layers, SHAPE.heads))
    chunks = 0
    for first in range(size, len(calls), size):  # the first chunk has no history
        chunks += 1
        kept = None
        for step in range(STEPS):
            own = calls[first + step * layers:first + (step + 1) * layers]
            seen = [Seen(own, slot, BLOCK) for slot in range(batch)]
            now = [[[np.stack([one.parts[layer][part][head] for one in seen]) for part in (0, 1)]
                    for head in range(SHAPE.heads)] for layer in range(layers)]
            if kept is None:
                kept = now
                continue
            for layer in range(layers):
                for head in range(SHAPE.heads):
                    (a, l), (old, old_l) = now[layer][head], kept[layer][head]
                    cos, drift = cosines(a, old).mean(), abs(l - old_l).mean()
                    totals[:, step - 1, layer, head] += cos, drift
                    if not (cos > gamma and drift <= bound):
                        kept[layer][head] = now[layer][head]
    return totals / chunks


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("level, rows", [("summary", None), ("outputs", 2)])
def test_masks_are_the_official_ones(tmp_path, batch, level, rows):
    path = tmp_path / "run.h5"
    calls = record(path, batch, level=level, rows=rows)
    mixed = 0
    for gamma, bound in ((0.85, 0.05), (0.99994, 0.5), (0.9999, 1.0), (0.999, 0.3)):
        command("calibrate", path, "--reference", "kept", "--provisional", "--by-step", "--lse-bound", bound, "--gamma",
                gamma, "-o", tmp_path / "reuse.json", "--force")
        found = json.loads((tmp_path / "reuse.json").read_text())
        cos, drift = official(calls, batch, gamma, bound)
        assert np.allclose(found["similarity"], cos, rtol=0, atol=1e-6)
        assert np.allclose(found["lse_drift"], drift, rtol=0, atol=1e-5)
        masks = (cos > gamma) & (drift <= bound)
        assert (abs(cos - gamma) > 1e-6).all() and (abs(drift - bound) > 1e-5).all()  # else rounding would decide
        assert np.array_equal(found["reuse"], masks)
        assert found["step_ranges"] == [[1, 2], [3, 3], [4, 4], [5, None]]
        mixed += 0 < masks.sum() < masks.size
    assert mixed >= 2


def test_adjacent_steps(tmp_path):
    """Without --provisional the reference is the step before, over all rows too."""
    path = tmp_path / "run.h5"
    calls = record(path, 1, level="outputs", rows=3)
    command("calibrate", path, "--gamma", 0.5, "-o", tmp_path / "reuse.json")
    found = json.loads((tmp_path / "reuse.json").read_text())
    size, sums = SHAPE.layers * STEPS, []
    for first in range(size, len(calls), size):
        seen = [Seen(calls[first + step * SHAPE.layers:first + (step + 1) * SHAPE.layers], 0, BLOCK)
                for step in range(STEPS)]
        sums += [[cosines(a[0], b[0]).mean(-1) for a, b in zip(now.parts, last.parts)]
                 for last, now in zip(seen, seen[1:])]
    assert np.allclose(found["similarity"], np.mean(sums, 0), atol=1e-6)


def test_steps_that_are_not_compared(tmp_path):
    """The comparisons end at pair_steps; a calibration that needs later ones says so."""
    path = tmp_path / "run.h5"
    record(path, 1, level="summary", pair_steps=2)
    with pytest.raises(AssertionError, match=r"comparison with step 3 of a block, but the trace has those with steps "
                                             r"1 to 2. HINT: record\(..., pair_steps=3\)"):
        command("calibrate", path, "--gamma", 0.5, "-o", tmp_path / "reuse.json")
