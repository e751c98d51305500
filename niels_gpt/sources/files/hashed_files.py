"""The hashes of a source's files, and the check that each file still had those bytes when it was read.

A manifest records the hashes of the files that a dataset was made from. They are computed before the rows are read, so
a file that another program changes in between would give rows that do not belong to the recorded hash::

    fingerprint([chats.jsonl])     sha256 3f1c..., version "5120 bytes, modified at t1"
    checked(rows, [chats.jsonl])   all rows, then: is the version the same? If not, is the sha256?
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from niels_gpt.progress import SILENT, Progress
from niels_gpt.sources.files.inputs import existing_file, reading, size_of
from niels_gpt.store.checksums import file_record
from niels_gpt.store.remote import AnyFile, ChangedWhileRead, RemoteFile

Row = TypeVar("Row")


@dataclass
class HashedFiles:
    """The hashes of some files, each computed once, and their versions at that time.

    A version is what the file system reports without reading the file: on this machine size, times and inode, of a
    store for example the ETag. If it is another one, the file is hashed again: a file that was only copied back or
    touched has not changed.

    It pickles, so that workers compare with the hashes of the process that started them.
    """

    _known: dict[AnyFile, tuple[dict[str, Any], str]] = field(default_factory=dict)  # record and version of each file
    _unfinished: dict[AnyFile, None] = field(default_factory=dict)  # files whose rows are being read

    def fingerprint(self, files: Iterable[AnyFile], progress: Progress = SILENT) -> list[dict[str, Any]]:
        """Name, size in bytes and sha256 of each file, as manifests record inputs.

        Each file is read once, except for files of a hub's commit, whose size and hash the hub records. A second call
        returns the hashes of the first, because an earlier step may have used them.

        Raises:
            ChangedWhileRead: a file has changed since the first call. The next call computes its hash anew.
            InputError: a file of a hub's commit is missing or empty. StorageError: a file cannot be read.
        """
        listed = list(files)
        every = dict.fromkeys(listed)
        for file in every:
            if file in self._known:
                try:
                    self._check(file)
                except ChangedWhileRead:
                    # Forgotten, so that a caller who tries again gets the hash of what is there now.
                    del self._known[file]
                    raise
        new = [file for file in every if file not in self._known]
        if new:
            progress.begin("hashing the input", total=sum(map(size_of, new)), unit="bytes")
        for file in new:
            version = version_of(file)  # before the bytes: a change while they are hashed must also be noticed
            self._known[file] = _fingerprint(file, progress), version
        return [dict(self._known[file][0]) for file in listed]

    def checked(self, rows: Iterable[Row], files: Sequence[AnyFile]) -> Iterator[Row]:
        """The rows, which are read from these files; after the last one, `check` of the files."""
        # Noted before the first row: a consumer that stops early never comes to the line after them.
        self._unfinished.update(dict.fromkeys(files))
        yield from rows
        self.check(files)

    def check(self, files: Iterable[AnyFile]) -> None:
        """Refuse files that have other bytes than those that were hashed; files that were not hashed pass.

        Raises:
            ChangedWhileRead: a file has changed. StorageError: it cannot be read.
        """
        for file in files:
            self._check(file)
            self._unfinished.pop(file, None)

    def check_unfinished(self) -> None:
        """`check` of the files of which not all rows were read, because a build needed no more.

        Raises:
            ChangedWhileRead, StorageError: as `check`.
        """
        self.check(list(self._unfinished))

    def _check(self, file: AnyFile) -> None:
        # Another version does not mean other bytes: the file may have been copied back or touched. Its hash decides.
        before, version = self._known.get(file, ({}, ""))
        if not before or (now := version_of(file)) == version:
            return
        found = _fingerprint(file, SILENT)
        if found != before:
            raise ChangedWhileRead(
                f"{file}: changed after its hash was computed (sha256 {before['sha256'][:12]}, {before['bytes']:,} "
                f"bytes; now {found['sha256'][:12]}, {found['bytes']:,} bytes), so its rows may not be those that the "
                "manifest would name; leave files in place while they are read, and run the same command again (in "
                "Python, make a new source)"
            )
        self._known[file] = before, now


def version_of(file: AnyFile) -> str:
    """What the file system reports of a file's contents without reading them, see `HashedFiles`.

    Raises:
        StorageError: the file is missing, or the store cannot be reached.
    """
    if isinstance(file, RemoteFile):
        return file.version()
    with reading(file):
        found = file.stat()
    return f"{found.st_size} {found.st_mtime_ns} {found.st_ctime_ns} {found.st_ino}"


def _fingerprint(file: AnyFile, progress: Progress) -> dict[str, Any]:
    if isinstance(file, RemoteFile) and file.is_immutable:
        existing_file(file)
        if (sha256 := file.known_sha256()) is not None:
            progress.advance(size_of(file))
            return {"name": file.name, "bytes": size_of(file), "sha256": sha256}
    record = file_record(file, progress)
    return {"name": file.name, "bytes": record.bytes, "sha256": record.sha256}
