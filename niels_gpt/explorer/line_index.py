"""An index of the rows of a chat file, built in the background: 8 bytes a row, whatever the size of the file.

JSON lines are read from the file itself. Files that cannot be read from the middle (compressed files, JSON arrays,
parquet, Arrow), and the files of a folder, are written once, row by row, to a temporary file of JSON lines.
"""

from __future__ import annotations

import json
import os
import tempfile
import threading
from bisect import bisect_right
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from niels_gpt.errors import NielsError
from niels_gpt.sources.inputs import Record, Rejected, existing_file, parse_line
from niels_gpt.sources.records import data_files, read_records

BLOCK_BYTES = 1 << 24
SPOOL_ROWS = 4096
_SPACE = np.frombuffer(b" \t\r\n\x0b\x0c", np.uint8)
Int64s = npt.NDArray[np.int64]


def _spool_file() -> IO[bytes]:
    """A temporary file without a name: the system removes it however the process ends."""
    return tempfile.TemporaryFile(prefix="niels-gpt-explore-")


class LineIndex:
    """The rows of a file by number, usable while the index is still being built.

    Blank lines are not rows, as in `read_records`. Every method may be called from any thread.

    Args:
        path: the file, or a folder of files; see `sources.records`.

    Raises:
        InputError: missing, a directory or empty.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.files = data_files(path) if path.is_dir() else (existing_file(path),)
        self.problem = ""
        self._starts = np.empty(0, np.int64)
        self._blank = np.empty(0, np.int64)
        self._rejected: dict[int, Rejected] = {}
        self._share = 0.0
        self._done = threading.Event()
        # Read by the background thread after each block, so that closing does not wait for a file of gigabytes.
        self._closing = False
        # Lines of plain files are read where they are. The rows of other files are written to a temporary file first.
        name = path.name
        plain = ".jsonl" in name or not name.endswith((".json", ".gz", ".zst", ".parquet", ".arrow"))
        self._in_place = plain and not name.endswith((".gz", ".zst")) and not path.is_dir()
        self._begins = [0]  # the first row of each file, as they are found
        self._file: IO[bytes] = self.path.open("rb") if self._in_place else _spool_file()
        self._reading = threading.Lock()  # all readers share the file's position
        self._thread = threading.Thread(target=self._find, name="explorer-lines", daemon=True)
        self._thread.start()

    def __len__(self) -> int:
        """How many rows have been found so far."""
        return len(self._starts)

    @property
    def share(self) -> float:
        """How much of the file has been read, 0 to 1."""
        return 1.0 if self._done.is_set() else self._share

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until all rows are found; False if `timeout` seconds pass first."""
        return self._done.wait(timeout)

    def close(self) -> None:
        """Stop the background thread and close the files."""
        self._closing = True
        self._thread.join()
        self._file.close()

    def where(self, row: int) -> str:
        """The place of a row as errors name it: `chats.jsonl:17`, lines counted from 1."""
        if not self._in_place:
            file = bisect_right(self._begins, row) - 1
            return f"{self.files[file]} row {row - self._begins[file]}"
        # Row numbers leave blank lines out, line numbers count them: the blank lines before this row are added.
        return f"{self.path}:{row + 1 + int(np.searchsorted(self._blank, self._starts[row]))}"

    def record(self, row: int) -> Record | Rejected:
        """A row as parsed JSON, or the reason why it cannot be parsed.

        Raises:
            IndexError: there is no such row, or it has not been found yet.
        """
        if not 0 <= row < len(self):
            raise IndexError(row)
        if row in self._rejected:
            return self._rejected[row]
        with self._reading:
            self._file.seek(int(self._starts[row]))
            line = self._file.readline()
        # A byte order mark may begin the file; JSON does not allow one.
        return parse_line(line.removeprefix(b"\xef\xbb\xbf") if row == 0 else line, self.where(row))

    def row_at(self, offset: int) -> int:
        """The row that contains a byte of the file."""
        # Rows that start at 0 4 9: bytes 4 to 8 are in row 1.
        return int(np.searchsorted(self._starts, offset, side="right")) - 1

    def row_from(self, offset: int, *, after: int) -> int:
        """The first row that starts at or after a byte, and in any case after row `after`."""
        return max(after + 1, int(np.searchsorted(self._starts, offset)))

    def start(self, row: int) -> int:
        """The first byte of a row; for one past the last row, the end of the file so far."""
        return int(self._starts[row]) if row < len(self) else self._size()

    def _size(self) -> int:
        with self._reading:
            # The end is asked of the system, which does not know what Python still holds.
            self._file.flush()
            return self._file.seek(0, 2)

    def read(self, first: int, stop: int) -> bytes:
        """The bytes of rows first..stop - 1, as they are in the file."""
        start, end = self.start(first), self.start(stop)
        with self._reading:
            self._file.flush()
        # Without a buffer of Python's between: this reads gigabytes.
        return os.pread(self._file.fileno(), end - start, start)

    def split(self, first: int, stop: int) -> Iterator[bytes]:
        """The rows first..stop - 1 one by one, each as it is in the file; read at once."""
        begin, block = self.start(first), self.read(first, stop)
        edges = [*(self._starts[first:stop] - begin).tolist(), len(block)]
        return (block[start:end] for start, end in pairwise(edges))

    def _find(self) -> None:
        try:
            for found in self._in_file() if self._in_place else self._spooled():
                # A new array each time: other threads may hold the old one, and assignment is atomic.
                self._starts = np.concatenate((self._starts, found))
                if self._closing:
                    return
        # Nobody waits for this thread, so an error would be lost; the page shows it instead.
        except (NielsError, OSError) as error:
            self.problem = str(error)
        finally:
            self._done.set()

    def _in_file(self) -> Iterator[Int64s]:
        """The starts of rows, block by block.

        ::

            bytes     a a \\n \\n b b \\n       lines start at 0 3 4; the one at 3 begins with a newline: blank

        A line that would start exactly at the end of a block belongs to the next block (`fresh`), if there is one.
        """
        size, base, fresh = self.path.stat().st_size, 0, True
        with self.path.open("rb") as file:
            while block := file.read(BLOCK_BYTES):
                held = np.frombuffer(block, np.uint8)
                # 10 is the newline; a line starts after it.
                starts = np.flatnonzero(held == 10) + 1
                starts = np.concatenate(([0], starts)) if fresh else starts
                fresh = bool(starts.size and starts[-1] == len(held))
                starts = starts[:-1] if fresh else starts
                # Only lines that begin with white space may be blank; these few are read.
                blank = np.array([at for at in starts[np.isin(held[starts], _SPACE)] if self._blank_at(base + int(at))])
                if blank.size:
                    self._blank = np.concatenate((self._blank, blank.astype(np.int64) + base))
                    starts = starts[~np.isin(starts, blank)]
                base += len(block)
                self._share = base / size
                yield starts.astype(np.int64) + (base - len(block))

    def _blank_at(self, offset: int) -> bool:
        with self._reading:
            self._file.seek(offset)
            return not self._file.readline().strip()

    def _spooled(self) -> Iterator[Int64s]:
        """The starts of rows in the temporary file, as they are written there."""
        starts: list[int] = []
        at = 0
        for number, record in enumerate(self._records()):
            value: Any = None
            if isinstance(record, Rejected):
                self._rejected[number] = record
            else:
                value = record.value
            # Lone surrogates of the source must survive, so that checks of the row report them.
            line = json.dumps(value, ensure_ascii=False, default=str).encode("utf-8", "surrogatepass") + b"\n"
            with self._reading:
                self._file.seek(at)
                self._file.write(line)
            starts.append(at)
            at += len(line)
            if len(starts) == SPOOL_ROWS:
                yield np.array(starts, np.int64)
                starts = []
        yield np.array(starts, np.int64)

    def _records(self) -> Iterator[Record | Rejected]:
        number = 0
        for file in self.files:
            # A file without rows begins where the next one does.
            self._begins = [*self._begins[: self.files.index(file)], number]
            for record in read_records(file):
                yield record
                number += 1
