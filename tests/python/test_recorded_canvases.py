"""transformers' own DiffusionGemma loop, recorded in Python, and the runtime's replay of that trace: the two traces are
equal. Their recorders, decoders and models share no code, only the file's format."""

import json
import subprocess

import h5py
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the tests' Python has no torch (scripts/setup.sh --tests)")
pytest.importorskip("transformers", reason="the tests' Python has no transformers (scripts/setup.sh --tests)")

import blockscope  # noqa: E402
from conftest import BINARY  # noqa: E402
from recorded_canvases import diffusion_gemma, generate_canvases  # noqa: E402

SET_SIZE, STEPS = 4, 5
SAME = ["/steps/kind", "/steps/block", "/steps/step", "/steps/context_length", "/steps/changed", "/steps/masks_left",
        "/prediction/token", "/sets/topk", "/sets/union_size", "/router/expert", "/model/layer_kv_heads",
        "/model/layer_head_dim", "/model/layer_window"]
NEAR = ["/prediction/confidence", "/attention/external", "/attention/internal", "/attention/lse_external",
        "/attention/lse_internal", "/query/query", "/hidden/hidden", "/kv/key", "/kv/value", "/sets/probability",
        "/summary/external_mass", "/summary/similarity_external", "/summary/similarity_internal", "/summary/query_gap",
        "/summary/reuse_error", "/spread/region", "/spread/distance", "/router/weight"]


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    """The checkpoint, the recorded trace and the runtime's."""
    folder = tmp_path_factory.mktemp("canvases")
    model = diffusion_gemma("eager", head_dim=16, global_head_dim=32, num_key_value_heads=2,
                            num_global_key_value_heads=1)
    model.save_pretrained(folder / "model")
    prompt = torch.tensor([[7 * i % 90 + 3 for i in range(19)]])
    with blockscope.record(model, folder / "theirs.h5", level="full", array_type="f32", set_size=SET_SIZE,
                           router=True) as run:
        run.end_sequence(generate_canvases(model, prompt))
    command = [BINARY, "capture", folder / "model", "--replay", folder / "theirs.h5", "--denoising-steps", STEPS,
               "--dtype", "float32", "--record", "full", "--record-router", "--set-size", SET_SIZE, "--array-type",
               "f32", "-o", folder / "ours.h5", "--quiet"]
    subprocess.run([str(part) for part in command], check=True)
    return folder


def rows(file, path):
    return file[path][:int(file["/steps/committed"][0])]


def test_the_traces_are_equal(traces):
    with h5py.File(traces / "theirs.h5") as theirs, h5py.File(traces / "ours.h5") as ours:
        count = int(ours["/steps/committed"][0])
        assert int(theirs["/steps/committed"][0]) == count
        for path in SAME:
            per_row = not path.startswith("/model/")
            a, b = ((rows(theirs, path), rows(ours, path)) if per_row else (theirs[path][:], ours[path][:]))
            assert np.array_equal(a, b), path
        for path in NEAR:
            a, b = rows(theirs, path).astype(np.float64), rows(ours, path).astype(np.float64)
            assert np.array_equal(np.isnan(a), np.isnan(b)), path
            largest = np.nanmax(np.abs(b))
            assert np.nanmax(np.abs(a - b), initial=0.0) <= 2e-4 * max(largest, 1e-6), path


def test_the_teacher_finds_no_difference(traces):
    command = [BINARY, "diff", traces / "theirs.h5", traces / "ours.h5", "--teacher"]
    result = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "no difference" in result.stdout


def test_the_frames_are_equal(traces):
    """The recorder learns the answer's length canvas by canvas, so its frames end with the canvas at hand."""
    theirs, ours = blockscope.open(traces / "theirs.h5"), blockscope.open(traces / "ours.h5")
    assert theirs.num_steps(0) == ours.num_steps(0) == 3 * STEPS
    for t in range(ours.num_steps(0) + 1):
        a, b = theirs.frame(0, t), ours.frame(0, t)
        size = a.tokens.size
        assert np.array_equal(a.tokens, b.tokens[:size]) and np.array_equal(a.undecided, b.undecided[:size]), t
        assert np.array_equal(a.steps, b.steps[:size]), t
        assert b.undecided[size:].all(), t


def test_another_model_is_found(traces):
    config = json.loads((traces / "model/config.json").read_text())
    config["text_config"]["sliding_window"] = 9
    changed = traces / "changed"
    changed.mkdir()
    (changed / "config.json").write_text(json.dumps(config))
    (changed / "model.safetensors").symlink_to(traces / "model/model.safetensors")
    command = [BINARY, "capture", changed, "--replay", traces / "theirs.h5", "--denoising-steps", STEPS, "--dtype",
               "float32", "--record", "full", "--array-type", "f32", "-o", traces / "changed.h5", "--quiet"]
    subprocess.run([str(part) for part in command], check=True)
    result = subprocess.run([BINARY, "diff", str(traces / "theirs.h5"), str(traces / "changed.h5"), "--teacher"],
                            capture_output=True, text=True)
    assert result.returncode != 0, result.stdout + result.stderr


def test_a_canvas_begins_undecided(traces):
    """The noise before step 1 counts as undecided: that step can only decide."""
    first = blockscope.open(traces / "ours.h5").changes(0)[0]
    assert first.kind.size > 0 and set(first.kind) == {"decided"}
