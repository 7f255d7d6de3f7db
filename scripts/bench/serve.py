"""Measures `blockscope view TRACE --serve` in Chromium over loopback: scripts/bench/serve.py TRACE [--binary FILE].

Prints: time to the first whole picture, from an input to its picture, frames a second and bytes a frame while scrubbing,
bytes while idle, and the private memory of a further client's process."""

import argparse
import pathlib
import statistics
import subprocess
import sys
import time

sys.path.append(str(pathlib.Path(__file__).parents[2] / "tests"))
from browser import Browser  # noqa: E402

WATCH = """
window.inputs = [];  // when a key or a move came in, until its picture
window.took = [];
for (const kind of ["keydown", "pointermove"]) {
  window.addEventListener(kind, (event) => inputs.push(event.timeStamp), true);
}
const seen = draw;
draw = function () {
  seen();
  gl.finish();
  if (inputs.length) took.push(performance.now() - inputs[0]);
  inputs.length = 0;
};
1
"""


def private_mib(pid):
    lines = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024


def children(pid):
    return [int(word) for word in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def settle(page):
    seen = -1
    while (now := page.evaluate("blockscope.frames")) != seen:
        seen = now
        time.sleep(0.5)


def counters(page):
    return page.evaluate("[blockscope.frames, blockscope.bytes]")


def quantiles(values):
    values = sorted(values)
    return f"median {statistics.median(values):.1f}, p95 {values[int(0.95 * (len(values) - 1))]:.1f}, n {len(values)}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trace")
    parser.add_argument("--binary", default="build/release/bin/blockscope")
    parser.add_argument("--rounds", type=int, default=5, help="pages opened for the first picture")
    flags = parser.parse_args()
    server = subprocess.Popen([flags.binary, "view", flags.trace, "--serve"], stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, text=True)
    url = server.stdout.readline().strip()
    try:
        with Browser(1440, 900, webgl=True) as page:
            first = []
            for round in range(flags.rounds):
                if round:
                    page.evaluate("sessionStorage.clear(); 1")  # a viewer of its own each time
                    page.call("Page.navigate", url="about:blank")
                    page.wait("location.href === 'about:blank'")
                page.call("Page.navigate", url=url)
                page.wait("window.blockscope && blockscope.frames > 0 && location.hash.length > 1")
                settle(page)
                first.append(page.evaluate("blockscope.last"))  # since the navigation began
            print(f"first whole picture, ms: {quantiles(first)}")
            page.evaluate(WATCH)
            for i in range(100):
                page.key("ArrowRight" if i % 20 < 10 else "ArrowLeft")
                time.sleep(0.1)
            settle(page)
            print(f"key to picture, ms: {quantiles(page.evaluate('took'))}")
            page.evaluate("took.length = 0; 1")
            # The slider over the steps, moved as fast as a mouse tells.
            page.call("Input.dispatchMouseEvent", type="mousePressed", x=320, y=81, button="left", clickCount=1)
            frames, received = counters(page)
            begin = time.monotonic()
            moves = 0
            while time.monotonic() - begin < 5:
                x = 320 + (moves * 7) % 480
                page.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=81, button="left", buttons=1)
                moves += 1
                time.sleep(max(0.0, begin + moves / 60 - time.monotonic()))
            took = time.monotonic() - begin
            now, bytes_now = counters(page)
            page.call("Input.dispatchMouseEvent", type="mouseReleased", x=x, y=81, button="left", clickCount=1)
            print(f"scrubbing: {(now - frames) / took:.1f} frames a second, "
                  f"{(bytes_now - received) / max(1, now - frames) / 1024:.1f} KB a frame")
            print(f"move to picture, ms: {quantiles(page.evaluate('took'))}")
            settle(page)
            idle = counters(page)[1]
            time.sleep(5)
            print(f"idle for 5 s: {counters(page)[1] - idle} bytes")
            print(f"private memory, MiB: server {private_mib(server.pid):.1f}, "
                  f"clients {', '.join(f'{private_mib(pid):.1f}' for pid in children(server.pid))}")
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
