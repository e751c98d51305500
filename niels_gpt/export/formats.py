"""What a format is: how one split of it is written, what it keeps, and what its reader must be told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from niels_gpt.checksums import FileRecord
from niels_gpt.errors import UsageError
from niels_gpt.export.rows import Rows
from niels_gpt.export.source import Facts

SHARD_TOKENS = 1 << 27


@dataclass(frozen=True)
class Settings:
    """What formats may be asked.

    Attributes:
        packing: rows hold several texts each.
        max_length: the most tokens of a row, if that was limited.
        shard_tokens: begin another file before one would hold more, in formats with several files.
        options: of this format alone, by name; see `Format.options`.
    """

    packing: bool = False
    max_length: int | None = None
    shard_tokens: int = SHARD_TOKENS
    options: dict[str, Any] = field(default_factory=dict)

    def several_texts(self, facts: Facts) -> bool:
        """May a row hold several texts?"""
        return self.packing or facts.several_texts


class SplitWriter(Protocol):
    """Writes one split. `files`, by name below the export's directory, is complete after `close`."""

    @property
    def files(self) -> dict[str, FileRecord]: ...

    def write(self, rows: Rows) -> None: ...

    def close(self) -> None: ...

    def abandon(self) -> None: ...


@dataclass(frozen=True)
class Format:
    """One format.

    Attributes:
        title: whose it is, in a line.
        open: begins a split in the export's directory.
        use: what the consumer must be told: lines for the README; gets the splits that were written.
        mask: "none", "binary" (0 and 1) or "weights".
        rows: rows stay apart; without it only a stream of tokens remains.
        options: names and defaults of options of its own.
    """

    name: str
    title: str
    open: Callable[[Path, Facts, Settings], SplitWriter]
    use: Callable[[Settings, dict[str, Facts]], list[str]]
    mask: str
    packs: bool = True
    options: dict[str, Any] = field(default_factory=dict)


def token_dtype(facts: Facts, *, most_uint16: int = 65_536, wide: str = "<u4") -> str:
    """`<u2` where the recorded vocabulary fits, else `wide`; wide too where no vocabulary is recorded.

    Args:
        most_uint16: vocabularies of up to so many ids are small.
    """
    return "<u2" if facts.vocab_size is not None and facts.vocab_size <= most_uint16 else wide


def as_tokens(ids: npt.NDArray[Any], dtype: str) -> npt.NDArray[Any]:
    """The ids in a file's dtype; never wrapped.

    Raises:
        UsageError: an id that the dtype does not hold.
    """
    most = np.iinfo(dtype).max
    if ids.size and ids.max() > most:
        raise UsageError(f"id {int(ids.max()):,} does not fit into this format's {np.dtype(dtype).name}")
    return ids.astype(dtype)
