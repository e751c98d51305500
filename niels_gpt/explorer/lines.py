"""Where the rows of a file begin, found once in the background: a million rows are eight megabytes, not the file.

JSON lines are read where they lie. What cannot be read at any row (packed files, arrays, parquet) is written once, row
by row, to a temporary file of JSON lines.
"""

from __future__ import annotations

import json
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from niels_gpt.errors import NielsError
from niels_gpt.inputs import Record, Rejected, parse_line, the_file
from niels_gpt.sources.records import read_records

BLOCK_BYTES = 1 << 24
SPOOL_ROWS = 4096
_SPACE = np.frombuffer(b" \t\r\n\x0b\x0c", np.uint8)
Int64s = npt.NDArray[np.int64]


def _spool_file() -> IO[bytes]:
    """It has no name, so nothing remains of it however the process ends."""
    return tempfile.TemporaryFile(prefix="niels-gpt-explore-")


class Lines:
    """The rows of a file by number, while they are still being found.

    Blank lines are no rows, as `read_records` has it. Every method may be called from any thread.

    Args:
        path: the file; see `sources.records`.

    Raises:
        InputError: missing, a directory or empty.
    """

    def __init__(self, path: Path) -> None:
        self.path = the_file(path)
        self.problem = ""
        self._starts = np.empty(0, np.int64)
        self._blank = np.empty(0, np.int64)
        self._rejected: dict[int, Rejected] = {}
        self._share = 0.0
        self._done = threading.Event()
        self._closing = False
        plain = ".jsonl" in path.name or not path.name.endswith((".json", ".gz", ".zst", ".parquet"))
        self._in_place = plain and not path.name.endswith((".gz", ".zst"))
        self._file: IO[bytes] = self.path.open("rb") if self._in_place else _spool_file()
        self._reading = threading.Lock()
        self._thread = threading.Thread(target=self._find, name="explorer-lines", daemon=True)
        self._thread.start()

    def __len__(self) -> int:
        """How many rows are found so far."""
        return len(self._starts)

    @property
    def share(self) -> float:
        """How much of the file is looked through, 0 to 1."""
        return 1.0 if self._done.is_set() else self._share

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until all rows are found; False if that takes longer."""
        return self._done.wait(timeout)

    def close(self) -> None:
        """Stop looking and let go of the files."""
        self._closing = True
        self._thread.join()
        self._file.close()

    def where(self, row: int) -> str:
        """Where a row stands, as errors name it: `chats.jsonl:17`, lines counted from 1."""
        if not self._in_place:
            return f"{self.path} row {row}"
        return f"{self.path}:{row + 1 + int(np.searchsorted(self._blank, self._starts[row]))}"

    def record(self, row: int) -> Record | Rejected:
        """A row parsed, or why it cannot be.

        Raises:
            IndexError: there is none, or it is not found yet.
        """
        if not 0 <= row < len(self):
            raise IndexError(row)
        if row in self._rejected:
            return self._rejected[row]
        with self._reading:
            self._file.seek(int(self._starts[row]))
            line = self._file.readline()
        return parse_line(line.removeprefix(b"\xef\xbb\xbf") if row == 0 else line, self.where(row))

    def row_at(self, offset: int) -> int:
        """The row in which a byte of the file lies."""
        return int(np.searchsorted(self._starts, offset, side="right")) - 1

    def row_from(self, offset: int, *, after: int) -> int:
        """The first row that starts at a byte or behind it, and in any case behind row `after`."""
        return max(after + 1, int(np.searchsorted(self._starts, offset)))

    def start(self, row: int) -> int:
        """The first byte of a row; of the one behind the last, the end of what is found."""
        return int(self._starts[row]) if row < len(self) else self._size()

    def _size(self) -> int:
        with self._reading:
            self._file.flush()
            return self._file.seek(0, 2)

    def read(self, first: int, stop: int) -> bytes:
        """The bytes of rows first..stop - 1, as they stand in the file."""
        start, end = self.start(first), self.start(stop)
        with self._reading:
            self._file.seek(start)
            return self._file.read(end - start)

    def _find(self) -> None:
        try:
            for found in self._in_file() if self._in_place else self._spooled():
                self._starts = np.concatenate((self._starts, found))
                if self._closing:
                    return
        except (NielsError, OSError) as error:
            self.problem = str(error)
        finally:
            self._done.set()

    def _in_file(self) -> Iterator[Int64s]:
        """The starts of rows, block by block.

        ::

            bytes     a a \\n \\n b b \\n       lines start at 0 3 4; that at 3 begins with a newline: blank
        """
        size, base, fresh = self.path.stat().st_size, 0, True
        with self.path.open("rb") as file:
            while block := file.read(BLOCK_BYTES):
                held = np.frombuffer(block, np.uint8)
                starts = np.flatnonzero(held == 10) + 1
                starts = np.concatenate(([0], starts)) if fresh else starts
                fresh = bool(starts.size and starts[-1] == len(held))
                starts = starts[:-1] if fresh else starts
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
        starts: list[int] = []
        at = 0
        for number, record in enumerate(read_records(self.path)):
            value: Any = None
            if isinstance(record, Rejected):
                self._rejected[number] = record
            else:
                value = record.value
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
