"""Files named by a URL (`s3://bucket/chats.jsonl`, `memory://x`), through fsspec.

Whether a file exists is always asked by its name, never by a listing: the listing of a bucket may be out of date.

`download` reads a file to its end even if the store stalls, breaks off, refuses or sends damaged bytes. A read that
fails, or brings nothing for `stall_seconds`, is repeated from where it stopped (`storage.retries`); a file whose sha256
is wrong is read again from its beginning. If this does not succeed, the error names the file and the last failure.
"""

from __future__ import annotations

import io
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import IO, Any, Literal, cast
from urllib.parse import urlsplit

from niels_gpt.errors import (
    STORAGE_REMEDIES,
    CacheError,
    NielsError,
    StorageError,
    UsageError,
    shown,
    storage_errors,
    without_passwords,
)
from niels_gpt.extras import check_library
from niels_gpt.progress import SILENT, Progress
from niels_gpt.storage.checksums import file_record
from niels_gpt.storage.files import atomic_file
from niels_gpt.storage.retries import ATTEMPTS, Retries, in_short, in_time, is_missing, is_refusal, may_pass, repeated

READ_BYTES = 8 << 20  # bytes per request; large, because each request to a bucket costs a round trip

_COMMIT = re.compile(r"hf://[^@]+@[0-9a-f]{40}/")

MOST_NAME = 100  # bytes of a directory's name that come from a URL; of the 255 that it may have, suffixes need 56
DAMAGED_READS = 3  # of a whole file; after three, the store itself must have the damaged bytes

_log = logging.getLogger("niels_gpt.storage")


@dataclass(frozen=True)
class RemoteFile:
    """A file at a URL, with those attributes of `Path` that readers of input files use."""

    url: str

    def __str__(self) -> str:
        """The URL without passwords, for messages and records."""
        return without_passwords(self.url)

    @property
    def name(self) -> str:
        """The last part of the URL, without passwords: `a.parquet` of `https://host/a.parquet?download=true`."""
        url = str(self)
        if url.startswith(("http://", "https://")):
            # The suffix says how a file is read. Elsewhere a `?` is part of a name; in `get?file=a.parquet` the query
            # alone has a suffix.
            named = PurePosixPath(re.split("[?#]", url, maxsplit=1)[0]).name
            if "." in named:
                return named
        return PurePosixPath(url).name

    @property
    def suffix(self) -> str:
        """The last suffix of the name, such as `.gz`."""
        return PurePosixPath(self.name).suffix

    def open(self, mode: Literal["rb"] = "rb") -> IO[bytes]:
        """Open the file.

        Raises:
            StorageError: the file cannot be opened. MissingExtra: fsspec or the library for this kind of URL is
                missing.
        """
        # fsspec's own files lack `readline(size)`, with which sources limit how much of an endless line they read.
        return cast(IO[bytes], io.BufferedReader(self.open_exact(), READ_BYTES))

    def open_exact(self) -> io.RawIOBase:
        """Open the file without a buffer: each read is one request for exactly these bytes.

        A read that fails is repeated, see `PatientFile`.

        Raises:
            StorageError, MissingExtra: as `open`.
        """
        fs, path = file_system(self.url)
        with remote_errors("opening", self.url):
            return PatientFile(fs, path, self.url)

    def size(self) -> int | None:
        """The size in bytes; `None` if the file does not exist."""
        fs, path = file_system(self.url)
        return size_at(fs, path)

    def version(self) -> str:
        """The size and the version of the contents as the store reports them (an ETag, a time); it is not read.

        A file of a hub's commit cannot change: its version is empty, and costs no request.

        Raises:
            StorageError: the file does not exist, or the store cannot be reached.
        """
        if self.is_immutable:
            return ""
        fs, path = file_system(self.url)
        with remote_errors("looking up", self.url):
            info = repeated(lambda: fs.info(path))
        return f"{info.get('size')} {_version(info)}"

    @property
    def is_immutable(self) -> bool:
        """Whether the URL names one commit of a hub, so that the file always has the same bytes."""
        return _COMMIT.match(self.url) is not None

    def known_sha256(self) -> str | None:
        """The sha256 that a hub records of this file; `None` if it has none or the file may change. It is not read."""
        if not self.is_immutable:
            return None
        fs, path = file_system(self.url)
        with remote_errors("asking for", self.url):
            return getattr(repeated(lambda: fs.info(path)).get("lfs"), "sha256", None)


class ChangedWhileRead(StorageError):
    """A file was replaced or changed while it was read, or since it was hashed: what was read is of two files."""


class PatientFile(io.RawIOBase):
    """A remote file that repeats a failed read from where it stopped (`repeated`).

    A body of another length than the request may be the page of an error that came with status 200. It is not used.
    The next request is for half as many bytes as the body had: such a page exceeds it, a body that broke off contains
    it. No later request is for as many bytes as a refused body had, since the same page would pass for its answer.

    Args:
        fs, path: see `file_system`.
        url: for messages.
        retries: `None` means the default number of attempts, and no limit of our own for a read that stalls.
        size: of the file, if it is known and what is read will be compared with a hash. Then buckets and web servers
            are not asked for size and version, which takes as long as a small read, and a file that is replaced
            meanwhile is not noticed here.

    Raises:
        Exception: the error of the store's library, see `repeated`; from reads a `StorageError`.
    """

    def __init__(
        self, fs: Any, path: str, url: str, retries: Retries | None = None, *, size: int | None = None
    ) -> None:
        super().__init__()
        self._fs, self._path, self._url, self._at = fs, path, url, 0
        self._attempts = retries.attempts if retries else ATTEMPTS
        self._stall_seconds = retries.stall_seconds if retries else None
        self._file: Any = None
        self._most = READ_BYTES  # bytes of the next request, less after a body that was too short
        self._refused: set[int] = set()  # the lengths of bodies that were refused
        self._size, self._version = size or 0, None
        # Other file systems of fsspec open the file for a range, too, and then read more of it than was requested.
        self._by_ranges = size is not None and getattr(fs, "async_impl", False)
        if not self._by_ranges:
            self._size, self._version = self._repeated(self._open_to_ask)

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
        done = 0
        while done < len(buffer) and (data := self.read_some(len(buffer) - done)):
            buffer[done : done + len(data)] = data
            done += len(data)
        return done

    def read_some(self, most: int) -> bytes:
        """The next bytes, at least one and at most `most`; none at the end. Unlike `read` this copies nothing.

        Raises:
            StorageError: the store did not give them.
        """
        wanted = min(most, self._size - self._at)  # never beyond the end, where a short answer would be right
        if wanted <= 0:
            return b""
        with remote_errors("reading", self._url):
            data = cast(bytes, self._repeated(partial(self._read, wanted)))
        self._at += len(data)
        return data

    def close(self) -> None:
        if not self.closed:
            self._forget()
        super().close()

    def _repeated(self, call: Any) -> Any:
        return repeated(call, self._forget, attempts=self._attempts, name=self._url)

    def _open_to_ask(self) -> tuple[int, str | None]:
        self._file, version = in_time(partial(_open_version, self._fs, self._path), self._stall_seconds)
        return _known_size(self._file.size, self._url), version

    def _read(self, wanted: int) -> bytes:
        """The next bytes, at most `wanted`."""
        # `stall_seconds` is meant for a read of at most READ_BYTES.
        if self._stall_seconds is not None or self._most < READ_BYTES:
            wanted = min(wanted, self._most)
        while wanted > 1 and wanted in self._refused:
            wanted -= 1
        fs, path, at, file = self._fs, self._path, self._at, self._file

        # Position and file are those of this attempt: after a timeout the stalled call may still run in its thread,
        # with the file object that it had. `_forget` drops that object, and the next attempt opens another.
        def read() -> tuple[Any, str | None, bytes]:
            if self._by_ranges:  # one request; it opens no file and returns no version
                return None, None, bytes(fs.cat_file(path, start=at, end=at + wanted))
            current, version = _open_version(fs, path) if file is None else (file, None)
            current.seek(at)
            return current, version, bytes(current.read(wanted))

        self._file, version, data = in_time(read, self._stall_seconds)
        if version is not None and version != self._version:
            raise ChangedWhileRead(
                f"{self._url}: replaced while it was read ({self._version} is {version} now); leave files in place "
                "while they are read, and run the same command again"
            )
        if len(data) != wanted:
            self._refused.add(len(data))
            if 0 < len(data) < wanted:
                self._most = max(1, len(data) // 2)  # doubled again by each read that succeeds
            raise OSError(f"the body has {len(data):,} bytes at byte {self._at:,}; expected {wanted:,}")
        self._most = min(READ_BYTES, 2 * self._most)
        return data

    def _forget(self) -> None:
        file, self._file = self._file, None
        # An error while closing says nothing about the bytes that were read.
        with suppress(Exception):
            if file is not None:
                file.close()


def is_local(fs: Any) -> bool:
    """Whether a file system is this machine's own."""
    return "file" in ([fs.protocol] if isinstance(fs.protocol, str) else fs.protocol)


# The names by which file systems report a version of a file's contents, the best first.
_VERSIONS = (
    *("ETag", "etag", "checksum", "md5Hash", "content_md5"),
    *("LastModified", "last_modified", "Last-Modified", "mtime", "updated", "created"),
)


def _version(details: Mapping[str, Any]) -> str | None:
    """The first of `_VERSIONS` that a store reports, with its name; `None` if it reports none."""
    return next((f"{name} {details[name]}" for name in _VERSIONS if details.get(name) is not None), None)


def _open_version(fs: Any, path: str) -> tuple[Any, str | None]:
    """The file, and the version of its contents; `None` if the store reports none."""
    file = fs.open(path, "rb", cache_type="none")
    details = getattr(file, "details", None)
    return file, _version(details) if isinstance(details, Mapping) else None


AnyFile = Path | RemoteFile


def as_file(file: str | AnyFile) -> AnyFile:
    """A `RemoteFile` if there is `://` in it, else a `Path`.

    Raises:
        UsageError: it is neither a text nor a path.
    """
    if isinstance(file, RemoteFile):
        return file
    if not isinstance(file, str | os.PathLike):
        raise UsageError(f"a file is {shown(file)}; expected a path or a URL")
    return RemoteFile(str(file)) if "://" in str(file) else Path(file)


def address(file: AnyFile) -> str:
    """A string that `as_file` turns into the same file. It may contain a password, so it is not for messages."""
    return file.url if isinstance(file, RemoteFile) else str(file)


def plain_name(url: str) -> str:
    """The last part of a URL as the beginning of a local directory's name."""
    name = re.sub(r"[^\w.+=@-]", "_", PurePosixPath(without_passwords(url)).name)
    # A leading dot would hide the directory from a user who looks for what fills the disk.
    return name.lstrip(".").encode()[:MOST_NAME].decode(errors="ignore") or "dataset"


def file_system(url: str) -> tuple[Any, str]:
    """The fsspec file system of a URL, without its cache of listings, and the path in it.

    Raises:
        MissingExtra: fsspec or the library for this kind of URL is not installed.
        UsageError: an unknown kind of URL, or one without a path. StorageError: the store cannot be reached.
    """
    # s3fs, which brings fsspec, is named first: to a user who installs fsspec alone, the next error would name s3fs.
    if url.startswith(("s3://", "s3a://")):
        check_library("s3fs")
    if url.startswith("hf://"):
        check_library("huggingface_hub")  # fsspec's own error for it does not say which library is missing
    check_library("fsspec")
    from fsspec.core import split_protocol, url_to_fs

    if not url.rpartition("://")[2].strip("/"):
        raise UsageError(f"{url!r} has no path; expected a URL as s3://bucket/name, or a path")
    protocol = split_protocol(url)[0]
    local = protocol in (None, "file", "local")
    options = {"auto_mkdir": True} if local else {"use_listings_cache": False}
    with remote_errors("opening", url):
        try:
            fs, path = url_to_fs(url, **options)
            password = urlsplit(url).password
        except ValueError as error:
            raise UsageError(f"{url}: {in_short(error)}; expected a URL as s3://bucket/name, or a path") from error
    # Some file systems take "me:password@host" for the name of a bucket: it would be in paths, also in messages.
    if password and "://" not in str(path) and f":{password}@" in str(path):
        raise UsageError(f"{url}: this store takes no password from its address; set its environment variables")
    return fs, str(path).rstrip("/")


def size_at(fs: Any, path: str) -> int | None:
    """The size of a file in bytes; `None` if it does not exist or is a directory."""
    with remote_errors("asking for", path):
        try:
            info = repeated(lambda: fs.info(path))
        except NotADirectoryError:
            return None
        except FileNotFoundError as error:
            if is_missing(error):
                return None
            raise
        return _known_size(info["size"], path) if info["type"] == "file" else None


def _known_size(size: int | None, url: str) -> int:
    if size is None:
        raise StorageError(f"{url}: the server gives no size of this file; download it, and name the copy")
    return int(size)


@contextmanager
def remote_errors(doing: str, url: str) -> Iterator[None]:
    """Turn any error of a file system's library into a `StorageError` that says what to do."""
    try:
        yield
    except NielsError:
        raise
    except Exception as error:  # botocore, aiohttp, ... : each file system raises errors of its own library
        if is_missing(error):
            remedy = "check the address; the bucket must exist"
        elif is_refusal(error) or "redentials" in str(error):
            # Without any key botocore raises an error of its own: "Unable to locate credentials".
            remedy = "check the credentials and what they allow"
        elif isinstance(error, OSError) and error.errno in STORAGE_REMEDIES:
            remedy = STORAGE_REMEDIES[error.errno]
        else:
            remedy = (
                "check the address and the network, then run the same command again: it continues with what is missing"
            )
        raise StorageError(f"{url}: {doing} failed: {in_short(error)}; {remedy}") from error


def download(url: str, size: int, digest: str, sink: Callable[[int, bytes], None], retries: Retries) -> None:
    """Read the file at `url` and pass its bytes to `sink(offset, bytes)`, in order; after damage again from 0.

    Raises:
        CacheError: the store has no such file, or not the bytes that `size` and `digest` (a sha256) promise.
        StorageError: the store did not give the file in time. MissingExtra: no fsspec, or no s3fs.
    """
    for _ in range(DAMAGED_READS):
        seen, at = sha256(), 0  # anew: nothing says which of the bytes were damaged
        # Hashed as it comes, so that the comparison costs no second read.
        with suppress(ChangedWhileRead):  # its beginning is another one now, which the next turn reads
            for data in _chunks(url, size, retries, is_hashed=True):
                sink(at, data)
                seen.update(data)
                at += len(data)
        if at == size and seen.hexdigest() == digest:
            return
        _log.warning("[Store] %s: damaged on its way (sha256); reading it again", without_passwords(url))
    raise CacheError(
        f"{url}: not what its manifest records ({at:,} of {size:,} bytes, sha256 {seen.hexdigest()[:12]} instead of "
        f"{digest[:12]}), {DAMAGED_READS} times in a row; publish the dataset again"
    )


def copy_file(url: str, path: Path, record: Mapping[str, Any], retries: Retries, progress: Progress = SILENT) -> None:
    """Download a dataset's file to `path`, where it is complete; one that is there since an earlier run stays.

    Args:
        record: its `bytes` and `sha256`, from the manifest.

    Raises:
        As `download`; StorageError: the file system refused.
    """
    size, digest = record["bytes"], record["sha256"]
    if path.is_file() and file_record(path).sha256 == digest:
        progress.advance(size)
        return
    with storage_errors("creating the directory", path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    reported = 0  # after damage `download` begins again at 0, which is no progress
    with atomic_file(path) as file:

        def write(at: int, part: bytes) -> None:
            nonlocal reported
            file.seek(at)
            file.write(part)
            progress.advance(max(0, at + len(part) - reported))
            reported = max(reported, at + len(part))

        download(url, size, digest, write, retries)


def read_small(url: str, most: int, retries: Retries) -> bytes | None:
    """The bytes of a small file; `None` if there is none.

    Raises:
        CacheError: it has more than `most` bytes. StorageError: see `download`.
    """
    try:
        found = b"".join(_chunks(url, most + 1, retries))
    except _Missing:
        return None
    if len(found) > most:
        raise CacheError(f"{url}: more than {most:,} bytes; expected a manifest. Do not trust this dataset")
    return found


class _Missing(CacheError):
    """The store has no such file."""


def _chunks(url: str, size: int, retries: Retries, *, is_hashed: bool = False) -> Iterator[bytes]:
    """The first `size` bytes of a file, in chunks.

    Args:
        is_hashed: the file has `size` bytes, which the caller compares with a hash.

    Raises:
        _Missing: there is no such file. StorageError: it could not be read.
    """
    at = 0
    fs, path = file_system(url)
    try:
        with PatientFile(fs, path, url, retries, size=size if is_hashed else None) as file:
            while at < size and (data := file.read_some(min(READ_BYTES, size - at))):
                at += len(data)
                yield data
    except Exception as error:  # of opening: each file system raises errors of its own library
        why = error.__cause__ or error if isinstance(error, StorageError) else error
        if isinstance(why, NielsError):
            raise
        if is_missing(why) or isinstance(why, NotADirectoryError):  # below a file there is none, either
            raise _Missing(f"{url}: missing although it is part of a dataset; publish it again") from error
        times = f", up to {retries.attempts} times in a row" if may_pass(why) else ""
        raise StorageError(
            f"{url}: reading failed at byte {at:,}{times}: {in_short(why)}; check the address, the network and the "
            "credentials, then run the same command again: it continues where it stopped"
        ) from error
