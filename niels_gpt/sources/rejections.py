"""Rejected rows: counted, written to `rejected.jsonl`, and an error when they are too many."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from niels_gpt.errors import DataError
from niels_gpt.sources.inputs import Rejected
from niels_gpt.storage.checksums import FileRecord
from niels_gpt.storage.files import HashedWriter

REJECTED_NAME = "rejected.jsonl"

_NUMBERED = re.compile(r"(?: row|^row|^example|^document) \d+$")  # lines (`chats.jsonl:17`) are counted from 1

Row = TypeVar("Row")


class Rejections:
    """Counts the rejected rows of a build and writes each to `rejected.jsonl`, which is created with the first.

    Attributes:
        dropped: number of rows left out, by reason code.
        changed: number of rows used with something changed or left out, by code, such as `arrow_nulls_dropped`.
        files: the record of `rejected.jsonl`, after `close`, if there is one.
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
    def max_bad_rows(self) -> int:
        """The number of bad rows that are allowed."""
        return self._limit

    @property
    def bad_rows(self) -> int:
        """How many rejected rows were not left out on purpose."""
        return self._bad

    def record(self, rows: Iterable[Rejected]) -> None:
        """Count rejected rows.

        Raises:
            DataError: see `accepted`.
        """
        for row in rows:
            self._add(row)

    def accepted(self, rows: Iterable[Row | Rejected]) -> Iterator[Row]:
        """Yield the usable rows; count the rejected ones among them.

        Raises:
            DataError: more than `max_bad_rows` bad rows; the message is that of the last one.
        """
        for row in rows:
            if isinstance(row, Rejected):
                self._add(row)
            else:
                yield row

    def _add(self, row: Rejected) -> None:
        self.dropped[row.reason] += 1
        if row.expected:  # left out on purpose, which is no fault of the data
            return
        self._bad += 1
        if self._bad > self._limit:
            advice = "To leave such rows out: --max-bad-rows N (max_bad_rows=N)"
            if self._limit:
                advice = f"This is more than the {self._limit:,} bad rows allowed: {dict(self.dropped)}"
            counting = "Rows are counted from 0. " if _NUMBERED.search(row.where) else ""
            raise DataError(f"{row.detail.rstrip('.')}. {counting}{advice}")
        if self._file is None:
            self._file = HashedWriter(self._path)
        line = {"where": row.where, "reason": row.reason, "detail": row.detail}
        self._file.write((json.dumps(line, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace"))

    def close(self) -> None:
        """Finish the file."""
        if self._file is not None:
            self.files[REJECTED_NAME] = self._file.close()

    def abandon(self) -> None:
        """Delete an unfinished file; does nothing after `close`."""
        if self._file is not None:
            self._file.abandon()
