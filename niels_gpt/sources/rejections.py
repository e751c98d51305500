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
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeVar

from niels_gpt.errors import DataError, UsageError, shortened, shown, without_passwords
from niels_gpt.progress import SILENT, Progress
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
READ_ON_ROWS: Final = 100_000

# What accepts the rows of a reason, for the error message; each option has an equal keyword (--allow-partial:
# allow_partial=True). Reasons that only a change of the row can repair are not listed.
ACCEPTED_BY: Final[Mapping[str, str]] = MappingProxyType(
    {
        "messages_not_a_list": "--format or --columns, if the conversation is in another column",
        "missing_column": "--columns NAME=PATH, if the column has another name",
        "missing_field": "--columns NAME=PATH, if the field has another name",
        "no_column": "--columns NAME=PATH, if the column has another name",
        "no_text": "--columns NAME=PATH, if the text is in another column",
        "partial_attribution": "--allow-partial, whose masks may train the template's own tokens",
        "row_not_an_object": "--format, if the file has another one",
        "template_raised": "--renderer NAME, if a family's own renderer takes such conversations",
        "too_long": "--max-message-bytes N",
        "unknown_role": "--roles THEIRS=ROLE",
        "unsupported_content": "--renderer NAME of a family that has a place for it",
        "unsupported_field": "--renderer NAME of a family that has a place for it",
        "unwritten": "--on-unwritten drop, or --renderer NAME of a family that has a place for it",
    }
)

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
        # Python converts at most 4300 digits; a number of more digits than the largest one is too large anyway.
        if isinstance(value, str) and value.strip().isdecimal() and value.isascii():
            value = int(value) if len(value) < len(str(MAX_BAD_ROWS.most)) else MAX_BAD_ROWS.most + 1
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


@dataclass
class RejectedReason:
    """The rows that were left out for one reason.

    Attributes:
        rows: their number.
        examples: the first `EXAMPLES` of them.
    """

    rows: int = 0
    examples: list[Rejected] = field(default_factory=list)

    def add(self, row: Rejected) -> None:
        """Count a row."""
        self.rows += 1
        if len(self.examples) < EXAMPLES:
            self.examples.append(row)


class TooManyBadRows(DataError):
    """A build has more unusable rows than it may leave out. The message has a line for each reason and example.

    Attributes:
        bad_rows, rows: how many of how many rows are unusable, without those left out on purpose.
        whole: all rows of the input were read.
        limit: how many may be.
        reasons: by code.
    """

    def __init__(
        self, bad_rows: int, rows: int, *, whole: bool, limit: BadRowLimit, reasons: Mapping[str, RejectedReason]
    ) -> None:
        # The arguments become `args`, from which `__reduce__` makes the error again in another process.
        super().__init__(bad_rows, rows, whole, limit, reasons)
        self.bad_rows, self.rows, self.whole, self.limit, self.reasons = bad_rows, rows, whole, limit, reasons

    def __reduce__(self) -> tuple[Any, ...]:
        """For errors from other processes: by default, unpickling would pass the keywords by position."""
        return _again, self.args

    def __str__(self) -> str:
        # Reasons are in the order in which they were found, so this is the first of all bad rows.
        first = next(iter(self.reasons.values())).examples[0]
        counted = "all" if self.whole else "the first"
        advice = f"--max-bad-rows {self.bad_rows} (max_bad_rows={self.bad_rows}), or a share such as 5%, or all"
        numbered = " Rows are counted from 0." if _NUMBERED.search(first.where) else ""
        lines = [
            f"{_sentence(first.detail)}.{numbered} Unusable: {self.bad_rows:,} of {counted} {self.rows:,} rows; "
            f"allowed: {self.limit}"
        ]
        for code, reason in list(self.reasons.items())[:MOST_REASONS]:
            accepted = f"; {ACCEPTED_BY[code]}" if code in ACCEPTED_BY else ""
            lines.append(f"  {code}, {reason.rows:,} {'row' if reason.rows == 1 else 'rows'}{accepted}")
            # The only row is quoted above.
            lines += [f"    {_sentence(row.detail)}" for row in reason.examples if self.bad_rows > 1]
        if len(self.reasons) > MOST_REASONS:
            lines.append(f"  and {len(self.reasons) - MOST_REASONS:,} other reasons")
        lines.append(f"  To leave such rows out and list them in {REJECTED_NAME}: {advice}")
        return "\n".join(lines)


def _again(
    bad_rows: int, rows: int, whole: bool, limit: BadRowLimit, reasons: Mapping[str, RejectedReason]
) -> TooManyBadRows:
    return TooManyBadRows(bad_rows, rows, whole=whole, limit=limit, reasons=reasons)


def _sentence(detail: str) -> str:
    return shortened(without_passwords(detail), LONGEST_EXAMPLE).rstrip(".")


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
        self.bad_rows = 0
        self.files: dict[str, FileRecord] = {}
        self._limit = BadRowLimit.of(max_bad_rows)
        self.usable = 0
        self.relative_to: Path | None = None
        self._reasons: dict[str, RejectedReason] = {}
        self._rows_at_excess: int | None = None
        self._progress = SILENT
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

    def within_limit(
        self, chunks: Generator[Row], rows_in: Callable[[Row], int], progress: Progress = SILENT
    ) -> Generator[Row]:
        """The chunks before the unusable row that exceeds the limit; after it rows are only read and counted.

        Args:
            chunks: it is closed with this generator. rows_in: the number of rows in a chunk.
            progress: receives a note that the build reads on.

        Raises:
            TooManyBadRows: after all rows, or `READ_ON_ROWS` rows after there were too many.
        """
        self._progress = progress
        with closing(chunks):
            try:
                for chunk in chunks:
                    self.usable += rows_in(chunk)
                    if self._rows_at_excess is None:
                        yield chunk
                    else:
                        self._stop_after_reading_on()
            except DataError as error:
                # What was found first is reported, not what the reading on ran into.
                if self._rows_at_excess is None or isinstance(error, TooManyBadRows):
                    raise
                raise self._too_many(whole=False) from error
        self.check()

    def _add(self, row: Rejected) -> None:
        self.dropped[row.reason] += 1
        if not row.expected:
            self.bad_rows += 1
            self._reasons.setdefault(row.reason, RejectedReason()).add(row)
            # A share can be judged only when all rows have been read.
            if self._rows_at_excess is None and self._limit.share is None and not self._limit.allows(self.bad_rows, 0):
                self._rows_at_excess = self.rows
                text = f"{_sentence(row.detail)}. Too many unusable rows; reading on, to report all reasons at once"
                self._progress.note(text)
        # From here on rows are only counted: the build fails, and the file is deleted with its directory.
        if self._rows_at_excess is not None:
            self._stop_after_reading_on()
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

    def _stop_after_reading_on(self) -> None:
        if self._rows_at_excess is not None and self.rows - self._rows_at_excess >= READ_ON_ROWS:
            raise self._too_many(whole=False)

    def _too_many(self, *, whole: bool) -> TooManyBadRows:
        return TooManyBadRows(self.bad_rows, self.rows, whole=whole, limit=self._limit, reasons=self._reasons)

    def check(self) -> None:
        """Raise `TooManyBadRows` if too many rows were unusable; called after the last row.

        Raises:
            TooManyBadRows: too many were unusable.
        """
        if not self._limit.allows(self.bad_rows, self.rows):
            raise self._too_many(whole=True)

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
