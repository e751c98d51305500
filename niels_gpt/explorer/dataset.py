"""What the dataset view asks of whatever was opened: pages of rows, one row, and where to look on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from niels_gpt.errors import UsageError
from niels_gpt.explorer.gallery import Choice
from niels_gpt.explorer.modes import LossMode
from niels_gpt.explorer.strip import Strip

SCAN_SECONDS = 0.5  # of one request: the page asks again from where it ended


class NoSuchRow(UsageError):
    """A row that is not there; the page says so beside the field."""


@dataclass(frozen=True)
class Filter:
    """Which rows are wanted.

    Attributes:
        text: found in a message, or in the decoded tokens; upper and lower case are alike.
        has: of chats, all of "system", "tools", "reasoning", "multi_turn", "unusable".
        min_size, max_size: characters of chats, tokens of stored rows.
    """

    text: str = ""
    has: frozenset[str] = frozenset()
    min_size: int | None = None
    max_size: int | None = None

    @property
    def empty(self) -> bool:
        """All rows are wanted."""
        return self == Filter()

    def fits(self, size: int) -> bool:
        """A row of this size is wanted."""
        return (self.min_size is None or size >= self.min_size) and (self.max_size is None or size <= self.max_size)


@dataclass(frozen=True)
class RowSummary:
    """A row of the table.

    Attributes:
        size: characters of a chat, tokens of a stored row.
        trained: how many tokens are, of stored rows.
        problem: why the row cannot be used; empty if it can.
    """

    row: int
    where: str
    preview: str
    size: int
    roles: list[str] = field(default_factory=list)
    trained: int | None = None
    problem: str = ""


@dataclass(frozen=True)
class Page:
    """Some rows, and the row to look on from; `None` at the end."""

    rows: list[RowSummary]
    next: int | None
    scanned: int


@dataclass(frozen=True)
class RowDetail:
    """One row: its conversation where it has one, its tokens where they can be made, else why not."""

    row: int
    where: str
    strip: Strip | None
    conversation: dict[str, Any] | None = None
    problem: str = ""


@dataclass(frozen=True)
class About:
    """What is open.

    Attributes:
        kind: "chats", "sft", "pretrain" or "episodes".
        unit: of sizes.
        rows: how many are known; all of them when `share` is 1.
    """

    name: str
    kind: str
    unit: str
    splits: list[str]
    rows: int
    share: float
    problem: str = ""
    facts: dict[str, Any] = field(default_factory=dict)


class Dataset(Protocol):
    """A chat file, a cache or episodes."""

    @property
    def splits(self) -> list[str]:
        """Those that hold rows."""

    def about(self, split: str) -> About:
        """What is open, and how much of it is known by now."""

    def page(self, split: str, start: int, limit: int, wanted: Filter) -> Page:
        """Up to `limit` wanted rows from `start` on, as far as one request may look."""

    def detail(self, split: str, row: int, choice: Choice, modes: list[LossMode]) -> RowDetail:
        """One row.

        Raises:
            NoSuchRow: there is none.
        """

    def close(self) -> None:
        """Let go of files."""

    def sizes(self, split: str, rows: list[int], choice: Choice) -> list[tuple[int, float]]:
        """Length and share of trained tokens of some rows, for histograms; rows that cannot be used are left out."""


def check_row(row: int, rows: int, share: float, name: str) -> None:
    """Raise `NoSuchRow` unless the row is there."""
    if not 0 <= row < rows:
        far = "" if share >= 1 else f" so far ({share:.0%} of the file is looked through; try again in a moment)"
        last = f"rows 0 to {rows - 1:,}" if rows else "no rows"
        raise NoSuchRow(f"{name} has {last}{far}; there is no row {row:,}")


def scanned(rows: Iterator[int], end: int, summary: Callable[[int], RowSummary | None], limit: int) -> Page:
    """The wanted ones of these rows, until there are `limit` or the time of a request is over.

    Args:
        rows: candidates, ascending. end: the row behind the last.
    """
    found: list[RowSummary] = []
    stop = time.monotonic() + SCAN_SECONDS
    at = 0
    for at in rows:
        made = summary(at)
        if made is not None:
            found.append(made)
        if len(found) == limit or time.monotonic() > stop:
            return Page(found, at + 1 if at + 1 < end else None, at + 1)
    return Page(found, None, end)
