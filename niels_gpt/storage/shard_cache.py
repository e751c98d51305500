"""`ShardCache`: a bounded local directory of shards of remote datasets, shared by all processes of a node.

A reader asks for a shard and holds it while it reads::

    hold           held_if_here, else fetch, until one of them has the shard
    held_if_here   takes the shard's lock shared; the files must be there, and undamaged
    fetch          takes the shard's lock exclusively
      make_room      evicts others, and allocates its files in KEY.part       shard_cache_room.py
      _complete      downloads, compares the sha256, renames KEY.part to KEY

`shard_cache_folder.py` shows the directory, and what each state of it means. A shard gets its name after its sha256 was
compared, so a directory without `.part` is complete. Where the time of a file's last change is another one than after
the comparison, somebody wrote to it: its sha256 is compared again when a process begins to use the shard, and a shard
that differs is downloaded again. Bits that a disk flips by itself change no time and are not noticed: to compare every
file whenever a process opens it would read each shard twice.

Processes agree by two kinds of locks (`locks.py`):

* A reader of a shard holds its lock shared; a download and an eviction hold it exclusively.
* Shards are evicted under the lock of the directory. A download allocates the full size of its files first, so that
  the next process that makes room counts them.
"""

from __future__ import annotations

import logging
import os
import shutil
import time
import weakref
from dataclasses import dataclass, field
from pathlib import Path

from niels_gpt import ranges
from niels_gpt.errors import CacheError, StorageError, UsageError, storage_errors
from niels_gpt.storage import locks
from niels_gpt.storage.checksums import file_record
from niels_gpt.storage.remote import download
from niels_gpt.storage.retries import Retries
from niels_gpt.storage.shard_cache_folder import CacheFolder, RemoteFileRecord, RemoteShard, size_of
from niels_gpt.storage.shard_cache_room import make_room

MAX_BYTES = 100 << 30
PATIENCE = 10  # times `stall_seconds`: the longest wait for another process that downloads the same shard
_log = logging.getLogger("niels_gpt.storage")


class HeldShard:
    """A shard that is not evicted while this object exists.

    Attributes:
        folder: the directory of its files.
    """

    def __init__(self, folder: Path, lock: int) -> None:
        self.folder = folder
        # With the process's id: a forked child that drops its copy must not release the lock of its parent.
        weakref.finalize(self, locks.release, lock, os.getpid())


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

    @property
    def _directory(self) -> CacheFolder:
        return CacheFolder(self.folder)

    def has(self, shard: RemoteShard) -> bool:
        """Whether the shard is here now, with all its files; it may be evicted at any time, unless it is held."""
        shard_dir = self._directory.shard(shard.key)
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
                    f"{self._directory.shard(shard.key)}: another process of this machine has been downloading this "
                    f"shard for {PATIENCE * self.retries.stall_seconds:g} s; end it, or use another cache_dir"
                )
            time.sleep(locks.POLL_SECONDS if not self.has(shard) else 0)
        return shard_here

    def held_if_here(self, shard: RemoteShard) -> HeldShard | None:
        """As `hold`, but `None` instead of downloading or waiting."""
        directory = self._directory
        shard_dir = directory.shard(shard.key)
        descriptor = directory.open_lock(directory.lock_file(shard.key))
        try:
            if (
                locks.take(descriptor, wait=False, shared=True)
                and self.has(shard)
                and self._is_undamaged(shard, descriptor)
            ):
                directory.record_use(shard.key)
                # The result now owns the lock, which the `finally` below must not release.
                held, descriptor = HeldShard(shard_dir, descriptor), -1
                return held
        finally:
            if descriptor >= 0:
                locks.release(descriptor)
        return None

    def _is_undamaged(self, shard: RemoteShard, lock: int) -> bool:
        """Whether the files are those that were compared, or have the right sha256 still; if not, the shard is removed.

        Args:
            lock: the descriptor of the shard's lock, which this process holds shared. The caller releases it.

        Raises:
            CacheError: a file differs, and another process is reading the shard.
        """
        directory = self._directory
        shard_dir, version = directory.shard(shard.key), directory.version(shard)
        if directory.record(shard.key).version == version:
            return True
        changed = next((file for file in shard.files if file_record(shard_dir / file.name).sha256 != file.sha256), None)
        if changed is None:  # touched, copied, or downloaded by a version of this package that recorded no times
            directory.record_version(shard.key, version)
            return True
        if not locks.take(lock, wait=False):  # exclusively: others may have mapped the files
            raise CacheError(
                f"{shard_dir / changed.name}: changed since it was downloaded (sha256), and another reader has it "
                "open; end all jobs that use this cache, then run the same command again"
            )
        _log.warning(
            "[Store] %s: changed since it was downloaded (sha256); downloading it again", shard_dir / changed.name
        )
        with storage_errors("removing a damaged shard", shard_dir):
            directory.set_aside(shard.key)
        return False

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
        directory = self._directory
        shard_dir, part = directory.shard(shard.key), directory.part(shard.key)
        with directory.if_free(shard.key) as free:
            # Not free means that another process downloads it, or reads it: then it is complete. If it is free, another
            # one may have completed it since the caller looked.
            if not free or self.has(shard):
                return self.has(shard)
            if shard_dir.is_dir():
                _log.warning("[Store] %s: a shard that has lost files; downloading it again", shard_dir)
                with storage_errors("removing what is left of a shard", shard_dir):
                    directory.set_aside(shard.key)
            if not make_room(directory, shard, self.max_bytes, self.retries.stall_seconds if wait else 0):
                return False
            try:
                self._complete(shard)
            except BaseException:  # Ctrl-C too must not leave part of a download on the disk
                shutil.rmtree(part, ignore_errors=True)
                raise
            directory.record_use(shard.key)
            return True

    def _complete(self, shard: RemoteShard) -> None:
        """Download the files of a part, and give it the name of a whole shard."""
        directory = self._directory
        shard_dir, part = directory.shard(shard.key), directory.part(shard.key)
        for file in shard.files:
            self._download(shard, file, part / file.name)
        with storage_errors("completing", shard_dir):
            part.rename(shard_dir)
        directory.record_version(shard.key, directory.version(shard))

    def _download(self, shard: RemoteShard, file: RemoteFileRecord, path: Path) -> None:
        """Download a file into its allocated one, and compare its sha256."""
        with storage_errors("writing", path):
            descriptor = os.open(path, os.O_WRONLY)

        def write(at: int, data: bytes) -> None:
            with storage_errors("writing", path):
                _write_all(descriptor, data, at)

        try:
            download(f"{shard.url}/{file.name}", file.bytes, file.sha256, write, self.retries)
            with storage_errors("writing", path):
                # Before the shard is renamed: otherwise, after a power failure, a complete name could have incomplete
                # files.
                os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _write_all(descriptor: int, data: bytes, at: int) -> None:
    view = memoryview(data)
    while view:  # one call may write less than all of it, for example at most 2 GiB on Linux
        written = os.pwrite(descriptor, view, at)
        view, at = view[written:], at + written
