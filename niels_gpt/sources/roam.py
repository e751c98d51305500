"""A folder of the user's markdown notes, such as an export of Roam or Obsidian."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

from niels_gpt.sources.base import SourceOptions
from niels_gpt.sources.files.inputs import Document, Record, Rejected
from niels_gpt.sources.files.listing import MARKDOWN_NAMES, FileList, list_files
from niels_gpt.sources.text_files import TextFiles

# Front matter: a block between two lines of three dashes at the very top of a note.
_FRONT_MATTER = re.compile(r"\A---[ \t]*\r?\n.*?^---[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE)
_WIKI_LINK = re.compile(r"!?\[\[(?:[^\]|]*\|)?([^\]|]+)\]\]")
# An address may have one level of parentheses, as in .../Tea_(plant), and a title in quotes after it.
_LINK = re.compile(r"!?\[([^\]]*)\]\([^()\s]*(?:\([^()\s]*\)[^()\s]*)*(?:\s+\"[^\"]*\")?\)")


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
