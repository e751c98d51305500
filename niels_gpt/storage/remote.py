"""Files named by a URL (`s3://bucket/chats.jsonl`, `memory://x`), through fsspec.

Whether a file exists is always asked by its name, never by a listing: the listing of a bucket may lag.
"""

from __future__ import annotations

import io
import random
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path, PurePosixPath
from typing import IO, Any, Final, Literal, TypeVar, cast

from niels_gpt.errors import STORAGE_REMEDIES, NielsError, StorageError, UsageError, shortened, without_passwords
from niels_gpt.extras import check_library

READ_BYTES = 8 << 20  # bytes per request; large, because each request to a bucket costs a round trip
ATTEMPTS = 6  # of one read, each with the retries of the store's own library
FIRST_WAIT = 1.0  # seconds, doubled after each failure
LONGEST_WAIT = 60.0
LONGEST_RETRY_AFTER = 600.0  # a store that asks for more is not waited for

T = TypeVar("T")

_PASSING_STATUS: Final = (408, 429, 500, 502, 503, 504)
_COMMIT = re.compile(r"hf://[^@]+@[0-9a-f]{40}/")


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

    def open(self, mode: Literal["rb"] = "rb") -> IO[bytes]:
        """Open the file.

        Raises:
            StorageError: the file cannot be opened. MissingExtra: fsspec or the library for this kind of URL is
                missing.
        """
        # fsspec's own files lack readline(size), which reads lines of limited length
        return cast(IO[bytes], io.BufferedReader(self.open_exact(), READ_BYTES))

    def open_exact(self) -> io.RawIOBase:
        """Open the file without a buffer: each read is one request for exactly these bytes.

        A read that fails is repeated, see `_PatientFile`.

        Raises:
            StorageError, MissingExtra: as `open`.
        """
        fs, path = file_system(self.url)
        with remote_errors("opening", self.url):
            return _PatientFile(fs, path, self.url)

    def size(self) -> int | None:
        """The size in bytes; `None` if the file does not exist."""
        fs, path = file_system(self.url)
        return size_at(fs, path)

    @property
    def is_immutable(self) -> bool:
        """The URL names one commit of a hub, so the file has the same bytes whenever it is read."""
        return _COMMIT.match(self.url) is not None

    def known_sha256(self) -> str | None:
        """The sha256 that a hub has on record for this commit's file; `None` if it has none, or the file may change.
        Nothing of the file is read.
        """
        if not self.is_immutable:
            return None
        fs, path = file_system(self.url)
        with remote_errors("asking for", self.url):
            return getattr(repeated(lambda: fs.info(path)).get("lfs"), "sha256", None)


class _PatientFile(io.RawIOBase):
    """A remote file of which a read that fails, or brings too few bytes, is `repeated`."""

    def __init__(self, fs: Any, path: str, url: str) -> None:
        super().__init__()
        self._fs, self._path, self._url, self._at = fs, path, url, 0
        self._file: Any = None
        self._size: int = repeated(lambda: int(self._opened().size), self._forget)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, start + offset)
        return self._at

    def readinto(self, buffer: Any) -> int:
        wanted = max(0, min(len(buffer), self._size - self._at))
        if wanted:
            with remote_errors("reading", self._url):
                buffer[:wanted] = repeated(lambda: self._read(wanted), self._forget)
            self._at += wanted
        return wanted

    def close(self) -> None:
        if not self.closed:
            self._forget()
        super().close()

    def _opened(self) -> Any:
        if self._file is None:
            self._file = self._fs.open(self._path, "rb", cache_type="none")
        return self._file

    def _read(self, wanted: int) -> bytes:
        file = self._opened()
        file.seek(self._at)
        data = bytes(file.read(wanted))
        if len(data) != wanted:
            raise OSError(f"the body has {len(data):,} bytes at byte {self._at:,}; expected {wanted:,}")
        return data

    def _forget(self) -> None:
        file, self._file = self._file, None
        # An error while closing says nothing about the bytes that were read.
        with suppress(Exception):
            if file is not None:
                file.close()


def repeated(call: Callable[[], T], after_failure: Callable[[], None] = lambda: None) -> T:
    """The result of a request to a store; one that fails is repeated after a random, growing wait, `ATTEMPTS` times.

    The stores' own libraries repeat some requests within some seconds; this is for what lasts longer. Workers that
    failed at the same moment come back at different ones. A `Retry-After` is waited for.

    Raises:
        Exception: the error of the store's library, at the last attempt or at once if the same request cannot succeed
            later.
    """
    wait = FIRST_WAIT
    for attempt in count(1):
        try:
            return call()
        except Exception as error:  # each file system raises errors of its own library
            after_failure()
            after = _retry_after(error)
            if attempt >= ATTEMPTS or not _may_pass(error) or after > LONGEST_RETRY_AFTER:
                raise
        time.sleep(after + wait * random.random())
        wait = min(2 * wait, LONGEST_WAIT)
    raise AssertionError("unreachable")


def _may_pass(error: Exception) -> bool:
    """Whether the same request may succeed later."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(status, int):
        return status in _PASSING_STATUS
    return not isinstance(error, NielsError | FileNotFoundError | PermissionError | IsADirectoryError | ValueError)


def _retry_after(error: Exception) -> float:
    """The seconds that a store asks for in `Retry-After`; 0 if it does not."""
    headers = getattr(getattr(error, "response", None), "headers", None) or {}
    try:
        seconds = float(headers.get("Retry-After", 0))
    except (TypeError, ValueError):  # a date
        return 0.0
    return seconds if seconds > 0 else 0.0


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
            info = repeated(lambda: fs.info(path))
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
