"""Chromium without a window, driven over its debugging pipe (NUL-separated JSON on descriptors 3 and 4), for
tests of pages: `with Browser() as browser: browser.open(path); browser.evaluate("document.title")`.
A test calls skip_without_browser() first: without Chromium it exits with 77."""

import base64
import json
import os
import pathlib
import select
import shutil
import subprocess
import sys
import tempfile
import time

WEBGL = ["--use-angle=swiftshader", "--enable-unsafe-swiftshader"]  # drawn by the CPU
KEYS = {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Enter": 13, "Tab": 9, "Escape": 27, "Control": 17,
        "PageUp": 33, "PageDown": 34, "F1": 112, " ": 32}


def find_browser():
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def skip_without_browser():
    if find_browser() is None:
        print("skipped: no chromium (Debian: chromium)")
        sys.exit(77)


class Browser:
    """One page. `messages`: errors and refused loads, as the console of the page reports them. `webgl`: the page draws
    with WebGL."""

    def __init__(self, width=1200, height=900, timeout=30.0, webgl=False):
        self.timeout, self.messages, self.requests = timeout, [], []
        self.folder = tempfile.TemporaryDirectory(prefix="blockscope-browser-")
        to_browser, from_browser = os.pipe(), os.pipe()
        self.out, self.source = to_browser[1], from_browser[0]

        def place_pipes():  # at descriptors 3 and 4
            reading, writing = os.dup(to_browser[0]), os.dup(from_browser[1])
            spare = [os.dup(reading), os.dup(writing)] if {reading, writing} & {3, 4} else [reading, writing]
            os.dup2(spare[0], 3)
            os.dup2(spare[1], 4)

        self.process = subprocess.Popen(
            [find_browser(), "--headless=new", "--no-sandbox", *(WEBGL if webgl else ["--disable-gpu"]), "--remote-debugging-pipe",
             "--hide-scrollbars", "--force-device-scale-factor=1", "--disable-dev-shm-usage",
             f"--user-data-dir={self.folder.name}", f"--window-size={width},{height}", "about:blank"],
            preexec_fn=place_pipes, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_browser[0])
        os.close(from_browser[1])
        self.pending, self.count, self.session = b"", 0, None
        targets = self.call("Target.getTargets")["targetInfos"]
        target = next(t["targetId"] for t in targets if t["type"] == "page")
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.size(width, height)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        os.close(self.out)  # Chromium ends with its pipe
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self.source)
        self.folder.cleanup()

    def read(self, deadline):
        while b"\0" not in self.pending:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.source], [], [], left)[0]:
                raise TimeoutError("no answer from Chromium")
            piece = os.read(self.source, 1 << 20)
            if not piece:
                raise RuntimeError("Chromium ended")
            self.pending += piece
        message, self.pending = self.pending.split(b"\0", 1)
        return json.loads(message)

    def call(self, method, **parameters):
        self.count += 1
        message = {"id": self.count, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.out, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + self.timeout
        while True:
            answer = self.read(deadline)
            if answer.get("id") == self.count:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.heard(answer)

    def heard(self, event):
        kind, content = event.get("method"), event.get("params", {})
        if kind == "Runtime.exceptionThrown":
            details = content["exceptionDetails"]
            self.messages.append(details.get("exception", {}).get("description", details["text"]))
        elif kind == "Log.entryAdded" and content["entry"]["level"] in ("error", "warning"):
            self.messages.append(content["entry"]["text"])
        elif kind == "Network.requestWillBeSent":
            self.requests.append(content["request"]["url"])

    def open(self, url, scripts=True):
        """A path or an address; returns when the page has loaded."""
        self.call("Emulation.setScriptExecutionDisabled", value=not scripts)
        if isinstance(url, pathlib.Path):
            url = url.resolve().as_uri()
        self.call("Page.navigate", url="about:blank")
        self.requests.clear()
        self.call("Page.navigate", url=url)
        self.wait(f"document.readyState === 'complete' && location.href.split('#')[0] === "
                  f"{json.dumps(url.partition('#')[0])}")

    def evaluate(self, script):
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            raise RuntimeError(details.get("exception", {}).get("description", details["text"]))
        return answer["result"].get("value")

    def wait(self, condition, seconds=15.0):
        deadline = time.monotonic() + seconds
        while True:
            try:
                if self.evaluate(condition):
                    return
            except RuntimeError:
                pass  # between two pages
            if time.monotonic() > deadline:
                raise TimeoutError(f"never true: {condition}")
            time.sleep(0.03)

    def key(self, name, shift=False, control=False):
        code = KEYS.get(name, ord(name[0].upper()))
        event = {"key": name, "windowsVirtualKeyCode": code, "modifiers": 8 * shift + 2 * control}
        if name == "Enter":
            event["text"] = "\r"
        elif len(name) == 1 and not control:
            event["text"] = name
        self.call("Input.dispatchKeyEvent", type="keyDown", **event)
        event.pop("text", None)
        self.call("Input.dispatchKeyEvent", type="keyUp", **event)
        if control:
            self.call("Input.dispatchKeyEvent", type="keyUp", key="Control", windowsVirtualKeyCode=17, modifiers=0)

    def type(self, text):
        self.call("Input.insertText", text=text)

    def mouse(self, x, y, click=False):
        """Moves the pointer, in pixels of the window, and clicks."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        if click:
            for kind in ("mousePressed", "mouseReleased"):
                self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def drag(self, path):
        """Presses at the first of these places, moves over the others and lets go at the last."""
        self.mouse(*path[0])
        button = {"button": "left", "clickCount": 1}
        self.call("Input.dispatchMouseEvent", type="mousePressed", x=path[0][0], y=path[0][1], **button)
        for x, y in path[1:]:
            self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y, button="left", buttons=1)
        self.call("Input.dispatchMouseEvent", type="mouseReleased", x=path[-1][0], y=path[-1][1], **button)

    def wheel(self, x, y, down):
        self.call("Input.dispatchMouseEvent", type="mouseWheel", x=x, y=y, deltaX=0, deltaY=down)

    def downloads(self, folder):
        """Files that the page hands over are stored in this folder."""
        self.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(folder))

    def choose(self, selector, path):
        """Gives a file to an input of the page, as its dialog does."""
        node = self.call("Runtime.evaluate", expression=f"document.querySelector({json.dumps(selector)})")["result"]
        self.call("DOM.setFileInputFiles", files=[str(path)], objectId=node["objectId"])

    def place(self, selector):
        """Scrolls the element into view; the middle of its box in the window."""
        return self.evaluate(f"""(() => {{
          const node = document.querySelector({json.dumps(selector)});
          node.scrollIntoView({{block: "center"}});
          const box = node.getBoundingClientRect();
          return [box.left + box.width / 2, box.top + box.height / 2];
        }})()""")

    def click(self, selector):
        self.mouse(*self.place(selector), click=True)

    def size(self, width, height, scale=1):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale,
                  mobile=False)

    def media(self, kind="", dark=None):
        """`kind`: "print" or "" for a screen."""
        features = [] if dark is None else [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", media=kind, features=features)

    def screenshot(self, path, whole=False):
        picture = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        pathlib.Path(path).write_bytes(base64.b64decode(picture["data"]))
