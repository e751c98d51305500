"""Text that remembers where it came from while a template cuts, joins and trims it.

A `Traced` is a `str` to everyone; beside its characters it keeps runs of (length, origin). The origin is the index of
the message that the characters came from, or one of three kinds of text that is no message's body::

    NOWHERE  a literal of the template: the only text that may become control tokens
    LABEL    the caller's: a role, a name, an id, a tool; also numbers and dates
    LOST     not known: what an operation made that keeps no origins

    "<u>" + content.strip()        <u>hello      runs (3, NOWHERE) (5, message 1)

A text without runs is LOST, so that an operation which is not written here takes the right to be a control token away.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Any, Final, SupportsIndex

NOWHERE: Final = -1
LABEL: Final = -3
LOST: Final = -4

Run = tuple[int, int]

# A directive of `%`, such as `%s`, `%(name)s` and `%5.1f`.
_DIRECTIVE: Final = re.compile(r"%(?:\((?P<key>[^()]*)\))?(?P<form>[-#0 +]*\d*(?:\.\d+)?[hlL]?[a-zA-Z%])")


class Traced(str):
    """A string with runs of (length, origin), which add up to its length."""

    __slots__ = ("runs",)

    runs: tuple[Run, ...]

    def __new__(cls, text: object = "", runs: tuple[Run, ...] | None = None) -> Traced:
        """`text` with `runs`; without them the origin of all of it is lost."""
        self = str.__new__(cls, text)  # templates make many
        self.runs = ((len(self), LOST),) if runs is None else runs
        return self

    def __str__(self) -> str:
        return self

    def cut(self, start: int, stop: int) -> Traced:
        """The characters from `start` up to `stop`, both inside; runs 3 5 cut from 2 to 6 leave 1 3."""
        runs, at = [], 0
        for length, origin in self.runs:
            kept = min(stop, at + length) - max(start, at)
            if kept > 0:
                runs.append((kept, origin))
            at += length
        return type(self)(str.__getitem__(self, slice(start, stop)), tuple(runs))

    def cuts(self, spans: Iterable[tuple[int, int]]) -> Iterator[Traced]:
        """`cut` of many spans whose starts ascend, going through the runs once."""
        runs, first, base = self.runs, 0, 0
        for start, stop in spans:
            while first < len(runs) and base + runs[first][0] <= start:
                base += runs[first][0]
                first += 1
            kept, number, at = [], first, base
            while number < len(runs) and at < stop:
                end = at + runs[number][0]
                if end > start and end > at:
                    kept.append((min(stop, end) - max(start, at), runs[number][1]))
                number, at = number + 1, end
            yield type(self)(str.__getitem__(self, slice(start, stop)), tuple(kept))

    # ---- joining

    def __add__(self, other: str) -> Traced:
        if not isinstance(other, str):
            return NotImplemented
        return Traced(str.__add__(self, other), self.runs + runs_of(other))

    def __radd__(self, other: str) -> Traced:
        if not isinstance(other, str):
            return NotImplemented
        return Traced(str.__add__(other, self), runs_of(other) + self.runs)

    def __mul__(self, times: SupportsIndex) -> Traced:
        return type(self)(str.__mul__(self, times), self.runs * max(0, times.__index__()))

    __rmul__ = __mul__

    def join(self, parts: Iterable[str]) -> Traced:
        """As `str.join`."""
        return joined(parts, self)

    def __mod__(self, values: Any) -> Traced:
        """As `str.__mod__`: the text keeps its runs, and what is put in keeps the value's."""
        return _percent(self, values)

    # ---- cutting

    def __getitem__(self, key: SupportsIndex | slice) -> Traced:
        if isinstance(key, slice):
            start, stop, step = key.indices(len(self))
            if step == 1:
                return self.cut(start, max(start, stop))
            return Traced(str.__getitem__(self, key), self._stepped(range(start, stop, step)))
        at = range(len(self))[operator.index(key)]  # raises TypeError and IndexError as a string does
        return self.cut(at, at + 1)

    def __iter__(self) -> Any:
        return self.cuts((at, at + 1) for at in range(len(self)))

    def _stepped(self, places: range) -> tuple[Run, ...]:
        """The runs of the characters at these places; runs 3 5 at 1 3 5 7 leave 1 3."""
        rising = places if places.step > 0 else places[::-1]
        runs, before, end = [], 0, 0
        for length, origin in self.runs:
            end += length
            until = len(range(rising.start, min(end, rising.stop), rising.step))  # places before the run's end
            if until > before:
                runs.append((until - before, origin))
            before = until
        return tuple(runs if places.step > 0 else reversed(runs))

    def strip(self, characters: str | None = None) -> Traced:
        """As `str.strip`."""
        return self.lstrip(characters).rstrip(characters)

    def lstrip(self, characters: str | None = None) -> Traced:
        """As `str.lstrip`."""
        return self.cut(len(self) - len(str.lstrip(self, characters)), len(self))

    def rstrip(self, characters: str | None = None) -> Traced:
        """As `str.rstrip`."""
        return self.cut(0, len(str.rstrip(self, characters)))

    def removeprefix(self, prefix: str) -> Traced:
        """As `str.removeprefix`."""
        return self.cut(len(prefix), len(self)) if prefix and self.startswith(prefix) else self

    def removesuffix(self, suffix: str) -> Traced:
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
        kept = str.splitlines(self, True)
        shown = str.splitlines(self, keepends)
        starts = accumulate(map(len, kept), initial=0)
        return list(self.cuts((at, at + len(line)) for at, line in zip(starts, shown, strict=False)))

    def partition(self, sep: str) -> tuple[str, str, str]:
        """As `str.partition`."""
        return self._parted(str.find(self, sep), sep, missing=(self, self.cut(0, 0), self.cut(0, 0)))

    def rpartition(self, sep: str) -> tuple[str, str, str]:
        """As `str.rpartition`."""
        return self._parted(str.rfind(self, sep), sep, missing=(self.cut(0, 0), self.cut(0, 0), self))

    def _parted(self, at: int, sep: str, missing: tuple[Traced, Traced, Traced]) -> tuple[str, str, str]:
        if at < 0:
            return missing
        end = at + len(sep)
        return self.cut(0, at), self.cut(at, end), self.cut(end, len(self))

    def _located(self, parts: list[str], sep: str | None) -> list[str]:
        """The parts of a split, where they stand. Between them is the separator, or white space, which no part starts
        with (but the first of `rsplit`, which starts with the text)::

            "xyxyx" split at "xyx"    parts "" "yx"    at 0 and 3 (not 1, where "yx" stands as well)
        """
        spans: list[tuple[int, int]] = []
        at = 0
        for part in parts:
            at = str.index(self, part, at) if sep is None else at
            spans.append((at, at + len(part)))
            at += len(part) + len(sep or "")
        return list(self.cuts(spans))

    # ---- changing

    def replace(self, old: str, new: str, count: SupportsIndex = -1) -> Traced:
        """As `str.replace`; what is put in keeps the origin of `new`."""
        left = count.__index__()
        if left == 0 or old not in self:
            return self
        spans: list[tuple[int, int]] = []  # what stays
        at = skipped = 0
        while left != 0 and (found := str.find(self, old, at + skipped)) >= 0:
            spans.append((at, found))
            at = found + len(old)
            skipped = not old  # nothing is found before every character, and once at the end
            left -= 1
        return joined(self.cuts([*spans, (at, len(self))]), new)

    def _changed(self, change: Callable[[str], str]) -> Traced:
        """A change that keeps characters in place; where it does not, each run is changed on its own."""
        changed = change(plain(self))
        if len(changed) == len(self):
            return type(self)(changed, self.runs)
        text, parts, at = plain(self), [], 0
        for length, origin in self.runs:
            part = change(text[at : at + length])
            parts.append(Traced(part, ((len(part), origin),)))
            at += length
        whole = joined(parts)
        return whole if whole == changed else Traced(changed)

    def lower(self) -> Traced:
        """As `str.lower`."""
        return self._changed(str.lower)

    def upper(self) -> Traced:
        """As `str.upper`."""
        return self._changed(str.upper)

    def capitalize(self) -> Traced:
        """As `str.capitalize`."""
        return self._changed(str.capitalize)

    def title(self) -> Traced:
        """As `str.title`."""
        return self._changed(str.title)

    def swapcase(self) -> Traced:
        """As `str.swapcase`."""
        return self._changed(str.swapcase)

    def casefold(self) -> Traced:
        """As `str.casefold`."""
        return self._changed(str.casefold)


def plain(text: str) -> str:
    """The same characters as an ordinary string."""
    return str.__getitem__(text, slice(None))


def runs_of(text: str) -> tuple[Run, ...]:
    """The runs of any string; the origin of an ordinary one is lost."""
    return text.runs if isinstance(text, Traced) else ((len(text), LOST),)


def joined(parts: Iterable[str], separator: str = "") -> Traced:
    """All parts as one, runs kept."""
    texts: list[str] = []
    runs: list[Run] = []
    between = runs_of(separator) if separator else ()
    for number, part in enumerate(parts):
        if number and separator:
            texts.append(separator)
            runs += between
        texts.append(part)
        runs += runs_of(part)
    return Traced(str.join("", texts), tuple(runs))


def wholly(text: str, origin: int) -> Traced:
    """A text that is all of one origin."""
    return Traced(text, ((len(text), origin),))


def as_text(value: Any) -> Traced:
    """What `str(value)` writes. Numbers are labels; of a value that holds texts all has their origin."""
    if isinstance(value, Traced):
        return value
    if value is None or isinstance(value, int | float):
        return wholly(str(value), LABEL)
    return wholly(str(value), LOST if isinstance(value, str) else origin_of(value))


def trace(value: Any, origin: int) -> Any:
    """A value with every string in it traced to `origin`, at any depth, keys of mappings included."""
    if isinstance(value, str):
        return Traced(value, ((len(value), origin),))
    if isinstance(value, Mapping):
        return TracedDict({trace(key, origin): trace(held, origin) for key, held in value.items()}, origin)
    if isinstance(value, list | tuple):
        return TracedList([trace(held, origin) for held in value], origin)
    return value


class TracedDict(dict[str, Any]):
    """A mapping from a caller's data; its JSON has the same origin."""

    def __init__(self, held: Mapping[str, Any], origin: int) -> None:
        super().__init__(held)
        self.origin = origin


class TracedList(list[Any]):
    """A list from a caller's data; its JSON has the same origin."""

    def __init__(self, held: Iterable[Any], origin: int) -> None:
        super().__init__(held)
        self.origin = origin


class MessageDict(dict[str, Any]):
    """A message as a template sees it: a mapping that knows which message it is."""

    def __init__(self, held: Mapping[str, Any], index: int) -> None:
        super().__init__(held)
        self.index = index


def origin_of(value: Any) -> int:
    """The origin of a text that shows a value: the message, if all that is in it came from one.

    Literals beside a message's data are that message's, so are labels; without a message labels make it a label.
    """
    found = set(_origins(value))
    messages = {origin for origin in found if origin >= 0}
    if LOST in found or len(messages) > 1:
        return LOST
    if messages:
        return messages.pop()
    return NOWHERE if found == {NOWHERE} else LABEL


def _origins(value: Any) -> Iterator[int]:
    """The origins of all texts in a value."""
    if isinstance(value, TracedDict | TracedList):
        yield value.origin
    elif isinstance(value, MessageDict):
        yield value.index
    elif isinstance(value, Traced):
        yield from (origin for length, origin in value.runs if length or not value)
    elif isinstance(value, Mapping):
        for key, held in value.items():
            if type(key) is not str:  # else a keyword of `dict(...)`, which is no message's
                yield from _origins(key)
            yield from _origins(held)
    elif isinstance(value, list | tuple):
        for held in value:
            yield from _origins(held)
    else:
        yield LABEL if value is None or isinstance(value, int | float) else LOST


def _percent(text: Traced, values: Any) -> Traced:
    """`text % values`, directive by directive; where that is not the same text, its origin is lost."""
    whole = str.__mod__(plain(text), values)
    parts: list[str] = []
    at = number = 0
    for found in _DIRECTIVE.finditer(plain(text)):
        parts.append(text.cut(at, found.start()))
        at = found.end()
        key, form = found["key"], found["form"]
        if form == "%":
            parts.append(text.cut(at - 1, at))
            continue
        if key is not None:
            value = values[key]
        elif isinstance(values, tuple):
            value = values[number]
            number += 1
        else:
            value = values
        made = as_text(value)
        parts.append(made if form == "s" else wholly(str.__mod__("%" + form, (value,)), origin_of(value)))
    made = joined([*parts, text.cut(at, len(text))])
    return made if made == whole else Traced(whole)
