"""What a source is: rows in a fixed order, with a name, a revision and a configuration."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

from niels_gpt.messages import Conversation
from niels_gpt.progress import SILENT, Progress
from niels_gpt.seeds import DEFAULT_SEED
from niels_gpt.sources.files.hashed_files import HashedFiles
from niels_gpt.sources.files.hub import HubDataset
from niels_gpt.sources.files.inputs import Document, Rejected

SHUFFLE_BUFFER = 10_000  # documents

Row = TypeVar("Row")


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """The options of named sources (see `registry`); each source uses those it knows.

    Attributes:
        dataset: for hub sources: another data set than the source's own.
        folder: for `RoamNotes`: the folder of notes.
        seed, shuffle_buffer: for sources that shuffle while they stream.
        english_only, max_messages: for `OpenAssistant`.
    """

    dataset: HubDataset | None = None
    folder: Path = Path("data/roam")
    seed: int = DEFAULT_SEED
    shuffle_buffer: int = SHUFFLE_BUFFER
    english_only: bool = True
    max_messages: int | None = None


class Source(ABC, Generic[Row]):
    """Yields documents or conversations; the same `config()` means the same rows in the same order.

    Attributes:
        streaming: rows are read over the network during a build, so their order also depends on the remote side.
        unbounded: there is more data than a build can use, so builds need token budgets.
        hashed: the hashes that `config` computed of the files, so that a file that changes afterwards is refused; see
            `sources.files.hashed_files`. `None` for a source that reads no files, or those of a hub's commit.
    """

    streaming: ClassVar[bool] = False
    unbounded: ClassVar[bool] = False
    hashed: HashedFiles | None = None

    @classmethod
    def from_options(cls, options: SourceOptions) -> Self:
        """The source with those of the options that it knows."""
        return cls()

    @property
    @abstractmethod
    def name(self) -> str:
        """The name that caches record."""

    @property
    def revision(self) -> str | None:
        """The exact version of the data: a commit; `None` for files, which `config` identifies by their hashes."""
        return None

    @abstractmethod
    def config(self, progress: Progress = SILENT) -> dict[str, Any]:
        """Everything that decides the rows, as manifests record it. May read files or make requests to the hub."""

    @abstractmethod
    def iterate(self, *, start: int = 0) -> Iterator[Row | Rejected]:
        """The rows in order, from row `start` on; `Rejected` in place of rows that cannot be used.

        Raises:
            InputError, SourceError: reading failed.
        """

    def __iter__(self) -> Iterator[Row | Rejected]:
        """All rows, so that a source can be passed where rows are expected."""
        return self.iterate()

    def fraction_read(self) -> float | None:
        """How much of the data has been read so far, 0 to 1; `None` if that is not known."""
        return None


class TextSource(Source[Document]):
    """A source of documents."""


class ChatSource(Source[Conversation]):
    """A source of conversations."""
