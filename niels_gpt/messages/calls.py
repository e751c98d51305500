"""Tool calls: arguments as objects, whatever spelling of JSON they come in."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, Final

from niels_gpt.errors import MessageError
from niels_gpt.errors import shown as shown_text
from niels_gpt.messages import keys
from niels_gpt.messages.notes import Notes, shown, without_nothing, wrong_type
from niels_gpt.unique_keys import with_unique_keys


def refuse_constant(constant: str) -> Any:
    """For `parse_constant` of Python's decoder, which otherwise takes NaN and Infinity. Raises `ValueError`."""
    raise ValueError(f"{constant} is not JSON")


def finite(number: str) -> float:
    """For `parse_float`, which otherwise makes infinity of 1e999. Raises `ValueError`."""
    value = float(number)
    return value if math.isfinite(value) else refuse_constant(number)


# `json.loads` would make one at each call.
_READER = json.JSONDecoder(object_pairs_hook=with_unique_keys, parse_constant=refuse_constant, parse_float=finite)
_SCALARS: Final = frozenset({int, float, bool, type(None)})


def read_calls(calls: Any, where: str, notes: Notes) -> list[dict[str, Any]]:
    """The calls of a message, without nulls, their arguments as objects.

    Raises:
        MessageError: `wrong_type`, `missing_field`; of arguments that are text `wrong_arguments`, `repeated_key`.
    """
    if not isinstance(calls, list):
        raise wrong_type(f"{where}tool_calls", calls, "a list")
    return [_call(call, f"{where}tool_calls.{number}", notes) for number, call in enumerate(calls)]


def _call(call: Any, where: str, notes: Notes) -> dict[str, Any]:
    if not isinstance(call, Mapping):
        raise wrong_type(where, call, "an object")
    found = without_nothing(call)
    for key in ("id", "type"):
        if not isinstance(found.get(key, ""), str):
            raise wrong_type(f"{where}.{key}", found[key], "a string")
    function = found.get("function")
    if function is None:
        raise _missing(f"{where}.function")
    if not isinstance(function, Mapping):
        raise wrong_type(f"{where}.function", function, "an object")
    where += ".function"
    name, arguments = function.get("name"), function.get("arguments")
    if name is None:
        raise _missing(f"{where}.name")
    if not isinstance(name, str):
        raise wrong_type(f"{where}.name", name, "a string")
    # A null says that there are none; a key that is missing may have another name, and is no object without any.
    if "arguments" not in function:
        raise _missing(f"{where}.arguments")
    fields = {key: value for key, value in function.items() if value is not None or key == "arguments"}
    found["function"] = fields | {"arguments": read_arguments(arguments, f"{where}.arguments", notes)}
    notes.count_unread("call", found, keys.CALL)
    notes.count_unread("call.function", fields, keys.CALL_FUNCTION)
    return found


def read_arguments(value: Any, where: str, notes: Notes) -> dict[str, Any]:
    """The arguments of a call as an object, a copy; an empty text and a null are an empty one.

    Raises:
        MessageError: they are neither an object nor JSON text of one.
    """
    if isinstance(value, Mapping):
        return dict(value)  # a null in arguments is the model's own value
    if value is not None and not isinstance(value, str):
        raise wrong_type(where, value, "JSON text or an object")
    notes.changes["arguments_decoded"] += 1
    if value is None or not value.strip():
        return {}
    found = decoded(value, where, "wrong_arguments")
    if not isinstance(found, dict):
        raise MessageError(
            "wrong_arguments", f"{where} is JSON {type(found).__name__}; expected an object. Repair the call"
        )
    return found


def decoded(text: str, where: str, reason: str) -> Any:
    """What JSON text holds.

    Raises:
        MessageError: it is not JSON (`reason`), an object has a key twice (`repeated_key`), or a text in it cannot be
            encoded (`invalid_unicode`).
    """
    try:
        found = _READER.decode(text)
    except MessageError as error:
        raise MessageError(error.reason, f"{where}: {error}") from error
    except (ValueError, RecursionError) as error:
        raise MessageError(reason, f"{where} is {shown_text(text)} ({error}); expected JSON. Repair it") from error
    if "\\u" in text:  # an escape may spell half a surrogate pair
        check_strings(found, where)
    return found


def call_of_turn(content: Any, where: str) -> dict[str, Any]:
    """The call that is the content of a turn of `function_call`, as ShareGPT has it.

    Raises:
        MessageError: it is not JSON with a name and arguments.
    """
    call = decoded(content, f"{where}function_call", "wrong_type") if isinstance(content, str) else content
    if not isinstance(call, Mapping) or "name" not in call or "arguments" not in call:
        raise MessageError(
            "wrong_type", f"{where}function_call is {shown(content)}; expected JSON with 'name' and 'arguments'"
        )
    return {"type": "function", "function": {"name": call["name"], "arguments": call["arguments"]}}


def _missing(where: str) -> MessageError:
    return MessageError("missing_field", f"{where} is missing; add it or drop the row")


# ---- texts


def check_strings(value: object, where: str) -> None:
    """Check every text in a value, keys included: a template may render any of them.

    Raises:
        MessageError: as `check_text`; `nested_too_deeply`.
    """
    try:
        if not is_json(value):  # nearly always it is; the other pass names the place
            _check_strings(value, where)
    except RecursionError as error:
        raise MessageError("nested_too_deeply", f"{where} is nested too deeply to read") from error


def _check_strings(value: object, where: str) -> None:
    if isinstance(value, str):
        try:
            check_text(value)
        except MessageError as error:
            raise MessageError(error.reason, f"{where} holds {error}") from error
    elif isinstance(value, Mapping):
        for key, item in value.items():
            _check_strings(key, where)
            _check_strings(item, f"{where}.{key}")
    elif isinstance(value, list):
        for item in value:
            _check_strings(item, where)


def is_json(value: Any) -> bool:
    """Whether a value is JSON of Python's own types whose texts UTF-8 can encode."""
    kind = type(value)
    if kind is str:
        return value.isascii() or is_text(value)
    if kind is dict:
        return all(map(is_text, value)) and all(map(is_json, value.values()))
    return kind in _SCALARS or (kind is list and all(map(is_json, value)))


def is_text(value: Any) -> bool:
    """Whether a value is exactly a `str` without half of a surrogate pair."""
    if type(value) is not str:
        return False
    if not value.isascii():  # this test is nearly free, while encoding copies the text
        try:
            value.encode()
        except UnicodeEncodeError:
            return False
    return True


def check_text(text: str) -> None:
    """Raise `MessageError` (`invalid_unicode`) if a text has half of a surrogate pair, which UTF-8 cannot encode."""
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise MessageError(
            "invalid_unicode",
            f"half of a surrogate pair (\\u{ord(text[error.start]):04x}) at character {error.start}, not text; "
            "repair it or drop the row",
        ) from error
