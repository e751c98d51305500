"""Documents from the user's own files: each text or markdown file is a document, and each row with `text`.

`RoamNotes` are those of a folder of markdown notes, such as an export of Roam or Obsidian.

A text above 4 MiB is read in parts that end with a line, so that memory stays flat. Each part is a document; all parts
of a file go to the same split.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import IO, ClassVar

from niels_gpt.errors import DataError, InputError, shown
from niels_gpt.sources.base import SourceOptions, TextSource
from niels_gpt.sources.file_source import FileSource
from niels_gpt.sources.files.formats import Name, format_of
from niels_gpt.sources.files.inputs import (
    Document,
    ReadProgress,
    Record,
    Rejected,
    decode,
    open_bytes,
    read_text,
    size_of,
)
from niels_gpt.sources.files.listing import MARKDOWN_NAMES, TEXT_NAMES, FileList, hub_name, list_files
from niels_gpt.sources.files.records import read_records
from niels_gpt.sources.files.slices import Slice, read_slice, slice_file
from niels_gpt.store.remote import AnyFile, as_file

PART_BYTES = 4 * 1024 * 1024

# Front matter: a block between two lines of three dashes at the very top of a note.
_FRONT_MATTER = re.compile(r"\A---[ \t]*\r?\n.*?^---[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE)
_WIKI_LINK = re.compile(r"!?\[\[(?:[^\]|]*\|)?([^\]|]+)\]\]")
# An address may have one level of parentheses, as in .../Tea_(plant), and a title in quotes after it.
_LINK = re.compile(r"!?\[([^\]]*)\]\([^()\s]*(?:\([^()\s]*\)[^()\s]*)*(?:\s+\"[^\"]*\")?\)")


@dataclass(frozen=True)
class TextFiles(FileSource[Document], TextSource):
    """Files of texts and of rows with `text`; made by `text_files`.

    Args:
        label: its name: that of the first input, without its suffix; of a data set on the hub OWNER/NAME.
    """

    label: str = "texts"

    shares_slices: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """The name of the first input."""
        return self.label

    def items_of(self, file: AnyFile, count: ReadProgress | None) -> Iterator[Record | Document | Rejected]:
        """See `FileSource`: records, or a text in parts."""
        if format_of(file) != "text":
            return read_records(file, count)
        if _is_large(file) or Name.of(file.name).compression:
            return _parts(file, count=count)
        if count is not None:
            # A small file is read at once, so it counts as read from here on.
            count.done += size_of(file)
        return iter((_whole(file),))

    def items_in(self, file: AnyFile, part: Slice) -> Iterator[Record | Document | Rejected]:
        if part.kind != "text":
            return read_slice(file, part, self.count)
        # The position in the file counts from the file's beginning: of bytes 10 to 30, at 20 half is read.
        self.count.done, self.count.total = -part.start, part.stop - part.start
        return _parts(file, part.start, part.stop, part.before, self.count)

    def cut(self, file: AnyFile, slice_bytes: int) -> Iterator[Slice] | None:
        """See `FileSource`: small texts share a slice, larger ones are cut between their parts."""
        try:
            if format_of(file) != "text":
                parts = slice_file(file, slice_bytes)
                first = next(parts, None)
                return chain([first] if first else [], parts)
        except DataError:  # damaged: a single slice, so that the error is raised when its rows would come
            return iter((Slice("whole", 0, 0, 0, 1.0),))
        return _cut_text(file, slice_bytes) if _is_large(file) and not Name.of(file.name).compression else None

    def row_of(self, item: Record | Document, shape: str | None) -> Document | Rejected:
        return _document(item) if isinstance(item, Record) else item


@dataclass(frozen=True)
class RoamNotes(TextFiles):
    """One document per `.md` or `.markdown` file: without front matter, links as their text, all else as written."""

    @classmethod
    def from_options(cls, options: SourceOptions) -> RoamNotes:
        folder = Path(options.folder)
        # A missing folder is an error where it is read, so that `build-all` builds the other corpora all the same.
        return roam_notes(folder) if folder.exists() else RoamNotes(FileList((folder,)), folder.name)

    def row_of(self, item: Record | Document, shape: str | None) -> Document | Rejected:
        note = super().row_of(item, shape)
        return replace(note, text=clean(note.text)) if isinstance(note, Document) else note


def text_files(inputs: Sequence[str | AnyFile]) -> TextFiles:
    """The source of text, markdown and files of rows: paths, directories, glob patterns, URLs.

    Raises:
        InputError: a path is missing, a pattern or directory matches nothing.
    """
    first = str(as_file(inputs[0]))
    return TextFiles(list_files(inputs, TEXT_NAMES), hub_name(first) or Path(first).stem)


def roam_notes(folder: str | Path) -> RoamNotes:
    """The notes below a folder, sorted by path.

    Raises:
        InputError: the folder is missing or has no notes.
    """
    return RoamNotes(list_files([folder], MARKDOWN_NAMES), Path(folder).name)


def clean(text: str) -> str:
    """A note without front matter, with its links as text.

    ::

        [[gardens|my garden]] and [[tea]]     ->  my garden and tea
        [a page](https://example.org/x)       ->  a page
    """
    text = _FRONT_MATTER.sub("", text, count=1)
    text = _WIKI_LINK.sub(r"\1", text)
    return _LINK.sub(r"\1", text)


def _is_large(file: AnyFile) -> bool:
    return size_of(file) > PART_BYTES


def _cut_text(file: AnyFile, slice_bytes: int) -> Iterator[Slice]:
    """The slices of a large text, cut between its parts. The parts are also read here, to find their ends."""
    start = end = before = lines = 0
    size = size_of(file)
    with open_bytes(file) as stream:
        for part in _read_parts(stream):
            end, lines = end + len(part), lines + part.count(b"\n")
            if end - start >= slice_bytes or end == size:
                yield Slice("text", start, end, before, end / size)
                start, before = end, lines


def _whole(file: AnyFile) -> Document | Rejected:
    try:
        return Document(str(file), read_text(file))
    except InputError as error:
        return Rejected(str(file), "invalid_utf8", str(error))


def _document(record: Record) -> Document | Rejected:
    row, where = record.value, record.where
    if isinstance(row, str):
        return Document(where, row)
    if not isinstance(row, dict) or "text" not in row:
        keys = ", ".join(map(repr, row)) if isinstance(row, dict) else type(row).__name__
        return Rejected(where, "no_text", f"{where}: expected a string under 'text'; found: {keys or 'none'}")
    if not isinstance(row["text"], str):
        return Rejected(where, "no_text", f"{where}: 'text' is {shown(row['text'])}; expected a string")
    return Document(where, row["text"])


def _parts(
    file: AnyFile, start: int = 0, stop: float = math.inf, before: int = 0, count: ReadProgress | None = None
) -> Iterator[Document | Rejected]:
    """The parts of a text from byte `start` to `stop`, with `before` lines before them."""
    line, at = 1 + before, start
    with open_bytes(file, count) as stream:
        if start:  # 0 for compressed files, which cannot seek
            stream.seek(start)
        for part in _read_parts(stream):
            where = f"{file}:{line}"
            try:
                text = decode(part, str(file), first_line=line, first_byte=at)
                # A byte order mark is one at the beginning of the file only.
                yield Document(where, text if at else text.removeprefix("\ufeff"), group=str(file))
            except InputError as error:
                yield Rejected(where, "invalid_utf8", str(error))
            line, at = line + part.count(b"\n"), at + len(part)
            if at >= stop:
                return


def _read_parts(stream: IO[bytes]) -> Iterator[bytes]:
    """Parts of `PART_BYTES`, shortened to the last line end, else the last space, else the last whole character."""
    rest = b""
    while part := rest + stream.read(PART_BYTES - len(rest)):
        end = len(part)
        if end == PART_BYTES:
            end = part.rfind(b"\n") + 1 or part.rfind(b" ") + 1 or _whole_characters(part)
        yield part[:end]
        rest = part[end:]


def _whole_characters(part: bytes) -> int:
    """The end of the last character that is whole: 0xC3 0xA9 is one of two bytes, and 0xA9 continues it."""
    end = len(part)
    while end > len(part) - 4 and part[end - 1] & 0xC0 == 0x80:
        end -= 1
    return end - (part[end - 1] >= 0xC0)
