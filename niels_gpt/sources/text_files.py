"""Documents from the user's own files: a text or markdown file is one document, a JSON line with `text` another.

A text file above 4 MiB is handed out in parts that end with a line, each a document, so that memory stays flat; all
parts go to the same side of the split.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any

from niels_gpt.errors import InputError, storage_errors
from niels_gpt.inputs import (
    JSONL_SUFFIXES,
    TEXT_SUFFIXES,
    Document,
    Record,
    Rejected,
    decode,
    expand,
    fingerprint,
    read_jsonl,
    read_text,
    the_file,
)
from niels_gpt.sources.base import TextSource

PART_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True)
class TextFiles(TextSource):
    """Text, markdown and JSON-lines files: paths, directories (searched), glob patterns.

    Raises:
        InputError: a path is missing or matches nothing, or a text file is empty or not UTF-8 (when read).
    """

    inputs: Sequence[str | Path]

    @property
    def name(self) -> str:
        """The name that caches record: that of the first input, without its ending."""
        return Path(self.inputs[0]).stem

    @property
    def revision(self) -> None:
        """None: the files' hashes say which version this is."""

    def files(self) -> list[Path]:
        """All files, in the order in which they are read."""
        return expand(self.inputs, TEXT_SUFFIXES + JSONL_SUFFIXES)

    def config(self) -> dict[str, Any]:
        """What was read, by content: name, bytes and sha256 of each file. Reads every file once."""
        return {"inputs": fingerprint(self.files())}

    def iterate(self, *, start: int = 0) -> Iterator[Document | Rejected]:
        """The documents in order, from document `start` on; unusable rows and empty files as `Rejected`."""
        return islice(self._documents(), start, None)

    def _documents(self) -> Iterator[Document | Rejected]:
        for file in self.files():
            if file.name.endswith(JSONL_SUFFIXES):
                for record in read_jsonl(file):
                    yield record if isinstance(record, Rejected) else _document(record)
            elif file.stat().st_size > PART_BYTES:
                yield from _parts(file)
            else:
                yield _whole(file)


def _whole(file: Path) -> Document | Rejected:
    try:
        return Document(str(file), read_text(the_file(file)))
    except InputError as error:
        return Rejected(str(file), "unreadable_file", str(error))


def _document(record: Record) -> Document | Rejected:
    row, where = record.value, record.where
    if isinstance(row, str):
        return Document(where, row)
    if not isinstance(row, dict) or not isinstance(row.get("text"), str):
        keys = ", ".join(map(repr, row)) if isinstance(row, dict) else type(row).__name__
        return Rejected(where, "no_text", f"{where}: expected a string under 'text'; found: {keys or 'none'}")
    return Document(where, row["text"])


def _parts(file: Path) -> Iterator[Document | Rejected]:
    line = 1
    with storage_errors("reading", file), file.open("rb") as stream:
        while part := _read_part(stream):
            where = f"{file}:{line}"
            try:
                yield Document(where, decode(part, str(file), first_line=line), group=str(file))
            except InputError as error:
                yield Rejected(where, "invalid_utf8", str(error))
            line += part.count(b"\n")


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
