"""What an export format is: how a split is written, what of the data it can hold, and how to use the files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from niels_gpt.export.arranging import Arrangement
from niels_gpt.export.source import Source
from niels_gpt.store.checksums import FileRecord
from niels_gpt.store.rows import Rows

SHARD_TOKENS = 1 << 27


@dataclass(frozen=True)
class Settings:
    """The choices of an export.

    Attributes:
        how: which rows, in which order, cut and packed how.
        shard_tokens: the most tokens of one file, in formats of several files (a longer row has a file of its own).
        options: options of this format only, by name; see `Format.options`.
        binary: write weights above 0 as 1 where only 0 and 1 fit.
    """

    how: Arrangement = field(default_factory=Arrangement)
    shard_tokens: int = SHARD_TOKENS
    options: dict[str, Any] = field(default_factory=dict)
    binary: bool = False

    def several_texts(self, source: Source) -> bool:
        """Whether rows may hold several texts."""
        return self.how.packing or source.several_texts


class SplitWriter(Protocol):
    """Writes one split.

    Attributes:
        files: the written files, by name below the export's directory; complete after `close`.
    """

    @property
    def files(self) -> dict[str, FileRecord]: ...

    def write(self, rows: Rows) -> None:
        """Append rows."""

    def close(self) -> None:
        """Finish all files."""

    def abandon(self) -> None:
        """Close unfinished files after an error; does nothing after `close`."""


@dataclass(frozen=True)
class Format:
    """One export format.

    Attributes:
        title: the program that reads it, and its files, in one line.
        open: makes the writer of a split, from the export's directory, the split and the settings.
        use: how to use the files: lines for the README, from the settings and the splits.
        mask: what of the loss mask the format holds: "binary" (0 and 1) or "weights".
        packs: rows may hold several texts.
        options: names and defaults of options of this format only.
        library: the optional library that writes it.
    """

    name: str
    title: str
    open: Callable[[Path, Source, Settings], SplitWriter]
    use: Callable[[Settings, dict[str, Source]], list[str]]
    mask: str
    packs: bool = True
    options: dict[str, Any] = field(default_factory=dict)
    library: str | None = None
