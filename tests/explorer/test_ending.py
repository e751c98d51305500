"""The server under clients that do not finish, leave, or send too much."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from niels_gpt.samples import chats_file
from tests.explorer.conftest import chat_file
from tests.explorer.test_command import MAIN, PLAIN

POST = (
    "POST /api/render HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-type: application/json\r\n"
    'content-length: 1000\r\n\r\n{{"messages": ['
)


@contextmanager
def explorer(file: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """The command in a process of its own, and its port."""
    command = [sys.executable, "-c", MAIN, "explore", str(file), "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=PLAIN) as running:
        assert running.stdout is not None
        found = re.search(r":(\d+)/", running.stdout.readline())
        assert found is not None
        try:
            yield running, int(found[1])
        finally:
            running.kill()


def unfinished(port: int) -> socket.socket:
    """A POST whose body does not come."""
    client = socket.create_connection(("127.0.0.1", port))
    client.sendall(POST.format(port=port).encode())
    return client


def ended(running: subprocess.Popen[str]) -> str:
    """Interrupt it; what it wrote to stderr. Without an end in 60 seconds `communicate` raises."""
    running.send_signal(signal.SIGINT)
    _, said = running.communicate(timeout=60)
    return said


def test_an_interrupt_does_not_wait_for_a_request_that_does_not_end() -> None:
    with explorer(chats_file()) as (running, port), unfinished(port), unfinished(port):
        assert httpx.get(f"http://127.0.0.1:{port}/api/session").status_code == 200
        said = ended(running)
    assert "Traceback" not in said


def test_a_client_that_leaves_is_no_error() -> None:
    with explorer(chats_file()) as (running, port):
        for _ in range(3):
            unfinished(port).close()
        assert httpx.get(f"http://127.0.0.1:{port}/api/session").status_code == 200
        said = ended(running)
    assert "Traceback" not in said
    assert "failed" not in said


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="the peak memory is read from /proc")
def test_long_messages_are_refused_and_memory_stays_small(tmp_path: Path) -> None:
    def asked(port: int, size: int) -> httpx.Response:
        body = {
            "messages": [{"role": "user", "content": "four words of text " * (size // 19)}],
            "choice": {"renderer": "qwen3"},
        }
        return httpx.post(f"http://127.0.0.1:{port}/api/render", json=body, timeout=60)

    rows = [[{"role": "user", "content": "x" * 12_000_000}, {"role": "assistant", "content": "y"}]]
    with explorer(chat_file(tmp_path / "long.jsonl", rows)) as (running, port):
        with ThreadPoolExecutor(3) as pool:
            long = list(pool.map(asked, [port] * 3, [12_000_000] * 3))
            short = list(pool.map(asked, [port] * 3, [1_900_000] * 3))
        assert [answer.status_code for answer in (*long, *short)] == [400] * 3 + [200] * 3
        assert "the page shows at most 2,000,000" in long[0].json()["error"]
        row = httpx.post(f"http://127.0.0.1:{port}/api/row", json={"row": 0}, timeout=60).json()
        assert (row["table"], "the page shows at most" in row["problem"]) == (None, True)
        peak = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{running.pid}/status").read_text())
        assert peak is not None
        assert int(peak[1]) < 700_000, "kB"
        assert os.fspath(tmp_path) not in ended(running)
