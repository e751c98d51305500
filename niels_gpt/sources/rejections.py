"""Rows that cannot be used: counted, written down, and at some point too many."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from niels_gpt.checksums import FileRecord
from niels_gpt.errors import DataError
from niels_gpt.files import HashedWriter
from niels_gpt.inputs import Rejected

REJECTED_NAME = "rejected.jsonl"

_NUMBERED = re.compile(r"(?: row|^row|^example|^document) \d+$")  # lines, as `chats.jsonl:17`, count from 1

Row = TypeVar("Row")


class Rejections:
    """Keeps count of a build's bad rows and writes each to `rejected.jsonl` (created with the first).

    Attributes:
        dropped: how many rows were left out, by reason code.
        changed: how many rows are used, but not with all that they hold or all that is known of them, by code.
        files: the record of `rejected.jsonl`, after `close`, if there were any.
    """

    def __init__(self, folder: Path, max_bad_rows: int) -> None:
        self.dropped: Counter[str] = Counter()
        self.changed: Counter[str] = Counter()
        self.files: dict[str, FileRecord] = {}
        self._path = folder / REJECTED_NAME
        self._limit = max_bad_rows
        self._bad = 0
        self._file: HashedWriter | None = None

    @property
    def most(self) -> int:
        """How many bad rows are allowed."""
        return self._limit

    def take(self, rows: Iterable[Rejected]) -> None:
        """Take in rows that are known to be unusable.

        Raises:
            DataError: see `usable`.
        """
        for row in rows:
            self._add(row)

    def usable(self, rows: Iterable[Row | Rejected]) -> Iterator[Row]:
        """Pass the good rows on; take the rejected ones in.

        Raises:
            DataError: more than `max_bad_rows` bad rows; the message is the last one's.
        """
        for row in rows:
            if isinstance(row, Rejected):
                self._add(row)
            else:
                yield row

    def _add(self, row: Rejected) -> None:
        self.dropped[row.reason] += 1
        if row.expected:
            return
        self._bad += 1
        if self._bad > self._limit:
            way_out = "To leave such rows out: --max-bad-rows N (max_bad_rows=N)"
            if self._limit:
                way_out = f"This is more than the {self._limit:,} bad rows allowed: {dict(self.dropped)}"
            told = "Rows are counted from 0. " if _NUMBERED.search(row.where) else ""
            raise DataError(f"{row.detail.rstrip('.')}. {told}{way_out}")
        if self._file is None:
            self._file = HashedWriter(self._path)
        line = {"where": row.where, "reason": row.reason, "detail": row.detail}
        self._file.write((json.dumps(line, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace"))

    def close(self) -> None:
        """Finish the file."""
        if self._file is not None:
            self.files[REJECTED_NAME] = self._file.close()

    def abandon(self) -> None:
        """Let go of an unfinished file; harmless after `close`."""
        if self._file is not None:
            self._file.abandon()
