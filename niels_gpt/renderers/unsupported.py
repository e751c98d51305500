"""Fields that a format has no place for: refused by its grammar, or left out without an error.

Grammars call the `refuse_*` and `check_*` functions, so every family refuses the same thing with the same message.

Other fields are left out, because a family writes what its official template writes, and a template ignores fields that
its format has no place for: Llama 3 has none for `reasoning_content`, DeepSeek V3 none for `tools`. The ids are right,
but data is lost. `UnsupportedFields` finds such fields for any renderer, without knowing its format: it renders two
short conversations that differ in one field only. Equal ids mean that the field is not written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from niels_gpt.errors import MessageError, TemplateError
from niels_gpt.messages import Message, reasoning_of, with_reasoning_field
from niels_gpt.renderers.conversation import ConversationView
from niels_gpt.renderers.emitter import Emitter
from niels_gpt.renderers.masks import Renders

# ---- fields that a grammar refuses


def refuse_tools(view: ConversationView, format_name: str) -> None:
    """Refuse tools, in a format that has none.

    Raises:
        MessageError: `unsupported_field`.
    """
    if view.tools:
        raise MessageError(
            "unsupported_field", f"tools have no place in the {format_name} format; drop them or the row"
        )


def refuse_calls(view: ConversationView, index: int, format_name: str) -> None:
    """Refuse an assistant's tool calls, in a format that has none.

    Raises:
        MessageError: `unsupported_field`.
    """
    if view.calls(index):
        raise MessageError(
            "unsupported_field", f"message {index}: tool_calls has no place in the {format_name} format; remove it"
        )


def refuse_many_calls(view: ConversationView, index: int, format_name: str) -> None:
    """Refuse an assistant's message with several tool calls, in a format with one call per turn.

    Raises:
        MessageError: `too_many_calls`.
    """
    calls = view.calls(index)
    if len(calls) > 1:
        raise MessageError(
            "too_many_calls",
            f"message {index}: {len(calls)} tool_calls; expected one: a turn of the {format_name} format makes one "
            "call. Make a message of each call, followed by its result",
        )


def refuse_text_beside_calls(view: ConversationView, index: int, format_name: str) -> None:
    """Refuse an assistant's message with a text and calls, in a format whose turns hold one or the other.

    Raises:
        MessageError: `content_beside_calls`.
    """
    content = view.text(index).strip()
    if content:
        raise MessageError(
            "content_beside_calls",
            f"message {index}: content is {content[:40]!r} beside tool_calls; expected none: a turn of the "
            f"{format_name} format is a text or calls. Drop one, or make two messages of it",
        )


def refuse_only_system(view: ConversationView, format_name: str) -> None:
    """Refuse a conversation of one system message, in a format that writes it into a user's turn.

    Raises:
        MessageError: `no_user_message`.
    """
    if view.roles == ["system"]:
        raise MessageError(
            "no_user_message",
            f"message 0: a system message and nothing else; expected a user after it: {format_name} writes it there",
        )


def refuse_late_system(index: int, format_name: str) -> NoReturn:
    """Refuse a system message that is not the first message.

    Raises:
        MessageError: `late_system`, always.
    """
    raise MessageError(
        "late_system",
        f"message {index}: a system message after others; expected at most one, first, in the {format_name} format",
    )


def check_alternates(view: ConversationView, index: int, format_name: str) -> None:
    """Check that users and assistants alternate, a user first.

    Tool results, and turns that call tools, may come between a user and the answer.

    Raises:
        MessageError: `roles_do_not_alternate`.
    """
    # U A(call) T A: for the last A, back over T and A(call) to U.
    role, before = view.roles[index], index - 1
    if role == "assistant":
        while before >= 0 and (view.roles[before] == "tool" or view.calls(before)):
            before -= 1
        fits = before >= 0 and view.roles[before] == "user"
    else:
        answered = before >= 0 and view.roles[before] == "assistant" and not view.calls(before)
        fits = before < 0 or view.roles[before] == "system" or answered
    if not fits:
        found = repr(view.roles[index - 1]) if index else "nothing"
        raise MessageError(
            "roles_do_not_alternate",
            f"message {index}: role is {role!r} after {found}; expected users and assistants by turns, a user first, "
            f"in the {format_name} format",
        )


def refuse_control_tokens(out: Emitter, controls: Mapping[str, int]) -> None:
    """Refuse contents that spell a control token (`special_tokens_in_content="error"`).

    Raises:
        MessageError: naming the message and the token.
    """
    for piece in out.pieces():
        # Scaffold has the template's own control tokens; labels stay text under every option.
        is_content = piece.content and not piece.scaffold
        found = next((text for text in controls if text in piece.text), None) if is_content else None
        if found is not None:
            raise MessageError(
                "control_token_in_content",
                f"message {piece.msg} spells the control token {found!r}; expected none. Remove it, or render with "
                "special_tokens_in_content='text', which keeps it as ordinary text",
            )


# ---- fields that a renderer leaves out


class UnsupportedField(NamedTuple):
    """A field that a renderer does not write: its name, and the index of its message (-1 for `tools`)."""

    name: str
    message: int

    def __str__(self) -> str:
        return self.name if self.message < 0 else f"message {self.message}: {self.name}"


class _Case(NamedTuple):
    """A field in a situation on which a renderer's treatment of it may depend."""

    field: str
    role: str = "assistant"
    calls: bool = False
    content: bool = True
    tools: bool = False


class UnsupportedFields:
    """Finds the fields that one renderer does not write. Each case is tried once, when a conversation first needs it.

    It finds `reasoning_content`, `tool_calls`, the `content` beside them, `name`, and `tools`. It does not find fields
    that a format writes in some places only: reasoning that is dropped from history counts as written. Neither does it
    find fields that the renderer refuses: rendering the conversation raises that error.
    """

    def __init__(self, renderer: Renders) -> None:
        self._renderer = renderer
        self._is_written: dict[_Case, bool] = {}

    @property
    def writes_reasoning(self) -> bool:
        """Whether the `reasoning_content` of an answer is written, at least if it is the last message."""
        return self._writes(_Case("reasoning_content"))

    def of(self, messages: Sequence[Message], tools: Any = None) -> list[UnsupportedField]:
        """The fields of a conversation that the renderer does not write.

        Args:
            messages: normalised, see `messages.normalise`.
        """
        offered = tools is not None and len(tools) > 0
        unsupported = [] if not offered or self._writes(_Case("tools")) else [UnsupportedField("tools", -1)]
        for index, message in enumerate(messages):
            if len(message) > 2 or not isinstance(message["content"], str):  # more than a role and a text
                cases = _cases(with_reasoning_field(message, index), offered)
                unsupported += [UnsupportedField(case.field, index) for case in cases if not self._writes(case)]
        return unsupported

    def _writes(self, case: _Case) -> bool:
        if case not in self._is_written:
            self._is_written[case] = self._try(case)
        return self._is_written[case]

    def _try(self, case: _Case) -> bool:
        # Some formats want a system message first, or an answer after every call: try with and without.
        for lead in ([], [_SYSTEM]):
            for tail in ([], [_RESULT, _ANSWER]) if case.calls or case.field == "tool_calls" else ([],):
                try:
                    one, other = (self._ids(lead, case, value, tail) for value in ("alpha", "omega"))
                except (MessageError, TemplateError):  # the format refuses this conversation; the next one may pass
                    continue
                return one != other
        return True  # all of them are refused, and rendering the conversation itself says why

    def _ids(self, lead: list[Any], case: _Case, value: str, tail: list[Any]) -> list[int]:
        offered = None
        if case.tools or case.field == "tools":
            name = value if case.field == "tools" else "look"
            function = {"name": name, "description": name, "parameters": _PARAMETERS}
            offered = [{"type": "function", "function": function}]
        rendered = self._renderer.render([*lead, *_messages(case, value), *tail], tools=offered)
        return list(rendered.token_ids)


def _cases(message: Message, tools: bool) -> Iterator[_Case]:
    role = message["role"]
    if message.get("name") and role != "tool":  # the name of a tool result only repeats which call it answers
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
_ID = "function0"  # nine letters or digits, as Mistral's ids must be
_RESULT = {"role": "tool", "content": "result", "tool_call_id": _ID}
_PARAMETERS = {"type": "object", "properties": {"place": {"type": "string"}}}


def _messages(case: _Case, value: str) -> list[dict[str, Any]]:
    """A short conversation in which the field has this value."""
    question: dict[str, Any] = {"role": "user", "content": "question"}
    if case.role not in ("user", "assistant"):
        return [{"role": case.role, "content": "first", "name": value}, question, _ANSWER]
    answer: dict[str, Any] = {"role": "assistant", "content": "answer" if case.content else ""}
    if case.calls or case.field == "tool_calls":
        called = value if case.field == "tool_calls" else "look"
        function = {"name": called, "arguments": {"place": called}}  # some formats write no name, some no arguments
        answer["tool_calls"] = [{"id": _ID, "type": "function", "function": function}]
    if case.field == "name":
        (question if case.role == "user" else answer)["name"] = value
    elif case.field in ("reasoning_content", "content"):
        answer[case.field] = value
    return [question, answer]
