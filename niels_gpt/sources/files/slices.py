"""Slices: parts of files that can be read independently, for builds with several workers.

The cuts are a pure function of the file and the slice size, and the slices in order are the whole file::

    bytes   {"a":1}\n  {"b":2}\n  {"c":3}\n  {"d":4}\n        slice_bytes 10
    at      0          8          16         24       32
    slices  |------ 0 to 16 -----||----- 16 to 32 ---|         the first line that begins at 10 or later begins a slice

JSON lines are cut between lines, parquet between row groups. A compressed file or a JSON array can only be read from
its beginning, so it is one slice. A slice never holds parts of two files, but it may hold several small whole files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

from niels_gpt.errors import without_passwords
from niels_gpt.sources.files.formats import Name
from niels_gpt.sources.files.inputs import (
    ReadProgress,
    Record,
    Rejected,
    existing_file,
    open_bytes,
    read_jsonl,
    size_of,
)
from niels_gpt.sources.files.records import open_parquet, parquet_records, read_records, row_format_of
from niels_gpt.store.remote import AnyFile, address

SLICE_BYTES = 16 << 20
_CHUNK_BYTES = 1 << 20

File = TypeVar("File", bound=AnyFile)


@dataclass(frozen=True)
class Slice:
    """A part of a file, or some whole files.

    Attributes:
        kind: what `start` and `stop` count: bytes of lines or of text, row groups, files of the source, or nothing.
        before: number of lines (or rows) before it, so that its rows can be named by their numbers in the file.
        read: fraction of the input up to its end, 0 to 1.
        path: the address of the file, or of the first of the files.
    """

    kind: Literal["lines", "text", "row_groups", "files", "whole"]
    start: int
    stop: int
    before: int
    read: float
    path: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.start:,} to {self.stop:,} of {without_passwords(self.path)}"


@runtime_checkable
class Sliceable(Protocol):
    """A source that can be read in slices. It must pickle, because workers read the slices."""

    def slices(self, slice_bytes: int) -> Iterator[Slice]:
        """The slices in order; a pure function of the data and the size."""

    def read(self, part: Slice) -> Iterator[Any]:
        """The rows of one slice, equal to those of `iterate`."""

    def resolved(self) -> Sliceable:
        """The same source with its dialect, files or commit already determined, instead of once per slice."""


def slice_file(path: AnyFile, slice_bytes: int = SLICE_BYTES) -> Iterator[Slice]:
    """The slices of a file in order, of `slice_bytes` each, up to the end of a row. The file is read once, lazily.

    Raises:
        InputError: missing, a directory, empty, or not what its name says.
    """
    form = row_format_of(path)  # raises now, in the process that the user sees, and not in a worker
    if form == "parquet":
        yield from _row_groups(path, slice_bytes)
    elif form == "lines" and not Name.of(path.name).compression:
        yield from _lines(path, slice_bytes)
    else:
        yield Slice("whole", 0, 0, 0, 1.0)


def slice_files(
    files: Sequence[File], slice_bytes: int, cut: Callable[[File], Iterator[Slice] | None], *, whole_below: int = 0
) -> Iterator[Slice]:
    """The slices of several files in order. No slice holds parts of two files.

    Args:
        cut: returns the slices of a file, or `None` for one that is read whole. Neighbouring whole files share a slice:
            with `slice_bytes` 10, files of 4 8 3 bytes become the slices "files 0 to 2" and "files 2 to 3".
        whole_below: files of fewer bytes are also read whole.
    """
    ends = [0, *accumulate(size_of(file) for file in files)]  # files of 4 8 3 bytes: 0 4 12 15
    total, first = ends[-1] or 1, 0  # `first`: the first file that is in no slice yet
    for number, file in enumerate(files):
        parts = None if ends[number + 1] - ends[number] < whole_below else cut(file)
        # A small whole file waits for its neighbours, so that thousands of notes do not become thousands of units.
        if parts is None and ends[number + 1] - ends[first] < slice_bytes:
            continue
        stop = number + (parts is None)  # a file that is cut does not join the whole files before it
        if first < stop:
            yield Slice("files", first, stop, 0, ends[stop] / total, address(files[first]))
        for part in parts or ():
            read = ends[number] + part.read * (ends[number + 1] - ends[number])
            yield replace(part, read=read / total, path=address(file))
        first = number + 1
    if first < len(files):
        yield Slice("files", first, len(files), 0, 1.0, address(files[first]))


def read_slice(path: AnyFile, part: Slice, count: ReadProgress | None = None) -> Iterator[Record | Rejected]:
    """The records of a slice of one file, with the places that `read_records` gives them.

    Args:
        count: counts the bytes of the slice that are read, except for row groups, which are read at once.
    """
    if count is not None:
        count.begin([path] if part.kind == "whole" else [])
    if part.kind == "lines":
        if count is not None:  # the position in the file counts from its beginning
            count.done, count.total = -part.start, part.stop - part.start
        return read_jsonl(path, start=part.start, stop=part.stop, before=part.before, count=count)
    if part.kind == "row_groups":
        return parquet_records(path, range(part.start, part.stop), part.before)
    return read_records(path, count)


def _lines(path: AnyFile, slice_bytes: int) -> Iterator[Slice]:
    """Slices of JSON lines. Lines are only counted, in chunks; their positions are searched for only near a cut."""
    start = before = lines = at = 0
    size = size_of(existing_file(path))
    with open_bytes(path) as file:
        while chunk := file.read(_CHUNK_BYTES):
            used = 0  # bytes of the chunk that are in slices already
            # The first line that ends at `slice_bytes` or later ends a slice. One that ends at 10 has its newline at 9;
            # `find` gives -1 where none is left in this chunk, so the end is 0.
            while end := chunk.find(b"\n", max(start + slice_bytes - at - 1, used)) + 1:
                lines += chunk.count(b"\n", used, end)
                yield Slice("lines", start, at + end, before, (at + end) / size)
                start, before, used = at + end, lines, end
            lines += chunk.count(b"\n", used)
            at += len(chunk)
    if start < at:  # what is left after the last cut, perhaps without a line end
        yield Slice("lines", start, at, before, 1.0)


def _row_groups(path: AnyFile, slice_bytes: int) -> Iterator[Slice]:
    """Slices of whole row groups, the smallest parts of a parquet file that can be read by themselves."""
    with open_parquet(path) as file:
        groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
        sizes = [(group.total_byte_size, group.num_rows) for group in groups]
    start = before = size = rows = 0
    for number, (group_bytes, group_rows) in enumerate(sizes):
        size, rows = size + group_bytes, rows + group_rows
        # Groups of 60 60 60 bytes with slice_bytes 100: the first two make 120, so the slices are 0 to 2 and 2 to 3.
        if size >= slice_bytes or number == len(sizes) - 1:
            yield Slice("row_groups", start, number + 1, before, (number + 1) / len(sizes))
            start, before, size = number + 1, rows, 0
