"""Function declarations as gpt-oss reads them: a TypeScript-like namespace in the developer message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from niels_gpt.renderers.chat import to_json

_ITEMS = {"string": "string[]", "number": "number[]", "integer": "number[]", "boolean": "boolean[]"}
_PLAIN = {"number": "number", "integer": "number", "boolean": "boolean"}
# White space that the official template writes in these two places; models have been trained with it.
_INDENT = "\n" + 16 * " "
_DEFAULT_INDENT = 20 * " "


def namespace(name: str, tools: Sequence[Mapping[str, Any]]) -> str:
    """All functions of a namespace."""
    declared = "".join(_function(tool["function"]) for tool in tools)
    return f"## {name}\n\nnamespace {name} {{\n\n{declared}}} // namespace {name}"


def _function(function: Mapping[str, Any]) -> str:
    parameters = function.get("parameters") or {}
    properties = parameters.get("properties")
    comment = f"// {function['description']}\n" if function.get("description") is not None else ""
    if not properties:
        return f"{comment}type {function['name']} = () => any;\n\n"
    required = parameters.get("required") or []
    lines = "".join(_parameter(key, spec, key in required) for key, spec in properties.items())
    return f"{comment}type {function['name']} = (_: {{\n{lines}}}) => any;\n\n"


def _parameter(name: str, spec: Mapping[str, Any], required: bool) -> str:
    comment = f"// {spec['description']}\n" if spec.get("description") else ""
    return f"{comment}{name}{'' if required else '?'}: {type_of(spec)}{_default(spec)},\n"


def _default(spec: Mapping[str, Any]) -> str:
    if "default" not in spec:
        return ""
    if spec.get("enum"):
        return f", // default: {spec['default']}"
    if spec.get("oneOf"):
        return f"// default: {spec['default']}"
    return f", // default: {to_json(spec['default'])}"


def type_of(spec: Mapping[str, Any]) -> str:
    """The type that a JSON schema allows."""
    kind = spec.get("type")
    if kind == "array":
        return _array(spec)
    if isinstance(kind, list) and kind:
        return " | ".join(map(str, kind))
    if spec.get("oneOf"):
        return " | \n".join(map(_variant, spec["oneOf"]))
    if kind == "string":
        if spec.get("enum"):
            return '"' + '" | "'.join(map(str, spec["enum"])) + '"'
        return "string | null" if spec.get("nullable") else "string"
    if kind == "object":
        return _object(spec)
    return _PLAIN.get(str(kind), "any")


def _array(spec: Mapping[str, Any]) -> str:
    items = spec.get("items")
    made = "any[]"
    if items:
        made = _ITEMS.get(str(items.get("type"))) or ""
        if not made:
            inner = type_of(items)
            made = "any[]" if inner == "object | object" or len(inner) > 50 else inner + "[]"
    return made + (" | null" if spec.get("nullable") else "")


def _variant(spec: Mapping[str, Any]) -> str:
    comment = f"// {spec['description']}" if spec.get("description") else ""
    default = f"{_DEFAULT_INDENT}// default: {to_json(spec['default'])}" if "default" in spec else ""
    return type_of(spec) + comment + default


def _object(spec: Mapping[str, Any]) -> str:
    properties = spec.get("properties")
    if not properties:
        return "object"
    required = spec.get("required") or []
    fields = (f"{key}{'' if key in required else '?'}: {_INDENT}{type_of(value)}" for key, value in properties.items())
    return "{\n" + ", ".join(fields) + "}"
