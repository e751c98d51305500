"""One local file -> one name at a store. The name appears when the whole file has arrived and was what it should be."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

from niels_gpt.errors import DataError, storage_errors
from niels_gpt.files import create_whole, sync_directory, write_atomic
from niels_gpt.progress import Progress
from niels_gpt.remote import READ_BYTES

PART_BYTES = 64 << 20
MAX_PARTS = 10_000  # of a multipart upload, at S3 and at those who speak its language


@dataclass(frozen=True)
class Outgoing:
    """A file that is to be uploaded.

    Attributes:
        size, sha256: what the manifest says of it.
    """

    file: Path
    size: int
    sha256: str

    def chunks(self, size: int) -> Iterator[bytes]:
        """Its bytes, `size` at a time; the last ones may be fewer.

        Raises:
            DataError: at the end, if they were not what the manifest says. StorageError: the disk refused.
        """
        seen = sha256()
        with storage_errors("reading", self.file), self.file.open("rb") as source:
            while chunk := source.read(size):
                seen.update(chunk)
                yield chunk
        if seen.hexdigest() != self.sha256:
            raise DataError(f"{self.file}: not what was written (sha256 differs); see `verify`, and build it again")


def part_size(size: int, least: int) -> int:
    """Bytes of a part: `least`, or more for a file that would have more than `MAX_PARTS` of them."""
    return max(least, -(-size // MAX_PARTS))


def is_local(fs: Any) -> bool:
    """Is this fsspec's file system of local paths?"""
    return "file" in ((fs.protocol,) if isinstance(fs.protocol, str) else fs.protocol)


def put_small(fs: Any, path: str, data: bytes) -> None:
    """Write a small file whole. Stores do so by themselves; fsspec's local files have their name before their bytes."""
    if is_local(fs):
        write_atomic(Path(path), data)
    else:
        fs.pipe_file(path, data)


def create_small(fs: Any, path: str, data: bytes) -> bool:
    """The same, unless there is a file of this name (False), as far as a store can tell."""
    if is_local(fs):
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        return create_whole(Path(path), data)
    try:
        fs.pipe_file(path, data, mode="create")
    except FileExistsError:
        return False
    return True


class Uploader(Protocol):
    """A way to a store."""

    def send(self, out: Outgoing, path: str) -> int:
        """Upload a file; returns how many of its bytes an earlier run had sent."""


class Renames:
    """To a local directory: written aside there and renamed.

    fsspec would write to the system's temporary directory and copy from there to the name itself, which a full disk
    leaves short.
    """

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def send(self, out: Outgoing, path: str) -> int:
        """Copy a file; 0."""
        target = Path(path)
        aside = target.with_name(f".{target.name}.part")
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with aside.open("wb") as file:
                for chunk in out.chunks(READ_BYTES):
                    file.write(chunk)
                    self._progress.advance(len(chunk))
                file.flush()
                os.fsync(file.fileno())
            aside.replace(target)
            sync_directory(target.parent)
        finally:
            aside.unlink(missing_ok=True)
        return 0


class Streams:
    """Through fsspec's own files, which any store has; an upload that was cut off begins anew."""

    def __init__(self, fs: Any, part_bytes: int, progress: Progress) -> None:
        self._fs, self._part_bytes, self._progress = fs, part_bytes, progress

    def send(self, out: Outgoing, path: str) -> int:
        """Upload a file; 0."""
        target = self._fs.open(path, "wb", block_size=part_size(out.size, self._part_bytes), autocommit=False)
        try:
            for chunk in out.chunks(READ_BYTES):
                target.write(chunk)
                self._progress.advance(len(chunk))
            target.close()
            target.commit()
        except BaseException:  # an interrupt too: closing it would leave a short file under the right name
            target.discard()
            raise
        return 0
