"""A real server on 127.0.0.1, and a real Chromium to look at it."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from niels_gpt.explorer.api import Explorer, open_dataset
from niels_gpt.explorer.renderer_list import RendererList
from niels_gpt.samples import chats_file
from tests.conftest import run_cli


@contextmanager
def serving(explorer: Explorer) -> Iterator[str]:
    """The address of a server that runs until the block ends."""
    for library in ("starlette", "uvicorn"):
        pytest.importorskip(library, reason="the extra explorer is not installed")
    from niels_gpt.explorer.server import HOST, bound, server_of

    listening = bound(0)
    server = server_of(explorer)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        yield f"http://{HOST}:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(10)
        listening.close()
        explorer.close()


@dataclass
class Client:
    """Requests to a server, with JSON both ways."""

    address: str
    http: httpx.Client

    def ask(self, path: str, body: Any, status: int = 200) -> Any:
        """What the server answers to a POST."""
        answer = self.http.post(path, json=body)
        assert answer.status_code == status, answer.text
        return answer.json()

    def session(self) -> Any:
        """What is available."""
        return self.http.get("/api/session").json()


@contextmanager
def client_of(explorer: Explorer) -> Iterator[Client]:
    """A client of a server of its own."""
    with serving(explorer) as address, httpx.Client(base_url=address, timeout=60) as http:
        yield Client(address, http)


@pytest.fixture(scope="session")
def chromium() -> str:
    """The path of a browser. `.ci/run` installs one; a test run on somebody's machine installs nothing."""
    found = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chromium-browser")
    if found is None:
        pytest.skip("no Chromium on the PATH; on Debian: apt-get install chromium")
    return found


@dataclass
class Watched:
    """A page, and everything that went wrong on it."""

    page: Any
    problems: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Any]:
    """A headless Chromium; of one module, because its loop lets nobody else's run in this thread while it is there."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def visit(browser: Any) -> Iterator[Callable[..., Watched]]:
    """Open an address in a page of its own.

    At the end no page may have met an error of its scripts or its policy, or have asked another server.
    """
    opened: list[tuple[Any, str, Watched]] = []

    def go(address: str, **options: Any) -> Watched:
        context = browser.new_context(**{"viewport": {"width": 1360, "height": 860}, **options})
        watched = Watched(context.new_page())
        page = watched.page
        page.set_default_timeout(60_000)  # a busy machine is slow, not wrong
        page.on("pageerror", lambda error: watched.problems.append(f"error: {error}"))
        page.on("console", lambda line: line.type == "error" and watched.problems.append(line.text))
        page.on("request", lambda request: watched.requests.append(request.url))
        page.goto(address)
        opened.append((context, address.partition("#")[0], watched))
        return watched

    yield go
    for context, address, watched in opened:
        context.close()
        expected = [problem for problem in watched.problems if "the server responded with a status of 4" in problem]
        assert watched.problems == expected, watched.problems
        assert all(request.startswith((address, "blob:", "data:")) for request in watched.requests)


@contextmanager
def visited(visit: Callable[..., Watched], explorer: Explorer, place: str, **options: Any) -> Iterator[Any]:
    """A page of an explorer that runs as long. It is closed first: what it still loads would be refused."""
    with serving(explorer) as address:
        page = visit(f"{address}/{place}", **options).page
        yield page
        page.close()


def report_of(rows: list[int], **facts: Any) -> dict[str, Any]:
    """A report of the doctor with a finding at these rows; `facts` of its evidence."""
    evidence = [{"row": row, "where": "chats.jsonl:8", "note": "this one", "message": 1, "token": 5} for row in rows]
    finding = {"rule": "never-ending", "severity": "error", "title": "The model <b>never</b> stops", "count": 1200}
    finding |= {"rows": 41, "summary": "s", "cause": "c", "fix": "f", "thread": "huggingface/trl#1623"}
    finding["evidence"] = [place | {"window": [], "mark": None} | facts for place in evidence]
    return {"version": 1, "rows": 100, "findings": [finding], "skipped": {}, "judged": 50}


def chat_file(path: Path, chats: list[Any]) -> Path:
    """A file of conversations; what is no list is written as it is."""
    lines = [json.dumps({"messages": chat}) if isinstance(chat, list) else str(chat) for chat in chats]
    path.write_text("\n".join(lines) + "\n")
    return path


def turns(n: int, text: str = "a word or two") -> list[dict[str, Any]]:
    return [{"role": "user" if at % 2 == 0 else "assistant", "content": f"{text} {at}"} for at in range(n)]


LONG = "message 0: content.0 is of type 'image_url'; expected a text part " * 3 + "unbroken" * 20


@pytest.fixture(scope="module")
def address(tokenizer_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server with 60 rows of 2 to 120 turns, the last one a giant, all names long, and a report of three findings."""
    chats = [turns(2 + 2 * (at % 30)) for at in range(58)] + [turns(120), turns(2, "giant " * 20_000)]
    window = [{"id": 5, "text": " a", "trained": True, "role": "user"}]
    window += [{"id": 4, "text": "\n", "trained": False, "role": None}]
    report = report_of([7, 7, 59, 3], window=window, mark=1)
    report["findings"] *= 3
    long = report["findings"][0] | {"summary": LONG, "fix": LONG, "thread": "https://example.org/page"}
    report["findings"][0] = long | {"evidence": [place | {"where": "a/long/path/" * 9} for place in long["evidence"]]}
    renderers = RendererList([str(tokenizer_dir)])
    path = tmp_path_factory.mktemp("chats") / f"{'a_long_name_of_a_file_' * 4}.jsonl"
    with serving(Explorer(renderers, open_dataset(chat_file(path, chats), renderers), report)) as found:
        yield found


@pytest.fixture(scope="module")
def samples_address(tokenizer_dir: Path) -> Iterator[str]:
    """A server with the bundled chats."""
    renderers = RendererList([str(tokenizer_dir)])
    with serving(Explorer(renderers, open_dataset(chats_file(), renderers))) as found:
        yield found


@pytest.fixture(scope="module")
def episodes_address(tokenizer_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server with episodes of the bundled chats."""
    place = tmp_path_factory.mktemp("episodes") / "chats"
    done = run_cli("build", chats_file(), "--tokenizer", tokenizer_dir, "--val-frac", "0", "--out", place)
    assert done.returncode == 0, done.stderr
    renderers = RendererList([str(tokenizer_dir)])
    with serving(Explorer(renderers, open_dataset(place, renderers))) as found:
        yield found
