"""A folder of one's own markdown notes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from niels_gpt.errors import InputError
from niels_gpt.inputs import Document, Rejected, expand, fingerprint, read_text
from niels_gpt.sources.base import ReadCount, TextSource
from niels_gpt.sources.slices import Slice, slices_of

SUFFIXES = (".md", ".markdown")

# A block between two lines of three dashes at the very top.
_FRONT_MATTER = re.compile(r"\A---[ \t]*\r?\n.*?^---[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE)
_WIKI_LINK = re.compile(r"!?\[\[(?:[^\]|]*\|)?([^\]|]+)\]\]")
_LINK = re.compile(r"!?\[([^\]]*)\]\([^()\s]*(?:\([^()\s]*\)[^()\s]*)*(?:\s+\"[^\"]*\")?\)")


@dataclass(frozen=True)
class RoamNotes(TextSource):
    """One document a file: front matter stripped, links kept as their text, all else as written.

    Files go to train or val whole, because a file is a document and the split is by document.

    Args:
        listed: the notes, if they are known already.
    """

    folder: Path
    count: ReadCount = field(default_factory=ReadCount, compare=False, repr=False)
    listed: tuple[Path, ...] | None = None

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.folder.name

    @property
    def revision(self) -> None:
        """None: the files' hashes say which version this is."""

    def files(self) -> list[Path]:
        """The notes, sorted by path.

        Raises:
            InputError: the folder is missing or has no notes.
        """
        return expand([self.folder], SUFFIXES) if self.listed is None else list(self.listed)

    def config(self) -> dict[str, Any]:
        """Name, bytes and sha256 of every note. Reads them once."""
        return {"inputs": fingerprint(self.files())}

    def read_share(self) -> float | None:
        """Of the files."""
        return self.count.share()

    def iterate(self, *, start: int = 0) -> Iterator[Document | Rejected]:
        """The notes, from note `start` on."""
        files = self.files()
        self.count.total = len(files)
        for number, file in enumerate(islice(files, start, None), start=start + 1):
            self.count.done = number
            yield _note(file)

    def slices(self, slice_bytes: int) -> Iterator[Slice]:
        """See `Sliceable`: some notes each."""
        return slices_of(self.files(), slice_bytes, lambda file: None)

    def read(self, part: Slice) -> Iterator[Document | Rejected]:
        """See `Sliceable`."""
        return map(_note, self.files()[part.start : part.stop])

    def settled(self) -> RoamNotes:
        """See `Sliceable`: the folder is searched once."""
        return replace(self, listed=tuple(self.files()))


def _note(file: Path) -> Document | Rejected:
    try:
        return Document(str(file), clean(read_text(file)))
    except InputError as error:
        return Rejected(str(file), "invalid_utf8", str(error))


def clean(text: str) -> str:
    """A note without front matter, its links as text.

    ::

        [[gardens|my garden]] and [[tea]]     ->  my garden and tea
        [a page](https://example.org/x)       ->  a page
    """
    text = _FRONT_MATTER.sub("", text, count=1)
    text = _WIKI_LINK.sub(r"\1", text)
    return _LINK.sub(r"\1", text)
