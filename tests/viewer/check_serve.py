"""`blockscope view --serve` in Chromium: a person opens, selects, scrubs, moves gamma, saves, compares; what comes out is
compared with the window, with `view --csv` and with `calibrate`. Arguments: check_serve.py [BENCH_VIEWER]. Longer than
other tests, because each check is one visit from opening to leaving."""

import base64
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

import numpy as np
from view_harness import BINARY, read_png, skip_without_viewer, view, without_display

sys.path.append(str(pathlib.Path(__file__).parents[1]))
from browser import Browser, skip_without_browser  # noqa: E402

TRACE = "tests/data/trace_schema_1.h5"
START = ["--select", "sequence=0,block=6,step=1"]
SIZE = 900, 700


class Serving:
    """A server with its address, until the block ends. Pages start where the trace does."""

    def __init__(self, *arguments):
        begin = [] if pathlib.Path(arguments[0]).is_dir() else START
        self.process = subprocess.Popen([BINARY, "view", *map(str, arguments), *begin, "--serve"], stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, text=True, env=without_display())
        self.url = self.process.stdout.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?key=[0-9a-f]{32}", self.url), self.process.stderr.read()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        _, problem = self.process.communicate(timeout=20)
        assert self.process.returncode == 143, problem


class Page(Browser):
    def __init__(self, *size):
        super().__init__(*(size or SIZE), webgl=True)

    def look(self, url):
        self.open(url)
        self.wait("blockscope.frames > 0 && location.hash.length > 1")
        self.settle()

    def settle(self):
        """Until no frame has come for a while."""
        seen = -1
        while (now := self.evaluate("blockscope.frames")) != seen:
            seen = now
            time.sleep(0.4)

    def link(self):
        parts = self.evaluate("location.hash.slice(1)").split("&")
        return {name: int(value) if value.isdigit() else value for name, value in (part.split("=") for part in parts)}

    def expect(self, **wanted):
        """Until the link names these values."""
        deadline = time.monotonic() + 10
        while not all(self.link().get(name) == value for name, value in wanted.items()):
            assert time.monotonic() < deadline, f"expected {wanted}, found {self.link()}"
            time.sleep(0.02)

    def press(self, x, y):
        self.mouse(x, y)
        self.settle()
        self.mouse(x, y, click=True)
        self.settle()

    def pixels(self):
        """What the page shows [height, width, RGB]. It drew only what changed, so drawing all must change nothing."""
        self.settle()
        shown = self.read_pixels()
        self.evaluate("damage.add([0, 0, display.width, display.height]); draw(); 1")
        stale = (shown != self.read_pixels()).any(axis=2)
        assert not stale.any(), f"{stale.sum()} pixels are stale, around {np.argwhere(stale).mean(axis=0)}"
        return shown

    def read_pixels(self):
        width, height, text = self.evaluate("""(() => {
          const rgba = new Uint8Array(4 * canvas.width * canvas.height);
          gl.readPixels(0, 0, canvas.width, canvas.height, gl.RGBA, gl.UNSIGNED_BYTE, rgba);
          let text = "";
          for (let i = 0; i < rgba.length; i += 30000) text += String.fromCharCode(...rgba.subarray(i, i + 30000));
          return [canvas.width, canvas.height, btoa(text)];
        })()""")
        rgba = np.frombuffer(base64.b64decode(text), np.uint8).reshape(height, width, 4)
        return rgba[::-1, :, :3].astype(int)

    def export(self, item):
        """An item of the only panel's menu Export: 0 picture, 1 numbers, 2 copy."""
        self.press(32, 52)
        self.press(60, 75 + 22 * item)


def downloaded(folder, pattern):
    """The file that arrives in the folder, whole."""
    deadline = time.monotonic() + 10
    while not (found := [path for path in folder.glob(pattern) if path.suffix != ".crdownload"]):
        assert time.monotonic() < deadline, f"{pattern} did not arrive, but {list(folder.iterdir())}"
        time.sleep(0.05)
    time.sleep(0.1)
    return found[0]


def check_the_picture(folder, bench):
    """The page shows what the window shows."""
    if bench is None or shutil.which("xvfb-run") is None:
        return print("no window to compare with")
    with Serving(TRACE) as server, Page(1440, 900) as page:
        page.look(server.url)
        page.evaluate("document.activeElement.blur()")
        page.settle()
        page.screenshot(folder / "page.png")
        shown = read_png(folder / "page.png")[:, :, :3]
        assert not page.messages, page.messages
    window = folder / "window.png"
    subprocess.run(["xvfb-run", "-a", "-s", "-screen 0 2600x1700x24", bench, TRACE, "--picture", window, *START],
                   check=True, capture_output=True)
    expected = read_png(window)[:, :, :3]
    assert shown.shape == expected.shape, (shown.shape, expected.shape)
    far = np.abs(shown - expected).max(axis=2)
    # Letters and lines are smoothed by another renderer; a border between cells may move by one row.
    print(f"page against window: {(far > 8).mean():.4%} of the pixels differ by more than 8 of 255, "
          f"{(far > 64).mean():.4%} by more than 64")
    assert (far > 8).mean() < 0.005 and (far > 64).mean() < 0.001


def check_selecting(folder):
    with Serving(TRACE, "--panel", "trajectory") as server, Page() as page:
        page.look(server.url)
        page.expect(sequence=0, block=6, step=1, layer=1, head=0, panel="trajectory")
        page.key("ArrowRight")
        page.expect(step=2)
        page.key("ArrowDown")
        page.expect(layer=4)
        page.key("]")
        page.expect(head=1)
        page.key("PageDown")
        page.expect(block=7, step=1)
        # Scrubbing: the slider spans the sequence's eleven steps.
        page.drag([(240, 82), (400, 82), (640, 82), (884, 82)])
        page.expect(block=7, step=8)
        page.drag([(884, 82), (220, 82)])
        page.expect(block=6, step=1)
        page.mouse(168, 228, click=True)  # the third row of the grid, the last position of the block
        page.expect(step=3, token=7)
        page.mouse(24, 82, click=True)  # Play
        page.wait("location.hash.includes('block=7&step=8')")
    with Serving(TRACE, "--panel", "heads") as server, Page() as page:
        page.look(server.url)
        page.mouse(430, 480, click=True)
        page.expect(layer=4, head=1)
        before = page.pixels()
        page.wheel(430, 360, -300)
        zoomed = page.pixels()
        assert (before != zoomed).any(axis=2).mean() > 0.02, "the wheel does not zoom"
        page.key("F1")
        assert (zoomed != page.pixels()).any(axis=2).mean() > 0.02, "F1 shows no keys"
        page.key("F1")
        page.key("d")
        light = page.pixels()
        assert light.mean() > before.mean() + 50, "D does not change the colours"
        page.downloads(folder)
        page.press(90, 82)  # the list of metrics
        page.press(90, 132)  # its second entry
        page.export(1)
        done = view(TRACE, "--panel", "heads", "--show", "heads=similarity_internal", "--csv", folder / "expected.csv")
        assert done.returncode == 0, done.stderr
        chosen = downloaded(folder, "trace_schema_1-heads-*.csv").read_text()
        assert chosen == (folder / "expected.csv").read_text(), chosen.splitlines()[:2]


def check_links(folder):
    link = "sequence=0&block=7&step=4&layer=4&head=2&panel=curves"
    for name in ("first,tau=2 & more.h5", "second.h5"):
        shutil.copyfile(TRACE, folder / name)
    with Serving(folder / "first,tau=2 & more.h5", folder / "second.h5") as server, Page() as page:
        page.look(f"{server.url}#{link}")
        page.expect(sequence=0, block=7, step=4, layer=4, head=2, panel="curves")
        page.key("ArrowLeft")
        page.expect(step=3)
        # The same tab keeps its viewer when it is loaded again.
        page.evaluate("location.reload()")
        page.wait("window.blockscope && blockscope.frames > 0")
        page.expect(block=7, step=3, panel="curves")
        # Another one starts anew, or at the link.
        with Page() as other:
            other.look(server.url)
            other.key("ArrowRight")
            other.expect(block=6, step=2)
            page.expect(block=7, step=3)
            other.evaluate("location.hash = 'block=7&step=5&panel=heatmap'")
            other.expect(block=7, step=5, panel="heatmap")
            other.evaluate("location.hash = 'trace=second.h5&step=2'")
            other.expect(trace="second.h5", step=2, block=6)
            other.evaluate("location.hash = 'trace=first%2Ctau%3D2%20%26%20more.h5&step=3'")
            other.expect(trace="first%2Ctau%3D2%20%26%20more.h5", step=3)
            before = other.pixels()
            other.evaluate("location.hash = 'layer=99'")
            other.settle()
            assert (before != other.pixels()).any(), "a wrong link is not reported"
    picture = folder / "linked.png"
    done = view(TRACE, "--select", f"#{link}", "--screenshot", picture)
    assert done.returncode == 0, done.stderr


def check_saving(folder):
    """Downloads equal what the commands write."""
    with Serving(TRACE, "--panel", "heads") as server, Page() as page:
        page.downloads(folder)
        page.look(server.url)
        page.export(1)
        csv = downloaded(folder, "trace_schema_1-heads-*.csv")
        done = view(TRACE, "--panel", "heads", "--csv", folder / "expected.csv")
        assert done.returncode == 0, done.stderr
        assert csv.read_text() == (folder / "expected.csv").read_text()
        page.export(0)
        picture = read_png(downloaded(folder, "trace_schema_1-heads-*.png"))
        assert len(np.unique(picture[:, :, :3].reshape(-1, 3), axis=0)) > 30 and picture.shape[1] == SIZE[0]
        page.evaluate("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
        page.export(2)
        page.wait("window.copied")
        assert page.evaluate("window.copied") == csv.read_text()
    second = folder / "second.h5"
    shutil.copyfile(TRACE, second)
    with Serving(TRACE, second, "--panel", "compare") as server, Page() as page:
        page.downloads(folder)
        page.look(server.url)
        page.export(1)
        compared = downloaded(folder, "trace_schema_1-compare*.csv")
        done = view(TRACE, second, "--panel", "compare", "--csv", folder / "compare.csv", *START)
        assert done.returncode == 0, done.stderr
        assert compared.read_text() == (folder / "compare.csv").read_text()
        assert "B - A" in compared.read_text().splitlines()[0]


def check_calibrating(folder):
    with Serving(TRACE, "--panel", "calibration") as server, Page() as page:
        page.downloads(folder)
        page.look(server.url)
        page.drag([(70, 126), (300, 126)])
        page.settle()
        assert page.evaluate("unsaved"), "a page with an unsaved calibration would close without a question"
        page.press(300, 226)  # the name
        page.key("a", control=True)
        page.type("mine.json")
        page.press(730, 226)
        saved = json.loads(downloaded(folder, "mine.json").read_text())
        gamma = saved["gamma"]
        assert 0.9 < gamma < 1.0, gamma
        done = subprocess.run([BINARY, "calibrate", TRACE, "--gamma", repr(gamma), "--tau", "2", "-o",
                               folder / "expected.json"], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert saved == json.loads((folder / "expected.json").read_text())
        assert not page.evaluate("unsaved")
        page.drag([(300, 126), (700, 126)])
        page.settle()
        before = page.pixels()
        # Loading over a change asks first; Discard loads.
        page.choose("#file", folder / "mine.json")
        page.settle()
        assert (before != page.pixels()).any(axis=2).mean() > 0.02, "no question"
        assert page.evaluate("unsaved")
        page.choose("#file", TRACE)
        page.settle()


def check_places(folder):
    """A folder of traces; saving next to them only where it is allowed."""
    traces = folder / "traces" / "inner"
    traces.mkdir(parents=True)
    for name in ("a.h5", "b.h5"):
        shutil.copyfile(TRACE, traces / name)
    (folder / "secret.h5").write_bytes(b"not offered")
    with Serving(folder / "traces", "--panel", "heads") as server, Page() as page:
        page.open(server.url)
        page.wait("blockscope.frames > 0")
        page.settle()
        page.press(190, 212)  # the first of the list
        page.wait("location.hash.includes('layer=')")  # a.h5 is open
        page.evaluate("location.hash = 'trace=inner/b.h5'")
        page.wait("location.hash.includes('trace=inner/b.h5')")
        for name in ("../secret.h5", "inner/../../secret.h5", str(folder / "secret.h5")):
            before = page.pixels()
            page.evaluate(f"location.hash = 'trace={name}'")
            page.settle()
            assert (before != page.pixels()).any(axis=2).mean() > 0.01, f"{name}: no refusal"
            page.key("Escape")
            page.settle()
            assert page.link()["trace"] == "inner/b.h5", name
    for allowed in (False, True):
        with Serving(traces / "a.h5", "--panel", "heads", *(["--allow-save"] * allowed)) as server, Page() as page:
            page.downloads(folder)
            page.look(server.url)
            page.export(1)
            if not allowed:
                downloaded(folder, "a-heads-*.csv").unlink()
                assert sorted(p.name for p in traces.iterdir()) == ["a.h5", "b.h5"]
                continue
            page.press(188, 356)  # next to the trace
            page.press(198, 410)  # Save
            assert downloaded(traces, "a-heads-*.csv").read_text().startswith("layer,head")
            assert not list(folder.glob("*.csv"))


def check_zoom(folder):
    """Letters have more pixels on a screen with more."""
    with Serving(TRACE, "--panel", "run") as server, Page() as page:
        page.look(server.url)
        page.size(*SIZE, scale=2)
        page.screenshot(folder / "page.png")  # a page without a window notices its size when it is drawn
        page.settle()
        assert page.evaluate("[canvas.width, canvas.height]") == [2 * SIZE[0], 2 * SIZE[1]]
        large = page.pixels().astype(float).mean(axis=2)
        assert large.shape == (2 * SIZE[1], 2 * SIZE[0]), large.shape
        blocks = large.reshape(SIZE[1], 2, SIZE[0], 2)
        within = np.abs(blocks[:, 0, :, 0] - blocks[:, 0, :, 1]).mean()
        assert within > 0.5, f"the page only enlarges its pixels: {within}"


skip_without_viewer()
skip_without_browser()
bench_viewer = sys.argv[1] if len(sys.argv) > 1 else None
def check_picture(folder):
    check_the_picture(folder, bench_viewer)


for check in (check_picture, check_selecting, check_links, check_saving,
              check_calibrating, check_places, check_zoom):
    with tempfile.TemporaryDirectory() as name:
        begin = time.monotonic()
        check(pathlib.Path(name))
        print(f"{check.__name__}: {time.monotonic() - begin:.1f} s", flush=True)
