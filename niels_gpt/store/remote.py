"""Files named by a URL (`s3://bucket/chats.jsonl`, `memory://x`), through fsspec.

Whether a file exists is always asked by its name, never by a listing: the listing of a bucket may be out of date.

Files are read by ranges of bytes (`RangedFile`), each of which is repeated alone if it fails (`store.retries`), so a
read goes on where it stopped. `download` compares the sha256 at the end, and reads a damaged file again. What does not
succeed is an error that names the file and the last failure.
"""

from __future__ import annotations

import io
import logging
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import IO, Any, Literal, cast
from urllib.parse import unquote, urlsplit

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
from niels_gpt.store.checksums import file_record
from niels_gpt.store.files import atomic_file
from niels_gpt.store.retries import in_short, is_missing, is_refusal, repeated

READ_BYTES = 8 << 20  # bytes per request; large, because each request to a bucket costs a round trip
READ_SECONDS = 60.0  # without a byte, after which a request to a web server has failed; other libraries have their own

_COMMIT = re.compile(r"hf://[^@]+@[0-9a-f]{40}/")

MOST_NAME = 100  # bytes of a directory's name that come from a URL; of the 255 that it may have, suffixes need 56
DAMAGED_READS = 3  # of a whole file; after three, the store itself must have the damaged bytes

_log = logging.getLogger("niels_gpt.store")


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

        Raises:
            StorageError, MissingExtra: as `open`.
        """
        return RangedFile(self.url)

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


class RangedFile(io.RawIOBase):
    """A remote file of which each read is one request for a range of bytes; one that fails is repeated.

    A body of another length than was asked for is a failure: it may be the page of an error that came with status 200.
    Whether the file is replaced meanwhile is not noticed here: those who read it compare a hash (`download`) or the
    file's version (`HashedFiles`) at the end.

    Args:
        url: of the file.
        size: in bytes, if it is known; then it is not asked for.

    Raises:
        StorageError: the store gives neither the size nor, on reading, the bytes. MissingExtra: see `file_system`.
    """

    def __init__(self, url: str, size: int | None = None) -> None:
        super().__init__()
        self._fs, self._path = file_system(url)
        self._url, self._at, self._file = url, 0, None
        self._by_ranges = getattr(self._fs, "async_impl", False)  # the others open a file for every range
        if size is None:
            with remote_errors("opening", url):
                size = repeated(self._asked_size, self._forget, name=url)
        self._size = size

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
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def read(self, most: int = -1) -> bytes:
        """The next bytes, as many as were asked for; fewer at the end of the file alone.

        Raises:
            StorageError: the store did not give them.
        """
        left = max(0, self._size - self._at)
        wanted = left if most < 0 else min(most, left)
        if not wanted:
            return b""
        doing = f"reading {wanted:,} bytes at byte {self._at:,}"
        with remote_errors(doing, self._url):
            data = repeated(lambda: self._range(self._at, self._at + wanted), self._forget, name=self._url)
        self._at += wanted
        return data

    def close(self) -> None:
        if not self.closed:
            self._forget()
        super().close()

    def _asked_size(self) -> int:
        if self._by_ranges:
            info = self._fs.info(self._path)
            if info["type"] != "file":
                raise IsADirectoryError(f"{self._path} is a directory")
            return _known_size(info["size"], self._url)
        return _known_size(self._opened().size, self._url)

    def _range(self, start: int, stop: int) -> bytes:
        if self._by_ranges:
            data = self._fs.cat_file(self._path, start=start, end=stop)
        else:
            file = self._opened()
            file.seek(start)
            data = file.read(stop - start)
        if len(data) != stop - start:
            raise OSError(f"the body has {len(data):,} bytes at byte {start:,}; expected {stop - start:,}")
        return bytes(data)

    def _opened(self) -> Any:
        if self._file is None:  # without a cache, which would read more than was asked for
            self._file = self._fs.open(self._path, "rb", cache_type="none")
        return self._file

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


AnyFile = Path | RemoteFile


def as_file(file: str | AnyFile) -> AnyFile:
    """A `RemoteFile` if there is `://` in it, else a `Path`; also a `Path` for `file://`, whose `%20` is a space.

    Raises:
        UsageError: it is neither a text nor a path.
    """
    if isinstance(file, RemoteFile):
        return file
    if not isinstance(file, str | os.PathLike):
        raise UsageError(f"a file is {shown(file)}; expected a path or a URL")
    if str(file).startswith("file://"):
        return Path(unquote(urlsplit(str(file)).path))
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
    options: dict[str, Any] = {"auto_mkdir": True} if local else {"use_listings_cache": False}
    with remote_errors("opening", url):
        if protocol in ("http", "https"):  # whose default is a limit of five minutes for the whole of an answer
            from aiohttp import ClientTimeout

            options["timeout"] = ClientTimeout(sock_connect=READ_SECONDS, sock_read=READ_SECONDS)
        try:
            fs, path = url_to_fs(url, **options)
            password = urlsplit(url).password
        except ValueError as error:
            raise UsageError(f"{url}: {in_short(error)}; expected a URL as s3://bucket/name, or a path") from error
    # Some file systems take "me:password@host" for the name of a bucket: it would be in paths, also in messages.
    if password and "://" not in str(path) and f":{password}@" in str(path):
        raise UsageError(f"{url}: this store takes no password from its address; set its environment variables")
    return fs, (unquote(str(path)) if protocol == "file" else str(path)).rstrip("/")


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


def download(url: str, size: int, digest: str, out: IO[bytes], progress: Progress = SILENT) -> None:
    """Write the file at `url` to `out`, range by range; after damage again from the beginning.

    Raises:
        CacheError: the store has no such file, or not the bytes that `size` and `digest` (a sha256) promise.
        StorageError: the store did not give the file. MissingExtra: no fsspec, or no s3fs.
    """
    reported = 0  # after damage `download` begins again at 0, which is no progress
    for _ in range(DAMAGED_READS):
        # Hashed as it comes, so that the comparison costs no second read.
        seen, at = sha256(), out.seek(0)
        try:
            with RangedFile(url, size) as file:
                while data := file.read(READ_BYTES):
                    out.write(data)
                    seen.update(data)
                    at += len(data)
                    progress.advance(max(0, at - reported))
                    reported = max(reported, at)
        except StorageError as error:
            # Below a file there is none, either.
            if is_missing(error.__cause__) or isinstance(error.__cause__, NotADirectoryError):
                raise CacheError(f"{url}: missing although it is part of a dataset; publish it again") from error
            raise
        if seen.hexdigest() == digest:
            return
        _log.warning("[Store] %s: damaged on its way (sha256); reading it again", without_passwords(url))
    raise CacheError(
        f"{url}: not what its manifest records (sha256 {seen.hexdigest()[:12]} instead of {digest[:12]}), "
        f"{DAMAGED_READS} times in a row; publish the dataset again"
    )


def copy_file(url: str, path: Path, record: Mapping[str, Any], progress: Progress = SILENT) -> None:
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
    with atomic_file(path) as file:
        download(url, size, digest, file, progress)


def read_small(url: str, most: int) -> bytes | None:
    """The bytes of a small file; `None` if there is none.

    Raises:
        CacheError: it has more than `most` bytes. StorageError: it cannot be read.
    """
    size = RemoteFile(url).size()
    if size is None:
        return None
    if size > most:
        raise CacheError(f"{url}: more than {most:,} bytes; expected a manifest. Do not trust this dataset")
    with RangedFile(url, size) as file:
        return file.read()
