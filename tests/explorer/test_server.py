"""The page's server: what it answers over HTTP, what it refuses, how it ends; and the command that starts it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from niels_gpt.explorer.api import Explorer, open_dataset
from niels_gpt.explorer.renderer_list import RendererList
from niels_gpt.renderers.registry import FAMILIES
from niels_gpt.samples import chats_file
from tests.explorer.conftest import Client, chat_file, client_of

CHAT = [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "Because."}]
TEXT = {"renderer": "qwen3", "tokenizer": ""}
MAIN = "import sys; from niels_gpt.cli.main import main; sys.argv[0] = 'niels-gpt'; main()"
PLAIN = {**os.environ, "COLUMNS": "300", "NO_COLOR": "1", "TERM": "dumb", "PYTHONUNBUFFERED": "1"}


@pytest.fixture(scope="module")
def bare() -> Iterator[Client]:
    """A server without tokenizer, on the bundled chats."""
    renderers = RendererList()
    with client_of(Explorer(renderers, open_dataset(chats_file(), renderers))) as client:
        yield client


@pytest.fixture(scope="module")
def ours(tokenizer_dir: Path) -> Iterator[Client]:
    """A server with our own tokenizer, on the bundled chats."""
    renderers = RendererList([str(tokenizer_dir)])
    with client_of(Explorer(renderers, open_dataset(chats_file(), renderers))) as client:
        yield client


# ---- whom it answers


def test_the_page_has_a_policy_without_exceptions(bare: Client) -> None:
    answer = bare.http.get("/")
    assert answer.status_code == 200
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    for name in ("main.js", "style.css", "tokens.js", "icon.svg"):
        assert bare.http.get(f"/static/{name}").status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", ""])
def test_another_host_is_refused(bare: Client, host: str) -> None:
    answer = bare.http.get("/api/session", headers={"host": host})
    assert (answer.status_code, "Host" in answer.json()["error"]) == (403, True)


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ({"origin": "https://evil.example", "content-type": "application/json"}, "another page"),
        ({"content-type": "text/plain"}, "application/json"),  # what a form of another site can send
    ],
)
def test_another_page_is_refused(bare: Client, headers: dict[str, str], words: str) -> None:
    answer = bare.http.post("/api/render", content=json.dumps({"messages": CHAT, "choice": TEXT}), headers=headers)
    assert (answer.status_code, words in answer.json()["error"]) == (403, True)


def test_other_machines_cannot_connect(bare: Client) -> None:
    port = httpx.URL(bare.address).port
    found = socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)
    for address in {str(place[4][0]) for place in found}:
        if not address.startswith("127."):
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection((address, port), timeout=2)


# ---- what it answers


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_renders_without_a_tokenizer(bare: Client, family: str) -> None:
    table = bare.ask("/api/render", {"messages": CHAT, "choice": {"renderer": family}})
    text = "".join(table["texts"])
    assert (table["unit"], table["ids"], table["counts"]["total"]) == ("character", None, len(text))
    assert "Why?" in text
    trained = {mode["name"]: mode["count"] for mode in table["modes"]}
    assert list(trained) == ["none", "content", "end_of_turn", "last_turn", "tool_bodies"]
    assert trained["none"] == len(text) > trained["content"] >= len("Because.")


def test_loss_modes_train_what_they_say(ours: Client) -> None:
    choice = ours.session()["first"]
    assert choice == {"renderer": "ngpt", "tokenizer": "tokenizer", "source": None}
    asked = {"messages": [*CHAT, *CHAT], "choice": choice}
    asked |= {"custom": {"bodies_of_roles": ["user"], "end_of_turn": False}}
    table = ours.ask("/api/render", asked)
    trained = {mode["name"]: mode["count"] for mode in table["modes"]}
    assert trained["end_of_turn"] == trained["content"] + 2  # two turns, each with its end
    assert trained["last_turn"] * 2 == trained["end_of_turn"]
    assert trained["custom"] == table["counts"]["body"] - 2


def test_rows_are_listed_and_searched(bare: Client) -> None:
    session = bare.session()
    assert {listed["renderer"] for listed in session["renderers"]} == {"raw", *FAMILIES}
    assert (session["tokenizers"], session["dataset"]["kind"]) == ([], "chats")
    page = bare.ask("/api/rows", {"limit": 3})["page"]
    assert ([row["row"] for row in page["rows"]], page["next"]) == ([0, 1, 2], 3)
    rows = [json.loads(line) for line in chats_file().read_text().splitlines()]
    held = [at for at, row in enumerate(rows) if "sourdough" in json.dumps(row["messages"]).lower()]
    found = bare.ask("/api/rows", {"wanted": {"text": "SOURDOUGH"}})["page"]
    assert [row["row"] for row in found["rows"]] == held
    assert "expected 1 to 200" in bare.ask("/api/rows", {"limit": 0}, 400)["error"]


def test_histograms_reach_every_row(bare: Client, ours: Client) -> None:
    for client, unit in ((bare, "characters"), (ours, "tokens")):
        answered = client.ask("/api/stats", {})
        assert (answered["rows"], answered["total"], answered["unit"]) == (100, 100, unit)
        assert sum(answered["lengths"]["counts"]) + answered["outside"] == 100
        assert 0 < answered["shares"]["quantiles"][1] < 1


def test_unusable_rows_are_shown_with_their_reason(tmp_path: Path) -> None:
    path = chat_file(tmp_path / "bad.jsonl", [CHAT, "{not json", "", [{"role": "user"}], "   ", "[1]", CHAT])
    renderers = RendererList()
    with client_of(Explorer(renderers, open_dataset(path, renderers))) as client:
        rows = client.ask("/api/rows", {})["page"]["rows"]
        assert [bool(row["problem"]) for row in rows] == [False, True, True, True, False]  # blank lines are none
        assert [row["where"].rpartition(":")[2] for row in rows] == ["1", "2", "4", "6", "7"]
        detail = client.ask("/api/row", {"row": 2})
        assert (detail["table"], "content is missing" in detail["problem"]) == (None, True)
        assert json.loads(detail["source"]), "the row as the file has it, to look at"


def test_an_exported_file_holds_no_end_tag_of_the_data(bare: Client) -> None:
    hostile = "</script><script>alert(1)</script><!--"
    table = bare.ask("/api/render", {"messages": [{"role": "user", "content": hostile}], "choice": TEXT})
    answer = bare.http.post("/api/export", json={"kind": "mask", "title": hostile, "tables": [table]})
    assert answer.headers["content-type"].startswith("text/html")
    head, _, rest = answer.text.partition('<script type="application/json" id="data">')
    data, _, tail = rest.partition("</script>")
    assert json.loads(data)["tables"][0]["texts"] == table["texts"]
    assert "alert(1)</script>" not in head
    assert tail.count("<script") == 1
    assert not any(outside in head + tail for outside in ("src=", "href=", "http://", "https://", "@import", "url("))


# ---- errors

USER = '[{"role": "user", "content": "a"}]'
REFUSED = {
    "{": "the request",
    "[]": "expected a JSON object",
    '{"messages": 3, "choice": {"renderer": "qwen3"}}': "expected a list",
    '{"messages": [{"role": "user"}], "choice": {"renderer": "qwen3"}}': "message 0: content is missing",
    f'{{"messages": {USER}, "choice": {{"renderer": "quen3"}}}}': "did you mean 'qwen3'",
    f'{{"messages": {USER}, "choice": {{"renderer": "qwen3", "tokenizer": "x"}}}}': "no tokenizer",
    f'{{"messages": {USER}, "choice": {{"renderer": "template"}}}}': "needs a tokenizer",
    '{"messages": [], "choice": {"renderer": "qwen3"}, "more": 1}': "more",
    '{"messages": [{"role": "user", "content": "\\ud800"}], "choice": {"renderer": "qwen3"}}': "hex escape",
}


@pytest.mark.parametrize("body", REFUSED)
def test_a_wrong_request_names_what_is_wrong(bare: Client, body: str) -> None:
    answer = bare.http.post("/api/render", content=body, headers={"content-type": "application/json"})
    assert (answer.status_code, REFUSED[body] in answer.json()["error"]) == (400, True), answer.text


def test_an_error_names_the_message(bare: Client) -> None:
    answered = bare.ask("/api/render", {"messages": [*CHAT, {"role": "tool", "content": "x"}], "choice": TEXT}, 400)
    assert (answered["message"], answered["reason"]) == (2, "tool_without_call")


def test_what_is_not_there_is_404(bare: Client) -> None:
    assert bare.http.get("/nowhere").json()["error"] == "there is nothing at /nowhere"
    for place in ("/static/../api.py", "/static/%2e%2e/api.py"):
        assert bare.http.get(place).status_code == 404
    assert bare.http.get("/api/render").status_code == 405
    assert "rows 0 to 99; there is no row 100" in bare.ask("/api/row", {"row": 100}, 404)["error"]
    with client_of(Explorer(RendererList())) as client:
        assert client.session()["dataset"] is None
        assert "niels-gpt explore FILE" in client.ask("/api/rows", {}, 404)["error"]


def test_a_chat_file_that_is_gone_is_named(tmp_path: Path) -> None:
    shutil.copy(chats_file(), tmp_path / "chats.jsonl")
    renderers = RendererList()
    with client_of(Explorer(renderers, open_dataset(tmp_path / "chats.jsonl", renderers))) as client:
        (tmp_path / "chats.jsonl").unlink()
        answered = client.ask("/api/rows", {"limit": 50}, 400)
        assert "chats.jsonl: reading failed: No such file or directory" in answered["error"]


# ---- the command


@contextmanager
def running(file: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """The command in a process of its own, and its port."""
    command = [sys.executable, "-c", MAIN, "explore", str(file), "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=PLAIN) as process:
        assert process.stdout is not None
        found = re.search(r"http://127\.0\.0\.1:(\d+)/", process.stdout.readline())
        assert found is not None
        try:
            yield process, int(found[1])
        finally:
            process.kill()


def unfinished(port: int) -> socket.socket:
    """A POST whose body does not come."""
    head = "POST /api/render HTTP/1.1\r\nhost: 127.0.0.1:{}\r\ncontent-type: application/json\r\n"
    client = socket.create_connection(("127.0.0.1", port))
    client.sendall(f"{head.format(port)}content-length: 1000\r\n\r\n{{".encode())
    return client


def test_clients_that_leave_or_wait_do_not_keep_it_from_ending() -> None:
    with running(chats_file()) as (process, port), unfinished(port), unfinished(port):
        for _ in range(3):
            unfinished(port).close()
        assert httpx.get(f"http://127.0.0.1:{port}/api/session").json()["dataset"]["kind"] == "chats"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert ("Traceback" in errors, "failed" in errors) == (False, False), errors


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="the peak memory is read from /proc")
def test_long_messages_are_refused_and_memory_stays_small(tmp_path: Path) -> None:
    def asked(port: int, size: int) -> httpx.Response:
        messages = [{"role": "user", "content": "four words of text " * (size // 19)}]
        body: dict[str, Any] = {"messages": messages, "choice": {"renderer": "qwen3"}}
        return httpx.post(f"http://127.0.0.1:{port}/api/render", json=body, timeout=60)

    rows = [[{"role": "user", "content": "x" * 12_000_000}, {"role": "assistant", "content": "y"}]]
    with running(chat_file(tmp_path / "long.jsonl", rows)) as (process, port):
        with ThreadPoolExecutor(3) as pool:
            long = list(pool.map(asked, [port] * 3, [12_000_000] * 3))
            short = list(pool.map(asked, [port] * 3, [1_900_000] * 3))
        assert [answer.status_code for answer in (*long, *short)] == [400] * 3 + [200] * 3
        assert "the page shows at most 2,000,000" in long[0].json()["error"]
        row = httpx.post(f"http://127.0.0.1:{port}/api/row", json={"row": 0}, timeout=60).json()
        assert (row["table"], "the page shows at most" in row["problem"]) == (None, True)
        peak = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process.pid}/status").read_text())
        assert peak is not None
        assert int(peak[1]) < 700_000, "kB"


def test_what_cannot_be_opened_is_named_before_the_page_opens(tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text('{"version": 2}')
    without = "import sys; sys.modules['starlette'] = None; sys.modules['uvicorn'] = None; "
    for before, arguments, words in (
        ("", [tmp_path / "none.jsonl"], "no such file"),
        ("", ["--findings", tmp_path / "report.json"], "version is 2"),
        ("", ["--tokenizer", tmp_path], "no tokenizer there"),
        ("", ["--renderer", "quen3"], "did you mean 'qwen3'"),
        ("", ["--template", "none.jinja"], "none.jinja: no such file"),
        (without, [], "pip install 'niels-gpt[explorer]'"),
    ):
        command = [sys.executable, "-c", before + MAIN, "explore", "--no-browser", *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, env=PLAIN, timeout=100, check=False)
        assert (done.returncode in (2, 3), words in done.stderr) == (True, True), done.stderr
        assert "Traceback" not in done.stderr
