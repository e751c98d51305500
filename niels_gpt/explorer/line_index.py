"""An index of the rows of a chat file, built in the background: 8 bytes a row, whatever the size of the file.

JSON lines are read from the file itself. What cannot be read from the middle (compressed files, JSON arrays, parquet,
Arrow, the files of a folder, remote files, datasets of the hub) is written once to a temporary file: of each row a line
with its place, as its reader names it, and its JSON.
"""

from __future__ import annotations

import json
import os
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
import numpy.typing as npt

from niels_gpt.errors import InputError, NielsError
from niels_gpt.sources.files.formats import Name
from niels_gpt.sources.files.inputs import ReadProgress, Record, Rejected, parse_line
from niels_gpt.sources.files.listing import ROW_NAMES, list_files
from niels_gpt.sources.files.records import read_records, row_format_of
from niels_gpt.store.remote import address

BLOCK_BYTES = 1 << 24  # of a file, searched for line ends at once
_END_BYTES = 4096  # at the beginning and the end of a file, which show whether it was appended to or replaced
SPOOL_ROWS = 4096  # written to the temporary file before the page sees them
_SPACE = np.frombuffer(b" \t\r\n\x0b\x0c", np.uint8)
Int64s = npt.NDArray[np.int64]


class RowReader(Protocol):
    """What has rows, but no path on this machine."""

    def records(self) -> Iterator[Record | Rejected]:
        """The rows, from the first one on."""


def _spool_file() -> IO[bytes]:
    """A temporary file without a name: the system removes it however the process ends."""
    return tempfile.TemporaryFile(prefix="niels-gpt-explore-")


@dataclass(frozen=True)
class _Version:
    """A file that is read in place, as it was at one moment: its size, when it was written, its first and last bytes.

    Attributes:
        ends: the first and the last `_END_BYTES` of `size` bytes.
    """

    size: int
    written: int
    ends: tuple[bytes, bytes]

    @classmethod
    def of(cls, file: IO[bytes], size: int | None = None) -> _Version:
        """The version of a file, or of its first `size` bytes."""
        found = os.fstat(file.fileno())
        end = found.st_size if size is None else size
        ends = (0, min(end, _END_BYTES)), (max(0, end - _END_BYTES), min(end, _END_BYTES))
        first, last = (os.pread(file.fileno(), length, start) for start, length in ends)
        return cls(found.st_size, found.st_mtime_ns, (first, last))

    def still_holds(self, file: IO[bytes]) -> bool:
        """Whether the file is as it was, or has only become longer: its writer may still be appending rows."""
        now = os.fstat(file.fileno())
        if (now.st_size, now.st_mtime_ns) == (self.size, self.written):
            return True
        return now.st_size > self.size and _Version.of(file, self.size).ends == self.ends


class LineIndex:
    """The rows of a file by number, usable while the index is still being built.

    Blank lines are not rows, as in `read_records`. Every method may be called from any thread.

    Args:
        path: the file, or a folder of files; see `sources.files.records`.
        opened: what has no path here: its rows are read instead.

    Raises:
        InputError: missing, a directory or empty.
    """

    def __init__(self, path: Path, opened: RowReader | None = None) -> None:
        self.path, self._opened = path, opened
        if opened is not None:
            self.files: tuple[Path, ...] = ()
        else:
            self.files = tuple(Path(address(file)) for file in list_files([path], ROW_NAMES).taken)
        self.problem = ""
        self._starts = np.empty(0, np.int64)
        self._blank = np.empty(0, np.int64)
        self._rejected: dict[int, Rejected] = {}
        self._share = 0.0
        self._done = threading.Event()
        # Read by the background thread after each block, so that closing does not wait for a file of gigabytes.
        self._closing = False
        # Lines of plain files are read where they are. The rows of other files are written to a temporary file first.
        one = self.files[0] if len(self.files) == 1 and not path.is_dir() else None
        is_plain = one is not None and not Name.of(one.name).compression and row_format_of(one) == "lines"
        self._in_place = opened is None and is_plain
        self._file: IO[bytes] = self.path.open("rb") if self._in_place else _spool_file()
        self._version = _Version.of(self._file) if self._in_place else None
        self._read = ReadProgress()
        self._reading = threading.Lock()  # all readers share the file's position
        self._thread = threading.Thread(target=self._find, name="explorer-lines", daemon=True)
        self._thread.start()

    def __len__(self) -> int:
        """How many rows have been found so far."""
        return len(self._starts)

    @property
    def share(self) -> float:
        """How much has been read, 0 to 1; 1 only once all rows are found."""
        # A compressed file is read to its end before its last rows are written.
        return 1.0 if self._done.is_set() else min(self._share or self._read.fraction() or 0.0, 0.99)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until all rows are found; False if `timeout` seconds pass first."""
        return self._done.wait(timeout)

    def close(self) -> None:
        """Stop the background thread and close the files."""
        self._closing = True
        self._thread.join()
        self._file.close()

    def record(self, row: int) -> Record | Rejected:
        """A row as parsed JSON, or the reason why it cannot be parsed.

        Raises:
            IndexError: there is no such row, or it has not been found yet.
            InputError: the file was rewritten since it was opened.
        """
        if not 0 <= row < len(self):
            raise IndexError(row)
        if row in self._rejected:
            return self._rejected[row]
        where, line = self.line(row)
        # A byte order mark may begin the file; JSON does not allow one.
        return parse_line(line.removeprefix(b"\xef\xbb\xbf") if row == 0 else line, where)

    def line(self, row: int) -> tuple[str, bytes]:
        """The place of a row as errors name it (`chats.jsonl:17`, lines counted from 1), and its bytes in the file.

        Raises:
            InputError: the file was rewritten since it was opened.
        """
        # What is now at the places where rows were found would be shown as them.
        if self._version is not None and not self._version.still_holds(self._file):
            raise InputError(
                f"{self.path}: written to since it was opened, so its rows are no longer where they were; end the "
                "explorer and start it again"
            )
        with self._reading:
            self._file.seek(int(self._starts[row]))
            if not self._in_place:
                return json.loads(self._file.readline()), self._file.readline()
            line = self._file.readline()
        # Row numbers leave blank lines out, line numbers count them: the blank lines before this row are added.
        return f"{self.path}:{row + 1 + int(np.searchsorted(self._blank, self._starts[row]))}", line

    def _find(self) -> None:
        try:
            for found in self._in_file() if self._in_place else self._spooled():
                # A new array each time: other threads may hold the old one, and assignment is atomic.
                self._starts = np.concatenate((self._starts, found))
                if self._closing:
                    return
        # No other thread waits for this one, so an error would be lost; the page shows it instead.
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
        self._read.begin(self.files)  # another reader's rows have no files, and the share that is read stays unknown
        in_files = (record for file in self.files for record in read_records(file, self._read))
        for number, record in enumerate(in_files if self._opened is None else self._opened.records()):
            # A rejected row is written too, as null, so that row numbers and lines stay the same.
            value: Any = None
            if isinstance(record, Rejected):
                self._rejected[number] = record
            else:
                value = record.value
            # Lone surrogates of the source must survive, so that checks of the row report them.
            line = json.dumps(value, ensure_ascii=False, default=str).encode("utf-8", "surrogatepass")
            with self._reading:
                self._file.seek(at)
                written = self._file.write(json.dumps(record.where).encode() + b"\n" + line + b"\n")
            starts.append(at)
            at += written
            if len(starts) == SPOOL_ROWS:
                yield np.array(starts, np.int64)
                starts = []
        yield np.array(starts, np.int64)
