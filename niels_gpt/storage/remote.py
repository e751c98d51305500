"""Files named by a URL (`s3://bucket/chats.jsonl`, `memory://x`), through fsspec.

Whether a file exists is always asked by its name, never by a listing: the listing of a bucket may lag.
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

READ_BYTES = 8 << 20  # bytes per request; large, because each request to a bucket costs a round trip


@dataclass(frozen=True)
class RemoteFile:
    """A file at a URL, with those attributes of `Path` that readers of input files use."""

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
        """The last suffix, such as `.gz`."""
        return PurePosixPath(self.url).suffix

    def open(self, mode: str = "rb") -> IO[bytes]:
        """Open the file.

        Raises:
            StorageError: the file cannot be opened. MissingExtra: fsspec or the library for this kind of URL is
                missing.
        """
        fs, path = file_system(self.url)
        with remote_errors("opening", self.url):
            # fsspec's own files lack readline(size), which reads lines of limited length
            return cast(IO[bytes], io.BufferedReader(fs.open(path, mode), READ_BYTES))

    def size(self) -> int | None:
        """The size in bytes; `None` if the file does not exist."""
        fs, path = file_system(self.url)
        return size_at(fs, path)


AnyFile = Path | RemoteFile


def as_file(file: str | AnyFile) -> AnyFile:
    """A `RemoteFile` if there is `://` in it, else a `Path`."""
    if isinstance(file, RemoteFile):
        return file
    return RemoteFile(str(file)) if "://" in str(file) else Path(file)


def address(file: AnyFile) -> str:
    """A string that `as_file` turns into the same file. It may contain a password, so it is not for messages."""
    return file.url if isinstance(file, RemoteFile) else str(file)


def file_system(url: str) -> tuple[Any, str]:
    """The fsspec file system of a URL, without its cache of listings, and the path in it.

    Raises:
        MissingExtra: fsspec or the library for this kind of URL is not installed.
        UsageError: an unknown kind of URL, or one without a path. StorageError: the store cannot be reached.
    """
    check_library("fsspec")
    from fsspec.core import split_protocol, url_to_fs

    if not url.rpartition("://")[2].strip("/"):
        raise UsageError(f"{url!r} has no path; expected a URL as s3://bucket/name, or a path")
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
    """The size of a file in bytes; `None` if it does not exist or is a directory."""
    with remote_errors("asking for", path):
        try:
            info = fs.info(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return int(info["size"]) if info["type"] == "file" else None


@contextmanager
def remote_errors(doing: str, url: str) -> Iterator[None]:
    """Turn any error of a file system's library into a `StorageError` that says what to do."""
    try:
        yield
    except NielsError:
        raise
    except Exception as error:  # botocore, aiohttp, ... : each file system raises errors of its own library
        raise StorageError(f"{url}: {doing} failed: {_short(error)}; {_remedy(error)}") from error


def _short(error: Exception) -> str:
    return shortened(without_passwords(" ".join(str(error).split())) or type(error).__name__, 300)


def _remedy(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "check the address; the bucket must exist"
    if isinstance(error, PermissionError) or "redentials" in str(error):
        return "check the credentials and what they allow"
    if isinstance(error, OSError) and error.errno in STORAGE_REMEDIES:
        return STORAGE_REMEDIES[error.errno]
    return "check the address and the network, then run the same command again: it continues with what is missing"
