"""`normalise` validates the messages of a conversation and gives them one form.

Every door goes through it: files, Python calls, chat templates, exports. All code after it relies on its result:
`content` is always present, there is no `None` outside of tool arguments, and nothing has a second name::

    {"role": "gpt", "content": None, "reasoning": "hm", "tool_calls": [{"function": {..., "arguments": "{}"}}]}
    ->  {"role": "assistant", "content": NO_CONTENT, "reasoning_content": "hm",
         "tool_calls": [{"function": {..., "arguments": {}}}]}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from niels_gpt.errors import MessageError
from niels_gpt.media import kind_of_file, refuse_media
from niels_gpt.messages import keys
from niels_gpt.messages.calls import call_of_turn, check_strings, is_json, is_text, read_calls
from niels_gpt.messages.loss import read_loss
from niels_gpt.messages.notes import Notes, shown, without_nothing, wrong_type
from niels_gpt.messages.reasoning import read_reasoning
from niels_gpt.messages.tools import read_tools
from niels_gpt.messages.types import NO_CONTENT, Message, NoContent, Normalised, ReadMessages

_BESIDE: Final = ("image", "images", "audio", "audios", "video", "videos")  # fields of a message with media
_ROLES: Final = frozenset({"system", "user", "assistant", "tool"})  # those of messages that need no reading
_TEXTS: Final = frozenset({"content", "reasoning_content", "tool_call_id", "name"})  # fields whose value is a text
_CALL_TEXTS: Final = frozenset({"id", "type"})


def normalise(messages: object) -> list[Message]:
    """Validate the messages of a conversation and return them in the one form that the package uses.

    Aliases get their name here, arguments of calls that are JSON text become objects, keys whose value is `None` or an
    empty list are dropped, but not from tool arguments. `content: None` becomes `NO_CONTENT`, which equals `""`. What
    `docs/messages.md` does not name is retained.

    Args:
        messages: a list of message dicts. It is not changed.

    Returns:
        New dicts, in order; their tool calls and arguments are also copies. `ReadMessages` are returned as they are.

    Raises:
        MessageError: with the index of the message and the field; reasons are in `docs/messages.md`.
    """
    return messages if type(messages) is ReadMessages else read_messages(messages, None)


def read_conversation(messages: object, tools: object = None) -> Normalised:
    """Messages in the form of `normalise`, their tools, and what became of what the caller wrote.

    Args:
        tools: a list of declarations, or JSON text of one.

    Raises:
        MessageError: as `normalise`; `wrong_tools` for tools that cannot be read.
    """
    notes = Notes()
    found = read_messages(messages, notes)
    return Normalised(found, read_tools(tools, notes), notes.changes, notes.unread)  # type: ignore[arg-type]


def read_messages(messages: object, notes: Notes | None) -> list[Message]:
    """As `normalise`; what was read as something else, and what was not read, is noted."""
    if type(messages) is not list and (not isinstance(messages, Sequence) or isinstance(messages, str | bytes)):
        found = shown(messages)
        raise MessageError("messages_not_a_list", f"messages is {found}; expected a list of objects with role, content")
    if not messages:
        raise MessageError("no_messages", "messages is empty; expected at least one message. Drop the row")
    read: list[Any] = []
    for index, message in enumerate(messages):
        # Nearly all messages are a role and a text, and need a copy only. Tested here, because a call of a function for
        # each of them takes longer than the tests.
        if (
            type(message) is dict
            and len(message) == 2
            and type(role := message.get("role")) is str
            and role in _ROLES
            and type(content := message.get("content")) is str
            and (content.isascii() or is_text(content))
        ):
            read.append(message.copy())
        else:
            read.append(_plain_copy(message) or _repaired(message, index, notes))
    return read


# ---- messages in the one form already


def _plain_copy(message: Any) -> Message | None:
    """A copy of a message that needs no reading; `None` for any other message."""
    if type(message) is not dict:
        return None
    copy = message.copy()
    for key, value in message.items():
        # Also here `isascii`: most texts are ASCII, and calling `is_text` for each would take a third of the time.
        if type(value) is str:
            if key == "role":
                if value not in _ROLES:
                    return None
            elif key not in _TEXTS or not (value.isascii() or is_text(value)):
                return None
        elif key == "tool_calls" and type(value) is list and value:
            copy[key] = calls = list(map(_plain_copy_of_call, value))
            if None in calls:
                return None
        elif key == "content":
            if type(value) is not NoContent:
                return None
        elif not (
            (key == "train" and type(value) is bool) or (key == "weight" and type(value) is float and 0 <= value < 9)
        ):
            return None
    return cast("Message", copy) if "role" in copy and "content" in copy else None


def _plain_copy_of_call(call: Any) -> dict[str, Any] | None:
    """A copy of `{"id": ..., "type": ..., "function": {"name": ..., "arguments": {...}}}`; `None` for other calls."""
    if type(call) is not dict or type(call.get("function")) is not dict:
        return None
    copy, function = call.copy(), call["function"].copy()
    copy["function"] = function
    for key, value in call.items():
        if key != "function" and not (key in _CALL_TEXTS and is_text(value)):
            return None
    arguments = function.get("arguments")
    if len(function) != 2 or not is_text(function.get("name")) or type(arguments) is not dict:
        return None
    function["arguments"] = arguments.copy()
    try:
        for key, value in arguments.items():
            # JSON has no other keys than texts.
            if not (is_text(key) and (is_text(value) or is_json(value))):
                return None
    except RecursionError:
        return None
    return copy


# ---- all others


def _repaired(message: Any, index: int, notes: Notes | None) -> Message:
    """A message in the one form.

    Raises:
        MessageError: as `normalise`.
    """
    if not isinstance(message, Mapping):
        raise MessageError(
            "message_not_an_object", f"message {index} is {shown(message)}; expected an object with role, content"
        )
    notes, where = Notes() if notes is None else notes, f"message {index}: "
    # Tool arguments and also unknown keys, which a template may render.
    for key, value in message.items():
        if not (isinstance(value, str) and value.isascii()):  # most values
            check_strings(value, f"{where}{key}")
    has_no_parts = type(message.get("content")) is list and not message["content"]
    fields = without_nothing({**message, "content": ""} if has_no_parts else message)
    fields = _read_role(fields, where, notes)
    fields = _read_parts(fields, where, notes)
    fields = read_reasoning(fields, where, notes)
    if not fields.keys() <= keys.ORDINARY:
        _refuse_meaning(fields, where)
        fields = read_loss(fields, where, notes)
    if "tool_calls" in fields:
        fields["tool_calls"] = read_calls(fields["tool_calls"], where, notes)
    # Without calls, a missing content is an error.
    if "content" not in fields and (not message.keys().isdisjoint(("content", "value")) or "tool_calls" in fields):
        fields["content"] = NO_CONTENT
    for name in ("role", "content"):
        if name not in fields:
            raise MessageError("missing_field", f"{where}{name} is missing; add it or drop the row")
    if not isinstance(fields["content"], str | list):
        raise wrong_type(f"{where}content", fields["content"], "a string")
    for name in ("role", "tool_call_id", "name"):
        if not isinstance(fields.get(name, ""), str):
            raise wrong_type(where + name, fields[name], "a string")
    notes.count_unread("message", fields, keys.MESSAGE)
    return cast("Message", fields)


def _read_role(fields: dict[str, Any], where: str, notes: Notes) -> dict[str, Any]:
    """The message with our name of its role; a turn with `from` and `value`, as ShareGPT has it, as a message.

    Raises:
        MessageError: `unknown_role`: a turn has a role that is none of ShareGPT's.
    """
    is_turn = "from" in fields and "role" not in fields
    if is_turn:
        known, found = keys.TURN_ROLES, fields["from"]
        if not isinstance(found, str) or found not in known:
            raise MessageError(
                "unknown_role",
                f"{where}from is {found!r}; expected one of {', '.join(known)}. Name its role: --roles {found}=user",
            )
        names = {"from": "role", "value": "content"}
        fields = {names.get(key, key): value for key, value in fields.items()}
    role = fields.get("role")
    ours = (keys.TURN_ROLES if is_turn else keys.ROLES).get(role, role) if isinstance(role, str) else role
    if ours == role:
        return fields
    if not is_turn:
        notes.changes["role_renamed"] += 1
    if role == "function_call":
        return fields | {"role": ours, "content": "", "tool_calls": [call_of_turn(fields.get("content"), where)]}
    return fields | {"role": ours}


def _refuse_meaning(fields: Mapping[str, Any], where: str) -> None:
    """Refuse fields that say what a message is or whether it is trained, and that nothing here reads.

    Raises:
        MessageError: the reason is the name of the field; `harmony_message`, `unsupported_media`.
    """
    for name, way_out in keys.REFUSED.items():
        if name in fields and fields[name] not in ("", {}):
            raise MessageError(name, f"{where}{name} is {shown(fields[name])}; expected {way_out}")
    if fields.get("channel") == "analysis" or fields.get("recipient", "all") != "all":
        raise MessageError(
            "harmony_message",
            f"{where}the channel is {shown(fields.get('channel'))} and the recipient {shown(fields.get('recipient'))}, "
            "as Harmony writes them, and it is read as a message; name the format: --format harmony",
        )
    # Media in a field beside the content, as Ollama's interface has images: nothing would read them.
    for name in _BESIDE:
        value = fields.get(name)
        is_media = isinstance(value, Mapping | bytes) or (name.endswith("s") and isinstance(value, str | list))
        is_media = is_media or (isinstance(value, str) and bool(kind_of_file(value)))  # else a text of another meaning
        if is_media and value:
            raise MessageError(
                "unsupported_media",
                f"{where}{name} holds {shown(value)}; expected images in the content, each as "
                '{"type": "image", "image": PATH}, and no audio or video. Put images there, or drop the row',
            )


def _read_parts(fields: dict[str, Any], where: str, notes: Notes) -> dict[str, Any]:
    """The message with the parts of its content without nulls.

    Raises:
        MessageError: `wrong_type`: a part is no object; `unsupported_media`: one is audio or video.
    """
    content = fields.get("content")
    if not isinstance(content, list):
        return fields
    parts = []
    for number, part in enumerate(content):
        if not isinstance(part, Mapping):
            raise wrong_type(f"{where}content.{number}", part, "an object with a type")
        parts.append({key: value for key, value in part.items() if value is not None})
        refuse_media(parts[-1], f"{where}content.{number}")
        # What a part of reasoning has is read with it.
        if part.get("type") not in keys.REASONING_PARTS:
            notes.count_unread("part", parts[-1], keys.PART)
    return fields | {"content": parts}
