"""What a template reads of a conversation, asked once with stand-ins; conversations are adapted to the answers.

A template may not know the role developer, or print a content in parts as Python does, or leave it out. Servers join
the text parts and write the role as system before they render, so that is done here, too (`renderers/adapting.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from niels_gpt.errors import MessageError
from niels_gpt.messages import Message
from niels_gpt.renderers.adapting import (
    DEVELOPER_AS_SYSTEM,
    IDS_NAMED,
    PARTS_JOINED,
    developer_as_system,
    joined_parts,
    named_ids,
)

_FIRST, _SECOND, _ID, _NAME = "first half", "second half", "id0000001", "lookup"  # an id as Mistral wants them
_PARTS: Final = [{"type": "text", "text": _FIRST}, {"type": "text", "text": _SECOND}]
_QUESTION: Final[Any] = {"role": "user", "content": "question"}
_ANSWER: Final[Any] = {"role": "assistant", "content": "answer"}
_FUNCTION = {"name": _NAME, "arguments": {"place": "here"}}
_CALL: Final[Any] = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"id": _ID, "type": "function", "function": _FUNCTION}],
}
_RESULT: Final[Any] = {"role": "tool", "content": "result", "tool_call_id": _ID, "name": _NAME}
# For each role conversations with one message of it, which is to be in parts. The first that is not refused answers.
_WITH_ROLE: Final[dict[str, tuple[tuple[list[Any], int], ...]]] = {
    "system": (([{"role": "system", "content": "s"}, _QUESTION, _ANSWER], 0),),
    "user": (([_QUESTION, _ANSWER], 0),),
    "assistant": (([_QUESTION, _ANSWER], 1),),
    "tool": (([_QUESTION, _CALL, _RESULT, _ANSWER], 2), ([_QUESTION, _CALL, _RESULT], 2)),
}


@dataclass
class Reads:
    """The answers of one template.

    Args:
        text: its output on messages.
    """

    text: Callable[[Sequence[Message]], str]
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

    def _asked(self, what: str) -> bool:
        if what not in self._answers:
            self._answers[what] = self._ask(what)
        return self._answers[what]

    def _ask(self, what: str) -> bool:
        """Whether the template writes the role developer; parts of a role; calls by an id in the place of a name."""
        if what == "developer":
            return _FIRST in self._text([{"role": "developer", "content": _FIRST}, _QUESTION, _ANSWER])
        if what == "ids":
            text = self._text([_QUESTION, _CALL])
            return _ID in text and _NAME not in text
        for messages, index in _WITH_ROLE.get(what, ()):
            whole = [*messages]
            whole[index] = {**messages[index], "content": f"{_FIRST} {_SECOND}"}
            if not self._text(whole):  # refused, or only read in parts
                continue
            whole[index] = {**messages[index], "content": _PARTS}
            text = self._text(whole)
            between = text.partition(_FIRST)[2].partition(_SECOND)
            return bool(between[1]) and "type" not in between[0]  # Python prints {'type': 'text', 'text': ...}
        return True  # one that no text helps, or a role that is not known here

    def _text(self, messages: list[Any]) -> str:
        try:
            return self.text(messages)
        except MessageError:  # the template refuses it
            return ""
