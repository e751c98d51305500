"""Declarations of tools, in the shape of the OpenAI chat format, their schemas checked.

::

    {"name": "f", "parameters": "{}"}         ->  {"type": "function", "function": {"name": "f", "parameters": {}}}
    {"name": "f", "input_schema": {}}         ->  the same (Anthropic; MCP calls it inputSchema)
    {"functionDeclarations": [{...}, {...}]}  ->  one each (Gemini)
"""

from __future__ import annotations

import json
import marshal
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from contextlib import suppress
from typing import Any, Final

from niels_gpt.errors import MessageError
from niels_gpt.messages import keys
from niels_gpt.messages.calls import check_strings, check_text, decoded, is_text
from niels_gpt.messages.notes import Notes, shown

_WRITER: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False)  # `json.dumps` would make one at each call
_PLAIN: Final = frozenset({"name", "description", "parameters"})  # what the function of a plain tool has

# Most conversations of a dataset offer the same few tools, and a declaration takes longer than the rest of a short one.
_DECLARED: dict[tuple[Callable[[Tools], str], tuple[str, ...]], str] = {}
_MOST_DECLARED: Final = 1024


class Tools(list[dict[str, Any]]):
    """Tools as `read_tools` returns them, which are not read again while they are as they were.

    Attributes:
        json_texts: each tool as JSON, as `to_json` writes it.

    Raises:
        MessageError: `wrong_tools`: one of them is not JSON.
    """

    def __init__(self, tools: Sequence[dict[str, Any]]) -> None:
        super().__init__(tools)
        self._read = _marshalled(self)
        try:
            self.json_texts = tuple(to_json(tool, f"tools[{index}]") for index, tool in enumerate(self))
        except MessageError as error:
            raise MessageError("wrong_tools", str(error)) from error

    @property
    def as_read(self) -> bool:
        """Whether neither the list nor anything in it was changed."""
        return bool(self._read) and self._read == _marshalled(self)

    def declaration(self, declare: Callable[[Tools], str]) -> str:
        """The text `declare(self)`, computed once for all conversations with equal tools.

        Args:
            declare: a plain function. What is remembered lives as long as the process, so a bound method would keep
                its renderer, and with it a tokenizer, in memory.
        """
        text = _DECLARED.get((declare, self.json_texts))
        if text is None:
            # All at once: a dataset with more sets of tools than this has few that come again, and an order of use
            # would cost each of the others.
            if len(_DECLARED) >= _MOST_DECLARED:
                _DECLARED.clear()
            text = _DECLARED[declare, self.json_texts] = declare(self)
        return text


def _marshalled(tools: Sequence[dict[str, Any]]) -> bytes:
    """All that is in some tools, as bytes; none where they hold something else than Python's own types.

    It takes a fifth of the time of JSON, and tells 1, 1.0 and True apart.
    """
    try:
        return marshal.dumps([*tools], 2)  # later versions write equal values in several ways
    except ValueError:
        return b""


def read_tools(tools: Any, notes: Notes) -> Tools | None:
    """The tools of a conversation; `None` if there are none.

    Args:
        tools: a list of declarations, or JSON text of one; each may also be JSON text. `Tools` are read already, unless
            they were changed since.

    Raises:
        MessageError: `wrong_tools`, naming the tool; `repeated_key`, `invalid_unicode`.
    """
    if tools is None or (type(tools) is Tools and tools and tools.as_read):
        return tools
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
    if all(map(_is_plain, tools)):
        with suppress(MessageError):  # a text that UTF-8 cannot encode, or no JSON: below an error names the place
            return Tools(tools)
    declared = [each for index, tool in enumerate(tools) for each in _declared(tool, f"tools[{index}]", notes)]
    return Tools([_tool(tool, f"tools[{index}]", notes) for index, tool in enumerate(declared)])


def _is_plain(tool: Any) -> bool:
    """Whether a tool is in the one form already, as far as its keys and its schema tell."""
    if type(tool) is not dict or tool.keys() != keys.TOOL or type(tool["function"]) is not dict:
        return False
    function = tool["function"]
    schema = function.get("parameters")
    return (
        function.keys() <= _PLAIN
        and is_text(function.get("name"))
        and type(schema) is dict
        and schema.get("properties") != []
        and not _schema_problem(schema)
    )


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


# ---- JSON


def to_json(value: Any, where: str = "a tool") -> str:
    """JSON as the `tojson` filter of chat templates writes it in Transformers: not escaped, keys in their order.

    Raises:
        MessageError: naming `where`: not JSON, which NaN and infinite numbers are not, or a text that UTF-8 cannot
            encode.
    """
    try:
        text = _WRITER.encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise MessageError(
            "wrong_type", f"{where} is not JSON: {error}; expected objects, lists, texts, numbers"
        ) from error
    try:
        check_text(text)
    except MessageError as error:
        raise MessageError(error.reason, f"{where} holds {error}") from error
    return text
