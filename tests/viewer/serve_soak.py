"""Hours of people in minutes: pages come, scrub, reload, vanish. check_serve_faults.py --soak SECONDS runs it."""

import contextlib
import os
import random
import time

from page_client import Closed, Refused
from served import descriptors, private_kib, served, state


def visit(server, chance, session):
    """One person, from coming to going; returns how it went."""
    page = server.page(session=session, size=(chance.choice([700, 1100, 1600]), 700, 1)).open()
    for _ in range(chance.randrange(1, 6)):
        page.latency()
    page.settle(0.05, 1.0)
    way = chance.choice(["close", "reset", "reload", "half", "refused", "quit"])
    if way == "reload":  # the same tab, at once
        page.close()
        page = server.page(session=session).open()
    if way == "half":
        page.answers = False
        page.events(["k", "Space", 1], ["k", "Space", 0])
        page.settle(0.05, 0.3)
    if way == "refused":
        page.send("[[")
        with contextlib.suppress(Closed):
            page.settle(0.5, 1.0)
    if way == "quit":  # its viewer ends
        page.events(["x", 1, 0, 0], ["k", "Q", 1], ["k", "Q", 0])
        with contextlib.suppress(Closed):
            page.until(lambda: False, 5.0, "the viewer goes on after Ctrl+Q")
    if way in ("reset", "half"):
        page.reset()
    else:
        page.close()
    return way


def soak(seconds, seed=1):
    chance = random.Random(seed)
    sessions = [os.urandom(16).hex() for _ in range(8)]  # people who return: the patience is five minutes
    with served() as server:
        pid = server.process.pid
        begin, end, looked, count, ways = time.monotonic(), time.monotonic() + seconds, 0.0, 0, {}
        start = None
        while time.monotonic() < end:
            try:
                way = visit(server, chance, chance.choice(sessions))
            except (Closed, Refused) as problem:
                way = f"{problem}"
            ways[way] = ways.get(way, 0) + 1
            count += 1
            if count == 20:
                start = private_kib(pid), descriptors(pid)
            if time.monotonic() - looked > 60:
                looked = time.monotonic()
                viewers = server.viewers()
                print(f"{looked - begin:.0f} s: {count} visits {ways}, server {private_kib(pid)} KiB private, "
                      f"{descriptors(pid)} descriptors, {len(viewers)} viewers "
                      f"({''.join(state(viewer) for viewer in viewers)}), largest "
                      f"{max([private_kib(v) for v in viewers if state(v) not in ('', 'Z')] + [0])} KiB", flush=True)
            time.sleep(0.3)
        last = private_kib(pid), descriptors(pid)
        print(f"server after 20 visits: {start[0]} KiB private, {start[1]} descriptors; after {count}: {last[0]} KiB, "
              f"{last[1]} descriptors; {server.said().count(chr(10))} lines of errors")
        assert set(ways) <= {"close", "reset", "reload", "half", "refused", "quit"}, ways
        assert last[0] < start[0] + 1024 and last[1] <= start[1] + 10, (start, last)
        assert server.stop() == 143
