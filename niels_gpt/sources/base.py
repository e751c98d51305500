"""What a source is: something with a name, a revision and a fingerprint that yields rows in a fixed order."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from niels_gpt.inputs import Document, Rejected
from niels_gpt.messages import Conversation

Row = TypeVar("Row", Document, Conversation)


@dataclass
class ReadCount:
    """How many of how many pieces (rows, files) a source has read."""

    done: int = 0
    total: int = 0

    def share(self) -> float | None:
        """Done of total, at most 1; `None` while either is 0."""
        return min(1.0, self.done / self.total) if self.done and self.total else None


class Source(ABC, Generic[Row]):
    """Yields documents or conversations; the same `config()` means the same rows in the same order.

    Attributes:
        streaming: rows come over the network while they are used, so the order depends on the remote side too.
    """

    streaming: ClassVar[bool] = False

    @property
    @abstractmethod
    def name(self) -> str:
        """The name that caches record."""

    @property
    @abstractmethod
    def revision(self) -> str | None:
        """The exact version of the data: a commit, or `None` where the fingerprint of the files says it."""

    @abstractmethod
    def config(self) -> dict[str, Any]:
        """All that decides which rows come, as caches record it; may read files or ask the hub."""

    @abstractmethod
    def iterate(self, *, start: int = 0) -> Iterator[Row | Rejected]:
        """The rows in order, from row `start` on; rows that are not used come as `Rejected` in their place.

        Raises:
            InputError, SourceError: the data cannot be read any further.
        """

    def __iter__(self) -> Iterator[Row | Rejected]:
        """All rows: a source can stand where rows are expected."""
        return self.iterate()

    def read_share(self) -> float | None:
        """How much of the data has been read so far, 0 to 1; `None` where that is not known."""
        return None

    def fingerprint(self) -> str:
        """sha256 of `config()`: equal fingerprints mean equal rows."""
        return hashlib.sha256(json.dumps(self.config(), sort_keys=True).encode()).hexdigest()


class TextSource(Source[Document]):
    """A source of documents."""


class ChatSource(Source[Conversation]):
    """A source of conversations."""
