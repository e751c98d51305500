"""The API over real HTTP: what it tells, what it refuses, and in which words."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from niels_gpt.explorer.api import Explorer, open_dataset
from niels_gpt.explorer.findings import read_findings
from niels_gpt.explorer.renderer_list import RendererList
from niels_gpt.renderers.registry import FAMILIES
from niels_gpt.samples import chats_file
from tests.explorer.conftest import Client, chat_file, client_of

CHAT = [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "Because."}]
TEXT = {"renderer": "qwen3", "tokenizer": ""}


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


def test_page_and_its_policy(bare: Client) -> None:
    answer = bare.http.get("/")
    assert answer.status_code == 200
    assert '<script type="module" src="/static/main.js">' in answer.text
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert " style=" not in answer.text
    assert "<style" not in answer.text
    for name in ("main.js", "style.css", "tokens.js", "icon.svg"):
        assert bare.http.get(f"/static/{name}").status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", ""])
def test_another_host_is_refused(bare: Client, host: str) -> None:
    answer = bare.http.get("/api/session", headers={"host": host})
    assert answer.status_code == 403
    assert "Host" in answer.json()["error"]


def test_another_page_is_refused(bare: Client) -> None:
    body = json.dumps({"messages": CHAT, "choice": TEXT})
    foreign = bare.http.post(
        "/api/render", content=body, headers={"origin": "https://evil.example", "content-type": "application/json"}
    )
    assert foreign.status_code == 403
    assert "another page" in foreign.json()["error"]
    simple = bare.http.post("/api/render", content=body, headers={"content-type": "text/plain"})
    assert simple.status_code == 403
    assert "application/json" in simple.json()["error"]


def test_what_is_at_hand(bare: Client, ours: Client) -> None:
    session = bare.session()
    assert {listed["renderer"] for listed in session["renderers"]} == {"raw", *FAMILIES}
    assert session["tokenizers"] == []
    assert session["dataset"]["kind"] == "chats"
    assert [mode["name"] for mode in session["modes"]] == ["none", "content", "end_of_turn", "last_turn", "tool_bodies"]
    assert ours.session()["first"] == {"renderer": "ngpt", "tokenizer": "tokenizer", "source": None}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_renders_without_a_tokenizer(bare: Client, family: str) -> None:
    table = bare.ask("/api/render", {"messages": CHAT, "choice": {"renderer": family}})
    assert table["unit"] == "character"
    assert table["ids"] is None
    assert "Why?" in "".join(table["texts"])
    assert "Because." in "".join(table["texts"])
    assert table["counts"]["total"] == len("".join(table["texts"]))
    trained = {mode["name"]: mode["count"] for mode in table["modes"]}
    assert trained["content"] >= len("Because.")
    assert trained["none"] == table["counts"]["total"]


def test_modes_on_our_own_tokenizer(ours: Client) -> None:
    choice = {"renderer": "ngpt", "tokenizer": "tokenizer"}
    table = ours.ask("/api/render", {"messages": [*CHAT, *CHAT], "choice": choice})
    assert table["texts"][0].startswith("<|ngpt_")
    trained = {mode["name"]: mode["count"] for mode in table["modes"]}
    assert trained["end_of_turn"] == trained["content"] + 2  # two turns, each with its end
    assert trained["last_turn"] * 2 == trained["end_of_turn"]
    asked = {"messages": CHAT, "choice": choice, "custom": {"bodies_of_roles": ["user"], "end_of_turn": False}}
    custom = ours.ask("/api/render", asked)["modes"][-1]
    told = ours.ask("/api/render", {"messages": CHAT, "choice": choice})
    body = told["counts"]["body"]
    assert custom["name"] == "custom"
    assert custom["count"] == body - 1


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"{", "the request"),
        (b'{"messages": [], "choice": {"renderer": "qwen3"}}', "messages is empty"),
        (b'{"messages": 3, "choice": {"renderer": "qwen3"}}', "expected a list"),
        (b'{"messages": [{"role": "user"}], "choice": {"renderer": "qwen3"}}', "message 0: content is missing"),
        (b'{"messages": [{"role": "x", "content": ""}], "choice": {"renderer": "qwen3"}}', "message 0: role is 'x'"),
        (b'{"messages": [{"role": "user", "content": "a"}], "choice": {"renderer": "quen3"}}', "did you mean 'qwen3'"),
        (
            b'{"messages": [{"role": "user", "content": "a"}], "choice": {"renderer": "qwen3", "tokenizer": "x"}}',
            "no tokenizer",
        ),
        (b'{"messages": [{"role": "user", "content": "a"}], "choice": {"renderer": "template"}}', "needs a tokenizer"),
        (b'{"messages": [], "choice": {"renderer": "qwen3"}, "more": 1}', "more"),
        (b'{"messages": [{"role": "user", "content": "\\ud800"}], "choice": {"renderer": "qwen3"}}', "hex escape"),
    ],
)
def test_errors_in_words(bare: Client, body: bytes, words: str) -> None:
    answer = bare.http.post("/api/render", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert words in answer.json()["error"]


def test_error_names_the_message(bare: Client) -> None:
    wrong = [*CHAT, {"role": "tool", "content": "x"}]
    told = bare.ask("/api/render", {"messages": wrong, "choice": TEXT}, 400)
    assert told["message"] == 2
    assert told["reason"] == "tool_without_call"


def test_nothing_there(bare: Client) -> None:
    answer = bare.http.get("/nowhere")
    assert answer.status_code == 404
    assert answer.json()["error"] == "there is nothing at /nowhere"
    assert bare.http.get("/static/../api.py").status_code == 404
    assert bare.http.get("/static/%2e%2e/api.py").status_code == 404
    assert bare.http.get("/api/render").status_code == 405
    told = bare.ask("/api/row", {"row": 100}, 404)
    assert "rows 0 to 99; there is no row 100" in told["error"]
    assert "there is no row -1" in bare.ask("/api/row", {"row": -1}, 404)["error"]


def test_rows_search_and_filters(bare: Client) -> None:
    page = bare.ask("/api/rows", {"limit": 3})["page"]
    assert [row["row"] for row in page["rows"]] == [0, 1, 2]
    assert page["next"] == 3
    assert page["rows"][0]["roles"][:2] == ["user", "assistant"]
    found = bare.ask("/api/rows", {"text": "SOURDOUGH"})["page"]
    rows = [json.loads(line) for line in chats_file().read_text().splitlines()]
    held = [at for at, row in enumerate(rows) if "sourdough" in json.dumps(row["messages"]).lower()]
    assert [row["row"] for row in found["rows"]] == held
    assert held
    systems = bare.ask("/api/rows", {"has": ["system"], "limit": 200})["page"]["rows"]
    assert [row["row"] for row in systems] == [
        at for at, row in enumerate(rows) if row["messages"][0]["role"] == "system"
    ]
    short = bare.ask("/api/rows", {"max_size": 200, "limit": 200})["page"]["rows"]
    assert short
    assert all(row["size"] <= 200 for row in short)
    assert "expected 1 to 200" in bare.ask("/api/rows", {"limit": 0}, 400)["error"]


def test_stats_reaches_every_row(bare: Client, ours: Client) -> None:
    for client, unit in ((bare, "characters"), (ours, "tokens")):
        deadline = time.monotonic() + 60
        while (told := client.ask("/api/stats", {}))["rows"] < 100 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert told["of"] == told["total"] == 100
        assert told["unit"] == unit
        assert not told["problem"]
        assert sum(told["lengths"]["counts"]) + told["outside"] == 100
        assert 0 < told["shares"]["quantiles"][1] < 1


def test_bad_rows_are_shown_not_hidden(tmp_path: Path) -> None:
    path = chat_file(tmp_path / "bad.jsonl", [CHAT, "{not json", "", [{"role": "user"}], "   ", "[1]", CHAT])
    renderers = RendererList()
    with client_of(Explorer(renderers, open_dataset(path, renderers))) as client:
        rows = client.ask("/api/rows", {})["page"]["rows"]
        assert len(rows) == 5  # blank lines are none
        assert [bool(row["problem"]) for row in rows] == [False, True, True, True, False]
        assert rows[1]["where"].endswith("bad.jsonl:2")
        assert "not valid JSON" in rows[1]["problem"]
        assert rows[4]["where"].endswith("bad.jsonl:7")
        detail = client.ask("/api/row", {"row": 2})
        assert detail["table"] is None
        assert "content is missing" in detail["problem"]
        assert json.loads(detail["source"]), "the row as the file has it, to look at"
        unusable = client.ask("/api/rows", {"has": ["unusable"]})["page"]["rows"]
        assert [row["row"] for row in unusable] == [1, 2, 3]


def test_export_holds_no_end_tag(bare: Client) -> None:
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


def test_drift_marks_the_first_difference(bare: Client) -> None:
    body = {"messages": CHAT, "left": TEXT, "right": {"renderer": "chatml"}}
    told = bare.ask("/api/drift", body)
    left, right = told["left"]["texts"], told["right"]["texts"]
    at = told["drift"]["left"][0][0]
    assert not told["drift"]["same"]
    assert left[:at] == right[:at]
    assert "think" in left[at]
    assert bare.ask("/api/drift", {**body, "right": TEXT})["drift"]["same"]


def test_rows_of_a_finding(tmp_path: Path) -> None:
    evidence = [{"row": row} for row in (5, 2, 5, -1, 99, 1000)]
    finding = {"rule": "x", "severity": "info", "title": "x", "evidence": evidence}
    (tmp_path / "report.json").write_text(json.dumps({"version": 1, "findings": [finding]}))
    renderers = RendererList()
    report = read_findings(tmp_path / "report.json")
    with client_of(Explorer(renderers, open_dataset(chats_file(), renderers), report)) as client:
        page = client.ask("/api/rows", {"finding": 0})["page"]
        assert [row["row"] for row in page["rows"]] == [2, 5, 99]
        assert page["next"] is None
        first = client.ask("/api/rows", {"finding": 0, "limit": 1})["page"]
        assert client.ask("/api/rows", {"finding": 0, "start": first["next"]})["page"]["rows"] == page["rows"][1:]
        assert "1 findings" in client.ask("/api/rows", {"finding": 1}, 400)["error"]


def test_without_a_dataset() -> None:
    with client_of(Explorer(RendererList())) as client:
        assert client.session()["dataset"] is None
        assert "niels-gpt explore FILE" in client.ask("/api/rows", {}, 404)["error"]


def test_only_this_machine(bare: Client) -> None:
    port = httpx.URL(bare.address).port
    import socket

    outside = {found[4][0] for found in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)} - {"127.0.0.1"}
    for address in outside:
        if address.startswith("127."):
            continue
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((address, port), timeout=2)
