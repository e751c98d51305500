"""Splits in several files, each a set of its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path

from niels_gpt.checksums import FileRecord
from niels_gpt.export.filesets import FileSet
from niels_gpt.export.formats import Settings
from niels_gpt.export.rows import Rows
from niels_gpt.export.source import Facts


class Shards(ABC):
    """Begins another shard where the one before would hold more than `shard_tokens`. Rows are never cut."""

    def __init__(self, folder: Path, facts: Facts, settings: Settings) -> None:
        self.folder, self.facts, self.settings = folder, facts, settings
        self.set = FileSet(folder)
        self.tokens = 0  # of the shard that is open
        self._shards = 0
        self._is_open = False

    @property
    def files(self) -> dict[str, FileRecord]:
        """The finished files."""
        return self.set.files

    def write(self, rows: Rows) -> None:
        """Append rows, in a new shard if need be."""
        if self._is_open and self.tokens + len(rows.ids) > self.settings.shard_tokens:
            self._end()
        if not self._is_open:
            self.tokens = 0
            self.begin(self._shards)
            self._shards += 1
            self._is_open = True
        self.append(rows)
        self.tokens += len(rows.ids)

    def _end(self) -> None:
        if self._is_open:
            self.end()
            self.set.finish()
            self._is_open = False

    @abstractmethod
    def begin(self, number: int) -> None:
        """Open the files of a shard."""

    @abstractmethod
    def append(self, rows: Rows) -> None:
        """Write rows into them; `tokens` counts those that are there already."""

    @abstractmethod
    def end(self) -> None:
        """Write what comes at the end of a shard; its files are closed after that."""

    def close(self) -> None:
        """Finish the last shard."""
        self._end()

    def abandon(self) -> None:
        """Let go of unfinished files; harmless after `close`."""
        self.set.abandon()
