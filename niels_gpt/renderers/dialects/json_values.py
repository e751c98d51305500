"""JSON in completions: strict values, a call that is one JSON object, unquoted values typed by their schema."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from niels_gpt.renderers.completions.builder import ResponseBuilder
from niels_gpt.renderers.completions.parsed import ToolCallParseStatus as Status
from niels_gpt.renderers.completions.partial_json import JSONReader
from niels_gpt.renderers.completions.text import Completion, replace_surrogates
from niels_gpt.renderers.completions.windows import Steps, Window
from niels_gpt.renderers.conversation import as_mapping, refuse_constant, to_json
from niels_gpt.sources.arrow_nulls import referred_schema

_DEEPEST = 8  # references and branches within each other, in the schema of one argument


def _finite(number: str) -> float:
    value = float(number)
    return value if math.isfinite(value) else refuse_constant(number)


# Python's own decoder takes NaN, Infinity and 1e999, which no other JSON reader accepts back.
_DECODER = json.JSONDecoder(parse_constant=refuse_constant, parse_float=_finite)


_BEGINNINGS = tuple('{["-0123456789tfnNI')  # of JSON values, and of the constants that the decoder refuses


def strict_json(text: str) -> Any:
    """A text as a JSON value that can be written as JSON again.

    Raises:
        ValueError: it is none, or holds what cannot be written again: NaN, a number beyond all floats, half a surrogate
            pair, lists nested beyond Python's recursion limit.
    """
    try:
        value = _DECODER.decode(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if "\\u" in text:  # an escape may spell half a surrogate pair, which UTF-8 cannot encode
        json.dumps(value, ensure_ascii=False).encode()
    return value


def json_value_at(completion: Completion, start: int) -> tuple[Any, int]:
    """The JSON value that begins at a character of a completion, and the character at which it ends.

    Raises:
        ValueError: see `strict_json`.
    """
    # The decoder's own error counts the lines before it: the more malformed calls, the longer each would take.
    if not completion.text.startswith(_BEGINNINGS, start):
        raise ValueError("no JSON value begins here")
    try:
        value, end = _DECODER.raw_decode(completion.text, start)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    text = completion.decoded(start, end)
    # Bytes that are not UTF-8 are lone surrogates in `completion.text` and U+FFFD in `decoded`: read the latter.
    return (value if text.isascii() and "\\u" not in text else strict_json(text)), end


def call_value_at(completion: Completion, start: int) -> tuple[Any, int]:
    """As `json_value_at`, but `None` in place of an object with a key twice, which has no certain value.

    Raises:
        ValueError: see `strict_json`.
    """
    value, end = json_value_at(completion, start)
    # The hook's result for the outermost object comes last, so keys that objects within it repeat do not matter.
    if isinstance(value, dict) and _REPEATS_KEY.decode(completion.decoded(start, end)):
        return None, end
    return value, end


# Decodes an object to whether it has a key twice.
_REPEATS_KEY = json.JSONDecoder(object_pairs_hook=lambda pairs: len(dict(pairs)) < len(pairs))


def scan_call_object(rest: Window, at: int, key: str, out: ResponseBuilder, *, name: str = "name") -> Steps[None]:
    """Wait for a JSON object with a call, up to its end or to where it is no JSON, and report name and arguments.

    Does nothing unless events are observed; the caller reads the whole object afterwards. Arguments before the name are
    reported after it.

    Args:
        key, name: the members with the arguments and the name; with an empty `name`, the first member has the name as
            its key and the arguments as its value.
    """
    if not out.is_observed:
        return
    # Each is reported once: the name, the beginning of the arguments, their end.
    reader, text_of = JSONReader(at), rest.completion
    named = opened = closed = False
    while True:
        reader.read(text_of.text, rest.stop)
        # Reversed, so that the first of several members with one key counts; it may have been reported already.
        members = {member.key: member for member in reversed(reader.members)}
        arguments = members.get(key) if name else next(iter(reader.members), None)
        if not named and not name and arguments is not None:
            named = True
            out.name(_whole(arguments.key))
        elif not named and name in members and members[name].stop >= 0:
            named = True
            out.name(_string(text_of.decoded(members[name].start, members[name].stop)))
        if named and not opened and arguments is not None and arguments.start >= 0:
            opened = True
            out.begin_argument(arguments.start)
        if opened and not closed and arguments is not None:
            out.argument_to(arguments.stop if arguments.stop >= 0 else reader.at)
            if arguments.stop >= 0:
                closed = True
                out.end_argument(arguments.stop)
        if reader.ended or reader.broken or rest.closed:
            return
        yield from rest.grow()


def scan_value(rest: Window, at: int, out: ResponseBuilder) -> Steps[None]:
    """Wait for a JSON value that is a call's arguments, up to its end or to where it is no JSON, and report its text.

    Does nothing unless events are observed; the caller reads the whole value afterwards.
    """
    if not out.is_observed:
        return
    reader = JSONReader(at)
    out.begin_argument(at)
    while True:
        reader.read(rest.completion.text, rest.stop)
        out.argument_to(reader.at)
        if reader.ended or reader.broken or rest.closed:
            break
        yield from rest.grow()
    if reader.ended:
        out.end_argument(reader.at)


def _whole(text: str) -> str | None:
    """A decoded string as valid Unicode, `None` if it holds half a surrogate pair."""
    try:
        return replace_surrogates(text)
    except UnicodeEncodeError:
        return None


def _string(text: str) -> str | None:
    """A JSON text as a string, `None` if it is none."""
    try:
        value = strict_json(text)
    except ValueError:
        return None
    return value if isinstance(value, str) else None


def parse_call_object(
    value: Any, key: str = "arguments", name_key: str = "name"
) -> tuple[str | None, dict[str, Any] | str | None, Status]:
    """Name, arguments and status of a call that is one JSON value, with its arguments under `key`."""
    if not isinstance(value, dict):
        return None, None, Status.MALFORMED_STRUCTURE
    # A call without arguments may leave them out; `null` in their place is malformed.
    name, arguments = value.get(name_key), value.get(key, {})
    as_read = arguments if isinstance(arguments, dict | str) else to_json(arguments)
    if not isinstance(name, str) or not name:
        return None, as_read, Status.MISSING_NAME
    return name, as_read, _shape(arguments)


def parse_arguments(text: str, name: str | None) -> tuple[dict[str, Any] | str, Status]:
    """Arguments and status of a call to `name`; a text that is no JSON object stays a text."""
    try:
        value = strict_json(text)
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
        needed = [referred_schema(schema, root), *(every if isinstance(every, list) else ())]
        types = next(filter(None, (_types(one, root, depth + 1) for one in needed)), set())
    for branches in (schema.get("anyOf"), schema.get("oneOf")):
        if not types and isinstance(branches, list):
            allowed = [_types(branch, root, depth + 1) for branch in branches]
            types = set[str]().union(*allowed) if all(allowed) else set()
    return types | ({"integer"} if "number" in types else set())  # an integer is a number, too


def _type_of(value: Any) -> str:
    if isinstance(value, bool):  # before int, which bool is a subclass of
        return "boolean"
    names = {str: "string", int: "integer", float: "number", list: "array", dict: "object", type(None): "null"}
    return names.get(type(value), "")
