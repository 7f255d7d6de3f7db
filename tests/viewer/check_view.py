"""`blockscope view` as a user runs it: pictures under Xvfb, and errors a person can act on."""

import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile
import zlib

import numpy as np

BINARY = os.environ["BLOCKSCOPE_BINARY"]
TRACE = "tests/data/trace_schema_1.h5"


def view(*arguments, display=True):
    command = [BINARY, "view", *map(str, arguments)]
    environment = dict(os.environ)
    if display:
        command = ["xvfb-run", "-a", "-s", "-screen 0 2600x1700x24", *command]
    else:
        environment.pop("DISPLAY", None)
        environment.pop("WAYLAND_DISPLAY", None)
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


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


def check_pictures(folder):
    for panel in ("trajectory", "heads", "heatmap", "curves", "calibration", "run"):
        path = folder / f"{panel}.png"
        result = view(TRACE, "--screenshot", path, "--panel", panel, "--width", 640, "--height", 480)
        assert result.returncode == 0, (panel, result.stderr)
        pixels = read_png(path)
        assert pixels.shape[:2] == (480, 640), pixels.shape
        colours = len(np.unique(pixels[:, :, :3].reshape(-1, 3), axis=0))
        assert colours > 30, f"{panel}: {colours} colours, as good as blank"
        again = folder / f"{panel}-again.png"
        view(TRACE, "--screenshot", again, "--panel", panel, "--width", 640, "--height", 480)
        assert again.read_bytes() == path.read_bytes(), f"{panel}: two pictures of one thing differ"


def check_refusals(folder):
    def refused(code, text, *arguments, display=True):
        before = sorted(folder.iterdir())
        result = view(*arguments, display=display)
        assert result.returncode == code, (arguments, result.returncode, result.stderr)
        assert text in result.stderr, (arguments, result.stderr)
        assert sorted(folder.iterdir()) == before, "something was left behind"

    out = folder / "refused.png"
    refused(1, "README.md", "README.md", "--screenshot", out)
    refused(1, "nowhere.h5", folder / "nowhere.h5", "--screenshot", out)
    refused(2, "trajectory, heads", TRACE, "--screenshot", out, "--panel", "pancake")
    refused(2, "viridis, magma", TRACE, "--screenshot", out, "--colormap", "jet")
    refused(2, "name=number", TRACE, "--screenshot", out, "--select", "step")
    refused(2, "layer 99", TRACE, "--screenshot", out, "--select", "layer=99")
    refused(2, "--force", TRACE, "--screenshot", folder / "run.png")
    refused(1, "can't write", TRACE, "--screenshot", folder / "no" / "folder.png")
    reuse = {"format": "blockscope-reuse", "format_version": 1, "reuse": [[True] * 6] * 6,
             "model": {"layers": 6, "heads": 6, "digest": "b" * 64}}
    (folder / "other.json").write_text(json.dumps(reuse))
    refused(1, "model.digest", TRACE, "--screenshot", out, "--reuse", folder / "other.json")
    refused(1, "none.json", TRACE, "--screenshot", out, "--reuse", folder / "none.json")
    refused(1, "xvfb-run", TRACE, "--screenshot", out, display=False)


if shutil.which("xvfb-run") is None:
    print("no xvfb-run: skipped")
    sys.exit(77)
if view("--help", display=False).returncode != 0:
    print("this build has no viewer: skipped")
    sys.exit(77)
with tempfile.TemporaryDirectory() as name:
    check_pictures(pathlib.Path(name))
    check_refusals(pathlib.Path(name))
print("pictures of six panels and eleven refusals checked")
