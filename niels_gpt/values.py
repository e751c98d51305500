"""Values of options: options as one value, and the value that a text of the command line means.

`merged` lets a function take the fields of a dataclass as a value and as keywords, too.

::

    build_episodes(rows, "out", encoder=renderer, max_bad_rows=10)
    build_episodes(rows, "out", encoder=renderer, options=BuildOptions(max_bad_rows=10))      the same

The value can be passed on and stored; the keywords are shorter for a single call.

`name_and_value` splits NAME=VALUE, and `option_value` reads VALUE, for every option of this form.
"""

from __future__ import annotations

import inspect
import json
import math
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from typing import Any, Final, TypeVar

from niels_gpt.errors import UsageError, did_you_mean

Options = TypeVar("Options")


def merged(defaults: Options, options: Options | None, keywords: Mapping[str, Any]) -> Options:
    """The options of a function that takes each of them as a keyword, too.

    A keyword that has its default's value counts as not passed.

    Args:
        defaults: a frozen dataclass with all defaults.
        options: what the caller passed as a value.
        keywords: what the caller passed as keywords, all of them.

    Raises:
        UsageError: one is set by keyword and in `options`, or the dataclass has no such field. Also what the dataclass
            itself refuses.
    """
    kind = type(defaults)
    if options is not None and not isinstance(options, kind):
        raise UsageError(f"options is {options!r}; expected {kind.__name__}(...), or each option as a keyword")
    known = [field.name for field in fields(defaults)]  # type: ignore[arg-type]
    check_names(keywords, known, kind.__name__)
    # `True` equals 1, but is no number of workers: it is passed on, so that the check of the value refuses it.
    passed = {
        name: value
        for name, value in keywords.items()
        if type(value) is not type(default := getattr(defaults, name)) or bool(value != default)
    }
    for name in passed if options is not None else ():
        if getattr(options, name) != getattr(defaults, name):
            raise UsageError(f"{name} is passed as a keyword and in {kind.__name__}; pass it in one place")
    # All at once: a dataclass may refuse one option without another, such as packing without a length.
    return replace(defaults if options is None else options, **passed)  # type: ignore[type-var]


def check_keywords(target: Callable[..., Any], passed: Iterable[str]) -> None:
    """Raise `UsageError` unless a function or class has all these parameters; the message has the nearest name."""
    check_names(passed, [name for name in inspect.signature(target).parameters if name != "self"], target.__name__)


def check_names(passed: Iterable[str], known: Iterable[str], owner: str) -> None:
    """Raise `UsageError` for a name that `owner` does not have as an option; the message has the nearest name."""
    options = list(known)
    for name in passed:
        if name not in options:
            raise UsageError(f"{name!r} is not an option of {owner}{did_you_mean(name, options)}")


VALUE_HELP: Final = "VALUE is read as JSON or TOML, such as true, 8, null or [1, 2]; anything else is a text"


def name_and_value(flag: str, text: str, expected: str = "NAME=VALUE") -> tuple[str, str]:
    """Split `enable_thinking=false` into ("enable_thinking", "false").

    Raises:
        UsageError: there is no `=`, or no name before it.
    """
    # At the first "=", because a value may hold more of them.
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise UsageError(f"{flag} {text}: expected {expected}")
    return name, value


def option_value(text: str) -> Any:
    """The value of NAME=VALUE on a command line: JSON or TOML where VALUE is one of them, else the text itself.

    ::

        true, False  -> True, False    in any case, because Python writes True
        8, 0.5       -> 8, 0.5
        null         -> None
        "null"       -> "null"         in quotes, everything is a text
        [1, 2]       -> [1, 2]
        {a = 1}      -> {"a": 1}       also {"a": 1}
        2026-01-31   -> "2026-01-31"   dates, inf and nan have no form in JSON, so they remain texts
        low          -> "low"
    """
    if text.strip().lower() in ("true", "false"):
        return text.strip().lower() == "true"
    try:
        return json.loads(text, parse_float=_finite, parse_constant=_finite)
    except (ValueError, RecursionError):
        pass
    try:
        # In a table on one line a comment, a second line or a second value is an error, so nothing of the text is lost.
        read = tomllib.loads(f"read = {{value = {text}}}", parse_float=_finite)
        json.dumps(read)  # a TypeError for dates and times
    except (ValueError, TypeError, RecursionError):
        return text
    return read["read"]["value"] if list(read) == ["read"] and list(read["read"]) == ["value"] else text


def _finite(text: str) -> float:
    """A finite number.

    Raises:
        ValueError: infinity, not a number, or too large for a float.
    """
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return number
