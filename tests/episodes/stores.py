"""A store of HTTP files on 127.0.0.1 in a process of its own, which a test can kill, and whose faults it orders.

Run as `python stores.py PORT ROOT`, it serves the files below ROOT with ranges. `ROOT/faults` says what goes wrong:
lines of `PATTERN FAULT [TIMES]`, where FAULT is `damage`, `stall`, `refuse`, `busy` (429 with Retry-After), `break`,
`short` (a whole answer of fewer bytes than were asked for) or `empty`. Answers are counted in
`ROOT/requests`.
"""

from __future__ import annotations

import fnmatch
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

CHUNK = 1 << 16


class FileServer:
    """The server's process; `url` stays the same when it is killed and started again."""

    def __init__(self, root: Path, *, pause: float = 0) -> None:
        self.root, self._pause = root, pause
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}"
        self.start()

    def start(self) -> None:
        """Serve, and return when requests are answered."""
        command = [sys.executable, __file__, str(self._port), str(self.root), str(self._pause)]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(500):
            try:
                urllib.request.urlopen(f"{self.url}/ping", timeout=1)
            except OSError as error:
                if "404" in str(error):
                    return
                time.sleep(0.02)
        raise AssertionError("the server did not start")

    def kill(self) -> None:
        """SIGKILL: connections break off in the middle of an answer."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def faults(self, *lines: str) -> None:
        """What goes wrong from now on, in place of earlier faults."""
        (self.root / "faults").write_text("\n".join(lines))

    def requests(self, pattern: str) -> list[str]:
        """The paths that were asked for with GET, in order, as far as they fit."""
        path = self.root / "requests"
        return [line for line in path.read_text().splitlines() if fnmatch.fnmatch(line, pattern)]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    root: Path
    pause = 0.0
    lock = threading.Lock()

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        file = self.root / self.path.lstrip("/")
        if not file.is_file():
            self.send_response(404)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        data, status, headers = file.read_bytes(), 200, {"Accept-Ranges": "bytes"}
        if span := self.headers.get("Range"):
            first, _, last = span.removeprefix("bytes=").partition("-")
            stop = int(last) + 1 if last else len(data)
            headers["Content-Range"] = f"bytes {first}-{min(stop, len(data)) - 1}/{len(data)}"
            data, status = data[int(first) : stop], 206
        fault = ""
        if self.command == "GET":
            with self.lock:
                with (self.root / "requests").open("a") as log:
                    log.write(self.path.lstrip("/") + "\n")
                fault = self._fault()
        if fault == "refuse":
            data, status = b"", 503
        if fault == "busy":
            data, status, headers["Retry-After"] = b"", 429, "1"
        if fault in ("short", "empty"):
            data = data[: len(data) // 3 if fault == "short" else 0]
        if fault == "damage":
            data = bytes([data[0] ^ 1]) + data[1:]
        if fault == "stall":
            time.sleep(600)
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command == "HEAD":
            return
        if fault == "break":
            self.wfile.write(data[: len(data) // 2])
            self.close_connection = True
            return
        for at in range(0, len(data), CHUNK):
            self.wfile.write(data[at : at + CHUNK])
            time.sleep(self.pause)

    def _fault(self) -> str:
        """The first fault that fits the path; a fault with a number of times is used up."""
        path = self.root / "faults"
        lines = path.read_text().splitlines() if path.exists() else []
        for number, line in enumerate(lines):
            pattern, fault, *times = line.split()
            if fnmatch.fnmatch(self.path.lstrip("/"), pattern):
                if times:
                    left = int(times[0]) - 1
                    lines[number : number + 1] = [f"{pattern} {fault} {left}"] if left else []
                    path.write_text("\n".join(lines))
                return fault
        return ""


if __name__ == "__main__":
    _Handler.root, _Handler.pause = Path(sys.argv[2]), float(sys.argv[3])
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), _Handler).serve_forever()
