"""Tries to break `blockscope view --serve` with what a connection sends: odd messages and frames, the largest ones,
floods, random events. Another person works meanwhile. With names: only those checks."""

import contextlib
import json
import os
import random
import struct
import sys
import time

from page_client import BINARY_DATA, CLOSE, PING, Closed, frame_bytes
from served import Watched, bounded, ends, make_room, run_checks, served, state
from view_harness import skip_without_viewer

EVENT_BYTES, FILE_BYTES = 64 << 10, 4 << 20  # the limits of page_input.h


def one(size):
    """A whole message of this size that is valid but for it."""
    return b'[["m",1,1' + b" " * (size - 11) + b"]]"


ODD_MESSAGES = {
    "no JSON": b"hello", "nothing": b"", "a number": b"1", "an object": b"{}", "no array inside": b"[1]",
    "an empty event": b"[[]]", "no letter": b"[[1,2]]", "two letters": b'[["mm",1,2]]',
    "an unknown letter": b'[["q",1]]',
    "a place that is a text": b'[["m","1",2]]', "half a place": b'[["m",1]]', "an infinite place": b'[["m",1e999,1]]',
    "a far place": b'[["m",1e30,1]]', "NaN": b'[["m",NaN,1]]', "a fourth button": b'[["b",3,1]]',
    "a half button": b'[["b",0,2]]', "a button below": b'[["b",-1,1]]', "no key": b'[["k","Fire",1]]',
    "a gamepad's key": b'[["k","GamepadStart",1]]', "a long key": b'[["k","' + b"A" * 100 + b'",1]]',
    "no size": b'[["s",0,0,1]]', "a negative size": b'[["s",-5,5,1]]', "a huge size": b'[["s",16384,16384,1]]',
    "a huge scale": b'[["s",100,100,1000]]', "no text": b'[["t",1]]', "a half character": b'[["t","\\ud800"]]',
    "a long text": b'[["t","' + b"a" * 4097 + b'"]]', "a long link": b'[["l","' + b"a" * 1025 + b'"]]',
    "a negative frame": b'[["a",-1]]', "half a frame": b'[["a",1.5]]', "no UTF-8": b'[["t","\xff\xfe"]]',
    "a zero byte": b'[["t","\x00"]]', "two messages": b'[["f",1]] [["f",1]]',
    "1,001 events": b"[" + b'["f",1],' * 1000 + b'["f",1]]',
    "deep": b"[" * 60_000, "deep and whole": b"[" * 30_000 + b"]" * 30_000, "deep objects": b'{"a":' * 10_000,
    "one byte too many": one(EVENT_BYTES + 1), "a megabyte": one(1 << 20),
}


def check_odd_messages():
    with served() as server:
        with Watched(server) as watched:
            for name, message in ODD_MESSAGES.items():
                page = server.page().open()
                page.send(message)
                code, reason = ends(page)
                assert code in (1006, 1008), (name, code, reason)
                page.link.close()
                make_room(server)
        bounded(watched, f"{len(ODD_MESSAGES)} odd messages")
        said = server.said()
        assert "\0" not in said, f"the server prints zero bytes: {said[:400]!r}"
        for words in ("expected a number, found", "expected a shorter text, found"):
            assert words in said, f"the server does not say what was wrong: no '{words}' in {said[:400]!r}"


def check_messages_at_the_limits():
    with served() as server:
        page = server.page().open()
        page.settle()
        page.send(one(EVENT_BYTES))
        page.send("[]")
        page.send("[" + ",".join(['["f",1]'] * 1000) + "]")
        page.events(["t", "a" * 4096])
        page.settle()
        page.events(["l", "step=1"], ["a", 4294967295], ["a", 0], ["a", 2**63])
        page.latency()
        for part in (b"[[", b'"f",', b"1]]"):  # three fragments, with a ping between them
            page.send(part, kind=1 if part == b"[[" else 0, final=part == b"1]]")
            page.send(b"", kind=PING)
        page.latency()
        for size in ((1, 1, 0.1), (16384, 1, 1), (1, 16384, 1), (320, 200, 10), (8192, 4096, 1), (1, 1, 10),
                     (900, 600, 1)):
            page.events(["s", *size])
            page.settle(0.15)
            assert page.picture.display[:2] == size[:2], (size, page.picture.display)
        page.latency()
        # A file, and what is almost one. The viewer reports a wrong file in a popup.
        name = b"reuse.json"
        frames = page.frames
        page.send(struct.pack("<H", len(name)) + name + b" " * (FILE_BYTES - 2 - len(name)), kind=BINARY_DATA)
        page.until(lambda: page.frames > frames, 5.0, "a file of 8 MB does not arrive")
        page.key("Escape")
        page.settle()
        page.latency()
        page.close()
        for what, data in {"no length": b"", "a byte": b"\1", "no name": b"\0\0", "a short name": b"\5\0abc",
                           "a folder": b"\4\0a/b.", "up": b"\2\0..", "a control character": b"\3\0a\nb",
                           "a long name": struct.pack("<H", 256) + b"a" * 256,
                           "one byte too many": b"\1\0a" + b" " * (FILE_BYTES - 2),
                           "events as binary": b'[["f",1]]'}.items():
            page = server.page().open()
            page.send(data, kind=BINARY_DATA)
            code, _ = ends(page)
            assert code in (1006, 1008), (what, code)


def check_odd_frames():
    def send(*frames):
        def how(page):
            for frame in frames:
                page.write(frame)
        return how

    event = b'[["f",1]]'
    attacks = {
        "reserved bits": send(frame_bytes(event, reserved=4)),
        "a reserved kind": send(frame_bytes(event, kind=3)),
        "a reserved control kind": send(frame_bytes(b"", kind=11)),
        "a continuation of nothing": send(frame_bytes(event, kind=0)),
        "a message inside a message": send(frame_bytes(b"[", final=False), frame_bytes(event)),
        "a ping in parts": send(frame_bytes(b"a", kind=PING, final=False)),
        "a long ping": send(frame_bytes(b"a" * 126, kind=PING)),
        "a close of one byte": send(frame_bytes(b"a", kind=CLOSE)),
        "a close with an odd code": send(frame_bytes(struct.pack(">H", 999), kind=CLOSE)),
        "2^63 bytes": send(frame_bytes(b"a" * 70_000, length=2**63)),
        "2^62 bytes": send(frame_bytes(b"a" * 70_000, length=2**62)),
        "64 MB": lambda page: [page.write(part) for part in
                               [frame_bytes(b"", length=64 << 20), *[bytes(1 << 20)] * 64]],
        "a file of 64 MB": lambda page: [page.write(part) for part in
                                         [frame_bytes(b"", kind=BINARY_DATA, length=64 << 20), *[bytes(1 << 20)] * 64]],
        "fragments for ever": lambda page: [page.send(b"[" * 100, kind=int(part == 0), final=False)
                                            for part in range(20_000)],
        "garbage": send(random.Random(1).randbytes(1 << 16)),
    }
    with served() as server:
        with Watched(server) as watched:
            for name, attack in attacks.items():
                page = server.page().open()
                try:
                    attack(page)
                    code, _ = ends(page, 5.0)
                except Closed as closed:
                    code = closed.code
                assert code in (1002, 1003, 1005, 1006, 1007, 1008, 1009, 999), (name, code)
                page.link.close()
                make_room(server)
            # libwebsockets takes frames without a mask. They do no harm.
            page = server.page().open()
            page.write(frame_bytes(event, mask=False))
            page.latency()
            # Fragments of nothing never make a message too long: others must not feel them.
            page = server.page().open()
            page.send(b"", final=False)
            for _ in range(200):
                page.write(frame_bytes(b"", kind=0, final=False) * 100)
            page.close()
        bounded(watched, f"{len(attacks)} odd frames")


def attack(server, what, seconds, run, **how):
    """While `run(page)` is repeated for some seconds, another person works."""
    with Watched(server) as watched:
        page = server.page(**how).open()
        end = time.monotonic() + seconds
        with contextlib.suppress(Closed, OSError):
            while time.monotonic() < end:
                run(page)
        with contextlib.suppress(OSError):
            page.link.setblocking(True)
            page.reset()
    bounded(watched, what)
    make_room(server)


def check_floods():
    with served() as server:
        # 100,000 events of every kind as fast as they are taken.
        chance = random.Random(2)
        several = [json.dumps([["m", chance.randrange(900), chance.randrange(600)] for _ in range(1000)]),
                   json.dumps([event for _ in range(250) for event in (["b", 0, 1], ["b", 0, 0], ["k", "RightArrow", 1],
                                                                       ["k", "RightArrow", 0])]),
                   json.dumps([["w", 0, 1], ["s", 800, 500, 1], ["s", 900, 600, 1], ["x", 1, 0, 0],
                               ["x", 0, 0, 0]] * 200)]
        done = []

        def flood(page):
            if len(done) < 100:
                page.send(several[len(done) % 3])
                done.append(1)
            page.take(0.001)

        attack(server, "100,000 events", 2.5, flood)
        assert len(done) == 100, f"only {len(done)} thousand events were taken in 2.5 s"

        def unread(page):  # messages while nothing is read
            page.link.settimeout(0.2)
            page.write(frame_bytes(b'[["m",%d,%d]]' % (chance.randrange(900), chance.randrange(600))))
            time.sleep(0.001)

        attack(server, "1,000 messages/s and nothing read", 1.0, unread)

        def pings(page):
            page.link.settimeout(0.2)
            page.write(frame_bytes(b"a" * 125, kind=PING) * 50)

        attack(server, "pings whose answers nobody reads", 1.0, pings)
        links = json.dumps([["l", "step=99999999999999999999"]] * 500)
        attack(server, "wrong links", 1.0, lambda page: (page.send(links), page.take(0.005)))
        texts = json.dumps([["p", "a" * 60_000]])
        attack(server, "long texts pasted", 1.0, lambda page: (page.send(texts), page.take(0.005)))
        file = struct.pack("<H", 6) + b"a.json" + bytes(FILE_BYTES - 8)
        whole = frame_bytes(file, kind=BINARY_DATA)
        sent = []

        def files(page):
            page.link.settimeout(5.0)
            page.write(whole)
            sent.append(page.take(0.005))

        attack(server, "files of 4 MB", 2.0, files)
        assert len(sent) > 2, f"{len(sent)} files of 8 MB were taken in 2 s"


def check_keys_of_a_slow_line():
    """Keys that arrive together, as after a pause of the network, all have an effect without another event."""
    with served() as server:
        page = server.page(link="sequence=1&block=6&step=1&layer=1").open()
        page.settle(0.15)
        together, one_by_one = [], []
        for count in range(1, 7):
            page.events(["l", "step=1"])
            page.settle(0.15)
            page.events(*[["k", "RightArrow", down] for _ in range(count) for down in (1, 0)])
            page.settle(0.3)
            together.append(page.told["link"])
        page.events(["l", "step=1"])
        page.settle(0.15)
        for _ in together:
            page.key("RightArrow")
            page.settle(0.15)
            one_by_one.append(page.told["link"])
        assert together == one_by_one and len(set(together)) == 6, (together, one_by_one)
        # Keys that change nothing to see stand before one that does.
        for key, layer in (("DownArrow", 4), ("UpArrow", 1)):
            page.events(*[["k", "F12", down] for _ in range(10) for down in (1, 0)], ["k", key, 1], ["k", key, 0])
            page.settle(1.0)  # twenty frames, of which none shows anything new
            assert page.link_has(f"layer={layer}"), f"{key} waits for the next event: {page.told['link']}"


def check_a_drag_of_a_slow_line():
    """A drag whose events arrive together moves the slider as one whose events arrive one after another."""
    with served("--panel", "trajectory", "--select", "sequence=0,block=6,step=1") as server:
        page = server.page(size=(900, 700, 1)).open()
        page.settle()
        for start, end, block, step in ((240, 884, 7, 8), (884, 220, 6, 1), (240, 884, 7, 8)):
            page.events(["m", start, 82], ["b", 0, 1], ["m", end, 82], ["b", 0, 0])
            page.settle(0.3)
            assert page.link_has(f"block={block}") and page.link_has(f"step={step}"), (
                f"the drag from {start} to {end} is lost: {page.told['link']}")


def check_a_monkey():
    """Events that a page may send, in any order, never end a viewer."""
    keys = ["Tab", "LeftArrow", "RightArrow", "UpArrow", "DownArrow", "PageUp", "PageDown", "Home", "End", "Enter",
            "Space", "Escape", "Delete", "Backspace", *"ACDVXZYOS0", "F1", "LeftBracket", "RightBracket"]
    links = ["step=2", "layer=99", "token=-1", "token=99999999999", "token=1000000000", "sequence=-1", "step=0", "x",
             "step=-1", "block=9223372036854775807", "panel=draft", "panel=lens", "trace=../../etc/passwd",
             "head=2&token=3", ""]
    with served() as server:
        for seed in range(int(os.environ.get("MONKEYS", "3"))):
            chance = random.Random(seed)
            page = server.page().open()
            (viewer,) = server.viewers()[-1:]
            history = []
            try:
                for _ in range(100):
                    x, y = chance.randrange(900), chance.randrange(600)
                    key = chance.choice(keys)
                    events = chance.choice([
                        [["m", x, y], ["b", 0, 1], ["b", 0, 0]],
                        [["m", x, y], ["b", chance.randrange(3), chance.randrange(2)]],
                        [["m", x, y], ["w", chance.uniform(-9, 9), chance.uniform(-9, 9)]],
                        [["k", key, 1], ["k", key, 0]],
                        [["x", 1, 0, 0], ["k", key, 1], ["k", key, 0], ["x", 0, 0, 0]],
                        [["t", chance.choice(["a", "1e9", "-1", "\u4e2d\u6587", "\U0001f600", "/"])]],
                        [["s", chance.choice([1, 30, 200, 900, 4000]), chance.choice([1, 30, 600, 2000]),
                          chance.choice([0.1, 1, 2])]],
                        [["s", 900, 600, 1]], [["f", chance.randrange(2)]], [["p", "step=3"]],
                        [["l", chance.choice(links)]]])
                    history += events
                    page.events(*events)
                    page.take(0.01)
                page.events(["x", 0, 0, 0], ["s", 900, 600, 1])
                page.settle(0.1, 2.0)
                frames = page.frames
                page.events(["s", 901, 600, 1])
                page.until(lambda: page.frames > frames, 5.0, "no answer any more")
            except (Closed, TimeoutError, AssertionError) as problem:
                raise AssertionError(f"seed {seed}: {problem}: viewer {state(viewer)!r}, last {history[-12:]}, "
                                     f"server said {server.said()[-300:]}") from problem
            page.close()
            make_room(server)


if __name__ == "__main__":
    skip_without_viewer()
    run_checks(globals(), sys.argv[1:], at_once=2)
