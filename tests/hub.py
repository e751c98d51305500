"""A Hugging Face hub on 127.0.0.1 for tests: the hub's own routes, small repositories in real schemas, faults on order.

::

    with Hub({"databricks/databricks-dolly-15k": Repository(dolly(rows=20))}) as hub:
        hub.faults.append(Fault("GET */resolve/*.jsonl", status=429, headers={"Retry-After": "1"}, at=[1]))
        subprocess.run([sys.executable, "-c", script], env=hub.environment(tmp_path, longest_sleep=0.05))
        assert [request.status for request in hub.requests if request.path.endswith(".jsonl")] == [429, 206, 206]
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import random
import re
import socket
import struct
import sys
import threading
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq

Files = dict[str, bytes]
Row = dict[str, Any]
Reply = tuple[int, dict[str, str], bytes]
CHUNK = 1 << 14
ROUTE = re.compile(
    r"/(?P<api>api/)?datasets/(?P<repo>[^/]+(?:/[^/]+)??)"
    r"(?:/(?P<verb>revision|tree|paths-info|resolve)/(?P<revision>[^/]+)(?:/(?P<path>.+))?)?"
)


@dataclass(frozen=True)
class Repository:
    """Files at `main`, files of older commits (oldest first), and branches or tags: indices into those and main's."""

    files: Mapping[str, bytes]
    history: Sequence[Mapping[str, bytes]] = ()
    refs: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def shas(self) -> list[str]:
        """The commits, oldest first; like git's, each follows from its files and its parent."""
        shas: list[str] = []
        for files in (*self.history, self.files):
            tree = "".join(f"{path} {_oid(files[path])}\n" for path in sorted(files))
            shas.append(hashlib.sha1(("".join(shas[-1:]) + tree).encode()).hexdigest())
        return shas

    def commit(self, revision: str) -> tuple[str, Mapping[str, bytes]] | None:
        """Sha and files of a branch, tag or sha, `None` if there is none."""
        known = {"main": -1, **self.refs, **{sha: index for index, sha in enumerate(self.shas)}}
        index = known.get(revision)
        return None if index is None else (self.shas[index], (*self.history, self.files)[index])


@dataclass
class Fault:
    """What goes wrong with requests for which `"METHOD /path"` fits `pattern`: the `at`-th (from 1), or each (`None`).

    Either an error `status` with `headers`; or the body breaks off after `drop_after` bytes (`reset`: by a TCP reset,
    else the connection is closed); or the whole hub goes `down`.
    """

    pattern: str
    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    drop_after: int | None = None
    reset: bool = False
    down: bool = False
    at: Container[int] | None = None
    seen: int = field(default=0, init=False)


@dataclass
class Request:
    """One request as it came in (path without quoting), and the status of its answer."""

    method: str
    path: str
    query: str
    range: str | None
    status: int | None = None


class Hub:
    """Serves `repositories` until it is stopped; tests may change the public attributes while it runs."""

    def __init__(self, repositories: Mapping[str, Repository]) -> None:
        self.repositories = dict(repositories)
        self.requests: list[Request] = []
        self.faults: list[Fault] = []
        self.errors: list[BaseException] = []
        self.port = 0
        self._server: _Server | None = None
        self._thread = threading.Thread()
        self._lifecycle, self._counting = threading.Lock(), threading.Lock()

    @property
    def url(self) -> str:
        """What clients take for https://huggingface.co."""
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Hub:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        assert not self.errors, self.errors

    def start(self) -> None:
        """Serve, after a stop on the same port as before."""
        self._server = _Server(self)
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    def stop(self) -> None:
        """Close the port and every connection; does nothing the second time."""
        with self._lifecycle:
            server, self._server = self._server, None
            if server is not None:
                server.shutdown()
                self._thread.join()
                for connection in list(server.connections):
                    with suppress(OSError):
                        connection.shutdown(socket.SHUT_RDWR)
                server.server_close()  # waits for the handlers

    def fault(self, request: Request) -> Fault:
        """The first fault that this request runs into, else one that does nothing; counts it for all that fit."""
        with self._counting:
            fitting = [f for f in self.faults if fnmatchcase(f"{request.method} {request.path}", f.pattern)]
            for fault in fitting:
                fault.seen += 1
            return next((f for f in fitting if f.at is None or f.seen in f.at), Fault(""))

    def environment(self, home: Path, *, longest_sleep: float | None = None, **more: str) -> dict[str, str]:
        """The environment of a client process that keeps its caches below `home`.

        `longest_sleep`: no `time.sleep` of that process takes longer, so that every retry of the libraries happens
        but their minutes of waiting do not.
        """
        foreign = re.compile("HF_|HUGGING|XDG_CACHE|.*proxy", re.IGNORECASE)
        kept = {key: value for key, value in os.environ.items() if not foreign.match(key)}
        off = "HUB_DISABLE_XET HUB_DISABLE_TELEMETRY HUB_DISABLE_UPDATE_CHECK HUB_DISABLE_IMPLICIT_TOKEN"
        off += " HUB_DISABLE_PROGRESS_BARS DATASETS_DISABLE_PROGRESS_BARS"
        ours = {f"HF_{name}": "1" for name in off.split()}
        ours |= {"HF_ENDPOINT": self.url, "HF_HOME": str(home), "HF_UPDATE_DOWNLOAD_COUNTS": "0", "NO_PROXY": "*"}
        ours |= {"HF_HUB_DOWNLOAD_TIMEOUT": "5", "HF_HUB_ETAG_TIMEOUT": "5"}
        if longest_sleep is not None:
            code = f"import time\n_sleep = time.sleep\ntime.sleep = lambda s: _sleep(min(s, {longest_sleep}))\n"
            (home / "startup").mkdir(parents=True, exist_ok=True)
            (home / "startup" / "sitecustomize.py").write_text(code)
            ours["PYTHONPATH"] = os.pathsep.join(filter(None, [str(home / "startup"), kept.get("PYTHONPATH")]))
        return {**kept, **ours, **more}


class _Server(ThreadingHTTPServer):
    daemon_threads = False
    request_queue_size = 64

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.connections: set[socket.socket] = set()
        super().__init__(("127.0.0.1", hub.port), _Handler)

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        self.connections.add(connection)
        return connection, address

    def shutdown_request(self, request: Any) -> None:
        self.connections.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        error = sys.exception()
        if error is not None and not isinstance(error, OSError):  # clients may go away
            self.hub.errors.append(error)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_: object) -> None:
        """Keep quiet: the hub's `requests` tell."""

    def do_GET(self) -> None:
        """Answer, or do what a fault says."""
        form = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        url, hub = urlsplit(self.path), self.server.hub
        request = Request(self.command, unquote(url.path), url.query, self.headers.get("Range"))
        hub.requests.append(request)
        fault = hub.fault(request)
        if fault.down:
            self.close_connection = True
            threading.Thread(target=hub.stop).start()
        elif fault.status is not None:
            self._send(request, fault, _error(fault.status, "EntryNotFound" if fault.status == 404 else "", "a fault"))
        else:
            self._send(request, fault, _ranged(_answer(hub, self.path, form), request.range))

    do_HEAD = do_POST = do_GET  # noqa: N815

    def _send(self, request: Request, fault: Fault, reply: Reply) -> None:
        request.status, headers, body = reply
        self.send_response(request.status)
        for name, value in {**headers, **fault.headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        body = b"" if request.method == "HEAD" else body[: fault.drop_after]
        for start in range(0, len(body), CHUNK):
            self.wfile.write(body[start : start + CHUNK])
        self.close_connection |= fault.drop_after is not None
        if fault.reset:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.rfile.close()
            self.connection.close()


def _answer(hub: Hub, target: str, form: bytes) -> Reply:
    """The reply to a request for `target`, a path with its query."""
    match = ROUTE.fullmatch(urlsplit(target).path)
    if match is None or bool(match["api"]) == (match["verb"] == "resolve"):
        return _error(404, "", "Sorry, we can't find the page you are looking for.")
    name, revision, path = unquote(match["repo"]), unquote(match["revision"] or "main"), unquote(match["path"] or "")
    if name not in hub.repositories:
        return _error(401, "RepoNotFound", "Invalid username or password.")  # as the hub tells the anonymous
    commit = hub.repositories[name].commit(revision)
    if commit is None:
        return _error(404, "RevisionNotFound", f"Invalid rev id: {revision}")
    sha, files = commit
    if match["verb"] == "resolve":
        if path not in files:
            return _error(404, "EntryNotFound", "Entry not found", {"X-Repo-Commit": sha})
        etag = hashlib.sha256(files[path]).hexdigest() if _is_lfs(path) else _oid(files[path])
        return 200, {"X-Repo-Commit": sha, "ETag": f'"{etag}"', "Accept-Ranges": "bytes"}, files[path]
    if match["verb"] == "tree":
        return _tree(target, _entries(files), path)
    if match["verb"] == "paths-info":
        return _json([entry for entry in _entries(files) if entry["path"] in parse_qs(form.decode())["paths"]])
    siblings = [{"rfilename": path} for path in sorted(files)]
    described = {"author": name.split("/")[0], "private": False, "gated": False, "disabled": False, "tags": []}
    info = {"_id": sha[:24], "id": name, "sha": sha, "siblings": siblings, "downloads": 0, **described}
    wanted = parse_qs(urlsplit(target).query).get("expand", info)
    return _json({key: info[key] for key in info if key in ("_id", "id", *wanted)})


def _tree(target: str, entries: list[Row], folder: str) -> Reply:
    """What is in a folder, directories first."""
    if folder and (folder, "directory") not in [(entry["path"], entry["type"]) for entry in entries]:
        return _error(404, "EntryNotFound", f"{folder} does not exist")
    url, prefix = urlsplit(target), folder + "/" if folder else ""
    query = {key: values[0] for key, values in parse_qs(url.query).items()}
    below = [entry for entry in entries if entry["path"].startswith(prefix)]
    if query.get("recursive", "").lower() != "true":
        below = [entry for entry in below if "/" not in entry["path"][len(prefix) :]]
    return _json(below)


def _entries(files: Mapping[str, bytes]) -> list[Row]:
    """All directories and files as the hub describes them."""
    folders = sorted({str(parent) for path in files for parent in list(PurePosixPath(path).parents)[:-1]})
    result: list[Row] = [{"type": "directory", "oid": _oid(path.encode()), "size": 0, "path": path} for path in folders]
    for path, data in sorted(files.items()):
        lfs = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}
        more = {"lfs": lfs} if _is_lfs(path) else {}
        result.append({"type": "file", "oid": _oid(data), "size": len(data), "path": path, **more})
    return result


def _ranged(reply: Reply, wanted: str | None) -> Reply:
    """The part of a file that a Range header asks for: `bytes=2-5`, `bytes=2-` or `bytes=-2`."""
    _, headers, body = reply
    if wanted is None or "Accept-Ranges" not in headers:
        return reply
    first, last = wanted.removeprefix("bytes=").split("-")
    start = int(first) if first else max(len(body) - int(last), 0)
    end = min(int(last) + 1, len(body)) if first and last else len(body)
    if start >= len(body):
        return 416, {"Content-Range": f"bytes */{len(body)}"}, b""
    return 206, {**headers, "Content-Range": f"bytes {start}-{end - 1}/{len(body)}"}, body[start:end]


def _json(value: Any, headers: Mapping[str, str] | None = None) -> Reply:
    return 200, {"Content-Type": "application/json; charset=utf-8", **(headers or {})}, json.dumps(value).encode()


def _error(status: int, code: str, message: str, headers: Mapping[str, str] | None = None) -> Reply:
    named = {"X-Error-Code": code} if code else {}
    return status, *_json({"error": message}, {**named, "X-Error-Message": message, **(headers or {})})[1:]


def _oid(data: bytes) -> str:
    """Git's name for a file."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def _is_lfs(path: str) -> bool:
    return path.endswith(".parquet")


# --- Small repositories in the schemas of real data sets. The same arguments give the same bytes.

TEXT = """water light river stone bread school music number winter market letter garden window history machine science
the a of and in to with from under between because when many every small early simple known often never slowly is was
gives takes holds grows learns measures describes carries 1911 42 3.14 naïve Zürich café π — “so” 東京 мир 🙂"""
WORDS = TEXT.split()
LANGUAGES = ("en", "en", "en", "es", "de", "ru", "zh")


def prose(rng: random.Random, sentences: int) -> str:
    """Sentences of three to fifteen words, some in paragraphs of their own."""
    found = [" ".join(rng.choices(WORDS, k=rng.randint(3, 15))).capitalize() + "." for _ in range(sentences)]
    return "".join(sentence + rng.choice([" ", " ", " ", "\n\n"]) for sentence in found).strip()


def parquet(table: pa.Table, row_group: int = 16) -> bytes:
    """A parquet file with row groups of `row_group` rows."""
    sink = io.BytesIO()
    pq.write_table(table, sink, row_group_size=row_group)
    return sink.getvalue()


def shards(prefix: str, rows: list[Row], count: int) -> Files:
    """Rows in `count` parquet files, `prefix` and the numbers that the hub's own tools give."""
    cuts = [len(rows) * index // count for index in range(count + 1)]
    tables = [pa.Table.from_pylist(rows[start:end]) for start, end in pairwise(cuts)]
    return {f"{prefix}-{index:05d}-of-{count:05d}.parquet": parquet(table) for index, table in enumerate(tables)}


def card(configs: Mapping[str, Mapping[str, str]] | None = None, **metadata: Any) -> bytes:
    """A README.md with front matter (YAML, of which JSON is a part); `configs`: `{config: {split: path}}`."""
    listed = {
        name: [{"split": split, "path": path} for split, path in splits.items()]
        for name, splits in (configs or {}).items()
    }
    if listed:
        metadata["configs"] = [{"config_name": name, "data_files": files} for name, files in listed.items()]
    lines = "".join(f"{key}: {json.dumps(value, indent=1)}\n" for key, value in metadata.items())
    return f"---\n{lines}---\n# A data set card\n".encode()


def truncated(files: Mapping[str, bytes], path: str, *, keep: float = 0.6) -> Files:
    """The files, of which one lacks its end: served whole, with its own shorter length."""
    return {**files, path: files[path][: int(len(files[path]) * keep)]}


def reshaped(files: Mapping[str, bytes], path: str, change: Callable[[pa.Table], pa.Table]) -> Files:
    """The files, of which one parquet file has other columns or types."""
    return {**files, path: parquet(change(pq.read_table(io.BytesIO(files[path]))))}


def fineweb_edu(rows: int = 120, seed: int = 0) -> Files:
    """HuggingFaceFW/fineweb-edu: CC-MAIN-2024-10 in three files, CC-MAIN-2023-50 in one, sample-10BT in two."""
    rng = random.Random(seed)

    def some(dump: str, count: int) -> list[Row]:
        found = []
        for number in range(count):
            score, text = rng.uniform(2.5, 5), prose(rng, rng.choice([1, 2, 4, 8, 40]))
            row = {"text": text, "dump": dump, "url": f"https://example.org/{number}", "language": "en"}
            found.append({**row, "score": score, "int_score": round(score)})
        return found

    new, old = "CC-MAIN-2024-10", "CC-MAIN-2023-50"
    files = shards(f"data/{new}/train", some(new, rows), 3) | shards(f"data/{old}/train", some(old, rows // 3), 1)
    for index in range(2):
        table = pa.Table.from_pylist(some("CC-MAIN-2013-20", rows // 4))
        files[f"sample/10BT/{index:03d}_00000.parquet"] = parquet(table)
    paths = {"default": "data/*/*", "sample-10BT": "sample/10BT/*", new: f"data/{new}/*", old: f"data/{old}/*"}
    return {"README.md": card({name: {"train": path} for name, path in paths.items()}, license="odc-by"), **files}


def wikitext(articles: int = 12, seed: int = 0) -> Files:
    """Salesforce/wikitext: a row a line, headings and empty lines as they are; 103 has two train files."""
    rng = random.Random(seed)
    files: Files = {}
    configs: dict[str, dict[str, str]] = {}
    for name, train_files in (("wikitext-103-raw-v1", 2), ("wikitext-2-raw-v1", 1)):
        for split, count in {"test": articles // 4 or 1, "train": articles, "validation": articles // 4 or 1}.items():
            lines = []
            for number in range(count):
                lines += ["", f" = Article {number} = \n", ""]
                for section in range(rng.randint(0, 3)):
                    lines += [f" = = Section {section} = = \n", "", f" {' '.join(prose(rng, 3).split())} \n", ""]
            pieces = train_files if split == "train" else 1
            files |= shards(f"{name}/{split}", [{"text": line} for line in lines], pieces)
            configs.setdefault(name, {})[split] = f"{name}/{split}-*"
    return {"README.md": card(configs, pretty_name="WikiText"), **files}


def dolly(rows: int = 40, seed: int = 0) -> Files:
    """databricks/databricks-dolly-15k: one jsonl file, a card without configs; most contexts are empty."""
    rng = random.Random(seed)
    kinds = ("open_qa", "closed_qa", "brainstorming", "classification", "creative_writing", "general_qa")
    lines = []
    for _ in range(rows):
        row = {"instruction": prose(rng, 1), "context": prose(rng, 4) if rng.random() < 0.3 else ""}
        row |= {"response": prose(rng, rng.randint(1, 6)), "category": rng.choice(kinds)}
        lines.append(json.dumps(row, ensure_ascii=False) + "\n")
    return {"README.md": card(license="cc-by-sa-3.0"), "databricks-dolly-15k.jsonl": "".join(lines).encode()}


def gutenberg(books: int = 12, seed: int = 0) -> Files:
    """sedthh/gutenberg_english: a row a book in two files, what is known of the book as JSON in METADATA."""
    rng = random.Random(seed)
    rows = []
    for number in range(books):
        about = {"language": "en", "text_id": number, "title": prose(rng, 1), "authors": "Doe, Jane, 1811-1890"}
        text = "\r\n\r\n".join(prose(rng, rng.randint(1, 30)) for _ in range(rng.randint(1, 6)))
        rows.append({"TEXT": text, "SOURCE": "gutenberg", "METADATA": json.dumps(about)})
    return {"README.md": card(pretty_name="Project Gutenberg"), **shards("data/train", rows, 2)}


def oasst1(trees: int = 16, seed: int = 0) -> Files:
    """OpenAssistant/oasst1: rows of random trees, shuffled; a few deleted, a few whose parent is not there."""
    rng = random.Random(seed)
    files: Files = {}
    for split, count in (("train", trees), ("validation", trees // 4 or 1)):
        rows: list[Row] = []
        for number in range(count):
            tree = _replies(rng, None, None, number % 6 + 1)
            answered = [i for i in range(1, len(tree) - 1) if tree[i + 1]["parent_id"] == tree[i]["message_id"]]
            lost = rng.choice(answered) if number % 6 == 5 else len(tree)
            rows += tree[:lost] + tree[lost + 1 :]
        rng.shuffle(rows)
        files |= shards(f"data/{split}", rows, 1)
    return {"README.md": card(license="apache-2.0"), **files}


def _replies(rng: random.Random, parent: Row | None, rank: int | None, depth: int) -> list[Row]:
    """A message and all below it, at most `depth` deep, the message first."""
    own = f"{rng.getrandbits(128):032x}"
    row: Row = {"message_id": own, "parent_id": parent["message_id"] if parent else None, "text": prose(rng, 3)}
    row |= {"role": "assistant" if parent and parent["role"] == "prompter" else "prompter"}
    row |= {"lang": parent["lang"] if parent else rng.choice(LANGUAGES), "deleted": rng.random() < 0.05, "rank": rank}
    row |= {"message_tree_id": parent["message_tree_id"] if parent else own}
    row |= {"emojis": {"name": ["+1"], "count": [rng.randint(1, 9)]} if rng.random() < 0.5 else None}
    count = rng.randint(1, 3) if depth > 1 else 0
    ranks = range(count) if row["role"] == "prompter" and count > 1 else [None] * count
    depths = [depth - 1, *(depth - rng.choice([1, 2]) for _ in range(count - 1))]
    return [row, *(m for rank, below in zip(ranks, depths, strict=False) for m in _replies(rng, row, rank, below))]
