"""A browser's page without a browser: a WebSocket (RFC 6455) over a plain socket, and what page.html reads and
sends. The judge of `blockscope view --serve`: it shares no code with the product."""

import base64
import contextlib
import hashlib
import json
import os
import select
import socket
import struct
import time

import numpy as np
from page_picture import Picture

TEXT, BINARY_DATA, CLOSE, PING, PONG = 1, 2, 8, 9, 10


class Closed(Exception):
    """The server ended the connection: code of its close frame (1006: without one) and reason."""

    def __init__(self, code, reason=""):
        super().__init__(f"closed with {code}: {reason}")
        self.code, self.reason = code, reason


class Refused(Exception):
    """The server did not make a WebSocket of the request."""

    def __init__(self, answer):
        super().__init__(answer[:300].decode("latin-1"))
        self.status = int(answer.split()[1]) if answer.startswith(b"HTTP/") else 0


def dial(port, seconds=10.0):
    link = socket.create_connection(("127.0.0.1", port), timeout=seconds)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return link


def request(port, text, seconds=10.0):
    """Sends bytes and returns all that comes until the server closes, or answers whole."""
    with dial(port, seconds) as link:
        answer = b""
        try:
            link.sendall(text)
            while True:
                piece = link.recv(1 << 16)
                answer += piece
                if not piece:
                    break
                head, _, body = answer.partition(b"\r\n\r\n")
                length = [line.split(b":")[1] for line in head.lower().split(b"\r\n")
                          if line.startswith(b"content-length:")]
                if length and len(body) >= int(length[0]):
                    break
        except (ConnectionError, TimeoutError):
            pass  # what came before counts
        return answer


def status_of(answer):
    return int(answer.split()[1]) if answer.startswith(b"HTTP/") else 0


def get(port, path, host=None, headers=(), method="GET", version="1.1"):
    lines = [f"{method} {path} HTTP/{version}"]
    if host != "":
        lines.append(f"Host: {host or f'127.0.0.1:{port}'}")
    return request(port, ("\r\n".join([*lines, *headers]) + "\r\n\r\n").encode("latin-1"))


def upgrade_text(port, token, session="", host=None, origin=None, protocol="blockscope", key="AAAAAAAAAAAAAAAAAAAAAA==",
                 path="/ws"):
    """A page's request. `origin` and `protocol` "": without the header."""
    host = host or f"127.0.0.1:{port}"
    lines = [f"GET {path}?key={token}&session={session} HTTP/1.1", f"Host: {host}", "Upgrade: websocket",
             "Connection: Upgrade", f"Sec-WebSocket-Key: {key}", "Sec-WebSocket-Version: 13"]
    if origin != "":
        lines.append(f"Origin: {origin or f'http://{host}'}")
    if protocol:
        lines.append(f"Sec-WebSocket-Protocol: {protocol}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def masked(payload, key):
    whole = np.frombuffer(payload, np.uint8)
    mask = np.resize(np.frombuffer(key, np.uint8), whole.size)
    return (whole ^ mask).tobytes()


def frame_bytes(payload, kind=TEXT, final=True, mask=True, reserved=0, length=None):
    """One frame; `length` lies about the payload's."""
    size = len(payload) if length is None else length
    flag = 128 if mask else 0
    head = bytes([(128 if final else 0) | reserved << 4 | kind])
    if size < 126:
        head += bytes([flag | size])
    elif size < 1 << 16:
        head += bytes([flag | 126]) + struct.pack(">H", size)
    else:
        head += bytes([flag | 127]) + struct.pack(">Q", size)
    if not mask:
        return head + payload
    key = os.urandom(4)
    return head + key + masked(payload, key)


class Channel:
    """A WebSocket of the server."""

    def __init__(self, port, token, seconds=10.0, **headers):
        self.link = dial(port, seconds)
        self.link.setblocking(True)
        key = base64.b64encode(os.urandom(16)).decode()
        self.link.sendall(upgrade_text(port, token, key=key, **headers))
        self.buffer, self.parts, self.kind = b"", b"", 0
        self.pings, self.received, self.opened = 0, 0, False
        end = time.monotonic() + seconds
        while b"\r\n\r\n" not in self.buffer:
            if not self._fill(end - time.monotonic()):
                raise TimeoutError("no answer to the request")
        head, _, self.buffer = self.buffer.partition(b"\r\n\r\n")
        if b" 101 " not in head.split(b"\r\n")[0]:
            self.link.close()
            raise Refused(head)
        accept = base64.b64encode(hashlib.sha1((key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").encode()).digest())
        assert accept in head, head
        self.opened = True

    def _fill(self, seconds):
        if not select.select([self.link], [], [], max(0.0, seconds))[0]:
            return False
        try:
            piece = self.link.recv(1 << 20)
        except ConnectionError:
            piece = b""
        if not piece:
            raise Closed(1006) if self.opened else Refused(self.buffer)
        self.received += len(piece)
        self.buffer += piece
        return True

    def write(self, data):
        try:
            self.link.sendall(data)
        except ConnectionError:
            self._drain()

    def _drain(self):
        """The server has closed: says with which code, if that still arrived."""
        while True:
            if self.read(0.2) is None:
                raise Closed(1006)

    def send(self, payload, kind=TEXT, **how):
        self.write(frame_bytes(payload if isinstance(payload, bytes) else payload.encode(), kind, **how))

    def _frame(self):
        data = self.buffer
        if len(data) < 2:
            return None
        size, at = data[1] & 127, 2
        assert data[1] < 128 and data[0] & 0x70 == 0, f"a server's frame begins with {data[:2].hex()}"
        if size > 125:
            width = 2 if size == 126 else 8
            size, at = int.from_bytes(data[2 : 2 + width], "big"), 2 + width
        if len(data) < at + size or len(data) < at:
            return None
        self.buffer = data[at + size :]
        return data[0] & 15, bool(data[0] & 128), data[at : at + size]

    def read(self, seconds):
        """The next message; None when none is whole in time. Answers pings."""
        end = time.monotonic() + seconds
        while True:
            found = self._frame()
            if found is None:
                if not self._fill(end - time.monotonic()):
                    return None
                continue
            kind, final, payload = found
            if kind == PING:
                self.pings += 1
                with contextlib.suppress(ConnectionError):  # the close frame may still be on its way
                    self.link.sendall(frame_bytes(payload, PONG))
            elif kind == CLOSE:
                code = struct.unpack(">H", payload[:2])[0] if len(payload) > 1 else 1005
                raise Closed(code, payload[2:].decode())
            elif kind != PONG:
                self.kind = kind or self.kind
                self.parts += payload
                if final:
                    whole, self.parts = self.parts, b""
                    return whole

    def reset(self):
        """Vanishes as a killed process does: the server gets an RST."""
        self.link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.link.close()

    def close(self):
        try:
            self.link.sendall(frame_bytes(struct.pack(">H", 1000), CLOSE))
        except OSError:
            pass
        self.link.close()


class Page(Channel):
    """A page that acknowledges frames, as page.html does."""

    def __init__(self, port, token, session=None, size=(900, 600, 1), link="", answers=True, **headers):
        self.session = session or os.urandom(16).hex()
        self.picture, self.frames, self.last, self.told, self.downloads = Picture(), 0, 0, {}, {}
        self.ready, self.answers, self.first_bytes, self.farewell = False, answers, 0, None
        super().__init__(port, token, session=self.session, **headers)
        events = [["s", *size]] + ([["l", link]] if link else []) + [["f", 1]]
        self.events(*events)

    def events(self, *events):
        self.send(json.dumps(events))

    def take(self, seconds):
        """Handles one message; False when none came."""
        message = self.read(seconds)
        if message is None:
            return False
        kind = message[:1]
        if kind == b"x":
            self.farewell = json.loads(message[1:])
        elif kind == b"r":
            self.picture, self.ready = Picture(), True
        elif not self.ready:
            pass
        elif kind == b"f":
            (self.last,) = struct.unpack("<I", message[1:5])
            self.picture.apply(message[5:])
            self.frames += 1
            if self.frames == 1:
                self.first_bytes = len(message)
            if self.answers:
                self.events(["a", self.last])
        elif kind == b"j":
            self.told.update(json.loads(message[1:]))
        elif kind == b"d":
            length = message[1] + 256 * message[2]
            self.downloads[message[3 : 3 + length].decode()] = message[3 + length :]
        else:
            raise AssertionError(f"a message of kind {kind}")
        return True

    def until(self, reached, seconds=10.0, what=""):
        end = time.monotonic() + seconds
        while not reached():
            left = end - time.monotonic()
            if left <= 0.0 or not self.take(left):
                raise TimeoutError(f"{what or 'nothing'} after {seconds} s: {self.frames} frames, told {self.told}")

    def settle(self, quiet=0.3, most=10.0):
        """Until nothing comes for `quiet` seconds."""
        end = time.monotonic() + most
        while self.take(quiet) and time.monotonic() < end:
            pass

    def link_has(self, part):
        return part in self.told.get("link", "").split("&")

    def open(self, seconds=20.0):
        self.until(lambda: self.frames > 0 and "link" in self.told, seconds, "no picture and no link")
        return self

    def key(self, name):
        self.events(["k", name, 1], ["k", name, 0])

    def latency(self):
        """Seconds from a key to the link that it changes, and the frame that shows it."""
        before, frames = self.told.get("link"), self.frames
        start = time.monotonic()
        self.key("DownArrow" if self.link_has("layer=1") or self.link_has("layer=0") else "UpArrow")
        self.until(lambda: self.told.get("link") != before and self.frames > frames, 20.0, "no answer to a key")
        return time.monotonic() - start
