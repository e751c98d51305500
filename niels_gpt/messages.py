"""Conversations: their shape, and the one door through which they enter.

A message is a plain dict in the shape of the OpenAI chat format. `normalise` is called once, where data comes in;
everything behind it can rely on the result: no `None` anywhere outside tool arguments, `content` always present.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final, Literal, NotRequired, Required, cast

from pydantic import ConfigDict, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict

from niels_gpt.errors import MessageError
from niels_gpt.kernel import native

# Unknown keys stay: a chat template may read any key of a message.
_KEEP_UNKNOWN = ConfigDict(extra="allow", strict=True)


class ChatMsg(TypedDict):
    """One message of document 000: a role and its text."""

    role: Literal["system", "user", "assistant"]
    content: str


class ChatExample(TypedDict):
    """One conversation of document 000."""

    messages: list[ChatMsg]


class TextPart(TypedDict):
    """A text in a content of several parts."""

    type: Literal["text"]
    text: str


class ThinkingPart(TypedDict):
    """What an assistant thought, in a content of several parts; families read it as the message's reasoning."""

    type: Literal["thinking"]
    thinking: str


class ImagePart(TypedDict, total=False):
    """An image in a content of several parts; one of the fields besides `type` holds it."""

    type: Literal["image", "image_url"]
    image: Any
    url: str
    path: str
    image_url: dict[str, Any]


class VideoPart(TypedDict, total=False):
    """A video in a content of several parts. No family here takes one; it is refused."""

    type: Literal["video", "video_url"]
    video: Any
    url: str
    path: str
    video_url: dict[str, Any]


ContentPart = TextPart | ThinkingPart | ImagePart | VideoPart
Content = str | list[ContentPart]


@with_config(_KEEP_UNKNOWN)
class ToolCallFunction(TypedDict):
    """The function of a tool call; `arguments` stay as they came, JSON text or an object."""

    name: str
    arguments: str | dict[str, Any]


@with_config(_KEEP_UNKNOWN)
class ToolCall(TypedDict):
    """A call that an assistant message makes."""

    function: ToolCallFunction
    id: NotRequired[str]
    type: NotRequired[str]


@with_config(_KEEP_UNKNOWN)
class ToolSpec(TypedDict):
    """A tool that a conversation offers; `function` holds name, description and a JSON schema."""

    function: dict[str, Any]
    type: NotRequired[str]


@with_config(_KEEP_UNKNOWN)
class Message(TypedDict, total=False):
    """One message as the package hands it around, after `normalise`.

    `train` and `weight` say whether, and how much, an assistant message counts in the loss.
    """

    role: Required[str]
    content: Required[str | list[dict[str, Any]]]
    reasoning_content: str
    tool_calls: list[ToolCall]
    tool_call_id: str
    name: str
    train: bool
    weight: float


@dataclass(frozen=True)
class Conversation:
    """A normalised conversation and where it came from (`chats.jsonl:17`).

    Conversations that follow each other with the same `group` stay on one side of the split.

    Attributes:
        changed: codes of what reading it changed (`arrow_nulls_dropped`), by which builds count such rows.
    """

    messages: list[Message]
    where: str = ""
    group: str | None = None
    tools: list[ToolSpec] | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    changed: tuple[str, ...] = ()


@cache
def _adapter() -> TypeAdapter[Message]:
    """Built on first use, so that importing this module costs nothing."""
    return TypeAdapter(Message)


class NoContent(str):
    """The empty content of a message that has none (`None`, or no key): `""` to everyone but a chat template.

    Transformers does not hand such a key to templates, some of which write it otherwise than an empty text, or refuse.
    """

    __slots__ = ()


NO_CONTENT: Final = NoContent()
NOTHING_TRAINED: Final = "nothing_trained"  # the reason of rows of which no token counts
MOST_WEIGHT: Final = 3.4028234663852886e38  # the largest float32; more would be infinite in a mask
REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")
_TEXTS = frozenset({"role", "content", "reasoning_content", "tool_call_id", "name"})  # the fields that are a text


def reasoning_of(message: Message) -> str | None:
    """The reasoning that a message keeps apart, under any of the names in use; `None` if it has none."""
    if len(message) == 2:  # a role and a content: most messages
        return None
    for name in REASONING_FIELDS:
        held = message.get(name)
        if isinstance(held, str):
            return held
    return None


def with_reasoning_apart(message: Message, index: int) -> Message:
    """An assistant's message whose thinking parts stand in `reasoning_content`; any other message as it is.

    A text part without text is left where a thinking part was, so that the numbers of the others stay.

    ::

        content [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "4"}]
        ->      reasoning_content "hm", content [{"type": "text", "text": ""}, {"type": "text", "text": "4"}]

    Raises:
        MessageError: a thinking part holds no text (`wrong_type`), stands behind another part (`late_thinking`), or
            beside other reasoning of the message (`reasoning_twice`).
    """
    content = message["content"]
    if isinstance(content, str) or message["role"] != "assistant" or not any(map(_is_thinking, content)):
        return message
    thoughts, parts = list[str](), list[dict[str, Any]]()
    for number, part in enumerate(content):
        if not _is_thinking(part):
            parts.append(part)
            continue
        if any(kept.get("text") != "" for kept in parts):
            raise MessageError(
                "late_thinking",
                f"message {index}: content.{number} is a thinking part behind another part; expected thinking first, "
                "as formats write reasoning. Make two messages of it, or move the part",
            )
        thoughts.append(_thinking_text(part, f"message {index}: content.{number}.thinking"))
        parts.append({"type": "text", "text": ""})
    apart, reasoning = reasoning_of(message), "".join(thoughts)
    if apart and apart != reasoning:
        raise MessageError(
            "reasoning_twice",
            f"message {index}: reasoning_content is {_shown(apart)} beside thinking parts that say "
            f"{_shown(reasoning)}; expected one of both. Drop one",
        )
    rest = {key: value for key, value in message.items() if key not in REASONING_FIELDS}
    return cast("Message", rest | {"content": parts, "reasoning_content": reasoning})


def _is_thinking(part: Mapping[str, Any]) -> bool:
    return part.get("type") == "thinking"


def _thinking_text(part: Mapping[str, Any], where: str) -> str:
    """The text of a thinking part, which some APIs give as a list of text parts."""
    held = part.get("thinking")
    texts = [each.get("text") for each in held if isinstance(each, Mapping)] if isinstance(held, list) else [held]
    if not all(isinstance(text, str) for text in texts) or (isinstance(held, list) and len(texts) != len(held)):
        raise MessageError("wrong_type", f"{where} is {_shown(held)}; expected a text, or a list of text parts")
    return "".join(cast("list[str]", texts))


def weight_of(message: Message) -> float:
    """How much a message counts where it is trained: its `weight`, or 0 with `train: false`.

    Raises:
        MessageError: a weight that is negative or not a number.
    """
    weight = message.get("weight", 1.0)
    if not 0 <= weight <= MOST_WEIGHT:
        raise MessageError("wrong_weight", f"weight is {weight}; expected a number of 0 or more")
    return 0.0 if message.get("train") is False else float(weight)


def is_untrained(messages: Sequence[Message]) -> bool:
    """Every assistant message says that it does not count: `weight: 0` or `train: false`. False without any.

    Raises:
        MessageError: as `weight_of`.
    """
    weights = [weight_of(message) for message in messages if message["role"] == "assistant"]
    return bool(weights) and not any(weights)


def normalise(messages: object) -> list[Message]:
    """Validate a conversation's messages and bring them into the one shape that the package uses.

    `content: None` becomes `NO_CONTENT`, which is `""`; keys that hold `None` (Arrow writes them for every key that any
    row has) are dropped from messages and tool calls, never inside tool arguments; all else is kept.

    Args:
        messages: a list of message dicts. It is not changed.

    Returns:
        New dicts, in order.

    Raises:
        MessageError: with the index of the message and the field. Reasons: `messages_not_a_list`, `no_messages`,
            `message_not_an_object`, `missing_field`, `wrong_type`, `invalid_unicode`, `nested_too_deeply`.
    """
    if type(messages) is not list and (not isinstance(messages, Sequence) or isinstance(messages, str | bytes)):
        found = _shown(messages)
        raise MessageError("messages_not_a_list", f"messages is {found}; expected a list of objects with role, content")
    if not messages:
        raise MessageError("no_messages", "messages is empty; expected at least one message. Drop the row")
    kernel = native()
    copies: list[Any]
    if kernel is None:
        copies = list(map(_copied, messages))
    else:
        copies = kernel.copied(messages if type(messages) is list else list(messages))
    if all(copies):
        return copies
    pairs = zip(copies, messages, strict=True)
    return [_normal(message, index) if copy is None else copy for index, (copy, message) in enumerate(pairs)]


def _normal(message: Any, index: int) -> Message:
    tidy = _tidy(message, index)
    try:
        _adapter().validate_python(tidy)
    except ValidationError as error:
        raise _explained(error, index) from error
    return cast("Message", tidy)  # not pydantic's copy, which has its own order of keys: `tojson` shows the caller's


def _copied(message: Any) -> Message | None:
    """A copy of a message made of texts and of calls as every API writes them; `None`: look more closely.

    The native kernel does the same for all messages of a conversation.
    """
    if type(message) is not dict or "role" not in message or "content" not in message:
        return None
    made = message.copy()
    for key, value in message.items():
        if key == "tool_calls" and type(value) is list:
            made[key] = calls = list(map(_copied_call, value))
            if None in calls:
                return None
        elif not (
            (key in _TEXTS and _is_text(value))
            or (key == "train" and type(value) is bool)
            or (key == "weight" and type(value) is float)
        ):
            return None
    return cast("Message", made)


def _copied_call(call: Any) -> dict[str, Any] | None:
    if type(call) is not dict or type(call.get("function")) is not dict:
        return None
    made, function = call.copy(), call["function"].copy()
    made["function"] = function
    name, arguments = function.get("name"), function.get("arguments")
    if type(arguments) is dict:
        if not all(type(value) in (int, float, bool) or _is_text(value) for value in arguments.values()):
            return None
        function["arguments"] = arguments = arguments.copy()
    known = len(function) == 2 and _is_text(name) and (_is_text(arguments) or type(arguments) is dict)
    rest = all(key in ("id", "type") and _is_text(value) for key, value in call.items() if key != "function")
    return made if known and rest and (type(arguments) is str or all(map(_is_text, arguments))) else None


def _is_text(value: Any) -> bool:
    """A `str` without half of a surrogate pair."""
    if type(value) is not str:
        return False
    if not value.isascii():  # nearly for nothing, while encoding copies the text
        try:
            value.encode()
        except UnicodeEncodeError:
            return False
    return True


def _tidy(message: object, index: int) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        found = _shown(message)
        raise MessageError(
            "message_not_an_object", f"message {index} is {found}; expected an object with role, content"
        )
    for key, value in message.items():
        if isinstance(value, str) and value.isascii():  # the common case must cost nothing
            continue
        try:
            _check_strings(value, f"message {index}: {key}")
        except RecursionError as error:
            raise MessageError("nested_too_deeply", f"message {index}: {key} is nested too deeply to read") from error
    tidy: dict[str, Any] = _without_nulls(message)
    if isinstance(tidy.get("content"), list):
        tidy["content"] = [_without_nulls(part) for part in tidy["content"]]
    calls = tidy.get("tool_calls")
    if isinstance(calls, list):
        tidy["tool_calls"] = [_tidy_call(call) for call in calls]
    if "content" not in tidy and ("content" in message or calls):
        tidy["content"] = NO_CONTENT
    return tidy


def _tidy_call(call: Any) -> Any:
    tidy = _without_nulls(call)
    if isinstance(tidy, dict) and "function" in tidy:
        tidy["function"] = function = _without_nulls(tidy["function"])
        if isinstance(function, dict) and isinstance(function.get("arguments"), Mapping):
            function["arguments"] = dict(function["arguments"])
    return tidy


def _without_nulls(value: Any) -> Any:
    """A mapping without the keys that hold `None`, one level deep; anything else as it is."""
    if isinstance(value, Mapping):
        return {key: held for key, held in value.items() if held is not None}
    return value


def _check_strings(value: object, where: str) -> None:
    """Check every text in a message, keys and tool arguments included: a template may render any of them."""
    if isinstance(value, str):
        try:
            check_text(value)
        except MessageError as error:
            raise MessageError(error.reason, f"{where} holds {error}") from error
    elif isinstance(value, Mapping):
        for key, held in value.items():
            _check_strings(key, where)
            _check_strings(held, f"{where}.{key}")
    elif isinstance(value, list):
        for held in value:
            _check_strings(held, where)


def check_text(text: str) -> None:
    """Raise `MessageError` (`invalid_unicode`) if a text holds half of a surrogate pair: no encoding can write it."""
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise MessageError(
            "invalid_unicode",
            f"half of a surrogate pair (\\u{ord(text[error.start]):04x}) at character {error.start}, not text; "
            "repair it or drop the row",
        ) from error


def _explained(error: ValidationError, index: int) -> MessageError:
    """The first of pydantic's findings in our words: message index, field, found, expected."""
    first = error.errors()[0]
    path = [part for part in first["loc"] if not _is_union_branch(part)]
    where = f"message {index}: " + (".".join(str(part) for part in path) or "the message")
    if first["type"] == "missing":
        return MessageError("missing_field", f"{where} is missing; add it or drop the row")
    if path and path[-1] == "arguments":
        raise_as = f"{where} is {_shown(first['input'])}; expected JSON text or an object"
        return MessageError("wrong_type", raise_as)
    expected = {"string_type": "a string", "list_type": "a list", "bool_type": "true or false"}
    wanted = expected.get(first["type"], first["msg"].removeprefix("Input should be "))
    return MessageError("wrong_type", f"{where} is {_shown(first['input'])}; expected {wanted}")


def _is_union_branch(part: int | str) -> bool:
    """Pydantic adds the branch of a union to the path (`content`, `str`); a reader does not want to see it."""
    return isinstance(part, str) and part in {"str", "list[dict[str,any]]", "dict[str,any]"}


def _shown(value: object) -> str:
    text = repr(value)
    return f"{text if len(text) <= 40 else text[:37] + '...'} ({type(value).__name__})"
