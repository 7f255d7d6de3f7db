"""Damages traces at random, and runs commands on them that must end in time, within their memory, and
with an answer or one line that names the file."""

import os
import resource
import shutil
import signal
import subprocess
import time

import h5py
import numpy as np

import outside_trace

BINARY = os.environ.get("BLOCKSCOPE_BINARY", "")
SECONDS, MEMORY = 30, 2 << 30
INTEGERS = (-1, 0, 1, 2, -2, 7, 255, 1000, 9999, 2**16, 2**20, 2**24, 2**30, 2**40, 2**62)
FLOATS = (float("nan"), float("inf"), -float("inf"), -1.0, 0.0, 1.0, 1e30, -1e30, 1e-38)
RAW = ("_M_", "std::", "vector", "basic_string", "bad_alloc", "terminate", "map::at")
NOTES = ("note: ", "blockscope: warning: ")
SURE = "refused: "


def flip_bytes(path, chance):
    data = bytearray(path.read_bytes())
    near = chance.choice((200, 20000, len(data)))  # structure is at the front
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
        return chance.choice(FLOATS)
    info = np.iinfo(dtype)
    value = chance.choice((*INTEGERS, int(info.min), int(info.max), chance.randrange(int(info.max))))
    return max(int(info.min), min(int(info.max), value))


def set_attribute(file, chance):
    holder = chance.choice((file, file["model"]))
    key = chance.choice(list(holder.attrs))
    if isinstance(holder.attrs[key], (bytes, str)):
        value = chance.choice((b"full", b"summary", b"trajectory", b"x", b"float32"))
    elif isinstance(holder.attrs[key], np.integer):
        value = np.int64(extreme(np.dtype("i8"), chance))
    else:
        value = type(holder.attrs[key])(chance.choice((0, 1, -1, 5, 1e30)))
    holder.attrs.modify(key, value)
    return f"attribute {key} = {value}"


def set_values(path, chance):
    """Through HDF5, so that checksums fit: values, sometimes extents and attributes."""
    names = []
    with h5py.File(path, "r+") as file:
        file.visititems(lambda name, item: names.append(name)
                        if isinstance(item, h5py.Dataset) and item.size else None)
        told = []
        words = [n for n in names if n.startswith(("steps", "frames", "sequences", "sets"))]
        for _ in range(chance.choice((1, 1, 1, 2, 5))):
            name = chance.choice(words if chance.random() < 0.5 else names)
            item = file[name]
            what = chance.random()
            if what < 0.08 and item.maxshape[0] is None:
                length = chance.choice((0, 1, item.shape[0] // 2, item.shape[0] * 2, 10**6, 2**40))
                item.resize(length, 0)
                told.append(f"{name} resized to {length}")
            elif what < 0.2:
                told.append(set_attribute(file, chance))
            elif item.size and item.dtype.kind in "iuf" and item.dtype.itemsize > 0:
                at = tuple(chance.randrange(n) for n in item.shape)
                if chance.random() < 0.1 and item.size < 20000:
                    at = ...
                value = extreme(item.dtype, chance) if item.dtype.itemsize != 2 else float("nan")
                item[at] = value
                told.append(f"{name}{at} = {value}")
    return ", ".join(told)


def lead_outside(path, chance):
    other = path.with_name("other.h5")
    shutil.copy(path, other)
    names = []
    with h5py.File(path, "r+") as file:
        file.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) and "/" in name
                        and item.ndim else None)
        name, way = f"/{chance.choice(names)}", chance.choice(outside_trace.REACHES)
        way(file, name, other)
    return f"{SURE}{name} {way.__name__}"


def spoil_text(path, chance):
    place = chance.choice(("/run/json", "/model/json"))
    with h5py.File(path, "r+") as file:
        text = bytearray(file[place][:].tobytes())
        what = chance.randrange(3)
        if what == 0:
            text = text[:chance.randrange(len(text))]
        elif what == 1:
            text = chance.choice((b"{}", b"[]", b"null", b"7", b"x" * 1000, b"[" * 100000))
        else:
            text[chance.randrange(len(text))] = 0xFF
        del file[place]
        file.create_dataset(place, data=np.frombuffer(bytes(text), np.uint8))
    return f"{SURE}{place} is {bytes(text[:50])}"


def spoil(path, chance):
    """-> what was done to it; a trace that is being written can't be opened to set values. What begins with
    SURE must be refused by every command."""
    kinds = (flip_bytes, truncate, set_values, set_values, set_values, lead_outside, spoil_text)
    return chance.choice(kinds[:2] if path.suffix == ".partial" else kinds)(path, chance)


def limits():
    # Address space is more than memory: what reserves 4 GB may use 2.
    resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30, 1 << 30))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)


def check(command, path, told):
    """-> exit code, seconds"""
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
    assert code in (0, 1, 2) and not any(word in err for word in RAW), (command, code, err, told)
    errors = [line for line in err.splitlines() if line.startswith("blockscope: error: ")]
    notes = [line for line in err.splitlines() if line.startswith(NOTES)]
    assert len(errors) == (code != 0 and command[0] != "diff" or bool(errors)), (command, err, told)
    assert len(errors) + len(notes) == len(err.splitlines()), (command, err, told)
    if errors and code == 1:
        assert path.name in errors[0], (command, err, told)
    most = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    assert most < MEMORY, (command, most, told)
    return code, time.monotonic() - begin
