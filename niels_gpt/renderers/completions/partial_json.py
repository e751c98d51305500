"""JSON that is not complete yet: `JSONReader` reads it as it grows, `partial_json` gives the value so far.

::

    text                        partial_json(text)
    {"city": "Par               {"city": "Par"}
    {"city": "Paris", "da       {"city": "Paris"}
    {"city": "Paris", "day": 1  {"city": "Paris"}       the number may go on
    {"city": "Paris", "day": 1} {"city": "Paris", "day": 1}

The grammar is that of Python's decoder without NaN and Infinity: what `JSONReader` finds broken, no decoder accepts,
whatever follows. The opposite does not hold; decode the text of a complete value to know.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Final

_SPACE: Final = re.compile(r"[ \t\n\r]*")
_IN_STRING: Final = re.compile(r'(?:[^"\\\x00-\x1f]+|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*')
# A text may end after a backslash, or within the four digits after `\u`.
_HALF_ESCAPE: Final = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?")
# The first half of a surrogate pair at the end: alone it is no character, so the value so far is without it.
_HALF_PAIR: Final = re.compile(r"(?<!\\)(?:\\\\)*(\\u[dD][89abAB][0-9a-fA-F]{2})\Z")
_NUMERIC: Final = re.compile(r"[-+.0-9eE]*")
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_LITERALS: Final = ("true", "false", "null")
_CLOSING: Final = {"{": "}", "[": "]"}

# What may come next.
_VALUE, _VALUE_OR_END, _KEY, _KEY_OR_END, _COLON, _COMMA_OR_END = range(6)


@dataclass
class Member:
    """A member of the outermost object: its key, where its value starts, and where it stops, -1 as long as it grows."""

    key: str
    start: int
    stop: int = -1


class JSONReader:
    """Reads one JSON value that begins at a character of a text, as the text grows.

    Attributes:
        at: what is before this character has been read.
        ended: the value ends at `at`.
        broken: the text is no JSON, whatever follows.
        members: those of the outermost object.
    """

    def __init__(self, start: int = 0) -> None:
        self.at = start
        self.ended = self.broken = False
        self.members: list[Member] = []
        self._stack: list[str] = []  # the brackets that are open
        self._next = _VALUE
        self._string_start = -1  # of the string that is being read, its quote included; -1: none is
        self._is_key = False
        self._valid_end = start  # up to here the text is JSON if the open brackets are closed

    def read(self, text: str, stop: int) -> None:
        """Read on, up to the character `stop`."""
        while not self.ended and not self.broken:
            if self._string_start >= 0:
                if not self._read_string(text, stop):
                    return
                continue
            match = _SPACE.match(text, self.at, stop)
            at = self.at = match.end() if match else self.at
            # `_next` says what may come when there is more text.
            if at >= stop:
                return
            char = text[at]
            if char == '"' and self._next in (_VALUE, _VALUE_OR_END, _KEY, _KEY_OR_END):
                self._is_key = self._next in (_KEY, _KEY_OR_END)
                self._begin(at)
                self._string_start = at
                self.at += 1
            elif char in "{[" and self._next in (_VALUE, _VALUE_OR_END):
                self._begin(at)
                self._stack.append(char)
                self.at = self._valid_end = at + 1
                self._next = _KEY_OR_END if char == "{" else _VALUE_OR_END
            elif char in "}]":
                self._close(char)
            elif char == "," and self._next == _COMMA_OR_END:
                self.at += 1
                self._next = _KEY if self._stack[-1] == "{" else _VALUE
            elif char == ":" and self._next == _COLON:
                self.at += 1
                self._next = _VALUE
            elif self._next not in (_VALUE, _VALUE_OR_END):
                self.broken = True
            elif not self._read_scalar(text, stop):
                return

    def _begin(self, at: int) -> None:
        """Note that a key or a value begins."""
        if len(self._stack) == 1 and self._stack[0] == "{" and self._next == _VALUE:
            self.members[-1].start = at

    def _done(self, at: int) -> None:
        """Note that a value ends before the character `at`."""
        self.at = self._valid_end = at
        self._next = _COMMA_OR_END
        self.ended = not self._stack
        if len(self._stack) == 1 and self._stack[0] == "{":
            self.members[-1].stop = at

    def _close(self, char: str) -> None:
        # After a value or the opening bracket; not after a comma or a colon.
        fits = self._stack and _CLOSING[self._stack[-1]] == char
        if not fits or self._next not in (_COMMA_OR_END, _KEY_OR_END if char == "}" else _VALUE_OR_END):
            self.broken = True
            return
        self._stack.pop()
        self._done(self.at + 1)

    def _read_string(self, text: str, stop: int) -> bool:
        """Read on in a string; returns whether there may be more to read."""
        match = _IN_STRING.match(text, self.at, stop)
        at = self.at = match.end() if match else self.at
        if at >= stop or _HALF_ESCAPE.fullmatch(text, at, stop):
            return False
        if text[at] != '"':
            self.broken = True
            return False
        start, self._string_start = self._string_start, -1
        if not self._is_key:
            self._done(at + 1)
            return True
        self.at, self._next = at + 1, _COLON
        if len(self._stack) == 1:
            # Only keys of the outermost object: readers of calls need no others.
            self.members.append(Member(json.loads(text[start : at + 1]), -1))
        return True

    def _read_scalar(self, text: str, stop: int) -> bool:
        """Read a number or a literal; returns whether it was complete."""
        at = self.at
        if text[at] in "-0123456789":
            match = _NUMERIC.match(text, at, stop)
            if match and match.end() == stop:  # the number may go on: nothing closes it, unlike a string
                return False
            number = _NUMBER.match(text, at, stop)
            end = number.end() if number else -1
        else:
            held = text[at : min(at + 5, stop)]  # as long as "false"
            if any(word.startswith(held) for word in _LITERALS) and held not in _LITERALS:
                return False
            end = next((at + len(word) for word in _LITERALS if held.startswith(word)), -1)
        self.broken = end < 0
        if end >= 0:
            self._begin(at)
            self._done(end)
        return end >= 0

    def value(self, text: str) -> Any:
        """The value so far of a text that has been read completely; `None` if nothing is known of it."""
        # `{"a": [1, "x`: up to here it is JSON with `"` and the open brackets' `]}` at the end. After a key without its
        # value, `_valid_end` is the end of the member before it.
        whole, quote = self._valid_end, ""
        if self._string_start >= 0 and not self._is_key:
            half = _HALF_PAIR.search(text, self._string_start, self.at)
            whole, quote = half.start(1) if half else self.at, '"'
        closing = "".join(_CLOSING[bracket] for bracket in reversed(self._stack))
        try:
            return json.loads(text[:whole] + quote + closing)
        except (ValueError, RecursionError):  # nothing has been read, or a number or a nesting beyond Python's limits
            return None


def partial_json(text: str) -> Any:
    """The value that a JSON text, cut off anywhere, has so far.

    Strings may be cut; keys without a value, and numbers and literals that may go on, are left out. `None` if there is
    nothing, or no JSON, at the beginning. It takes any text.
    """
    reader = JSONReader()
    reader.read(text, len(text))
    return reader.value(text)
