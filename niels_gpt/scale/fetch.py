"""`ReadCache`: a local directory of fetched datasets; if it gets too large, the least recently used are deleted.

::

    folder/chats-3f2a9c41d0b7e852/    a dataset; its manifest gets its name after all other files
    folder/chats-3f2a9c41d0b7e852.lock

An entry is named by the hash of its manifest, so a dataset that was replaced at its URL becomes a new entry. Nothing in
a fetched manifest is trusted, see `storage.manifests.check_file_names`.

`storage/shard_cache.py` holds single shards of datasets that a loader reads from a store. Its entries are held by locks
while they are read; here they are not, because `open` returns a path, and a mapped file outlives its name.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path

from niels_gpt import ranges
from niels_gpt.errors import CacheError, UsageError, storage_errors
from niels_gpt.progress import SILENT, Progress
from niels_gpt.scale.publish import MANIFEST_NAMES
from niels_gpt.storage import locks
from niels_gpt.storage.files import sync_directory, write_atomic
from niels_gpt.storage.manifests import (
    Manifest,
    bytes_of,
    check_file_records,
    check_keys,
    check_manifest_hash,
    read_manifest,
)
from niels_gpt.storage.remote import copy_file, file_system, plain_name
from niels_gpt.storage.remote_manifests import find_manifest
from niels_gpt.storage.retries import Retries
from niels_gpt.storage.shard_cache_folder import size_of
from niels_gpt.storage.staging import rename_and_delete

MAX_BYTES = 100 << 30  # of a read cache, unless another limit is passed
ENTRY = r"(?s).+-[0-9a-f]{16}"
TRASH = rf"{ENTRY}\.[0-9a-f]{{32}}\.trash"  # as `rename_and_delete` names it


class ReadCache:
    """A directory of datasets fetched from elsewhere, of at most `max_bytes`.

    Several processes may share it: if two open the same dataset, it is fetched once. Files that a reader has mapped
    stay readable after an eviction; the system frees them after the last reader.

    Raises:
        UsageError: `max_bytes` out of range.
    """

    def __init__(self, folder: str | Path, *, max_bytes: int = MAX_BYTES, progress: Progress = SILENT) -> None:
        ranges.MAX_BYTES.check(max_bytes)
        self.folder, self._max_bytes, self._progress = Path(folder), max_bytes, progress

    def open(self, url: str) -> Path:
        """The local directory of the dataset at `url`, complete and with every file's checksum checked.

        A fetch that was cut off continues with the files that are missing; so does one whose files were deleted or cut
        short since, as systems do that clean /tmp.

        Raises:
            CacheError: no finished dataset at `url`. UsageError: it is larger than `max_bytes`.
            StorageError: network or disk refused, or a file arrived damaged. MissingExtra: no fsspec, or no s3fs.
        """
        # Names of files follow a slash, and in a bucket a name with two slashes is another one.
        url = url.rstrip("/")
        remote_manifest = find_manifest(url, MANIFEST_NAMES, Retries())
        if remote_manifest is None:
            raise CacheError(
                f"{url}: neither {' nor '.join(MANIFEST_NAMES)} exists, so this is not a finished dataset; publish it"
            )
        name, data = remote_manifest
        # The path in the store: unlike the URL it has no password, which must not become part of a name.
        store_path = file_system(url)[1]
        target = self.folder / f"{plain_name(store_path)}-{sha256(data).hexdigest()[:16]}"
        with storage_errors("creating the directory", target):
            target.parent.mkdir(parents=True, exist_ok=True)
        # Of two processes that open one dataset the second waits here, and then finds it complete.
        with _locked(target):
            # This class makes no links, and might write through one. A user who changes the directory at the same
            # moment is not stopped by this: the read cache must belong to its users.
            below = [Path(where, entry) for where, folders, files in os.walk(target) for entry in folders + files]
            for path in (target, *below):
                if path.is_symlink():
                    raise _planted(path)
            if not _is_complete(target, Path(store_path) / name, data):
                self._fetch(url, Path(store_path) / name, target, data)
            # The time of the last use, on the manifest: data files may be mapped by readers, and a time of access is
            # often not recorded at all (`noatime`). The file system's own resolution is coarser.
            now = time.time_ns()
            os.utime(target / name, ns=(now, now))
        return target

    def _fetch(self, url: str, manifest: Path, target: Path, data: bytes) -> None:
        with storage_errors("creating the directory", target):
            # It exists where an earlier fetch was cut off.
            target.mkdir(exist_ok=True)
        # The manifest gets its own name last, after every file it lists: an entry without it is a fetch that was cut
        # off, which the next `open` continues.
        wanted = target / f".{manifest.name}.wanted"
        write_atomic(wanted, data)
        files = _files_of(wanted, manifest)
        self._make_room(bytes_of(files), target)
        self._progress.begin(f"fetching {target.name}", total=bytes_of(files), unit="bytes")
        for file, record in files.items():
            copy_file(f"{url}/{file}", target / file, record, Retries(), self._progress)
        with storage_errors("completing", target):
            wanted.rename(target / manifest.name)
            sync_directory(target)

    def _make_room(self, needed: int, target: Path) -> None:
        """Evict datasets, the least recently used first, until `needed` bytes fit."""
        for trash in self._named(TRASH):  # of processes that were killed while deleting
            shutil.rmtree(trash, ignore_errors=True)
        if needed > self._max_bytes:
            raise UsageError(
                f"{target.name} has {needed:,} bytes, more than the {self._max_bytes:,} of the cache {self.folder}; "
                "allow more (max_bytes=, --max-bytes)"
            )
        # Only what has a lock file beside it: a directory of the user's may have a name like an entry's.
        others = [path for path in self._named(ENTRY) if path != target and _lock_path(path).is_file()]
        sizes = {entry: _bytes_below(entry) for entry in others}
        for entry in sorted(others, key=_last_use):
            if sum(sizes.values()) + needed <= self._max_bytes:
                return
            # Entries that another process holds stay, even if the directory is then larger than its limit.
            with _locked(entry, wait=False) as free:
                if free:  # not while another process fetches it
                    self._progress.note(f"{entry}: evicted, {sizes.pop(entry):,} bytes")
                    rename_and_delete(entry)

    def _named(self, pattern: str) -> list[Path]:
        """The directories whose names this class has given; other directories are never touched."""
        found = (path for path in self.folder.iterdir() if re.fullmatch(pattern, path.name))
        return sorted(path for path in found if path.is_dir() and not path.is_symlink())


def _is_complete(target: Path, manifest: Path, data: bytes) -> bool:
    """Whether an entry has this manifest, and all files that it lists have their sizes. Contents are not read."""
    path = target / manifest.name
    # All bytes are compared, because the name of the entry has only the first 64 bits of their hash.
    if not path.is_file() or path.read_bytes() != data:
        return False
    return all(size_of(target / file) == record["bytes"] for file, record in _files_of(path, manifest).items())


def _files_of(manifest: Path, where: Path) -> Manifest:
    """The checked list of files of a fetched manifest, which is not trusted."""
    found = read_manifest(manifest)
    check_keys(where, found, ["files"], "manifest")
    check_file_records(where, found)
    check_manifest_hash(where, found)
    return dict(found["files"])


def _last_use(entry: Path) -> int:
    """When an entry was last opened, in nanoseconds; 0 if it was never complete."""
    return max(status.st_mtime_ns if (status := _status(entry / name)) else 0 for name in MANIFEST_NAMES)


def _bytes_below(folder: Path) -> int:
    found = [_status(Path(where, name)) for where, _, names in os.walk(folder) for name in names]
    return sum(status.st_size for status in found if status)


def _status(path: Path) -> os.stat_result | None:
    """The status of a file; `None` if it does not exist any more, since other processes may evict at the same time."""
    with suppress(FileNotFoundError):
        return path.stat()
    return None


def _lock_path(target: Path) -> Path:
    return target.with_name(f"{target.name}.lock")


@contextmanager
def _locked(target: Path, *, wait: bool = True) -> Iterator[bool]:
    """Hold the lock of an entry for the block; yields false if it is taken and `wait` is false."""
    path = _lock_path(target)
    if path.is_symlink():
        raise _planted(path)
    with storage_errors("locking", path):
        descriptor = locks.open_lock_file(path)
    try:
        yield locks.take(descriptor, wait=wait)
    finally:
        locks.release(descriptor)


def _planted(path: Path) -> CacheError:
    return CacheError(
        f"{path}: a link in the read cache, which never has links. Remove it, or fetch to another directory (--to)"
    )
