"""A conversation as grammars read it: normalised, checked, with the questions that formats ask of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from niels_gpt.errors import MessageError
from niels_gpt.forks import cached_property
from niels_gpt.kernel import native
from niels_gpt.messages import Message, check_text, normalise, reasoning_of, with_reasoning_apart

if TYPE_CHECKING:
    from niels_gpt.renderers.tools import Tools

TEXT_PARTS = ("text", "input_text", "output_text")


class Call(NamedTuple):
    """A tool call: the function's name, its arguments as JSON text or as an object, and its id ("" if it has none).

    It is call `number` of message `msg`.
    """

    name: str
    arguments: str | dict[str, Any]
    id: str
    msg: int
    number: int

    @property
    def where(self) -> str:
        """What errors call its function."""
        return f"message {self.msg}: tool_calls.{self.number}.function"

    @property
    def json(self) -> str:
        """The arguments as JSON text; given text stays as it is.

        Raises:
            MessageError: the text is not JSON (`wrong_arguments`).
        """
        if isinstance(self.arguments, str):
            kernel = native()
            if kernel is None or not kernel.is_json(self.arguments):
                self._loaded(self.arguments)
            return self.arguments
        return to_json(self.arguments, self.where + ".arguments")

    @property
    def items(self) -> Mapping[str, Any]:
        """The arguments as an object.

        Raises:
            MessageError: they are text that is not a JSON object (`wrong_arguments`).
        """
        held = self._loaded(self.arguments) if isinstance(self.arguments, str) else self.arguments
        if not isinstance(held, dict):
            raise self._wrong(f"JSON {type(held).__name__}", "an object")
        return held

    def _loaded(self, text: str) -> Any:
        try:
            held = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise self._wrong(f"{text[:40]!r} ({error})", "JSON") from error
        if "\\u" in text:  # an escape may spell half a surrogate pair
            to_json(held, self.where + ".arguments")
        return held

    def _wrong(self, found: str, expected: str) -> MessageError:
        return MessageError(
            "wrong_arguments", f"{self.where}.arguments is {found}; expected {expected}. Repair the call"
        )


class Chat:
    """Messages, the tools of the turn, and what lies where.

    Args:
        messages: as the caller gave them.
        allowed: the roles that the format has a place for.
        name: of the format, for errors.
        after_call: the messages follow an assistant's turn that is not among them and may have called tools.

    Raises:
        MessageError: a message is malformed, or has no place in the format; as `normalise` and `check_roles`.

    Attributes:
        given: the messages, normalised; those that are made of texts alone are the caller's own.
        messages: the same; what an assistant's thinking parts hold stands in `reasoning_content`.
        roles: of each message.
        tools: in the shape of the OpenAI chat format, `None` if there are none.
        prompted: the generation prompt follows the last message.
    """

    tools: Tools | None = None

    def __init__(
        self, messages: Sequence[Message], allowed: tuple[str, ...], name: str, *, after_call: bool = False
    ) -> None:
        kernel = native()
        roles: list[str] | None = None
        if kernel is not None and type(messages) is list:
            roles = kernel.plain_roles(messages, allowed)
        if roles is not None:  # texts alone: there is nothing to repair, so nothing to copy
            self.roles, self.given = roles, [*messages]
            self.messages = self.given
        else:
            self.given = normalise(messages)
            check_roles(self.given, allowed, format_name=name, after_call=after_call)
            self.roles = [message["role"] for message in self.given]
            self.messages = [with_reasoning_apart(message, index) for index, message in enumerate(self.given)]
        self.prompted = False
        self._last_query = -1  # not looked for yet

    def text(self, index: int) -> str:
        """The content as one text.

        Raises:
            MessageError: a part is not text (`unsupported_content`).
        """
        content = self.messages[index]["content"]
        if isinstance(content, str):
            return content
        return "".join(self.text_of(part, index, number) for number, part in enumerate(content))

    def text_of(self, part: Mapping[str, Any], index: int, number: int, *, beside: str = "") -> str:
        """The text of one part of a content; `beside` is what else might have stood there.

        Raises:
            MessageError: it is not text (`unsupported_content`).
        """
        text = part.get("text")
        if part.get("type") not in TEXT_PARTS or not isinstance(text, str):
            raise MessageError(
                "unsupported_content",
                f"message {index}: content.{number} is of type {part.get('type')!r}; expected a text part "
                f"{{'type': 'text', 'text': ...}}{beside}, which is all that a message of role "
                f"{self.roles[index]!r} may hold in this format",
            )
        return text

    def is_plain(self, index: int) -> bool:
        """The message is nothing but a role and a text, as most are."""
        message = self.messages[index]
        return len(message) == 2 and type(message["content"]) is str

    def reasoning(self, index: int) -> str | None:
        """What an assistant message keeps apart as its reasoning; `None` if it has none."""
        return reasoning_of(self.messages[index])

    def calls(self, index: int) -> list[Call]:
        """The tool calls of an assistant message."""
        made: list[Call] = []
        for number, call in enumerate(self.messages[index].get("tool_calls") or ()):
            function = call["function"]
            made.append(Call(function["name"], function["arguments"], call.get("id", ""), index, number))
            if not function["name"]:
                raise MessageError("missing_field", f"{made[-1].where}.name is empty; name the function")
        return made

    def calls_before(self, index: int) -> int:
        """How many calls earlier messages make."""
        return sum(len(message.get("tool_calls") or ()) for message in self.messages[:index])

    @cached_property
    def last_user(self) -> int:
        """The index of the last message of the user, -1 if there is none."""
        return len(self.roles) - 1 - self.roles[::-1].index("user") if "user" in self.roles else -1

    @property
    def last_query(self) -> int:
        """The last user message that is no tool result in a user's clothes; the last message if there is none."""
        if self._last_query < 0:
            at = last = len(self.roles) - 1
            while at >= 0 and not (self.roles[at] == "user" and not self._is_result(at)):
                at -= 1
            self._last_query = at if at >= 0 else last
        return self._last_query

    @cached_property
    def last_answer(self) -> int:
        """The last assistant message that calls no tool, -1 if there is none."""
        answers = (i for i, role in enumerate(self.roles) if role == "assistant" and not self.calls(i))
        return max(answers, default=-1)

    def _is_result(self, index: int) -> bool:
        text = self.text(index)
        return text.startswith("<tool_response>") and text.endswith("</tool_response>")

    def begins_run(self, index: int) -> bool:
        """No message with the same role stands right before this one."""
        return index == 0 or self.roles[index - 1] != self.roles[index]

    def ends_run(self, index: int) -> bool:
        """No message with the same role stands right behind this one."""
        return index + 1 == len(self.roles) or self.roles[index + 1] != self.roles[index]


def _writer() -> Callable[[Any], str]:
    """`encode` of this encoder, which makes a writer anew for each value: for a call's arguments most of its time."""
    made = json.JSONEncoder(ensure_ascii=False)
    make: Any = getattr(json.encoder, "c_make_encoder", None)  # other Pythons have none
    if make is None:
        return made.encode
    write = make(None, made.default, json.encoder.encode_basestring, None, ": ", ", ", False, False, True)
    return lambda value: "".join(write(value, 0))


_write = _writer()


def to_json(value: Any, where: str = "a tool") -> str:
    """JSON as templates' `tojson` writes it in Transformers: not escaped, in the order given.

    Raises:
        MessageError: naming `where`: not JSON, or a text that no encoding can write.
    """
    kernel = native()
    quick: str | None = None if kernel is None else kernel.json_text(value)
    if quick is not None:
        return quick
    try:
        text = _write(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise MessageError(
            "wrong_type", f"{where} is not JSON: {error}; expected objects, lists, texts, numbers"
        ) from error
    try:
        check_text(text)
    except MessageError as error:
        raise MessageError(error.reason, f"{where} holds {error}") from error
    return text


def check_roles(
    messages: Sequence[Message], roles: Collection[str], *, format_name: str, after_call: bool = False
) -> None:
    """Check that a format has a place for every message.

    Args:
        after_call: the messages follow an assistant's turn that is not among them and may have called tools.

    Raises:
        MessageError: naming message and field. Reasons: `unknown_role`, `unsupported_field` (tool calls of a message
            that is not the assistant's), `tool_without_call`.
    """
    # The ids of the calls that wait for results, "" for one that has none; `None`: no call has been made.
    asked: set[str] | None = {""} if after_call else None
    for index, message in enumerate(messages):
        role = message["role"]
        if len(message) == 2 and role != "tool" and role in roles:  # nothing but a text
            asked = None
            continue
        if role not in roles:
            raise MessageError(
                "unknown_role", f"message {index}: role is {role!r}; expected one of {', '.join(roles)} ({format_name})"
            )
        if role == "assistant":
            calls = message.get("tool_calls")
            asked = {call.get("id", "") for call in calls} if calls else None
        elif message.get("tool_calls"):
            raise MessageError(
                "unsupported_field", f"message {index}: tool_calls in a {role} message; only the assistant calls tools"
            )
        elif role == "tool":
            _check_answer(message, index, asked)
        else:
            asked = None


def _check_answer(message: Message, index: int, asked: set[str] | None) -> None:
    if asked is None:
        raise MessageError(
            "tool_without_call",
            f"message {index}: a tool result, but the assistant turn before it calls no tool; add its tool_calls or "
            "drop the row",
        )
    given = message.get("tool_call_id")
    if given is not None and "" not in asked and given not in asked:
        raise MessageError(
            "tool_without_call",
            f"message {index}: tool_call_id is {given!r}; expected one of the calls before it: {sorted(asked)}",
        )
