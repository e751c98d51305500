"""Which fields of a conversation a renderer leaves out without an error.

A family writes what its official template writes, and a template ignores fields that its format has no place for:
Llama 3 has none for `reasoning_content`, DeepSeek V3 none for `tools`. The ids are right, and data is lost. Whether a
renderer writes a field is found by rendering two short conversations that differ in this field alone: equal ids mean
that it does not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from niels_gpt.errors import MessageError, TemplateError
from niels_gpt.messages import Message, reasoning_of, with_reasoning_apart


class _Renderer(Protocol):
    def render(self, messages: Any, *, tools: Any = None) -> Any: ...


class UnsupportedField(NamedTuple):
    """A field that a renderer does not write: its name, and the index of its message (-1: `tools`, of none)."""

    name: str
    message: int

    def __str__(self) -> str:
        return self.name if self.message < 0 else f"message {self.message}: {self.name}"


class _Case(NamedTuple):
    """What a renderer's treatment of a field may depend on."""

    field: str
    role: str = "assistant"
    calls: bool = False
    content: bool = True
    tools: bool = False


class UnsupportedFields:
    """Finds the fields that one renderer does not write. Each case is tried once, when a conversation first needs it.

    Found are `reasoning_content`, `tool_calls`, the `content` beside them and `name` of messages, and `tools`. Not
    found is what a format writes in some places only: reasoning that is dropped from history counts as written. A
    field that the renderer refuses with an error is not found either: rendering the conversation raises that error.
    """

    def __init__(self, renderer: _Renderer) -> None:
        self._renderer = renderer
        self._known: dict[_Case, bool] = {}

    @property
    def writes_reasoning(self) -> bool:
        """The `reasoning_content` of an answer is written, at least where it is the last message."""
        return self._writes(_Case("reasoning_content"))

    def of(self, messages: Sequence[Message], tools: Any = None) -> list[UnsupportedField]:
        """The fields of a conversation that are not written.

        Args:
            messages: normalised, see `messages.normalise`.
        """
        offered = tools is not None and len(tools) > 0
        found = [] if not offered or self._writes(_Case("tools")) else [UnsupportedField("tools", -1)]
        for index, message in enumerate(messages):
            if len(message) > 2 or not isinstance(message["content"], str):  # more than a role and a text
                cases = _cases(with_reasoning_apart(message, index), offered)
                found += [UnsupportedField(case.field, index) for case in cases if not self._writes(case)]
        return found

    def _writes(self, case: _Case) -> bool:
        if case not in self._known:
            self._known[case] = self._tried(case)
        return self._known[case]

    def _tried(self, case: _Case) -> bool:
        for lead in ([], [_SYSTEM]):
            for tail in ([], [_RESULT, _ANSWER]) if case.calls or case.field == "tool_calls" else ([],):
                try:
                    one, other = (self._ids(lead, case, value, tail) for value in ("alpha", "omega"))
                except (MessageError, TemplateError):  # the format refuses this conversation, perhaps not the next
                    continue
                return one != other
        return True

    def _ids(self, lead: list[Any], case: _Case, value: str, tail: list[Any]) -> list[int]:
        offered = [_tool(value if case.field == "tools" else "look")] if case.tools or case.field == "tools" else None
        rendered = self._renderer.render([*lead, *_messages(case, value), *tail], tools=offered)
        return list(rendered.token_ids)


def _cases(message: Message, tools: bool) -> Iterator[_Case]:
    role = message["role"]
    if message.get("name") and role != "tool":  # a result's name only says which call it answers
        yield _Case("name", role)
    if role != "assistant":
        return
    calls, content = bool(message.get("tool_calls")), bool(message["content"])
    if reasoning_of(message):
        yield _Case("reasoning_content", calls=calls, content=content, tools=tools)
    if calls:
        yield _Case("tool_calls", content=content, tools=tools)
        if content:
            yield _Case("content", calls=True, tools=tools)


_SYSTEM = {"role": "system", "content": "system"}
_ANSWER = {"role": "assistant", "content": "answer"}
_ID = "function0"  # nine letters and digits, as Mistral wants them
_RESULT = {"role": "tool", "content": "result", "tool_call_id": _ID}


def _messages(case: _Case, value: str) -> list[dict[str, Any]]:
    """A short conversation that holds the field with this value."""
    question: dict[str, Any] = {"role": "user", "content": "question"}
    if case.role not in ("user", "assistant"):
        return [{"role": case.role, "content": "first", "name": value}, question, _ANSWER]
    answer: dict[str, Any] = {"role": "assistant", "content": "answer" if case.content else ""}
    if case.calls or case.field == "tool_calls":
        told = value if case.field == "tool_calls" else "look"
        function = {"name": told, "arguments": {"place": told}}  # some formats name the function by the call's id
        answer["tool_calls"] = [{"id": _ID, "type": "function", "function": function}]
    if case.field == "name":
        (question if case.role == "user" else answer)["name"] = value
    elif case.field in ("reasoning_content", "content"):
        answer[case.field] = value
    return [question, answer]


def _tool(name: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"place": {"type": "string"}}}
    return {"type": "function", "function": {"name": name, "description": name, "parameters": parameters}}
