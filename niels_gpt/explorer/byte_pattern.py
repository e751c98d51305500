"""A regular expression, rewritten for the bytes of JSON lines: it matches at least where it matches a text of them.

It reads expressions with the parser of `re`, which Python keeps under private names. Where this module cannot be
imported because of them, `byte_search` does without it.

::

    needle-\\d+        needle-(?:[0-9]|NON_ASCII){1,}
    say "é"$          say ?\\\\*"(?:é|É|\\\\+u00e9|\\\\+u00c9)\\\\*"       `?`, `\\\\*`: see `_one_of`
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from re import _casefix as casefix  # type: ignore[attr-defined]
from re import _constants as codes  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

_ANY = rb".{0,16}"  # a character, in whatever way JSON writes it; `.` is no line end, so that a match is within one row
_NON_ASCII = rb"[\x80-\xff]{1,4}|(?:\\+u[0-9a-f]{4}){1,2}"
_CATEGORIES = {codes.CATEGORY_DIGIT: b"[0-9]|" + _NON_ASCII, codes.CATEGORY_WORD: b"[0-9a-z_]|" + _NON_ASCII}
# All become the same repetition of bytes. A greedy and a lazy one match the same rows; a possessive one matches fewer,
# which the proof then rules out.
_REPEATS = (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT)
_ANYWHERE = (codes.AT, codes.ASSERT, codes.ASSERT_NOT, codes.FAILURE)
# JSON writers keep letters, digits and these as they are. Others may become escapes.
_UNESCAPED = frozenset("abcdefghijklmnopqrstuvwxyz0123456789_-")
_ESCAPED = {'"': rb'\\*"', "/": rb"\\*/", "\\": rb"\\+"}
_ESCAPED |= {"\n": rb"\\+n", "\t": rb"\\+t", "\r": rb"\\+r", "\b": rb"\\+b", "\f": rb"\\+f"}
# Letters that are the same in lower case as one of another alphabet's, or that `re` treats so: k and the Kelvin sign.
_SPECIAL_CASES = "\u0130\u212a\u212b\u03f4\u2126\u1e9e" + "".join(
    map(chr, sorted({c for found in casefix._EXTRA_CASES.values() for c in found}))
)


def byte_pattern(pattern: str) -> bytes:
    """A regular expression for the bytes of JSON lines, which matches at least where `pattern` matches a text of them.

    Raises:
        re.error: no regular expression.
    """
    return _sequence(parser.parse(pattern, re.IGNORECASE))


def _sequence(items: Iterable[Any]) -> bytes:
    return b"".join(_item(code, value) for code, value in items)


def _item(code: Any, value: Any) -> bytes:
    if code is codes.LITERAL:
        return _one_of(chr(value))
    if code is codes.IN:
        return b"(?:" + b"|".join(_member(*member) for member in value) + b")"
    if code is codes.BRANCH:
        return b"(?:" + b"|".join(map(_sequence, value[1])) + b")"
    # `value` of a group is its number, the flags that it sets and removes, and its items.
    if code is codes.SUBPATTERN:
        return b"(?:" + _sequence(value[3]) + b")"
    if code is codes.ATOMIC_GROUP:
        return b"(?:" + _sequence(value) + b")"
    if code in _REPEATS:
        most = b"" if value[1] is codes.MAXREPEAT else b"%d" % value[1]
        return b"(?:%b){%d,%b}" % (_sequence(value[2]), value[0], most)
    # Where a match must begin or end, and what must be around it, is left to the proof.
    if code in _ANYWHERE:
        return b""
    # What is left (references to groups, conditions, and what later Pythons add) may match anything.
    return _ANY if code in (codes.ANY, codes.NOT_LITERAL) else b".*"


def _member(code: Any, value: Any) -> bytes:
    """A member of a class such as `[a-f0-9]`."""
    if code is codes.LITERAL:
        return _one_of(chr(value))
    if code is codes.CATEGORY:
        return _CATEGORIES.get(value, _ANY)
    if code is codes.RANGE:
        first, last = map(chr, value)
        # `[a-z]` ignores case, too, and then some letters outside of ASCII match.
        if first.isascii() and all(chr(n).lower() in _UNESCAPED for n in range(value[0], min(value[1], 128) + 1)):
            return b"[%b-%b]|%b" % (first.encode(), min(last, "\x7f").encode(), _NON_ASCII)
        if first > "\x7f":  # a few of them are i, k or s in another case
            also_ascii = any(first <= letter <= last for letter in "\u0130\u0131\u017f\u212a")
            return (b"[iks]|" if also_ascii else b"") + _NON_ASCII
    return _ANY  # among them the `^` of a class that is negated


@lru_cache(maxsize=1024)
def _one_of(char: str) -> bytes:
    """The ways in which JSON may hold a character, in upper or lower case.

    Arguments of tool calls may be JSON inside of JSON: a backslash may be several, and the space after a comma or colon
    be absent.
    """
    if char == " ":
        return b" ?"
    found: set[bytes] = set()
    for case in {char, char.lower(), char.upper(), char.title(), *_SPECIAL_CASES}:
        if len(case) != 1 or not re.fullmatch(re.escape(char), case, re.IGNORECASE):
            continue
        if case.isascii() and case.lower() in _UNESCAPED:
            found.add(case.lower().encode())  # hyperscan itself ignores the case of ASCII
            continue
        # Characters above U+FFFF are two escapes, a surrogate pair.
        units = case.encode("utf-16-be", "surrogatepass")
        found.add(b"".join(rb"\\+u%02x%02x" % (units[at], units[at + 1]) for at in range(0, len(units), 2)))
        found.add(_ESCAPED.get(case) or re.escape(case.encode("utf-8", "surrogatepass")))
    return b"(?:" + b"|".join(sorted(found)) + b")" if len(found) > 1 else found.pop()
