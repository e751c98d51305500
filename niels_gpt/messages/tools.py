"""Declarations of tools, in the shape of the OpenAI chat format, their schemas checked.

::

    {"name": "f", "parameters": "{}"}         ->  {"type": "function", "function": {"name": "f", "parameters": {}}}
    {"name": "f", "input_schema": {}}         ->  the same (Anthropic; MCP calls it inputSchema)
    {"functionDeclarations": [{...}, {...}]}  ->  one each (Gemini)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Sized
from typing import Any

from niels_gpt.errors import MessageError
from niels_gpt.messages import keys
from niels_gpt.messages.calls import check_strings, decoded
from niels_gpt.messages.notes import Notes, shown


def read_tools(tools: Any, notes: Notes) -> list[dict[str, Any]] | None:
    """The tools of a conversation; `None` if there are none.

    Args:
        tools: a list of declarations, or JSON text of one; each may be JSON text, too.

    Raises:
        MessageError: `wrong_tools`, naming the tool; `repeated_key`, `invalid_unicode`.
    """
    if isinstance(tools, str) and (tools := tools.strip()):
        notes.changes["tools_decoded"] += 1
        tools = decoded(tools, "tools", "wrong_tools")
    # An empty text, as files without nulls have it, says the same as an empty list.
    if tools is None or (isinstance(tools, Sized) and len(tools) == 0):  # `not tools` is an error for a numpy array
        return None
    if type(tools) is not list and (isinstance(tools, str | bytes | Mapping) or not isinstance(tools, Sequence)):
        found = type(tools).__name__
        raise MessageError(
            "wrong_tools", f"tools is a {found}; expected a list of {{'type': 'function', 'function': ...}}"
        )
    declared = [each for index, tool in enumerate(tools) for each in _declared(tool, f"tools[{index}]", notes)]
    return [_tool(tool, f"tools[{index}]", notes) for index, tool in enumerate(declared)]


def _declared(tool: Any, where: str, notes: Notes) -> Iterator[Any]:
    """A tool, decoded if it is JSON text; Gemini's lists of declarations one by one."""
    if isinstance(tool, str):
        notes.changes["tools_decoded"] += 1
        tool = decoded(tool, where, "wrong_tools")
    several = next((tool[key] for key in keys.DECLARATIONS if key in tool), None) if isinstance(tool, Mapping) else None
    if isinstance(several, list):
        yield from several
    else:
        yield tool


def _tool(tool: Any, where: str, notes: Notes) -> dict[str, Any]:
    function = tool.get("function") if isinstance(tool, Mapping) else None
    if isinstance(tool, Mapping) and "function" not in tool and isinstance(tool.get("name"), str):
        function = {key: value for key, value in tool.items() if key != "type"}
        tool = {"type": "function", "function": function}
    if isinstance(function, str):
        notes.changes["tools_decoded"] += 1
        function = decoded(function, f"{where}.function", "wrong_tools")
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise MessageError(
            "wrong_tools",
            f"{where} has no function with a name; expected {{'type': 'function', 'function': "
            "{'name', 'description', 'parameters'}}",
        )
    check_strings(tool, where)
    named = next((name for name in keys.SCHEMAS if function.get(name) is not None), "")
    # The keys stay in their order, because templates write a tool as JSON in the order of its keys.
    fields = {
        "parameters" if key == named else key: value
        for key, value in function.items()
        if value is not None or key not in keys.SCHEMAS
    }
    if named:
        fields["parameters"] = _schema(fields["parameters"], f"{where}: {named} of {fields['name']}", notes)
    notes.count_unread("tool", tool, keys.TOOL)
    notes.count_unread("tool.function", fields, keys.TOOL_FUNCTION)
    return {**tool, "function": fields}


def _schema(value: Any, where: str, notes: Notes) -> Mapping[str, Any]:
    """The JSON schema of a function's arguments, which is one of an object.

    Raises:
        MessageError: `wrong_tools`: it is no such schema.
    """
    if isinstance(value, str) and value.strip():
        notes.changes["tools_decoded"] += 1
        value = decoded(value, where, "wrong_tools")
    if value in ("", []):  # an empty object, of a language whose empty objects are lists
        return {}
    if isinstance(value, Mapping) and value.get("properties") == []:
        value = {**value, "properties": {}}
    problem = _schema_problem(value)
    if problem:
        raise MessageError("wrong_tools", f"{where}: {problem}; expected a JSON schema of an object. Repair the tool")
    return value  # type: ignore[no-any-return]


def _schema_problem(schema: Any) -> str:
    """What is wrong with the schema of a function's arguments; "" if nothing is."""
    if not isinstance(schema, Mapping):
        return f"the schema is {shown(schema)}"
    kinds = schema.get("type")
    if kinds is not None and "object" not in (kinds if isinstance(kinds, list) else [str(kinds).lower()]):
        return f"type is {shown(kinds)}"
    properties, required = schema.get("properties"), schema.get("required")
    if properties is not None:
        if not isinstance(properties, Mapping):
            return f"properties is {shown(properties)}"
        for name, each in properties.items():
            if each is not None and not isinstance(each, Mapping | bool):
                return f"properties.{name} is {shown(each)}"
    if required is not None and not (isinstance(required, list) and all(isinstance(name, str) for name in required)):
        return f"required is {shown(required)}"
    return ""
