"""`blockscope view` as a user runs it: pictures without a display, and errors a person can act on."""

import json
import pathlib
import re
import shutil
import subprocess
import tempfile

import numpy as np
from view_harness import BINARY, read_csv, read_png, skip_without_viewer, view, without_display

TRACE = "tests/data/trace_schema_1.h5"
MODEL = "models/needle"


def check_pictures(folder):
    for panel in ("trajectory", "heads", "heatmap", "curves", "selection", "calibration", "run"):
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


def colour_table():
    text = pathlib.Path("viewer/model/colormap_tables.inc").read_text()
    digits = "".join(re.findall(r'"([0-9a-f]+)"', text.split("kViridis")[1].split(";")[0]))
    return np.array([[int(digits[i + j : i + j + 2], 16) for j in (0, 2, 4)] for i in range(0, 6 * 256, 6)])


def places(pixels, values, low, high):
    """Centre in pixels of every cell whose colour no other cell has: {(row, column): (y, x)}."""
    index = np.floor(np.nan_to_num((values - low) / (high - low)) * 255 + 0.5).astype(int)
    found = {}
    for cell in np.ndindex(values.shape):
        if np.isnan(values[cell]) or np.count_nonzero(index == index[cell]) > 1:
            continue
        ys, xs = np.nonzero((pixels == colour_table()[index[cell]]).all(axis=2))
        if len(ys) > 60:
            found[cell] = np.median(ys), np.median(xs)
    return found


def check_the_right_way_round(folder):
    """Cells are where the numbers say: rows downwards, columns to the right."""

    def draw(panel):
        out, numbers = folder / f"way-{panel}.png", folder / f"way-{panel}.csv"
        result = view(TRACE, "--screenshot", out, "--csv", numbers, "--panel", panel, "--width", 900,
                      "--height", 900, "--colormap", "viridis")
        assert result.returncode == 0, result.stderr
        pixels = read_png(out)[:, :-100, :3]  # without the colour bar, which has every colour
        return pixels, *read_csv(numbers)

    def compare(found, what):
        assert len(found) >= 3, f"{what}: only {len(found)} cells with a colour of their own found"
        cells = sorted(found)
        turned = 0
        for a in cells:
            for b in cells:
                for axis in (0, 1):
                    if a[axis] >= b[axis]:
                        continue
                    assert found[a][axis] < found[b][axis], f"{what}: {a} and {b} are swapped: {found}"
                    turned |= 1 << axis
        assert turned == 3, f"{what}: the cells found don't span both axes: {found}"

    pixels, header, rows = draw("heads")
    assert header[:2] == ["layer", "head"] and "cosine" in header[2], header
    heads = len({row[1] for row in rows})
    grid = np.array([row[2] for row in rows]).reshape(-1, heads)
    compare(places(pixels, grid, np.nanmin(grid), np.nanmax(grid)), "heads")

    pixels, header, rows = draw("heatmap")
    size = int(len(rows) ** 0.5)
    external = np.array([row[2] for row in rows]).reshape(size, size)
    internal = np.array([row[3] for row in rows]).reshape(size, size)
    low, high = (f(np.stack([external, internal])) for f in (np.nanmin, np.nanmax))
    # x: the token of the first step, so the picture is the transposed matrix; A_out is above.
    compare(places(pixels[:450], external.T, low, high), "heatmap, A_out")
    compare(places(pixels[450:], internal.T, low, high), "heatmap, A_in")


def check_numbers(folder):
    for panel in ("trajectory", "heads", "heatmap", "curves", "selection", "calibration", "run"):
        path = folder / f"{panel}.csv"
        result = view(TRACE, "--csv", path, "--panel", panel)
        assert result.returncode == 0, (panel, result.stderr)
        assert len(path.read_text().splitlines()) > 2, panel
    other = folder / "other.h5"
    shutil.copyfile(TRACE, other)
    path = folder / "compare.csv"
    picture = folder / "compare.png"
    result = view(TRACE, other, "--panel", "compare", "--csv", path, "--screenshot", picture)
    assert result.returncode == 0, result.stderr
    for panel, mode, column in (
        ("compare", "steps", "B - A"),
        ("compare", "tokens", "state"),
        ("compare", "queries", "element"),
        ("heatmap", "steps", "other step"),
        ("heatmap", "sets", "rank"),
        ("curves", "heads", "A_out"),
        ("curves", "recall-sizes", "k"),
        ("curves", "unions", "first steps"),
        ("selection", "first", "rank in step 1's set"),
    ):
        numbers = folder / f"{panel}-{mode}.csv"
        result = view(TRACE, other, "--panel", panel, "--show", f"{panel}={mode}", "--csv", numbers)
        assert result.returncode == 0, (panel, mode, result.stderr)
        lines = numbers.read_text().splitlines()
        assert column in lines[0] and len(lines) > 2, (panel, mode, lines[:3])
    header, rows = read_csv(path)
    assert header[-1].startswith("B - A"), header
    values = np.array(rows)
    assert np.nanmax(np.abs(values[:, 4])) == 0 and np.isfinite(values[:, 2]).any(), values
    assert len(np.unique(read_png(picture)[:, :, :3].reshape(-1, 3), axis=0)) > 30


def check_refusals(folder):
    def refused(code, text, *arguments):
        before = sorted(folder.iterdir())
        result = view(*arguments)
        assert result.returncode == code, (arguments, result.returncode, result.stderr)
        assert text in result.stderr, (arguments, result.stderr)
        assert sorted(folder.iterdir()) == before, "something was left behind"

    out = folder / "refused.png"
    refused(1, "README.md", "README.md", "--screenshot", out)
    for name in ("run.jpg", "run.svg", "run.h5"):
        refused(2, "expected a PNG file", TRACE, "--screenshot", folder / name)
    refused(1, "nowhere.h5", folder / "nowhere.h5", "--screenshot", out)
    refused(2, "trajectory, attention, heads", TRACE, "--screenshot", out, "--panel", "pancake")
    refused(2, "viridis, magma", TRACE, "--screenshot", out, "--colormap", "jet")
    refused(2, "name=number", TRACE, "--screenshot", out, "--select", "step")
    refused(2, "layer 99", TRACE, "--screenshot", out, "--select", "layer=99")
    refused(2, "--force", TRACE, "--screenshot", folder / "run.png")
    refused(2, "33554432 pixels", TRACE, "--screenshot", out, "--width", 16384, "--height", 16384)
    refused(2, "8193 x 4096", TRACE, "--screenshot", out, "--width", 8193, "--height", 4096)
    refused(1, "no/folder.png", TRACE, "--screenshot", folder / "no" / "folder.png")
    refused(1, "no/folder.csv", TRACE, "--csv", folder / "no" / "folder.csv", "--panel", "heads")
    refused(2, "heads|steps|tokens|queries", TRACE, "--csv", folder / "out.csv", "--panel", "compare",
            "--show", "compare=pancake")
    refused(2, "selection=read|first", TRACE, "--screenshot", out, "--show", "selection=pancake")
    refused(2, "expected one panel", TRACE, "--csv", folder / "out.csv")
    refused(1, "no numbers", TRACE, "--csv", folder / "out.csv", "--panel", "compare")
    reuse = {"format": "blockscope-reuse", "format_version": 1, "reuse": [[True] * 6] * 6,
             "model": {"layers": 6, "heads": 6, "digest": "b" * 64}}
    (folder / "other.json").write_text(json.dumps(reuse))
    refused(1, "model.digest", TRACE, "--screenshot", out, "--reuse", folder / "other.json")
    refused(1, "none.json", TRACE, "--screenshot", out, "--reuse", folder / "none.json")
    refused(1, "--serve", TRACE)  # no display for a window
    # Before any window, so also where there is no display to open one on.
    refused(1, "nowhere.h5", folder / "nowhere.h5")
    refused(1, "README.md", TRACE, "README.md")


def check_a_trace_without_rows(folder):
    """As a run leaves it before its first step: here the share of a rank that has no prompts."""
    trace = folder / "none.h5"
    if subprocess.run([BINARY, "capture", "--help"], capture_output=True).returncode != 0:
        return  # a build without the runtime
    made = subprocess.run([BINARY, "capture", MODEL, "--input-ids", "5", "--ranks", "1/2", "-q", "-o", trace],
                          capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    (trace,) = folder.glob("none*.h5")
    for output in (["--screenshot", folder / "none.png"], ["--csv", folder / "none.csv", "--panel", "heads"]):
        result = view(trace, *output)
        assert result.returncode == 1, (output, result.stderr)
        assert "no row is committed yet" in result.stderr, result.stderr
        assert not pathlib.Path(output[1]).exists()


def check_the_largest_window(folder):
    help_text = view("--help")
    if help_text.returncode == 0:
        assert "8192 x 4096" in help_text.stdout
    result = view(TRACE, "--screenshot", folder / "large.png", "--width", 8192, "--height", 4096,
                  "--scale", 8, "--panel", "heads", measure=folder / "memory")
    assert result.returncode == 0, result.stderr
    kilobytes = int((folder / "memory").read_text().split()[-1])
    assert kilobytes < 1_000_000, f"{kilobytes} KB"
    for path in ("large.png", "memory"):
        (folder / path).unlink()


def check_damage(folder):
    """Values that can't be end with a message that names the file, in every panel."""
    import h5py

    def spoil(name, change):
        path = folder / f"{name}.h5"
        shutil.copyfile(TRACE, path)
        with h5py.File(path, "r+") as file:
            change(file)
        return path

    def position(file):
        file["/frames/position"][3] = -1

    def starts(file):
        file["/steps/block_start"][:] = 2**31 - 5

    def tokens(file):
        file["/frames/token"][:] = 10**6

    def layers(file):
        file["/layer"][0] = 900

    def heads(file):
        file["/model"].attrs.modify("num_heads", 2)

    out = folder / "damaged.png"
    for name, change, panel in (("position", position, "trajectory"), ("layers", layers, "heads"),
                                ("heads", heads, "heads")):
        path = spoil(name, change)
        for output in (["--screenshot", out], ["--csv", folder / "damaged.csv"]):
            result = view(path, *output, "--panel", panel)
            assert result.returncode == 1, (name, result.returncode, result.stderr)
            assert f"{name}.h5" in result.stderr and "blockscope: error: " in result.stderr, result
            assert not out.exists() and not (folder / "damaged.csv").exists()
    for name, change in (("starts", starts), ("tokens", tokens)):  # odd, refused or shown
        result = view(spoil(name, change), "--screenshot", out, "--force")
        assert result.returncode in (0, 1) and "range" not in result.stderr, (name, result)
        assert result.returncode == 0 or f"{name}.h5" in result.stderr, result
        out.unlink(missing_ok=True)
    for path in folder.glob("*.h5"):
        path.unlink()


def check_signals(folder):
    """A picture that a signal stops leaves no file, under its name or another."""
    stopped = 0
    for delay in (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8):
        place = folder / f"after{delay}"
        place.mkdir()
        script = (f"'{BINARY}' view {TRACE} --screenshot {place}/a.png --csv {place}/a.csv --panel heads & "
                  f"sleep {delay}; kill -TERM $!; wait $!")
        result = subprocess.run(["sh", "-c", script], env=without_display(), capture_output=True, text=True)
        left = {path.name for path in place.iterdir()}
        if result.returncode == 143:
            stopped += 1
            assert left == set() and "stopped by a signal: nothing was written" in result.stderr, (delay, left, result)
        else:
            assert result.returncode == 0 and left == {"a.png", "a.csv"}, (delay, left, result)
    assert stopped > 0


skip_without_viewer()
with tempfile.TemporaryDirectory() as name:
    check_the_largest_window(pathlib.Path(name))
    check_damage(pathlib.Path(name))
    check_pictures(pathlib.Path(name))
    check_the_right_way_round(pathlib.Path(name))
    check_numbers(pathlib.Path(name))
    check_refusals(pathlib.Path(name))
    check_a_trace_without_rows(pathlib.Path(name))
    check_signals(pathlib.Path(name))
print("pictures and numbers of the panels, their orientation, memory, damage and refusals checked")
