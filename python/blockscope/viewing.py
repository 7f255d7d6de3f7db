"""The viewer in a notebook: `Trace.view`."""

from __future__ import annotations

import collections
import html
import json
import os
import shutil
import subprocess
import sysconfig
import tempfile
import urllib.request
import weakref
from pathlib import Path
from typing import Any

from ._arguments import whole
from .errors import Error


def _command() -> str:
    """The binary of this environment, else the first one on the PATH."""
    own = Path(sysconfig.get_path("scripts")) / "blockscope"
    found = str(own) if own.exists() else shutil.which("blockscope")
    if found is None:
        raise Error("view: found no `blockscope` command. HINT: pip install . in this environment installs it; or put the "
                    "folder of a built one on the PATH")
    return found


def _failure(problem: str) -> Error:
    lines = [line for line in problem.splitlines() if line.startswith("blockscope: error: ")]
    return Error((lines or [problem.strip() or "view: the command ended without a word"])[-1]
                 .removeprefix("blockscope: error: "))


class Picture:
    """A PNG picture of the viewer, which notebooks show and keep.

    Attributes:
        png: the file's bytes.
    """

    def __init__(self, png: bytes, what: str) -> None:
        self.png = png
        self._what = what

    def save(self, path: str | os.PathLike[str], *, force: bool = False) -> None:
        """Writes the picture. Replaces an existing file only with `force`."""
        with open(path, "wb" if force else "xb") as file:
            file.write(self.png)

    def _repr_png_(self) -> bytes:
        return self.png

    def __repr__(self) -> str:
        return f"<blockscope.Picture of {self._what}: {len(self.png)} bytes>"


_shown: collections.deque[View] = collections.deque(maxlen=8)  # `display(trace.view())` keeps no reference


class View:
    """A viewer that a notebook shows in a frame. It runs on the machine of the notebook's kernel until `close()`, or until
    nothing refers to it. The last eight that were shown stay.

    Attributes:
        url: its address on that machine; anybody on it who knows the address may look.
    """

    def __init__(self, command: list[str], what: str, height: int, select: str) -> None:
        server = _notebook_server()
        proxied = ["--host", "*"] if server is not None else []
        self._log = tempfile.TemporaryFile()  # a pipe that nobody reads would fill up
        process = subprocess.Popen([*command, "--serve", *proxied], stdout=subprocess.PIPE, stderr=self._log, text=True,
                                   start_new_session=True)  # a notebook's interrupt is not for the viewer
        assert process.stdout is not None
        self._end = weakref.finalize(self, _stop, process)
        address = process.stdout.readline().strip()
        if not address:
            self._log.seek(0)
            raise _failure(self._log.read().decode(errors="replace"))
        fragment = f"#{select.lstrip('#').replace(',', '&')}" if select else ""
        self.url: str = address + fragment
        self._what, self._height = what, height
        port, key = address.split(":")[2].split("/?key=")
        path = _proxied_path(server, port, key) if server is not None else None
        self._source = self.url if path is None else path + fragment

    def close(self) -> None:
        """Ends the viewer."""
        self._end()
        if self in _shown:
            _shown.remove(self)

    def _repr_html_(self) -> str:
        if self not in _shown:
            _shown.append(self)
        source = html.escape(self._source, quote=True)
        return (f'<iframe src="{source}" allow="clipboard-write" '
                f'style="width:100%;height:{self._height}px;border:1px solid #8888"></iframe>'
                f'<div><a href="{source}" target="_blank" rel="noreferrer">open in a tab of its own</a></div>')

    def __repr__(self) -> str:
        return f"<blockscope.View of {self._what}: {self.url if self._end.alive else 'closed'}>"


def _stop(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _notebook_server() -> dict[str, Any] | None:
    """The Jupyter server that started this kernel, from its file in the runtime folder; None: there is none."""
    try:
        from jupyter_core.paths import jupyter_runtime_dir
    except ImportError:
        return None
    for file in Path(jupyter_runtime_dir()).glob("*server-*.json"):
        try:
            server = json.loads(file.read_text())
        except (OSError, ValueError):
            continue
        if isinstance(server, dict) and server.get("pid") == os.getppid():
            return server
    return None


def _proxied_path(server: dict[str, Any], port: str, key: str) -> str | None:
    """The viewer's path under the address of the notebook, if the server has jupyter-server-proxy."""
    path = f"proxy/{port}/?key={key}"
    request = urllib.request.Request(str(server.get("url", "")) + path)
    request.add_header("Authorization", f"token {server.get('token', '')}")
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            found = b"<title>Blockscope</title>" in answer.read(4096)
    except (OSError, ValueError):
        return None
    return str(server.get("base_url", "/")) + path if found else None


def view(path: str, *, static: bool, select: str, panel: str, width: int, height: int,
         options: dict[str, Any]) -> Picture | View:
    """See `Trace.view`."""
    command = [_command(), "view", path]
    if panel:
        command += ["--panel", panel]
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if value is True:
            command.append(flag)
        elif value is not None and value is not False:
            command += [flag, str(value)]
    if not static:
        return View(command, path, whole("height", height, 100, 10000), select)
    size = ["--width", str(whole("width", width, 320, 16384)), "--height", str(whole("height", height, 240, 16384))]
    with tempfile.TemporaryDirectory(prefix="blockscope-view-") as folder:
        file = Path(folder) / "view.png"
        selected = ["--select", select] if select else []
        done = subprocess.run([*command, *size, *selected, "--screenshot", str(file)], capture_output=True, text=True)
        if done.returncode != 0:
            raise _failure(done.stderr)
        return Picture(file.read_bytes(), path)

