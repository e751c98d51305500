"""The output of a template as spans, and the control tokens that are spelled in it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple


class Span(NamedTuple):
    """A stretch of rendered text with one origin and one message.

    Attributes:
        text: the characters.
        message: the index of the message that it belongs to; `NO_MESSAGE` for none.
        origin: the index of the message whose content it is, or a negative code of `provenance.py` or
            `attribution.py`: LITERAL for text of the template.
    """

    text: str
    message: int
    origin: int


class ControlTokens:
    """The spellings of a tokenizer's control tokens, and which of them end a turn.

    Args:
        spellings: of all control tokens.
        stops: of those that end a turn; also ordinary text, if it is among the spellings.
    """

    def __init__(self, spellings: Iterable[str], stops: Iterable[str]) -> None:
        longest_first = sorted(spellings, key=len, reverse=True)
        self._any = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")  # (?!) never matches
        self._stops = frozenset(stops)

    def first(self, text: str) -> str:
        """The first control token in a text; empty if there is none."""
        found = self._any.search(text)
        return found.group() if found else ""

    def first_at_start(self, text: str) -> str:
        """The control token that a text begins with, apart from white space; empty if it begins with something else."""
        found = self._any.match(text, len(text) - len(text.lstrip()))
        return found.group() if found else ""

    def at_end(self, text: str) -> str:
        """The control token that a text ends in; empty if it ends in something else."""
        last = None
        for last in self._any.finditer(text):  # noqa: B007 (the last one is used)
            pass
        return last.group() if last is not None and last.end() == len(text) else ""

    def is_stop(self, spelling: str) -> bool:
        """Whether this control token ends a turn."""
        return spelling in self._stops

    def places(self, text: str) -> Iterator[tuple[int, int]]:
        """Start and end of each control token in a text."""
        return (found.span() for found in self._any.finditer(text))

    def last_stop(self, text: str) -> int:
        """The end of the last stop token in a text; 0 if there is none."""
        return max((found.end() for found in self._any.finditer(text) if found.group() in self._stops), default=0)

    def before_split_token(self, text: str, end: int) -> int:
        """`end`, moved back to the start of a control token that it would cut in two."""
        for start, stop in self.places(text):
            if start < end < stop:
                return start
        return end

    def stop_after(self, text: str, start: int, *, at_once: bool) -> int | None:
        """The end of the first stop token after `start`; `None` if there is no control token at all.

        If no stop token follows, the turn ends with the first control token, or with the last one where more markup
        may come first (`at_once=False`).
        """
        following = list(self._any.finditer(text, start))
        stop = next((found for found in following if found.group() in self._stops), None)
        if stop is None and following:
            stop = following[0] if at_once else following[-1]
        return None if stop is None else stop.end()
