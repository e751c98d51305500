"""What the page shows of whatever is open: pages of rows that pass a filter, one row in detail."""

from __future__ import annotations

import re
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from niels_gpt.errors import UsageError
from niels_gpt.explorer.renderer_list import RendererChoice
from niels_gpt.explorer.token_columns import LossMode, TokenTable

SCAN_SECONDS = 0.5  # a filter scans so long in one request; the page then asks again from where it ended


class NoSuchRow(UsageError):
    """There is no such row; the page shows the error beside the row field."""


@dataclass(frozen=True)
class Filter:
    """Which rows to list.

    Attributes:
        text: occurs in a message, or in the decoded tokens, in upper or lower case.
        unusable: only rows of a chat file that cannot be used; the text is then searched in the reason.
        min_size, max_size: in characters for chats, in tokens for stored rows; both inclusive.
        rows: only these rows, ascending; `None` for all.
    """

    text: str = ""
    unusable: bool = False
    min_size: int | None = None
    max_size: int | None = None
    rows: tuple[int, ...] | None = None

    def matches(self, text: str) -> bool:
        """Whether a text contains what is searched."""
        return re.search(re.escape(self.text), text, re.IGNORECASE) is not None

    def fits(self, size: int) -> bool:
        """Whether a row of this size passes."""
        return (self.min_size is None or size >= self.min_size) and (self.max_size is None or size <= self.max_size)


ALL_ROWS = Filter()


@dataclass(frozen=True)
class RowSummary:
    """One line of the list of rows.

    Attributes:
        where: the file and line, or the kind and row number.
        size: characters of a chat, tokens of a stored row.
        roles: of a chat's messages.
        trained: how many tokens are trained; `None` for chats.
        problem: why the row cannot be used; empty if it can.
    """

    row: int
    where: str
    preview: str
    size: int
    roles: Sequence[str] = ()
    trained: int | None = None
    problem: str = ""


@dataclass(frozen=True)
class Page:
    """Some rows.

    Attributes:
        next: the row from which the next page starts; `None` at the end.
        scanned: all rows before this one were examined.
    """

    rows: list[RowSummary]
    next: int | None
    scanned: int


@dataclass(frozen=True)
class RowDetail:
    """One row: its conversation if it has one, and its tokens, or the problem that prevents them.

    Attributes:
        completions: of a row of preferences, all of them, each with its `name` ("chosen", "completions 2"), its
            `facts` (rank, label, score and margin as a text), its beginning, `text`, and its `size` in characters; the
            conversation ends with number `completion`.
        source: the beginning of a row that is no conversation, as the file has it.
    """

    row: int
    where: str
    table: TokenTable | None
    conversation: dict[str, Any] | None = None
    problem: str = ""
    completions: Sequence[dict[str, Any]] = ()
    completion: int = 0
    source: str = ""


@dataclass(frozen=True)
class About:
    """A description of a split of the open dataset.

    Attributes:
        kind: "chats", "sft", "pretrain" or "episodes".
        unit: of row sizes: "characters" or "tokens".
        rows: how many rows are known so far; all of them when `share` is 1.
        share: how much of a file was searched for rows, 0 to 1.
        problem: why the search ended early; empty if it did not.
        facts: what else to show, by name.
    """

    name: str
    kind: str
    unit: str
    splits: list[str]
    rows: int
    share: float = 1.0
    problem: str = ""
    facts: dict[str, Any] = field(default_factory=dict)


class Dataset(ABC):
    """Conversations (`ChatRows`) or a dataset of ours (`StoredRows`).

    Attributes:
        splits: those that hold rows.
    """

    splits: list[str]

    @abstractmethod
    def about(self, split: str) -> About:
        """The description of a split."""

    @abstractmethod
    def summary(self, split: str, row: int, wanted: Filter) -> RowSummary | None:
        """The line of a row that passes the filter; `None` for other rows."""

    @abstractmethod
    def detail(
        self, split: str, row: int, choice: RendererChoice, modes: Sequence[LossMode], completion: int = 0
    ) -> RowDetail:
        """One row with its tokens under every loss mode.

        Args:
            choice: how a conversation is rendered; stored rows have their tokens already.
            completion: of a row of preferences in a file.

        Raises:
            NoSuchRow: there is none. UsageError: no such completion.
        """

    @abstractmethod
    def sizes(self, split: str, rows: list[int], choice: RendererChoice) -> list[tuple[int, float]]:
        """The length and the share of trained tokens of some rows; rows that cannot be used are left out."""

    def place_of(self, number: int) -> tuple[str, int]:
        """The split, and the row in it, of a row that the doctor numbers through all splits."""
        return self.splits[0], number

    def close(self) -> None:  # noqa: B027 (memory maps close themselves)
        """Close files."""

    def page(self, split: str, start: int, limit: int, wanted: Filter) -> Page:
        """Up to `limit` rows that pass the filter, from `start` on; fewer where `SCAN_SECONDS` are over."""
        about, stop = self.about(split), time.monotonic() + SCAN_SECONDS
        rows = range(start, about.rows) if wanted.rows is None else [row for row in wanted.rows if row >= start]
        found: list[RowSummary] = []
        scanned = about.rows
        for row in rows:
            if row >= about.rows:
                break
            summary = self.summary(split, row, wanted)
            if summary is not None:
                found.append(summary)
            # Checked after each row, so that a slow filter still makes progress with every request.
            if len(found) == limit or time.monotonic() > stop:
                scanned = row + 1
                break
        # A file that is still read has more rows: the page asks again from here.
        ended = scanned >= about.rows and about.share >= 1
        return Page(found, None if ended else max(start, scanned), scanned)

    def check_row(self, split: str, row: int) -> None:
        """Raise `NoSuchRow` unless there is such a row."""
        about = self.about(split)
        if not 0 <= row < about.rows:
            far = f" so far ({about.share:.0%} of the file is read; try again in a moment)" if about.share < 1 else ""
            last = f"rows 0 to {about.rows - 1:,}" if about.rows else "no rows"
            raise NoSuchRow(f"{about.name} has {last}{far}; there is no row {row:,}")
