"""Every command takes the trace of a continuous model, and shows blocks and steps where a text would be."""

import json
import shutil

import h5py
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the tests' Python has no torch (scripts/setup.sh --tests)")

import blockscope  # noqa: E402
import video_models as videos  # noqa: E402
from conftest import analyze_json, command  # noqa: E402

SHAPE = videos.Shape()
BLOCK = videos.CHUNK * SHAPE.frame


@pytest.fixture(scope="module", params=["trajectory", "summary", "outputs"])
def trace(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("video") / f"{request.param}.h5"
    noise, context, _ = videos.inputs(SHAPE, 12, batch=2)
    model = videos.CausalVideoModel(SHAPE)
    with blockscope.record(model, path, level=request.param, block_length=BLOCK, rows=5):
        videos.causal_loop(model, noise, context)
    return blockscope.open(path)


def test_info(trace):
    text = command("info", trace.path)
    assert "none: the model is continuous" in text and "36 tokens, 5 of them in the arrays" in text
    assert "40 committed: 0 prefill, 32 denoise" in text and "8 commit" in text
    assert json.loads(command("info", trace.path, "--json"))["block_tokens"] == BLOCK


def test_analyze(trace):
    metrics = {metric["metric"]: metric for metric in analyze_json(trace.path)["metrics"]}
    assert "settling" not in metrics and "decoding" in metrics
    if trace.level == "trajectory":
        return
    assert {"similarity", "external_mass", "reuse_error", "kept_pair"} <= set(metrics)
    with h5py.File(trace.path) as file:  # means over all rows, not over the five
        stored, mass = file["/summary/similarity_external"][:], file["/summary/external_mass"][:]
    found = trace.analyze("similarity").similarity_external.mean().item()
    assert found == pytest.approx(np.nanmean(stored), abs=1e-6)
    assert metrics["similarity"]["computed_from"].startswith("/summary/similarity_external")
    assert metrics["reuse_error"]["computed_from"] == "/summary/step_pair"
    assert trace.analyze("external_mass").external_mass.mean().item() == pytest.approx(np.nanmean(mass), abs=1e-6)


@pytest.mark.parametrize("form", ["csv", "json", "frames", "step_map"])
def test_export(trace, form):
    text = command("export", trace.path, "--format", form)
    assert text.count("\n") == 1 if form == "csv" else json.loads(text)["sequences"][0]["gen_length"] == 0 \
        if form == "json" else len(json.loads(text)["sequences"]) == 2


def test_repack_and_diff(trace, tmp_path):
    command("repack", trace.path, "-o", tmp_path / "packed.h5", "--compress", "deflate")
    assert "the traces are equal" in command("diff", trace.path, tmp_path / "packed.h5")
    with h5py.File(tmp_path / "packed.h5") as file:
        assert file.attrs["format_version"] == 3


def test_report(trace, tmp_path):
    command("report", trace.path, "-o", tmp_path / "page.html", "--quiet")
    page = (tmp_path / "page.html").read_text()
    assert "Blocks and steps" in page and "so the trace has no tokens" in page and "937.5" in page
    assert "How a text appears" not in page and "How it decoded" not in page


def test_steps_in_python(trace):
    blocks = trace.blocks()
    assert [[step.step for step in block.steps] for block in blocks] == [[1, 2, 3, 4, 5]] * 8
    assert trace.frame(0, 3).tokens.size == 0 and trace.text(0) == ""


def test_damaged_steps_are_refused(trace, tmp_path):
    """A clean pass counts on; a row after the end of a block_rows' range is none of the block."""
    path = tmp_path / "damaged.h5"
    for name, place, value in (("/steps/step", 8, 0), ("/block_position", 4, BLOCK)):
        shutil.copyfile(trace.path, path)
        with h5py.File(path, "r+") as file:
            file[name][place] = value
        with pytest.raises(blockscope.CorruptTrace):
            blockscope.open(path)
