"""The tools that a conversation offers: checked, in one shape, and remembered, because many offer the same."""

from __future__ import annotations

import marshal
from collections.abc import Callable, Mapping, Sequence, Sized
from typing import Any, cast

from niels_gpt.errors import MessageError
from niels_gpt.renderers.chat import to_json

_MOST_KNOWN = 1024


class Tools(list[dict[str, Any]]):
    """Tools in the shape of the OpenAI chat format. Nobody changes them.

    Attributes:
        texts: each as JSON, as `to_json` writes it.
    """

    def __init__(self, tools: Sequence[Any]) -> None:
        super().__init__(_tool(tool, index) for index, tool in enumerate(tools))
        self.texts = [_text(tool, index) for index, tool in enumerate(self)]
        self._written: dict[Callable[[Tools], str], str] = {}

    def written(self, declared: Callable[[Tools], str]) -> str:
        """What a format makes of them, made once.

        Args:
            declared: a plain function. Tools are remembered, so a method of a renderer would keep its encoder alive.
        """
        if declared not in self._written:
            self._written[declared] = declared(self)
        return self._written[declared]


_KNOWN: dict[bytes, Tools | None] = {}  # by value; `None`: seen once


def tools_of(tools: Any) -> Tools | None:
    """Tools in the shape of the OpenAI chat format; a bare `{name, description, parameters}` is put into it.

    Equal ones are remembered by their value.

    Raises:
        MessageError: `wrong_tools`, naming the tool: not a list of JSON objects with a function that has a name.
    """
    if isinstance(tools, Tools):
        return tools
    if tools is None or (isinstance(tools, Sized) and len(tools) == 0):  # the truth of an array is an error
        return None
    if type(tools) is not list and (isinstance(tools, str | bytes | Mapping) or not isinstance(tools, Sequence)):
        found = type(tools).__name__
        raise MessageError(
            "wrong_tools", f"tools is a {found}; expected a list of {{'type': 'function', 'function': ...}}"
        )
    try:
        return _remembered(marshal.dumps(cast("Any", tools), 2), tools)
    except ValueError:  # not plain data (numpy's scalars come back as bytes), nested very deeply, or no tools at all
        return Tools(tools)


def _remembered(value: bytes, tools: Sequence[Any]) -> Tools:
    """Tools that equal others are made for the second of them, from a copy that no caller can change."""
    known = _KNOWN.get(value)
    if known is not None:
        return known
    if value not in _KNOWN:
        if len(_KNOWN) >= _MOST_KNOWN:
            _KNOWN.clear()
        _KNOWN[value] = None
        return Tools(tools)
    made = _KNOWN[value] = Tools(marshal.loads(value))
    return made


def _tool(tool: Any, index: int) -> dict[str, Any]:
    if type(tool) is dict and type(held := tool.get("function")) is dict and type(held.get("name")) is str:
        return tool
    if isinstance(tool, Mapping) and "function" not in tool and isinstance(tool.get("name"), str):
        tool = {"type": "function", "function": dict(tool)}
    function = tool.get("function") if isinstance(tool, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise MessageError(
            "wrong_tools",
            f"tools[{index}] has no function with a name; expected {{'type': 'function', 'function': {{'name', "
            "'description', 'parameters'}}",
        )
    return dict(tool)


def _text(tool: Mapping[str, Any], index: int) -> str:
    try:
        return to_json(tool, f"tools[{index}]")
    except MessageError as error:
        raise MessageError("wrong_tools", str(error)) from error
