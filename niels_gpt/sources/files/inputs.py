"""The user's input files: their bytes, text, lines and records, with errors that name the place.

What comes of them is `Record`s (parsed rows), `Document`s (texts) and `Rejected` (rows that cannot be used).
"""

from __future__ import annotations

import gzip
import io
import json
import math
import zlib
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeVar, cast

from niels_gpt.errors import InputError, MessageError, StorageError, storage_errors
from niels_gpt.extras import check_library
from niels_gpt.store.remote import AnyFile, RemoteFile, remote_errors
from niels_gpt.unique_keys import UNIQUE_KEYS

File = TypeVar("File", Path, RemoteFile, AnyFile)
MAX_LINE_BYTES = 256 * 1024 * 1024  # a longer line is hardly a row, and would fill the memory


@dataclass(frozen=True)
class Rejected:
    """A row that is not used.

    Attributes:
        where: its place. Lines are counted from 1 (`chats.jsonl:17`), other rows from 0 (`chats.parquet row 16`).
        reason: a short code, by which rows are counted.
        detail: a sentence for people that begins with the place.
        expected: the source left it out on purpose (a deleted message, another language). It is counted, but not as a
            bad row.
    """

    where: str
    reason: str
    detail: str
    expected: bool = False

    @property
    def why(self) -> str:
        """The detail without the place."""
        return self.detail.removeprefix(f"{self.where}: ")


@dataclass(frozen=True)
class Document:
    """A text.

    Attributes:
        where: its place, as in `Rejected`.
        group: neighbouring documents of the same group go to the same split.
        split: "train" or "val" if the source itself has a split.
    """

    where: str
    text: str
    group: str | None = None
    split: str | None = None


@dataclass(frozen=True)
class Record:
    """A parsed row.

    Attributes:
        where: its place, as in `Rejected`.
        arrow: it was read through Arrow (parquet, `datasets`, the hub), which adds nulls; see `sources.arrow_nulls`.
    """

    where: str
    value: Any
    arrow: bool = False


@dataclass
class ReadProgress:
    """Counts how many of the items (rows, files, bytes) of a source have been read.

    Attributes:
        file: the file that is being read, if bytes are counted; its position is added to those of the files before it.
    """

    done: int = 0
    total: int = 0
    file: IO[bytes] | None = None

    def fraction(self) -> float | None:
        """The share that has been read, at most 1; `None` while nothing is, or the total is unknown."""
        # Of the file as it is on the disk: the position in what is decompressed from it would exceed its size.
        done = self.done + (0 if self.file is None or self.file.closed else self.file.tell())
        return min(1.0, done / self.total) if done > 0 and self.total else None

    def begin(self, files: Iterable[AnyFile]) -> None:
        """Count the bytes of these files from now on. Compressed files count as they are on the disk."""
        self.done, self.total, self.file = 0, sum(size_of(file) for file in files), None

    @contextmanager
    def reading(self, file: IO[bytes], size: int) -> Iterator[None]:
        """A block that reads a file of `size` bytes."""
        self.file = file
        try:
            yield
        finally:
            self.done, self.file = self.done + size, None

    def __reduce__(self) -> tuple[Any, ...]:
        """Without the open file, which another process cannot use."""
        return ReadProgress, (self.done, self.total)


def existing_file(path: File) -> File:
    """Check that `path` is an existing, non-empty regular file, on this machine or at a URL, and return it.

    Raises:
        InputError: it is missing, a directory, a pipe or device, or empty.
    """
    if isinstance(path, RemoteFile):
        size = path.size()
        if size is None:
            raise InputError(f"{path}: no such file; check the URL")
        if size == 0:
            raise InputError(f"{path}: the file is empty; expected at least one row")
        return path
    file: Path = path
    if file.is_dir():
        raise InputError(f"{file}: this is a directory; expected a file")
    if not file.exists():
        raise InputError(f"{file}: no such file; check the path (it is relative to {Path.cwd()})")
    # Sources read a file twice: for its hash, and for its rows.
    if not file.is_file():
        raise InputError(f"{file}: a pipe or device; expected a regular file, which can be read twice. Write it to one")
    if file.stat().st_size == 0:
        raise InputError(f"{file}: the file is empty; expected at least one row")
    return path


def size_of(file: AnyFile) -> int:
    """The size of a file in bytes; 0 if it does not exist, which is reported when it is read."""
    if isinstance(file, RemoteFile):
        return file.size() or 0
    return file.stat().st_size if file.exists() else 0


def reading(path: AnyFile) -> AbstractContextManager[None]:
    """A block in which errors of the disk or the network become a `StorageError` that names the file."""
    return remote_errors("reading", path.url) if isinstance(path, RemoteFile) else storage_errors("reading", path)


def read_text(path: AnyFile) -> str:
    """A whole text file, decoded as UTF-8. Line ends are not changed; a byte order mark is removed.

    Raises:
        InputError: invalid UTF-8, naming line and byte offset.
    """
    with reading(path), path.open("rb") as file:
        data = file.read()
    return decode(data, str(path), first_line=1).removeprefix("\ufeff")


def decode(data: bytes, where: str, *, first_line: int | None = None, first_byte: int = 0) -> str:
    """`data` decoded as UTF-8; an `InputError` names the bad byte and, with `first_line`, its line.

    Args:
        first_line, first_byte: the line (from 1) and the byte (from 0) of the file at which `data` begins.
    """
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = "" if first_line is None else f":{first_line + data.count(10, 0, error.start)}"
        raise InputError(
            f"{where}{line}: invalid UTF-8 at byte {first_byte + error.start} (0x{data[error.start]:02x}); "
            "save the file as UTF-8, for example with: iconv -f ORIGINAL -t UTF-8"
        ) from error


@contextmanager
def open_bytes(path: AnyFile, count: ReadProgress | None = None) -> Iterator[IO[bytes]]:
    """Open a file for reading, decompressed if its name ends in `.gz` or `.zst`.

    Args:
        count: counts the bytes that are read of it.

    Raises:
        InputError: missing, a directory, empty, or truncated or damaged as a compressed file.
        StorageError: the disk or the network failed.
    """
    path = existing_file(path)
    with reading(path):
        try:
            with (
                path.open("rb") as file,
                nullcontext() if count is None else count.reading(file, size_of(path)),
                _decompressed(path, file) as plain,
            ):
                yield plain
        except (EOFError, zlib.error, OSError) as error:  # gzip raises all three, pyarrow's errors of zstd are OSErrors
            # Errors of the decompression have no number. Those of the disk have one; those of a store are ours already.
            of_storage = isinstance(error, StorageError) or (isinstance(error, OSError) and error.errno is not None)
            if of_storage or path.suffix.lower() not in (".gz", ".zst"):
                raise
            raise InputError(f"{path}: not a whole {path.suffix} file ({error}); compress or copy it again") from error


def _decompressed(path: AnyFile, file: IO[bytes]) -> IO[bytes]:
    if path.suffix.lower() == ".gz":
        return cast(IO[bytes], gzip.open(file, "rb"))
    if path.suffix.lower() == ".zst":  # Python itself reads zstd from 3.14 on; parquet needs pyarrow anyway
        # A cut file is an error, also in its first bytes, unless it ends where one of several frames does. A changed
        # byte is one if the frame has a checksum: the command `zstd` writes it, pyarrow does not.
        check_library("pyarrow")
        import pyarrow

        return io.BufferedReader(pyarrow.input_stream(file, compression="zstd"))
    return file


def read_jsonl(
    path: AnyFile, *, start: int = 0, stop: float = math.inf, before: int = 0, count: ReadProgress | None = None
) -> Iterator[Record | Rejected]:
    """The records of a JSON-lines file, one by one in constant memory; blank lines are skipped.

    A line that is not UTF-8, not JSON, or longer than 256 MiB comes as `Rejected` in its place.

    Args:
        start, stop: the bytes (decompressed) to read, from the beginning of a line to the end of one.
        before: number of lines before `start`, so that lines are numbered as in the whole file.
        count: counts the bytes that are read.

    Raises:
        InputError: missing, a directory or empty (on the first step).
        StorageError: the disk failed.
    """
    lines = read_lines(path, start=start, stop=stop, before=before, count=count)
    return (parse_line(line, where) for where, line in lines)


def read_lines(
    path: AnyFile, *, start: int = 0, stop: float = math.inf, before: int = 0, count: ReadProgress | None = None
) -> Iterator[tuple[str, bytes]]:
    """`(where, line)` of the lines of a file that are not blank, undecoded, in constant memory.

    A line longer than 256 MiB is cut there, without a line end, and `parse_line` refuses it. Arguments as for
    `read_jsonl`.

    Raises:
        InputError, StorageError: as `read_jsonl`.
    """
    with open_bytes(path, count) as file:
        if start:  # 0 for compressed files, which cannot seek
            file.seek(start)
        number, at = before, start
        while at < stop and (line := file.readline(MAX_LINE_BYTES)):
            number += 1
            at += len(line)
            # The rest of a line that is too long is read and dropped, in parts, to stay in bounded memory.
            rest = line
            while len(rest) == MAX_LINE_BYTES and not rest.endswith(b"\n"):
                rest = file.readline(MAX_LINE_BYTES)
                at += len(rest)
            if number == 1:
                # Editors on Windows begin UTF-8 files with a byte order mark, which is not JSON.
                line = line.removeprefix(b"\xef\xbb\xbf")
            if line.strip():
                yield f"{path}:{number}", line


def parse_line(line: bytes, where: str) -> Record | Rejected:
    """A line of JSON as a `Record`, or `Rejected` with the reason."""
    if len(line) == MAX_LINE_BYTES and not line.endswith(b"\n"):
        return Rejected(where, "line_too_long", f"{where}: the line is longer than 256 MiB; split the row")
    try:
        return Record(where, UNIQUE_KEYS.decode(decode(line, where)))
    except InputError as error:
        return Rejected(where, "invalid_utf8", str(error))
    except MessageError as error:
        return Rejected(where, error.reason, f"{where}: {error}")
    except json.JSONDecodeError as error:
        what = f"{error.msg[0].lower()}{error.msg[1:]}"
        detail = f"{where}: not valid JSON at column {error.colno} ({what}); expected one JSON object per line"
        return Rejected(where, "invalid_json", detail)
    except ValueError:  # Python's limit for converting a decimal to an integer (sys.set_int_max_str_digits)
        return Rejected(where, "invalid_json", f"{where}: holds an integer of more than 4300 digits; shorten it")
    except RecursionError:
        return Rejected(where, "invalid_json", f"{where}: JSON nested too deeply to read")
