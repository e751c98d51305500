"""The conversations on which `niels-gpt doctor template` tests a template: which messages follow each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

_WORDS: Final = ("what is near here?", 'A river, and\na "bridge".', "how far?", "Two miles.", "and then?", "A mill.")
LOOK_UP: Final = (
    {
        "type": "function",
        "function": {
            "name": "look_up",
            "description": "Looks up a place.",
            "parameters": {
                "type": "object",
                "properties": {"place": {"type": "string", "description": "Its name."}},
                "required": ["place"],
            },
        },
    },
)
_RESULT: Final = 'a "mill"\nby the river'


@dataclass(frozen=True)
class Probe:
    """A conversation on which a template is tested."""

    name: str
    messages: tuple[dict[str, Any], ...]
    tools: tuple[dict[str, Any], ...] | None = None


@cache
def probes() -> list[Probe]:
    """All probes: each conversation with and without a system message and tools."""
    system = {"role": "system", "content": "Answer in few words."}
    return [
        Probe(name + ", system" * has_system + ", tools" * has_tools, (*[system] * has_system, *messages), tools)
        for name, messages in _conversations().items()
        for has_system in (False, True)
        for has_tools, tools in ((False, None), (True, LOOK_UP))
    ]


def literal_probe(literal: str) -> Probe:
    """A conversation whose texts contain a string that the template searches for."""
    texts = (f"one {literal} two", f"three {literal} four", f"{literal} five", "six")
    roles = ("user", "assistant", "user", "assistant")
    messages = ({"role": role, "content": text} for role, text in zip(roles, texts, strict=True))
    return Probe(f"contents with {literal!r}", tuple(messages))


# ---- the conversations


def _user(number: int = 0, **fields: Any) -> dict[str, Any]:
    return {"role": "user", "content": _WORDS[2 * number]} | fields


def _assistant(number: int = 0, **fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": _WORDS[2 * number + 1]} | fields


def _call(number: int = 0, **arguments: Any) -> dict[str, Any]:
    arguments = arguments or {"place": "Oxbow Mill", "near": True}
    return {"type": "function", "id": f"call0000{number}", "function": {"name": "look_up", "arguments": arguments}}


def _in_parts(message: dict[str, Any]) -> dict[str, Any]:
    return {**message, "content": [{"type": "text", "text": message["content"]}]}


def _text_call() -> dict[str, Any]:
    """A call whose arguments are JSON in a string."""
    return {**_call(), "function": {"name": "look_up", "arguments": '{"place": "Oxbow Mill", "near": true}'}}


def _tool(number: int = 0, content: str = _RESULT) -> dict[str, Any]:
    return {"role": "tool", "name": "look_up", "tool_call_id": f"call0000{number}", "content": content}


def _conversations() -> Mapping[str, list[dict[str, Any]]]:
    """Name -> a conversation without a system message; the name says what it tests."""
    a_call: dict[str, Any] = {"role": "assistant", "content": "", "tool_calls": [_call()]}
    two_calls: dict[str, Any] = {"role": "assistant", "content": "", "tool_calls": [_call(), _call(1, place="Weir")]}
    reasoning: dict[str, Any] = {"reasoning_content": "Consider the map first."}
    one_turn, two_turns = [_user(), _assistant()], [_user(), _assistant(), _user(1), _assistant(1)]
    return {
        "one turn": one_turn,
        "two turns": two_turns,
        "three turns": [*two_turns, _user(2), _assistant(2)],
        "ends with a user": [*one_turn, _user(1)],
        "only a user": [_user()],
        "reasoning": [_user(), _assistant(**reasoning)],
        "reasoning twice": [_user(), _assistant(**reasoning), _user(1), _assistant(1, **reasoning)],
        "a call": [_user(), a_call, _tool(), _assistant(1)],
        "a call and a text": [_user(), _assistant(tool_calls=[_call()]), _tool(), _assistant(1)],
        "a call, then a user": [_user(), a_call, _tool(), _assistant(1), _user(2), _assistant(2)],
        "a call after a turn": [*one_turn, _user(1), a_call, _tool(), _assistant(2)],
        "ends with a call": [_user(), a_call],
        "ends with a result": [_user(), a_call, _tool()],
        "two calls": [_user(), two_calls, _tool(), _tool(1, "a weir"), _assistant(1)],
        "call after call": [_user(), a_call, _tool(), {**a_call, "tool_calls": [_call(1)]}, _tool(1), _assistant(1)],
        "reasoning and a call": [_user(), {**a_call, **reasoning}, _tool(), _assistant(1, **reasoning)],
        "arguments as text": [_user(), {**a_call, "tool_calls": [_text_call()]}, _tool(), _assistant(1)],
        "a text and arguments as text": [_user(), _assistant(tool_calls=[_text_call()]), _tool(), _assistant(1)],
        "a text and two calls": [_user(), {**two_calls, "content": _WORDS[3]}, _tool(), _tool(1), _assistant(1)],
        "a result, then a user": [_user(), a_call, _tool(), _user(1), _assistant(1)],
        "an empty answer": [_user(), _assistant(content="")],
        "a system message later": [*one_turn, {"role": "system", "content": "Now be brief."}, _user(1), _assistant(1)],
        "a system message last": [_user(), {"role": "system", "content": "Now be brief."}, _assistant(1)],
        "an empty result": [_user(), a_call, _tool(0, ""), _assistant(1)],
        "an empty system message": [{"role": "system", "content": ""}, *one_turn],
        "an empty question": [_user(content=""), _assistant(), _user(1), _assistant(1)],
        "white space around": [_user(content="  how far? \n"), _assistant(content="\n Two miles. ")],
        "answer after answer": [*one_turn, _assistant(1)],
        "question after question": [_user(), _user(1), _assistant(1)],
        "assistant first": [_assistant(), _user(1), _assistant(1)],
        "parts": [_in_parts(_user()), _in_parts(_assistant())],
        "parts of users": [_in_parts(_user()), _assistant()],
        "markup": [
            _user(content="is <b>x</b> & y?"),
            _assistant(content="<think>\nlet me see\n</think>\n\nIt is {x}."),
        ],
    }
