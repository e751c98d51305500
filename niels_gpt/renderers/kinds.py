"""What decides how a grammar writes a conversation, apart from the values that it fills in.

::

    {"role": "user", "content": "Is it cold?"}                              "user"                        1 value
    {"role": "assistant", "content": "",
     "tool_calls": [{"id": "a", "function": {"name": "look", ...}}]}        Kind(calls=(look, with id))   2 values
    {"role": "tool", "tool_call_id": "a", "content": "4 degrees"}           Kind(answers=0)               1 value

The kinds of all messages are a key; `stand_ins.py` makes of it a conversation whose values can be found again in what
a grammar writes. A message that has anything else about it has no kind, and its conversation is written by itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple, cast

from niels_gpt.errors import MessageError
from niels_gpt.messages import Message
from niels_gpt.renderers.chat import to_json

_TEXT, _NAME = {str}, (str, type(None))
_KEPT = 4096
PLAIN = 2  # keys of a message that is nothing but a role and a text, as most are


class CallKind(NamedTuple):
    """A call of a function.

    Attributes:
        is_text: its arguments are JSON text and no object; a grammar might write that differently.
        keys: the names of its arguments, where each is a value; `None`: all are one value, as JSON.
    """

    name: str
    has_id: bool
    type: str | None
    is_text: bool
    keys: tuple[str, ...] | None = None


class Kind(NamedTuple):
    """A message that is more than a role and a text.

    Attributes:
        answers: of a tool's result, the number of its call among those before it.
        name: of a tool's result, the function it names.
    """

    role: str
    content: bool
    reasoning: bool = False
    calls: tuple[CallKind, ...] = ()
    answers: int | None = None
    name: str | None = None


# Made once for all messages that are alike: looking one up is quicker than making it.
_call_kind, _message_kind = lru_cache(maxsize=_KEPT)(CallKind), lru_cache(maxsize=_KEPT)(Kind)
Key = tuple[str | Kind, ...]


class Values(NamedTuple):
    """What a conversation fills in, in order; whether all of it is text is left to the reader.

    Attributes:
        messages: as `normalise` returns them, if it is.
    """

    key: Key
    values: list[str]
    messages: list[Message]


class _Unkind(Exception):
    """A message that has no kind."""


def read_values(
    messages: list[Message],
    roles: list[Any],
    contents: list[Any],
    *,
    calls: bool = True,
    bare: Callable[[Any, str], str] | None = None,
    quoted: bool = False,
) -> Values | None:
    """The kinds of a conversation and what it fills in; `None`: a message has no kind, or calls without `calls`.

    Args:
        roles, contents: of all messages, `None` where there is none.
        bare: how an argument is written that stands by itself; `None`: arguments are written as JSON.
        quoted: results of tools are written as JSON.
    """
    values: list[Any] = []
    kinds, normal = [*roles], messages
    asked: list[str] = []
    done = 0
    try:
        for at, given in enumerate(messages):
            if len(given) == PLAIN:
                continue
            if done < at:  # messages without a kind of their own stand between
                values += contents[done:at]
                asked = []
            done = at + 1
            message = given
            if None in given.values():
                message = _without_nulls(given)
                normal = [*messages] if normal is messages else normal
                normal[at] = message
            if message["role"] == "tool":
                kinds[at] = _answer(message, asked, values, quoted)
            elif len(message) == PLAIN:
                values.append(message["content"])
                asked = []
            elif "tool_calls" in message and not calls:
                return None
            else:
                kinds[at] = _kind(message, values, bare)
                asked = [call.get("id", "") for call in message.get("tool_calls", ())]
    except (_Unkind, KeyError, TypeError, AttributeError):  # something is missing, or is no text
        return None
    values += contents[done:]
    return Values(tuple(kinds), values, normal)


def _without_nulls(message: Message) -> Message:
    """A message without the keys that hold `None`, as `normalise` leaves it: Arrow writes every key in every row."""
    tidy: Any = {key: value for key, value in message.items() if value is not None}
    if "content" in message:
        tidy.setdefault("content", "")
    if "tool_calls" in tidy:
        tidy["tool_calls"] = [
            {key: held for key, held in call.items() if held is not None} for call in tidy["tool_calls"]
        ]
    return cast("Message", tidy)


def _kind(message: Message, values: list[str], bare: Callable[[Any, str], str] | None) -> Kind:
    """The kind of a message that no tool wrote; its values are added to the others."""
    content = _taken(message["content"], values)
    size, reasoning = 2, False
    calls: tuple[CallKind, ...] = ()
    if "reasoning_content" in message:
        size += 1
        reasoning = _taken(message["reasoning_content"], values)
        if not reasoning:
            raise _Unkind
    if "tool_calls" in message:
        size += 1
        calls = tuple([_call(call, values, bare) for call in message["tool_calls"]])
    if message["role"] != "assistant" or len(message) != size:
        raise _Unkind
    return _message_kind("assistant", content, reasoning, calls)


def _answer(message: Message, asked: list[str], values: list[str], quoted: bool) -> Kind:
    """The kind of a tool's result."""
    name = message.get("name")
    if len(message) != (3 if name is None else 4) or type(name) not in _NAME:
        raise _Unkind
    try:
        answers = asked.index(message["tool_call_id"])
    except ValueError as error:
        raise _Unkind from error
    content = _taken(message["content"], values)
    if content and quoted:
        values[-1] = _as_json(values[-1])
    return _message_kind("tool", content, False, (), answers, name)


def _taken(text: Any, values: list[str]) -> bool:
    """Add a text to the values, unless it is empty."""
    if type(text) is not str:
        raise _Unkind
    if not text:
        return False
    values.append(text)
    return True


def _call(call: Any, values: list[str], bare: Callable[[Any, str], str] | None) -> CallKind:
    function, given, of_type = call["function"], call.get("id"), call.get("type")
    name, arguments = function["name"], function["arguments"]
    if type(call) is not dict or type(function) is not dict or type(name) is not str or type(of_type) not in _NAME:
        raise _Unkind
    if len(function) != 2 or len(call) != 1 + (given is not None) + (of_type is not None):
        raise _Unkind
    if given is not None and not _taken(given, values):
        raise _Unkind
    is_text, keys = type(arguments) is str, None
    if bare is None:
        values.append(_checked(arguments) if is_text else _written(arguments))
    else:
        keys = _keys(_loaded(arguments) if is_text else arguments, values, bare)
    return _call_kind(name, given is not None, of_type, is_text, keys)


def _keys(arguments: Any, values: list[str], bare: Callable[[Any, str], str]) -> tuple[str, ...]:
    """The names of arguments that stand by themselves; what stands there is added to the values."""
    if type(arguments) is not dict:
        raise _Unkind
    for value in arguments.values():
        try:
            values.append(bare(value, ""))
        except MessageError as error:
            raise _Unkind from error
    if not set(map(type, arguments)) <= _TEXT:
        raise _Unkind
    return tuple(arguments)


def _checked(arguments: str) -> str:
    """Arguments that are a JSON object as text, without white space around it."""
    if type(_loaded(arguments)) is not dict or arguments.strip() != arguments:
        raise _Unkind
    return arguments


def _loaded(arguments: str) -> Any:
    if "\\u" in arguments:  # an escape may spell half a surrogate pair
        raise _Unkind
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError) as error:
        raise _Unkind from error


def _written(arguments: Any) -> str:
    """Arguments that are an object, as JSON."""
    if type(arguments) is not dict or not set(map(type, arguments)) <= _TEXT:
        raise _Unkind
    return _as_json(arguments)


def _as_json(value: Any) -> str:
    try:
        return to_json(value)
    except MessageError as error:
        raise _Unkind from error
