"""What a template reads of a conversation, asked once with short conversations; messages are adapted to the answers.

A template may not know the role developer, print a content in parts as Python does, or take arguments as JSON text
alone. Servers also join the text parts and write the role as system before they render, so that is done here
(`renderers/adapting.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import Any, Final, cast

from niels_gpt.errors import MessageError
from niels_gpt.messages import Message, NoContent
from niels_gpt.messages.tools import to_json
from niels_gpt.renderers.adapting import (
    DEVELOPER_AS_SYSTEM,
    IDS_NAMED,
    PARTS_JOINED,
    developer_as_system,
    joined_parts,
    named_ids,
)
from niels_gpt.renderers.template.controls import REASONING_FIELDS

_FIRST, _SECOND, _ID, _NAME = "first half", "second half", "id0000001", "lookup"  # an id as Mistral wants them
_PARTS: Final = [{"type": "text", "text": _FIRST}, {"type": "text", "text": _SECOND}]
_SYSTEM, _QUESTION, _ANSWER = ({"role": role, "content": role} for role in ("system", "user", "assistant"))
_RESULT: Final = {"role": "tool", "content": "result", "tool_call_id": _ID, "name": _NAME}
_OBJECT: Final = {"place": "here"}


def _call(arguments: Any) -> dict[str, Any]:
    call = {"id": _ID, "type": "function", "function": {"name": _NAME, "arguments": arguments}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


# For each role conversations with one message of it, which is to be in parts. The first that is not refused answers.
_WITH_ROLE: Final[dict[str, tuple[tuple[list[dict[str, Any]], int], ...]]] = {
    "system": (([_SYSTEM, _QUESTION, _ANSWER], 0),),
    "user": (([_QUESTION, _ANSWER], 0),),
    "assistant": (([_QUESTION, _ANSWER], 1),),
    "tool": (([_QUESTION, _call(_OBJECT), _RESULT, _ANSWER], 2), ([_QUESTION, _call(_OBJECT), _RESULT], 2)),
}


@dataclass
class Reads:
    """The answers of one template.

    Args:
        render: its output on messages as they are.
    """

    render: Callable[[list[dict[str, Any]]], str]
    _answers: dict[str, bool] = field(default_factory=dict)

    def adapted(self, messages: Sequence[Message]) -> tuple[Sequence[Message], dict[str, int]]:
        """The messages as the template can express them, and what is changed; see `Normalised.changes`."""
        changes: dict[str, int] = {}
        if any(message["role"] == "developer" for message in messages) and not self._asked("developer"):
            messages, changes[DEVELOPER_AS_SYSTEM] = developer_as_system(messages)
        in_parts = {message["role"] for message in messages if not isinstance(message["content"], str)}
        unread = [role for role in sorted(in_parts) if not self._asked(role)] if in_parts else []
        if unread:
            messages, changes[PARTS_JOINED] = joined_parts(messages, unread)
        if any(message.get("tool_calls") for message in messages) and self._asked("ids"):
            messages, changes[IDS_NAMED] = named_ids(messages)
        return messages, {code: count for code, count in changes.items() if count}

    def given(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """A message as the template gets it: reasoning under every name, and no content that is missing.

        Arguments of calls are JSON text where it takes nothing else.
        """
        if len(message) == 2 and type(message.get("content")) is str:  # most messages
            return cast("dict[str, Any]", message)
        fields = {key: value for key, value in message.items() if type(value) is not NoContent}
        if "tool_calls" in fields and self._takes_text:
            fields["tool_calls"] = [
                {**call, "function": {**call["function"], "arguments": to_json(call["function"]["arguments"])}}
                for call in fields["tool_calls"]
            ]
        reasoning = message.get("reasoning_content")
        return fields if reasoning is None else {**dict.fromkeys(REASONING_FIELDS, reasoning), **fields}

    @cached_property
    def writes_reasoning(self) -> bool:
        """Whether the template writes the reasoning of a last answer."""
        return _FIRST in self._text([_QUESTION, self.given({**_ANSWER, "reasoning_content": _FIRST})])

    @cached_property
    def _takes_text(self) -> bool:
        """Whether it fails on objects as arguments of calls, or writes Python's form of them, and not on text."""
        for lead, tail in product(([], [_SYSTEM]), ([_RESULT, _ANSWER], [])):
            forms = (_OBJECT, to_json(_OBJECT))
            of_object, of_text = (self._text([*lead, _QUESTION, _call(form), *tail]) for form in forms)
            if of_object or of_text:  # else the template refuses this conversation, and the next one may pass
                return bool(of_text) and (not of_object or ("{'place'" in of_object and "{'place'" not in of_text))
        return False

    def _asked(self, what: str) -> bool:
        if what not in self._answers:
            self._answers[what] = self._ask(what)
        return self._answers[what]

    def _ask(self, what: str) -> bool:
        """Whether the template writes the role developer; parts of a role; calls by an id in the place of a name."""
        if what == "developer":
            return _FIRST in self._text([{"role": "developer", "content": _FIRST}, _QUESTION, _ANSWER])
        if what == "ids":
            text = self._text([_QUESTION, self.given(_call(_OBJECT))])
            return _ID in text and _NAME not in text
        for messages, index in _WITH_ROLE.get(what, ()):
            whole = [*map(self.given, messages)]
            whole[index] = {**whole[index], "content": f"{_FIRST} {_SECOND}"}
            if not self._text(whole):  # refused, or only read in parts
                continue
            text = self._text([*whole[:index], {**whole[index], "content": _PARTS}, *whole[index + 1 :]])
            between = text.partition(_FIRST)[2].partition(_SECOND)
            return bool(between[1]) and "type" not in between[0]  # Python prints {'type': 'text', 'text': ...}
        return True  # one that no text helps, or a role that is not known here

    def _text(self, messages: list[dict[str, Any]]) -> str:
        try:
            return self.render(messages)
        except MessageError:  # the template refuses it
            return ""
