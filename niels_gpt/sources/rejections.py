"""Rows that a build leaves out: counted, written to `rejected.jsonl`, and an error when too many are unusable.

::

    max_bad_rows=3       up to three unusable rows are left out
    max_bad_rows="5%"    up to five of a hundred rows, which is judged when all rows have been read
    max_bad_rows="all"   any number

Rows that a filter or a source leaves out on purpose (`Rejected.expected`) do not count as unusable.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Final, TypeVar

from niels_gpt.errors import DataError, UsageError, shortened, shown, without_passwords
from niels_gpt.ranges import MAX_BAD_ROWS
from niels_gpt.sources.files.inputs import Rejected
from niels_gpt.store.checksums import FileRecord
from niels_gpt.store.files import HashedWriter

REJECTED_NAME = "rejected.jsonl"
ALL: Final = "all"
EXAMPLES: Final = 3  # rows of each reason that an error quotes
LONGEST_EXAMPLE: Final = 300  # characters
MOST_REASONS: Final = 12  # that an error lists
# Once too many rows are unusable the build cannot succeed. It reads on for so many rows, to report all reasons at once.
READ_ON_ROWS: Final = 10_000

# What accepts the rows of a reason, for the error message; each option has an equal keyword (--allow-partial:
# allow_partial=True). Reasons that only a change of the row can repair are not listed.
ACCEPTED_BY: Final = {
    "messages_not_a_list": "--format or --columns, if the conversation is in another column",
    "missing_column": "--columns NAME=PATH, if the column has another name",
    "missing_field": "--columns NAME=PATH, if the field has another name",
    "no_column": "--columns NAME=PATH, if the column has another name",
    "no_text": "--columns NAME=PATH, if the text is in another column",
    "partial_attribution": "`niels-gpt doctor template MODEL` proposes a final_stop; `niels-gpt renderers` lists "
    "families; --allow-partial, whose masks may train the template's own tokens",
    "row_not_an_object": "--format, if the file has another one",
    "template_raised": "--renderer NAME, if a family's own renderer takes such conversations",
    "too_long": "--max-message-bytes N",
    "unknown_role": "--roles THEIRS=ROLE",
    "unsupported_content": "--renderer NAME of a family that has a place for it",
    "unsupported_field": "--renderer NAME of a family that has a place for it",
    "unwritten": "--on-unwritten drop, or --renderer NAME of a family that has a place for it",
}

_NUMBERED = re.compile(r"(?: row|^row|^example|^document) \d+$")  # lines (`chats.jsonl:17`) are counted from 1
_PERCENT = re.compile(r"(\d{1,3}(?:\.\d{1,6})?) ?%")

Row = TypeVar("Row")


@dataclass(frozen=True)
class BadRowLimit:
    """How many unusable rows a build may leave out.

    Attributes:
        rows: so many; `None` means any number.
        share: of all rows that are not left out on purpose, instead of a number.
    """

    rows: int | None = 0
    share: Fraction | None = None

    @classmethod
    def of(cls, value: Any, name: str = "max_bad_rows") -> BadRowLimit:
        """The limit that a caller writes as a number, as "5%" or as "all".

        Raises:
            UsageError: something else.
        """
        # Python converts at most 4300 digits; a number of 30 digits is too large anyway.
        if isinstance(value, str) and value.strip().isdecimal() and value.isascii():
            value = int(value.strip()[:30])
        if not isinstance(value, str):
            return cls(MAX_BAD_ROWS.whole(value, name))
        if value == ALL:
            return cls(None)
        found = _PERCENT.fullmatch(value.strip())
        if found is None or Fraction(found[1]) > 100:
            number = re.fullmatch(r"\s*-\d+\s*", value)
            expected = "0 or more" if number else 'a number of rows, a share such as 5%, or "all"'
            raise UsageError(f"{name} is {shown(int(value) if number else value)}; expected {expected}")
        # Exact: in floats 29% of 100 rows are 28.999999999999996, and 29 unusable ones would be too many.
        return cls(None, Fraction(found[1]) / 100)

    def allows(self, bad: int, rows: int) -> bool:
        """Whether so many of so many rows may be unusable."""
        if self.share is not None:
            return bad <= self.share * rows
        return self.rows is None or bad <= self.rows

    def __str__(self) -> str:
        if self.share is not None:
            return f"{float(self.share * 100):g}%"
        return ALL if self.rows is None else f"{self.rows:,}"


class TooManyBadRows(DataError):
    """A build has more unusable rows than it may leave out. The message has a line for each reason and example."""

    def __str__(self) -> str:
        # Other errors are on one line; the parts of this one are printable already.
        return str(self.args[0])


def _sentence(row: Rejected) -> str:
    return shortened(without_passwords(row.detail), LONGEST_EXAMPLE).rstrip(".")


class Rejections:
    """Counts the rows that a build leaves out and writes each to `rejected.jsonl`, which is created with the first.

    Attributes:
        dropped: number of rows left out, by reason code.
        changed: number of rows used with something changed or left out, by code, such as `arrow_nulls_dropped`.
        unread: number of rows used with a key that nothing reads, by key, such as `message.score`.
        bad_rows: how many were unusable, and not left out on purpose.
        usable: how many were usable, see `within_limit`.
        relative_to: paths below this directory are written relative to it.
        files: the record of `rejected.jsonl`, after `close`, if there is one.

    Args:
        max_bad_rows: see `BadRowLimit.of`.
    """

    def __init__(self, folder: Path, max_bad_rows: int | str) -> None:
        self.dropped: Counter[str] = Counter()
        self.changed: Counter[str] = Counter()
        self.unread: Counter[str] = Counter()
        self.bad_rows = self.usable = 0
        self.relative_to: Path | None = None
        self.files: dict[str, FileRecord] = {}
        self._limit = BadRowLimit.of(max_bad_rows)
        self._bad: dict[str, list[Rejected]] = {}  # the first unusable rows of each reason
        self._rows_at_excess: int | None = None
        self._path = folder / REJECTED_NAME
        self._file: HashedWriter | None = None

    @property
    def rows(self) -> int:
        """How many rows were read so far, without those left out on purpose; see `within_limit`."""
        return self.usable + self.bad_rows

    def record(self, rows: Iterable[Rejected]) -> None:
        """Count rejected rows.

        Raises:
            TooManyBadRows: `READ_ON_ROWS` rows after there were too many.
        """
        for row in rows:
            self._add(row)

    def accepted(self, rows: Iterable[Row | Rejected]) -> Iterator[Row]:
        """Yield the usable rows; count the rejected ones among them.

        Raises:
            TooManyBadRows: as `record`.
        """
        for row in rows:
            if isinstance(row, Rejected):
                self._add(row)
            else:
                yield row

    def within_limit(self, chunks: Generator[Row], rows_in: Callable[[Row], int]) -> Generator[Row]:
        """The chunks before the unusable row that exceeds the limit; after it rows are only read and counted.

        Args:
            chunks: it is closed with this generator. rows_in: the number of rows in a chunk.

        Raises:
            TooManyBadRows: after all rows, or `READ_ON_ROWS` rows after there were too many.
        """
        with closing(chunks):
            for chunk in chunks:
                self.usable += rows_in(chunk)
                if self._rows_at_excess is None:
                    yield chunk
                self._stop_reading_on()
        self.check()

    def _add(self, row: Rejected) -> None:
        self.dropped[row.reason] += 1
        if not row.expected:
            self.bad_rows += 1
            examples = self._bad.setdefault(row.reason, [])
            if len(examples) < EXAMPLES:
                examples.append(row)
            # A share can be judged only when all rows have been read.
            if self._rows_at_excess is None and self._limit.share is None and not self._limit.allows(self.bad_rows, 0):
                self._rows_at_excess = self.rows
        # From here on rows are only counted: the build fails, and the file is deleted with its directory.
        if self._rows_at_excess is not None:
            self._stop_reading_on()
            return
        place = "" if self.relative_to is None else f"{self.relative_to}/"
        where, detail = (text.replace(place, "") if place else text for text in (row.where, row.detail))
        line: dict[str, Any] = {"where": where, "reason": row.reason, "detail": detail}
        if row.expected:
            line["expected"] = True
        if self._file is None:
            self._file = HashedWriter(self._path)
        # A detail may quote an unpaired surrogate, which UTF-8 does not have.
        self._file.write((json.dumps(line, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace"))

    def _stop_reading_on(self) -> None:
        if self._rows_at_excess is not None and self.rows - self._rows_at_excess >= READ_ON_ROWS:
            raise self._too_many("the first")

    def check(self) -> None:
        """Raise `TooManyBadRows` if too many rows were unusable; called after the last row."""
        if not self._limit.allows(self.bad_rows, self.rows):
            raise self._too_many("all")

    def _too_many(self, of: str) -> TooManyBadRows:
        """The error of too many unusable rows: a line for each reason and example."""
        # Reasons are in the order in which they were found, so this is the first of all bad rows.
        first = next(iter(self._bad.values()))[0]
        numbered = " Rows are counted from 0." if _NUMBERED.search(first.where) else ""
        counts = f"Unusable: {self.bad_rows:,} of {of} {self.rows:,} rows; allowed: {self._limit}"
        lines = [f"{_sentence(first)}.{numbered} {counts}"]
        for code, examples in list(self._bad.items())[:MOST_REASONS]:
            rows = self.dropped[code]
            accepted = f"; {ACCEPTED_BY[code]}" if code in ACCEPTED_BY else ""
            lines.append(f"  {code}, {rows:,} {'row' if rows == 1 else 'rows'}{accepted}")
            # The only row is quoted above.
            lines += [f"    {_sentence(row)}" for row in examples if self.bad_rows > 1]
        if len(self._bad) > MOST_REASONS:
            lines.append(f"  and {len(self._bad) - MOST_REASONS:,} other reasons")
        advice = f"--max-bad-rows {self.bad_rows} (max_bad_rows={self.bad_rows}), or a share such as 5%, or all"
        lines.append(f"  To leave such rows out and list them in {REJECTED_NAME}: {advice}")
        return TooManyBadRows("\n".join(lines))

    def close(self) -> None:
        """Finish the file.

        Raises:
            TooManyBadRows: see `check`.
        """
        self.check()
        if self._file is not None:
            self.files[REJECTED_NAME] = self._file.close()

    def abandon(self) -> None:
        """Delete an unfinished file; does nothing after `close`."""
        if self._file is not None:
            self._file.abandon()
