"""Values that are found again in what a grammar writes, if it writes them as they are.

There are stand-ins for a text, a text that is written as JSON, arguments that `to_json` writes, and arguments that were
text already. None of them is the same once it is quoted, escaped, sorted, or parsed and written again: what a format
does so with is no value that could be filled in.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from niels_gpt.messages import Message
from niels_gpt.renderers.chat import to_json
from niels_gpt.renderers.kinds import CallKind, Key

_AS_TEXT = 'niels-gpt-# "é\\<&>\n".'
_AS_QUOTED = to_json(f" {_AS_TEXT} ")  # white space at its ends is in the quotes, where nobody else looks for it
_AS_OBJECT = '{"niels-gpt-#": "é", "a": 1}'
_AS_JSON = '{"niels-gpt-#":"é","a":1}'
_FORMS = (_AS_TEXT, _AS_QUOTED, _AS_OBJECT, _AS_JSON)
STAND_IN = re.compile("|".join(re.escape(form).replace(re.escape("#"), r"\d+") for form in _FORMS))
_MARK = "niels-gpt-"


def stand_ins(key: Key, *, quoted: bool = False, around: str = "") -> tuple[list[Message], dict[str, int]]:
    """A conversation of these kinds whose values are told apart, and the number of each stand-in.

    Args:
        around: white space at both ends of contents and of reasoning.
    """
    made: dict[str, int] = {}

    def new(form: str = _AS_TEXT) -> str:
        stand_in = form.replace("#", str(len(made)))
        made[stand_in] = len(made)
        return stand_in

    messages: list[Message] = []
    ids: list[str] = []
    for kind in key:
        if isinstance(kind, str):
            messages.append({"role": kind, "content": around + new() + around})
            continue
        is_json = quoted and kind.answers is not None
        content = "" if not kind.content else json.loads(new(_AS_QUOTED)) if is_json else around + new() + around
        message: Message = {"role": kind.role, "content": content}
        if kind.answers is not None:
            message["tool_call_id"] = ids[kind.answers]
        if kind.name is not None:
            message["name"] = kind.name
        if kind.reasoning:
            message["reasoning_content"] = around + new() + around
        if kind.calls:
            message["tool_calls"] = [_stand_in_call(call, new) for call in kind.calls]
            ids = [call.get("id", "") for call in message["tool_calls"]]
        messages.append(message)
    return messages, made


def _stand_in_call(kind: CallKind, new: Callable[..., str]) -> Any:
    call: dict[str, Any] = {"id": new()} if kind.has_id else {}
    if kind.type is not None:
        call["type"] = kind.type
    if kind.keys is None:
        stand_in = new(_AS_JSON if kind.is_text else _AS_OBJECT)
        arguments = stand_in if kind.is_text else json.loads(stand_in)
    else:
        bare = {key: new() for key in kind.keys}
        arguments = to_json(bare) if kind.is_text else bare
    call["function"] = {"name": kind.name, "arguments": arguments}
    return call


def spells_stand_in(*texts: str) -> bool:
    """A name of a tool, or the like, which is no value, looks like one."""
    return any(_MARK in text.lower() for text in texts)


def found_in(text: str, made: Mapping[str, int]) -> list[int] | None:
    """The values whose stand-ins a text holds; `None`: one of them stands there in another clothing than its own."""
    if spells_stand_in(STAND_IN.sub("", text)):
        return None
    found = [made.get(stand_in, -1) for stand_in in STAND_IN.findall(text)]
    return None if -1 in found else found
