"""`TrackedStr`: a string with the origin of each of its characters, which slicing, joining and stripping keep.

A `TrackedStr` is a `str` with a tuple of runs, each (length, origin), that cover its characters in order. The origin
is the index of the message that the characters came from, or one of three negative codes::

    LITERAL (-1)  a string constant of the template: the only text that may become control tokens
    LABEL   (-3)  a value of the caller that is not a message's content: a role, a name, an id, a tool, a number, a date
    LOST    (-4)  unknown: the result of an operation that does not keep origins

    "<u>" + " hello ".strip()      "<u>hello"      runs ((3, LITERAL), (5, 1)), if " hello " is the content of message 1

What this module guarantees: the characters of every result are those that `str` gives, and a character with origin
`i >= 0` came from message `i`. What it does not: that every operation keeps origins. A result that is an ordinary
`str` counts as LOST, so an operation that is not implemented here can only take away the right to become a control
token, never grant it.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Any, Final, SupportsIndex

LITERAL: Final = -1
LABEL: Final = -3  # -2 is QUOTED, which only `attribution.py` assigns
LOST: Final = -4

NO_MESSAGE: Final = -1  # instead of a message's index: text that belongs to no message

Run = tuple[int, int]  # (length in characters, origin)

# For `isinstance`: `list | tuple` would be made each time, and a dict is found to be a `dict` sooner than a `Mapping`.
_LISTS: Final = (list, tuple)
_MAPPINGS: Final = (dict, Mapping)

# A directive of `%`, such as `%s`, `%(name)s` and `%5.1f`.
_DIRECTIVE: Final = re.compile(r"%(?:\((?P<key>[^()]*)\))?(?P<form>[-#0 +]*\d*(?:\.\d+)?[hlL]?[a-zA-Z%])")


class TrackedStr(str):
    """A string with runs of (length, origin), whose lengths add up to its own.

    Each method has the result of the `str` method of the same name, with origins.
    """

    __slots__ = ("runs",)

    runs: tuple[Run, ...]

    def __new__(cls, text: object = "", runs: tuple[Run, ...] | None = None) -> TrackedStr:
        """`text` with `runs`; without `runs` all of it is LOST."""
        self = str.__new__(cls, text)
        self.runs = ((len(self), LOST),) if runs is None else runs
        return self

    def __str__(self) -> str:
        return self  # `str.__str__` would return an ordinary string

    def cut(self, start: int, stop: int) -> TrackedStr:
        """The characters from `start` to `stop`, which must lie inside the text.

        Runs of lengths 3 5, cut from 2 to 6, become 1 3.
        """
        if start == 0 and stop == len(self):  # stripping most often finds nothing
            return self
        runs, at = [], 0
        for length, origin in self.runs:
            overlap = min(stop, at + length) - max(start, at)
            if overlap > 0:
                runs.append((overlap, origin))
            at += length
        return type(self)(str.__getitem__(self, slice(start, stop)), tuple(runs))

    def cuts(self, spans: Iterable[tuple[int, int]]) -> Iterator[TrackedStr]:
        """`cut` for many spans whose starts ascend, in one pass over the runs: `cut` for each would take n * runs."""
        runs, first, base = self.runs, 0, 0  # the first run that a span can touch, and the character it starts at
        for start, stop in spans:
            while first < len(runs) and base + runs[first][0] <= start:
                base += runs[first][0]
                first += 1
            # Of runs 3 5 2, the span 2..4 touches the first two (1 and 1 characters), and the span 4..9 the last two.
            inside, number, at = [], first, base
            while number < len(runs) and at < stop:
                end = at + runs[number][0]
                if end > start and end > at:
                    inside.append((min(stop, end) - max(start, at), runs[number][1]))
                number, at = number + 1, end
            yield type(self)(str.__getitem__(self, slice(start, stop)), tuple(inside))

    # ---- joining

    def __add__(self, other: str) -> TrackedStr:
        if not isinstance(other, str):
            return NotImplemented
        return TrackedStr(str.__add__(self, other), self.runs + runs_of(other))

    def __radd__(self, other: str) -> TrackedStr:
        if not isinstance(other, str):
            return NotImplemented
        return TrackedStr(str.__add__(other, self), runs_of(other) + self.runs)

    def __mul__(self, times: SupportsIndex) -> TrackedStr:
        return type(self)(str.__mul__(self, times), self.runs * max(0, times.__index__()))

    __rmul__ = __mul__

    def join(self, parts: Iterable[str]) -> TrackedStr:
        """As `str.join`."""
        return joined(parts, self)

    def __mod__(self, values: Any) -> TrackedStr:
        """As `str.__mod__`: the format keeps its origins, each inserted value has its own."""
        expected = str.__mod__(plain(self), values)
        parts: list[str] = []
        at = number = 0
        for directive in _DIRECTIVE.finditer(plain(self)):
            parts.append(self.cut(at, directive.start()))
            at = directive.end()
            key, form = directive["key"], directive["form"]
            if form == "%":  # `%%` writes its second character
                parts.append(self.cut(at - 1, at))
                continue
            if key is not None:
                value = values[key]
            elif isinstance(values, tuple):
                value = values[number]
                number += 1
            else:
                value = values
            if form == "s":
                parts.append(as_text(value))
            else:
                parts.append(tracked_text(str.__mod__("%" + form, (value,)), origin_of(value)))
        result = joined([*parts, self.cut(at, len(self))])
        # Other forms than these, such as `%*d`, take other values than were counted here: then nothing is certain.
        return result if result == expected else TrackedStr(expected)

    # ---- cutting

    def __getitem__(self, key: SupportsIndex | slice) -> TrackedStr:
        if isinstance(key, slice):
            start, stop, step = key.indices(len(self))
            if step == 1:
                return self.cut(start, max(start, stop))
            # Runs of lengths 3 5, at 1 3 5 7, become 1 3. Computed run by run, not character by character: `text[::2]`
            # of a long text has few runs.
            positions = range(start, stop, step)
            rising = positions if step > 0 else positions[::-1]
            runs, before, end = list[Run](), 0, 0
            for length, origin in self.runs:
                end += length
                until = len(range(rising.start, min(end, rising.stop), rising.step))  # positions before the run's end
                if until > before:
                    runs.append((until - before, origin))
                before = until
            return TrackedStr(str.__getitem__(self, key), tuple(runs if step > 0 else reversed(runs)))
        at = range(len(self))[operator.index(key)]  # handles negative indices; raises TypeError and IndexError as str
        return self.cut(at, at + 1)

    def __iter__(self) -> Any:
        return self.cuts((at, at + 1) for at in range(len(self)))

    def strip(self, characters: str | None = None) -> TrackedStr:
        """As `str.strip`."""
        return self.lstrip(characters).rstrip(characters)

    def lstrip(self, characters: str | None = None) -> TrackedStr:
        """As `str.lstrip`."""
        return self.cut(len(self) - len(str.lstrip(self, characters)), len(self))

    def rstrip(self, characters: str | None = None) -> TrackedStr:
        """As `str.rstrip`."""
        return self.cut(0, len(str.rstrip(self, characters)))

    def removeprefix(self, prefix: str) -> TrackedStr:
        """As `str.removeprefix`."""
        return self.cut(len(prefix), len(self)) if prefix and self.startswith(prefix) else self

    def removesuffix(self, suffix: str) -> TrackedStr:
        """As `str.removesuffix`."""
        return self.cut(0, len(self) - len(suffix)) if suffix and self.endswith(suffix) else self

    def split(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        """As `str.split`."""
        return self._located(str.split(self, sep, maxsplit), sep)

    def rsplit(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        """As `str.rsplit`."""
        return self._located(str.rsplit(self, sep, maxsplit), sep)

    def splitlines(self, keepends: bool = False) -> list[str]:
        """As `str.splitlines`."""
        with_ends = str.splitlines(self, True)
        lines = str.splitlines(self, keepends)
        starts = accumulate(map(len, with_ends), initial=0)
        return list(self.cuts((at, at + len(line)) for at, line in zip(starts, lines, strict=False)))

    def partition(self, sep: str) -> tuple[str, str, str]:
        """As `str.partition`."""
        return self._parted(str.find(self, sep), sep, missing=(self, self.cut(0, 0), self.cut(0, 0)))

    def rpartition(self, sep: str) -> tuple[str, str, str]:
        """As `str.rpartition`."""
        return self._parted(str.rfind(self, sep), sep, missing=(self.cut(0, 0), self.cut(0, 0), self))

    def _parted(self, at: int, sep: str, missing: tuple[TrackedStr, TrackedStr, TrackedStr]) -> tuple[str, str, str]:
        if at < 0:
            return missing
        end = at + len(sep)
        return self.cut(0, at), self.cut(at, end), self.cut(end, len(self))

    def _located(self, parts: list[str], sep: str | None) -> list[str]:
        """The parts of a split with their origins."""
        # With a separator, a part starts right after the separator that follows the part before it: "xyxyx" split at
        # "xyx" has parts "" "yx" at 0 and 3, where searching would find "yx" at 1. Without one, parts are separated by
        # white space, and no part starts with white space (except the first of `rsplit`, which starts with the text
        # itself), so the next occurrence of a part is its position.
        spans: list[tuple[int, int]] = []
        at = 0
        for part in parts:
            at = str.index(self, part, at) if sep is None else at
            spans.append((at, at + len(part)))
            at += len(part) + len(sep or "")
        return list(self.cuts(spans))

    # ---- changing

    def replace(self, old: str, new: str, count: SupportsIndex = -1) -> TrackedStr:
        """As `str.replace`; the inserted text has the origins of `new`."""
        left = count.__index__()  # negative: no limit
        if left == 0 or old not in self:
            return self
        spans: list[tuple[int, int]] = []  # the stretches that are not replaced
        at = skipped = 0
        while left != 0 and (found := str.find(self, old, at + skipped)) >= 0:
            spans.append((at, found))
            at = found + len(old)
            skipped = not old  # an empty `old` matches before every character and once at the end
            left -= 1
        return joined(self.cuts([*spans, (at, len(self))]), new)

    def _changed(self, change: Callable[[str], str]) -> TrackedStr:
        """Apply a change of case."""
        changed = change(plain(self))
        if len(changed) == len(self):
            return type(self)(changed, self.runs)
        # "ß".upper() is "SS": each run is changed on its own. That may differ from the change of the whole text, as in
        # `capitalize` of a second run, or with a sigma at the end of a run; then the result is LOST.
        text, parts, at = plain(self), [], 0
        for length, origin in self.runs:
            part = change(text[at : at + length])
            parts.append(TrackedStr(part, ((len(part), origin),)))
            at += length
        result = joined(parts)
        return result if result == changed else TrackedStr(changed)

    def lower(self) -> TrackedStr:
        """As `str.lower`."""
        return self._changed(str.lower)

    def upper(self) -> TrackedStr:
        """As `str.upper`."""
        return self._changed(str.upper)

    def capitalize(self) -> TrackedStr:
        """As `str.capitalize`."""
        return self._changed(str.capitalize)

    def title(self) -> TrackedStr:
        """As `str.title`."""
        return self._changed(str.title)

    def swapcase(self) -> TrackedStr:
        """As `str.swapcase`."""
        return self._changed(str.swapcase)

    def casefold(self) -> TrackedStr:
        """As `str.casefold`."""
        return self._changed(str.casefold)


def plain(text: str) -> str:
    """The same characters as an ordinary string."""
    return str.__getitem__(text, slice(None))


def runs_of(text: str) -> tuple[Run, ...]:
    """The runs of any string; an ordinary one is LOST."""
    return text.runs if isinstance(text, TrackedStr) else ((len(text), LOST),)


def joined(parts: Iterable[str], separator: str = "") -> TrackedStr:
    """All parts as one text with their runs."""
    texts: list[str] = []
    runs: list[Run] = []
    separator_runs = runs_of(separator) if separator else ()
    for number, part in enumerate(parts):
        if number and separator:
            texts.append(separator)
            runs += separator_runs
        texts.append(part)
        runs += runs_of(part)
    return TrackedStr(str.join("", texts), tuple(runs))


def tracked_text(text: str, origin: int) -> TrackedStr:
    """`text` as one run of one origin."""
    return TrackedStr(text, ((len(text), origin),))


def as_text(value: Any) -> TrackedStr:
    """`str(value)` with origins: numbers and `None` are labels, containers have the origin of the texts inside."""
    if isinstance(value, TrackedStr):
        return value
    if value is None or isinstance(value, int | float):
        return tracked_text(str(value), LABEL)
    return tracked_text(str(value), LOST if isinstance(value, str) else origin_of(value))


def track(value: Any, origin: int) -> Any:
    """A copy of a value in which every string has this origin, at any depth, keys of mappings included."""
    if isinstance(value, str):
        return TrackedStr(value, ((len(value), origin),))
    if isinstance(value, _LISTS):
        return TrackedList([track(item, origin) for item in value], origin)
    if isinstance(value, _MAPPINGS):
        return TrackedDict({track(key, origin): track(item, origin) for key, item in value.items()}, origin)
    return value


class TrackedDict(dict[str, Any]):
    """A mapping from the caller's data; a text that is made from it (`tojson`, `str`) has its origin."""

    def __init__(self, items: Mapping[str, Any], origin: int) -> None:
        super().__init__(items)
        self.origin = origin


class TrackedList(list[Any]):
    """A list from the caller's data; a text that is made from it (`tojson`, `str`) has its origin."""

    def __init__(self, items: Iterable[Any], origin: int) -> None:
        super().__init__(items)
        self.origin = origin


class MessageDict(dict[str, Any]):
    """A message as a template receives it: a dict with the message's index."""

    def __init__(self, fields: Mapping[str, Any], index: int) -> None:
        super().__init__(fields)
        self.index = index


def origin_of(value: Any) -> int:
    """The origin of a text that is written from a whole value, such as its JSON.

    It is the message's index if all message data in the value is that message's (literals and labels beside it count
    as the message's); LOST if it mixes messages or holds LOST text; else LITERAL or LABEL.
    """
    origins = set(origins_of(value))
    messages = {origin for origin in origins if origin >= 0}
    if LOST in origins or len(messages) > 1:
        return LOST
    if messages:
        return messages.pop()
    return LITERAL if origins == {LITERAL} else LABEL


def origins_of(value: Any) -> Iterator[int]:
    """The origins of all texts in a value."""
    if isinstance(value, TrackedDict | TrackedList):
        yield value.origin
    elif isinstance(value, MessageDict):
        yield value.index
    elif isinstance(value, TrackedStr):
        # An empty run counts only where the whole text is empty.
        yield from (origin for length, origin in value.runs if length or not value)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            if type(key) is not str:  # an ordinary str is a keyword of the template's `dict(...)`
                yield from origins_of(key)
            yield from origins_of(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from origins_of(item)
    else:
        yield LABEL if value is None or isinstance(value, int | float) else LOST
