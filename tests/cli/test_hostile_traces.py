"""Traces that were damaged at random, through every command that reads them.

test_hostile_traces.py TRACE_TOOL [SEED [ROUNDS]]

Whatever is in the file: no command dies of a signal, takes more than 30 s or 2 GB, or ends with
another code than 0, 1 and 2; an error is one line that names the file; the file stays as it was."""

import os
import pathlib
import random
import resource
import signal
import subprocess
import sys
import time

import h5py
import numpy as np

from capture_harness import BINARY, require_binary, temporary_folder
import test_trace_damage as damage

SECONDS, MEMORY = 30, 2 << 30


def limits():
    # Address space is more than memory: what reserves 4 GB may use 2.
    resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30, 1 << 30))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)


def flip_bytes(path, chance):
    data = bytearray(path.read_bytes())
    near = chance.choice((200, 20000, len(data)))
    for _ in range(chance.choice((1, 3, 30))):
        data[chance.randrange(min(near, len(data)))] = chance.randrange(256)
    path.write_bytes(data)
    return "bytes flipped"


def truncate(path, chance):
    size = chance.randrange(path.stat().st_size)
    os.truncate(path, size)
    return f"cut to {size} bytes"


def extreme(dtype, chance):
    if dtype.kind == "f":
        return chance.choice((float("nan"), float("inf"), -float("inf"), -1.0, 1e30, 0.0))
    info = np.iinfo(dtype)
    return chance.choice((info.min, info.max, 0, 1, info.max // 2, chance.randrange(int(info.max)))
                         + ((-1, -2) if dtype.kind == "i" else ()))


def set_values(path, chance):
    """Through HDF5, so that checksums fit: values, sometimes extents and attributes."""
    names = []
    with h5py.File(path, "r+") as file:
        file.visititems(lambda name, item: names.append(name)
                        if isinstance(item, h5py.Dataset) and item.size else None)
        told = []
        for _ in range(chance.choice((1, 1, 2, 5))):
            name = chance.choice(names)
            item = file[name]
            what = chance.random()
            if what < 0.08 and item.maxshape[0] is None:
                length = chance.choice((0, 1, item.shape[0] // 2, item.shape[0] * 2, 10**6, 2**40))
                item.resize(length, 0)
                told.append(f"{name} resized to {length}")
            elif what < 0.14:
                holder = chance.choice((file, file["model"]))
                key = chance.choice(list(holder.attrs))
                if isinstance(holder.attrs[key], np.integer):
                    value = extreme(np.dtype("i8"), chance)
                    holder.attrs.modify(key, np.int64(value))
                    told.append(f"attribute {key} = {value}")
            elif item.size and item.dtype.kind in "iuf" and item.dtype.itemsize > 0:
                at = tuple(chance.randrange(n) for n in item.shape)
                value = extreme(item.dtype, chance) if item.dtype.itemsize != 2 else float("nan")
                item[at] = value
                told.append(f"{name}{at} = {value}")
    return ", ".join(told)


def commands(path, other, folder):
    yield "info", path, "--datasets"
    yield "info", path, "--json"
    yield "export", path
    yield "export", path, "--format", "frames", "-o", folder / "out.json", "--force"
    yield "diff", path, other
    yield "diff", other, path, "--ignore-aborted"
    yield "analyze", path, "--threads", "1"
    yield "report", path, "-o", folder / "out.html", "--force", "--threads", "1"
    yield "repack", path, "-o", folder / "out.h5", "--force", "-q"
    yield "repack", path, "--repair", "-o", folder / "out.h5", "--force", "-q"


def check(command, path, told):
    begin = time.monotonic()
    process = subprocess.Popen([BINARY, *map(str, command)], stdout=subprocess.DEVNULL,
                               stderr=subprocess.PIPE, preexec_fn=limits)
    try:
        _, err = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        raise AssertionError(f"{command}: more than {SECONDS} s: {told}") from None
    err = err.decode(errors="replace")
    code = process.returncode
    assert code in (0, 1, 2), (command, code, err, told)
    errors = [line for line in err.splitlines() if line.startswith("blockscope: error: ")]
    notes = [line for line in err.splitlines() if line.startswith("note: ")]
    assert len(errors) == (code != 0 and command[0] != "diff" or bool(errors)), (command, err, told)
    assert len(errors) + len(notes) == len(err.splitlines()), (command, err, told)
    if errors:
        assert path.name in errors[0], (command, err, told)
    return code, time.monotonic() - begin


def test_round(folder, sources, chance, number):
    original = chance.choice(sources)
    path = folder / f"hostile{''.join(original.suffixes)}"
    path.write_bytes(original.read_bytes())
    kinds = (flip_bytes, truncate, set_values, set_values)
    if original.suffix == ".partial":
        kinds = (flip_bytes, truncate)
    told = f"round {number}, {original.name}: {chance.choice(kinds)(path, chance)}"
    before = path.read_bytes()
    results = []
    for command in commands(path, original, folder):
        results.append(check(command, path, told))
        assert path.read_bytes() == before, (command, told, "the file was changed")
    path.unlink()
    return results


def main(tool, seed, rounds):
    damage.TOOL = tool
    print(f"seed {seed}, {rounds} rounds", flush=True)
    chance = random.Random(seed)
    runs = refused = 0
    slowest = 0.0
    with temporary_folder() as name:
        folder = pathlib.Path(name)
        sources = [damage.fixture(folder), damage.killed(folder, 60)]
        for number in range(rounds):
            results = test_round(folder, sources, chance, number)
            runs += len(results)
            refused += sum(code != 0 for code, _ in results)
            slowest = max(slowest, *(seconds for _, seconds in results))
    memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    print(f"{runs} runs, {refused} refused, slowest {slowest:.1f} s, most memory {memory >> 20} MiB")
    assert memory < MEMORY and refused > runs // 4


if __name__ == "__main__":
    require_binary()
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(10**6),
         int(sys.argv[3]) if len(sys.argv) > 3 else 25)
