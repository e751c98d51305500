"""Files that are named by a URL (`s3://bucket/chats.jsonl`, `memory://x`), through fsspec.

Whether something is there is always asked by its name, never by a listing: a bucket's listing may lag behind.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

from niels_gpt.errors import STORAGE_REMEDIES, NielsError, StorageError, UsageError, shortened, without_passwords
from niels_gpt.extras import check_library

READ_BYTES = 8 << 20


@dataclass(frozen=True)
class RemoteFile:
    """A file behind a URL, with what readers of input files use of a `Path`."""

    url: str

    def __str__(self) -> str:
        """The URL without passwords, for messages and records."""
        return without_passwords(self.url)

    @property
    def name(self) -> str:
        """The last part of the URL, without passwords."""
        return PurePosixPath(str(self)).name

    @property
    def suffix(self) -> str:
        """The last ending, `.gz` for one."""
        return PurePosixPath(self.url).suffix

    def open(self, mode: str = "rb") -> IO[bytes]:
        """The bytes.

        Raises:
            StorageError: they cannot be read. MissingExtra: no fsspec, or not what it needs for this kind of URL.
        """
        fs, path = file_system(self.url)
        with remote_errors("opening", self.url):
            # fsspec's own files have no readline(size)
            return cast(IO[bytes], io.BufferedReader(fs.open(path, mode), READ_BYTES))

    def size(self) -> int | None:
        """Its size in bytes; `None` if there is no such file."""
        fs, path = file_system(self.url)
        return size_at(fs, path)


AnyFile = Path | RemoteFile


def located(given: str | AnyFile) -> AnyFile:
    """A path, or with `://` in it a URL."""
    if isinstance(given, RemoteFile):
        return given
    return RemoteFile(str(given)) if "://" in str(given) else Path(given)


def address(file: AnyFile) -> str:
    """What `located` makes the same file of: a path, or the URL with its password, which is not for showing."""
    return file.url if isinstance(file, RemoteFile) else str(file)


def file_system(url: str) -> tuple[Any, str]:
    """fsspec's file system for a URL, which keeps no listings, and the path in it.

    Raises:
        MissingExtra: fsspec or the library for this kind of URL is not installed.
        UsageError: a URL of no known kind, or one that names no place. StorageError: the store cannot be reached.
    """
    check_library("fsspec")
    from fsspec.core import split_protocol, url_to_fs

    if not url.rpartition("://")[2].strip("/"):
        raise UsageError(f"{url!r} names no place; expected a URL as s3://bucket/name, or a path")
    protocol = split_protocol(url)[0]
    if protocol in ("s3", "s3a"):
        check_library("s3fs")
    local = protocol in (None, "file", "local")
    options = {"auto_mkdir": True} if local else {"use_listings_cache": False}
    with remote_errors("opening", url):
        try:
            fs, path = url_to_fs(url, **options)
        except ValueError as error:
            raise UsageError(f"{url}: {_short(error)}; expected a URL as s3://bucket/name, or a path") from error
    return fs, str(path).rstrip("/")


def size_at(fs: Any, path: str) -> int | None:
    """The size in bytes of the file of this name, `None` if there is none."""
    with remote_errors("asking for", path):
        try:
            info = fs.info(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return int(info["size"]) if info["type"] == "file" else None


@contextmanager
def remote_errors(doing: str, url: str) -> Iterator[None]:
    """Turn whatever a file system's library raises into a `StorageError` with a way out: each has errors of its own."""
    try:
        yield
    except NielsError:
        raise
    except Exception as error:  # each file system of fsspec's has errors of its own
        raise StorageError(f"{url}: {doing} failed: {_short(error)}; {_remedy(error)}") from error


def _short(error: Exception) -> str:
    return shortened(without_passwords(" ".join(str(error).split())) or type(error).__name__, 300)


def _remedy(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "check the address; a bucket must have been created before"
    if isinstance(error, PermissionError) or "redentials" in str(error):
        return "check the credentials and what they allow"
    if isinstance(error, OSError) and error.errno in STORAGE_REMEDIES:
        return STORAGE_REMEDIES[error.errno]
    return "check the address and the network, then run the same command again: it goes on with what is missing"
