"""Checks `blockscope repack` and `export` with h5py and numpy alone: check_repack.py TRACE_TOOL.

Compressed: every dataset, extent and axis name as before. Merged: rows and sequences of each file,
one after the other, indices shifted. Repaired: the committed rows of a file whose writer was killed.
Exported: tokens and step map equal those rebuilt from the columns of /frames."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

import h5py
import numpy as np
from trace_arrays import stored

BLOCKSCOPE = os.environ["BLOCKSCOPE_BINARY"]


def blockscope(*arguments):
    subprocess.run([BLOCKSCOPE, *map(str, arguments)], check=True, stdout=subprocess.DEVNULL)


def same(a, b):
    return a.shape == b.shape and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")


def check_compressed(source, target):
    with h5py.File(source) as a, h5py.File(target) as b:
        assert dict(a.attrs) == dict(b.attrs)
        assert stored(a).keys() == stored(b).keys()
        for name, item in stored(a).items():
            if name in ("/run/json", "/run_byte"):  # names its inputs
                continue
            other = stored(b)[name]
            assert same(item[()], other[()]), (name, item.shape, other.shape)
            assert [list(d) for d in item.dims] == [list(d) for d in other.dims], name
            assert item.dtype == other.dtype, name
        assert "repacked" in json.loads(bytes(b["run/json"][()]))
        assert b["attention/external"].compression == "gzip"


def check_merged(sources, target):
    with h5py.File(target) as merged:
        row = sequence = prefix = delta = keyframe = piece = 0
        for source in sources:
            with h5py.File(source) as part:
                rows, sequences = part["row"].size, part["sequence"].size
                here = slice(row, row + rows)
                for name in ("attention/external", "frames/delta_end", "steps/step", "sets/topk"):
                    shift = delta if name == "frames/delta_end" else 0
                    assert same(part[name][()] + shift, merged[name][here]), name
                previous = part["steps/previous"][()]
                previous[previous >= 0] += row
                assert same(previous, merged["steps/previous"][here])
                assert same(part["steps/sequence"][()] + sequence, merged["steps/sequence"][here])
                assert same(part["frames/keyframe"][()] + keyframe, merged["frames/keyframe"][here])
                keys = part["prefix/key"]
                assert same(keys[()], merged["prefix/key"][prefix : prefix + len(keys)])
                starts = part["sequences/prompt_start"][()] + piece
                assert same(starts, merged["sequences/prompt_start"][sequence:][:sequences])
                row, sequence = row + rows, sequence + sequences
                prefix, delta = prefix + len(keys), delta + part["frames/token"].size
                keyframe += part["frames/keyframe_row"].size
                piece += part["sequences/prompt_token"].size
        assert merged["row"].size == row == merged["steps/committed"][0]
        assert merged["sequence"].size == sequence == merged["sequences/committed"][0]
        assert np.array_equal(merged["row"][()], np.arange(row))


def kill_a_writer(tool, path):
    writer = subprocess.Popen([tool, "endless", path], stdout=subprocess.PIPE, text=True)
    while int(writer.stdout.readline()) < 150:
        pass
    time.sleep(0.05)
    writer.send_signal(signal.SIGKILL)
    writer.wait()


def check_repaired(source, target):
    """Says whether a sequence was cut off."""
    with h5py.File(source, "r", swmr=True) as cut, h5py.File(target) as whole:
        rows = int(cut["steps/committed"][0])
        assert rows >= 150 and whole["row"].size == rows == whole["steps/committed"][0]
        for name in ("attention/external", "steps/pass", "prediction/token", "frames/delta_end"):
            assert same(cut[name][:rows], whole[name][()]), name
        assert whole["run/complete"][0] == 0
        unfinished = whole["sequences/finish_reason"][()] == 0
        assert np.array_equal(whole["sequences/aborted"][()] != 0, unfinished)
        return unfinished.any()


def check_step_map(source, exported):
    sequences = json.loads(exported.read_text())["sequences"]
    with h5py.File(source) as trace:
        owner = trace["steps/sequence"][()]
        ends = trace["frames/delta_end"][()]
        mask = int(trace["model"].attrs["mask_token_id"])
        for number, item in enumerate(sequences):
            length = int(trace["sequences/gen_length"][number])
            tokens, steps = np.full(length, mask), np.full(length, -1)
            for row in np.flatnonzero(owner == number):
                here = slice(int(ends[row - 1]) if row else 0, int(ends[row]))
                position = trace["frames/position"][here]
                tokens[position] = trace["frames/token"][here]
                steps[position] = trace["frames/step"][here]
            assert item["token_ids"] == tokens.tolist(), number
            assert item["step_map"] == (steps + 1).tolist(), number  # from 1; 0: a mask


def main(tool):
    with tempfile.TemporaryDirectory() as folder:
        place = pathlib.Path(folder)
        first, second = place / "run.r0000.h5", place / "run.r0001.h5"
        for path in (first, second):
            subprocess.run([tool, "fixture", path, "bf16"], check=True)
        with h5py.File(second, "r+") as file:  # no two runs take the same time
            file["steps/pass_time_ns"][...] = file["steps/pass_time_ns"][()] + 1
        blockscope("repack", first, "-o", place / "small.h5", "--compress", "deflate")
        check_compressed(first, place / "small.h5")
        blockscope("export", first, "--format", "step_map", "-o", place / "steps.json")
        check_step_map(first, place / "steps.json")
        for mode in ("--compress=none", "--copy", "--compress=deflate"):
            merged = place / f"{mode}.h5"
            blockscope("repack", first, second, "--merge", "-o", merged, mode)
            check_merged([first, second], merged)
            with h5py.File(merged) as file:
                # Large arrays of the virtual file are in the ranks' files, named from its own folder.
                for name in ("attention/external", "prefix/key", "sets/topk"):
                    parts = file[name].virtual_sources() if file[name].is_virtual else []
                    names = [part.file_name for part in parts]
                    assert names == ([first.name, second.name] if "none" in mode else []), names
                assert not any(item.is_virtual for name, item in stored(file).items()
                               if name.split("/")[1] in ("steps", "frames", "sequences", "row"))
        for attempt in range(8):  # a kill may come just between two sequences
            kill_a_writer(tool, place / f"cut{attempt}.h5")
            partial = place / f"cut{attempt}.h5.partial"
            before = partial.read_bytes()
            blockscope("repack", partial, "--repair", "-o", place / f"whole{attempt}.h5")
            assert partial.read_bytes() == before, "the input changed"
            if check_repaired(partial, place / f"whole{attempt}.h5"):
                break
        else:
            raise AssertionError("no kill left a sequence unfinished")


if __name__ == "__main__":
    main(*sys.argv[1:])
