"""Searching the bytes of JSON lines for rows that may match a regular expression: rows without a match need no reading.

Hyperscan searches the bytes for the expression that `byte_pattern` makes, several gigabytes a second. What is found is
then proven on the texts themselves. Where `byte_pattern` does not know this Python's `re`, every row may match.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import hyperscan

byte_pattern: Callable[[str], bytes] | None
try:
    from niels_gpt.explorer.byte_pattern import byte_pattern
# Private names of `re` may be others in a later Python, or in one that is not CPython.
except (ImportError, AttributeError):
    byte_pattern = None

# How rows are searched, where that is slower than usual; for people.
SLOW: Final = "" if byte_pattern else "row by row, because this Python's re module has a parser that is not known here"


class ByteSearch:
    """A search for a regular expression in JSON lines, whatever the case of letters; for one thread.

    A text is a string of a row; or arguments of a tool call as `json.dumps` writes them, and then a number that the row
    writes otherwise (1e3) is missed.

    Raises:
        re.error: no regular expression.
    """

    def __init__(self, pattern: str) -> None:
        self._database: hyperscan.Database | None = None
        if byte_pattern is None:
            re.compile(pattern, re.IGNORECASE)
            return
        self._database = hyperscan.Database()
        try:
            self._database.compile([byte_pattern(pattern)], flags=[hyperscan.HS_FLAG_CASELESS])
        # It also matches the empty text, so all rows may match; or it is too large.
        except hyperscan.error:
            self._database = None

    def find(self, block: memoryview) -> int:
        """The last byte of the first match; -1 if there is none, 0 if it is not known."""
        if self._database is None:
            return 0 if block else -1
        last = -1

        def matched(_id: int, _start: int, end: int, _flags: int, _context: object) -> bool:
            nonlocal last
            last = end - 1
            return True  # ends the scan, which hyperscan reports as an error

        with suppress(hyperscan.ScanTerminated):
            self._database.scan(block, match_event_handler=matched)  # type: ignore[type-var]
        return last
