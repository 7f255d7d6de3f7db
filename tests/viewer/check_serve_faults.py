"""Tries to break `blockscope view --serve` from outside: slow and broken connections, and crowds. With
names: only those checks. --soak SECONDS runs serve_soak.py (not run by ctest)."""

import contextlib
import os
import random
import resource
import sys
import threading
import time

from page_client import Channel, Closed, dial, get, status_of, upgrade_text
from serve_soak import soak
from served import LATE, PEOPLE, Watched, bounded, descriptors, ends, private_kib, run_checks, served, wait_until
from view_harness import skip_without_viewer


def check_slow_connections():
    with served() as server:
        silent = [dial(server.port) for _ in range(50)]
        dribbling = [dial(server.port) for _ in range(100)]
        text = upgrade_text(server.port, server.token)
        with Watched(server) as watched:
            deaf = server.page().open()
            deaf.answers = False  # never reads its frames again
            deaf.events(["k", "Space", 1], ["k", "Space", 0])
            unfinished = Channel(server.port, server.token, session=os.urandom(16).hex())  # tells no size
            for second in range(2):
                for link in dribbling:
                    with contextlib.suppress(OSError):
                        link.send(text[second : second + 1])
                start = time.monotonic()
                assert status_of(get(server.port, f"/?key={server.token}")) == 200
                assert time.monotonic() - start < LATE, "slow headers hold up a request"
                server.page().open().close()
                time.sleep(0.7)
        bounded(watched, "100 slow headers, 50 silent connections, a page that reads nothing, one that says nothing")
        deaf.close()
        unfinished.close()
        # More unfinished requests than the server has places for. Whether bytes still come or not, they end.
        with Watched(server) as watched:
            links = [dial(server.port) for _ in range(300)]
            for link in links:
                with contextlib.suppress(OSError):
                    link.send(text[:20])
            start, answers = time.monotonic(), []
            while 200 not in answers and time.monotonic() < start + 20.0:
                answers.append(status_of(get(server.port, f"/?key={server.token}")))
                for link in (links[0], dribbling[0]):
                    with contextlib.suppress(OSError):
                        link.send(b"a")
                time.sleep(0.5)
        print(f"  among 400 unfinished requests one is answered after {time.monotonic() - start:.1f} s: {answers}")
        assert answers[-1] == 200 and set(answers) <= {0, 200, 503}, answers
        bounded(watched, "400 unfinished requests")
        for link in (*silent, *dribbling, *links):
            link.settimeout(15.0)
            with contextlib.suppress(ConnectionError):
                while link.recv(4096):
                    pass
            link.close()
        print(f"  the last of 450 connections was ended {time.monotonic() - start:.1f} s later")


def check_a_page_that_returns():
    with served() as server:
        page = server.page(link="sequence=1&block=5&layer=4").open()
        page.settle()
        page.key("RightArrow")
        page.settle()
        viewer, link, digest = server.viewers(), page.told["link"], page.picture.digest()
        for leave in ("close", "reset"):
            getattr(page, leave)()
            page = server.page(session=page.session).open()
            page.settle()
            assert server.viewers() == viewer, f"{leave}: another viewer"
            assert page.told["link"] == link and page.picture.digest() == digest, f"{leave}: another picture"
        # With a button held, and clicks that no frame has answered.
        page.answers = False
        page.events(["m", 300, 300], ["b", 0, 1], ["m", 310, 310], ["b", 0, 0], ["m", 320, 320], ["b", 0, 1])
        page.settle()
        page.events(["m", 330, 330], ["b", 0, 0], ["m", 340, 340], ["b", 0, 1])
        page.reset()
        page = server.page(session=page.session).open()
        page.latency()
        link = page.told["link"]
        # In the middle of a frame, again and again.
        for _ in range(10):
            page.events(["s", 1800, 1200, 1], ["s", 900, 600, 1], ["k", "C", 1], ["k", "C", 0])
            page.take(0.01)
            page.reset()
            page = server.page(session=page.session).open()
        page.settle()
        assert server.viewers() == viewer and page.told["link"] == link
        # A tab that was duplicated has the same name. It takes the viewer over, and the first one is told.
        twin = server.page(session=page.session).open()
        twin.key("UpArrow")
        twin.settle()
        assert server.viewers() == viewer
        assert ends(page)[0] == 4001 and page.farewell["forget"]
        twin.close()
        for session in ("", "../../x", "A" * 32, "0" * 31, "a" * 300):
            other = server.page(session=session).open()
            other.latency()
            other.close()


def check_a_page_that_is_gone_without_a_word():
    """A laptop that slept or changed its network comes back while the server still holds the old connection."""
    with served() as server:
        page = server.page(link="sequence=1&block=5&layer=4").open()
        page.settle()
        viewer = server.viewers()
        back = server.page(session=page.session).open()  # `page` is neither closed nor read
        back.settle()
        assert server.viewers() == viewer, "unsaved work is out of reach"
        back.latency()
        page.link.close()


def crowd(server):
    """1,000 connections at once, of which every second asks for the page; -> the server's memory when they are gone."""
    open_before = descriptors(server.process.pid)
    with Watched(server) as watched:
        links = [dial(server.port) for _ in range(1000)]
        for link in links[::2]:
            link.sendall(f"GET /?key={server.token} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        answers, start = [], time.monotonic()
        for link in links[::2]:
            link.settimeout(15.0)
            try:
                answers.append(status_of(link.recv(4096)))
            except ConnectionError:
                answers.append(0)
        print(f"  500 requests among 1,000 connections: {answers.count(200)} answered in {time.monotonic() - start:.1f} s")
        assert set(answers) == {200}, answers
        for link in links:
            link.close()
        assert status_of(get(server.port, f"/?key={server.token}")) == 200
    bounded(watched, "1,000 connections at once")
    wait_until(lambda: descriptors(server.process.pid) <= open_before + 2, 5.0, "closed connections are forgotten")
    return private_kib(server.process.pid)


def check_a_crowd():
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 4096), most))
    with served() as server:
        after = [crowd(server) for _ in range(3)]
        print(f"  private memory of the server after each crowd: {after} KiB")
        # The allocator keeps what the first one took. The next 2,000 add less than a KiB each.
        assert after[-1] < after[0] + (2 << 10), after


def check_eight_people():
    """Each has a selection of their own, at the same time."""
    with served() as server:
        problems, links, times = [], {}, []

        def person(number):
            try:
                chance = random.Random(number)
                page = server.page(size=(800 + 10 * number, 600, 1), link=f"sequence={number % 2}").open()
                page.settle(0.1, 1.0)
                for _ in range(20):
                    times.append(page.latency())
                    time.sleep(0.02 * chance.random())
                sequence, block, layer = number % 2, number // 2 % 2, number // 4
                want = f"sequence={sequence}&block={6 - sequence + block}&step=1&layer={1 + 3 * layer}"
                page.events(["l", want])
                page.until(lambda: page.told["link"].startswith(want), 10.0, want)
                page.settle(0.2, 1.0)
                links[number] = want, page.told["link"], page.picture.display[0]
                page.close()
            except Exception as problem:
                problems.append((number, repr(problem)))

        threads = [threading.Thread(target=person, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert problems == [] and len(links) == 8, problems
        assert len({want for want, _, _ in links.values()}) == 8
        for number, (want, link, width) in links.items():
            assert link.startswith(want) and width == 800 + 10 * number, links
        median = sorted(times)[len(times) // 2]
        print(f"  8 people: median latency {1e3 * median:.0f} ms, largest {1e3 * max(times):.0f} ms")
        assert median < LATE


def check_one_too_many():
    with served() as server:
        pages = [server.page().open() for _ in range(PEOPLE)]
        assert len(server.viewers()) == PEOPLE
        extra = Channel(server.port, server.token, session=os.urandom(16).hex())
        try:
            while message := extra.read(5.0):
                assert message.startswith(b"x{") and b"16 people" in message, message
            raise AssertionError(f"person {PEOPLE + 1} is not sent away")
        except Closed as closed:
            assert closed.code == 1008 and "16 people" in closed.reason, closed
            assert closed.reason.endswith("."), f"the reason is cut: {closed.reason}"
        assert status_of(get(server.port, f"/?key={server.token}")) == 200
        for page in pages:
            page.latency()
        print(f"  {PEOPLE} viewers: {sum(map(private_kib, server.viewers())) / 1024:.0f} MiB private in all")
        # Who left makes room for who comes; nobody must wait while no more than 16 are there.
        pages[0].close()
        wait_until(lambda: pages[0].link.fileno() == -1, 1.0, "closed")
        time.sleep(0.3)
        try:
            server.page().open(5.0).close()
        except Closed as closed:
            raise AssertionError(f"15 people look, and another one is refused: {closed}") from closed


if __name__ == "__main__":
    skip_without_viewer()
    if sys.argv[1:2] == ["--soak"]:
        soak(float(sys.argv[2]))
    else:
        run_checks(globals(), sys.argv[1:], at_once=2)
