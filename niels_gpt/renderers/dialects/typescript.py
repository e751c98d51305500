"""Tool declarations as TypeScript types, as Kimi K2.5 and K2.6 read them.

::

    {"name": "get", "description": "Gets it.", "parameters":           // Gets it.
     {"properties": {"city": {"type": "string"},                 ->    type get = (_: {
                     "days": {"type": "integer", "minimum": 1}},         city: string,
      "required": ["city"]}}                                             // minimum: 1
                                                                         days?: number
                                                                       }) => any;
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from niels_gpt.errors import MessageError
from niels_gpt.renderers.conversation import sorted_json

Schema = Mapping[str, Any]
_STEP = "  "
_NUMBER = ("maximum", "minimum")
# The bounds of a type that a comment lists.
_BOUNDS = {
    "string": ("maxLength", "minLength", "pattern"),
    "number": _NUMBER,
    "integer": _NUMBER,
    "array": ("maxItems", "minItems"),
}
# The TypeScript of each type in a list of types (`"type": ["string", "null"]`).
_UNION = {"object": "{}", "array": "Array<any>"} | {name: name for name in ("string", "number", "boolean", "null")}
_UNION["integer"] = "number"
# The Python types that the values of an enum must have.
_PYTHON: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "number": (int, float),
    "integer": (int,),
    "boolean": (bool,),
}


class _NoTypeError(Exception):
    """A schema that cannot be declared in TypeScript."""


def declare_tools(tools: Sequence[Schema]) -> str | None:
    """Declare tools that are in the shape of the OpenAI chat format; keys are sorted at every level.

    Returns:
        `None` if a schema cannot be declared: it names no type, a reference that does not exist, or enum values of
        another type than its own. Kimi's tokenizer then leaves the tools in JSON.

    Raises:
        MessageError: `wrong_tools`: a schema is no JSON schema, naming the tool; or it is nested too deeply.
    """
    try:
        return _declared(sorted_json([tool["function"] for tool in tools]))
    except RecursionError as error:
        raise MessageError("wrong_tools", "tools hold a JSON schema that is nested too deeply to read") from error


@lru_cache(maxsize=256)  # many conversations offer the same tools
def _declared(functions: str) -> str | None:
    read = json.loads(functions)  # so all objects below are dicts
    declared = []
    for number, function in enumerate(read):
        try:
            declared.append(_Declaration().declare(function))
        except _NoTypeError:
            return None
        except (AttributeError, TypeError) as error:  # another type than JSON schemas have there
            raise MessageError(
                "wrong_tools", f"tools[{number}].function: {error}; expected a JSON schema. Repair the tool"
            ) from error
    return "# Tools\n\n## functions\nnamespace functions {\n" + "\n".join(declared) + "\n}\n"


# Kimi's tokenizer does this in Python; the tests compare with declarations that it has written.
class _Declaration:
    """One function, and the definitions that its schema refers to."""

    def __init__(self) -> None:
        self._definitions: dict[str, Schema] = {}
        self._refers_to_itself = False

    def declare(self, function: Schema) -> str:
        """The function's type, after an interface for each definition."""
        parameters = function.get("parameters") or {}
        # First, because it fills `_definitions` and `_refers_to_itself`, which decide what comes before the type.
        arguments_type = self._object(parameters, "")
        parts = []
        if self._refers_to_itself:
            arguments_type = "parameters"
            parts.append(f"interface parameters {_braces(self._members(parameters, _STEP), '')}")
        # A copy: the type of a definition may bring definitions of its own.
        for name, schema in [*self._definitions.items()]:
            parts += [*_comment(schema, ""), f"interface {name} {self._type(schema, '')}"]
        parts += [*_comment(function, ""), f"type {function['name']} = (_: {arguments_type}) => any;"]
        return "\n".join(parts)

    def _object(self, schema: Schema, indent: str) -> str:
        """Required members, then optional ones, then the index signature of `additionalProperties`."""
        self._definitions |= schema.get("$defs") or {}
        inner, required = indent + _STEP, schema.get("required") or []
        properties = schema.get("properties") or {}
        # A dict keeps the place of a key that is added again, so the required ones come first.
        required_first = {name: spec for name, spec in properties.items() if name in required} | properties
        members = self._members({**schema, "properties": required_first}, inner)
        rest = schema.get("additionalProperties")
        if rest is not None:
            value_type = {True: "any", False: "never"}[rest] if isinstance(rest, bool) else self._type(rest, inner)
            members.append(f"{inner}[k: string]: {value_type}")
        return _braces(members, indent)

    def _members(self, schema: Schema, indent: str) -> list[str]:
        required, members = schema.get("required") or [], []
        for name, spec in (schema.get("properties") or {}).items():
            lines = _notes(spec, indent)
            default = spec.get("default") if isinstance(spec, dict) else None
            if default is not None:
                # Numbers and booleans as Python writes them (`True`), as in the original; anything else as JSON.
                text = default if isinstance(default, int | float) else json.dumps(default, ensure_ascii=False)
                lines.append(f"{indent}// Default: {text}")
            lines.append(f"{indent}{name}{'' if name in required else '?'}: {self._type(spec, indent)}")
            members.append("\n".join(lines))
        return members

    def _type(self, schema: Any, indent: str) -> str:
        # In the original's order: a reference goes before all else in a schema, and `enum` before its type.
        if isinstance(schema, bool) or schema == {}:
            return "null" if schema is False else "any"
        if not isinstance(schema, dict):
            raise _NoTypeError
        if "$ref" in schema:
            name = str(schema["$ref"]).rpartition("/")[2]
            if schema["$ref"] == "#":  # the schema of the arguments itself, which gets an interface of this name
                self._refers_to_itself = True
                return "parameters"
            if schema["$ref"] != f"#/$defs/{name}" or name not in self._definitions:
                raise _NoTypeError
            return name
        if "anyOf" in schema:
            return " | ".join([self._type(branch, indent) for branch in schema["anyOf"]])
        if "enum" in schema:
            return _enum(schema)
        kind = schema.get("type")
        if isinstance(kind, list) and all(isinstance(one, str) and one in _UNION for one in kind):
            return " | ".join(_UNION[one] for one in kind)
        if not isinstance(kind, str):
            raise _NoTypeError
        if kind == "object":
            return self._object(schema, indent)
        if kind == "array":
            items, inner = schema.get("items") or {}, indent + _STEP
            notes = _notes(items, inner)
            if not notes:
                return f"Array<{self._type(items, indent)}>"
            # On several lines, where the items have a description or bounds.
            return "\n".join(["Array<", *notes, inner + self._type(items, inner), f"{indent}>"])
        return "number" if kind == "integer" else kind


def _braces(members: list[str], indent: str) -> str:
    return "{\n" + ",\n".join(members) + f"\n{indent}}}" if members else "{}"


def _notes(schema: Any, indent: str) -> list[str]:
    """Comments of a schema: its description, and its bounds."""
    if not isinstance(schema, dict):
        return []
    kind = schema.get("type")
    bare = isinstance(kind, str) and not {"anyOf", "enum", "$ref"} & schema.keys()
    bounds = [f"{key}: {schema[key]}" for key in _BOUNDS.get(str(kind) if bare else "", ()) if key in schema]
    return [*_comment(schema, indent), *([f"{indent}// {', '.join(bounds)}"] if bounds else [])]


def _comment(schema: Schema, indent: str) -> list[str]:
    """The description, a comment for each line; an empty line stays empty."""
    text = schema.get("description") or ""
    return [f"{indent}// {line}" if line else "" for line in text.split("\n")] if text else []


def _enum(schema: Schema) -> str:
    kinds = schema.get("type")
    wanted = [kind for kind in (kinds if isinstance(kinds, list) else [kinds]) if kind != "null"]
    fits = _PYTHON.get(str(*wanted[:1]))
    if len(wanted) > 1 or (fits and not all(spec is None or isinstance(spec, fits) for spec in schema["enum"])):
        raise _NoTypeError
    return " | ".join(f'"{spec}"' if isinstance(spec, str) else str(spec) for spec in schema["enum"])
