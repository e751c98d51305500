"""Conversations from several of the user's own files, in the order in which they are named."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from glob import has_magic
from itertools import chain, islice
from pathlib import Path
from typing import Any

from niels_gpt.errors import UsageError
from niels_gpt.inputs import Rejected, expand
from niels_gpt.messages import Conversation
from niels_gpt.remote import AnyFile, address, located
from niels_gpt.sources.base import ChatSource
from niels_gpt.sources.chat_file import ChatFile
from niels_gpt.sources.records import RECORD_SUFFIXES
from niels_gpt.sources.slices import Slice, slices, slices_of


@dataclass(frozen=True)
class ChatFiles(ChatSource):
    """Files of conversations, one after the other; each is read as its own rows look.

    A row without `source` has the name of its file there.

    Raises:
        UsageError: a file stands there twice.
    """

    files: tuple[ChatFile, ...]

    def __post_init__(self) -> None:
        for path, times in Counter(file.path for file in self.files).items():
            if times > 1:
                raise UsageError(f"{path}: given {times} times; name each file once")

    @property
    def name(self) -> str:
        """The name of the first file, and how many more there are."""
        more = len(self.files) - 1
        return self.files[0].name + (f" + {more} more" if more else "")

    @property
    def revision(self) -> None:
        """None: the files' hashes say which version this is."""

    def config(self) -> dict[str, Any]:
        """Each file by content (name, bytes, sha256) and the dialect it is read as. Reads every file once."""
        described = [file.config() for file in self.files]
        return {"inputs": [{**one["inputs"][0], "dialect": one["dialect"]} for one in described]}

    def iterate(self, *, start: int = 0) -> Iterator[Conversation | Rejected]:
        """The conversations of the first file, then of the second, from row `start` on; unusable rows as `Rejected`."""
        return islice(_rows_of(self.files), start, None)

    def slices(self, slice_bytes: int) -> Iterator[Slice]:
        """See `Sliceable`: small files go together, because a unit costs more than they do."""
        paths = [file.path for file in self.files]
        return slices_of(paths, slice_bytes, lambda path: slices(path, slice_bytes), whole_below=slice_bytes)

    def read(self, part: Slice) -> Iterator[Conversation | Rejected]:
        """See `Sliceable`."""
        if part.kind == "files":
            return _rows_of(self.files[part.start : part.stop])
        file = next(file for file in self.files if address(file.path) == part.path)
        return _sourced(file, file.read(part))

    def settled(self) -> ChatFiles:
        """See `Sliceable`."""
        return ChatFiles(tuple(file.settled() for file in self.files))


def _rows_of(files: Iterable[ChatFile]) -> Iterator[Conversation | Rejected]:
    return chain.from_iterable(_sourced(file, file.iterate()) for file in files)


def _sourced(file: ChatFile, rows: Iterable[Conversation | Rejected]) -> Iterator[Conversation | Rejected]:
    for row in rows:
        if isinstance(row, Conversation) and row.metadata.get("source") in (None, ""):
            yield replace(row, metadata={**row.metadata, "source": file.name})
        else:
            yield row


def chat_files(inputs: Sequence[str | AnyFile], dialect: str | None = None) -> ChatFile | ChatFiles:
    """What files, URLs and glob patterns stand for, in this order without repeats.

    Raises:
        UsageError: an unknown dialect. InputError: a pattern matches nothing.
    """
    paths = dict.fromkeys(path for given in inputs for path in _located(given))
    files = tuple(ChatFile(path, dialect) for path in paths)
    return files[0] if len(files) == 1 else ChatFiles(files)


def _located(given: str | AnyFile) -> Sequence[AnyFile]:
    path = located(given)
    if isinstance(path, Path) and not path.exists() and has_magic(str(path)):
        return expand([path], RECORD_SUFFIXES)
    return [path]


def read_as(source: ChatFile | ChatFiles, config: dict[str, Any]) -> str:
    """What the files of a source were taken for, in words."""
    if isinstance(source, ChatFile):
        return f"{source.path}: read as {config['dialect'] or 'messages'} (override with --format)"
    found = Counter(one["dialect"] or "messages" for one in config["inputs"])
    told = ", ".join(f"{number} as {dialect}" for dialect, number in found.items())
    return f"{len(source.files)} files: {told} (override with --format)"
