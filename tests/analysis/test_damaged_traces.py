"""analyze, calibrate and report on damaged traces: random words in random datasets and attributes,
files cut short, flipped bytes. Whatever is in a file, a command ends in time with its answer or with
an error that names the file: test_damaged_traces.py MAKE_TRACE [SEED [ROUNDS]]"""

import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile

import h5py
import numpy as np

from hostile_trace import BINARY, check, spoil

MAKE_TRACE = sys.argv[1]
SEED = int(sys.argv[2]) if len(sys.argv) > 2 else 20260101
ROUNDS = int(sys.argv[3]) if len(sys.argv) > 3 else 60
SHAPES = [[], ["--interleaved", "--unequal", "--blocks", 3], ["--partial"], ["--level", "summary"],
          ["--policy", "flashblock", "--shadow"], ["--record-steps", "1,3", "--record-layers", "0,2"]]


def known(folder):
    """What outside testing and this test found, once each."""
    def num_layers(file):
        file["model"].attrs.modify("num_layers", np.int64(2**24))

    def set_size(file):
        file.attrs.modify("set_size", np.int64(2**24))

    def masks_left(file):
        file["/steps/masks_left"][...] = 2**31 - 1

    def position(file):
        file["/frames/position"][3] = -1

    for change in (num_layers, set_size, masks_left, position):
        path = folder / f"{change.__name__}.h5"
        subprocess.run([MAKE_TRACE, path, "--digest", "0123456789abcdef" * 4], check=True)
        with h5py.File(path, "r+") as file:
            change(file)
        codes = commands(folder, path, change.__name__)
        assert 1 in codes, (change.__name__, codes)


def commands(folder, path, what):
    out = folder / "out"
    return [check(command, path, what)[0] for command in (
        ("analyze", path, "--csv", out, "--force"),
        ("calibrate", path, "--gamma", 0.5, "-o", out, "--force"),
        ("report", path, "-o", out, "--force"))]


def main():
    if not os.access(BINARY, os.X_OK):
        print(f"skipped: no binary at '{BINARY}'; build the target blockscope")
        sys.exit(77)
    rnd = random.Random(SEED)
    codes = []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        known(folder)
        shapes = []
        for i, flags in enumerate(SHAPES):
            path = folder / f"whole{i}.h5"
            subprocess.run([MAKE_TRACE, path, "--digest", "0123456789abcdef" * 4,
                            *map(str, flags)], check=True)
            shapes.append(path if path.exists() else folder / f"whole{i}.h5.partial")
        for _ in range(ROUNDS):
            whole = rnd.choice(shapes)
            path = folder / whole.name.replace("whole", "spoiled")
            shutil.copyfile(whole, path)
            codes += commands(folder, path, spoil(path, rnd))
            path.unlink()
    assert len(set(codes)) > 1, "nothing was damaged"
    print(f"seed {SEED}: {len(codes)} commands on damaged traces, {codes.count(0)} answered, "
          f"{len(codes) - codes.count(0)} refused")


if __name__ == "__main__":
    main()
