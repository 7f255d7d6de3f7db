"""What a failed recording leaves: its rows in the unfinished trace, and a path that is free again while
a notebook or other code keeps the exception. Checked with h5py and with a second writer."""

import os
import pathlib
import subprocess
import sys

import h5py
import pytest

torch = pytest.importorskip("torch", reason="the tests' Python has no torch (scripts/setup.sh --tests)")
pytest.importorskip("transformers", reason="the tests' Python has no transformers (scripts/setup.sh --tests)")

import blockscope  # noqa: E402
import recorded_models as models  # noqa: E402
from recording_checks import PROMPT, rows_of  # noqa: E402

SIZE = 16
OPTIONS = dict(block_length=SIZE, level="summary")


def decode_astray(model, last):
    """The second pass decides a token of another block, which is seen when its row is written."""
    mask = model.config.mask_token_id
    ids = torch.tensor([PROMPT[:40] + [mask] * 48])
    with torch.no_grad():
        model(ids)
        ids[0, 40] = 5
        model(ids)
        ids[0, 80] = 5
        if not last:
            model(ids)
    return ids


@pytest.mark.parametrize("how", ["a pass", "end_sequence"])
def test_the_path_is_free_after_a_row_that_could_not_be_written(tmp_path, how):
    model = models.PlainModel("needle-bidirectional")
    path = tmp_path / "run.h5"
    with pytest.raises(blockscope.UsageError, match="position 80 was decided by a pass over block 0") as kept:
        with blockscope.record(model, path, **OPTIONS) as run:
            ids = decode_astray(model, how == "end_sequence")
            if how == "end_sequence":
                run.end_sequence(ids)
    assert "couldn't be closed" not in str(kept.value)
    with h5py.File(f"{path}.partial", swmr=True) as file:
        assert rows_of(file) == 1 and file["/run/complete"][0] == 0
    with blockscope.record(model, path, **OPTIONS, force=True) as run:  # the notebook's cell once more
        run.end_sequence(models.decode_canvas(model, PROMPT[:40], 32, SIZE))
    assert blockscope.open(path).complete and kept.value is not None


def test_the_path_is_free_after_an_end_that_failed(tmp_path):
    """The last sequence is ended by leaving the recording: the tokenizer that is to make its text fails."""
    model = models.PlainModel("needle-bidirectional")
    path = tmp_path / "run.h5"

    class Tokenizer:
        mask_token_id = model.config.mask_token_id

        def decode(self, *ignored, **options):
            raise ValueError("not for you")

    with pytest.raises(ValueError, match="not for you") as kept, pytest.warns(UserWarning):
        with blockscope.record(model, path, **OPTIONS, tokenizer=Tokenizer()):
            models.decode_canvas(model, PROMPT[:40], 32, SIZE)
    with blockscope.record(model, path, **OPTIONS, force=True) as run:
        run.end_sequence(models.decode_canvas(model, PROMPT[:40], 32, SIZE))
    assert blockscope.open(path).complete and kept.value is not None


@pytest.mark.parametrize("force", [False, True])
def test_a_recording_that_is_still_open_is_named(tmp_path, force):
    model = models.PlainModel("needle-bidirectional")
    path = tmp_path / "run.h5"
    with blockscope.record(model, path, **OPTIONS) as run:
        ids = models.decode_canvas(model, PROMPT[:40], 32, SIZE)
        with pytest.raises(blockscope.TraceError, match=r"run\.h5\.partial: this process is still writing this trace\. "
                                                        r"HINT: end the recording"):
            with blockscope.record(models.PlainModel("needle-bidirectional"), path, **OPTIONS, force=force):
                pass
        run.end_sequence(ids)
    assert blockscope.open(path).complete


def test_another_process_that_writes_is_named(tmp_path):
    path = tmp_path / "run.h5"
    code = f"""
import sys
sys.path.insert(0, {str(pathlib.Path(__file__).parent)!r})
import blockscope, recorded_models as models
model = models.PlainModel("needle-bidirectional")
with blockscope.record(model, {str(path)!r}, block_length=16, level="summary") as run:
    ids = models.decode_canvas(model, {PROMPT[:40]}, 32, 16)
    print("writes", flush=True)
    sys.stdin.readline()
    run.end_sequence(ids)
"""
    other = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert other.stdout.readline() == "writes\n"
    with pytest.raises(blockscope.TraceError, match=rf"another process is writing this trace \(process {other.pid}\)"):
        with blockscope.record(models.PlainModel("needle-bidirectional"), path, **OPTIONS, force=True):
            pass
    other.communicate("\n")
    assert other.returncode == 0 and blockscope.open(path).complete


def test_a_fork_does_not_keep_the_path(tmp_path):
    """It has the open file too, and lives on."""
    model = models.PlainModel("needle-bidirectional")
    path = tmp_path / "run.h5"
    torch.set_num_threads(1)  # a fork has no threads of OpenMP
    read, write = os.pipe()
    with pytest.raises(KeyboardInterrupt), blockscope.record(model, path, **OPTIONS):
        models.decode_canvas(model, PROMPT[:40], 32, SIZE)
        child = os.fork()
        if child == 0:
            os.close(write)
            os.read(read, 1)  # until the parent is done
            os._exit(0)
        raise KeyboardInterrupt
    try:
        with blockscope.record(model, path, **OPTIONS, force=True) as run:
            run.end_sequence(models.decode_canvas(model, PROMPT[:40], 32, SIZE))
    finally:
        os.close(write)
        assert os.waitpid(child, 0)[1] == 0
    assert blockscope.open(path).complete
