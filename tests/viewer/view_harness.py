"""Runs `blockscope view` without a display and reads its output, for the scripts in this folder."""

import csv
import os
import struct
import subprocess
import sys
import zlib

import numpy as np

BINARY = os.environ["BLOCKSCOPE_BINARY"]


def without_display():
    return {name: value for name, value in os.environ.items() if name not in ("DISPLAY", "WAYLAND_DISPLAY")}


def view(*arguments, measure=None):
    command = [BINARY, "view", *map(str, arguments)]
    if measure is not None:  # the largest memory of the viewer
        code = ("import resource, subprocess, sys\n"
                "done = subprocess.run(sys.argv[2:])\n"
                "most = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss\n"
                "open(sys.argv[1], 'w').write(f'KB {most}')\nsys.exit(done.returncode)")
        command = [sys.executable, "-c", code, str(measure), *command]
    return subprocess.run(command, env=without_display(), capture_output=True, text=True, timeout=120)


def read_png(path):
    """Pixels [height, width, channel] of an 8-bit RGB(A) PNG, by the specification."""
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n", data[:8]
    at, packed, header = 8, b"", None
    while at < len(data):
        (length,), kind = struct.unpack(">I", data[at : at + 4]), data[at + 4 : at + 8]
        body = data[at + 8 : at + 8 + length]
        if kind == b"IHDR":
            header = struct.unpack(">IIBBBBB", body)
        elif kind == b"IDAT":
            packed += body
        at += 12 + length
    width, height, depth, colour = header[:4]
    assert depth == 8 and colour in (2, 6), header
    channels = 3 if colour == 2 else 4
    stride = width * channels
    raw = np.frombuffer(zlib.decompress(packed), np.uint8).reshape(height, stride + 1)
    out = np.zeros((height, stride), np.int64)
    for y in range(height):
        kind, line = raw[y, 0], raw[y, 1:].astype(np.int64)
        above = out[y - 1] if y else np.zeros(stride, np.int64)
        if kind == 0:
            out[y] = line
        elif kind == 2:
            out[y] = (line + above) & 255
        else:
            for x in range(stride):
                left = out[y, x - channels] if x >= channels else 0
                corner = above[x - channels] if x >= channels else 0
                if kind == 1:
                    guess = left
                elif kind == 3:
                    guess = (left + above[x]) // 2
                else:
                    estimate = left + above[x] - corner
                    distances = abs(estimate - left), abs(estimate - above[x]), abs(estimate - corner)
                    guess = (left, above[x], corner)[int(np.argmin(distances))]
                out[y, x] = (line[x] + guess) & 255
    return out.reshape(height, width, channels)


def read_table(path):
    """A CSV file as a header and rows of texts."""
    rows = list(csv.reader(path.open()))
    return rows[0], rows[1:]


def read_csv(path):
    """The same with numbers; empty cells are NaN."""
    header, rows = read_table(path)
    return header, [[float(cell) if cell else np.nan for cell in row] for row in rows]


def skip_without_viewer():
    if view("--help").returncode != 0:
        print("this build has no viewer: skipped")
        sys.exit(77)
