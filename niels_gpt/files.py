"""Files that are whole or absent.

Everything is written aside, flushed to the disk, then renamed; a directory gets its manifest last and its
name after that. A reader can therefore trust what it finds under its real name, whatever was killed when.

Sizes and checksums are computed while the bytes pass by, so they cost no second read.
"""

from __future__ import annotations

import errno
import fcntl
import glob
import json
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from niels_gpt.checksums import COPY_BYTES, Checksums, FileRecord
from niels_gpt.errors import OutputExists, storage_errors

_ASIDE = ".niels.tmp"
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS)


class HashedWriter:
    """A binary file under construction: `write` bytes or arrays, then `close` for its `FileRecord`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._checksums = Checksums()
        with storage_errors("creating the file", path):
            self._file: IO[bytes] = path.open("xb", buffering=COPY_BYTES)

    def write(self, data: bytes | memoryview | npt.NDArray[Any]) -> None:
        """Append bytes, or an array's bytes in C order."""
        view = np.ascontiguousarray(data).data if isinstance(data, np.ndarray) else memoryview(data)
        if view.nbytes == 0:  # an empty view cannot be cast
            return
        view = view.cast("B")
        self._checksums.update(view)
        with storage_errors("writing", self.path):
            self._file.write(view)

    def close(self) -> FileRecord:
        """Flush to the disk, close, and return the record."""
        with storage_errors("writing", self.path):
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
        return self._checksums.record()

    def abandon(self) -> None:
        """Close and delete what was written so far; harmless after `close`."""
        if not self._file.closed:
            with suppress(OSError):  # a full disk refuses the buffered rest too; the file goes away now
                self._file.close()
            self.path.unlink(missing_ok=True)


def sync_directory(path: Path) -> None:
    """Flush a directory's entries, so that a rename in it survives a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomic(path: Path, data: bytes) -> FileRecord:
    """Write a small file whole: aside, flushed, renamed over `path`.

    Raises:
        StorageError: the file system refused; `path` is then as it was before.
    """
    checksums = Checksums()
    checksums.update(memoryview(data))
    with atomic_file(path) as file:
        file.write(data)
    return checksums.record()


def create_whole(path: Path, data: bytes) -> bool:
    """Write a small file whole, unless there is one of this name (False): of two processes only one succeeds.

    Raises:
        StorageError: the file system refused.
    """
    with storage_errors("creating the file", path):
        remove_abandoned(path)
        aside, file = _open_aside(path)
        try:
            with file:
                file.write(data)
                file.flush()
                os.link(aside, path)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            return _create(path, data)
        finally:
            aside.unlink(missing_ok=True)
    return True


def _create(path: Path, data: bytes) -> bool:
    """Killed in here, an empty file stays; for file systems that know no links."""
    try:
        with path.open("xb") as file:
            file.write(data)
    except FileExistsError:
        return False
    return True


@contextmanager
def atomic_file(path: Path) -> Iterator[IO[bytes]]:
    """A file of any size, written aside in the block and renamed over `path` at its end; nothing after an error.

    A link at `path` stays, and what it points to is replaced. What a killed process left aside is removed by the next
    one that writes `path`.

    Raises:
        OutputExists: `path` is a device or a pipe. StorageError: the file system refused. `path` is as it was before.
    """
    with storage_errors("writing", path):
        place = _replaceable_file(path)
        remove_abandoned(place)
        aside, file = _open_aside(place)
    try:
        with storage_errors("writing", path), file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            aside.replace(place)
            sync_directory(place.parent)
    finally:
        with suppress(OSError):
            aside.unlink(missing_ok=True)


def _open_aside(path: Path) -> tuple[Path, IO[bytes]]:
    """A new file beside `path`, locked for as long as it is open; its name is never used again."""
    while True:
        aside = path.with_name(f".{path.name}.{uuid.uuid4().hex}{_ASIDE}")
        file = aside.open("xb+", buffering=COPY_BYTES)
        with suppress(OSError):  # a file system without locks: nobody gets one there, so nobody removes it either
            fcntl.flock(file, fcntl.LOCK_EX)
        if os.fstat(file.fileno()).st_nlink:  # else another process took it for abandoned before it was locked
            return aside, file
        file.close()


def remove_abandoned(path: Path) -> None:
    """Delete what killed processes left of `path`; what a live one is writing is locked."""
    # NFS locks only what is open for writing. Others may have put links and pipes here: not followed, not waited for.
    how = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK
    for left in path.parent.glob(f".{glob.escape(path.name)}.*{_ASIDE}"):
        with suppress(OSError):  # locked, or gone by now, or not ours to remove
            descriptor = os.open(left, how)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                left.unlink()
            finally:
                os.close(descriptor)


def _replaceable_file(path: Path) -> Path:
    """What `path` points to; a rename would put a file in the place of a link, or of a device such as /dev/null."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise OutputExists(f"{path}: a device or a pipe; expected a file to create or replace. Choose another path")
    return Path(os.path.realpath(path))  # unlike resolve() it has an answer for links in a circle


def json_bytes(value: Any) -> bytes:
    """JSON as every manifest is written: indented, keys in the given order, UTF-8, one final newline."""
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()
