"""Records which of the caller's texts a template reads while it runs, beyond copying them.

A template that reads a text can make its own output depend on it. `content.split("<|im_end|>") | join("<|im_end|>")`
writes the template's own control token as often as the content spells it. So each rendering records whether anything
was read; only then `neutral.py` checks that no control token depends on it::

    {{ content }}, {{ content | trim }}        copied
    {% if '</think>' in content %}             read where it is found; a text without it is like any other
    '</think>' in '</think>' + content         read where the content has it too: the template's own is always found
    content.split(' '), content[0]             read
    {% for c in content %}                     read

Whether a text is empty or only white space is not recorded: like the number of messages, parts and calls, it belongs to
the kind of conversation. `bounds.py` reports operators, methods, filters, tests and loops to this module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from niels_gpt.renderers.template.execution.provenance import LITERAL, LOST, TrackedStr, origins_of, runs_of

# Methods and filters that return the same text in another form, which shows nothing about its letters.
_COPYING: Final = frozenset(
    [
        "capitalize",
        "casefold",
        "center",
        "decode",
        "encode",
        "expandtabs",
        "ljust",
        "lower",
        "rjust",
        "swapcase",
        "title",
        "upper",
        "zfill",
    ]
)
_COPYING_FILTERS: Final = frozenset(
    [
        "capitalize",
        "center",
        "d",
        "default",
        "e",
        "escape",
        "forceescape",
        "lower",
        "pprint",
        "safe",
        "string",
        "title",
        "tojson",
        "upper",
        "urlencode",
    ]
)
# Methods and filters that change a text only if they find something: an unchanged result is a copy.
_CHANGING: Final = frozenset(["lstrip", "removeprefix", "removesuffix", "replace", "rstrip", "strip"])
_CHANGING_FILTERS: Final = frozenset(
    ["indent", "replace", "striptags", "trim", "truncate", "urlize", "wordwrap", "xmlattr"]
)
# For methods that search: whether their result shows only that nothing was found.
_NOTHING_FOUND: Final[dict[str, Callable[[Any], bool]]] = {
    **dict.fromkeys(("partition", "rpartition"), lambda parts: not parts[1]),
    **dict.fromkeys(("rsplit", "split", "splitlines"), lambda parts: len(parts) < 2),
    **dict.fromkeys(("find", "rfind"), lambda place: place < 0),
    "count": lambda number: number == 0,
}
# Of these, the ones whose result does not show how long the text before the place is.
_DIVIDING: Final = frozenset(["count", "partition", "rpartition", "rsplit", "split"])
_MOST: Final = 64  # characters of a part, and places of it, that are followed; more count as read
_COMPARING_FILTERS: Final = frozenset(["groupby", "max", "min", "sort", "unique"])  # of the elements of a list


@dataclass
class Reads:
    """The kinds of values that a rendering has read.

    Attributes:
        texts: a content, or a text of unknown origin, was read; or a label, in a way that shows more than whether it is
            one of the words that the template knows.
        words: a label (a name, a type, a key of a schema) was compared with the template's words, and was one.
        numbers: a number that may be the caller's decides how often something is done: `range(n)`, `'-' * n`.
    """

    texts: bool = False
    words: bool = False
    numbers: bool = False

    def note(self, value: Any, *, word: bool = False) -> Any:
        """Record that a text is read, and return it.

        Args:
            word: it was found to equal one of the template's words, or to contain one.
        """
        if isinstance(value, str):
            if value:
                self._note({origin for length, origin in runs_of(value) if length}, word)
        elif isinstance(value, bytes):
            self.texts = True
        return value

    def note_all(self, value: Any, *, word: bool = False) -> None:
        """Record that all texts in a value are read."""
        if isinstance(value, str | bytes):
            self.note(value, word=word)
        elif isinstance(value, list | tuple | Mapping):
            self._note(set(origins_of(value)), word)

    def _note(self, origins: set[int], word: bool) -> None:
        # Origins of 0 and more are contents. A text that lost its origin may be one.
        if LOST in origins or max(origins, default=LITERAL) >= 0:
            self.texts = True
        elif origins - {LITERAL}:
            if word:
                self.words = True
            else:
                self.texts = True

    def equal(self, left: Any, right: Any) -> None:
        """Record that two values were found to be equal."""
        self.note_all(left, word=True)
        self.note_all(right, word=True)

    def contained(self, left: Any, right: Any) -> None:
        """Record that a value was found in another one: in a text, a list, or the keys of a mapping."""
        if _is_only_own(right, left):
            return
        # A label that is in a list of the template's is one of its words. One that is in a text may be any part of it.
        is_word = not isinstance(right, str)
        self.note_all(left, word=is_word)
        if not isinstance(right, Mapping):
            self.note_all(right, word=is_word)

    def called(self, own: Any, name: str, args: tuple[Any, ...], result: Any) -> None:
        """Record the call of a method of a text or of bytes."""
        if (
            (name in _COPYING and "ignore" not in args)
            or (name in ("strip", "lstrip", "rstrip") and not args)
            or name == "isspace"
        ):
            return
        if name == "join":
            self.note(args[0] if args else None)  # a text is joined character by character
            return
        if name in ("startswith", "endswith"):
            if result:
                self.note(own)
                self.note_all(args[0] if args else None)
            return
        if name in _CHANGING and _is_unchanged(own, result):
            return
        if name in _NOTHING_FOUND and _NOTHING_FOUND[name](result):
            return
        if name in _DIVIDING and args and _is_only_own(own, args[0]):
            return
        self.note(own)
        for value in args:
            self.note_all(value)

    def filtered(self, name: str, value: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> None:
        """Record that a filter was applied."""
        if name in _COPYING_FILTERS or (name == "trim" and not args and not kwargs):
            return
        if name in _CHANGING_FILTERS and _is_unchanged(value, result):
            return
        if name in _COMPARING_FILTERS:
            self.note_all(value)
        self.note(value)
        if name in ("join", "format"):  # they copy their arguments; how often depends on the value, which is recorded
            return
        for given in (*args, *kwargs.values()):
            self.note_all(given)

    def looked_up(self, own: Any, name: str, args: tuple[Any, ...]) -> None:
        """Record the call of a method of a mapping, a list or a loop, such as `names.get(content)`."""
        is_get = name == "get" and isinstance(own, Mapping)
        for value in args[:1] if is_get else args:
            self.note_all(value, word=is_get)


def _is_unchanged(text: Any, result: Any) -> bool:
    """Whether the result is the text itself: a replacement by an equal text would have another origin."""
    return isinstance(text, str) and result == text and runs_of(result) == runs_of(text)


def _is_only_own(text: Any, part: Any) -> bool:
    """Whether a text holds this part of the template's own words nowhere but in what the template itself wrote.

    ::

        part  <b>       text  <b>Hi     runs ((3, LITERAL), (2, 1))      yes: any other content would do as well
                        text  <b><b>    runs ((3, LITERAL), (3, 1))      no
    """
    if not isinstance(text, TrackedStr) or not isinstance(part, TrackedStr) or not 0 < len(part) <= _MOST:
        return False
    if any(origin != LITERAL for length, origin in part.runs if length):
        return False
    stretches, at = [(0, 0)], 0  # of the template's own text
    for length, origin in text.runs:
        if origin == LITERAL:
            start, stop = stretches[-1]
            stretches[-1:] = [(start, at + length)] if stop == at else [(start, stop), (at, at + length)]
        at += length
    # Also places that overlap: which of them a search takes may depend on the characters before them.
    at = number = 0
    for _ in range(_MOST):
        at = str.find(text, part, at)
        if at < 0:
            return True
        while number < len(stretches) and stretches[number][1] < at + len(part):
            number += 1
        if number == len(stretches) or stretches[number][0] > at:
            return False
        at += 1
    return False
