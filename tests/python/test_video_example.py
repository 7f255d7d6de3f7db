"""docs/examples/video_reuse.py on the shipped video model, `study video` and `report --compare` of what it wrote: every
number against h5py, NumPy and the files themselves."""

import base64
import csv
import json
import os
import pathlib
import re
import subprocess
import sys

import h5py
import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = os.environ["BLOCKSCOPE_BINARY"]
GAMMA, BOUND = 0.85, 0.5


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What the example wrote."""
    folder = tmp_path_factory.mktemp("video")
    done = subprocess.run([sys.executable, ROOT / "docs/examples/video_reuse.py", folder, "--gamma", str(GAMMA),
                           "--lse-bound", str(BOUND)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


def command(*arguments):
    return subprocess.run([BINARY, *map(str, arguments)], capture_output=True, text=True)


@pytest.fixture(scope="module")
def study(folder):
    done = command("study", "video", folder / "video.h5", "--compare", folder / "compare.json", "--lse-bound", BOUND,
                   "-o", folder / "study")
    assert done.returncode == 0, done.stderr
    return folder / "study"


def rows_of(study):
    with (study / "video.csv").open() as lines:
        return list(csv.DictReader(lines))


def test_masks_are_those_of_the_calibration(folder, study):
    calibrated = json.loads((folder / "reuse.json").read_text())
    masks = np.array(calibrated["reuse"])
    assert masks.ndim == 3 and 0 < masks.sum() < masks.size, "a calibration that decides something"
    for row in rows_of(study):
        layer, head = int(row["layer"]), int(row["head"])
        for index, mask in enumerate(masks):
            step = index + 2
            assert int(row[f"reuse_step{step}"]) == mask[layer, head]
            similarity, change = float(row[f"similarity_step{step}"]), float(row[f"lse_change_step{step}"])
            assert mask[layer, head] == (similarity > GAMMA and change <= BOUND)


def test_figure_5_is_the_mean_over_adjacent_steps(folder, study):
    with h5py.File(folder / "video.h5") as trace:
        pairs = trace["/summary/step_pair"][()].astype(np.float64)  # [row, earlier, layer, head, sum]
        steps, kept = trace["/steps/step"][()], trace["/steps/context_length"][()] > 0
    sums = np.zeros((2, *pairs.shape[2:4]))
    for row in range(len(steps)):
        if steps[row] >= 2 and kept[row]:
            sums += pairs[row, steps[row] - 2, :, :, :2].transpose(2, 0, 1)
    expected = sums[1] / sums[0]
    for row in rows_of(study):
        assert float(row["A_out"]) == pytest.approx(expected[int(row["layer"]), int(row["head"])], abs=1e-6)
        assert float(row["A_in"]) < float(row["A_out"]), "the trained model's mechanism"


def test_work_counts_products(folder, study):
    text = (study / "video.txt").read_text()
    masks = np.array(json.loads((folder / "reuse.json").read_text())["reuse"])
    with h5py.File(folder / "video.h5") as trace:
        steps, kind = trace["/steps/step"][()], trace["/steps/kind"][()]
        keys, rows = trace["/steps/context_length"][()].astype(float), int(trace.attrs["block_tokens"])
    external = internal = left = 0.0
    for step, length, one in zip(steps, keys, kind):
        if step == 0:
            continue
        external, internal = external + rows * length, internal + rows * rows
        reads = 1.0 if step == 1 else 1.0 - masks[min(step - 2, len(masks) - 1)].mean()
        left += rows * length * reads + rows * rows
    share = 100 * left / (external + internal)
    found = re.search(r"flashblock +([\d.]+) % +([\d.]+) ", text)
    assert float(found[1]) == pytest.approx(share, abs=0.051)
    assert float(found[2]) == pytest.approx(100 / share, abs=0.0051)


def test_study_and_report_show_the_comparison(folder, study):
    compared = json.loads((folder / "compare.json").read_text())
    setting = compared["settings"][0]
    text = (study / "video.txt").read_text()
    assert re.search(rf"external keys read +{setting['free_running']['reads']['key_rows']} +"
                     rf"{setting['free_running']['reads']['key_rows_read']}\n", text)
    for one in setting["replay"]["first_order_by_step"]:
        assert re.search(rf"error at step {one['step']} +{one['relative_l2']:.4f}\n", text)
    page = (folder / "video.html").read_text()
    pictures = re.findall(r'src="data:image/png;base64,([^"]+)"', page)
    assert len(pictures) == 2 * 21 * 3 == 2 * len(setting["frames"])
    assert set(pictures) == {pair[side] for pair in setting["frames"] for side in ("exact", "policy")}
    assert base64.b64decode(pictures[0])[:8] == b"\x89PNG\r\n\x1a\n"
    assert "<img" not in re.sub(r'<img alt="frame \d+" src="data:image/png;base64,[A-Za-z0-9+/=]+">', "", page)


def test_reuse_keeps_the_videos(folder):
    """Reuse skips a large part of the reads, and the videos stay nearly the same."""
    setting = json.loads((folder / "compare.json").read_text())["settings"][0]
    assert setting["free_running"]["reads"]["saving"] > 0.4
    assert 0.0 < setting["agreement"]["relative_l2"] < 0.2
    assert setting["accuracy"]["policy"] > setting["accuracy"]["reference"] - 0.2


def changed(folder, tmp_path, change):
    found = json.loads((folder / "compare.json").read_text())
    change(found)
    path = tmp_path / "changed.json"
    path.write_text(json.dumps(found))
    return path


@pytest.mark.parametrize("change, message", [
    (lambda x: x.update(mode="verify"), "expected a file that blockscope.compare"),
    (lambda x: x["settings"][0]["frames"][0].update(exact='"><script>'), "frames[0].exact: expected a PNG file"),
    (lambda x: x["settings"][0]["frames"][0].update(policy=3), "frames[0].policy"),
    (lambda x: x["settings"].clear(), "settings"),
    (lambda x: x["settings"][0]["free_running"]["reads"].update(key_rows_read=10**9), "key_rows_read"),
    (lambda x: x["reference"]["free_running"].pop("seconds"), "seconds"),
])
def test_refuses_a_comparison(folder, tmp_path, change, message):
    path = changed(folder, tmp_path, change)
    for arguments in (("study", "video", folder / "video.h5", "--compare", path, "-o", tmp_path / "out"),
                      ("report", folder / "video.h5", "--compare", path, "-o", tmp_path / "out.html")):
        done = command(*arguments)
        assert done.returncode == 1 and message in done.stderr and str(path) in done.stderr, done.stderr
    assert not (tmp_path / "out").exists() and not (tmp_path / "out.html").exists()


@pytest.mark.parametrize("arguments, message", [
    (("--k", "4"), "--k: does nothing without another study than video"),
    (("--device", "cpu"), "--device: does nothing without another study than video"),
    (("--gamma", "1.5"), "--gamma"),
    (("--lse-bound", "-1"), "--lse-bound"),
])
def test_refuses_options(folder, tmp_path, arguments, message):
    done = command("study", "video", folder / "video.h5", "-o", tmp_path / "out", *arguments)
    assert done.returncode == 2 and message in done.stderr, done.stderr
    assert not (tmp_path / "out").exists()


def test_refuses_a_trace_with_tokens(tmp_path):
    done = command("capture", ROOT / "models/needle", "--prompt", "a", "--gen-length", "8", "-q", "-o",
                   tmp_path / "text.h5")
    assert done.returncode == 0, done.stderr
    done = command("study", "video", tmp_path / "text.h5", "-o", tmp_path / "out")
    assert done.returncode == 2 and "expected a trace of a continuous model" in done.stderr, done.stderr
