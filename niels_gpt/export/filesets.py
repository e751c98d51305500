"""The files of one split under construction, and numbers that wait until they can be written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from niels_gpt.checksums import FileRecord
from niels_gpt.errors import storage_errors
from niels_gpt.export.rows import Int64s
from niels_gpt.files import HashedWriter

CHUNK = 1 << 17


class FileSet:
    """Opens files below a directory by name, and remembers what they became."""

    def __init__(self, root: Path) -> None:
        self.files: dict[str, FileRecord] = {}
        self._root = root
        self._open: dict[str, HashedWriter] = {}

    def open(self, name: str) -> HashedWriter:
        """A new file; directories on the way are made."""
        path = self._root / name
        with storage_errors("creating the directory", path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
        self._open[name] = HashedWriter(path)
        return self._open[name]

    def finish(self) -> None:
        """Close all files that are open."""
        for name, file in self._open.items():
            self.files[name] = file.close()
        self._open = {}

    def abandon(self) -> None:
        """Let go of unfinished files; harmless after `finish`."""
        for file in self._open.values():
            file.abandon()


class Spool:
    """int64 numbers that wait on the disk, for formats whose headers say how many follow."""

    def __init__(self, path: Path) -> None:
        self.n = 0
        with storage_errors("creating the directory", path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
        self._file = HashedWriter(path)

    def write(self, numbers: Int64s) -> None:
        """Append numbers."""
        self._file.write(numbers.astype(np.int64, copy=False))
        self.n += len(numbers)

    def close(self) -> None:
        """No more will come."""
        self._file.close()

    def chunks(self) -> Iterator[Int64s]:
        """All numbers in order, some at a time; as often as asked, after `close`."""
        with self._file.path.open("rb") as file:
            while data := file.read(8 * CHUNK):
                yield np.frombuffer(data, dtype=np.int64)

    def remove(self) -> None:
        """Delete the file; harmless at any time."""
        self._file.abandon()
        self._file.path.unlink(missing_ok=True)
