"""JSON in completions: strict values, and what a call that is one JSON object says."""

from __future__ import annotations

import json
import math
from typing import Any

from niels_gpt.renderers.chat import to_json
from niels_gpt.renderers.completion import Completion
from niels_gpt.renderers.parsing import ToolCallParseStatus as Status


def _refused(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")


def _finite(number: str) -> float:
    value = float(number)
    return value if math.isfinite(value) else _refused(number)


_DECODER = json.JSONDecoder(parse_constant=_refused, parse_float=_finite)


def loaded(text: str) -> Any:
    """A text as a JSON value that can be written as JSON again.

    Raises:
        ValueError: it is none, or holds what cannot be written again: NaN, a number beyond all floats, half a surrogate
            pair, lists within lists beyond Python's depth.
    """
    try:
        held = _DECODER.decode(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if "\\u" in text:  # an escape may spell half a surrogate pair
        json.dumps(held, ensure_ascii=False).encode()
    return held


def value_at(said: Completion, start: int) -> tuple[Any, int]:
    """The JSON value that begins at a character of a completion, and where it ends.

    Raises:
        ValueError: see `loaded`.
    """
    try:
        held, end = _DECODER.raw_decode(said.text, start)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    text = said.told(start, end)
    # Bytes that are no UTF-8 are lone surrogates in `said.text`; as told they are U+FFFD.
    return (held if text.isascii() and "\\u" not in text else loaded(text)), end


def named(held: Any, key: str = "arguments") -> tuple[str | None, dict[str, Any] | str | None, Status]:
    """Name, arguments and status of a call that is one JSON value, with its arguments under `key`."""
    if not isinstance(held, dict):
        return None, None, Status.MALFORMED_STRUCTURE
    name, arguments = held.get("name"), held.get(key, {})
    kept = arguments if isinstance(arguments, dict | str) else to_json(arguments)
    if not isinstance(name, str) or not name:
        return None, kept, Status.MISSING_NAME
    return name, kept, Status.OK if isinstance(arguments, dict) else Status.MALFORMED_STRUCTURE
