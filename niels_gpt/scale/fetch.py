"""Remote caches and episodes on the local disk, as readers open them; the least recently used go when room is short.

::

    folder/chats-3f2a9c41d0b7e852/    a dataset, complete when its manifest is there
    folder/chats-3f2a9c41d0b7e852.lock

Each dataset is named by its manifest's hash, so a dataset that was replaced at its URL is another one here.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from niels_gpt import ranges
from niels_gpt.checksums import file_record
from niels_gpt.errors import CacheError, StorageError, UsageError, storage_errors
from niels_gpt.fields import FILE, check_parts
from niels_gpt.files import HashedWriter, sync_directory, write_atomic
from niels_gpt.manifests import Manifest, check_keys, check_names, read_manifest
from niels_gpt.progress import SILENT, Progress
from niels_gpt.remote import READ_BYTES, file_system, remote_errors, size_at
from niels_gpt.scale.publish import MANIFEST_NAMES
from niels_gpt.scale.units import forget

MAX_BYTES = 100 << 30
ENTRY = r"(?s).+-[0-9a-f]{16}"
TRASH = rf"{ENTRY}\.[0-9a-f]{{32}}\.trash"  # as `forget` names it


class ReadCache:
    """A directory of datasets fetched from elsewhere, of at most `max_bytes`.

    Several processes may share it: two that want the same dataset fetch it once. What is mapped stays readable when it
    is evicted; the system frees it after the last reader.

    Raises:
        UsageError: no room at all.
    """

    def __init__(self, folder: str | Path, *, max_bytes: int = MAX_BYTES, progress: Progress = SILENT) -> None:
        ranges.MAX_BYTES.check(max_bytes)
        self.folder, self._max_bytes, self._progress = Path(folder), max_bytes, progress

    def open(self, url: str) -> Path:
        """The local directory of the dataset at `url`, complete and with every file's checksum checked.

        A fetch that was cut off goes on with the files that are missing.

        Raises:
            CacheError: no finished dataset there. UsageError: larger than the whole cache.
            StorageError: network or disk refused, or a file arrived damaged. MissingExtra: no fsspec, or no s3fs.
        """
        fs, root = file_system(url)
        name, data = _remote_manifest(fs, root, url)
        place = self.folder / f"{Path(root).name}-{sha256(data).hexdigest()[:16]}"
        with storage_errors("creating the directory", place):
            place.parent.mkdir(parents=True, exist_ok=True)
        with _locked(place):
            if not (place / name).is_file():
                self._fetch(fs, root, place, name, data)
            now = time.time_ns()  # finer than what the system notes by itself
            os.utime(place / name, ns=(now, now))
        return place

    def _fetch(self, fs: Any, root: str, place: Path, name: str, data: bytes) -> None:
        with storage_errors("creating the directory", place):
            place.mkdir(exist_ok=True)
        write_atomic(place / f".{name}.wanted", data)
        files = _files_of(place / f".{name}.wanted", Path(root) / name)
        self._make_room(sum(record["bytes"] for record in files.values()), place)
        for file, record in files.items():
            _download(fs, f"{root}/{file}", place / file, record, self._progress)
        with storage_errors("completing", place):
            (place / f".{name}.wanted").rename(place / name)
            sync_directory(place)

    def _make_room(self, needed: int, place: Path) -> None:
        """Evict datasets, the least recently used first, until `needed` bytes fit."""
        for trash in self._named(TRASH):  # what a killed process had begun to delete
            shutil.rmtree(trash, ignore_errors=True)
        if needed > self._max_bytes:
            raise UsageError(
                f"{place.name} has {needed:,} bytes, the cache {self.folder} room for {self._max_bytes:,}; allow more "
                "(max_bytes=, --max-bytes)"
            )
        others = [entry for entry in self._entries() if entry != place]
        held = {entry: _bytes_below(entry) for entry in others}
        for entry in sorted(others, key=_last_use):
            if sum(held.values()) + needed <= self._max_bytes:
                return
            with _locked(entry, wait=False) as free:
                if free:  # else somebody is fetching it right now
                    self._progress.note(f"{entry}: evicted, {held.pop(entry):,} bytes")
                    forget(entry)

    def _entries(self) -> list[Path]:
        return [path for path in self._named(ENTRY) if _lock_path(path).is_file()]

    def _named(self, pattern: str) -> list[Path]:
        """Directories of ours; a person may have put others here, which are never touched."""
        return sorted(path for path in self.folder.iterdir() if re.fullmatch(pattern, path.name) and path.is_dir())


def _remote_manifest(fs: Any, root: str, url: str) -> tuple[str, bytes]:
    for name in MANIFEST_NAMES:
        if size_at(fs, f"{root}/{name}") is not None:
            with remote_errors("reading", f"{url}/{name}"):
                return name, fs.cat_file(f"{root}/{name}")
    raise CacheError(f"{url}: neither {' nor '.join(MANIFEST_NAMES)} there, so this is no finished dataset; publish it")


def _files_of(manifest: Path, where: Path) -> Manifest:
    """What a manifest from elsewhere lists; nothing in it is trusted."""
    found = read_manifest(manifest)
    check_keys(where, found, ["files"], "manifest")
    check_parts(where, found, "files", FILE)
    check_names(where, found["files"])
    return dict(found["files"])


def _download(fs: Any, path: str, file: Path, record: Manifest, progress: Progress) -> None:
    if file.is_file() and file_record(file).sha256 == record["sha256"]:
        return  # fetched by a run that was cut off
    progress.begin(file.name, total=record["bytes"], unit="bytes")
    aside = file.with_name(f".{file.name}.part")
    with storage_errors("writing", file):
        file.parent.mkdir(parents=True, exist_ok=True)
        aside.unlink(missing_ok=True)
    writer = HashedWriter(aside)
    try:
        with remote_errors("reading", path), _opened(fs, path) as source:
            while chunk := source.read(READ_BYTES):
                writer.write(chunk)
                progress.advance(len(chunk))
        if writer.close().sha256 != record["sha256"]:
            raise StorageError(f"{path}: not what its manifest says (sha256 differs); publish it again")
        with storage_errors("renaming into place", file):
            aside.replace(file)
            sync_directory(file.parent)
    finally:
        writer.abandon()
        aside.unlink(missing_ok=True)


def _opened(fs: Any, path: str) -> Any:
    try:
        return fs.open(path, "rb", cache_type="none")
    except FileNotFoundError as error:
        raise CacheError(f"{path}: missing although its manifest lists it; publish it again") from error


def _last_use(entry: Path) -> int:
    """When an entry was last opened, by this machine's clock; 0 if it was never complete."""
    return max(status.st_mtime_ns if (status := _status(entry / name)) else 0 for name in MANIFEST_NAMES)


def _bytes_below(folder: Path) -> int:
    found = [_status(Path(where, name)) for where, _, names in os.walk(folder) for name in names]
    return sum(status.st_size for status in found if status)


def _status(path: Path) -> os.stat_result | None:
    """`None` if it is not there, or no more: other processes fetch and evict at the same time."""
    with suppress(FileNotFoundError):
        return path.stat()
    return None


def _lock_path(place: Path) -> Path:
    return place.with_name(f"{place.name}.lock")


@contextmanager
def _locked(place: Path, *, wait: bool = True) -> Iterator[bool]:
    """Hold the lock of an entry, which ends with the process; false if it is taken and we do not wait."""
    with _lock_path(place).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        yield True
