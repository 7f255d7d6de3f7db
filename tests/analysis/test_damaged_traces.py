"""analyze, calibrate and report on damaged traces: random words in random datasets and attributes,
files cut short, flipped bytes. Whatever is in a file, a command ends in time with its answer or with
an error that names the file: test_damaged_traces.py MAKE_TRACE [SEED [ROUNDS]]"""

import os
import pathlib
import random
import resource
import shutil
import subprocess
import sys
import tempfile

import h5py
import numpy as np

BINARY = os.environ.get("BLOCKSCOPE_BINARY", "")
MAKE_TRACE = sys.argv[1]
SEED = int(sys.argv[2]) if len(sys.argv) > 2 else 20260101
ROUNDS = int(sys.argv[3]) if len(sys.argv) > 3 else 60
SHAPES = [[], ["--interleaved", "--unequal", "--blocks", 3], ["--partial"], ["--level", "summary"],
          ["--policy", "flashblock", "--shadow"], ["--record-steps", "1,3", "--record-layers", "0,2"]]
INTEGERS = [-1, 0, 1, 2, -2, 7, 255, 1000, 2**16, 2**20, 2**24, 2**30, 2**31 - 1, -2**31]
FLOATS = [np.nan, np.inf, -np.inf, 0.0, 1e30, -1e30, 1e-38, 1.0]
SECONDS, KILOBYTES = 30, 2_000_000
RAW = ("_M_", "std::", "vector", "basic_string", "bad_alloc", "terminate", "map::at")


def spoil_attribute(rnd, file):
    owner = rnd.choice([file, file["model"]])
    name = rnd.choice(list(owner.attrs))
    if isinstance(owner.attrs[name], (bytes, str)):
        value = rnd.choice([b"full", b"summary", b"trajectory", b"x", b"float32"])
    else:
        value = type(owner.attrs[name])(rnd.choice([0, 1, 2, 3, -1, 5, 100, 10**6, 2**24, 2**31]))
    owner.attrs.modify(name, value)
    return f"attribute {owner.name} {name} = {value}"


def spoil_dataset(rnd, file, names):
    data = file[rnd.choice(names)]
    at = tuple(rnd.randrange(length) for length in data.shape)
    if data.dtype.kind in "iu":
        limits = np.iinfo(data.dtype)
        value = max(limits.min, min(limits.max, rnd.choice(INTEGERS)))
    else:
        value = rnd.choice(FLOATS) if data.dtype.kind == "f" else np.zeros((), data.dtype)
    where = ... if rnd.random() < 0.2 and data.size < 20000 else at
    data[where] = value
    return f"{data.name}[{where}] = {value}"


def spoil(rnd, path):
    if rnd.random() < 0.25:
        raw = bytearray(path.read_bytes())
        if rnd.random() < 0.3:
            raw = raw[:rnd.randrange(len(raw))]
        else:
            area = rnd.choice([len(raw), min(len(raw), 20000)])  # structure lies at the front
            for _ in range(rnd.choice([1, 2, 8, 64])):
                raw[rnd.randrange(area)] = rnd.randrange(256)
        path.write_bytes(raw)
        return "bytes"
    done = []
    with h5py.File(path, "r+") as file:
        names = []
        file.visititems(lambda name, node: names.append(name)
                        if isinstance(node, h5py.Dataset) and node.size else None)
        words = [n for n in names if n.startswith(("steps", "frames", "sequences", "sets"))]
        for _ in range(rnd.choice([1, 1, 1, 2, 4])):
            if rnd.random() < 0.15:
                done.append(spoil_attribute(rnd, file))
            else:
                done.append(spoil_dataset(rnd, file, words if rnd.random() < 0.6 else names))
    return "; ".join(done)


def limited():
    """A child that asks for more than it may have ends at once instead of taking the machine's."""
    resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))


def check(folder, path, what, *arguments):
    process = subprocess.Popen([BINARY, *map(str, arguments)], stdout=subprocess.DEVNULL,
                               stderr=subprocess.PIPE, text=True, errors="replace", cwd=folder,
                               preexec_fn=limited)
    try:
        _, error = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise AssertionError(f"{arguments}: longer than {SECONDS} s after {what}") from None
    told = f"{arguments[0]}: {process.returncode} after {what}\n{error[-600:]}"
    assert process.returncode in (0, 1, 2), told
    assert not any(word in error for word in RAW), told
    assert process.returncode != 1 or path.name in error, told
    most = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    assert most < KILOBYTES, f"{most} KB: {told}"
    return process.returncode


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
    return [check(folder, path, what, "analyze", path, "--csv", out, "--force"),
            check(folder, path, what, "calibrate", path, "--gamma", 0.5, "-o", out, "--force"),
            check(folder, path, what, "report", path, "-o", out, "--force")]


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
            codes += commands(folder, path, spoil(rnd, path))
            path.unlink()
    assert len(set(codes)) > 1, "nothing was damaged"
    print(f"seed {SEED}: {len(codes)} commands on damaged traces, {codes.count(0)} answered, "
          f"{len(codes) - codes.count(0)} refused")


if __name__ == "__main__":
    main()
