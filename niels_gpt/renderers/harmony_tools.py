"""Function declarations as gpt-oss reads them: a TypeScript-like namespace in the developer message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from niels_gpt.errors import MessageError
from niels_gpt.renderers.chat import to_json

_ITEMS = {"string": "string[]", "number": "number[]", "integer": "number[]", "boolean": "boolean[]"}
_PLAIN = {"number": "number", "integer": "number", "boolean": "boolean"}
# White space that the official template writes in these two places; models have been trained with it.
_INDENT = "\n" + 16 * " "
_DEFAULT_INDENT = 20 * " "


def namespace(name: str, tools: Sequence[Mapping[str, Any]]) -> str:
    """All functions of a namespace. What is no schema where one should stand is any type, as in the template.

    Raises:
        MessageError: `wrong_tools`: a schema that is nested too deeply.
    """
    try:
        declared = "".join(_function(tool["function"]) for tool in tools)
    except RecursionError as error:
        raise MessageError(
            "wrong_tools", "tools: a schema is nested too deeply to declare; expected some tens of levels. Flatten it"
        ) from error
    return f"## {name}\n\nnamespace {name} {{\n\n{declared}}} // namespace {name}"


def _function(function: Mapping[str, Any]) -> str:
    parameters = _schema(function.get("parameters"))
    properties = _schema(parameters.get("properties"))
    comment = f"// {function['description']}\n" if function.get("description") is not None else ""
    if not properties:
        return f"{comment}type {function['name']} = () => any;\n\n"
    required = _list(parameters.get("required"))
    lines = "".join(_parameter(key, _schema(spec), key in required) for key, spec in properties.items())
    return f"{comment}type {function['name']} = (_: {{\n{lines}}}) => any;\n\n"


def _schema(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()


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
    if variants := _list(spec.get("oneOf")):
        return " | \n".join(_variant(_schema(variant)) for variant in variants)
    if kind == "string":
        if values := _list(spec.get("enum")):
            return '"' + '" | "'.join(map(str, values)) + '"'
        return "string | null" if spec.get("nullable") else "string"
    if kind == "object":
        return _object(spec)
    return _PLAIN.get(str(kind), "any")


def _array(spec: Mapping[str, Any]) -> str:
    items = spec.get("items")
    made = "any[]"
    if items:
        made = _ITEMS.get(str(_schema(items).get("type"))) or ""
        if not made:
            inner = type_of(_schema(items))
            made = "any[]" if inner == "object | object" or len(inner) > 50 else inner + "[]"
    return made + (" | null" if spec.get("nullable") else "")


def _variant(spec: Mapping[str, Any]) -> str:
    comment = f"// {spec['description']}" if spec.get("description") else ""
    default = f"{_DEFAULT_INDENT}// default: {to_json(spec['default'])}" if "default" in spec else ""
    return type_of(spec) + comment + default


def _object(spec: Mapping[str, Any]) -> str:
    properties = _schema(spec.get("properties"))
    if not properties:
        return "object"
    required = _list(spec.get("required"))
    fields = (
        f"{key}{'' if key in required else '?'}: {_INDENT}{type_of(_schema(value))}"
        for key, value in properties.items()
    )
    return "{\n" + ", ".join(fields) + "}"
