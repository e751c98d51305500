"""A folder of the user's markdown notes, such as an export of Roam or Obsidian."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from niels_gpt.errors import InputError
from niels_gpt.progress import SILENT, Progress
from niels_gpt.sources.base import SourceOptions, TextSource
from niels_gpt.sources.files.hashed_files import HashedFiles
from niels_gpt.sources.files.inputs import Document, ReadProgress, Rejected, read_text
from niels_gpt.sources.files.listing import MARKDOWN_NAMES, FileList, list_files
from niels_gpt.sources.files.slices import Slice, slice_files
from niels_gpt.store.remote import AnyFile

# Front matter: a block between two lines of three dashes at the very top of a note.
_FRONT_MATTER = re.compile(r"\A---[ \t]*\r?\n.*?^---[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE)
_WIKI_LINK = re.compile(r"!?\[\[(?:[^\]|]*\|)?([^\]|]+)\]\]")
# An address may have one level of parentheses, as in .../Tea_(plant), and a title in quotes after it.
_LINK = re.compile(r"!?\[([^\]]*)\]\([^()\s]*(?:\([^()\s]*\)[^()\s]*)*(?:\s+\"[^\"]*\")?\)")


@dataclass(frozen=True)
class RoamNotes(TextSource):
    """One document per file: without front matter, links as their text, all else as written.

    Args:
        folder: searched for `.md` and `.markdown`.
        listing: the notes, if the folder has been searched already.
    """

    folder: Path
    count: ReadProgress = field(default_factory=ReadProgress, compare=False, repr=False)
    hashed: HashedFiles = field(default_factory=HashedFiles, compare=False, repr=False)
    listing: FileList | None = None

    @classmethod
    def from_options(cls, options: SourceOptions) -> RoamNotes:
        """See `Source`."""
        return cls(options.folder)

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.folder.name

    def files(self) -> list[AnyFile]:
        """The notes, sorted by path.

        Raises:
            InputError: the folder is missing or has no notes.
        """
        return list(self._listed.taken)

    @cached_property
    def _listed(self) -> FileList:
        # Once, so that a note that is added later is in no row, either.
        return self.listing or list_files([self.folder], MARKDOWN_NAMES)

    def config(self, progress: Progress = SILENT) -> dict[str, Any]:
        """Name, bytes and sha256 of every note. Reads them once."""
        return {"inputs": self.hashed.fingerprint(self.files(), progress), **self._listed.recorded(progress)}

    def fraction_read(self) -> float | None:
        """See `Source`: the fraction of the files."""
        return self.count.fraction()

    def iterate(self, *, start: int = 0) -> Iterator[Document | Rejected]:
        """The notes, from note `start` on."""
        files = self.files()
        self.count.total = len(files)
        for number, file in enumerate(islice(files, start, None), start=start + 1):
            self.count.done = number
            yield from self.hashed.checked([_note(file)], [file])

    def slices(self, slice_bytes: int) -> Iterator[Slice]:
        """See `Sliceable`: each slice is some whole notes."""
        return self.hashed.checked(slice_files(self.files(), slice_bytes, lambda file: None), self.files())

    def read(self, part: Slice) -> Iterator[Document | Rejected]:
        """See `Sliceable`."""
        files = self.files()[part.start : part.stop]
        return self.hashed.checked(map(_note, files), files)

    def resolved(self) -> RoamNotes:
        """See `Sliceable`: the folder is searched once."""
        return replace(self, listing=self._listed)


def _note(file: AnyFile) -> Document | Rejected:
    try:
        return Document(str(file), clean(read_text(file)))
    except InputError as error:
        return Rejected(str(file), "invalid_utf8", str(error))


def clean(text: str) -> str:
    """A note without front matter, with its links as text.

    ::

        [[gardens|my garden]] and [[tea]]     ->  my garden and tea
        [a page](https://example.org/x)       ->  a page
    """
    text = _FRONT_MATTER.sub("", text, count=1)
    text = _WIKI_LINK.sub(r"\1", text)
    return _LINK.sub(r"\1", text)
