"""Jinja's filters that templates use on text, written so that every character keeps its origin.

Each gives the text that Jinja's own filter gives. A filter that is not here gives plain text, whose origin is lost.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from functools import update_wrapper
from typing import Any, Final

import jinja2
import jinja2.filters
import jinja2.sandbox

from niels_gpt.renderers.safe_text import SafeText, escaped, safe
from niels_gpt.renderers.traced import LABEL, Traced, as_text, joined, origin_of, plain, wholly


def tracing_filters() -> dict[str, Callable[..., Any]]:
    """The filters by name."""
    return {
        "tojson": _tojson,
        "join": _join,
        "indent": _indent,
        "safe": safe,
        "escape": escaped,
        "e": escaped,
        "replace": _replace,
        "title": _title,
        "trim": lambda value, chars=None: as_text(value).strip(chars),
        "upper": lambda s: as_text(s).upper(),
        "lower": lambda s: as_text(s).lower(),
        "capitalize": lambda s: as_text(s).capitalize(),
        "string": _string,
        "format": _format,
        "truncate": _truncate,
    }


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> Traced:
    text = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    return wholly(text, origin_of(value))


@jinja2.pass_environment
def _join(environment: jinja2.Environment, value: Iterable[Any], d: str = "", attribute: str | None = None) -> Traced:
    if attribute is not None:
        value = map(jinja2.filters.make_attrgetter(environment, attribute), value)
    return joined(map(as_text, value), as_text(d))


def _replace(value: Any, old: Any, new: Any, count: int | None = None) -> Traced:
    return as_text(str(value) if isinstance(value, SafeText) else value).replace(
        str(old), as_text(new), -1 if count is None else count
    )


def _title(value: Any) -> Traced:
    return as_text(value)._changed(jinja2.filters.do_title)


def _string(value: Any) -> Traced:
    return as_text(value)


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
    if not isinstance(s, str):  # it fails, in Jinja's own words
        return jinja2.filters.do_indent(s, width, first, blank)
    text = as_text(s)
    indention = width if isinstance(width, str) else wholly(" " * width, LABEL)
    lines = (text + _NEWLINE).splitlines()
    parts: list[str] = [indention] if first else []
    for number, line in enumerate(lines):
        if number:
            parts.append(_NEWLINE)
            parts.append(indention if line or blank else "")
        parts.append(line)
    made = joined(parts)
    return SafeText(plain(made), made.runs) if isinstance(text, SafeText) else made


_NEWLINE: Final = wholly("\n", LABEL)
_DOTS: Final = wholly("...", LABEL)


class TracingFormatter(jinja2.sandbox.SandboxedFormatter):
    """`str.format` in the sandbox, whose result keeps origins."""

    def method(self, text: Traced, name: str) -> Callable[..., Traced]:
        """`text.format` or `text.format_map`, by name."""

        def format(*args: Any, **kwargs: Any) -> Traced:
            if name == "format":
                return self._traced(text, args, kwargs)
            if kwargs:
                raise TypeError("format_map() takes no keyword arguments")
            if len(args) != 1:
                raise TypeError(f"format_map() takes exactly one argument ({len(args)} given)")
            return self._traced(text, (), args[0])

        return update_wrapper(format, getattr(str, name))

    def _traced(self, text: Traced, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Traced:
        """What is put in keeps its runs; what stands around it has the text's origin, if that is one."""
        whole = self.vformat(plain(text), args, kwargs)
        around = origin_of(text)
        parts: list[Traced] = []
        number = 0
        for before, field, form, conversion in self.parse(plain(text)):
            parts.append(wholly(before, around))
            if field is None:
                continue
            if not field or field[0] in ".[":
                field, number = f"{number}{field}", number + 1
            value = self.get_field(field, args, kwargs)[0]
            if form or conversion:
                shown = self.vformat(f"{{0{'!' + conversion if conversion else ''}:{form}}}", (value, *args), kwargs)
                parts.append(wholly(shown, origin_of(value)))
            else:
                parts.append(as_text(value))
        made = joined(parts)
        return made if made == whole else Traced(whole)
