"""Files at URLs whose store answers wrongly without an error: what is read is the file, or an error names it."""

from __future__ import annotations

import gzip
import hashlib
import io
import random
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from niels_gpt.errors import StorageError
from niels_gpt.sources.files.inputs import read_jsonl
from niels_gpt.store import remote, retries
from niels_gpt.store.remote import RangedFile, RemoteFile, download, size_at

DATA = bytes(range(256)) * 8
PAGE = b"<html>Sign in to this network</html>"


class Store:
    """A file system with one file, whose answers are as `answers` say: one of `ANSWERS` for each request."""

    protocol = "store"

    def __init__(self, answers: list[str], data: bytes = DATA) -> None:
        self.answers, self.data = iter(answers), data

    def open(self, path: str, mode: str, **options: Any) -> Opened:
        return Opened(self)

    def answer(self, start: int, end: int) -> bytes:
        return ANSWERS[next(self.answers, "right")](self, self.data[start:end])


class Opened:
    def __init__(self, store: Store) -> None:
        self.store, self.at, self.size = store, 0, len(store.data)

    def seek(self, at: int) -> None:
        self.at = at

    def read(self, n: int) -> bytes:
        return self.store.answer(self.at, self.at + n)

    def close(self) -> None:
        pass


class Bucket(Store):
    """One that gives ranges by single requests, as s3fs does; nothing is opened."""

    async_impl = True

    def info(self, path: str) -> dict[str, Any]:
        return {"size": len(self.data), "type": "file"}

    def cat_file(self, path: str, *, start: int, end: int) -> bytes:
        return self.answer(start, end)

    def open(self, path: str, mode: str, **options: Any) -> Opened:
        raise AssertionError("its size is known")


def replace(store: Store, body: bytes) -> bytes:
    """Another file comes while the request is under way, which fails for that."""
    store.data = bytes(reversed(store.data))
    raise OSError("pre-conditions")


ANSWERS: dict[str, Any] = {
    "right": lambda store, body: body,
    "page": lambda store, body: PAGE,
    "half": lambda store, body: body[: len(body) // 2],
    "nothing": lambda store, body: b"",
    "everything": lambda store, body: store.data,
    "replaced": replace,
}
WRONG = st.sampled_from(["right", "right", "page", "half", "nothing", "everything"])


def read(store: Store, *, most: int) -> bytes:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retries.time, "sleep", lambda seconds: None)
        patch.setattr(remote, "file_system", lambda url: (store, "f"))
        with RangedFile("s3://b/f") as file:
            return b"".join(iter(lambda: file.read(most), b""))


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries.time, "sleep", lambda seconds: None)


@settings(deadline=None, max_examples=60)
@example(["page", "right", "page"], 700, Bucket)
@given(st.lists(WRONG, max_size=30), st.sampled_from([30, 700, 10_000]), st.sampled_from([Store, Bucket]))
def test_what_is_read_is_the_file_or_nothing(answers: list[str], most: int, kind: type[Store]) -> None:
    found: bytes | str
    try:
        found = read(kind(answers), most=most)
    except StorageError as error:
        found = str(error)
    if isinstance(found, str):
        assert found.startswith("s3://b/f: reading ")
        assert "failed: the body has" in found
        assert len(answers) - answers.count("right") > 5
    else:
        assert found == DATA


@pytest.mark.parametrize("answer", ["page", "nothing", "everything"])
def test_an_answer_that_is_always_wrong_is_an_error(answer: str) -> None:
    store = Store([answer] * 1000)
    with pytest.raises(StorageError, match=r"failed: the body has .* bytes at byte 0; expected"):
        read(store, most=700)
    assert len(list(store.answers)) > 900


@pytest.mark.parametrize("kind", [Store, Bucket])
def test_a_download_begins_anew_where_the_file_was_replaced(kind: type[Store], monkeypatch: pytest.MonkeyPatch) -> None:
    """The manifest says which of the two it must be."""
    new, store = bytes(reversed(DATA)), kind(["right", "replaced"])
    monkeypatch.setattr(remote, "READ_BYTES", 100)
    monkeypatch.setattr(remote, "file_system", lambda url: (store, "f"))
    got = io.BytesIO()
    download("s3://b/f", len(new), hashlib.sha256(new).hexdigest(), got)
    assert got.getvalue() == new


@pytest.mark.parametrize("ending", ["gz", "zst"])
def test_a_store_that_fails_is_no_damaged_archive(ending: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error said that the file was "not a whole .gz file", and to compress it again."""
    pyarrow = pytest.importorskip("pyarrow", reason="needs pyarrow, which reads zstd")
    rows = "".join(f'{{"n": "{random.Random(n).randbytes(60).hex()}"}}\n' for n in range(300)).encode()
    packed = gzip.compress(rows) if ending == "gz" else pyarrow.compress(rows, "zstd", asbytes=True)
    store = Store(["nothing"] * 1000, packed)
    store.info = lambda path: {"size": len(packed), "type": "file"}  # type: ignore[attr-defined]
    monkeypatch.setattr(remote, "file_system", lambda url: (store, "f"))
    with pytest.raises(StorageError, match=r"failed: the body has 0 bytes at byte 0") as caught:
        list(read_jsonl(RemoteFile(f"s3://b/f.jsonl.{ending}")))
    assert "compress" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "name", "suffix"),
    [
        ("https://host/data/a.parquet?download=true", "a.parquet", ".parquet"),
        ("https://host/a.jsonl.gz?token=ab/cd#part", "a.jsonl.gz", ".gz"),
        ("https://host/get?file=a.parquet", "get?file=a.parquet", ".parquet"),
        ("s3://bucket/what?.jsonl", "what?.jsonl", ".jsonl"),
    ],
)
def test_a_query_is_no_part_of_a_name(url: str, name: str, suffix: str) -> None:
    assert (RemoteFile(url).name, RemoteFile(url).suffix) == (name, suffix)


class OfAServer:
    """A file system whose answers about files are those of a web server."""

    protocol = "http"

    def __init__(self, answer: dict[str, Any] | Exception) -> None:
        self.answer = answer

    def info(self, path: str) -> dict[str, Any]:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def test_a_server_without_sizes_and_one_that_refuses() -> None:
    aiohttp = pytest.importorskip("aiohttp", reason="needs aiohttp, as s3fs does")
    with pytest.raises(StorageError, match="the server gives no size of this file; download it, and name the copy"):
        size_at(OfAServer({"size": None, "type": "file"}), "https://host/a.jsonl")
    refused = FileNotFoundError("https://host/a.jsonl")
    refused.__cause__ = aiohttp.ClientResponseError(SimpleNamespace(real_url=""), (), status=403)
    with pytest.raises(StorageError, match=r"\(status 403\); check the credentials and what they allow"):
        size_at(OfAServer(refused), "https://host/a.jsonl")
