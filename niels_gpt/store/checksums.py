"""The size and sha256 of files, as manifests record them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import IO, Any, Literal, Protocol

from niels_gpt.errors import storage_errors
from niels_gpt.progress import SILENT, Progress

COPY_BYTES = 1 << 20


@dataclass(frozen=True)
class FileRecord:
    """The entry of one file in a manifest.

    Attributes:
        bytes: size of the file.
        sha256: 64 hex digits.
    """

    bytes: int
    sha256: str

    def to_json(self) -> dict[str, Any]:
        """The record as a JSON object, as it is in `meta.json`."""
        return {"bytes": self.bytes, "sha256": self.sha256}


class Readable(Protocol):
    """A file that can be opened: a `Path` or a `RemoteFile`."""

    def open(self, mode: Literal["rb"]) -> IO[bytes]: ...


def file_record(path: Readable, progress: Progress = SILENT) -> FileRecord:
    """Read a whole file and return its record.

    Args:
        progress: its phase counts bytes.

    Raises:
        StorageError: the file cannot be read.
    """
    size, digest = 0, hashlib.sha256()
    with storage_errors("reading", str(path)), path.open("rb") as file:
        while chunk := file.read(COPY_BYTES):
            digest.update(chunk)
            size += len(chunk)
            progress.advance(len(chunk))
    return FileRecord(size, digest.hexdigest())
