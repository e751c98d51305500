"""The text that every match of a regular expression holds: rows without it need not be read."""

from __future__ import annotations

import re
from re import _constants as codes  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

_REPEATS = (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT)
_LEAST = 2  # characters; a shorter text is in most rows


def required_text(pattern: str) -> str:
    r"""The longest run of letters, digits, `_`, `-` and spaces between them that every match holds; empty if none is
    known. It is searched in lower case.

    Only ASCII, which JSON writes as it is. Upper and lower case of ASCII letters count as the same; Python also lets
    `k`, `s` and `i` match a few letters outside of ASCII (the Kelvin sign, ſ, ı), in whose rows such a text is missed.

    ::

        Needle-\d+        needle-
        (ab|cd) efg       efg

    Raises:
        re.error: no regular expression.
    """
    runs = [""]
    _collect(parser.parse(pattern, re.IGNORECASE), runs)
    longest = max((run.strip(" ") for run in runs), key=len)
    return longest.lower() if len(longest) >= _LEAST else ""


def _collect(items: Any, runs: list[str]) -> None:
    """Add the runs of a sequence that must match; the last run in the list may still grow."""
    for code, value in items:
        if code is codes.LITERAL and chr(value).isascii() and (chr(value).isalnum() or chr(value) in "_- "):
            runs[-1] += chr(value)
        elif code is codes.SUBPATTERN:
            _collect(value[3], runs)
        elif code is codes.ATOMIC_GROUP:
            _collect(value, runs)
        elif code in _REPEATS and value[0] > 0:
            # Once at least; the text before it and the text after it need not be adjacent.
            runs.append("")
            _collect(value[2], runs)
            runs.append("")
        else:
            runs.append("")
