"""Writes files so that they are complete or do not exist; reads and maps them.

A file is written under a temporary name, flushed to the disk, then renamed. A reader can trust what it finds under the
final name, whatever was killed when. (Directories: `store.staging`.) Sizes and checksums are computed during the
write, so they cost no second read.

::

    write_atomic       a small file, replacing an earlier one
    atomic_file        the same for a file of any size
    HashedWriter       a large file inside a staging directory, with its `FileRecord`
    allocate           the room of a file that is written in any order
    read_file          the bytes of a small file
    map_array, map_npy an array on the disk
"""

from __future__ import annotations

import glob
import json
import mmap
import os
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from niels_gpt.errors import InputError, OutputExists, StorageError, storage_errors
from niels_gpt.store import locks
from niels_gpt.store.checksums import COPY_BYTES, FileRecord

_TEMPORARY = ".niels.tmp"  # the suffix of unfinished files
SAMPLE_BLOCKS = 64  # runs of values that identify a file without checksum, and the values in each
SAMPLE_VALUES = 1024


class HashedWriter:
    """A new binary file: `write` bytes or arrays, then `close` for its `FileRecord`. The file must not exist."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._size, self._sha256 = 0, sha256()
        with storage_errors("creating the file", path):
            self._file: IO[bytes] = path.open("xb", buffering=COPY_BYTES)

    def write(self, data: bytes | memoryview | npt.NDArray[Any]) -> None:
        """Append bytes, or an array's bytes in C order."""
        view = np.ascontiguousarray(data).data if isinstance(data, np.ndarray) else memoryview(data)
        if view.nbytes == 0:  # an empty view cannot be cast
            return
        view = view.cast("B")
        self._sha256.update(view)
        self._size += view.nbytes
        with storage_errors("writing", self.path):
            self._file.write(view)

    def close(self) -> FileRecord:
        """Flush to the disk, close, and return the record."""
        with storage_errors("writing", self.path):
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
        return FileRecord(self._size, self._sha256.hexdigest())

    def abandon(self) -> None:
        """Close and delete the unfinished file; does nothing after `close`."""
        if not self._file.closed:
            with suppress(OSError):  # on a full disk, flushing the buffer fails again; the file is deleted anyway
                self._file.close()
            self.path.unlink(missing_ok=True)


def sync_directory(path: Path) -> None:
    """Flush the entries of a directory, so that a rename in it survives a power failure."""
    descriptor = os.open(path, os.O_RDONLY)  # a directory can be flushed although it cannot be opened for writing
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def allocate(descriptor: int, size: int) -> None:
    """Give a new file its full size, and the room on the disk for it.

    A file that is only truncated to its size has no room yet. On a full disk, a write into its middle then fails, and a
    write to a map of it kills the process (SIGBUS).

    Raises:
        OSError: the disk is full.
    """
    if sys.platform == "darwin":  # which has no posix_fallocate
        for at in range(0, size, COPY_BYTES):
            os.pwrite(descriptor, bytes(min(COPY_BYTES, size - at)), at)
    elif size:  # 0 is refused
        os.posix_fallocate(descriptor, 0, size)


def write_atomic(path: Path, data: bytes) -> FileRecord:
    """Write a small file under a temporary name, flush it, and rename it to `path`.

    Raises:
        StorageError: the file system refused; `path` is then unchanged.
    """
    with atomic_file(path) as file:
        file.write(data)
    return FileRecord(len(data), sha256(data).hexdigest())


@contextmanager
def atomic_file(path: Path) -> Iterator[IO[bytes]]:
    """A temporary file to write in the block, renamed over `path` at its end; deleted after an error.

    A symbolic link at `path` stays, and its target is replaced. Temporary files of killed processes are removed by the
    next one that writes `path`.

    Raises:
        OutputExists: `path` is a device or a pipe.
        StorageError: the file system refused; `path` is then unchanged.
    """
    aside = None
    try:  # Ctrl-C may come as soon as the file is there
        with storage_errors("writing", path):
            if path.exists() and not (path.is_file() or path.is_dir()):
                raise OutputExists(
                    f"{path}: a device or a pipe; expected a file to create or replace. Choose another path"
                )
            # A rename would replace a symbolic link itself. (Path.resolve() raises for a cycle of links.)
            target = Path(os.path.realpath(path))
            remove_abandoned(target)
            aside, file = _open_aside(target)
        with storage_errors("writing", path), file:
            yield file
            file.flush()
            # In this order: file systems may store a rename before the contents, and after a power failure the name
            # would have an empty file.
            os.fsync(file.fileno())
            aside.replace(target)
            sync_directory(target.parent)
    finally:
        if aside is not None:
            with suppress(OSError):
                aside.unlink(missing_ok=True)


def _open_aside(path: Path) -> tuple[Path, IO[bytes]]:
    """A new temporary file beside `path`, locked while it is open; its name is never used again."""
    while True:
        # Beside the file: a rename works only within one file system.
        aside = path.with_name(f".{path.name}.{uuid.uuid4().hex}{_TEMPORARY}")
        file: IO[bytes] | None = None
        try:
            file = aside.open("xb+", buffering=COPY_BYTES)
            with suppress(OSError):  # without locks, `remove_abandoned` gets none either, and deletes nothing
                locks.take(file.fileno(), wait=True)
            if os.fstat(file.fileno()).st_nlink:  # else another process deleted it as abandoned before it was locked
                return aside, file
            file.close()
        except BaseException:  # Ctrl-C: the caller does not know of this file yet
            with suppress(OSError):
                aside.unlink(missing_ok=True)
                if file is not None:
                    file.close()
            raise


def remove_abandoned(path: Path) -> None:
    """Delete the temporary files of `path` that killed processes left; those of live processes are locked."""
    for abandoned in path.parent.glob(f".{glob.escape(path.name)}.*{_TEMPORARY}"):
        with suppress(OSError):  # deleted meanwhile, or owned by another user
            descriptor = os.open(abandoned, os.O_RDWR)  # NFS locks only files that are open for writing
            try:
                if locks.take(descriptor, wait=False):
                    abandoned.unlink()
            finally:
                os.close(descriptor)


def read_file(path: Path) -> bytes:
    """The bytes of a file.

    Raises:
        StorageError: it is missing, or cannot be read.
    """
    with storage_errors("reading", path):
        return path.read_bytes()


def map_array(
    path: Path, dtype: npt.DTypeLike, *, offset: int = 0, shape: tuple[int, ...] | None = None
) -> npt.NDArray[Any]:
    """A file's values, mapped and read-only; those from byte `offset` on, of this shape (default: all, in a row).

    Raises:
        StorageError: it is missing, or cannot be read. ValueError: it is shorter, or not a whole number of values.
    """
    with storage_errors("mapping", path):
        if shape is None and path.stat().st_size == offset:  # nothing, which cannot be mapped
            return np.empty(0, dtype=dtype)
        # A plain array: each part of a `memmap` is also one, and making those takes longer than reading some values.
        return np.memmap(path, dtype=dtype, mode="r", offset=offset, shape=shape).view(np.ndarray)


def map_npy(path: Path) -> np.memmap[Any, Any]:
    """The array of a `.npy` file, mapped and read-only, so that a large one takes no memory.

    Raises:
        StorageError: it is missing, or cannot be read. InputError: it is not an array that `numpy.save` wrote, or a
            damaged one.
    """
    try:
        with storage_errors("reading", path):
            array = np.load(path, mmap_mode="r", allow_pickle=False)
    except StorageError:
        raise
    except Exception as error:  # a damaged header raises what its parser raises
        raise InputError(f"{path}: {type(error).__name__}: {error}; expected an array that numpy.save wrote") from error
    if not isinstance(array, np.memmap):  # an archive of several (.npz)
        raise InputError(f"{path}: {type(array).__name__}; expected one array that numpy.save wrote")
    return array


def json_bytes(value: Any) -> bytes:
    """JSON as all manifests are written: indented, keys in the order of `value`, UTF-8, one final newline."""
    # An unpaired surrogate, which UTF-8 does not have, becomes its escape in JSON.
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace")


def release(values: npt.NDArray[Any]) -> None:
    """Tell the system that the pages of a mapped array are not needed; they are read again on the next use.

    Without this, after a scan of a file all of it would count as memory of this process.
    """
    base: Any = values
    # A view of a view has a chain of bases, of which the last is the mapping itself.
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):  # not on Windows
        base.madvise(mmap.MADV_DONTNEED)


def samples(values: npt.NDArray[Any]) -> Iterator[bytes]:
    """Bytes that identify a file without recorded checksum: its length, then 64 runs of 1024 values, evenly spaced."""
    n = len(values)
    yield n.to_bytes(8, "little")
    for block in range(SAMPLE_BLOCKS):
        # The first run starts at 0, the last ends at n.
        at = block * max(0, n - SAMPLE_VALUES) // (SAMPLE_BLOCKS - 1)
        yield values[at : at + SAMPLE_VALUES].tobytes()
