"""The filters that templates apply to text, with provenance, and the types of `|safe` and `str.format`.

Each filter here returns the text that Jinja's own filter of this name returns, as a `TrackedStr`. Jinja's other
filters still work; where they return a new text, its origin is LOST.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from functools import update_wrapper
from typing import Any, Final

import jinja2
import jinja2.filters
import jinja2.sandbox
from markupsafe import Markup, escape

from niels_gpt.renderers.template.execution.provenance import (
    LABEL,
    TrackedStr,
    as_text,
    joined,
    origin_of,
    plain,
    tracked_text,
)


def tracking_filters() -> dict[str, Callable[..., Any]]:
    """The filters by name, which replace Jinja's."""
    return {
        "tojson": _tojson,
        "join": _join,
        "indent": _indent,
        "safe": safe,
        "escape": escaped,
        "e": escaped,
        "replace": _replace,
        "title": lambda s: as_text(s)._changed(jinja2.filters.do_title),  # not `str.title`: "it's" stays "It's"
        "trim": lambda value, chars=None: as_text(value).strip(chars),
        "upper": lambda s: as_text(s).upper(),
        "lower": lambda s: as_text(s).lower(),
        "capitalize": lambda s: as_text(s).capitalize(),
        "string": as_text,
        "format": _format,
        "truncate": _truncate,
    }


class TrackedMarkup(TrackedStr):
    """`markupsafe.Markup` with origins: what is joined to it is escaped.

    Joining, slicing and changes of case keep origins. All other methods are `Markup`'s own; they return ordinary
    strings, which never become control tokens.
    """

    __slots__ = ()

    def __html__(self) -> TrackedMarkup:
        return self

    def __str__(self) -> TrackedStr:
        return TrackedStr(plain(self), self.runs)

    def __add__(self, other: Any) -> TrackedMarkup:
        if not isinstance(other, str) and not hasattr(other, "__html__"):
            return NotImplemented
        return _safe(joined([self, escaped(other)]))

    def __radd__(self, other: Any) -> TrackedMarkup:
        if not isinstance(other, str) and not hasattr(other, "__html__"):
            return NotImplemented
        return _safe(joined([escaped(other), self]))

    def __mod__(self, values: Any) -> Any:
        return Markup(plain(self)) % values

    def join(self, parts: Iterable[Any]) -> TrackedMarkup:
        """As `Markup.join`."""
        return _safe(joined([escaped(part) for part in parts], self))

    def replace(self, old: str, new: str, count: Any = -1) -> TrackedMarkup:
        """As `Markup.replace`."""
        return _safe(super().replace(old, escaped(new), count))


def _safe(text: TrackedStr) -> TrackedMarkup:
    return TrackedMarkup(plain(text), text.runs)


def safe(value: Any) -> TrackedMarkup:
    """The filter `safe`."""
    return _safe(as_text(value))


def escaped(value: Any) -> TrackedMarkup:
    """The filter `escape`: safe text unchanged, any other text escaped run by run, so that "&amp;" is one origin's."""
    if isinstance(value, TrackedMarkup):
        return value
    if hasattr(value, "__html__"):
        return _safe(as_text(str(value.__html__())))
    text = as_text(value)
    parts, at = [], 0
    for length, origin in text.runs:
        part = str(escape(plain(text)[at : at + length]))
        parts.append(TrackedStr(part, ((len(part), origin),)))
        at += length
    return _safe(joined(parts))


# The parameters of the filters below have Jinja's names, since templates may pass them by keyword.


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> TrackedStr:
    # As in transformers: no HTML escapes, and ensure_ascii off. The whole JSON has one origin, quotes included.
    text = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    return tracked_text(text, origin_of(value))


@jinja2.pass_environment
def _join(
    environment: jinja2.Environment, value: Iterable[Any], d: str = "", attribute: str | None = None
) -> TrackedStr:
    if attribute is not None:
        value = map(jinja2.filters.make_attrgetter(environment, attribute), value)
    return joined(map(as_text, value), as_text(d))


def _replace(value: Any, old: Any, new: Any, count: int | None = None) -> TrackedStr:
    return as_text(str(value) if isinstance(value, TrackedMarkup) else value).replace(
        str(old), as_text(new), -1 if count is None else count
    )


def _format(value: Any, *args: Any, **kwargs: Any) -> Any:
    if args and kwargs:
        raise jinja2.exceptions.FilterArgumentError("can't handle positional and keyword arguments at the same time")
    return as_text(value) % (kwargs or args)


@jinja2.pass_environment
def _truncate(
    environment: jinja2.Environment,
    s: Any,
    length: int = 255,
    killwords: bool = False,
    end: str = "...",
    leeway: int | None = None,
) -> Any:
    return jinja2.filters.do_truncate(environment, s, length, killwords, end if end != "..." else _DOTS, leeway)


def _indent(s: Any, width: int | str = 4, first: bool = False, blank: bool = False) -> Any:
    if not isinstance(s, str):  # Jinja's filter raises the error that a template's author knows
        return jinja2.filters.do_indent(s, width, first, blank)
    text = as_text(s)
    indention = width if isinstance(width, str) else tracked_text(" " * width, LABEL)
    # Jinja adds a newline and splits, so that a text that ends in one has an empty last line.
    lines = (text + _NEWLINE).splitlines()
    parts: list[str] = [indention] if first else []
    for number, line in enumerate(lines):
        if number:
            parts.append(_NEWLINE)
            parts.append(indention if line or blank else "")
        parts.append(line)
    result = joined(parts)
    return _safe(result) if isinstance(text, TrackedMarkup) else result


_NEWLINE: Final = tracked_text("\n", LABEL)
_DOTS: Final = tracked_text("...", LABEL)


class TrackingFormatter(jinja2.sandbox.SandboxedFormatter):
    """`str.format` in the sandbox, whose result keeps origins."""

    def method(self, text: TrackedStr, name: str) -> Callable[..., TrackedStr]:
        """`text.format` or `text.format_map`, by name."""

        def format(*args: Any, **kwargs: Any) -> TrackedStr:
            if name == "format":
                return self._format_tracked(text, args, kwargs)
            if kwargs:
                raise TypeError("format_map() takes no keyword arguments")
            if len(args) != 1:
                raise TypeError(f"format_map() takes exactly one argument ({len(args)} given)")
            return self._format_tracked(text, (), args[0])

        return update_wrapper(format, getattr(str, name))

    def _format_tracked(self, text: TrackedStr, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> TrackedStr:
        """Inserted values keep their origins; the text around them gets the format's single origin, or LOST."""
        expected = self.vformat(plain(text), args, kwargs)
        around = origin_of(text)
        parts: list[TrackedStr] = []
        number = 0
        for before, field, spec, conversion in self.parse(plain(text)):
            parts.append(tracked_text(before, around))
            if field is None:
                continue
            if not field or field[0] in ".[":  # "{}" and "{.name}" take the next positional argument
                field, number = f"{number}{field}", number + 1
            value = self.get_field(field, args, kwargs)[0]
            if spec or conversion:
                shown = self.vformat(f"{{0{'!' + conversion if conversion else ''}:{spec}}}", (value, *args), kwargs)
                # A value inside the format of another one (`{:{}}`) may choose the characters that fill it up.
                parts.append(tracked_text(shown, origin_of([value, *args, kwargs] if spec and "{" in spec else value)))
            else:
                parts.append(as_text(value))
        result = joined(parts)
        return result if result == expected else TrackedStr(expected)
