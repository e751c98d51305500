"""Which part of an assistant's turn the model itself would emit: from behind the generation prompt to the stop."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple


class Run(NamedTuple):
    """A stretch of rendered text.

    Attributes:
        text: the characters.
        owner: the message it belongs to, -1 for none.
        origin: the message whose data it is; -1 for literals of the template, less for all else (`traced.LABEL`).
    """

    text: str
    owner: int
    origin: int


class Controls:
    """The control tokens of a tokenizer, by spelling."""

    def __init__(self, spellings: Iterable[str], stops: Iterable[str]) -> None:
        ordered = sorted(spellings, key=len, reverse=True)
        self._any = re.compile("|".join(map(re.escape, ordered)) or r"(?!)")
        self._stops = frozenset(stops)

    def first(self, text: str) -> str:
        """The first control token in a text, empty if there is none."""
        found = self._any.search(text)
        return found.group() if found else ""

    def places(self, text: str) -> Iterator[tuple[int, int]]:
        """From where to where each control token in a text goes."""
        return (found.span() for found in self._any.finditer(text))

    def last_stop(self, text: str) -> int:
        """Where the last stop token in a text ends, 0 if there is none."""
        return max((found.end() for found in self._any.finditer(text) if found.group() in self._stops), default=0)

    def whole(self, text: str, end: int) -> int:
        """`end`, moved back to the beginning of a control token that it would cut in two."""
        for found in self._any.finditer(text):
            if found.start() < end < found.end():
                return found.start()
        return end

    def stop_after(self, text: str, start: int, *, at_once: bool) -> int | None:
        """Where the first stop token behind `start` ends; `None` if there is no control token at all.

        Without a stop it is the first control token, or, where more markup may come before it, the last.
        """
        ends = list(self._any.finditer(text, start))
        stop = next((found for found in ends if found.group() in self._stops), None)
        if stop is None and ends:
            stop = ends[0] if at_once else ends[-1]
        return None if stop is None else stop.end()


def _shared(one: str, other: str) -> int:
    """How many characters two texts have in common from their beginning, by halving."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one.startswith(other[low:middle], low):
            low = middle
        else:
            high = middle - 1
    return low


def added_by(with_prompt: str, without: str, controls: Controls) -> str:
    """The generation prompt: what is left of one rendering behind what it shares with the other.

    Some templates end in an eos only where no prompt follows, so the shorter text need not be a prefix of the longer.
    """
    shared = controls.whole(with_prompt, _shared(with_prompt, without))
    return with_prompt[shared:]


def sampled_span(runs: Sequence[Run], prompt: str, controls: Controls) -> tuple[int, int, bool]:
    """Where the sampled part of a turn starts and stops, in characters of its joined runs.

    It starts behind what the turn shares with the generation prompt, which serving supplies. It stops with the stop
    token behind the last character of the message's data, or with the turn where the format has none::

        prompt   <a>\\n              turn   <a>\\nHi there<e>\\n
        sampled                                .########|##.        (from H up to and with <e>)

    Returns:
        Start, stop, and whether the prompt was found: without it the message's first character of data starts.
    """
    text = "".join(run.text for run in runs)
    first, last = _extent(runs)
    shared = _supplied(text, prompt, controls)
    found = _agrees(prompt, shared)
    if not found:  # white space between turns may belong to either side
        lead = len(text) - len(text.lstrip())
        more = _supplied(text[lead:], prompt.lstrip(), controls)
        found = _agrees(prompt.lstrip(), more)
        shared = lead + more if found else first
    # Behind the last character of data comes the stop; a turn without data has all its markup before it.
    stop = controls.stop_after(text, max(last, shared), at_once=last > 0)
    return min(shared, len(text)), len(text) if stop is None else stop, found


def _agrees(prompt: str, shared: int) -> bool:
    """A turn begins as the prompt does, wholly or up to a tag or white space that is not in this turn."""
    left = prompt[shared:].lstrip()
    return shared == len(prompt) or (shared > 0 and (not left or left.startswith("<")))


def _supplied(text: str, prompt: str, controls: Controls) -> int:
    """How much of a turn serving supplies. Where the turn leaves the prompt, half a tag or token was not supplied.

    ::

        prompt  <a>\n<think>\n      turn  <a>\n<tool_call>      supplied  <a>\n      (not <a>\n<t)
    """
    if text.startswith(prompt):
        return len(prompt)
    shared = _shared(text, prompt)
    opened = text.rfind("<", 0, shared)
    if opened > text.rfind(">", 0, shared):
        shared = opened
    return controls.whole(text, shared)


def _extent(runs: Sequence[Run]) -> tuple[int, int]:
    """From the first to behind the last character that is the message's data; the beginning if it has none."""
    at, first, last = 0, None, 0
    for run in runs:
        if run.origin >= 0 and run.text:
            first = at if first is None else first
            last = at + len(run.text)
        at += len(run.text)
    return first or 0, last
