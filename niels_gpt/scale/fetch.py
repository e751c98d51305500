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
from pathlib import Path, PurePosixPath
from typing import Any

from niels_gpt import ranges
from niels_gpt.checksums import file_record
from niels_gpt.errors import CacheError, StorageError, UsageError, storage_errors, without_passwords
from niels_gpt.files import HashedWriter, sync_directory, write_atomic
from niels_gpt.manifests import Manifest, check_keys, check_listed, check_seal, read_manifest
from niels_gpt.progress import SILENT, Progress
from niels_gpt.remote import READ_BYTES, file_system, remote_errors, size_at
from niels_gpt.scale.publish import MANIFEST_NAMES
from niels_gpt.scale.units import forget

MAX_BYTES = 100 << 30
MOST_MANIFEST_BYTES = 512 << 20
MOST_NAME = 100  # characters of an entry's name that come from the URL
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
        place = self.folder / f"{_plain_name(root)}-{sha256(data).hexdigest()[:16]}"
        with storage_errors("creating the directory", place):
            place.parent.mkdir(parents=True, exist_ok=True)
        with _locked(place):
            _refuse_links(place)
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
        found = (path for path in self.folder.iterdir() if re.fullmatch(pattern, path.name))
        return sorted(path for path in found if path.is_dir() and not path.is_symlink())


def _plain_name(root: str) -> str:
    """The last part of a remote path as the beginning of a directory's name."""
    name = re.sub(r"[^\w.+=@-]", "_", PurePosixPath(without_passwords(root)).name)
    return name.lstrip(".")[:MOST_NAME] or "dataset"


def _refuse_links(place: Path) -> None:
    """Raise `CacheError` for a link in an entry or in its place: we make none, and would read or write through it.

    Who can write to the directory at the same moment can still deceive; the read cache belongs to its users.
    """
    below = [Path(where, name) for where, folders, files in os.walk(place) for name in folders + files]
    for path in (place, *below):
        if path.is_symlink():
            raise _planted(path)


def _remote_manifest(fs: Any, root: str, url: str) -> tuple[str, bytes]:
    for name in MANIFEST_NAMES:
        size = size_at(fs, f"{root}/{name}")
        if size is not None and size > MOST_MANIFEST_BYTES:
            raise CacheError(
                f"{url}/{name}: {size:,} bytes; expected a manifest of at most {MOST_MANIFEST_BYTES:,}. "
                "Do not trust this dataset"
            )
        if size is not None:
            with remote_errors("reading", f"{url}/{name}"), fs.open(f"{root}/{name}", "rb", cache_type="none") as file:
                return name, bytes(file.read(MOST_MANIFEST_BYTES))
    raise CacheError(f"{url}: neither {' nor '.join(MANIFEST_NAMES)} there, so this is no finished dataset; publish it")


def _files_of(manifest: Path, where: Path) -> Manifest:
    """What a manifest from elsewhere lists; nothing in it is trusted."""
    found = read_manifest(manifest)
    check_keys(where, found, ["files"], "manifest")
    check_listed(where, found)
    check_seal(where, found)
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
            for chunk in _at_most(source, record["bytes"], path):
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


def _at_most(source: Any, size: int, path: str) -> Iterator[bytes]:
    """The bytes of a file; raises `StorageError` as soon as it has more than its manifest says, so no disk fills up."""
    left = size
    while chunk := source.read(min(READ_BYTES, left + 1)):
        if len(chunk) > left:
            raise StorageError(f"{path}: more than the {size:,} bytes that its manifest says; publish it again")
        left -= len(chunk)
        yield chunk


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
    path = _lock_path(place)
    if path.is_symlink():
        raise _planted(path)
    with storage_errors("locking", path):
        # Not cut to nothing, and no link is followed: it could point at any file of the user.
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    try:
        yield _flock(descriptor, wait)
    finally:
        os.close(descriptor)


def _flock(descriptor: int, wait: bool) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    return True


def _planted(path: Path) -> CacheError:
    return CacheError(
        f"{path}: a link in the read cache, which holds none; somebody else made it. Remove it, or fetch to another "
        "directory (--to)"
    )
