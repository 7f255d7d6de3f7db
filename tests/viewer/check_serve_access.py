"""Who may look at `blockscope view --serve`, and what its arguments may be. With names: only those checks."""

import contextlib
import pathlib
import signal
import subprocess
import sys
import tempfile

from page_client import Channel, Closed, Refused, get, request, status_of, upgrade_text
from served import TRACE, Server, run_checks, served
from view_harness import BINARY, skip_without_viewer, view, without_display


def check_requests_for_the_page():
    with served() as server:
        port, token = server.port, server.token
        page = get(port, f"/?key={token}")
        assert status_of(page) == 200 and b"<canvas" in page, page[:300]
        for header in (b"content-security-policy: default-src 'none'", b"referrer-policy: no-referrer",
                       b"cache-control: no-store", b"x-content-type-options: nosniff"):
            assert header in page.lower(), header
        other = ("0" if token[0] != "0" else "1") + token[1:]
        for words in ("", "?", "?key=", f"?key={token[:-1]}", f"?key={token}0", f"?key={token.upper()}0",
                      f"?key={other}", f"?token={token}", f"?key={'a' * 1000}"):
            answer = get(port, "/" + words)
            assert status_of(answer) == 403 and b"lacks its key" in answer and b"<canvas" not in answer, (words, answer[:300])
            assert token.encode() not in answer, f"{words}: the refusal tells the token"
        assert b"<canvas" not in get(port, "/?key=%00")
        for host in ("evil.example", f"evil.example:{port}", f"127.0.0.1.evil.example:{port}", f"127.0.0.2:{port}",
                     f"localhost.evil.example:{port}", "", "[::1", "127.0.0.1@evil.example"):
            answer = get(port, f"/?key={token}", host=host or "")
            assert status_of(answer) == 403 and b"<canvas" not in answer, (host, answer[:300])
        for host in (f"localhost:{port}", f"LOCALHOST:{port}", "localhost:1", f"[::1]:{port}", "127.0.0.1"):
            assert status_of(get(port, f"/?key={token}", host=host)) == 200, host
        for path in ("/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/ws", "/index.html", "//etc/passwd", "/\x01"):
            answer = get(port, f"{path}?key={token}")
            assert status_of(answer) in (0, 400, 403, 404) and b"root:" not in answer, (path, answer[:300])
            answer = get(port, path)
            assert status_of(answer) in (0, 400, 403), (path, answer[:300])


def check_odd_requests():
    with served() as server:
        port, good = server.port, f"/?key={server.token}"
        odd = {
            "HTTP/1.0 without a host": f"GET {good} HTTP/1.0\r\n\r\n".encode(),
            "no version": f"GET {good}\r\n\r\n".encode(),
            "two hosts": f"GET {good} HTTP/1.1\r\nHost: evil.example\r\nHost: 127.0.0.1\r\n\r\n".encode(),
            "garbage": bytes(range(256)) * 64,
            "a TLS hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"a" * 512,
            "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(64),
            "a long path": b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
            "a header of 1 MB": (f"GET {good} HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ".encode() + b"a" * (1 << 20)
                                 + b"\r\n\r\n"),
            "100,000 headers": f"GET {good} HTTP/1.1\r\nHost: 127.0.0.1\r\n".encode() + b"a: b\r\n" * 100_000 + b"\r\n",
            "a CONNECT": b"CONNECT example.com:80 HTTP/1.1\r\nHost: example.com:80\r\n\r\n",
            "another server's address": b"GET http://evil.example/ HTTP/1.1\r\nHost: evil.example\r\n\r\n",
            "line ends alone": b"\n" * 10_000,
        }
        for name, text in odd.items():
            answer = request(port, text, 3.0)
            assert b"<canvas" not in answer or name in ("a header of 1 MB", "100,000 headers"), (name, answer[:300])
            assert status_of(get(port, good)) == 200, f"after {name}"
        for method in ("POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "HEAD"):
            answer = get(port, "/", method=method, headers=["Content-Length: 3"] if method in ("POST", "PUT") else ())
            assert b"<canvas" not in answer, (method, answer[:300])
            assert status_of(get(port, good)) == 200, f"after {method}"
        # Twenty requests in one packet, each of which is answered or the connection closed.
        text = f"GET {good} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode() * 20
        assert request(port, text).startswith(b"HTTP/1.1 200")
        assert server.viewers() == [], "a viewer began without a page"


def check_who_may_open_a_connection():
    with served() as server:
        port, token = server.port, server.token
        let_in = []

        def refused(what, token=token, **how):
            with contextlib.suppress(Refused, Closed, TimeoutError):
                channel = Channel(port, token, seconds=3.0, **how)
                let_in.append(what)
                channel.read(0.3)
                channel.close()
            assert server.viewers() == [], f"{what}: has a viewer"

        refused("no token", token="")
        refused("a wrong token", token="0" * 32)
        refused("half a token", token=token[:16])
        refused("another site", origin="http://evil.example")
        refused("another port", origin=f"http://127.0.0.1:{port + 1}")
        refused("another name of this machine", origin=f"http://localhost:{port}")
        refused("no origin", origin="")
        refused("a file", origin="null")
        refused("a forged host", host=f"evil.example:{port}")
        refused("a host with the same beginning", host=f"127.0.0.1.evil.example:{port}")
        refused("no protocol", protocol="")
        refused("another protocol", protocol="chat")
        # The names that the server uses inside admit nobody either, with a token or without.
        for protocol in ("viewer", "http", "viewer, blockscope", "blockscope, viewer"):
            refused(f"no token, protocol {protocol}", token="", protocol=protocol)
            refused(f"another site, protocol {protocol}", origin="http://evil.example", protocol=protocol)
        assert let_in == [], f"let in: {let_in}"
        for part in (b"Upgrade: websocket\r\n", b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"):
            answer = request(port, upgrade_text(port, token).replace(part, b""), 3.0)
            assert status_of(answer) != 101, (part, answer[:200])
        for origin, host in ((None, None), (f"http://localhost:{port}", f"localhost:{port}"),
                             (f"HTTP://LOCALHOST:{port}", f"localhost:{port}")):
            server.page(host=host, origin=origin).open().close()


def check_names_of_a_proxy():
    with served("--host", "Proxy.Example") as server:
        good = f"/?key={server.token}"
        for host in ("proxy.example", "PROXY.example:8443"):
            assert status_of(get(server.port, good, host=host)) == 200, f"--host Proxy.Example refuses {host}"
            server.page(host=host, origin=f"https://{host}").open().close()
        for host in ("evil.example", "proxy.example.evil", "a.proxy.example"):
            assert status_of(get(server.port, good, host=host)) == 403, host
    with served("--host", "a.example", "--host", "b.example") as server:
        for host in ("a.example", "b.example", "localhost"):
            assert status_of(get(server.port, f"/?key={server.token}", host=host)) == 200, host
    with served("--listen", "0.0.0.0") as server:  # its names are unknown, so the token alone admits
        assert "warning" in server.said() and "encrypted" in server.said(), server.said()
        assert status_of(get(server.port, f"/?key={server.token}", host="any.example")) == 200
        assert status_of(get(server.port, "/", host="any.example")) == 403
        server.page(host="any.example").open().close()
        for origin in ("http://evil.example", ""):
            with contextlib.suppress(Refused):
                Channel(server.port, server.token, host="any.example", origin=origin)
                raise AssertionError(f"origin '{origin}' was let in")


def started(*arguments, seconds=10.0, **how):
    """Runs to its end: a server that begins is stopped, and counts as 0."""
    process = subprocess.Popen([BINARY, "view", *map(str, arguments)], env=without_display(), stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **how)
    line = process.stdout.readline()
    if line.startswith("http"):
        process.terminate()
    out, error = process.communicate(timeout=seconds)
    return 0 if line.startswith("http") else process.returncode, line + out, error


def check_wrong_arguments():
    wrong = []

    def refused(code, words, *arguments):
        got, out, error = started(*arguments)
        if got != code or out != "" or "error: " not in error or not all(word in error for word in words):
            wrong.append((arguments, f"expected {code}, {words}", got, out, error))

    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        refused(2, ["expected", "1 to 65535", "99999"], TRACE, "--serve", "99999")
        refused(2, ["expected", "1 to 65535", "got 0"], TRACE, "--serve", "0")
        refused(2, ["1 to 65535", "99999999999999999999"], TRACE, "--serve", "99999999999999999999")
        refused(1, ["-5"], TRACE, "--serve", "-5")
        refused(2, ["expected trace files or a folder"], "--serve")
        refused(2, ["expected trace files or a folder"], "--serve", "9311")
        refused(1, ["nowhere.h5"], folder / "nowhere.h5", "--serve")
        refused(1, ["README.md"], "README.md", "--serve")
        refused(1, ["eighty"], TRACE, "--serve", "eighty")
        refused(1, ["8080x"], TRACE, "--serve", "8080x")
        refused(2, ["--listen", "expected an address", "nonsense"], TRACE, "--serve", "--listen", "nonsense")
        refused(2, ["--listen", "127.0.0.1", "::1"], TRACE, "--serve", "--listen", "::1")
        refused(1, ["192.0.2.1", "HINT"], TRACE, "--serve", "--listen", "192.0.2.1")
        refused(2, ["--listen"], TRACE, "--serve", "--listen", "")
        refused(2, ["--host"], TRACE, "--serve", "--host", "")
        # A name never has these, so none of them would ever admit a browser.
        for host in ("http://a.example", "a.example:80", "a.example/x", "a b"):
            refused(2, ["--host", "expected", host], TRACE, "--serve", "--host", host)
        for option in (["--listen", "127.0.0.1"], ["--host", "a.example"], ["--allow-save"]):
            refused(2, [option[0], "--serve"], TRACE, *option)
        for option in (["--screenshot", folder / "a.png"], ["--csv", folder / "a.csv", "--panel", "heads"],
                       ["--width", "640"], ["--height", "480"], ["--patience", "3"], ["--force"]):
            refused(2, [option[0]], TRACE, "--serve", *option)
        refused(2, ["--panel"], TRACE, "--serve", "--panel", "pancake")
        refused(2, ["--show", "heads=METRIC"], TRACE, "--serve", "--show", "heads=pancake")
        refused(1, ["none.json"], TRACE, "--serve", "--lens", folder / "none.json")
        refused(2, ["--colormap", "viridis"], TRACE, "--serve", "--colormap", "jet")
        refused(2, ["name=number"], TRACE, "--serve", "--select", "step")
        assert wrong == [], "\n".join(map(str, wrong))
        assert list(folder.iterdir()) == [], "something was left behind"
        # A folder without traces is no mistake: some may come.
        assert started("--serve", folder)[0] == 0
        assert started(folder, "--serve")[0] == 0


def check_output_that_cannot_be_printed():
    """Nobody knows the address, so nobody could ever come."""
    with open("/dev/full", "w") as full:
        process = subprocess.Popen([BINARY, "view", TRACE, "--serve"], env=without_display(), stdout=full,
                                   stderr=subprocess.PIPE, text=True)
        try:
            _, error = process.communicate(timeout=5.0)
        except subprocess.TimeoutExpired:
            process.kill()
            raise AssertionError("the server goes on although its address could not be printed") from None
        assert process.returncode == 1 and error.count("error: ") == 1, (process.returncode, error)


def check_ports():
    with served() as first:
        result = view(TRACE, "--serve", first.port)
        assert result.returncode == 1, result
        assert str(first.port) in result.stderr and "HINT" in result.stderr and result.stdout == "", result
        assert status_of(get(first.port, f"/?key={first.token}")) == 200
        with served() as second:
            assert second.port != first.port and second.token != first.token
            assert status_of(get(second.port, f"/?key={first.token}")) == 403
        port = first.port
    with served(port) as again:  # connections of the first one may still be closing
        assert again.port == port
        again.page().open().close()
    # Of servers that start at once on one port, one gets it.
    for _ in range(3):
        racing = [subprocess.Popen([BINARY, "view", TRACE, "--serve", str(port)], env=without_display(),
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(6)]
        lines = [process.stdout.readline() for process in racing]
        for process in racing:
            process.send_signal(signal.SIGTERM)
        codes = sorted(process.wait(10.0) for process in racing)
        for process in racing:
            process.communicate()
        assert sum(line != "" for line in lines) == 1, f"{sum(line != '' for line in lines)} servers on one port"
        assert codes == [1] * 5 + [143], codes


def check_closed_descriptors():
    for closed in ((0,), (2,), (0, 2)):
        redirect = " ".join(f"{number}<&-" for number in closed)
        process = subprocess.Popen(["sh", "-c", f"exec '{BINARY}' view {TRACE} --serve {redirect}"],
                                   env=without_display(), stdout=subprocess.PIPE, text=True)
        try:
            line = process.stdout.readline()
            port, token = line.split(":")[2].split("/")[0], line.strip().split("=")[1]
            server = Server.__new__(Server)
            server.port, server.token = int(port), token
            server.page().open().close()
        finally:
            process.terminate()
            assert process.wait(10.0) == 143, closed
            process.stdout.close()


if __name__ == "__main__":
    skip_without_viewer()
    run_checks(globals(), sys.argv[1:])
