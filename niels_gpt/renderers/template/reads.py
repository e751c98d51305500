"""What a template reads of the caller's texts while it runs, beyond copying them.

A template that reads a text can make its own output depend on it. `content.split("<|im_end|>") | join("<|im_end|>")`
writes the template's own control token as often as the content spells it. So each rendering records whether anything
was read; only then `neutral.py` checks that no control token depends on it::

    {{ content }}, {{ content | trim }}        copied
    {% if '</think>' in content %}             read where it is found; a text without it is like any other
    content.split(' '), content[0]             read
    {% for c in content %}                     read

That a text is empty or white space counts as the shape of the conversation, as the number of messages, parts and calls
does. `bounds.py` reports operators, methods, filters, tests and loops.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from niels_gpt.renderers.template.provenance import LITERAL, LOST, origins_of, runs_of

# Methods and filters whose result is the same text, changed or written in another way.
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
# Those that change a text only where they find something; their result is compared with the text.
_CHANGING: Final = frozenset(["lstrip", "removeprefix", "removesuffix", "replace", "rstrip", "strip"])
_CHANGING_FILTERS: Final = frozenset(
    ["indent", "replace", "striptags", "trim", "truncate", "urlize", "wordwrap", "xmlattr"]
)
# Whether the result of these tells no more than that nothing was found.
_NOTHING_FOUND: Final[dict[str, Callable[[Any], bool]]] = {
    **dict.fromkeys(("partition", "rpartition"), lambda parts: not parts[1]),
    **dict.fromkeys(("rsplit", "split", "splitlines"), lambda parts: len(parts) < 2),
    **dict.fromkeys(("find", "rfind"), lambda place: place < 0),
    "count": lambda number: number == 0,
}
_COMPARING_FILTERS: Final = frozenset(["groupby", "max", "min", "sort", "unique"])  # of the elements of a list


@dataclass
class Reads:
    """What was read in a rendering.

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
        """A text is read; `word`: it was found to be one of the template's words, or to contain one. Returns it."""
        if isinstance(value, str):
            if value:
                self._note({origin for length, origin in runs_of(value) if length}, word)
        elif isinstance(value, bytes):
            self.texts = True
        return value

    def note_all(self, value: Any, *, word: bool = False) -> None:
        """All texts in a value are read."""
        if isinstance(value, str | bytes):
            self.note(value, word=word)
        elif isinstance(value, list | tuple | Mapping):
            self._note(set(origins_of(value)), word)

    def _note(self, origins: set[int], word: bool) -> None:
        if LOST in origins or max(origins, default=LITERAL) >= 0:
            self.texts = True
        elif origins - {LITERAL}:
            if word:
                self.words = True
            else:
                self.texts = True

    def equal(self, left: Any, right: Any) -> None:
        """Two values were found to be equal."""
        self.note_all(left, word=True)
        self.note_all(right, word=True)

    def contained(self, left: Any, right: Any) -> None:
        """A value was found in another one: a text, a list, or the keys of a mapping."""
        is_word = not isinstance(right, str)
        self.note_all(left, word=is_word)
        if not isinstance(right, Mapping):
            self.note_all(right, word=is_word)

    def called(self, own: Any, name: str, args: tuple[Any, ...], result: Any) -> None:
        """A method of a text or of bytes was called."""
        if name in _COPYING or (name in ("strip", "lstrip", "rstrip") and not args) or name == "isspace":
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
        self.note(own)
        for value in args:
            self.note_all(value)

    def filtered(self, name: str, value: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> None:
        """A filter was applied."""
        if name in _COPYING_FILTERS or (name == "trim" and not args and not kwargs):
            return
        if name in _CHANGING_FILTERS and _is_unchanged(value, result):
            return
        if name in _COMPARING_FILTERS:
            self.note_all(value)
        self.note(value)
        if name in ("join", "format"):  # they write their arguments, as often as the value says
            return
        for given in (*args, *kwargs.values()):
            self.note_all(given)

    def looked_up(self, own: Any, name: str, args: tuple[Any, ...]) -> None:
        """A method of a mapping, a list or a loop was called: `names.get(content)`."""
        is_get = name == "get" and isinstance(own, Mapping)
        for value in args[:1] if is_get else args:
            self.note_all(value, word=is_get)


def _is_unchanged(text: Any, result: Any) -> bool:
    """Whether nothing was found: what is replaced by an equal text has another origin."""
    return isinstance(text, str) and result == text and runs_of(result) == runs_of(text)
