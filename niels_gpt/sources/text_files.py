"""Documents from the user's own files: a text or markdown file is one document, a row with `text` another.

Rows are JSON lines, the objects of a `.json` array, or those of a parquet file. In a directory `.json` is left out:
there it is most often a configuration; name such a file to have its rows.

A text file above 4 MiB is handed out in parts that end with a line, each a document, so that memory stays flat; all
parts go to the same side of the split.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any

from niels_gpt.errors import DataError, InputError
from niels_gpt.inputs import (
    JSONL_SUFFIXES,
    TEXT_SUFFIXES,
    Document,
    Record,
    Rejected,
    decode,
    expand,
    fingerprint,
    read_text,
    reading,
    size_of,
    the_file,
)
from niels_gpt.remote import AnyFile, RemoteFile, located
from niels_gpt.sources.base import TextSource
from niels_gpt.sources.records import RECORD_SUFFIXES, read_records
from niels_gpt.sources.slices import Slice, read_slice, slices, slices_of

PART_BYTES = 4 * 1024 * 1024
SEARCHED_SUFFIXES = (*TEXT_SUFFIXES, *JSONL_SUFFIXES, ".parquet")  # a .json found by a search may be anything


@dataclass(frozen=True)
class TextFiles(TextSource):
    """Text, markdown, JSON-lines and parquet files: paths, directories (searched), glob patterns, URLs.

    Raises:
        InputError: a path is missing or matches nothing, or a text file is empty or not UTF-8 (when read).
    """

    inputs: Sequence[str | AnyFile]

    @property
    def name(self) -> str:
        """The name that caches record: that of the first input, without its ending."""
        return Path(str(self.inputs[0])).stem

    @property
    def revision(self) -> None:
        """None: the files' hashes say which version this is."""

    def files(self) -> list[AnyFile]:
        """All files, in the order in which they are read, without repeats."""
        return list(dict.fromkeys(chain.from_iterable(map(_files, self.inputs))))

    def config(self) -> dict[str, Any]:
        """What was read, by content: name, bytes and sha256 of each file. Reads every file once."""
        return {"inputs": fingerprint(self.files())}

    def iterate(self, *, start: int = 0) -> Iterator[Document | Rejected]:
        """The documents in order, from document `start` on; unusable rows and empty files as `Rejected`."""
        return islice(chain.from_iterable(map(_documents, self.files())), start, None)

    def slices(self, slice_bytes: int) -> Iterator[Slice]:
        """See `Sliceable`: small text files go together, larger ones are cut between their parts."""
        return slices_of(self.files(), slice_bytes, lambda file: _cut(file, slice_bytes))

    def read(self, part: Slice) -> Iterator[Document | Rejected]:
        """See `Sliceable`."""
        if part.kind == "files":
            return chain.from_iterable(map(_documents, self.files()[part.start : part.stop]))
        file = located(part.path)
        if part.kind == "text":
            return _parts(file, part.start, part.stop, part.before)
        return map(_document, read_slice(file, part))

    def settled(self) -> TextFiles:
        """See `Sliceable`: directories and patterns are searched once."""
        return TextFiles(self.files())


def _files(given: str | AnyFile) -> Sequence[AnyFile]:
    file = located(given)
    return [file] if isinstance(file, RemoteFile) else expand([str(given)], SEARCHED_SUFFIXES)


def _documents(file: AnyFile) -> Iterator[Document | Rejected]:
    if file.name.endswith(RECORD_SUFFIXES):
        return map(_document, read_records(file))
    return _parts(file) if _is_large(file) else iter((_whole(file),))


def _is_large(file: AnyFile) -> bool:
    return size_of(file) > PART_BYTES


def _cut(file: AnyFile, slice_bytes: int) -> Iterator[Slice] | None:
    """The slices of a file, or `None` if it is read whole."""
    if file.name.endswith(RECORD_SUFFIXES):
        return _cut_rows(file, slice_bytes)
    return _cut_text(file, slice_bytes) if _is_large(file) else None


def _cut_rows(file: AnyFile, slice_bytes: int) -> Iterator[Slice]:
    """A file that cannot be cut is one slice: what is wrong with it is told when it is its turn to be read."""
    parts = slices(file, slice_bytes)
    try:
        first = next(parts, None)
    except DataError:
        first = Slice("whole", 0, 0, 0, 1.0)
    return chain([first] if first else [], parts)


def _cut_text(file: AnyFile, slice_bytes: int) -> Iterator[Slice]:
    """Between the parts in which the text is handed out: they are read here too, to find where they end."""
    start = end = before = lines = 0
    size = size_of(file)
    with reading(file), file.open("rb") as stream:
        while part := _read_part(stream):
            end, lines = end + len(part), lines + part.count(b"\n")
            if end - start >= slice_bytes or end == size:
                yield Slice("text", start, end, before, end / size)
                start, before = end, lines


def _whole(file: AnyFile) -> Document | Rejected:
    try:
        if isinstance(file, Path) and file.is_file() and file.stat().st_size == 0:
            return Document(str(file), "")  # an empty note is left out and counted, like one of front matter alone
        return Document(str(file), read_text(the_file(file)))
    except InputError as error:
        return Rejected(str(file), "unreadable_file", str(error))


def _document(record: Record | Rejected) -> Document | Rejected:
    if isinstance(record, Rejected):
        return record
    row, where = record.value, record.where
    if isinstance(row, str):
        return Document(where, row)
    if not isinstance(row, dict) or not isinstance(row.get("text"), str):
        keys = ", ".join(map(repr, row)) if isinstance(row, dict) else type(row).__name__
        return Rejected(where, "no_text", f"{where}: expected a string under 'text'; found: {keys or 'none'}")
    return Document(where, row["text"])


def _parts(file: AnyFile, start: int = 0, stop: float = math.inf, before: int = 0) -> Iterator[Document | Rejected]:
    """The parts of a large text between two bytes, with so many lines before them."""
    line, at = 1 + before, start
    with reading(file), file.open("rb") as stream:
        stream.seek(start)
        while at < stop and (part := _read_part(stream)):
            where = f"{file}:{line}"
            try:
                text = decode(part, str(file), first_line=line, first_byte=at)
                yield Document(where, text if at else text.removeprefix("\ufeff"), group=str(file))
            except InputError as error:
                yield Rejected(where, "invalid_utf8", str(error))
            line, at = line + part.count(b"\n"), at + len(part)


def _read_part(stream: IO[bytes]) -> bytes:
    """The next `PART_BYTES`, cut back to the last line end, else the last space, else the last whole character."""
    part = stream.read(PART_BYTES)
    if len(part) < PART_BYTES:
        return part
    end = part.rfind(b"\n") + 1 or part.rfind(b" ") + 1
    if not end:
        end = len(part)
        while end > len(part) - 4 and part[end - 1] & 0xC0 == 0x80:  # continuation bytes of a UTF-8 character
            end -= 1
        end -= part[end - 1] >= 0xC0
    stream.seek(end - len(part), 1)
    return part[:end]
