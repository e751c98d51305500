"""What a hostile dataset or URL may try: nothing is written or read outside, and no disk fills up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import fsspec
import pytest

from niels_gpt.errors import CacheError, StorageError
from niels_gpt.scale.fetch import fetch
from niels_gpt.scale.publish import publish
from niels_gpt.sources.chat_files import chat_files
from niels_gpt.store import published as published_module
from niels_gpt.store import retries
from niels_gpt.store.files import json_bytes
from niels_gpt.store.manifest import with_manifest_hash
from niels_gpt.store.remote import RemoteFile
from niels_gpt.tokenizer import SentencePieceTokenizer
from tests.conftest import run_cli
from tests.scale.builds import build, write_chats
from tests.scale.test_engine import Notes

MIB = 1 << 20


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory, tokenizer: SentencePieceTokenizer) -> Path:
    """A published episodes dataset, in a directory."""
    folder = tmp_path_factory.mktemp("published")
    build("episodes", chat_files([write_chats(folder / "chats.jsonl", 40)]), folder / "built", tokenizer)
    publish(folder / "built", f"file://{folder}/chats")
    return folder / "chats"


def offered(folder: Path, files: dict[str, Any]) -> str:
    """The URL of a directory whose manifest lists these files."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "episodes.json").write_bytes(json_bytes(with_manifest_hash({"files": files})))
    return f"file://{folder}"


# ---- sizes


def test_no_more_is_written_than_is_declared(tmp_path: Path) -> None:
    """Of a file of 64 MiB that is declared as 5 bytes, 5 are read, and are not what the manifest records."""
    url = offered(tmp_path / "far", {"big.bin": {"bytes": 5, "sha256": "0" * 64}})
    with (tmp_path / "far/big.bin").open("wb") as file:
        file.truncate(64 * MIB)
    with pytest.raises(CacheError, match=r"big.bin: not what its manifest records \(sha256"):
        fetch(url, tmp_path / "fetched")
    assert not [path for path in (tmp_path / "fetched").rglob("*") if path.is_file() and path.stat().st_size > MIB]


def test_a_manifest_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(published_module, "MOST_MANIFEST_BYTES", 1000)
    url = offered(tmp_path / "far", {})
    (tmp_path / "far/episodes.json").write_text(json.dumps({"x": "x" * 1000}))
    with pytest.raises(CacheError, match="more than 1,000 bytes; expected a manifest"):
        fetch(url, tmp_path / "fetched")


# ---- names


@pytest.mark.parametrize(
    "name",
    [
        "../secret.txt",
        "train/../../secret.txt",
        "",
        "a\0b",
        "/x",
        ".episodes.json.wanted",
        "episodes.json",
        "x" * 500_000,
    ],
)
def test_names(tmp_path: Path, name: str) -> None:
    url = offered(tmp_path / "far", {name: {"bytes": 0, "sha256": "0" * 64}})
    with pytest.raises(CacheError, match="do not trust this dataset") as error:
        fetch(url, tmp_path / "fetched")
    assert len(str(error.value)) < 1000


# ---- links


# ---- passwords


class Guarded(fsspec.implementations.memory.MemoryFileSystem):  # type: ignore[misc]
    """A store whose URLs name a user and a password, and whose errors repeat them, as some do."""

    protocol = "guarded"

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return "/" + str(path).removeprefix("guarded://me:secret@host").strip("/")

    def info(self, path: str, **given: Any) -> dict[str, Any]:
        if "broken" in path:
            raise OSError("refused guarded://me:secret@host/broken")
        return dict(super().info(path, **given))


def test_passwords_are_not_shown(tmp_path: Path, published: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "FIRST_WAIT", 0.01)  # the broken store is asked six times
    fsspec.register_implementation("guarded", Guarded, clobber=True)
    url = "guarded://me:secret@host/chats"
    progress = Notes()
    publish(published, url, progress=progress)
    publish(published, url, progress=progress)
    fetch(url, tmp_path / "fetched")
    assert "already published" in str(progress.notes)
    assert "secret" not in str(progress.notes)
    for act in (
        lambda: publish(published, url.replace("chats", "broken")),
        lambda: fetch(f"{url}/no", tmp_path / "no"),
    ):
        with pytest.raises((StorageError, CacheError)) as error:
            act()
        assert "secret" not in str(error.value)
        assert "me:***@host" in str(error.value)
    file = RemoteFile(f"{url}/x.jsonl?token=secret")
    assert "secret" not in f"{file} {file.name}"


@pytest.mark.parametrize("command", [("publish", "{published}", "{url}"), ("fetch", "{url}"), ("info", "{url}")])
@pytest.mark.parametrize("store", ["s3", "ftp"])
def test_a_password_where_it_has_no_place(
    tmp_path: Path, published: Path, command: tuple[str, ...], store: str
) -> None:
    """For S3 it would be a part of the bucket's name; `info` takes paths, and `Path` leaves one slash of two."""
    pytest.importorskip("s3fs")
    url = f"{store}://me:secret@127.0.0.1:1/chats" if store == "ftp" else "s3://me:secret@bucket/chats"
    told = run_cli(*(word.format(published=published, url=url) for word in command), cwd=tmp_path)
    assert told.returncode in (2, 3), told.stderr
    assert "secret" not in told.stdout + told.stderr
    assert "me:***@" in told.stderr
