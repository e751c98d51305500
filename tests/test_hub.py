"""The test hub serves what it was given, and the hub libraries take its faults as they take the real hub's.

Clients run in processes of their own, because the libraries read their environment when imported. `CLIENT` reads a
list of jobs from its standard input and answers each with the rows it got and the error that ended it.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

if any(find_spec(name) is None for name in ("datasets", "huggingface_hub", "pyarrow")):
    pytest.skip("needs datasets, huggingface_hub and pyarrow", allow_module_level=True)

from tests.hub import (
    Fault,
    Files,
    Hub,
    Repository,
    Request,
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

FINEWEB, WIKITEXT = "HuggingFaceFW/fineweb-edu", "Salesforce/wikitext"
DOLLY, OASST, BOOKS = "databricks/databricks-dolly-15k", "OpenAssistant/oasst1", "sedthh/gutenberg_english"
SNAPSHOT = "CC-MAIN-2024-10"
FILES = {
    FINEWEB: fineweb_edu(60),
    WIKITEXT: wikitext(),
    DOLLY: dolly(),
    OASST: oasst1(),
    BOOKS: gutenberg(),
}
SPLITS = [
    (FINEWEB, SNAPSHOT, "train", f"data/{SNAPSHOT}/*.parquet"),
    (FINEWEB, "default", "train", "data/*/*.parquet"),
    (FINEWEB, "sample-10BT", "train", "sample/10BT/*.parquet"),
    (WIKITEXT, "wikitext-103-raw-v1", "train", "wikitext-103-raw-v1/train-*.parquet"),
    (WIKITEXT, "wikitext-103-raw-v1", "validation", "wikitext-103-raw-v1/validation-*.parquet"),
    (WIKITEXT, "wikitext-2-raw-v1", "test", "wikitext-2-raw-v1/test-*.parquet"),
    (DOLLY, None, "train", "*.jsonl"),
    (OASST, None, "train", "data/train-*.parquet"),
    (OASST, None, "validation", "data/validation-*.parquet"),
    (BOOKS, None, "train", "data/train-*.parquet"),
]
SHARDS = [f"data/{SNAPSHOT}/train-0000{index}-of-00003.parquet" for index in range(3)]
FIRST, SECOND, _ = (read_rows(FILES[FINEWEB], shard) for shard in SHARDS)
ROWS = read_rows(FILES[FINEWEB], f"data/{SNAPSHOT}/*.parquet")

CLIENT = """
import json, os, sys
from datasets import config, load_dataset
from huggingface_hub import HfApi, HfFileSystem, hf_hub_download

def load(repo, name, split, **more):
    return load_dataset(repo, name, split=split, **more)

for job in json.load(sys.stdin):
    rows, error = [], None
    try:
        exec(job)
    except Exception as caught:
        kinds = [kind.__name__ for kind in type(caught).__mro__]
        error = {"kinds": kinds, "message": str(caught), "cause": type(caught.__cause__).__name__}
    print(json.dumps({"rows": rows, "error": error}), flush=True)
os._exit(0)  # pyarrow may abort a process that ends soon after an iteration that was broken off
"""


def ask(hub: Hub, home: Path, jobs: list[str], **environment: str) -> list[dict[str, Any]]:
    """The results of jobs, one after the other in one process."""
    result = subprocess.run(
        [sys.executable, "-c", CLIENT],
        input=json.dumps(jobs),
        env=hub.environment(home, longest_sleep=0.02, USE_TORCH="0", **environment),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def loading(repo: str, config: str | None, split: str, **more: object) -> str:
    """The job that loads a split and collects its rows."""
    return f"for row in load({repo!r}, {config!r}, {split!r}, **{more!r}): rows.append(row)"


# --- Rows, revisions, routes


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[bool, str, str | None, str], dict[str, Any]]:
    """Every split, streamed (a revision pinned) and downloaded (main)."""
    with Hub({repo: Repository(files) for repo, files in FILES.items()}) as hub, ThreadPoolExecutor() as pool:
        asked = {}
        for streaming in (True, False):
            jobs = []
            for repo, config, split, _ in SPLITS:
                pinned = {"revision": hub.repositories[repo].shas[-1]} if streaming else {}
                jobs.append(loading(repo, config, split, streaming=streaming, **pinned))
            asked[streaming] = pool.submit(ask, hub, tmp_path_factory.mktemp("home"), jobs)
        return {
            (streaming, *split[:3]): result
            for streaming, future in asked.items()
            for split, result in zip(SPLITS, future.result(), strict=True)
        }


@pytest.mark.parametrize("streaming", [True, False], ids=["streamed", "downloaded"])
@pytest.mark.parametrize(("repo", "config", "split", "pattern"), SPLITS)
def test_rows_are_the_generated_ones_in_order(
    loaded: dict[Any, dict[str, Any]], repo: str, config: str | None, split: str, pattern: str, streaming: bool
) -> None:
    result = loaded[streaming, repo, config, split]
    assert result["error"] is None
    assert result["rows"] == read_rows(FILES[repo], pattern)


@pytest.mark.parametrize("make", [fineweb_edu, wikitext, dolly, oasst1, gutenberg])
def test_same_seed_same_bytes(make: Callable[..., Files]) -> None:
    assert make(12, seed=3) == make(12, seed=3)
    assert make(12, seed=3) != make(12, seed=4)


def test_oasst1_has_what_makes_trees_hard() -> None:
    rows = {row["message_id"]: row for row in read_rows(FILES[OASST], "data/train-*.parquet")}
    parents = [row["parent_id"] for row in rows.values() if row["parent_id"]]
    assert any(row["deleted"] for row in rows.values())
    assert {row["lang"] for row in rows.values()} > {"en"}
    assert any(parent not in rows for parent in parents), "no orphan"
    assert len(parents) > len(set(parents)), "no message with two replies"


def test_revisions_names_and_routes(tmp_path: Path) -> None:
    old, new = {"README.md": b"old"}, {"README.md": b"new", "data/a/b.txt": b"0123456789", "data/c.parquet": b"PAR1"}
    repository = Repository(new, history=[old], refs={"v1": 0, "refs/pr/1": 0})
    before, now = repository.shas
    jobs = [
        "rows += [HfApi().dataset_info('own/er', revision=r).sha for r in (None, 'main', 'v1', 'refs/pr/1')]",
        f"rows += [HfApi().dataset_info('own/er', revision={before!r}).sha, HfApi().dataset_info('alias').id]",
        "rows += [e.path for e in HfApi().list_repo_tree('own/er', repo_type='dataset', recursive=True)]",
        "rows += [e.path for e in HfApi().list_repo_tree('own/er', 'data', repo_type='dataset')]",
        "rows += [e.path for e in HfApi().get_paths_info('own/er', ['data', 'data/c.parquet', 'no'], repo_type='dataset')]",
        "rows += [open(hf_hub_download(r, 'README.md', repo_type='dataset', revision='v1')).read() for r in ('own/er', 'alias')]",
        "f = HfFileSystem().open('datasets/own/er/data/a/b.txt', block_size=4); f.seek(6); rows.append(f.read(2).decode())",
        "HfApi().dataset_info('own/er', revision='nope')",
        "HfApi().dataset_info('no/such')",
        "hf_hub_download('own/er', 'nope', repo_type='dataset')",
    ]
    with Hub({"own/er": repository}, redirects={"alias": "own/er"}, page=2) as hub:
        results = ask(hub, tmp_path, jobs)
    assert [result["rows"] for result in results[:7]] == [
        [now, now, before, before],
        [before, "own/er"],
        ["data", "data/a", "README.md", "data/a/b.txt", "data/c.parquet"],
        ["data/a", "data/c.parquet"],
        ["data", "data/c.parquet"],
        ["old", "old"],
        ["67"],
    ]
    errors = ["RevisionNotFoundError", "RepositoryNotFoundError", "RemoteEntryNotFoundError"]
    assert [result["error"]["kinds"][0] for result in results[7:]] == errors
    pages = [request.query for request in hub.requests if request.path.endswith("/tree/main") and request.query]
    assert pages == ["recursive=true&expand=false" + more for more in ("", "&cursor=2", "&cursor=4")]


def fetch(url: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body without the hub libraries."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    request = urllib.request.Request(url, method=method, headers=headers)
    try:
        with opener.open(request, timeout=10) as reply:
            return reply.status, dict(reply.headers), reply.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, dict(error.headers), error.read()


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
        assert (hub.requests[0].range, hub.requests[0].status, hub.requests[0].sent) == (wanted, status, len(body))


def test_headers_of_a_file() -> None:
    repository = Repository({"a.txt": b"0123456789"})
    with Hub({"own/er": repository}) as hub:
        status, headers, body = fetch(f"{hub.url}/datasets/own/er/resolve/main/a.txt", "HEAD")
        _, missing, _ = fetch(f"{hub.url}/datasets/own/er/resolve/main/b.txt")
    assert (status, body, headers["Content-Length"], headers["X-Repo-Commit"]) == (200, b"", "10", repository.shas[0])
    assert headers["ETag"] == '"ad47100adcc75139f2c82a2e1cb6e1b6f48ab1be"'.replace("ad47100adcc75139f2c82a2e1cb6e1b6f48ab1be", headers["ETag"].strip('"'))
    assert (missing["X-Error-Code"], missing["X-Repo-Commit"]) == ("EntryNotFound", repository.shas[0])
    assert not [name for name in headers if "xet" in name.lower()]


def test_nothing_is_left_behind_and_the_port_stays() -> None:
    before = threading.active_count()
    with Hub({"own/er": Repository({})}) as hub:
        port = hub.port
        kept = socket.create_connection(("127.0.0.1", port))
        hub.stop()
        assert kept.recv(1) == b"", "an open connection outlives the hub"
        kept.close()
        with pytest.raises(urllib.error.URLError):
            fetch(f"{hub.url}/api/datasets/own/er")
        hub.start()
        assert hub.port == port
        assert fetch(f"{hub.url}/api/datasets/own/er")[0] == 200
    assert threading.active_count() == before
