"""Room for a shard in a `ShardCache`: others are evicted, the least recently used first, until it fits.

A cache of 10 GB has the shards a b c of 4, 3 and 2 GB, last used in this order. Beside d of 5 GB they may have 5 GB::

    _evict          a is deleted, 5 GB remain. If a is held: b and c are deleted, 4 GB remain
    _allocated      d's files get their full sizes, so that the next process that makes room counts them

Both happen under the lock of the directory. Shards that are held stay; their holders are asked to release them, and are
waited for, without this lock.
"""

from __future__ import annotations

import errno
import gc
import os
import shutil
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from niels_gpt.errors import StorageError, storage_errors
from niels_gpt.storage import locks
from niels_gpt.storage.files import allocate
from niels_gpt.storage.shard_cache_folder import PART, CacheFolder, RemoteShard


class Holder(Protocol):
    """An object that holds shards between two uses, such as the reader of a dataset."""

    def release(self) -> None:
        """Stop holding them; called in any thread when a cache is full."""


_holders: weakref.WeakSet[Any] = weakref.WeakSet()


def release_when_full(holder: Holder) -> None:
    """Call `holder.release()` whenever this process needs room in a cache, while the object exists."""
    _holders.add(holder)


def make_room(folder: CacheFolder, shard: RemoteShard, max_bytes: int, seconds: float) -> bool:
    """Evict shards until this one fits, and create its part with files of their full sizes.

    Args:
        max_bytes: the limit of all shards together.
        seconds: how long to wait for the holders of other shards to release them.

    Returns:
        Whether there is room; false only if `seconds` is 0.

    Raises:
        StorageError: there is no room after `seconds`, or the disk refused.
    """
    room = _Room(folder, shard, max_bytes)

    def try_once() -> bool:
        if room.make():
            return True
        if seconds:
            _release_held()
        return False

    try:
        with storage_errors("making room for a shard", folder.path):
            if locks.within(seconds, try_once):
                return True
            if seconds and room.disk_full:
                raise room.disk_full
    except StorageError:
        shutil.rmtree(folder.part(shard.key), ignore_errors=True)
        raise
    if seconds:
        used = sum(map(_bytes_of, folder.shards()))
        raise StorageError(
            f"{folder.path}: {used:,} of {max_bytes:,} bytes are shards that are being read, so there is no room for "
            f"{shard.bytes:,} more; raise cache_bytes, or give each job a cache_dir of its own"
        )
    return False


def _release_held() -> None:
    for holder in list(_holders):
        holder.release()
    # A loader that is no longer used may be part of a cycle of references, and still hold shards: collected, its
    # `HeldShard`s release their locks.
    gc.collect()


class _Room:
    """Attempts to make room for one shard.

    Attributes:
        disk_full: the error of the last attempt, if the disk was full rather than the cache.
    """

    def __init__(self, folder: CacheFolder, shard: RemoteShard, max_bytes: int) -> None:
        self._folder, self._shard = folder, shard
        self._allowed = max_bytes - shard.bytes  # for all others together
        self.disk_full: OSError | None = None

    def make(self) -> bool:
        """Evict what is not held, and create the part; whether there was room."""
        part = self._folder.part(self._shard.key)
        with self._folder.locked("lock"):
            shutil.rmtree(part, ignore_errors=True)  # of a process that was killed
            remaining = _evict(self._folder, self._allowed)
            fits, self.disk_full = remaining <= self._allowed, None
            # Other files may fill the disk before `max_bytes` is reached: then shards that are not in use are evicted,
            # one at a time, until the files fit or nothing is left to evict.
            while fits and (full := _allocated(self._shard, part)):
                self.disk_full = full
                before, remaining = remaining, _evict(self._folder, remaining - 1)
                fits = remaining < before
            return fits


def _evict(folder: CacheFolder, allowed: int) -> int:
    """Evict the least recently used shards until at most `allowed` bytes remain; returns how many bytes remain.

    The caller holds the lock of the directory.
    """
    sizes = {path: _bytes_of(path) for path in folder.shards()}
    uses = {path: folder.record(path.name).last_use for path in sizes}
    # Parts first: one whose lock is free is of a process that was killed, and is of no use.
    for path in sorted(sizes, key=lambda path: (not path.name.endswith(PART), uses[path])):
        is_part = path.name.endswith(PART)
        if not is_part and sum(sizes.values()) <= allowed:
            break
        key = path.name.removesuffix(PART)
        with folder.if_free(key) as free:
            if free and path.is_dir():
                # Renamed before it is deleted: if this process is killed in between, no incomplete shard has a complete
                # name.
                path.rename(folder.part(key))
                shutil.rmtree(folder.part(key))
                del sizes[path]
    return sum(sizes.values())


def _allocated(shard: RemoteShard, part: Path) -> OSError | None:
    """Create the shard's files with their full sizes, so that a full disk is found before anything is downloaded.

    Returns:
        The error of a full disk, which has left no files, or `None`.
    """
    try:
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir()
        for file in shard.files:
            with (part / file.name).open("xb") as opened:
                allocate(opened.fileno(), file.bytes)
    except OSError as error:
        shutil.rmtree(part, ignore_errors=True)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return error
        raise
    return None


def _bytes_of(shard_dir: Path) -> int:
    # Other processes rename and delete at the same time.
    with suppress(OSError), os.scandir(shard_dir) as entries:
        return sum(entry.stat().st_size for entry in entries)
    return 0
