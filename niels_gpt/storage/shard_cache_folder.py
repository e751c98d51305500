"""The directory of a `ShardCache`: where a shard, its lock and its records are.

::

    folder/shards/3f2a9c41d0b7e852/tokens.bin, mask.bin     a shard: all its files, whole and checked
    folder/shards/3f2a9c41d0b7e852.part/                    one that is being downloaded or deleted
    folder/locks/3f2a9c41d0b7e852                           its lock, which contains its `LockRecord`
    folder/lock, folder/uses                                the lock of the directory, and its count of uses

A shard is named by the checksums of its files, so two datasets that contain the same one use one copy. What is there,
and what it means::

    shards/KEY     shards/KEY.part     lock          the shard
    -              -                   -             is not here
    -              there               taken         is being downloaded or deleted by a process
    -              there               free          was left by a process that was killed: deleted by the next that
                                                     makes room
    all files      -                   shared        is here, and is read
    all files      -                   free          is here, and may be evicted
    some files     -                   free          has lost files, as on systems that clean /tmp: downloaded again

Uses are counted, not dated, because the clocks of the machines that share a directory may differ.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path

from niels_gpt.errors import storage_errors
from niels_gpt.storage import locks

PART = ".part"  # also while a shard is deleted, so that only whole ones have names without it
COUNTER_BYTES = 8
VERSION_BYTES = 32


@dataclass(frozen=True)
class RemoteFileRecord:
    """A file of a shard, as its manifest records it: name, size in bytes and sha256."""

    name: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class RemoteShard:
    """The files of one shard below a URL."""

    url: str
    files: tuple[RemoteFileRecord, ...]

    @property
    def bytes(self) -> int:
        """The size of all files."""
        return sum(file.bytes for file in self.files)

    @cached_property
    def key(self) -> str:
        """The shard's name in a cache: a hash of its files' names, sizes and checksums."""
        names = json.dumps([[file.name, file.bytes, file.sha256] for file in self.files])
        return sha256(names.encode()).hexdigest()[:32]


@dataclass(frozen=True)
class LockRecord:
    """What the file of a shard's lock contains: 40 bytes, or fewer if something was not recorded yet."""

    last_use: int  # bytes 0 to 7: the number of the shard's last use, counted over all processes; 0 for never
    version: bytes  # bytes 8 to 39: which version of the files has the right sha256, see `CacheFolder.version`

    @classmethod
    def read(cls, path: Path) -> LockRecord:
        """The record in a file; of a use 0 and no version if there is no file."""
        data = b""
        with suppress(OSError):
            data = path.read_bytes()
        return cls(int.from_bytes(data[:COUNTER_BYTES], "little"), data[COUNTER_BYTES : COUNTER_BYTES + VERSION_BYTES])


@dataclass(frozen=True)
class CacheFolder:
    """The directory of a cache; every method is for the shard with a key, or for all of them."""

    path: Path

    # ---- where things are

    def shard(self, key: str) -> Path:
        """The directory of a whole shard."""
        return self.path / "shards" / key

    def part(self, key: str) -> Path:
        """The directory of a shard that is being downloaded or deleted."""
        return self.path / "shards" / f"{key}{PART}"

    def lock_file(self, key: str) -> Path:
        """The file of a shard's lock, with its record."""
        return self.path / "locks" / key

    def shards(self) -> list[Path]:
        """The directories of all shards, whole ones and parts."""
        folder = self.path / "shards"
        return list(folder.iterdir()) if folder.is_dir() else []

    def set_aside(self, key: str) -> None:
        """Rename a shard that cannot be used to a part, which is deleted before the shard is downloaded again."""
        shutil.rmtree(self.part(key), ignore_errors=True)
        self.shard(key).rename(self.part(key))

    # ---- locks

    def open_lock(self, path: Path) -> int:
        """Open the file of a lock, and create it and the directories of the cache where they do not exist."""
        with storage_errors("locking", path):
            for folder in (path.parent, self.path / "shards"):
                folder.mkdir(parents=True, exist_ok=True)
            return locks.open_lock_file(path)

    @contextmanager
    def if_free(self, key: str) -> Iterator[bool]:
        """Hold the lock of a shard exclusively during the block; yields false, without waiting, if it is taken."""
        descriptor = self.open_lock(self.lock_file(key))
        try:
            yield locks.take(descriptor, wait=False)
        finally:
            locks.release(descriptor)

    @contextmanager
    def locked(self, name: str) -> Iterator[None]:
        """Hold the lock `lock` of the directory, or the lock `uses` of the counter, during the block."""
        descriptor = self.open_lock(self.path / name)
        try:
            locks.take(descriptor, wait=True)  # held for milliseconds, so it is waited for
            yield
        finally:
            locks.release(descriptor)

    # ---- records

    def record(self, key: str) -> LockRecord:
        """The record of a shard."""
        return LockRecord.read(self.lock_file(key))

    def record_use(self, key: str) -> None:
        """Write the number of this use into the shard's record."""
        with storage_errors("counting a use", self.path), self.locked("uses"):
            uses = LockRecord.read(self.path / "uses").last_use + 1
            for path in (self.path / "uses", self.lock_file(key)):
                # On a full disk this use is not recorded. At worst the shard is evicted too early and downloaded again.
                with suppress(OSError):
                    _write_at(path, uses.to_bytes(COUNTER_BYTES, "little"), 0)

    def version(self, shard: RemoteShard) -> bytes:
        """A hash of the files' sizes and the times of their last change, as the file system reports them."""
        folder = self.shard(shard.key)
        with storage_errors("examining a shard", folder):
            found = [(folder / file.name).stat() for file in shard.files]
        return sha256(repr([(each.st_size, each.st_mtime_ns) for each in found]).encode()).digest()

    def record_version(self, key: str, version: bytes) -> None:
        """Write into the shard's record which version of the files has the right sha256."""
        with suppress(OSError):  # on a full disk: then the next process that uses the shard compares them again
            _write_at(self.lock_file(key), version, COUNTER_BYTES)


def size_of(path: Path) -> int | None:
    """The size of a file in bytes; `None` if there is none."""
    with suppress(OSError):
        return path.stat().st_size
    return None


def _write_at(path: Path, data: bytes, at: int) -> None:
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.pwrite(descriptor, data, at)
    finally:
        os.close(descriptor)
