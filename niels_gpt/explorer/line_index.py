"""The rows of an input by number, found in the background: 16 bytes a row, whatever the size of the file.

JSON lines in one plain file are read where they are. The rows of everything else (compressed files, JSON arrays,
parquet, Arrow, several files, remote files, datasets of the hub) are written once to a temporary file: of each row a
line with its place, as its reader names it, and its JSON.
"""

from __future__ import annotations

import json
import os
import tempfile
import threading
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from niels_gpt.errors import InputError, NielsError
from niels_gpt.inputs.opened import Opened
from niels_gpt.sources.files.formats import Name
from niels_gpt.sources.files.inputs import Record, Rejected, parse_line
from niels_gpt.store.remote import address

_HEAD = 4096  # the first bytes of a file, which show whether it was appended to or replaced


class LineIndex:
    """The rows of an input, usable while they are still being found. Methods may be called from any thread.

    Attributes:
        problem: why the search ended early; empty if it did not.
    """

    def __init__(self, opened: Opened) -> None:
        self._opened, self.problem = opened, ""
        self._starts, self._numbers = array("q"), array("q")  # where each row begins, and the number of its line
        self._rejected: dict[int, Rejected] = {}
        self._share = 0.0
        self._done, self._closing = threading.Event(), threading.Event()
        self._plain: Path | None = None
        if opened.is_here and opened.form == "jsonl" and len(opened.files) == 1:
            path = Path(address(opened.files[0]))
            self._plain = None if Name.of(path.name).compression else path
        # A temporary file has no name: the system removes it however the process ends.
        self._file: IO[bytes] = self._plain.open("rb") if self._plain else tempfile.TemporaryFile()  # noqa: SIM115
        self._version = self._version_of(self._file)
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
        return 1.0 if self._done.is_set() else min(self._share or self._opened.read.fraction() or 0.0, 0.99)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until all rows are found; False if `timeout` seconds pass first."""
        return self._done.wait(timeout)

    def close(self) -> None:
        """Stop the background thread and close the files."""
        self._closing.set()
        self._thread.join()
        self._file.close()

    def record(self, row: int) -> Record | Rejected:
        """A row as parsed JSON, or the reason why it cannot be parsed.

        Raises:
            InputError: the file was rewritten since it was opened.
        """
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
        if self._plain:
            # What is now at the places where rows were found would be shown as them. Rows that a job appends are fine.
            size, written, head = self._version_of(self._file)
            if (size, written) != self._version[:2] and (size <= self._version[0] or head != self._version[2]):
                raise InputError(
                    f"{self._plain}: written to since it was opened, so its rows are no longer where they were; end "
                    "the explorer and start it again"
                )
        with self._reading:
            self._file.seek(self._starts[row])
            if not self._plain:
                return json.loads(self._file.readline()), self._file.readline()
            return f"{self._plain}:{self._numbers[row]}", self._file.readline()

    def _version_of(self, file: IO[bytes]) -> tuple[int, int, bytes]:
        """The size of a file, when it was written, and its first bytes."""
        found = os.fstat(file.fileno())
        return found.st_size, found.st_mtime_ns, os.pread(file.fileno(), min(_HEAD, found.st_size), 0)

    def _find(self) -> None:
        try:
            for number, start in self._in_file(self._plain) if self._plain else self._spooled():
                self._numbers.append(number)
                self._starts.append(start)
                if self._closing.is_set():
                    return
        # No other thread waits for this one, so an error would be lost; the page shows it instead.
        except (NielsError, OSError) as error:
            self.problem = str(error)
        finally:
            self._done.set()

    def _in_file(self, path: Path) -> Iterator[tuple[int, int]]:
        """The number and the start of each line that is not blank."""
        size, at = path.stat().st_size, 0
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield number, at
                at += len(line)
                self._share = at / size

    def _spooled(self) -> Iterator[tuple[int, int]]:
        """The number of each row, and where it begins in the temporary file."""
        at = 0
        self._opened.read.begin(self._opened.files)  # without files the share that is read stays unknown
        for number, record in enumerate(self._opened.records()):
            # A rejected row is written as null, so that row numbers and lines stay the same.
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
            yield number, at
            at += written
