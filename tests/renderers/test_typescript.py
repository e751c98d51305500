"""Tools as TypeScript: what the golden file of the official tokenizer does not show."""

from __future__ import annotations

from typing import Any

import pytest

from niels_gpt.errors import MessageError
from niels_gpt.renderers.dialects.typescript import declare_tools
from tests.renderers.small import assistant, family, user


def declared(parameters: Any, **more: Any) -> str | None:
    text = declare_tools([{"type": "function", "function": {"name": "f", "parameters": parameters, **more}}])
    head, tail = "# Tools\n\n## functions\nnamespace functions {\n", "\n}\n"
    if text is None:
        return None
    assert text.startswith(head)
    assert text.endswith(tail)
    return text[len(head) : -len(tail)]


def member(schema: Any) -> str | None:
    text = declared({"type": "object", "properties": {"k": schema}})
    return None if text is None else text.removeprefix("type f = (_: {\n").removesuffix("\n}) => any;")


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({}, "  k?: any"),
        (True, "  k?: any"),
        (False, "  k?: null"),
        ({"type": "integer", "maxLength": 3, "maximum": 5}, "  // maximum: 5\n  k?: number"),
        ({"type": "string", "pattern": "a+", "minimum": 3}, "  // pattern: a+\n  k?: string"),
        ({"type": "array"}, "  k?: Array<any>"),
        (
            {"type": "array", "items": {"type": "array", "minItems": 1}},
            "  k?: Array<\n    // minItems: 1\n    Array<any>\n  >",
        ),
        ({"type": ["array", "object", "integer", "null"]}, "  k?: Array<any> | {} | number | null"),
        ({"enum": ["a", 1, None, True], "maximum": 3}, '  k?: "a" | 1 | None | True'),
        ({"type": ["string", "null"], "enum": ["a", None]}, '  k?: "a" | None'),
        ({"type": "string", "default": ["ä"]}, '  // Default: ["ä"]\n  k?: string'),
        ({"type": "string", "default": None}, "  k?: string"),
        ({"type": "boolean", "default": False}, "  // Default: False\n  k?: boolean"),
        ({"type": "number", "description": "a\n\nb"}, "  // a\n\n  // b\n  k?: number"),
        ({"type": "object", "additionalProperties": True}, "  k?: {\n    [k: string]: any\n  }"),
    ],
)
def test_members(schema: Any, text: str) -> None:
    assert member(schema) == text


@pytest.mark.parametrize(
    "schema",
    [
        {"description": "of no type"},
        {"oneOf": [{"type": "string"}]},
        {"type": ["string", "thing"]},
        {"type": "string", "enum": [1]},
        {"type": ["string", "number"], "enum": ["a"]},
        {"$ref": "#/definitions/x"},
        {"$ref": "#/$defs/x"},
        "string",
    ],
)
def test_what_has_no_typescript(schema: Any) -> None:
    assert member(schema) is None


def test_definitions() -> None:
    pair = {"type": "object", "description": "Two.", "properties": {"one": {"type": "string"}}}
    text = declared(
        {"$defs": {"Pair": pair}, "properties": {"p": {"$ref": "#/$defs/Pair", "description": "which"}}},
        description="does it",
    )
    assert text == (
        "// Two.\ninterface Pair {\n  one?: string\n}\n// does it\ntype f = (_: {\n  // which\n  p?: Pair\n}) => any;"
    )


def test_a_schema_that_refers_to_itself() -> None:
    text = declared({"properties": {"next": {"$ref": "#"}}})
    assert text == "interface parameters {\n  next?: parameters\n}\ntype f = (_: parameters) => any;"


def test_keys_are_sorted_and_required_ones_come_first() -> None:
    members = {name: {"type": "string"} for name in "dbca"}
    text = declared({"properties": members, "required": ["d", "b"]})
    assert text == "type f = (_: {\n  b: string,\n  d: string,\n  a?: string,\n  c?: string\n}) => any;"


@pytest.mark.parametrize(
    ("odd", "place"),
    [
        ({"parameters": {"properties": "x"}}, "parameters of f: properties is 'x'"),
        ({"parameters": {"properties": {"a": {"enum": 5}}}}, "function: .*int.*; expected a JSON schema"),
        ({"parameters": {"properties": {"a": {"type": "array", "items": {"description": 1.5}}}}}, "function: .*float"),
        ({"parameters": {"required": 5}}, "parameters of f: required is 5"),
        ({"parameters": {"properties": {"a": {"anyOf": None}}}}, "function: .*NoneType"),
        ({"parameters": [1]}, r"parameters of f: the schema is \[1\]"),
    ],
)
def test_a_tool_without_a_json_schema_is_a_bad_row(odd: dict[str, Any], place: str) -> None:
    tools = [{"type": "function", "function": {"name": "f", **odd}}]
    with pytest.raises(MessageError, match=rf"tools\[0\].*{place}") as found:
        family("kimi-k2.5").render([user(), assistant()], tools=tools)
    assert found.value.reason == "wrong_tools"
