"""The interface between the page and what is open: pages of rows, filters, one row in detail."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

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
        role: for chats, only messages of this role are searched; without a text, the role must occur.
        has: for chats, all that must hold of "system", "tools", "reasoning", "multi_turn", "unusable".
        min_size, max_size: in characters for chats, in tokens for stored rows; both inclusive.
        rows: only these rows, ascending; `None` for all.
    """

    text: str = ""
    role: str = ""
    has: frozenset[str] = frozenset()
    min_size: int | None = None
    max_size: int | None = None
    rows: tuple[int, ...] | None = None

    @property
    def empty(self) -> bool:
        """Whether all rows pass."""
        return self == Filter()

    def matches(self, text: str) -> bool:
        """Whether a text contains what is searched."""
        return re.search(re.escape(self.text), text, re.IGNORECASE) is not None

    def fits(self, size: int) -> bool:
        """Whether a row of this size passes."""
        return (self.min_size is None or size >= self.min_size) and (self.max_size is None or size <= self.max_size)


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
    roles: list[str] = field(default_factory=list)
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
class CompletionSummary:
    """One completion in a row of preferences.

    Attributes:
        name: its column, such as "chosen" or "completions 2".
        facts: its rank, label, score and margin as a text; empty without them.
        text: its beginning. size: its characters.
    """

    name: str
    facts: str
    text: str
    size: int


@dataclass(frozen=True)
class RowDetail:
    """One row: its conversation if it has one, and its tokens, or the problem that prevents them.

    Attributes:
        completions: of a row of preferences, all of them; the conversation ends with number `completion`.
        source: the beginning of a row that is no conversation, as the file has it.
    """

    row: int
    where: str
    table: TokenTable | None
    conversation: dict[str, Any] | None = None
    problem: str = ""
    completions: list[CompletionSummary] = field(default_factory=list)
    completion: int = 0
    source: str = ""


@dataclass(frozen=True)
class About:
    """A description of the open dataset.

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
    share: float
    problem: str = ""
    facts: dict[str, Any] = field(default_factory=dict)


class Dataset(Protocol):
    """Conversations (`ChatRows`) or a dataset of ours (`StoredRows`)."""

    @property
    def splits(self) -> list[str]:
        """The splits that hold rows."""

    def about(self, split: str) -> About:
        """The description of a split."""

    def place_of(self, number: int) -> tuple[str, int]:
        """The split, and the row in it, of a row that the doctor numbers through all splits."""

    def page(self, split: str, start: int, limit: int, wanted: Filter) -> Page:
        """Up to `limit` rows that pass the filter, from `start` on; fewer where `SCAN_SECONDS` are over."""

    def detail(self, split: str, row: int, choice: RendererChoice, modes: list[LossMode]) -> RowDetail:
        """One row with its tokens under every loss mode.

        Args:
            choice: how a conversation is rendered; stored rows have their tokens already.

        Raises:
            NoSuchRow: there is none.
        """

    def close(self) -> None:
        """Close files."""

    def sizes(self, split: str, rows: list[int], choice: RendererChoice) -> list[tuple[int, float]]:
        """The length and the share of trained tokens of some rows; rows that cannot be used are left out."""


def check_row(row: int, rows: int, share: float, name: str) -> None:
    """Raise `NoSuchRow` unless there is such a row.

    Args:
        rows: how many are known. share: how much of the file was searched for them. name: of the dataset.
    """
    if not 0 <= row < rows:
        far = "" if share >= 1 else f" so far ({share:.0%} of the file is read; try again in a moment)"
        last = f"rows 0 to {rows - 1:,}" if rows else "no rows"
        raise NoSuchRow(f"{name} has {last}{far}; there is no row {row:,}")


def scanned(rows: Iterable[int], end: int, summary: Callable[[int], RowSummary | None], limit: int) -> Page:
    """The rows that pass, until there are `limit` of them or the time of a request is over.

    Args:
        rows: candidates, ascending. end: one more than the last row.
        summary: a candidate's line; `None` if it does not pass.
    """
    # The time limit is checked after each row, so that a slow filter still makes progress with every request.
    found: list[RowSummary] = []
    stop = time.monotonic() + SCAN_SECONDS
    # Also where no candidate is left.
    at = 0
    for at in rows:
        row_summary = summary(at)
        if row_summary is not None:
            found.append(row_summary)
        if len(found) == limit or time.monotonic() > stop:
            return Page(found, at + 1 if at + 1 < end else None, at + 1)
    return Page(found, None, end)
