"""How large a text or list becomes, worked out before a chat template makes it.

Each function here pays for reading what goes in (`Budget.weigh`) and returns the most that can come out, in the units
of `template_budget`. A bound may be several times too large: values may be many times larger than their conversation.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from jinja2.runtime import Undefined
from jinja2.utils import Namespace

from niels_gpt.errors import TemplateError, shown
from niels_gpt.renderers.template_budget import (
    ELEMENT,
    MAX_BITS,
    SEQUENCES,
    TRACED_ELEMENT,
    Budget,
    is_sequence,
    size_of,
    text_size,
)

Size = Callable[[Budget, Any, tuple[Any, ...], Mapping[str, Any]], int]

_HUGE: Final = 1 << 60
_ESCAPED: Final = 6  # a character of JSON, HTML or `repr` becomes at most so many bytes for each of its own
_QUOTED: Final = 12  # of a URL
_PERCENT = re.compile(r"%(?:\([^)]*\))?[-#0 +]*(\*|\d+)?(?:\.(\*|\d+))?")
_DIGITS = re.compile(r"\d+")
_NESTED = re.compile(r":[^}]*\{")
# Those that take time in proportion; `idna` and `punycode` take its square.
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
_PLAIN: Final[tuple[type[Any], ...]] = (str, bytes, int, float, type(None), dict, Namespace, Undefined, *SEQUENCES)


def _argument(args: tuple[Any, ...], named: Mapping[str, Any], place: int, name: str, default: Any) -> Any:
    return args[place] if len(args) > place else named.get(name, default)


def _whole(value: Any) -> int:
    """A width or number given as an argument; what is none is refused by the function itself."""
    return max(0, value) if isinstance(value, int) else 0


def _number(digits: str) -> int:
    return int(digits) if len(digits) < 18 else _HUGE


def _element(text: Any) -> int:
    return ELEMENT if type(text) in (str, bytes) else TRACED_ELEMENT


def _read(budget: Budget, values: tuple[Any, ...], named: Mapping[str, Any]) -> int:
    return sum([budget.weigh(value) for value in (*values, *named.values())])


# ---- formats


def percent_size(budget: Budget, text: str | bytes, given: Any) -> int:
    """Of `text % given`."""
    plain = text if isinstance(text, str) else text.decode("latin-1")
    widths = [held for found in _PERCENT.findall(plain) for held in found if held]
    stars = [held for held in (given if isinstance(given, tuple) else (given,)) if isinstance(held, int)]
    width = sum(_number(held) for held in widths if held != "*") + (sum(map(abs, stars)) if "*" in widths else 0)
    times = plain.count("%") if isinstance(given, Mapping) else 1
    return text_size(text) + width + times * _ESCAPED * budget.weigh(given)


def format_size(budget: Budget, text: str, args: tuple[Any, ...], named: Mapping[str, Any]) -> int:
    """Of `text.format(*args, **named)`.

    Raises:
        TemplateError: one of the values is none that has a text.
    """
    values = (*args, *named.values())
    for value in values:
        if not isinstance(value, _PLAIN):
            raise TemplateError(
                f"the chat template formats a {type(value).__name__} with {shown(text)}; expected texts, numbers, "
                "lists and mappings"
            )
    weight = _read(budget, args, named)
    width = max([_number(held) for held in _DIGITS.findall(text)], default=0)
    if _NESTED.search(text):  # a width may be one of the values
        width += _largest(values)
    return text_size(text) + text.count("{") * (_ESCAPED * weight + 4 * width)


def _largest(values: tuple[Any, ...]) -> int:
    """The largest integer anywhere in values that have been weighed."""
    found, waiting = 0, list(values)
    while waiting:
        held = waiting.pop()
        if isinstance(held, int):
            found = max(found, abs(held))
        elif isinstance(held, dict):
            waiting.extend(held.values())
        elif isinstance(held, str):
            found = max([found, *map(_number, _DIGITS.findall(held))])
        elif is_sequence(held):
            waiting.extend(held)
    return found


# ---- methods of texts, bytes and integers


def _padded(budget: Budget, own: Any, args: tuple[Any, ...], named: Mapping[str, Any]) -> int:
    return size_of(own) + 4 * _whole(_argument(args, named, 0, "width", 0))


def _tabs(budget: Budget, own: Any, args: tuple[Any, ...], named: Mapping[str, Any]) -> int:
    tabs: int = own.count("\t" if isinstance(own, str) else b"\t")
    return size_of(own) + 4 * tabs * _whole(_argument(args, named, 0, "tabsize", 8))


def _replaced(budget: Budget, own: Any, args: tuple[Any, ...], named: Mapping[str, Any]) -> int:
    if len(args) < 2 or not isinstance(args[0], str | bytes) or not isinstance(args[1], str | bytes):
        return size_of(own) + _read(budget, args, named)
    old, new = args[:2]
    both_texts = isinstance(own, str) and isinstance(old, str)
    found: int = str.count(own, old) if both_texts and old else len(own) + 1
    count = _argument(args, named, 2, "count", None)
    times: int = min(found, count) if isinstance(count, int) and count >= 0 else found
    budget.spend(_searching(own, old) + times * (_element(own) if type(own) is not str else 1))
    return size_of(own) + times * max(0, text_size(new) - len(old))


def _searching(own: Any, part: Any) -> int:
    """A search may compare a short part at every place."""
    return len(own) * (1 + min(len(part), 64) // 8) if isinstance(part, str | bytes) else 0


def _joined(budget: Budget, own: Any, args: tuple[Any, ...], named: Mapping[str, Any]) -> int:
    parts = args[0] if args else ()
    if isinstance(parts, str | bytes):
        return text_size(parts) + len(parts) * (text_size(own) + _element(parts))
    return budget.weigh(parts) + (len(parts) if hasattr(parts, "__len__") else 0) * text_size(own)


def _parts(budget: Budget, own: Any, args: tuple[Any, ...], named: Mapping[str, Any]) -> int:
    """`split` and the like: a text of its own for each part."""
    sep, most = _argument(args, named, 0, "sep", None), _argument(args, named, 1, "maxsplit", -1)
    if isinstance(sep, str) and isinstance(own, str):
        number = str.count(own, sep) + 1 if sep else 1
    else:
        number = len(own) // 2 + 1
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
        held = [text_size(value) for value in table.values() if isinstance(value, str | bytes)]
        return size_of(own) + len(own) * max([4, *held])
    return size_of(own) * 4 + _read(budget, args, named)


def _coded(budget: Budget, own: Any, args: tuple[Any, ...], named: Mapping[str, Any]) -> int:
    codec = _argument(args, named, 0, "encoding", "utf-8")
    errors = _argument(args, named, 1, "errors", "strict")
    plain = str(codec).lower().replace("-", "").replace("_", "").replace(" ", "")[:40]
    if plain not in _CODECS:
        raise TemplateError(
            f"the chat template uses the codec {shown(codec)}; expected utf-8, ascii, latin-1, cp1252, utf-16 or utf-32"
        )
    return len(own) * (4 if errors in ("strict", "ignore", "replace") else 100)


def _bytes_of_int(budget: Budget, own: Any, args: tuple[Any, ...], named: Mapping[str, Any]) -> int:
    return _whole(_argument(args, named, 0, "length", 1))


def _tripled(budget: Budget, own: Any, args: tuple[Any, ...], named: Mapping[str, Any]) -> int:
    return 3 * size_of(own) + _read(budget, args, named)


METHOD_SIZES: Final[dict[str, Size]] = {
    **dict.fromkeys(("center", "ljust", "rjust", "zfill"), _padded),
    "expandtabs": _tabs,
    "replace": _replaced,
    "join": _joined,
    **dict.fromkeys(("split", "rsplit"), _parts),
    "splitlines": _lines,
    "translate": _translated,
    **dict.fromkeys(("encode", "decode"), _coded),
    "to_bytes": _bytes_of_int,
    **dict.fromkeys(("upper", "lower", "title", "capitalize", "casefold", "swapcase", "hex"), _tripled),
}


def method_size(budget: Budget, own: Any, name: str, args: tuple[Any, ...], named: Mapping[str, Any]) -> int:
    """Of a method of a text, bytes or an integer; others make nothing larger than what goes in."""
    known = METHOD_SIZES.get(name)
    if known is not None:
        return known(budget, own, args, named)
    budget.spend(sum([_searching(own, value) for value in args]) if isinstance(own, str | bytes) else 0)
    return size_of(own) + _read(budget, args, named)


# ---- filters


def _filled(budget: Budget, value: Any, args: tuple[Any, ...], named: Mapping[str, Any]) -> int:
    return budget.weigh(value) + 4 * _whole(_argument(args, named, 0, "width", 80))


def _indented(budget: Budget, value: Any, args: tuple[Any, ...], named: Mapping[str, Any]) -> int:
    width = _argument(args, named, 0, "width", 4)
    lines = len(str.splitlines(value)) + 1 if isinstance(value, str) else budget.weigh(value)
    return budget.weigh(value) + lines * (text_size(width) if isinstance(width, str) else _whole(width))


def _wrapped(budget: Budget, value: Any, args: tuple[Any, ...], named: Mapping[str, Any]) -> int:
    weight = budget.weigh(value)
    width = max(1, _whole(_argument(args, named, 0, "width", 79)))
    between = _argument(args, named, 2, "wrapstring", None)
    lines = 2 * weight // width + (value.count("\n") if isinstance(value, str) else weight) + 1
    budget.spend(128 * weight)  # a regular expression of Python's, for each character
    return weight + lines * (text_size(between) if isinstance(between, str) else 1)


def _replacing(budget: Budget, value: Any, args: tuple[Any, ...], named: Mapping[str, Any]) -> int:
    texts = [_argument(args, named, 0, "old", ""), _argument(args, named, 1, "new", "")]
    if all(isinstance(text, str) for text in (value, *texts)):
        return _replaced(budget, value, (*texts, _argument(args, named, 2, "count", None)), {})
    weight = budget.weigh(value)
    return weight + (_ESCAPED * weight + 1) * (1 + _read(budget, (), {"old": texts[0], "new": texts[1]}))


def _joining(budget: Budget, value: Any, args: tuple[Any, ...], named: Mapping[str, Any]) -> int:
    between = _argument(args, named, 0, "d", "")
    number = len(value) if hasattr(value, "__len__") else 0
    return _ESCAPED * budget.weigh(value) + number * (budget.weigh(between) + ELEMENT)


def _formatting(budget: Budget, value: Any, args: tuple[Any, ...], named: Mapping[str, Any]) -> int:
    return percent_size(budget, value if isinstance(value, str) else "", named or args) + budget.weigh(value)


def _json(budget: Budget, value: Any, args: tuple[Any, ...], named: Mapping[str, Any]) -> int:
    size = _ESCAPED * budget.weigh(value)
    indent, separators = named.get("indent"), named.get("separators")
    if indent is None and separators is None and len(args) < 2:
        return size
    values = [*args, *named.values()]
    depth, elements = _depth(value)
    widths = [held for held in values if isinstance(held, int)]
    texts = [text_size(held) for held in values if isinstance(held, str)]
    for pair in values:
        if isinstance(pair, list | tuple):
            texts += [text_size(held) for held in pair if isinstance(held, str)]
    return size + elements * (depth * (max(map(_whole, widths), default=0) + sum(texts)) + sum(texts))


def _depth(value: Any) -> tuple[int, int]:
    """How deep a value that has been weighed is nested, and how many elements it has at all depths."""
    level, depth, elements = [value], 0, 0
    while level:
        below: list[Any] = []
        for held in level:
            if isinstance(held, dict):
                below.extend(held.values())
            elif isinstance(held, list | tuple):
                below.extend(held)
        depth, elements, level = depth + 1, elements + len(below) + 1, below
    return depth, elements


def _list(budget: Budget, value: Any, args: tuple[Any, ...], named: Mapping[str, Any]) -> int:
    return text_size(value) + len(value) * _element(value) if isinstance(value, str) else size_of(value)


def _batches(budget: Budget, value: Any, args: tuple[Any, ...], named: Mapping[str, Any]) -> int:
    number = max([_whole(held) for held in (*args[:1], named.get("linecount"), named.get("slices"))], default=0)
    return size_of(value) + ELEMENT * number


def _rounded(budget: Budget, value: Any, args: tuple[Any, ...], named: Mapping[str, Any]) -> int:
    digits = _argument(args, named, 0, "precision", 0)
    if isinstance(digits, int) and abs(digits) * 4 > MAX_BITS:
        raise TemplateError(f"the chat template rounds to {shown(digits)} digits; expected at most {MAX_BITS // 4:,}")
    return 0


def _written(budget: Budget, value: Any, args: tuple[Any, ...], named: Mapping[str, Any]) -> int:
    return _ESCAPED * budget.weigh(value) + _read(budget, args, named)


def _url(budget: Budget, value: Any, args: tuple[Any, ...], named: Mapping[str, Any]) -> int:
    return _QUOTED * budget.weigh(value)


def _pretty(budget: Budget, value: Any, args: tuple[Any, ...], named: Mapping[str, Any]) -> int:
    """Python's pretty printer writes what it has nested once for each level."""
    weight = budget.weigh(value)
    budget.spend(16 * weight * _depth(value)[0])
    return _ESCAPED * weight * _depth(value)[0]


def _links(budget: Budget, value: Any, args: tuple[Any, ...], named: Mapping[str, Any]) -> int:
    """Regular expressions whose time may grow with the square of a word."""
    text = value if isinstance(value, str) else ""
    words = text.split()
    budget.spend(sum([len(word) ** 2 for word in words]) // 4)
    return _ESCAPED * budget.weigh(value) + len(words) * (_read(budget, args, named) + ELEMENT)


def _untagged(budget: Budget, value: Any, args: tuple[Any, ...], named: Mapping[str, Any]) -> int:
    weight = budget.weigh(value)
    budget.spend(value.count("<") * weight // 8 if isinstance(value, str) else weight)
    return weight


FILTER_SIZES: Final[dict[str, Size]] = {
    "batch": _batches,
    "center": _filled,
    "format": _formatting,
    "indent": _indented,
    "join": _joining,
    "list": _list,
    "pprint": _pretty,
    "replace": _replacing,
    "round": _rounded,
    "slice": _batches,
    "striptags": _untagged,
    "tojson": _json,
    "urlencode": _url,
    "urlize": _links,
    "wordwrap": _wrapped,
    **dict.fromkeys(("e", "escape", "forceescape", "string", "title", "upper", "lower", "xmlattr"), _written),
}
