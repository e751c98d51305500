"""Reading a completion that may still grow: `Window`, a part of its text whose end is not known yet.

Whatever reads completions (families, dialects of calls) is written once, as generators: where the next step depends on
text that has not been sampled, they `yield`, and go on when there is more. Over a whole completion they never do. So
`parse_response`, which reads everything at once, and `stream`, which gets one token at a time, run the same code.

::

    window = Window(completion, 0, ("<tool_call>",))        text so far     window.stop  window.closed
    while not window.closed:                                hello <to       6            False
        yield from window.grow()                            hello <tomato   14           False
        out.content_to(window.stop)                         ...<tool_call>  ...          True

A marker that is a token of its own counts by its id; its spelling in several tokens counts only if no such id follows
in the whole completion (`Completion.find`). A window waits at such a spelling until that is known.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from typing import TypeVar

from niels_gpt.renderers.completions.text import Completion

T = TypeVar("T")
Steps = Generator[None, None, T]  # yields wherever more of the completion is needed; `yield from` gives its result

_SPACE = re.compile(r"\s*")


def hold(stop: int) -> None:
    """For `Window.pass_on`: take nothing yet."""


class _Marker:
    """Where a marker begins for the first time from a character on, as far as that is known."""

    __slots__ = ("_completion", "_is_added", "_is_control", "_searched", "_start", "text")

    def __init__(self, completion: Completion, text: str, start: int, by_id: bool) -> None:
        self.text, self._completion, self._start, self._searched = text, completion, start, start
        self._is_added = by_id or completion.is_added(text)
        self._is_control = by_id or completion.is_control(text)

    def find(self, end: int, ended: bool) -> tuple[int, bool]:
        """The character, -1 for none before `end`, and whether the answer is final if there is one.

        Args:
            ended: nothing comes after `end`.
        """
        completion = self._completion
        if self._is_added:
            at = completion.find_id(self.text, self._start)
            if at >= 0 and at + len(self.text) <= end:
                return at, True
            if self._is_control:
                return -1, True
        at = completion.text.find(self.text, self._searched, end)
        # The marker may be there but for its last character, so the end is searched again: of `<tool_call>` 10
        # characters.
        self._searched = at if at >= 0 else max(self._start, end - len(self.text) + 1)
        # The spelling of a token of its own counts at the end only: until then its id may follow.
        return at, not self._is_added or ended

    def half(self, end: int) -> int:
        """The character from which on the text before `end` may turn out to be the marker; `end` if there is none."""
        return end if self._is_control else _half(self._completion.text, self.text, self._searched, end)


def _half(text: str, wanted: str, start: int, end: int) -> int:
    """The character from which on a text that ends at `end` may go on as the wanted one; `end` if there is none."""
    at = text.find(wanted[0], max(start, end - len(wanted) + 1), end)
    while at >= 0 and not wanted.startswith(text[at:end]):
        at = text.find(wanted[0], at + 1, end)
    return at if at >= 0 else end


def match_end(pattern: re.Pattern[str], text: str, start: int, stop: int) -> int:
    """The end of what a pattern matches at a character; `start` if it does not.

    A match refers to its text: while one exists, Python copies the whole text to append the next token to it.
    """
    match = pattern.match(text, start, stop)
    return match.end() if match else start


class Window:
    """The text from a character up to the first of some markers, or to the end of the completion.

    Args:
        markers: their texts; with none, the window is the rest of the completion.
        within: the window that contains this one; markers after its end are ignored.
        by_id: the markers count only as tokens of their own, as control tokens do.

    Attributes:
        start: the first character.
        stop: up to here the text is in the window for certain.
        closed: the window ends at `stop`.
        marker: the marker that it ends at; "" for the end of the completion, or of the window around it.
    """

    def __init__(
        self,
        completion: Completion,
        start: int,
        markers: tuple[str, ...] = (),
        *,
        within: Window | None = None,
        by_id: bool = False,
    ) -> None:
        self.completion, self.start, self.stop, self._within = completion, start, start, within
        self.closed, self.marker = False, ""
        # Looked for at once: in a whole completion the window is closed from the beginning.
        self._markers = [_Marker(completion, text, start, by_id) for text in markers]
        self._look()

    def _look(self) -> None:
        """Take note of what has been added to the completion."""
        if self.closed:
            return
        if self._within is None:
            end, ended = len(self.completion.text), self.completion.ended
        else:
            # The window around this one has looked at the new text only if some reader waits for it.
            if not self._within.closed:
                self._within._look()
            end, ended = self._within.stop, self._within.closed
        if not self._markers:
            self.stop, self.closed = max(self.start, end), ended
            return
        # `first` is where the nearest marker begins (`end + 1`: none); before `clear` nothing may turn out to be one.
        first, marker, is_final, clear = end + 1, "", ended, end
        for each in self._markers:
            at, final = each.find(end, ended)
            if 0 <= at < first:
                first, marker, is_final = at, each.text, final
            elif at < 0 and not ended:
                clear = min(clear, each.half(end))
        # `clear` is smaller where half of another marker comes first, which might turn out to be the nearest one.
        if first <= clear:
            self.stop, self.closed, self.marker = first, is_final, marker if is_final else ""
        else:
            self.stop, self.closed = max(self.start, clear), ended

    def grow(self) -> Steps[None]:
        """Wait until the window is longer, or closed."""
        before = self.stop
        while not self.closed:
            self._look()
            if self.stop > before or self.closed:
                return
            yield

    def pass_on(self, take: Callable[[int], object]) -> Steps[None]:
        """Wait until the window is closed; `take` is called with each `stop` on the way."""
        while True:
            take(self.stop)
            if self.closed:
                return
            yield from self.grow()

    # ---- what is at a place in the window

    def has(self, at: int) -> Steps[bool]:
        """Whether there is a character at this place, within the window."""
        while at >= self.stop and not self.closed:
            yield from self.grow()
        return at < self.stop

    def find(self, text: str, start: int, take: Callable[[int], object] = hold) -> Steps[int]:
        """The first place at which a text begins, within the window; -1 if there is none. Ids do not matter.

        Args:
            take: is called with characters up to which there is nothing of the text.
        """
        while True:
            at = self.completion.text.find(text, start, self.stop)
            take(at if at >= 0 else self.stop if self.closed else _half(self.completion.text, text, start, self.stop))
            if at >= 0 or self.closed:
                return at
            start = max(start, self.stop - len(text) + 1)  # as in `_Marker.find`
            yield from self.grow()

    def search(self, pattern: re.Pattern[str], start: int) -> Steps[int]:
        """The first character, within the window, that a pattern for one character matches; -1 if there is none."""
        while True:
            found = pattern.search(self.completion.text, start, self.stop)
            if found or self.closed:
                return found.start() if found else -1
            start = max(start, self.stop)
            yield from self.grow()

    def skip(self, pattern: re.Pattern[str], at: int) -> Steps[int]:
        """The end of what a pattern for a run of characters matches at a place."""
        while True:
            at = match_end(pattern, self.completion.text, at, self.stop)
            if at < self.stop or self.closed:  # at the window's end the run may go on
                return at
            yield from self.grow()

    def skip_space(self, at: int) -> Steps[int]:
        """The first character from `at` on that is no white space; the end of the window if there is none."""
        return self.skip(_SPACE, at)

    def starts_with(self, text: str, at: int) -> Steps[bool]:
        """Whether a text begins at this place, within the window."""
        while True:
            held = self.completion.text[at : min(at + len(text), self.stop)]
            # Decided with the first character that differs; only a beginning of the text needs more of the completion.
            if held == text or self.closed or not text.startswith(held):
                return held == text
            yield from self.grow()


def run(steps: Steps[T]) -> T:
    """The result of reading a completion that is already complete.

    Raises:
        AssertionError: it waits for more text, which cannot come.
    """
    try:
        next(steps)
    except StopIteration as done:
        result: T = done.value
        return result
    raise AssertionError("a completion that has ended was read in part only")
