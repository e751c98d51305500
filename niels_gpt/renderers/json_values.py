"""JSON in completions: strict values, what a call that is one JSON object says, bare values and their types."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
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


def typed_value(text: str, schema: Any) -> tuple[Any, bool]:
    """A bare value in the type that its JSON schema names, and whether it fits; without a schema, JSON or else text."""
    types = _types(schema)
    if types == {"string"}:
        return text, True
    try:
        value = loaded(text)
    except ValueError:
        return text, not types or "string" in types
    if "string" in types and _type_of(value) not in types:
        return text, True
    return value, True


def _types(schema: Any) -> set[str]:
    """The JSON types that a schema allows; none if it does not say, or is no schema."""
    if not isinstance(schema, Mapping):
        return set()
    named = schema.get("type")
    found = {kind for kind in (named if isinstance(named, list) else [named]) if isinstance(kind, str)}
    for branches in (schema.get("anyOf"), schema.get("oneOf")):
        for branch in branches if isinstance(branches, list) else ():
            found |= _types(branch)
    if not found and isinstance(schema.get("enum"), list):
        found = {_type_of(value) for value in schema["enum"]}
    return found | ({"integer"} if "number" in found else set())


def _type_of(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    names = {str: "string", int: "integer", float: "number", list: "array", dict: "object", type(None): "null"}
    return names.get(type(value), "")
