"""A folder of the user's markdown notes, such as an export of Roam or Obsidian."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from niels_gpt.errors import InputError
from niels_gpt.sources.base import SourceOptions, TextSource
from niels_gpt.sources.file_source import FileSource
from niels_gpt.sources.files.inputs import Document, ReadProgress, Rejected, read_text, size_of
from niels_gpt.sources.files.listing import MARKDOWN_NAMES, FileList, list_files
from niels_gpt.store.remote import AnyFile

# Front matter: a block between two lines of three dashes at the very top of a note.
_FRONT_MATTER = re.compile(r"\A---[ \t]*\r?\n.*?^---[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE)
_WIKI_LINK = re.compile(r"!?\[\[(?:[^\]|]*\|)?([^\]|]+)\]\]")
# An address may have one level of parentheses, as in .../Tea_(plant), and a title in quotes after it.
_LINK = re.compile(r"!?\[([^\]]*)\]\([^()\s]*(?:\([^()\s]*\)[^()\s]*)*(?:\s+\"[^\"]*\")?\)")


@dataclass(frozen=True)
class RoamNotes(FileSource[Document], TextSource):
    """One document per `.md` or `.markdown` file: without front matter, links as their text, all else as written.

    Args:
        folder: where the notes are.
    """

    folder: Path = Path()

    @classmethod
    def from_options(cls, options: SourceOptions) -> RoamNotes:
        """See `Source`."""
        folder = Path(options.folder)
        # A missing folder is an error where it is read, so that `build-all` builds the other corpora all the same.
        return roam_notes(folder) if folder.exists() else RoamNotes(FileList((folder,)), folder)

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.folder.name

    def items_of(self, file: AnyFile, count: ReadProgress | None) -> Iterator[Document | Rejected]:
        """See `FileSource`: the note."""
        if count is not None:
            count.done += size_of(file)
        return iter((_note(file),))

    def cut(self, file: AnyFile, slice_bytes: int) -> None:
        """See `FileSource`: each slice is some whole notes."""

    def converted(self, file: AnyFile, items: Iterator[Document | Rejected]) -> Iterator[Document | Rejected]:
        """See `FileSource`."""
        return items


def roam_notes(folder: str | Path) -> RoamNotes:
    """The notes below a folder, sorted by path.

    Raises:
        InputError: the folder is missing or has no notes.
    """
    return RoamNotes(list_files([folder], MARKDOWN_NAMES), Path(folder))


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
