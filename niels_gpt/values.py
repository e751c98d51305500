"""Options as one value: how a function takes the fields of a dataclass as a value and as keywords, too.

::

    build_episodes(rows, "out", encoder=renderer, max_bad_rows=10)
    build_episodes(rows, "out", encoder=renderer, options=BuildOptions(max_bad_rows=10))      the same

The value can be passed on and stored; the keywords are shorter for a single call.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from typing import Any, TypeVar

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
    known = [field.name for field in fields(defaults)]  # type: ignore[arg-type]
    for name in keywords:
        if name not in known:
            raise UsageError(f"{name!r} is not one of the options{did_you_mean(name, known)}")
    passed = {name: value for name, value in keywords.items() if _differs(value, getattr(defaults, name))}
    for name in passed if options is not None else ():
        if getattr(options, name) != getattr(defaults, name):
            raise UsageError(f"{name} is passed as a keyword and in {type(defaults).__name__}; pass it in one place")
    # All at once: a dataclass may refuse one option without another, such as packing without a length.
    return replace(defaults if options is None else options, **passed)  # type: ignore[type-var]


def check_keywords(target: Callable[..., Any], passed: Iterable[str]) -> None:
    """Raise `UsageError` unless a function or class has all these parameters; the message has the nearest name."""
    known = [name for name in inspect.signature(target).parameters if name != "self"]
    for name in passed:
        if name not in known:
            raise UsageError(f"{name!r} is not an option of {target.__name__}{did_you_mean(name, known)}")


def _differs(value: Any, default: Any) -> bool:
    # `True` equals 1, but is no number of workers: it is passed on, so that the check of the value refuses it.
    return type(value) is not type(default) or bool(value != default)
