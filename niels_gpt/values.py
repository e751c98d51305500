"""NAME=VALUE on a command line: `name_and_value` splits it, and `option_value` reads VALUE."""

from __future__ import annotations

import json
import math
import tomllib
from typing import Any, Final

from niels_gpt.errors import UsageError

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
