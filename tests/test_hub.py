"""The test hub serves what it was given, and the hub libraries take its faults as they would take the real hub's.

Clients run in processes of their own, because the libraries read their environment when they are imported. A client
reads jobs (Python that fills `rows`) from its standard input and answers each with its rows and the error it ended in.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

if any(find_spec(name) is None for name in ("datasets", "huggingface_hub", "pyarrow")):
    pytest.skip("needs datasets, huggingface_hub and pyarrow", allow_module_level=True)

import pyarrow as pa

from tests.conftest import run_python
from tests.hub import (
    Fault,
    Files,
    Hub,
    Repository,
    Row,
    dolly,
    fineweb_edu,
    gutenberg,
    oasst1,
    read_rows,
    reshaped,
    truncated,
    wikitext,
)

SNAPSHOT = "CC-MAIN-2024-10"
FILES = {
    "HuggingFaceFW/fineweb-edu": fineweb_edu(60),
    "Salesforce/wikitext": wikitext(),
    "databricks/databricks-dolly-15k": dolly(),
    "OpenAssistant/oasst1": oasst1(),
    "sedthh/gutenberg_english": gutenberg(),
}
SPLITS = [
    ("HuggingFaceFW/fineweb-edu", SNAPSHOT, "train", f"data/{SNAPSHOT}/*.parquet"),
    ("HuggingFaceFW/fineweb-edu", "default", "train", "data/*/*.parquet"),
    ("HuggingFaceFW/fineweb-edu", "sample-10BT", "train", "sample/10BT/*.parquet"),
    ("Salesforce/wikitext", "wikitext-103-raw-v1", "train", "wikitext-103-raw-v1/train-*.parquet"),
    ("Salesforce/wikitext", "wikitext-103-raw-v1", "validation", "wikitext-103-raw-v1/validation-*.parquet"),
    ("Salesforce/wikitext", "wikitext-2-raw-v1", "test", "wikitext-2-raw-v1/test-*.parquet"),
    ("databricks/databricks-dolly-15k", None, "train", "*.jsonl"),
    ("OpenAssistant/oasst1", None, "train", "data/train-*.parquet"),
    ("OpenAssistant/oasst1", None, "validation", "data/validation-*.parquet"),
    ("sedthh/gutenberg_english", None, "train", "data/train-*.parquet"),
]
FINEWEB = FILES["HuggingFaceFW/fineweb-edu"]
SHARDS = [f"data/{SNAPSHOT}/train-0000{index}-of-00003.parquet" for index in range(3)]
ROWS = read_rows(FINEWEB, f"data/{SNAPSHOT}/*.parquet")
FIRST = read_rows(FINEWEB, SHARDS[0])

CLIENT = """
import json, os, sys
import datasets
from datasets import load_dataset
from huggingface_hub import HfApi, HfFileSystem, hf_hub_download

datasets.config.STREAMING_READ_MAX_RETRIES = 2  # of 20, each of them six requests
for job in json.load(sys.stdin):
    rows, error = [], None
    try:
        exec(job)
    except Exception as caught:
        error = [kind.__name__ for kind in type(caught).__mro__], str(caught)
    print(json.dumps([rows, error]), flush=True)
os._exit(0)  # pyarrow may abort a process that ends while it still reads ahead for an iteration that broke off
"""


@dataclass(frozen=True)
class Outcome:
    """What a job got, and the class names and the message of the error that ended it."""

    rows: list[Any]
    error: list[str]
    message: str


def ask(hub: Hub, home: Path, jobs: list[str], **environment: str) -> list[Outcome]:
    """The outcomes of jobs, one after the other in one process."""
    variables = hub.environment(home, longest_sleep=0.001, USE_TORCH="0", **environment)
    result = run_python("-c", CLIENT, environment=variables, given=json.dumps(jobs))
    answers = [json.loads(line) for line in result.stdout.splitlines()]
    assert len(answers) == len(jobs), result.stderr
    return [Outcome(rows, *(error or ([], ""))) for rows, error in answers]


def loading(repo: str, config: str | None, split: str, **more: object) -> str:
    """The job that loads a split and collects its rows."""
    return f"for row in load_dataset({repo!r}, {config!r}, split={split!r}, **{more!r}): rows.append(row)"


def fetch(url: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body, without the hub libraries."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(urllib.request.Request(url, method=method, headers=headers), timeout=10) as reply:
            return reply.status, dict(reply.headers), reply.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, dict(error.headers), error.read()


# --- Rows, orders and the API, from one hub with small pages

OLD, NEW = {"README.md": b"old"}, {"README.md": b"new", "data/a/b.txt": b"0123456789", "data/c.txt": b""}
VERSIONED = Repository(NEW, history=[OLD], refs={"v1": 0, "refs/pr/1": 0})
API = f"""
for name in (None, "main", "v1", "refs/pr/1", {VERSIONED.shas[0]!r}):
    rows.append(HfApi().dataset_info("own/er", revision=name).sha)
few = HfApi().dataset_info("alias", expand=["sha"])
rows += [few.id, few.sha, few.siblings]
---
rows += [entry.path for entry in HfApi().list_repo_tree("own/er", repo_type="dataset", recursive=True)]
---
rows += [entry.path for entry in HfApi().list_repo_tree("own/er", "data", repo_type="dataset")]
---
rows += [entry.path for entry in HfApi().get_paths_info("own/er", ["data", "data/c.txt", "no"], repo_type="dataset")]
---
for name in ("own/er", "alias"):
    with open(hf_hub_download(name, "README.md", repo_type="dataset", revision="v1")) as file: rows.append(file.read())
---
with HfFileSystem().open("datasets/own/er/data/a/b.txt", block_size=4) as file:
    file.seek(6)
    rows.append(file.read(2).decode())
---
HfApi().dataset_info("own/er", revision="no")
---
HfApi().dataset_info("no/such")
---
hf_hub_download("own/er", "no", repo_type="dataset")
"""
STREAM = f"load_dataset('HuggingFaceFW/fineweb-edu', {SNAPSHOT!r}, split='train', streaming=True)"
ORDERS = f"""
rows += {STREAM}.shuffle(seed=1, buffer_size=20)
---
rows += {STREAM}.shuffle(seed=1, buffer_size=20).skip(25)
---
broken, again = {STREAM}, {STREAM}
reader = iter(broken)
first = [next(reader) for _ in range(25)]
again.load_state_dict(json.loads(json.dumps(broken.state_dict())))
rows += again
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Outcome]]:
    """Every split, streamed with its commit pinned and downloaded from main; then `ORDERS` and `API`."""
    repositories = {repo: Repository(files) for repo, files in FILES.items()} | {"own/er": VERSIONED}
    jobs = {"streamed": [], "downloaded": [], "orders": ORDERS.split("---"), "api": API.split("---")}
    for repo, config, split, _ in SPLITS:
        pinned = {"streaming": True, "revision": repositories[repo].shas[-1]}
        jobs["streamed"].append(loading(repo, config, split, **pinned))
        jobs["downloaded"].append(loading(repo, config, split))
    with Hub(repositories, redirects={"alias": "own/er"}, page=2) as hub, ThreadPoolExecutor() as pool:
        pairs = [("streamed", "orders"), ("downloaded", "api")]
        homes = [tmp_path_factory.mktemp("home") for _ in pairs]
        asked = pool.map(lambda pair, home: ask(hub, home, jobs[pair[0]] + jobs[pair[1]]), pairs, homes)
        parts = [(pair, iter(outcomes)) for pair, outcomes in zip(pairs, asked, strict=True)]
    pages = [request.query for request in hub.requests if "/own/er/tree/" in request.path]
    assert pages[:3] == ["recursive=true&expand=false" + cursor for cursor in ("", "&cursor=2", "&cursor=4")]
    return {name: [next(outcomes) for _ in jobs[name]] for pair, outcomes in parts for name in pair}


@pytest.mark.parametrize("way", ["streamed", "downloaded"])
@pytest.mark.parametrize("index", range(len(SPLITS)), ids=["-".join(map(str, split[:3])) for split in SPLITS])
def test_rows_are_the_generated_ones_in_order(answers: dict[str, list[Outcome]], way: str, index: int) -> None:
    repo, _, _, pattern = SPLITS[index]
    outcome = answers[way][index]
    assert outcome.error == [], outcome.message
    assert outcome.rows == read_rows(FILES[repo], pattern)


@pytest.mark.parametrize("make", [fineweb_edu, wikitext, dolly, oasst1, gutenberg])
def test_same_seed_same_bytes(make: Callable[..., Files]) -> None:
    assert make(12, seed=3) == make(12, seed=3)
    assert make(12, seed=3) != make(12, seed=4)


def test_oasst1_has_what_makes_trees_hard() -> None:
    rows = {row["message_id"]: row for row in read_rows(FILES["OpenAssistant/oasst1"], "data/train-*.parquet")}
    parents = [row["parent_id"] for row in rows.values() if row["parent_id"]]
    assert any(row["deleted"] for row in rows.values())
    assert {row["lang"] for row in rows.values()} > {"en"}
    assert any(parent not in rows for parent in parents), "no orphan"
    assert len(parents) > len(set(parents)), "no message with two replies"
    assert list(rows) != sorted(rows, key=lambda own: rows[own]["message_tree_id"]), "not shuffled"


def test_orders_and_resumption(answers: dict[str, list[Outcome]]) -> None:
    whole, skipped, resumed = (outcome.rows for outcome in answers["orders"])
    assert whole != ROWS
    assert sorted(whole, key=lambda row: row["id"]) == sorted(ROWS, key=lambda row: row["id"])
    assert skipped == whole[25:]
    assert resumed == ROWS[25:]


# --- Routes and headers


def test_api_of_revisions_trees_and_paths(answers: dict[str, list[Outcome]]) -> None:
    before, now = VERSIONED.shas
    assert [outcome.rows for outcome in answers["api"] if not outcome.error] == [
        [now, now, before, before, before, "own/er", now, None],
        ["data", "data/a", "README.md", "data/a/b.txt", "data/c.txt"],
        ["data/a", "data/c.txt"],
        ["data", "data/c.txt"],
        ["old", "old"],
        ["67"],
    ]
    errors = [outcome.error[0] for outcome in answers["api"] if outcome.error]
    assert errors == ["RevisionNotFoundError", "RepositoryNotFoundError", "RemoteEntryNotFoundError"]


@pytest.mark.parametrize(
    ("wanted", "status", "body", "content_range"),
    [
        ("bytes=2-4", 206, b"234", "bytes 2-4/10"),
        ("bytes=7-", 206, b"789", "bytes 7-9/10"),
        ("bytes=8-99", 206, b"89", "bytes 8-9/10"),
        ("bytes=-3", 206, b"789", "bytes 7-9/10"),
        ("bytes=10-", 416, b"", "bytes */10"),
    ],
)
def test_ranges(wanted: str, status: int, body: bytes, content_range: str) -> None:
    with Hub({"own/er": Repository({"a.txt": b"0123456789"})}) as hub:
        answer = fetch(f"{hub.url}/datasets/own/er/resolve/main/a.txt", Range=wanted)
    assert (answer[0], answer[2], answer[1]["Content-Range"]) == (status, body, content_range)
    [request] = hub.requests
    assert (request.method, request.path) == ("GET", "/datasets/own/er/resolve/main/a.txt")
    assert (request.range, request.status, request.sent) == (wanted, status, len(body))


def test_headers_of_a_file() -> None:
    repository = Repository({"a.txt": b"0123456789", "b.parquet": b""})
    with Hub({"own/er": repository}) as hub:
        status, headers, body = fetch(f"{hub.url}/datasets/own/er/resolve/main/a.txt", "HEAD")
        _, large, _ = fetch(f"{hub.url}/datasets/own/er/resolve/main/b.parquet")
        _, missing, _ = fetch(f"{hub.url}/datasets/own/er/resolve/main/c.txt")
    assert (status, body, headers["Content-Length"], headers["X-Repo-Commit"]) == (200, b"", "10", repository.shas[0])
    assert headers["ETag"] == '"ad471007bd7f5983d273b9584e5629230150fd54"'  # what git hash-object says
    assert large["ETag"] == f'"{hashlib.sha256(b"").hexdigest()}"'
    assert (missing["X-Error-Code"], missing["X-Repo-Commit"]) == ("EntryNotFound", repository.shas[0])
    assert not [name for name in headers if "xet" in name.lower()]


def test_a_stop_closes_everything_and_a_start_keeps_the_port() -> None:
    threads = threading.active_count()
    with Hub({"own/er": Repository({})}) as hub:
        port = hub.port
        with closing(http.client.HTTPConnection("127.0.0.1", port)) as connection:
            connection.request("GET", "/api/datasets/own/er")
            assert connection.getresponse().read()
            hub.stop()
            assert connection.sock.recv(1) == b"", "an idle connection outlives the hub"
        with pytest.raises(urllib.error.URLError):
            fetch(f"{hub.url}/api/datasets/own/er")
        hub.start()
        assert (hub.port, fetch(f"{hub.url}/api/datasets/own/er")[0]) == (port, 200)
    assert threading.active_count() == threads


# --- Faults: what the libraries make of them. Rows are never lost or doubled, at worst the last ones are missing


@dataclass(frozen=True)
class Case:
    """A fault in the second of three files, the rows and the error that follow, and the replies for that file."""

    fault: dict[str, Any]
    rows: list[Row]
    replies: list[int]
    error: str = ""
    message: str = ""
    files: Files = field(default_factory=lambda: FINEWEB)
    streaming: bool = True


def changed(change: Callable[[pa.Table], pa.Table]) -> Files:
    return reshaped(FINEWEB, SHARDS[1], change)


def undated(row: Row) -> Row:
    return {**row, "date": None} if row in read_rows(FINEWEB, SHARDS[1]) else row


GONE = ("ConnectionError", "Server Disconnected")
CASES = {
    "429-once": Case({"status": 429, "headers": {"Retry-After": "1"}, "at": [1]}, ROWS, [429, 206]),
    "500-twice": Case({"status": 500, "at": [1, 2]}, ROWS, [500, 500, 206]),
    "dropped-once": Case({"drop_after": 1000, "at": [1]}, ROWS, [206, 206]),
    "reset-once": Case({"drop_after": 1000, "reset": True, "at": [1]}, ROWS, [206, 206]),
    "stalled-once": Case({"pause": 4, "at": [1]}, ROWS, [206, 206]),
    "404": Case({"status": 404}, FIRST, [404], "EntryNotFoundError", "Entry Not Found"),
    "500": Case({"status": 500}, FIRST, [500] * 6, "HfHubHTTPError", "500 Internal Server Error"),
    "429": Case({"status": 429}, FIRST, [429] * 12, *GONE),
    "dropped": Case({"drop_after": 1000}, FIRST, [206] * 12, *GONE),
    "truncated": Case({}, FIRST, [206], "ArrowInvalid", "magic bytes not found", truncated(FINEWEB, SHARDS[1])),
    "renamed": Case({}, FIRST, [206], "CastError", "", changed(lambda t: t.rename_columns({"text": "content"}))),
    "retyped": Case({}, FIRST, [206], "TypeError", "", changed(lambda t: t.set_column(0, "text", [[["a"]] * len(t)]))),
    "undated": Case({}, [undated(row) for row in ROWS], [206], "", "", changed(lambda t: t.drop_columns(["date"]))),
    "download-dropped-once": Case({"drop_after": 1000, "at": [1]}, ROWS, [200, 200], streaming=False),
    "download-500-once": Case({"status": 500, "at": [1]}, [], [500], "HfHubHTTPError", "500", streaming=False),
}


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Outcome, list[int | None]]]:
    """The outcome of each case and the replies for its second file; two processes share the work."""
    hub = Hub({f"faulty/{name}": Repository(case.files) for name, case in CASES.items()})
    paths = {name: f"/datasets/faulty/{name}/resolve/*/{SHARDS[1]}" for name in CASES}
    hub.faults += [Fault(f"GET {paths[name]}", **case.fault) for name, case in CASES.items()]
    jobs = [loading(f"faulty/{name}", SNAPSHOT, "train", streaming=case.streaming) for name, case in CASES.items()]

    def half(first: int) -> list[Outcome]:
        return ask(hub, tmp_path_factory.mktemp("home"), jobs[first::2], HF_HUB_DOWNLOAD_TIMEOUT="2")

    with hub, ThreadPoolExecutor() as pool:
        halves = list(pool.map(half, range(2)))
    got = [request for request in hub.requests if request.method == "GET"]
    return {
        name: (halves[index % 2][index // 2], [r.status for r in got if fnmatchcase(r.path, paths[name])])
        for index, name in enumerate(CASES)
    }


@pytest.mark.parametrize("name", CASES)
def test_faults(faulty: dict[str, tuple[Outcome, list[int | None]]], name: str) -> None:
    (outcome, replies), case = faulty[name], CASES[name]
    assert outcome.rows == case.rows
    assert replies == case.replies
    assert case.error in outcome.error if case.error else outcome.error == []
    assert case.message in outcome.message


def test_a_hub_that_goes_down_ends_the_rows(tmp_path: Path) -> None:
    with Hub({"own/er": Repository(FINEWEB)}) as hub:
        hub.faults.append(Fault(f"GET */{SHARDS[1]}", down=True))
        job = loading("own/er", SNAPSHOT, "train", streaming=True)
        running, dead = ask(hub, tmp_path, [job, loading("own/other", None, "train", streaming=True)])
    assert (running.rows, running.message) == (FIRST, "Server Disconnected")
    assert (dead.rows, "ConnectionError" in dead.error) == ([], True)
    assert "Couldn't reach 'own/other' on the Hub" in dead.message


def test_a_hub_that_comes_back_is_used_on(tmp_path: Path) -> None:
    more = "datasets.config.STREAMING_READ_MAX_RETRIES = 20\n"
    with Hub({"own/er": Repository(FINEWEB)}) as hub, ThreadPoolExecutor() as pool:
        hub.faults.append(Fault(f"GET */{SHARDS[1]}", down=True, at=[1]))
        asked = pool.submit(ask, hub, tmp_path, [more + loading("own/er", SNAPSHOT, "train", streaming=True)])
        assert hub.stopping.wait(60)
        hub.stop()  # waits for the stop that is under way
        hub.start()
        assert asked.result()[0].rows == ROWS
