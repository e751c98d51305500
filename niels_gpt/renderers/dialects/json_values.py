"""JSON in completions: strict values, a call that is one JSON object, unquoted values typed by their schema."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from niels_gpt.messages.calls import finite, refuse_constant
from niels_gpt.messages.tools import to_json
from niels_gpt.renderers.completions.parsed import ToolCallParseStatus as Status
from niels_gpt.renderers.completions.text import Completion
from niels_gpt.renderers.conversation import as_mapping
from niels_gpt.renderers.dialects.base import Arguments

_DEEPEST = 8  # references and branches within each other, in the schema of one argument


class KeyTwice(ValueError):
    """An object has a key twice, so its value is not certain."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise KeyTwice("an object has a key twice")
    return value


# Python's own decoder takes NaN, Infinity and 1e999, which no other JSON reader accepts back.
_DECODER = json.JSONDecoder(parse_constant=refuse_constant, parse_float=finite, object_pairs_hook=_object)
_END_DECODER = json.JSONDecoder(parse_constant=refuse_constant, parse_float=finite)  # keys twice are no fault for it
_BEGINNINGS = tuple('{["-0123456789tfnNI')  # of JSON values, and of the constants that the decoder refuses


def strict_json(text: str) -> Any:
    """A text as a JSON value that can be written as JSON again.

    Raises:
        ValueError: it is none, or holds what cannot be written again: NaN, a number beyond all floats, half a surrogate
            pair, lists nested beyond Python's recursion limit.
        KeyTwice: a `ValueError` too.
    """
    try:
        value = _DECODER.decode(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if "\\u" in text:  # an escape may spell half a surrogate pair, which UTF-8 cannot encode
        json.dumps(value, ensure_ascii=False).encode()
    return value


def json_value_at(completion: Completion, start: int) -> tuple[Any, int]:
    """The JSON value that begins at a character of a completion, and where it ends; `None`, -1 if it is not strict.

    `KeyTwice` itself is the value of one in which an object has a key twice: there is none that is certain.
    """
    # The decoder's own error counts the lines before it: the more malformed calls, the longer each would take.
    if not completion.text.startswith(_BEGINNINGS, start):
        return None, -1
    try:
        try:
            value, end = _DECODER.raw_decode(completion.text, start)
        except KeyTwice:
            return KeyTwice, _END_DECODER.raw_decode(completion.text, start)[1]
        # Bytes that are not UTF-8 are lone surrogates in `completion.text` and U+FFFD in `decoded`: read the latter.
        text = completion.text[start:end]
        return (value if text.isascii() and "\\u" not in text else strict_json(completion.decoded(start, end))), end
    except (ValueError, RecursionError):
        return None, -1


def parse_call_object(
    value: Any, key: str = "arguments", name_key: str = "name", id_key: str = ""
) -> tuple[str | None, Arguments, Status, str | None]:
    """Name, arguments, status and id of a call that is one JSON value, with its arguments under `key`.

    A call without arguments may leave them out, but it may have no other member than a type: that might be the
    arguments under another name.
    """
    if not isinstance(value, dict):
        return None, None, Status.MALFORMED_STRUCTURE, None
    name, call_id = value.get(name_key), value.get(id_key) if id_key else None
    is_known = value.keys() <= {name_key, key, id_key, *(("type",) if value.get("type") == "function" else ())}
    # An id of another type is not repaired: results could not name it. `null` in place of arguments is malformed.
    call_id = call_id if isinstance(call_id, str) and call_id else None
    arguments = value.get(key, {} if is_known else None)
    as_read = arguments if isinstance(arguments, dict | str) or key not in value else to_json(arguments)
    if not isinstance(name, str) or not name:
        return None, as_read, Status.MISSING_NAME, call_id
    return name, as_read, _shape(arguments) if is_known else Status.MALFORMED_STRUCTURE, call_id


def parse_arguments(text: str, name: str | None) -> tuple[dict[str, Any] | str, Status]:
    """Arguments and status of a call to `name`; a text that is no JSON object stays a text."""
    try:
        value = strict_json(text)
    except KeyTwice:
        return text, Status.MALFORMED_STRUCTURE
    except ValueError:
        return text, Status.INVALID_JSON
    return value if isinstance(value, dict) else text, _shape(value) if name else Status.MISSING_NAME


def _shape(arguments: Any) -> Status:
    return Status.OK if isinstance(arguments, dict) else Status.MALFORMED_STRUCTURE


def typed_value(text: str, schema: Mapping[str, Any], key: str) -> tuple[Any, bool]:
    """The unquoted value of the argument `key` in the type that the schema of the arguments names for it.

    ::

        text  5      {"type": "string"}      ->  "5", True
        text  5      {"type": "integer"}     ->  5, True
        text  five   {"type": "integer"}     ->  "five", False
        text  [1     no type                 ->  "[1", True       (JSON if it is some, else the text)
        text  "5"    no type, or a string    ->  "\\"5\\"", True   (texts have no quotes, so these are its own)

    Returns:
        The value, and whether it fits the type.
    """
    types = _types(as_mapping(schema.get("properties")).get(key), schema)
    if types == {"string"}:  # `5` and `true` are texts here, and so is what looks like JSON
        return text, True
    can_be_text = not types or "string" in types
    try:
        value = strict_json(text)
    except ValueError:
        return text, can_be_text
    if can_be_text and (isinstance(value, str) or (types and _type_of(value) not in types)):
        return text, True
    return value, True


def put_argument(arguments: dict[str, Any], key: str, read: tuple[Any, bool], status: Status) -> Status:
    """Add an argument as `typed_value` reads it; the status of a call that had this one before.

    A key given twice outweighs a value of a wrong type; otherwise the first fault decides.
    """
    is_twice = key in arguments
    arguments[key], fits = read
    if is_twice:
        return Status.MALFORMED_STRUCTURE
    return Status.INVALID_JSON if status is Status.OK and not fits else status


def _types(schema: Any, root: Mapping[str, Any], depth: int = 0) -> set[str]:
    """The JSON types that a schema allows; empty if it does not restrict them, or is no schema.

    Args:
        root: the schema that this one is a part of, for references (`#/$defs/name`), which may form a circle.
    """
    if not isinstance(schema, Mapping) or depth > _DEEPEST:
        return set()
    names = schema.get("type")
    types = {name for name in (names if isinstance(names, list) else [names]) if isinstance(name, str)}
    if not types and isinstance(schema.get("enum"), list):
        types = {_type_of(value) for value in schema["enum"]}
    if not types and "const" in schema:
        types = {_type_of(schema["const"])}
    # The first of the reference and of `allOf` that says a type: all of them must hold, so the others cannot widen it.
    if not types:
        every = schema.get("allOf")
        needed = [_referred(schema, root), *(every if isinstance(every, list) else ())]
        types = next(filter(None, (_types(one, root, depth + 1) for one in needed)), set())
    for branches in (schema.get("anyOf"), schema.get("oneOf")):
        if not types and isinstance(branches, list):
            allowed = [_types(branch, root, depth + 1) for branch in branches]
            types = set[str]().union(*allowed) if all(allowed) else set()
    return types | ({"integer"} if "number" in types else set())  # an integer is a number as well


def _referred(schema: Mapping[str, Any], root: Any) -> Any:
    """The schema that a `$ref` within the same document (`#/$defs/name`) names; `None` without one."""
    target = schema.get("$ref")
    if not isinstance(target, str) or not target.startswith("#"):
        return None
    for step in target.split("/")[1:]:
        root = root.get(step) if isinstance(root, Mapping) else None
    return root


def _type_of(value: Any) -> str:
    if isinstance(value, bool):  # before int, which bool is a subclass of
        return "boolean"
    names = {str: "string", int: "integer", float: "number", list: "array", dict: "object", type(None): "null"}
    return names.get(type(value), "")
