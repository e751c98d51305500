"""Text that a template marked with `|safe`: what is joined to it is escaped as MarkupSafe does it, origins are kept."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from markupsafe import Markup, escape

from niels_gpt.renderers.traced import Traced, as_text, joined, plain


class SafeText(Traced):
    """What `markupsafe.Markup` is to ordinary strings, for `Traced`.

    Joining, cutting and changes of case keep origins. Everything else is done by `Markup` itself: its result is not
    `Traced`, so it never becomes a control token.
    """

    __slots__ = ()

    def __html__(self) -> SafeText:
        return self

    def __str__(self) -> Traced:
        return Traced(plain(self), self.runs)

    def __add__(self, other: Any) -> SafeText:
        if not isinstance(other, str) and not hasattr(other, "__html__"):
            return NotImplemented
        return _safe(joined([self, escaped(other)]))

    def __radd__(self, other: Any) -> SafeText:
        if not isinstance(other, str) and not hasattr(other, "__html__"):
            return NotImplemented
        return _safe(joined([escaped(other), self]))

    def __mod__(self, values: Any) -> Any:
        return Markup(plain(self)) % values

    def join(self, parts: Iterable[Any]) -> SafeText:
        """As `Markup.join`."""
        return _safe(joined([escaped(part) for part in parts], self))

    def replace(self, old: str, new: str, count: Any = -1) -> SafeText:
        """As `Markup.replace`."""
        return _safe(super().replace(old, escaped(new), count))


def _safe(text: Traced) -> SafeText:
    return SafeText(plain(text), text.runs)


def safe(value: Any) -> SafeText:
    """The filter `safe`."""
    return _safe(as_text(value))


def escaped(value: Any) -> SafeText:
    """The filter `escape`: safe text as it is, all else escaped run by run."""
    if isinstance(value, SafeText):
        return value
    if hasattr(value, "__html__"):
        return _safe(as_text(str(value.__html__())))
    text = as_text(value)
    parts, at = [], 0
    for length, origin in text.runs:
        part = str(escape(plain(text)[at : at + length]))
        parts.append(Traced(part, ((len(part), origin),)))
        at += length
    return _safe(joined(parts))
