"""Upper bounds for the size of a result, computed before the operation runs.

There is one function per kind of operation. Each charges the reading of its inputs (`Budget.weigh`) and returns an
upper bound of the result's size, in the units of `budget.py`::

    "a-b-c".replace("-", "====")      size 5, 2 occurrences, each adds 4 - 1 bytes      ->  11

A bound may be several times too large; that is harmless, since values may be many times larger than the conversation.
It must never be too small.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from jinja2.runtime import Undefined
from jinja2.utils import Namespace

from niels_gpt.errors import TemplateError, shown
from niels_gpt.renderers.template.execution.budget import (
    ELEMENT,
    MAX_BITS,
    SEQUENCES,
    TRACKED_ELEMENT,
    Budget,
    is_sequence,
    size_of,
    text_size,
)

# (budget, value, positional arguments, keyword arguments) -> size
Size = Callable[[Budget, Any, tuple[Any, ...], Mapping[str, Any]], int]

_HUGE: Final = 1 << 60  # instead of a number with so many digits that reading it would take long
_ESCAPED: Final = 6  # JSON, HTML and `repr` write at most this many bytes per byte ("\u0000", "&quot;")
_QUOTED: Final = 12  # URLs: a character of 4 bytes becomes "%F0%9F%98%80"
_PERCENT = re.compile(r"%(?:\([^)]*\))?[-#0 +]*(\*|\d+)?(?:\.(\*|\d+))?")  # width and precision of a directive
_DIGITS = re.compile(r"\d+")
NESTED = re.compile(r":[^}]*\{")  # a format whose width is itself a field: "{:{width}}"
# Codecs that take linear time; `idna` and `punycode` take quadratic time.
_CODECS = frozenset(
    [
        "ascii",
        "utf8",
        "latin1",
        "iso88591",
        "utf16",
        "utf16le",
        "utf16be",
        "utf32",
        "utf32le",
        "utf32be",
        "cp1252",
        "utf8sig",
        "unicodeescape",
        "rawunicodeescape",
    ]
)
# The types whose text has a known size. Of any other object, `str` and `format` could run arbitrary code.
_PLAIN: Final[tuple[type[Any], ...]] = (str, bytes, int, float, type(None), dict, Namespace, Undefined, *SEQUENCES)


def _argument(args: tuple[Any, ...], named: Mapping[str, Any], place: int, name: str, default: Any) -> Any:
    return args[place] if len(args) > place else named.get(name, default)


def _count(value: Any) -> int:
    """A width or a number among the arguments; 0 for any other value, which the operation itself refuses."""
    return max(0, value) if isinstance(value, int) else 0


def _number(digits: str) -> int:
    return int(digits) if len(digits) < 18 else _HUGE


def _element(text: Any) -> int:
    """The size of a part of this text as an element of a list."""
    return ELEMENT if type(text) in (str, bytes) else TRACKED_ELEMENT


def _weigh_all(budget: Budget, values: tuple[Any, ...], named: Mapping[str, Any]) -> int:
    return sum([budget.weigh(value) for value in (*values, *named.values())])


# ---- formats


def percent_size(budget: Budget, text: str | bytes, values: Any) -> int:
    """The size of `text % values`."""
    plain = text if isinstance(text, str) else text.decode("latin-1")
    widths = [digits for found in _PERCENT.findall(plain) for digits in found if digits]
    # "%*d" takes its width from the values; any of the integers may be one.
    stars = [value for value in (values if isinstance(values, tuple) else (values,)) if isinstance(value, int)]
    width = sum(_number(digits) for digits in widths if digits != "*") + (sum(map(abs, stars)) if "*" in widths else 0)
    times = plain.count("%") if isinstance(values, Mapping) else 1  # "%(a)s%(a)s" may write a value several times
    return text_size(text) + width + times * _ESCAPED * budget.weigh(values)


def format_size(budget: Budget, text: str, args: tuple[Any, ...], named: Mapping[str, Any]) -> int:
    """The size of `text.format(*args, **named)`.

    Raises:
        TemplateError: one of the values is of a type whose text has no known size.
    """
    values = (*args, *named.values())
    for value in values:
        if not isinstance(value, _PLAIN):
            raise TemplateError(
                f"the chat template formats a {type(value).__name__} with {shown(text)}; expected texts, numbers, "
                "lists and mappings"
            )
    weight = _weigh_all(budget, args, named)
    width = max([_number(digits) for digits in _DIGITS.findall(text)], default=0)
    if NESTED.search(text):  # the width may be any number among the values
        width += _largest(values)
    return text_size(text) + text.count("{") * (_ESCAPED * weight + 4 * width)


def _largest(values: tuple[Any, ...]) -> int:
    """The largest integer at any depth of values that have been weighed (so the search is bounded)."""
    largest, waiting = 0, list(values)
    while waiting:
        item = waiting.pop()
        if isinstance(item, int):
            largest = max(largest, abs(item))
        elif isinstance(item, dict):
            waiting.extend(item.values())
        elif isinstance(item, str):
            largest = max([largest, *map(_number, _DIGITS.findall(item))])
        elif is_sequence(item):
            waiting.extend(item)
    return largest


# ---- methods of texts, bytes and integers


# `own` is the value whose method is called.


def _tabs(budget: Budget, own: Any, args: tuple[Any, ...], named: Mapping[str, Any]) -> int:
    tabs: int = own.count("\t" if isinstance(own, str) else b"\t")
    return size_of(own) + 4 * tabs * _count(_argument(args, named, 0, "tabsize", 8))


def _replaced(budget: Budget, own: Any, args: tuple[Any, ...], named: Mapping[str, Any]) -> int:
    if len(args) < 2 or not isinstance(args[0], str | bytes) or not isinstance(args[1], str | bytes):
        return size_of(own) + _weigh_all(budget, args, named)
    old, new = args[:2]
    both_texts = isinstance(own, str) and isinstance(old, str)
    # An empty text is found before each character and at the end: "ab" has three places for it.
    found: int = str.count(own, old) if both_texts and old else len(own) + 1
    count = _argument(args, named, 2, "count", None)
    times: int = min(found, count) if isinstance(count, int) and count >= 0 else found
    budget.spend(_searching(own, old) + times * (_element(own) if type(own) is not str else 1))
    return size_of(own) + times * max(0, text_size(new) - len(old))


def _searching(own: Any, part: Any) -> int:
    """The charge for a search: in the worst case a short part is compared at every place."""
    return len(own) * (1 + min(len(part), 64) // 8) if isinstance(part, str | bytes) else 0


def _joined(budget: Budget, own: Any, args: tuple[Any, ...], named: Mapping[str, Any]) -> int:
    parts = args[0] if args else ()
    if isinstance(parts, str | bytes):
        return text_size(parts) + len(parts) * (text_size(own) + _element(parts))
    return budget.weigh(parts) + (len(parts) if hasattr(parts, "__len__") else 0) * text_size(own)


def _parts(budget: Budget, own: Any, args: tuple[Any, ...], named: Mapping[str, Any]) -> int:
    """`split` and `rsplit`: every part is a string of its own."""
    sep, most = _argument(args, named, 0, "sep", None), _argument(args, named, 1, "maxsplit", -1)
    if isinstance(sep, str) and isinstance(own, str):
        number = str.count(own, sep) + 1 if sep else 1
    else:
        number = len(own) // 2 + 1  # "a b c": at white space, every second character at most begins a part
    if isinstance(most, int) and most >= 0:
        number = min(number, most + 1)
    budget.spend(_searching(own, sep))
    return size_of(own) + number * _element(own)


def _lines(budget: Budget, own: Any, args: tuple[Any, ...], named: Mapping[str, Any]) -> int:
    number = len(str.splitlines(own)) if isinstance(own, str) else len(own) + 1
    return size_of(own) + number * _element(own)


def _translated(budget: Budget, own: Any, args: tuple[Any, ...], named: Mapping[str, Any]) -> int:
    table = args[0] if args else None
    if isinstance(table, dict):
        # Each character becomes a text of the table, or a character of 4 bytes at most.
        sizes = [text_size(value) for value in table.values() if isinstance(value, str | bytes)]
        return size_of(own) + len(own) * max([4, *sizes])
    return size_of(own) * 4 + _weigh_all(budget, args, named)


def _coded(budget: Budget, own: Any, args: tuple[Any, ...], named: Mapping[str, Any]) -> int:
    codec = _argument(args, named, 0, "encoding", "utf-8")
    errors = _argument(args, named, 1, "errors", "strict")
    plain = str(codec).lower().replace("-", "").replace("_", "").replace(" ", "")[:40]
    if plain not in _CODECS:
        raise TemplateError(
            f"the chat template uses the codec {shown(codec)}; expected utf-8, ascii, latin-1, cp1252, utf-16 or utf-32"
        )
    return len(own) * (4 if errors in ("strict", "ignore", "replace") else 100)  # "namereplace" writes "\N{...}"


METHOD_SIZES: Final[dict[str, Size]] = {
    **dict.fromkeys(  # the character that fills it up has 4 bytes at most
        ("center", "ljust", "rjust", "zfill"),
        lambda budget, own, args, named: size_of(own) + 4 * _count(_argument(args, named, 0, "width", 0)),
    ),
    "expandtabs": _tabs,
    "replace": _replaced,
    "join": _joined,
    **dict.fromkeys(("split", "rsplit"), _parts),
    "splitlines": _lines,
    "translate": _translated,
    **dict.fromkeys(("encode", "decode"), _coded),
    "to_bytes": lambda budget, own, args, named: _count(_argument(args, named, 0, "length", 1)),
    **dict.fromkeys(  # "ΐ".upper() has three characters, and no character has more
        ("upper", "lower", "title", "capitalize", "casefold", "swapcase", "hex"),
        lambda budget, own, args, named: 3 * size_of(own) + _weigh_all(budget, args, named),
    ),
}


def method_size(budget: Budget, own: Any, name: str, args: tuple[Any, ...], named: Mapping[str, Any]) -> int:
    """The size of the result of a method of a string, bytes or an integer.

    A method that is not in `METHOD_SIZES` never returns more than its inputs.
    """
    size = METHOD_SIZES.get(name)
    if size is not None:
        return size(budget, own, args, named)
    budget.spend(sum([_searching(own, value) for value in args]) if isinstance(own, str | bytes) else 0)
    return size_of(own) + _weigh_all(budget, args, named)


# ---- filters


def _indented(budget: Budget, value: Any, args: tuple[Any, ...], named: Mapping[str, Any]) -> int:
    width = _argument(args, named, 0, "width", 4)
    lines = len(str.splitlines(value)) + 1 if isinstance(value, str) else budget.weigh(value)
    return budget.weigh(value) + lines * (text_size(width) if isinstance(width, str) else _count(width))


def _wrapped(budget: Budget, value: Any, args: tuple[Any, ...], named: Mapping[str, Any]) -> int:
    weight = budget.weigh(value)
    width = max(1, _count(_argument(args, named, 0, "width", 79)))
    between = _argument(args, named, 2, "wrapstring", None)
    lines = 2 * weight // width + (value.count("\n") if isinstance(value, str) else weight) + 1
    budget.spend(128 * weight)  # `textwrap` runs regular expressions over every character
    return weight + lines * (text_size(between) if isinstance(between, str) else 1)


def _replacing(budget: Budget, value: Any, args: tuple[Any, ...], named: Mapping[str, Any]) -> int:
    texts = [_argument(args, named, 0, "old", ""), _argument(args, named, 1, "new", "")]
    if all(isinstance(text, str) for text in (value, *texts)):
        return _replaced(budget, value, (*texts, _argument(args, named, 2, "count", None)), {})
    weight = budget.weigh(value)
    return weight + (_ESCAPED * weight + 1) * (1 + _weigh_all(budget, (), {"old": texts[0], "new": texts[1]}))


def _joining(budget: Budget, value: Any, args: tuple[Any, ...], named: Mapping[str, Any]) -> int:
    between = _argument(args, named, 0, "d", "")
    number = len(value) if hasattr(value, "__len__") else 0
    return _ESCAPED * budget.weigh(value) + number * (budget.weigh(between) + ELEMENT)


def _json(budget: Budget, value: Any, args: tuple[Any, ...], named: Mapping[str, Any]) -> int:
    size = _ESCAPED * budget.weigh(value)
    indent, separators = named.get("indent"), named.get("separators")
    if indent is None and separators is None and len(args) < 2:
        return size
    values = [*args, *named.values()]
    # Every element is on a line of its own, with up to `depth` indents, which are a number of spaces or a text, and
    # with both separators.
    depth, elements = _depth(value)
    widths = [width for width in values if isinstance(width, int)]
    texts = [text_size(text) for text in values if isinstance(text, str)]
    for pair in values:
        if isinstance(pair, list | tuple):
            texts += [text_size(text) for text in pair if isinstance(text, str)]
    return size + elements * (depth * (max(map(_count, widths), default=0) + sum(texts)) + sum(texts))


def _depth(value: Any) -> tuple[int, int]:
    """The depth of nesting of a value that has been weighed, and the number of its elements at all depths."""
    # [[1], {"a": 2}] has three levels, of 1, 2 and 2 values: depth 3. Below them are 2, 2 and 0 elements, and one more
    # is counted for each level: 7.
    level, depth, elements = [value], 0, 0
    while level:
        below: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                below.extend(item.values())
            elif isinstance(item, list | tuple):
                below.extend(item)
        depth, elements, level = depth + 1, elements + len(below) + 1, below
    return depth, elements


def _batches(budget: Budget, value: Any, args: tuple[Any, ...], named: Mapping[str, Any]) -> int:
    number = max([_count(value) for value in (*args[:1], named.get("linecount"), named.get("slices"))], default=0)
    return size_of(value) + ELEMENT * number


def _rounded(budget: Budget, value: Any, args: tuple[Any, ...], named: Mapping[str, Any]) -> int:
    digits = _argument(args, named, 0, "precision", 0)
    if isinstance(digits, int) and abs(digits) * 4 > MAX_BITS:
        raise TemplateError(f"the chat template rounds to {shown(digits)} digits; expected at most {MAX_BITS // 4:,}")
    return 0


def _pretty(budget: Budget, value: Any, args: tuple[Any, ...], named: Mapping[str, Any]) -> int:
    """Python's pretty printer formats nested values again at every level."""
    weight = budget.weigh(value)
    budget.spend(16 * weight * _depth(value)[0])
    return _ESCAPED * weight * _depth(value)[0]


def _links(budget: Budget, value: Any, args: tuple[Any, ...], named: Mapping[str, Any]) -> int:
    """`urlize` applies regular expressions whose time may grow with the square of a word's length."""
    text = value if isinstance(value, str) else ""
    words = text.split()
    budget.spend(sum([len(word) ** 2 for word in words]) // 4)
    return _ESCAPED * budget.weigh(value) + len(words) * (_weigh_all(budget, args, named) + ELEMENT)


def _untagged(budget: Budget, value: Any, args: tuple[Any, ...], named: Mapping[str, Any]) -> int:
    weight = budget.weigh(value)
    budget.spend(value.count("<") * weight // 8 if isinstance(value, str) else weight)
    return weight


FILTER_SIZES: Final[dict[str, Size]] = {
    "batch": _batches,
    "center": lambda budget, value, args, named: (
        budget.weigh(value) + 4 * _count(_argument(args, named, 0, "width", 80))
    ),
    "format": lambda budget, value, args, named: (
        percent_size(budget, value if isinstance(value, str) else "", named or args) + budget.weigh(value)
    ),
    "indent": _indented,
    "join": _joining,
    "list": lambda budget, value, args, named: (
        text_size(value) + len(value) * _element(value) if isinstance(value, str) else size_of(value)
    ),
    "pprint": _pretty,
    "replace": _replacing,
    "round": _rounded,
    "slice": _batches,
    "striptags": _untagged,
    "tojson": _json,
    "urlencode": lambda budget, value, args, named: _QUOTED * budget.weigh(value),
    "urlize": _links,
    "wordwrap": _wrapped,
    **dict.fromkeys(
        ("e", "escape", "forceescape", "string", "title", "upper", "lower", "xmlattr"),
        lambda budget, value, args, named: _ESCAPED * budget.weigh(value) + _weigh_all(budget, args, named),
    ),
}
