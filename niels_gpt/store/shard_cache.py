"""`ShardCache`: a bounded local directory of files of remote datasets, shared by all processes of a node.

::

    folder/shards/3f2a9c41d0b7e852         a whole file, named by its sha256: it is never stale, and equal ones are one
    folder/shards/3f2a9c41d0b7e852.part    one that is being downloaded, or was left by a process that was killed
    folder/locks/3f2a9c41d0b7e852          the lock of its download;  locks/room: of making room

A file has the time of its last use, and the least recently used ones are deleted to make room, also while somebody has
mapped them: a mapped file outlives its name, and its room is free with its last map. So nothing is held or released;
who maps a file that was deleted a moment before asks for it again.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from niels_gpt import ranges
from niels_gpt.errors import UsageError, storage_errors
from niels_gpt.store.files import allocate
from niels_gpt.store.locks import locked
from niels_gpt.store.remote import download

MAX_BYTES = 100 << 30
PART = ".part"
POLL_SECONDS = 0.05  # until it is asked again whether other downloads have left room


@dataclass(frozen=True)
class StoredFile:
    """A file of a dataset in a store, as its manifest records it: URL, size in bytes and sha256."""

    url: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class ShardCache:
    """A directory of copies of files of stores, of limited size.

    Args:
        folder: the directory, on a local disk of the node; created if it does not exist.
        max_bytes: the limit of all files of shards together; the indexes of datasets are not counted.

    Raises:
        UsageError: `max_bytes` out of range.
    """

    folder: Path
    max_bytes: int = MAX_BYTES

    def __post_init__(self) -> None:
        ranges.MAX_BYTES.check(self.max_bytes, "cache_bytes")
        object.__setattr__(self, "folder", Path(self.folder))

    def has(self, file: StoredFile) -> bool:
        """Whether the file is here now; it may be deleted at any time."""
        return size_of(self._path(file)) == file.bytes

    def mapped(self, file: StoredFile, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """The file's values as a read-only array, shape (n,), downloaded if it is not here.

        Raises:
            As `get`.
        """
        if not file.bytes:  # nothing, which cannot be mapped
            return np.empty(0, dtype=dtype)
        while True:
            path = self.get(file)
            with suppress(FileNotFoundError):  # deleted since, to make room: once more
                # A plain array: each part of a `memmap` is also one, and making those takes longer than reading values.
                return np.memmap(path, dtype=dtype, mode="r").view(np.ndarray)

    def get(self, file: StoredFile) -> Path:
        """The local file, downloaded if it is not here. Open it at once: it may be deleted later.

        One process downloads a file, and the others wait for it.

        Raises:
            CacheError: the store has other bytes than recorded. UsageError: the file is larger than `max_bytes`.
            StorageError: the store or the disk failed.
        """
        path = self._path(file)
        if file.bytes > self.max_bytes:
            raise UsageError(
                f"{file.url}: a file of {file.bytes:,} bytes does not fit into the {self.max_bytes:,} of the cache "
                f"{self.folder}; raise cache_bytes"
            )
        if self._used(file):
            return path
        with storage_errors("writing", path):
            for folder in (path.parent, self._lock(path).parent):
                folder.mkdir(parents=True, exist_ok=True)
            with locked(self._lock(path)):
                if not self._used(file):  # another process may have completed it meanwhile
                    with self._part(path, file.bytes) as part, part.open("r+b") as opened:
                        download(file.url, file.bytes, file.sha256, opened)
                        opened.flush()
                        os.fsync(
                            opened.fileno()
                        )  # before it has its name, which after a power failure says it is whole
        return path

    def _used(self, file: StoredFile) -> bool:
        """Whether the file is here, and if so, note this use of it."""
        if self.has(file):
            with suppress(FileNotFoundError):
                now = time.time_ns()  # the system's own time for this is one of some milliseconds ago
                os.utime(self._path(file), ns=(now, now))
                return True
        return False

    @contextmanager
    def _part(self, path: Path, size: int) -> Iterator[Path]:
        """A new file of this size, to be filled in the block, which then gets its name."""
        part = path.with_suffix(PART)
        try:
            while not self._make_room(part, size):
                time.sleep(POLL_SECONDS)
            yield part
            with self._room():  # who makes room would count a file that gets its name meanwhile twice, or not at all
                part.replace(path)
        finally:  # also after Ctrl-C; what a killed process leaves is deleted as the others are
            part.unlink(missing_ok=True)

    def _make_room(self, part: Path, size: int) -> bool:
        """Delete the least recently used files until this one fits, and allocate it; false if downloads fill the cache.

        A full disk is treated as a full cache: other programs may also use it.
        """
        with self._room():
            part.unlink(missing_ok=True)
            found = []
            for path in part.parent.iterdir():
                with suppress(FileNotFoundError):  # a download has ended just now
                    found.append((path.stat().st_mtime_ns, path.stat().st_size, path))
            used, oldest = sum(size for _, size, _ in found), iter(sorted(found))
            while True:
                full = None
                if used + size <= self.max_bytes:
                    try:
                        with part.open("xb") as opened:  # whole at once, so that the next one who makes room counts it
                            allocate(opened.fileno(), size)
                        return True
                    except OSError as error:
                        part.unlink(missing_ok=True)
                        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                            raise
                        full = error
                entry = next(oldest, None)
                if entry is not None:
                    used -= entry[1] if self._deleted(entry[2]) else 0
                elif full is not None:
                    raise full
                else:
                    return False

    def _deleted(self, path: Path) -> bool:
        """Delete a file, unless it is a part that a process is writing; whether it was deleted."""
        if path.suffix != PART:
            path.unlink(missing_ok=True)
            return True
        with locked(self._lock(path), wait=False) as is_free:
            if is_free:
                path.unlink(missing_ok=True)
            return is_free

    def _room(self) -> AbstractContextManager[bool]:
        """The lock under which files get their names and leave."""
        return locked(self.folder / "locks" / "room")

    def _path(self, file: StoredFile) -> Path:
        return self.folder / "shards" / file.sha256[:32]

    def _lock(self, path: Path) -> Path:
        return self.folder / "locks" / path.stem


def size_of(path: Path) -> int | None:
    """The size of a file in bytes; `None` if there is none."""
    with suppress(OSError):
        return path.stat().st_size
    return None
