"""The input of a grammar: the messages of a conversation, checked and in one form, with its tools and its calls.

`ConversationView` is the argument of every hook of `Family`, `Call` is one tool call. `check_roles` refuses messages
that no grammar has a place for.
"""

from __future__ import annotations

import json
import marshal
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from niels_gpt.errors import MessageError
from niels_gpt.messages import Message, Messages, normalise, reasoning_of
from niels_gpt.messages.notes import Notes
from niels_gpt.messages.tools import Tools, read_tools, to_json
from niels_gpt.renderers.adapting import (
    DEVELOPER_AS_SYSTEM,
    IDS_NAMED,
    PARTS_JOINED,
    TEXT_PARTS,
    developer_as_system,
    joined_parts,
    named_ids,
)


class ConversationView:
    """A conversation as grammars read it.

    Args:
        messages: as the caller gave them.
        allowed: the roles that the format can express.
        name: the format's name, for errors.
        tools: as the caller gave them; see `tools_of`.
        after_call: the messages follow an assistant's turn that is not among them and may have called tools (a bridge).
        parts: the roles whose contents may be parts, which the format writes one after the other.
        names_in_ids: the id of a call must name its function.

    Raises:
        MessageError: a message is malformed, or has no place in the format; as `normalise`, `check_roles`, `tools_of`.

    Attributes:
        normalised: the messages in one form, copies of the caller's.
        messages: the same as the format can express them (`adapting.py`).
        changes: code -> how many times something is otherwise in `messages`, see `Normalised.changes`.
        roles: the role of each message.
        tools: in the shape of the OpenAI chat format, `None` if there are none.
        has_generation_prompt: the generation prompt follows the last message.
        as_produced: write the messages before the last one as they were when it was produced; see `Family.as_produced`.
        is_extension: as `after_call`: earlier messages exist and are not among these.
    """

    def __init__(
        self,
        messages: Messages,
        allowed: tuple[str, ...],
        name: str,
        tools: Any = None,
        *,
        after_call: bool = False,
        parts: Collection[str] = (),
        names_in_ids: bool = False,
    ) -> None:
        self.normalised = normalise(messages)
        self.changes: dict[str, int] = {}
        read: Sequence[Message] = self.normalised
        self.roles = [message["role"] for message in read]
        if "developer" in self.roles and "developer" not in allowed and "system" in allowed:
            read = self._changed(DEVELOPER_AS_SYSTEM, developer_as_system(read))
            self.roles = [message["role"] for message in read]
        check_roles(read, allowed, format_name=name, after_call=after_call)
        # Most conversations hold texts alone.
        if len(parts) < len(allowed) and list in [type(message["content"]) for message in read]:
            read = self._changed(PARTS_JOINED, joined_parts(read, [role for role in allowed if role not in parts]))
        if names_in_ids:
            read = self._changed(IDS_NAMED, named_ids(read))
        self.messages = read
        self.tools = tools_of(tools)
        self.has_generation_prompt, self.as_produced, self.is_extension = False, False, after_call

    def _changed(self, code: str, adapted: tuple[Sequence[Message], int]) -> Sequence[Message]:
        messages, count = adapted
        if count:
            self.changes[code] = count
        return messages

    # ---- one message

    def text(self, index: int) -> str:
        """The content as one text.

        Raises:
            MessageError: a part is not text (`unsupported_content`).
        """
        content = self.messages[index]["content"]
        if isinstance(content, str):
            return content
        return "".join(self.text_of(part, index, number) for number, part in enumerate(content))

    def text_of(self, part: Mapping[str, Any], index: int, number: int, *, or_else: str = "") -> str:
        """The text of one part of a content; `or_else` names in errors what else the part may be.

        Raises:
            MessageError: it is not text (`unsupported_content`).
        """
        text = part.get("text")
        if part.get("type") not in TEXT_PARTS or not isinstance(text, str):
            raise MessageError(
                "unsupported_content",
                f"message {index}: content.{number} is of type {part.get('type')!r}; expected a text part "
                f"{{'type': 'text', 'text': ...}}{or_else}, which is all that a message of role "
                f"{self.roles[index]!r} may hold in this format",
            )
        return text

    def is_text_only(self, index: int) -> bool:
        """Whether the message has only a role and a string as content, as most do."""
        message = self.messages[index]
        return len(message) == 2 and type(message["content"]) is str

    def reasoning(self, index: int) -> str | None:
        """The reasoning of an assistant message; `None` if it has none."""
        return reasoning_of(self.messages[index])

    def calls(self, index: int) -> list[Call]:
        """The tool calls of an assistant message.

        Raises:
            MessageError: a function without a name (`missing_field`).
        """
        calls: list[Call] = []
        written = self.messages[index].get("tool_calls")
        if not written:  # most messages
            return calls
        for number, call in enumerate(written):
            function = call["function"]
            calls.append(Call(function["name"], function["arguments"], call.get("id", ""), index, number))
            if not function["name"]:
                raise MessageError("missing_field", f"{calls[-1].where}.name is empty; name the function")
        return calls

    # ---- the first message

    @property
    def has_system(self) -> bool:
        """Whether the first message is a system message."""
        return self.roles[0] == "system"

    @property
    def system_owner(self) -> int:
        """The message that a block at the beginning belongs to: 0 if that is a system message, else -1 for none."""
        return 0 if self.roles[0] == "system" else -1

    # ---- its place in the conversation

    def is_produced(self, index: int) -> bool:
        """Whether the message is the one being produced: the last one, with no generation prompt after it."""
        return index == len(self.roles) - 1 and not self.has_generation_prompt

    def is_first_of_run(self, index: int) -> bool:
        """Whether the message before this one has another role."""
        return index == 0 or self.roles[index - 1] != self.roles[index]

    def is_last_of_run(self, index: int) -> bool:
        """Whether the message after this one has another role."""
        return index + 1 == len(self.roles) or self.roles[index + 1] != self.roles[index]

    @cached_property
    def last_user(self) -> int:
        """The index of the last user message, -1 if there is none."""
        # Roles U A U A: reversed, the first user is at 1, and 4 - 1 - 1 = 2.
        return len(self.roles) - 1 - self.roles[::-1].index("user") if "user" in self.roles else -1

    @cached_property
    def last_query(self) -> int:
        """The last user message that is not a tool result between tags; the last message if there is none.

        Formats that write tool results into user turns distinguish the two this way.
        """
        # From the end, as the templates do; in most conversations the last user message is one already.
        at = last = len(self.roles) - 1
        while at >= 0 and not (self.roles[at] == "user" and not is_tool_result(self.text(at))):
            at -= 1
        return at if at >= 0 else last

    @cached_property
    def last_answer(self) -> int:
        """The last assistant message that calls no tool, -1 for none; with `as_produced` the last before the end."""
        # U A(call) T A: 3, and -1 with `as_produced`, when the answer 3 was not there yet.
        at = len(self.roles) - 1 - self.as_produced
        while at >= 0 and (self.roles[at] != "assistant" or self.messages[at].get("tool_calls")):
            at -= 1
        return at


def is_tool_result(text: str) -> bool:
    """Whether the text of a user message is a tool result between tags."""
    return text.startswith("<tool_response>") and text.endswith("</tool_response>")


def split_thinking(content: str) -> tuple[str, str]:
    """`(reasoning, rest)` of a content that holds its reasoning between think tags, as Qwen's template splits it."""
    # Python finds one character ten times as fast as a word, and most texts have no "<".
    if "<" not in content or "</think>" not in content:
        return "", content
    # "<think>\nA\n</think>\n\nB" gives "A" and "B"; of several blocks the first is the reasoning, and what is after the
    # last one the content. What is before `<think>` is lost, as in the templates.
    parts = content.split("</think>")
    return parts[0].rstrip("\n").split("<think>")[-1].lstrip("\n"), parts[-1].lstrip("\n")


def should_preserve_past_thinking(
    messages: Sequence[Message],
    msg_idx: int,
    *,
    preserve_all_thinking: bool,
    preserve_thinking_between_tool_calls: bool,
) -> bool:
    """Whether an option keeps the reasoning of this message although its template would drop it from history.

    `preserve_thinking_between_tool_calls` keeps it in the current tool cycle: in messages after the last user message,
    if a tool has answered since then. Without a tool result there is no cycle, and the template decides.
    """
    if preserve_all_thinking:
        return True
    if not preserve_thinking_between_tool_calls:
        return False
    # U A T A: messages after 0; with the result 2 among them, 1 and 3 stay. U A: no cycle.
    roles = [message["role"] for message in messages]
    since = len(roles) - roles[::-1].index("user") if "user" in roles else 0
    return msg_idx >= since and "tool" in roles[since:]


def check_roles(
    messages: Sequence[Message], roles: Collection[str], *, format_name: str, after_call: bool = False
) -> None:
    """Check that a format has a place for every message.

    Args:
        after_call: see `ConversationView`.

    Raises:
        MessageError: naming message and field. Reasons: `unknown_role`, `unsupported_field` (tool calls of a message
            that is not the assistant's), `tool_without_call`.
    """
    # The ids of the calls that wait for results, "" for a call without id; `None`: the turn before called no tool.
    waiting: set[str] | None = {""} if after_call else None
    for index, message in enumerate(messages):
        role = message["role"]
        if len(message) == 2 and role != "tool" and role in roles:  # a role and a content, as most messages
            waiting = None
            continue
        if role not in roles:
            raise MessageError(
                "unknown_role", f"message {index}: role is {role!r}; expected one of {', '.join(roles)} ({format_name})"
            )
        if role == "assistant":
            calls = message.get("tool_calls")
            waiting = {call.get("id", "") for call in calls} if calls else None
        elif message.get("tool_calls"):
            raise MessageError(
                "unsupported_field", f"message {index}: tool_calls in a {role} message; only the assistant calls tools"
            )
        elif role == "tool":
            if waiting is None:
                raise MessageError(
                    "tool_without_call",
                    f"message {index}: a tool result, but the assistant turn before it calls no tool; add its "
                    "tool_calls or drop the row",
                )
            # A call without id may be the one that is answered. Ids stay in `waiting`: a call may have several results.
            call_id = message.get("tool_call_id")
            if call_id is not None and "" not in waiting and call_id not in waiting:
                raise MessageError(
                    "tool_without_call",
                    f"message {index}: tool_call_id is {call_id!r}; expected one of the calls before it: "
                    f"{sorted(waiting)}",
                )
        else:
            waiting = None


# ---- calls


class Call(NamedTuple):
    """Call `number` of message `msg`: the function's name, its arguments, and its id ("" if it has none)."""

    name: str
    arguments: Mapping[str, Any]
    id: str
    msg: int
    number: int

    @property
    def where(self) -> str:
        """The place of its function, for errors."""
        return f"message {self.msg}: tool_calls.{self.number}.function"

    @property
    def json(self) -> str:
        """The arguments as JSON text.

        Raises:
            MessageError: they are not JSON (`wrong_type`).
        """
        return to_json(self.arguments, self.where + ".arguments")


# ---- tools


# Most conversations of a dataset offer the same few tools, and reading and writing these takes longer than the rest of
# a short conversation. The keys are by `marshal`, which tells 1, 1.0 and True apart, and the order of keys.
_READ: dict[bytes, Tools] = {}
_MOST_READ = 1024


def tools_of(tools: Any) -> Tools | None:
    """What a caller passed as tools, as `Tools`; `None` for none.

    Raises:
        MessageError: as `read_tools`; or as `Tools`.
    """
    if tools is None or (type(tools) is Tools and tools.as_read):
        return tools
    try:
        key = marshal.dumps(tools, 2)  # later versions of marshal write equal values in several ways
    except ValueError:  # they hold something else than Python's own types
        key = b""
    found = _READ.get(key)
    if found is None:
        # A copy, which the caller cannot change. Not what `marshal` reads back as another value: numpy's numbers, of
        # which it makes bytes.
        copy = marshal.loads(key) if key else None
        is_same = type(tools) is list and copy == tools
        found = read_tools(copy if is_same else tools, Notes())
        if is_same and found is not None:
            # All at once: a dataset with more sets of tools than this has few that come again, and an order of use
            # would cost each of the others.
            if len(_READ) >= _MOST_READ:
                _READ.clear()
            _READ[key] = found
    return found


def as_mapping(value: Any) -> Mapping[str, Any]:
    """A part of a tool's schema that should be an object; an empty one in the place of anything else."""
    return value if type(value) is dict or isinstance(value, Mapping) else {}  # the second test takes ten times as long


# ---- JSON


def sorted_json(value: Any) -> str:
    """JSON without blanks, its keys sorted at every level; `value` is one that `to_json` takes."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
