"""Starts `blockscope view --serve` for the scripts in this folder, and reads memory and time of its processes."""

import concurrent.futures
import contextlib
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback

from page_client import Closed, Page, get
from view_harness import BINARY, without_display

TRACE = "tests/data/trace_schema_1.h5"
PEOPLE = 16
LATE = 3.0  # s: far more than any answer takes, also on a busy machine
SERVER_KIB, VIEWER_KIB = 32 << 10, 160 << 10  # most that an attack may cost


def wait_until(reached, seconds, what):
    end = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < end, f"{what}: not within {seconds} s"
        time.sleep(0.02)


class Server:
    stopped = False

    def __init__(self, *arguments, trace=TRACE, environment=None):
        self.errors = tempfile.TemporaryFile("w+")
        traces = [trace] if isinstance(trace, (str, os.PathLike)) else trace
        self.process = subprocess.Popen([BINARY, "view", *map(str, traces), "--serve", *map(str, arguments)],
                                        env={**without_display(), **(environment or {})}, stdin=subprocess.DEVNULL,
                                        stdout=subprocess.PIPE, stderr=self.errors, text=True)
        line = self.process.stdout.readline()
        found = re.fullmatch(r"http://[\w.-]+:(\d+)/\?key=([0-9a-f]{32})\n", line)
        assert found, (line, self.said())
        self.port, self.token = int(found[1]), found[2]

    def said(self):
        self.errors.seek(0)
        return self.errors.read()

    def page(self, **how):
        return Page(self.port, self.token, **how)

    def lives(self):
        return self.process.poll() is None

    def viewers(self):
        """Processes of the people, oldest first; zombies too."""
        task = pathlib.Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [int(word) for word in task.read_text().split()]

    def stop(self, sign=signal.SIGTERM, seconds=10.0):
        self.stopped = True
        self.process.send_signal(sign)
        return self.process.wait(seconds)

    def end(self):
        if self.lives():
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        self.errors.close()


@contextlib.contextmanager
def served(*arguments, **how):
    server = Server(*arguments, **how)
    try:
        yield server
        assert server.stopped or server.lives(), f"the server ended with {server.process.returncode}: {server.said()}"
    finally:
        server.end()


def private_kib(pid):
    """Memory that belongs to this process alone."""
    text = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text()
    return sum(int(size) for size in re.findall(r"^Private_\w+:\s+(\d+) kB$", text, re.MULTILINE))


def state(pid):
    """R, S, Z, ...; empty for a process that is gone."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return ""


def cpu_seconds(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


class Watched:
    """While it runs: the latency of a second person, and the largest memory of the server and its viewers."""

    def __init__(self, server, pause=0.05):
        self.server, self.pause = server, pause
        self.latencies, self.server_kib, self.viewer_kib, self.failure = [], 0, 0, None

    def __enter__(self):
        self.page = self.server.page().open()
        self.page.settle()
        self.page.latency()
        self.going = True
        self.thread = threading.Thread(target=self._run)
        self.thread.start()
        return self

    def _run(self):
        try:
            while self.going:
                self.latencies.append(self.page.latency())
                self.server_kib = max(self.server_kib, private_kib(self.server.process.pid))
                for viewer in self.server.viewers():
                    with contextlib.suppress(OSError):
                        self.viewer_kib = max(self.viewer_kib, private_kib(viewer))
                time.sleep(self.pause)
        except Exception as problem:
            self.failure = problem

    def __exit__(self, kind, *_):
        self.going = False
        self.thread.join()
        with contextlib.suppress(Exception):
            self.page.close()
        if kind is None:
            assert self.failure is None, f"another person's page: {self.failure!r}"
            assert self.latencies

    def __str__(self):
        times = sorted(self.latencies)
        return (f"latency of another page: median {1e3 * times[len(times) // 2]:.0f} ms, largest "
                f"{1e3 * times[-1]:.0f} ms of {len(times)}; private memory: server {self.server_kib / 1024:.1f} MiB, "
                f"largest viewer {self.viewer_kib / 1024:.1f} MiB")


def bounded(watched, what):
    print(f"  {what}: {watched}")
    assert max(watched.latencies) < LATE, f"{what} holds up others: {watched}"
    assert watched.server_kib < SERVER_KIB and watched.viewer_kib < VIEWER_KIB, f"{what}: memory: {watched}"


def ends(page, seconds=10.0):
    """The code with which the server ends the connection, and its reason; 0: it is still open."""
    try:
        page.until(lambda: False, seconds)
    except Closed as closed:
        return closed.code, closed.reason
    except TimeoutError:
        pass
    return 0, "still open"


def make_room(server):
    """Ends the viewers of people who will not return, but not the first."""
    if len(server.viewers()) > PEOPLE // 2:
        for viewer in server.viewers()[1:]:
            os.kill(viewer, signal.SIGKILL)
        # Requests wake the server; check_viewers_that_end waits without.
        wait_until(lambda: get(server.port, "/") and len(server.viewers()) == 1, 5.0, "viewers that were killed")


def run_checks(found, names, at_once=1):
    """Runs the functions check_* (or those of these names), some of them at once, and ends with 1 if any failed."""
    checks = {name: function for name, function in found.items() if name.startswith("check_")}
    failed = []

    def run(name):
        start = time.monotonic()
        try:
            checks[name]()
        except Exception:
            failed.append(name)
            traceback.print_exc(file=sys.stdout)
        print(f"{'FAILED ' if name in failed else ''}{name}: {time.monotonic() - start:.1f} s", flush=True)

    with concurrent.futures.ThreadPoolExecutor(1 if names else at_once) as pool:
        list(pool.map(run, names or checks))
    print(f"{len(names or checks) - len(failed)} passed, {len(failed)} failed: {' '.join(failed)}")
    sys.exit(1 if failed else 0)
