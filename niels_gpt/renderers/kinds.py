"""What decides how a grammar writes a conversation, apart from the values that it fills in.

::

    {"role": "user", "content": "Is it cold?"}                              "user"                        1 value
    {"role": "assistant", "content": "",
     "tool_calls": [{"id": "a", "function": {"name": "look", ...}}]}        Kind(calls=(look, with id))   2 values
    {"role": "tool", "tool_call_id": "a", "content": "4 degrees"}           Kind(answers=0)               1 value

The kinds of all messages are a key; `stand_ins` makes of it a conversation whose values can be found again in what a
grammar writes. A message that has anything else about it has no kind, and its conversation is written by itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from niels_gpt.errors import MessageError
from niels_gpt.messages import Message
from niels_gpt.renderers.chat import to_json

STAND_IN = re.compile(r'\{"niels-(\d+)-gpt": 1\}|niels-(\d+)-gpt')


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


Key = tuple[str | Kind, ...]


class Values(NamedTuple):
    """What a conversation fills in, in order, and which of it are texts that a grammar might look into."""

    key: Key
    values: list[str]
    texts: list[str]
    messages: list[Message]
    joined: str = ""  # the texts


class _Unkind(Exception):
    """A message that has no kind."""


def read_values(
    messages: Sequence[Message], *, calls: bool = True, bare: Callable[[Any, str], str] | None = None
) -> Values | None:
    """The kinds of a conversation and what it fills in; `None`: a message has no kind, or calls without `calls`.

    Args:
        bare: how an argument is written that stands by itself; `None`: arguments are written as JSON.
    """
    held = Values((), [], [], [])
    values: list[Any] = held.values
    texts: list[Any] = held.texts
    kinds: list[str | Kind] = []
    asked: list[str] = []
    try:
        for message in messages:
            if len(message) == 2 and message["role"] != "tool":
                kinds.append(message["role"])
                values.append(message["content"])
                texts.append(message["content"])
                held.messages.append(message)
                asked = []
            elif "tool_calls" in message and not calls:
                return None
            else:
                kinds.append(_kind(message, asked, held, bare))
                if kinds[-1].role != "tool":  # type: ignore[union-attr]
                    asked = [call.get("id", "") for call in message.get("tool_calls", ())]
        return held._replace(key=tuple(kinds), joined="\0".join(texts))
    except (_Unkind, KeyError, TypeError, AttributeError):  # something is missing, or is no text
        return None


def plain_values(messages: list[Message]) -> Values | None:
    """`read_values` of messages that are nothing but a role and a text, as most are: nearly for nothing."""
    try:
        roles = tuple([message["role"] for message in messages if len(message) == 2])
        if len(roles) != len(messages):
            return None
        texts: list[Any] = [message["content"] for message in messages]
        return Values(roles, texts, texts, messages, "\0".join(texts))
    except (KeyError, TypeError):  # a message without role or content, or one of them is no text
        return None


def _kind(message: Message, asked: list[str], held: Values, bare: Callable[[Any, str], str] | None) -> Kind:
    """The kind of a message; its values are added to those that are held."""
    role, content = _text(message["role"]), message["content"]
    if content is None:
        message = {**message, "content": ""}
    elif _text(content):
        held.values.append(content)  # type: ignore[arg-type]
        held.texts.append(content)  # type: ignore[arg-type]
    held.messages.append(message)
    if role == "tool":
        return _answer(message, bool(content), asked)
    if role != "assistant" or len(message) != 2 + ("reasoning_content" in message) + ("tool_calls" in message):
        raise _Unkind
    reasoning = "reasoning_content" in message
    if reasoning:
        if not _text(message["reasoning_content"]):
            raise _Unkind
        held.values.append(message["reasoning_content"])
        held.texts.append(message["reasoning_content"])
    calls = tuple([_call(call, held, bare) for call in message["tool_calls"]]) if "tool_calls" in message else ()
    return Kind(role, bool(content), reasoning, calls)


def _answer(message: Message, content: bool, asked: list[str]) -> Kind:
    given, name = message["tool_call_id"], message.get("name")
    if len(message) != 3 + ("name" in message) or given not in asked:
        raise _Unkind
    return Kind("tool", content, answers=asked.index(given), name=_text(name) if "name" in message else None)


def _call(call: Any, held: Values, bare: Callable[[Any, str], str] | None) -> CallKind:
    function, given = call["function"], call.get("id")
    name, arguments = function["name"], function["arguments"]
    if type(call) is not dict or type(function) is not dict or len(function) != 2:
        raise _Unkind
    if len(call) != 1 + ("id" in call) + ("type" in call) or given == "":
        raise _Unkind
    if given is not None:
        held.values.append(_text(given))
        held.texts.append(given)
    is_text, keys = type(arguments) is str, None
    if bare is None:
        held.values.append(_checked(arguments) if is_text else _written(arguments))
    else:
        keys = _keys(_loaded(arguments) if is_text else arguments, held, bare)
    return CallKind(_text(name), "id" in call, _text(call["type"]) if "type" in call else None, is_text, keys)


def _text(value: Any) -> str:
    if type(value) is not str:
        raise _Unkind
    return value


def _keys(arguments: Any, held: Values, bare: Callable[[Any, str], str]) -> tuple[str, ...]:
    """The names of arguments that stand by themselves; what stands there is added to the values."""
    if type(arguments) is not dict:
        raise _Unkind
    for value in arguments.values():
        try:
            held.values.append(bare(value, ""))
        except MessageError as error:
            raise _Unkind from error
        if isinstance(value, str):
            held.texts.append(value)
    return tuple(map(_text, arguments))


def _checked(arguments: str) -> str:
    """Arguments that are JSON text, without white space around them."""
    _loaded(arguments)
    if arguments.strip() != arguments:
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
    if type(arguments) is not dict or not all(type(key) is str for key in arguments):
        raise _Unkind
    try:
        return to_json(arguments)
    except MessageError as error:
        raise _Unkind from error


def stand_ins(key: Key) -> tuple[list[Message], list[bool]]:
    """A conversation of these kinds whose values are told apart, and which of them are JSON."""
    is_json: list[bool] = []

    def text() -> str:
        is_json.append(False)
        return f"niels-{len(is_json) - 1}-gpt"

    made: list[Message] = []
    ids: list[str] = []
    for kind in key:
        if isinstance(kind, str):
            made.append({"role": kind, "content": text()})
            continue
        message: Message = {"role": kind.role, "content": text() if kind.content else ""}
        if kind.answers is not None:
            message["tool_call_id"] = ids[kind.answers]
        if kind.name is not None:
            message["name"] = kind.name
        if kind.reasoning:
            message["reasoning_content"] = text()
        if kind.calls:
            message["tool_calls"] = [_stand_in_call(call, text, is_json) for call in kind.calls]
            ids = [call.get("id", "") for call in message["tool_calls"]]
        made.append(message)
    return made, is_json


def _stand_in_call(kind: CallKind, text: Callable[[], str], is_json: list[bool]) -> Any:
    call: dict[str, Any] = {"id": text()} if kind.has_id else {}
    if kind.type is not None:
        call["type"] = kind.type
    if kind.keys is None:
        arguments: dict[str, Any] = {text(): 1}
        is_json[-1] = True
    else:
        arguments = {key: text() for key in kind.keys}
    call["function"] = {"name": kind.name, "arguments": to_json(arguments) if kind.is_text else arguments}
    return call


def spells_stand_in(*texts: str) -> bool:
    """A name of a tool, or the like, which is no value, looks like one."""
    return any(STAND_IN.search(text) for text in texts)


def found_in(text: str, is_json: Sequence[bool]) -> list[int] | None:
    """The values whose stand-ins a text holds; `None`: one of them stands there in another clothing than its own."""
    found = []
    for stand_in in STAND_IN.finditer(text):
        as_json = stand_in[1] is not None
        at = int(stand_in[1] if as_json else stand_in[2])
        if is_json[at] != as_json:
            return None
        found.append(at)
    return found
