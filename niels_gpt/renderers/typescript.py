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
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_NAMES = {"integer": "number", "string": "string", "number": "number", "boolean": "boolean", "null": "null"}
_BOUNDS = (
    *("exclusiveMaximum", "exclusiveMinimum", "maxItems", "maxLength", "maximum", "minItems", "minLength", "minimum"),
    *("multipleOf", "pattern"),
)
_STEP = "  "


def declare_tools(tools: Sequence[Mapping[str, Any]]) -> str:
    """The declarations of tools that are in the shape of the OpenAI chat format; keys are sorted all the way down."""
    functions: list[dict[str, Any]] = [json.loads(json.dumps(tool["function"], sort_keys=True)) for tool in tools]
    lines = [line for function in functions for line in _declared(function)]
    return "\n".join(["# Tools", "", "## functions", "namespace functions {", *lines, "}", ""])


def _declared(function: Mapping[str, Any]) -> Iterator[str]:
    yield from _comments(function.get("description"))
    yield f"type {function['name']} = (_: {_object(function.get('parameters') or {}, '')}) => any;"


def _comments(text: Any) -> Iterator[str]:
    """A text as comments, one a line; none for an empty one."""
    if isinstance(text, str) and text:
        yield from (f"// {line}" for line in text.split("\n"))


def _notes(schema: Mapping[str, Any]) -> list[str]:
    """What a schema says beside its type: description, bounds, default."""
    bounds = [f"{key}: {schema[key]}" for key in _BOUNDS if key in schema]
    notes = [*_comments(schema.get("description"))]
    if bounds:
        notes.append("// " + ", ".join(bounds))
    if "default" in schema:
        default = schema["default"]
        notes.append(f"// Default: {to_text(default)}")
    return notes


def to_text(value: Any) -> str:
    """A default: a text in quotation marks, anything else as Python writes it."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else str(value)


def _object(schema: Mapping[str, Any], indent: str) -> str:
    """An object's type: required members first, then optional ones, then what may come beside them."""
    inner, required = indent + _STEP, schema.get("required") or []
    properties = schema.get("properties") or {}
    members = [_member(name, held, True, inner) for name, held in properties.items() if name in required]
    members += [_member(name, held, False, inner) for name, held in properties.items() if name not in required]
    if "additionalProperties" in schema:
        members.append(f"{inner}[k: string]: {_rest(schema['additionalProperties'], inner)}")
    return "{\n" + ",\n".join(members) + f"\n{indent}}}" if members else "{}"


def _member(name: str, schema: Any, required: bool, indent: str) -> str:
    notes = _notes(schema) if isinstance(schema, Mapping) else []
    declared = f"{name}{'' if required else '?'}: {_type(schema, indent)}"
    return "\n".join(indent + line for line in [*notes, declared])


def _rest(schema: Any, indent: str) -> str:
    if isinstance(schema, bool):
        return "any" if schema else "never"
    return _type(schema, indent)


def _type(schema: Any, indent: str) -> str:
    """A schema as a type; what says nothing of its type is `any`."""
    if not isinstance(schema, Mapping):
        return "any"
    if isinstance(schema.get("enum"), list):
        return " | ".join(to_text(value) if isinstance(value, str) else json.dumps(value) for value in schema["enum"])
    for branches in (schema.get("anyOf"), schema.get("oneOf")):
        if isinstance(branches, list):
            return " | ".join(_type(branch, indent) for branch in branches)
    kind = schema.get("type")
    if isinstance(kind, list):
        return " | ".join(_type({**schema, "type": one}, indent) for one in kind)
    if kind == "object":
        return _object(schema, indent)
    if kind == "array":
        return _array(schema.get("items"), indent)
    return _NAMES.get(kind, "any") if isinstance(kind, str) else "any"


def _array(items: Any, indent: str) -> str:
    """An array's type, over several lines where its items have something to say."""
    notes = [*_comments(items.get("description"))] if isinstance(items, Mapping) else []
    if not notes:
        return f"Array<{_type(items, indent)}>"
    inner = indent + _STEP
    held = "\n".join(inner + line for line in [*notes, _type(items, inner)])
    return f"Array<\n{held}\n{indent}>"
