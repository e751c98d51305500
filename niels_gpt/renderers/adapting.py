"""Conversations as a format can express them: what serving changes before it renders is changed here in the same way.

::

    developer_as_system   a role that the format lacks            developer -> system
    joined_parts          a content of text parts that the        [{"type": "text", "text": "a"}, {... "b"}] -> "a\\nb"
                          format does not read
    named_ids             ids that must name their function       call_8fa2 -> functions.look:0, in the results too

Each returns new messages where something changes, and how many times it did; families and templates use all three.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any, Final, cast

from niels_gpt.messages import Message

TEXT_PARTS = ("text", "input_text", "output_text")  # the types that a content's text part may have

# The codes of these changes, see `Normalised.changes`.
DEVELOPER_AS_SYSTEM: Final = "developer_as_system"
PARTS_JOINED: Final = "text_parts_joined"
IDS_NAMED: Final = "call_ids_named"

_NAMED_ID = re.compile(r"functions\.(.+):\d+", re.DOTALL)


def developer_as_system(messages: Sequence[Message]) -> tuple[Sequence[Message], int]:
    """The messages with the role system in the place of developer, as llama.cpp's server has them."""
    found = sum(message["role"] == "developer" for message in messages)
    if not found:
        return messages, 0
    return [{**message, "role": "system"} if message["role"] == "developer" else message for message in messages], found


def joined_parts(messages: Sequence[Message], roles: Collection[str]) -> tuple[Sequence[Message], int]:
    """Messages of these roles with one text in the place of text parts, joined by newlines, as vLLM and llama.cpp do.

    Contents with other parts stay as they are.

    Returns:
        The count is of contents with several texts; empty ones are left out.
    """
    if all(isinstance(message["content"], str) for message in messages):  # nearly always
        return messages, 0
    adapted, changed = list[Message](), 0
    for message in messages:
        content = message["content"]
        if not isinstance(content, str) and message["role"] in roles:
            texts = [part.get("text") for part in content if part.get("type") in TEXT_PARTS]
            if len(texts) == len(content) and all(isinstance(text, str) for text in texts):
                filled = [text for text in cast("list[str]", texts) if text]
                changed += len(filled) > 1
                message = {**message, "content": "\n".join(filled)}
        adapted.append(message)
    return adapted, changed


def named_ids(messages: Sequence[Message]) -> tuple[Sequence[Message], int]:
    """The messages with ids that name the function, `functions.NAME:NUMBER`, as Kimi's gateway writes them.

    Calls are numbered through the conversation. A result gets the id of its call: the newest one with its id, else the
    next one of the turn before that has no result yet.

    Returns:
        The count is of calls and results with another id than before.
    """
    adapted, changed, number = list[Message](), 0, 0
    renamed: dict[str, str] = {}
    waiting: list[tuple[str, str]] = []  # names and ids of calls without a result
    for message in messages:
        calls = message.get("tool_calls")
        if message["role"] == "assistant":
            waiting = []
        if calls:
            named = []
            for call in calls:
                old, name = call.get("id", ""), call["function"]["name"]
                match = _NAMED_ID.fullmatch(old)
                new = old if match is not None and match[1] == name else f"functions.{name}:{number}"
                changed += new != old
                renamed[old] = new
                waiting.append((name, new))
                named.append({**call, "id": new})
                number += 1
            message = {**message, "tool_calls": cast("Any", named)}
        elif message["role"] == "tool":
            old = message.get("tool_call_id", "")
            new = renamed.get(old, old) if old else _next_id(message.get("name"), waiting)
            waiting = [one for one in waiting if one[1] != new]
            if new != old:
                changed += 1
                message = {**message, "tool_call_id": new}
        adapted.append(message)
    return (adapted, changed) if changed else (messages, 0)


def _next_id(name: str | None, waiting: Sequence[tuple[str, str]]) -> str:
    of_name = [call_id for called, call_id in waiting if called == name]
    return next(iter(of_name or [call_id for _, call_id in waiting]), "")
