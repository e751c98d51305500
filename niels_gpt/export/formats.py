"""What an export format is: how a split is written, what of the data it can hold, and how to use the files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from niels_gpt.export.rows import Rows
from niels_gpt.export.source import Facts
from niels_gpt.store.checksums import FileRecord

SHARD_TOKENS = 1 << 27


@dataclass(frozen=True)
class Settings:
    """The choices of an export that concern how a format writes.

    Attributes:
        packing: rows hold several texts each.
        max_length: the most tokens of a row; `None` if not limited.
        shard_tokens: the most tokens of one file, in formats of several files (a longer row has a file of its own).
        options: options of this format only, by name; see `Format.options`.
        binary: write weights above 0 as 1 where only 0 and 1 fit.
    """

    packing: bool = False
    max_length: int | None = None
    shard_tokens: int = SHARD_TOKENS
    options: dict[str, Any] = field(default_factory=dict)
    binary: bool = False

    def several_texts(self, facts: Facts) -> bool:
        """Whether rows may hold several texts."""
        return self.packing or facts.several_texts


class Files(Protocol):
    """The files of one split.

    Attributes:
        files: the written files, by name below the export's directory; complete after `close`.
    """

    @property
    def files(self) -> dict[str, FileRecord]: ...

    def close(self) -> None:
        """Finish all files."""
        ...

    def abandon(self) -> None:
        """Close unfinished files after an error; does nothing after `close`."""
        ...


class SplitWriter(Files, Protocol):
    """Writes one split."""

    def write(self, rows: Rows) -> None:
        """Append rows."""
        ...


@dataclass(frozen=True)
class Format:
    """One export format.

    Attributes:
        title: the program that reads it, and its files, in one line.
        open: makes the writer of a split, from the export's directory, the split's facts and the settings.
        use: how to use the files: lines for the README, from the settings and the facts of the written splits.
        mask: what of the loss mask the format holds: "binary" (0 and 1) or "weights".
        packs: rows may hold several texts.
        options: names and defaults of options of this format only.
        library: the optional library that writes it.
    """

    name: str
    title: str
    open: Callable[[Path, Facts, Settings], SplitWriter]
    use: Callable[[Settings, dict[str, Facts]], list[str]]
    mask: str
    packs: bool = True
    options: dict[str, Any] = field(default_factory=dict)
    library: str | None = None
