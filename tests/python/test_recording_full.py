"""Level `full` and the filters of blockscope.record(). The judge is `blockscope capture` replaying the same run with
the same options."""

import subprocess

import h5py
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the tests' Python has no torch (scripts/setup.sh --tests)")
pytest.importorskip("transformers", reason="the tests' Python has no transformers (scripts/setup.sh --tests)")

import blockscope  # noqa: E402
import recorded_models as models  # noqa: E402
from recording_judges import BINARY, PROMPT, compare_with_capture, rows_of  # noqa: E402


def capture(name, path, theirs, cache, *options):
    done = subprocess.run(
        [BINARY, "capture", str(models.MODELS / name), "--replay", str(path), "--dtype", "float32", "--block-length",
         "16", "--cache", cache, "--array-type", "f32", "-o", str(theirs), *map(str, options)],
        capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


LOOPS = [("needle", models.decode_blocks, "commit"), ("needle-bidirectional", models.decode_canvas, "none"),
         ("needle-bidirectional", models.decode_prefix_cache, "prefix"),
         ("needle-bidirectional", models.decode_dual_cache, "dual")]


@pytest.mark.parametrize("name, decode, cache", LOOPS)
def test_full_is_what_capture_writes(tmp_path, name, decode, cache):
    model = models.PlainModel(name)
    mine, theirs = tmp_path / "mine.h5", tmp_path / "theirs.h5"
    from transformers import AutoTokenizer

    with blockscope.record(model, mine, level="full", block_length=16, gen_length=48, array_type="f32",
                           tokenizer=AutoTokenizer.from_pretrained(models.MODELS / name)) as run:
        state = {"state": lambda start: run.step(start=start)} if cache == "dual" else {}
        run.end_sequence(decode(model, PROMPT, 48, 16, **state))
    capture(name, mine, theirs, cache, "--record", "full")
    compare_with_capture(mine, theirs)
    with h5py.File(mine) as file:
        assert file["/prefix/position"].shape[0] > 0 or cache == "dual"
        assert np.isfinite(file["/hidden/hidden"][rows_of(file) - 2]).all()
