"""`ShardCache`: a bounded local directory of shards of remote datasets, shared by all processes of a node.

::

    folder/shards/3f2a9c41d0b7e852/tokens.bin, mask.bin     a shard: all its files, whole and checked
    folder/shards/3f2a9c41d0b7e852.part/                    one that is being downloaded or deleted
    folder/locks/3f2a9c41d0b7e852                           its lock; it contains the number of the shard's last use,
                                                            and of which versions of its files the sha256 was compared
    folder/lock, folder/uses                                the lock of the directory, and its count of uses

A shard is named by the checksums of its files, so two datasets that contain the same one use one copy. It gets its name
after its sha256 was compared, so a directory without `.part` is complete. One whose files were deleted or cut short
since, as systems do that clean /tmp, is downloaded again. Where the time of a file's last change is another one than
after the comparison, somebody wrote to it: its sha256 is compared again when a process begins to use the shard, and a
shard that differs is downloaded again. Bits that a disk flips by itself change no time and are not noticed: to compare
every file whenever a process opens it would read each shard twice.

Processes agree by two kinds of locks (`locks.py`):

* A reader of a shard holds its lock shared; a download and an eviction hold it exclusively.
* Shards are evicted under the lock of the directory. A download allocates the full size of its files first, so that
  the next process that makes room counts them.

The least recently used shard is evicted first. Uses are counted (`folder/uses`), not dated, because the clocks of the
machines that share a directory may differ.
"""

from __future__ import annotations

import errno
import gc
import json
import logging
import os
import shutil
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

from niels_gpt import ranges
from niels_gpt.errors import CacheError, StorageError, UsageError, storage_errors
from niels_gpt.forks import cached_property
from niels_gpt.storage import locks
from niels_gpt.storage.checksums import file_record
from niels_gpt.storage.files import allocate
from niels_gpt.storage.remote import download
from niels_gpt.storage.retries import Retries

MAX_BYTES = 100 << 30
COUNTER_BYTES = 8  # the first of a lock file
VERSION_BYTES = 32  # those after them
_log = logging.getLogger("niels_gpt.storage")
PART = ".part"  # also while a shard is deleted, so that only whole ones have names without it
PATIENCE = 10  # times `stall_seconds`: the longest wait for another process that downloads the same shard


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


class HeldShard:
    """A shard that is not evicted while this object exists.

    Attributes:
        folder: the directory of its files.
    """

    def __init__(self, folder: Path, lock: int) -> None:
        self.folder = folder
        # With the process's id: a forked child that drops its copy must not release the lock of its parent.
        weakref.finalize(self, locks.release, lock, os.getpid())


class Holder(Protocol):
    """An object that holds shards between two uses, such as the reader of a dataset."""

    def release(self) -> None:
        """Stop holding them; called in any thread when a cache is full."""


_holders: weakref.WeakSet[Any] = weakref.WeakSet()


def release_when_full(holder: Holder) -> None:
    """Call `holder.release()` whenever this process needs room in a cache, while the object exists."""
    _holders.add(holder)


@dataclass(frozen=True)
class ShardCache:
    """A directory of copies of remote shards, of limited size.

    Args:
        folder: the directory, on a local disk of the node; created if it does not exist.
        max_bytes: the limit of all shards together; the indexes of datasets are not counted.
        retries: how often and how long a download is repeated; its `stall_seconds` also limit the wait for others.

    Raises:
        UsageError: `max_bytes` out of range.
    """

    folder: Path
    max_bytes: int = MAX_BYTES
    retries: Retries = field(default_factory=Retries)

    def __post_init__(self) -> None:
        ranges.MAX_BYTES.check(self.max_bytes, "cache_bytes")
        object.__setattr__(self, "folder", Path(self.folder))

    def has(self, shard: RemoteShard) -> bool:
        """Whether the shard is here now, with all its files; it may be evicted at any time, unless it is held."""
        shard_dir = self._shard_dir(shard.key)
        return shard_dir.is_dir() and all(size_of(shard_dir / file.name) == file.bytes for file in shard.files)

    def hold(self, shard: RemoteShard) -> HeldShard:
        """The shard, downloaded if necessary, and held while the result exists.

        Raises:
            CacheError: the store has other bytes than recorded. UsageError: the shard is larger than `max_bytes`.
            StorageError: the store or the disk failed, or another process of this node took too long.
        """
        end = time.monotonic() + PATIENCE * self.retries.stall_seconds
        while (shard_here := self.held_if_here(shard)) is None:
            if not self.fetch(shard) and time.monotonic() > end:
                raise StorageError(
                    f"{self._shard_dir(shard.key)}: another process of this machine has been downloading this shard "
                    f"for {PATIENCE * self.retries.stall_seconds:g} s; end it, or use another cache_dir"
                )
            time.sleep(locks.POLL_SECONDS if not self.has(shard) else 0)
        return shard_here

    def fetch(self, shard: RemoteShard, *, wait: bool = True) -> bool:
        """Download the shard if it is not here and no other process is downloading it.

        Args:
            wait: if the cache is full of shards that are being read, wait for their readers instead of giving up.

        Returns:
            Whether the cache has the shard now.

        Raises:
            As `hold`.
        """
        if shard.bytes > self.max_bytes:
            raise UsageError(
                f"{shard.url}: a shard of {shard.bytes:,} bytes does not fit into the {self.max_bytes:,} of the cache "
                f"{self.folder}; raise cache_bytes"
            )
        shard_dir = self._shard_dir(shard.key)
        part = shard_dir.with_name(shard_dir.name + PART)
        _refuse_link(shard_dir)
        _refuse_link(part)
        with self._if_free(shard.key) as free:
            # Not free means that another process downloads it, or reads it: then it is complete. If it is free, another
            # one may have completed it since the caller looked.
            if not free or self.has(shard):
                return self.has(shard)
            if shard_dir.is_dir():
                _log.warning("[Store] %s: a shard that has lost files; downloading it again", shard_dir)
                with storage_errors("removing what is left of a shard", shard_dir):
                    shutil.rmtree(part, ignore_errors=True)
                    shard_dir.rename(part)  # which is deleted before the download
            if not self._make_room(shard, part, self.retries.stall_seconds if wait else 0):
                return False
            try:
                self._download(shard, part)
                with storage_errors("completing", shard_dir):
                    part.rename(shard_dir)
                self._record_version(shard, self._version(shard))
            except BaseException:  # Ctrl-C too must not leave part of a download on the disk
                shutil.rmtree(part, ignore_errors=True)
                raise
            self._record_use(shard.key)
            return True

    def _download(self, shard: RemoteShard, part: Path) -> None:
        for file in shard.files:
            with storage_errors("writing", part / file.name):
                descriptor = os.open(part / file.name, os.O_WRONLY)
            try:

                def write(at: int, data: bytes, descriptor: int = descriptor, path: Path = part / file.name) -> None:
                    with storage_errors("writing", path):
                        _write_all(descriptor, data, at)

                download(f"{shard.url}/{file.name}", file.bytes, file.sha256, write, self.retries)
                with storage_errors("writing", part / file.name):
                    # Before the shard is renamed: otherwise, after a power failure, a complete name could have
                    # incomplete files.
                    os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def held_if_here(self, shard: RemoteShard) -> HeldShard | None:
        """As `hold`, but `None` instead of downloading or waiting."""
        _refuse_link(self._shard_dir(shard.key))
        descriptor = self._open_lock(self._lock_path(shard.key))
        try:
            if (
                locks.take(descriptor, wait=False, shared=True)
                and self.has(shard)
                and self._is_undamaged(shard, descriptor)
            ):
                self._record_use(shard.key)
                # The result now owns the lock, which the `finally` below must not release.
                held, descriptor = HeldShard(self._shard_dir(shard.key), descriptor), -1
                return held
        finally:
            if descriptor >= 0:
                locks.release(descriptor)
        return None

    # ---- files that were changed after their download

    def _is_undamaged(self, shard: RemoteShard, lock: int) -> bool:
        """Whether the files are those that were compared, or have the right sha256 still; if not, the shard is removed.

        Args:
            lock: the descriptor of the shard's lock, which this process holds shared. It is released if the result is
                false.

        Raises:
            CacheError: a file differs, and another process is reading the shard.
        """
        shard_dir, version = self._shard_dir(shard.key), self._version(shard)
        # Bytes 0 to 7 of a lock file are the counter, 8 to 39 the version.
        if _lock_file(self._lock_path(shard.key))[COUNTER_BYTES : COUNTER_BYTES + VERSION_BYTES] == version:
            return True
        changed = next((file for file in shard.files if file_record(shard_dir / file.name).sha256 != file.sha256), None)
        if changed is None:  # touched, copied, or downloaded by a version of this package that recorded no times
            self._record_version(shard, version)
            return True
        if not locks.take(lock, wait=False):  # exclusively: others may have mapped the files
            raise CacheError(
                f"{shard_dir / changed.name}: changed since it was downloaded (sha256), and another reader has it "
                "open; end all jobs that use this cache, then run the same command again"
            )
        _log.warning(
            "[Store] %s: changed since it was downloaded (sha256); downloading it again", shard_dir / changed.name
        )
        part = shard_dir.with_name(shard_dir.name + PART)
        with storage_errors("removing a damaged shard", shard_dir):
            shutil.rmtree(part, ignore_errors=True)
            shard_dir.rename(part)  # which is deleted before the download
        return False

    def _version(self, shard: RemoteShard) -> bytes:
        """A hash of the files' sizes and the times of their last change, as the file system reports them."""
        shard_dir = self._shard_dir(shard.key)
        with storage_errors("examining a shard", shard_dir):
            found = [(shard_dir / file.name).stat() for file in shard.files]
        return sha256(repr([(each.st_size, each.st_mtime_ns) for each in found]).encode()).digest()

    def _record_version(self, shard: RemoteShard, version: bytes) -> None:
        """Write into the lock file which version of the files has the right sha256."""
        with suppress(OSError):  # on a full disk: then the next process that uses the shard compares them again
            _write_at(self._lock_path(shard.key), version, COUNTER_BYTES)

    # ---- room

    def _make_room(self, shard: RemoteShard, part: Path, seconds: float) -> bool:
        """Evict shards until this one fits, and create `part` with files of their full sizes.

        Shards that are held are not evicted; it waits up to `seconds` for their holders to release them.

        Returns:
            Whether there is room; false only if `seconds` is 0.

        Raises:
            StorageError: there is no room after `seconds`, or the disk refused.
        """
        refused: list[OSError] = []  # the last error of the disk, if the disk is full rather than the cache

        def try_once() -> bool:
            with self._locked(self.folder / "lock"):
                shutil.rmtree(part, ignore_errors=True)  # of a process that was killed
                remaining = self._evict(self.max_bytes - shard.bytes)
                fits = remaining <= self.max_bytes - shard.bytes
                # Other files may fill the disk before `max_bytes` is reached: then shards that are not in use are
                # evicted, one at a time, until the files fit or nothing is left to evict.
                refused.clear()
                while fits and (full := _allocated(shard, part)):
                    refused[:] = [full]
                    before, remaining = remaining, self._evict(remaining - 1)
                    fits = remaining < before
                if not fits and seconds:
                    for holder in list(_holders):
                        holder.release()
                    # A loader that is no longer used may be part of a cycle of references, and still hold shards:
                    # collected, its `HeldShard`s release their locks.
                    gc.collect()
                return fits

        try:
            with storage_errors("making room for a shard", self.folder):
                if locks.within(seconds, try_once):
                    return True
                if seconds and refused:
                    raise refused[0]
        except StorageError:
            shutil.rmtree(part, ignore_errors=True)
            raise
        if seconds:
            used = sum(_bytes_of(shard_dir) for shard_dir in self._shard_dirs())
            raise StorageError(
                f"{self.folder}: {used:,} of {self.max_bytes:,} bytes are shards that are being read, so there is no "
                f"room for {shard.bytes:,} more; raise cache_bytes, or give each job a cache_dir of its own"
            )
        return False

    def _evict(self, allowed: int) -> int:
        """Evict the least recently used shards until at most `allowed` bytes remain; returns how many bytes remain."""
        sizes = {shard_dir: _bytes_of(shard_dir) for shard_dir in self._shard_dirs()}
        # The number of a shard's last use is in its lock file; 0 if it was never used.
        uses = {shard_dir: _number_in(self._lock_path(shard_dir.name)) for shard_dir in sizes}
        # Parts first: one whose lock is free is of a process that was killed, and is of no use.
        for shard_dir in sorted(sizes, key=lambda shard_dir: (not shard_dir.name.endswith(PART), uses[shard_dir])):
            is_part = shard_dir.name.endswith(PART)
            if not is_part and sum(sizes.values()) <= allowed:
                break
            with self._if_free(shard_dir.name.removesuffix(PART)) as free:
                if free and shard_dir.is_dir():
                    part = shard_dir if is_part else shard_dir.with_name(shard_dir.name + PART)
                    # Renamed before it is deleted: if this process is killed in between, no incomplete shard has a
                    # complete name.
                    shard_dir.rename(part)
                    shutil.rmtree(part)
                    del sizes[shard_dir]
        return sum(sizes.values())

    def _shard_dirs(self) -> list[Path]:
        """All directories of shards, complete ones and parts."""
        folder = self.folder / "shards"
        return list(folder.iterdir()) if folder.is_dir() else []

    # ---- locks and the order of use

    def _shard_dir(self, key: str) -> Path:
        return self.folder / "shards" / key

    def _lock_path(self, key: str) -> Path:
        return self.folder / "locks" / key

    @contextmanager
    def _if_free(self, key: str) -> Iterator[bool]:
        """Hold the lock of a shard exclusively during the block; yields false, without waiting, if it is taken."""
        descriptor = self._open_lock(self._lock_path(key))
        try:
            yield locks.take(descriptor, wait=False)
        finally:
            locks.release(descriptor)

    @contextmanager
    def _locked(self, path: Path) -> Iterator[None]:
        descriptor = self._open_lock(path)
        try:
            locks.take(descriptor, wait=True)  # held for milliseconds, so it is waited for
            yield
        finally:
            locks.release(descriptor)

    def _open_lock(self, path: Path) -> int:
        with storage_errors("locking", path):
            for folder in (path.parent, self.folder / "shards"):
                folder.mkdir(parents=True, exist_ok=True)
            _refuse_link(path)
            return locks.open_lock_file(path)

    def _record_use(self, key: str) -> None:
        """Write the number of this use, counted over all processes, into the shard's lock file."""
        with storage_errors("counting a use", self.folder), self._locked(self.folder / "uses"):
            uses = _number_in(self.folder / "uses") + 1
            for path in (self.folder / "uses", self._lock_path(key)):
                # On a full disk this use is not recorded. At worst the shard is evicted too early and downloaded again.
                with suppress(OSError):
                    _write_at(path, uses.to_bytes(COUNTER_BYTES, "little"), 0)


def _refuse_link(path: Path) -> None:
    """Refuse a link that another user of a shared cache may have put there: what it points to is no shard of ours."""
    if path.is_symlink():
        raise CacheError(f"{path}: a link in the cache, which never has links; remove it")


def _allocated(shard: RemoteShard, part: Path) -> OSError | None:
    """Create the shard's files with their full sizes, so that a full disk is found before anything is downloaded.

    Returns:
        The error of a full disk, which has left no files, or `None`.
    """
    try:
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir()
        for file in shard.files:
            # O_EXCL: in a shared cache another user could have put a link there at this moment.
            descriptor = os.open(part / file.name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
            try:
                allocate(descriptor, file.bytes)
            finally:
                os.close(descriptor)
    except OSError as error:
        shutil.rmtree(part, ignore_errors=True)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return error
        raise
    return None


def _write_all(descriptor: int, data: bytes, at: int) -> None:
    view = memoryview(data)
    while view:  # one call may write less than all of it, for example at most 2 GiB on Linux
        written = os.pwrite(descriptor, view, at)
        view, at = view[written:], at + written


def _bytes_of(shard_dir: Path) -> int:
    # Other processes rename and delete at the same time.
    with suppress(OSError), os.scandir(shard_dir) as entries:
        return sum(entry.stat().st_size for entry in entries)
    return 0


def size_of(path: Path) -> int | None:
    """The size of a file in bytes; `None` if there is none."""
    with suppress(OSError):
        return path.stat().st_size
    return None


def _lock_file(path: Path) -> bytes:
    """The contents of a lock file: the counter, then the version of the files; empty if there is none."""
    with suppress(OSError):
        return path.read_bytes()
    return b""


def _number_in(path: Path) -> int:
    return int.from_bytes(_lock_file(path)[:COUNTER_BYTES], "little")


def _write_at(path: Path, data: bytes, at: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW)
    try:
        os.pwrite(descriptor, data, at)
    finally:
        os.close(descriptor)
