"""`blockscope view --serve` when traces vanish, processes are killed, and nothing happens at all. With names: only
those checks."""

import contextlib
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from page_client import BINARY_DATA, frame_bytes, get, status_of
from served import (TRACE, Watched, bounded, cpu_seconds, ends, private_kib, run_checks, served, state,
                    wait_until)
from view_harness import BINARY, skip_without_viewer

TRACE_TOOL = os.environ.get("TRACE_TOOL") or str(pathlib.Path(BINARY).parents[1] / "tests" / "trace_tool")
MAKE_TRACE = str(pathlib.Path(BINARY).parents[1] / "tests" / "make_trace")


def check_traces_that_change():
    """The viewer tells it in a popup; here: it draws something, lives, and answers."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        tool = pathlib.Path(TRACE_TOOL).exists()

        def replaced(path):
            other = folder / "other"
            shutil.copyfile(TRACE, other)
            with open(other, "ab") as file:
                file.write(b"more")
            other.replace(path)

        def truncated(path):
            os.truncate(path, path.stat().st_size // 3)

        def emptied(path):
            os.truncate(path, 0)

        def overwritten(path):
            path.write_bytes(random.Random(3).randbytes(path.stat().st_size))

        for change in (replaced, truncated, emptied, overwritten, pathlib.Path.unlink):
            path = folder / f"{change.__name__}.h5"
            shutil.copyfile(TRACE, path)
            with served(trace=path) as server:
                page = server.page(link="sequence=1&block=6&step=1").open()
                page.settle(0.15)
                (viewer,) = server.viewers()
                frames, digest = page.frames, page.picture.digest()
                change(path)
                page.until(lambda: page.frames > frames, 5.0, f"{change.__name__}: the viewer tells nothing")
                page.settle(0.15)
                assert page.picture.digest() != digest, change.__name__
                page.key("Escape")
                page.settle(0.15)
                for key in ("RightArrow", "DownArrow", "PageDown", "RightBracket", "LeftArrow"):  # reads more
                    page.key(key)
                    page.settle(0.05)
                    page.key("Escape")
                    page.settle(0.05)
                assert server.viewers() == [viewer] and state(viewer) in ("S", "R"), change.__name__
                frames = page.frames
                page.events(["s", 1000, 700, 1])
                page.until(lambda: page.frames > frames, 5.0, f"{change.__name__}: no answer")
                page.close()
                late = server.page()  # opens what is there now; if nothing is, says so
                late.until(lambda: late.frames > 0, 10.0, f"{change.__name__}: no picture for who comes later")
                late.close()
        if not tool:
            print("  no trace_tool: live traces left out")
            return
        path = folder / "live.h5"
        writer = subprocess.Popen([TRACE_TOOL, "steered", path], stdin=subprocess.PIPE, text=True)
        try:
            writer.stdin.write("\n" * 3)
            writer.stdin.flush()
            wait_until(lambda: pathlib.Path(f"{path}.partial").exists(), 5.0, "a live trace")
            time.sleep(0.3)
            with served(trace=path) as server:
                page = server.page().open()
                page.settle()
                for rows in (2, 20, 1):
                    frames = page.frames
                    writer.stdin.write("\n" * rows)
                    writer.stdin.flush()
                    page.until(lambda: page.frames > frames, 5.0, f"{rows} new rows are not shown")
                    page.settle()
                page.latency()
                frames = page.frames
                writer.stdin.close()  # the trace is finished
                writer.wait(10.0)
                page.until(lambda: page.frames > frames, 5.0, "the end of the trace is not shown")
                page.settle()
                page.latency()
                assert len(server.viewers()) == 1
                server.page().open().close()
        finally:
            writer.kill()
            writer.wait()


def check_signals():
    for sign, code in ((signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129), (signal.SIGKILL, -9)):
        for busy in (False, True):
            with served() as server:
                pages = [server.page().open() for _ in range(2)]
                pages[1].reset()
                if busy:
                    pages[0].events(["k", "Space", 1], ["k", "Space", 0])
                    time.sleep(0.1)
                viewers = server.viewers()
                assert len(viewers) == 2
                assert server.stop(sign) == code, (sign, server.process.returncode)
                wait_until(lambda: not any(map(state, viewers)), 3.0, f"{sign.name}: no viewer remains")
                if sign != signal.SIGKILL:
                    assert server.said().count("stopped by a signal") == 1, server.said()
                code_told, _ = ends(pages[0], 3.0)
                assert code_told in (1001, 1006), code_told
                port, token = server.port, server.token
            with contextlib.suppress(ConnectionRefusedError):  # or another server has it now
                assert status_of(get(port, f"/?key={token}")) != 200, "somebody still answers"
    # At any moment: between two events, and before the first page.
    for pause in [0.0, *[0.011 * number for number in range(12)]]:
        with served() as server:
            page = server.page() if pause > 0.05 else None
            time.sleep(pause)
            assert server.stop(signal.SIGTERM, 3.0) == 143
            if page:
                page.link.close()


def check_unsaved_work():
    """A viewer with an unsaved calibration has nobody to ask when its server is gone."""
    with served("--panel", "calibration") as server:
        page = server.page(size=(900, 700, 1)).open()
        page.settle()
        page.events(["m", 70, 126], ["b", 0, 1])
        page.settle()
        page.events(["m", 300, 126], ["b", 0, 0])
        page.until(lambda: page.told.get("unsaved"), 10.0, "the calibration is not changed")
        viewers = server.viewers()
        server.stop(signal.SIGKILL)
        wait_until(lambda: not any(map(state, viewers)), 3.0, "the viewer ends")


def check_textures():
    """A heatmap of another size replaces the one before."""
    with tempfile.TemporaryDirectory() as name:
        trace = f"{name}/unequal.h5"
        subprocess.run([MAKE_TRACE, trace, "--unequal"], check=True, capture_output=True)
        with served("--panel", "heatmap", "--show", "heatmap=steps", trace=trace) as server:
            page = server.page().open()
            page.settle()
            before = len(page.picture.textures)
            for _ in range(10):
                for key in ("PageDown", "PageUp"):
                    page.key(key)
                    page.settle(0.1)
            assert len(page.picture.textures) <= before + 2, (before, len(page.picture.textures))


def check_scratch_files():
    """What a page gave is gone when its viewer is."""
    with tempfile.TemporaryDirectory() as name, served(environment={"TMPDIR": name}) as server:
        page = server.page().open()
        page.send(b"\x06\x00a.json{}", kind=BINARY_DATA)
        page.settle()
        page.close()
        server.stop()
        assert os.listdir(name) == [], f"left behind in TMPDIR: {os.listdir(name)}"


def check_viewers_that_end():
    with served() as server:
        with Watched(server) as watched:
            for how in ("kill", "segv", "quit"):
                page = server.page().open()
                page.settle(0.1)
                viewer = server.viewers()[-1]
                if how == "quit":
                    page.events(["x", 1, 0, 0], ["k", "Q", 1], ["k", "Q", 0])
                else:
                    os.kill(viewer, signal.SIGKILL if how == "kill" else signal.SIGSEGV)
                code, reason = ends(page, 5.0)
                assert code == 1001, f"{how}: the page is not told, its connection ends with {code} {reason}"
                page.link.close()
                again = server.page(session=page.session).open()
                again.latency()
                again.close()
            before = server.viewers()
        bounded(watched, "viewers that end")
        # Also one that nobody looks at, and while nothing else happens.
        for viewer in before:
            with contextlib.suppress(ProcessLookupError):
                os.kill(viewer, signal.SIGKILL)
        wait_until(lambda: server.viewers() == [], 10.0, "no dead process remains")
        page = server.page().open()
        page.latency()
        # One that does not answer, a disk that hangs: others are served, and the server can end.
        os.kill(server.viewers()[0], signal.SIGSTOP)
        for _ in range(300):
            page.write(frame_bytes(b'[["m",1,1]' + b" " * 10_000 + b"]"))
        other = server.page().open()
        other.latency()
        viewers = server.viewers()
        try:
            assert server.stop(signal.SIGTERM, 5.0) == 143
        finally:
            for viewer in viewers:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(viewer, signal.SIGKILL)


def check_idle():
    with served() as server:
        page = server.page().open()
        page.settle(1.0)
        pids = [server.process.pid, *server.viewers()]
        bytes_, used, start = page.received, sum(map(cpu_seconds, pids)), time.monotonic()
        while time.monotonic() < start + 5.0:
            page.take(start + 5.0 - time.monotonic())
        spent = (sum(map(cpu_seconds, pids)) - used) / (time.monotonic() - start)
        print(f"  idle: {page.received - bytes_} bytes in 5 s, {100 * spent:.2f} % of a core, server "
              f"{private_kib(pids[0])} KiB, viewer {private_kib(pids[1])} KiB private")
        assert page.received == bytes_ and spent < 0.01, (page.received - bytes_, spent)


if __name__ == "__main__":
    skip_without_viewer()
    run_checks(globals(), sys.argv[1:], at_once=2)
