"""`normalise` validates the messages of a conversation and gives them one form.

`normalise` is called once, where data enters the package. All code
after it relies on its result: `content` is always present, and there is no `None` outside of tool arguments::

    {"role": "assistant", "content": None, "name": None, "tool_calls": [...]}
    ->  {"role": "assistant", "content": NO_CONTENT, "tool_calls": [...]}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from niels_gpt.errors import MessageError
from niels_gpt.media import kind_of_file, refuse_media
from niels_gpt.messages.types import NO_CONTENT, Message, Normalised, ToolSpec

MOST_WEIGHT: Final = 3.4028234663852886e38  # the largest float32; more would be infinite in a mask
REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")
_BESIDE: Final = ("image", "images", "audio", "audios", "video", "videos")  # fields of a message with media
_TEXTS = frozenset({"role", "content", "reasoning_content", "tool_call_id", "name"})  # the fields whose value is a text
_CALL_TEXTS = frozenset({"id", "type"})
_NUMBERS = frozenset({int, float, bool})


def reasoning_of(message: Message) -> str | None:
    """The reasoning in a field of its own, under any of the names in use; `None` if there is none."""
    if len(message) == 2:  # a role and a content: most messages
        return None
    for name in REASONING_FIELDS:
        value = message.get(name)
        if isinstance(value, str):
            return value
    return None


def with_reasoning_field(message: Message, index: int) -> Message:
    """An assistant message with its thinking parts moved to `reasoning_content`; any other message unchanged.

    An empty text part takes the place of each thinking part, so that the numbers of the other parts do not change.

    ::

        content [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "4"}]
        ->      reasoning_content "hm", content [{"type": "text", "text": ""}, {"type": "text", "text": "4"}]

    Raises:
        MessageError: a thinking part has no text (`wrong_type`), comes after another part (`late_thinking`), or differs
            from the reasoning field of the message (`reasoning_twice`).
    """
    content = message["content"]
    if isinstance(content, str) or message["role"] != "assistant" or not any(map(_is_thinking, content)):
        return message
    thoughts, parts = list[str](), list[dict[str, Any]]()
    for number, part in enumerate(content):
        if not _is_thinking(part):
            parts.append(part)
            continue
        # Thinking parts before this one have become empty texts, which do not count as other parts.
        if any(earlier.get("text") != "" for earlier in parts):
            raise MessageError(
                "late_thinking",
                f"message {index}: content.{number} is a thinking part after another part; expected thinking first, "
                "as formats write reasoning. Make two messages of it, or move the part",
            )
        value = part.get("thinking")
        text_parts = value if isinstance(value, list) else [{"text": value}]  # some APIs write a list of text parts
        texts = [each.get("text") if isinstance(each, Mapping) else None for each in text_parts]
        if not all(isinstance(text, str) for text in texts):
            raise MessageError(
                "wrong_type",
                f"message {index}: content.{number}.thinking is {_shown(value)}; expected a text, or a list of text "
                "parts",
            )
        thoughts += cast("list[str]", texts)
        parts.append({"type": "text", "text": ""})
    field_text, reasoning = reasoning_of(message), "".join(thoughts)
    if field_text and field_text != reasoning:
        raise MessageError(
            "reasoning_twice",
            f"message {index}: reasoning_content is {_shown(field_text)} and the thinking parts are "
            f"{_shown(reasoning)}; expected one of the two. Drop one",
        )
    rest = {key: value for key, value in message.items() if key not in REASONING_FIELDS}
    return cast("Message", rest | {"content": parts, "reasoning_content": reasoning})


def _is_thinking(part: Mapping[str, Any]) -> bool:
    return part.get("type") == "thinking"


def weight_of(message: Message) -> float:
    """The weight of a message in the loss: its `weight` (default 1), or 0 with `train: false`.

    Raises:
        MessageError: a weight that is negative or not a number.
    """
    weight = message.get("weight", 1.0)
    # Written so that nan is refused, for which every comparison is false.
    if not 0 <= weight <= MOST_WEIGHT:
        raise MessageError("wrong_weight", f"weight is {weight}; expected a number of 0 or more")
    return 0.0 if message.get("train") is False else float(weight)


def is_untrained(messages: Sequence[Message]) -> bool:
    """Whether every assistant message is excluded from the loss by `weight: 0` or `train: false`. False without any.

    Raises:
        MessageError: as `weight_of`.
    """
    weights = [weight_of(message) for message in messages if message["role"] == "assistant"]
    return bool(weights) and not any(weights)


def read_conversation(messages: object, tools: list[ToolSpec] | None = None) -> Normalised:
    """Messages in the form of `normalise`, their tools, and what became of what the caller wrote.

    Raises:
        MessageError: as `normalise`.
    """
    return Normalised(normalise(messages), tools)


def normalise(messages: object) -> list[Message]:
    """Validate the messages of a conversation and return them in the one form that the package uses.

    `content: None` becomes `NO_CONTENT`, which equals `""`. Keys whose value is `None` are dropped from messages and
    tool calls, but not from tool arguments: Arrow adds such keys for every key that any row has. All else is retained.

    Args:
        messages: a list of message dicts. It is not changed.

    Returns:
        New dicts, in order; their tool calls and arguments are copies too.

    Raises:
        MessageError: with the index of the message and the field. Reasons: `messages_not_a_list`, `no_messages`,
            `message_not_an_object`, `missing_field`, `wrong_type`, `invalid_unicode`, `nested_too_deeply`,
            `unsupported_media` (audio or video).
    """
    if type(messages) is not list and (not isinstance(messages, Sequence) or isinstance(messages, str | bytes)):
        found = _shown(messages)
        raise MessageError("messages_not_a_list", f"messages is {found}; expected a list of objects with role, content")
    if not messages:
        raise MessageError("no_messages", "messages is empty; expected at least one message. Drop the row")
    # Most messages need a copy only.
    return [_plain_copy(message) or _repaired(message, index) for index, message in enumerate(messages)]


def _plain_copy(message: Any) -> Message | None:
    """A copy of a message of texts, and calls as every API writes them; `None` for any other message."""
    if type(message) is not dict:
        return None
    copy = message.copy()
    for key, value in message.items():
        # `isascii` here, too: most texts are ASCII, and calling `_is_text` for each would take a third of the time.
        if type(value) is str:
            if key not in _TEXTS or not (value.isascii() or _is_text(value)):
                return None
        elif key == "tool_calls" and type(value) is list:
            copy[key] = calls = list(map(_plain_copy_of_call, value))
            if None in calls:
                return None
        elif not ((key == "train" and type(value) is bool) or (key == "weight" and type(value) is float)):
            return None
    return cast("Message", copy) if "role" in copy and "content" in copy else None


def _plain_copy_of_call(call: Any) -> dict[str, Any] | None:
    """A copy of `{"id": ..., "type": ..., "function": {"name": ..., "arguments": ...}}`; `None` for any other call."""
    if type(call) is not dict or type(call.get("function")) is not dict:
        return None
    copy, function = call.copy(), call["function"].copy()
    copy["function"] = function
    for key, value in call.items():
        if key != "function" and not (key in _CALL_TEXTS and _is_text(value)):
            return None
    arguments = function.get("arguments")
    if len(function) != 2 or not _is_text(function.get("name")):
        return None
    if type(arguments) is not dict:
        return copy if _is_text(arguments) else None
    function["arguments"] = arguments.copy()
    for key, value in arguments.items():
        # JSON has no other keys than texts.
        if not (_is_text(key) and (type(value) in _NUMBERS or _is_text(value))):
            return None
    return copy


def _is_text(value: Any) -> bool:
    """Whether a value is exactly a `str` without half of a surrogate pair."""
    if type(value) is not str:
        return False
    if not value.isascii():  # this test is nearly free, while encoding copies the text
        try:
            value.encode()
        except UnicodeEncodeError:
            return False
    return True


def _repaired(message: Any, index: int) -> Message:
    """A message without nulls, validated.

    Raises:
        MessageError: as `normalise`.
    """
    if not isinstance(message, Mapping):
        found = _shown(message)
        raise MessageError(
            "message_not_an_object", f"message {index} is {found}; expected an object with role, content"
        )
    # Tool arguments and unknown keys, too, which a template may render.
    for key, value in message.items():
        if isinstance(value, str) and value.isascii():  # most values
            continue
        try:
            _check_strings(value, f"message {index}: {key}")
        except RecursionError as error:
            raise MessageError("nested_too_deeply", f"message {index}: {key} is nested too deeply to read") from error
    copy: dict[str, Any] = _without_nulls(message)
    _refuse_media_beside(copy, index)
    if isinstance(copy.get("content"), list):
        copy["content"] = [_without_nulls(part) for part in copy["content"]]
        for number, part in enumerate(copy["content"]):
            refuse_media(part, f"message {index}: content.{number}")
    calls = copy.get("tool_calls")
    if isinstance(calls, list):
        copy["tool_calls"] = [_without_call_nulls(call) for call in calls]
    if "content" not in copy and ("content" in message or calls):  # without calls, a missing content is an error
        copy["content"] = NO_CONTENT
    _check_types(copy, f"message {index}: ")
    return cast("Message", copy)


def _refuse_media_beside(message: Mapping[str, Any], index: int) -> None:
    """Refuse media in a field beside the content, as Ollama's interface has images: nothing would read them."""
    for name in _BESIDE:
        value = message.get(name)
        is_media = isinstance(value, Mapping | bytes) or (name.endswith("s") and isinstance(value, str | list))
        is_media = is_media or (isinstance(value, str) and bool(kind_of_file(value)))  # else a text of another meaning
        if is_media and value:
            raise MessageError(
                "unsupported_media",
                f"message {index}: {name} holds {_shown(value)}; expected images in the content, each as "
                '{"type": "image", "image": PATH}, and no audio or video. Put images there, or drop the row',
            )


def _without_call_nulls(call: Any) -> Any:
    copy = _without_nulls(call)
    if isinstance(copy, dict) and "function" in copy:
        copy["function"] = function = _without_nulls(copy["function"])
        if isinstance(function, dict) and isinstance(function.get("arguments"), Mapping):
            function["arguments"] = dict(function["arguments"])  # a null in arguments is the model's own value
    return copy


def _without_nulls(value: Any) -> Any:
    """A mapping without the keys whose value is `None`, one level deep; any other value unchanged."""
    if isinstance(value, Mapping):
        return {key: item for key, item in value.items() if item is not None}
    return value


def _check_strings(value: object, where: str) -> None:
    """Check every text in a message, keys and tool arguments included: a template may render any of them."""
    if isinstance(value, str):
        try:
            check_text(value)
        except MessageError as error:
            raise MessageError(error.reason, f"{where} holds {error}") from error
    elif isinstance(value, Mapping):
        for key, item in value.items():
            _check_strings(key, where)
            _check_strings(item, f"{where}.{key}")
    elif isinstance(value, list):
        for item in value:
            _check_strings(item, where)


def check_text(text: str) -> None:
    """Raise `MessageError` (`invalid_unicode`) if a text has half of a surrogate pair, which UTF-8 cannot encode."""
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


def _check_types(message: Mapping[str, Any], where: str) -> None:
    """Raise `MessageError` (`missing_field`, `wrong_type`) for the first field of a message that has a wrong type."""
    for name in ("role", "content"):
        if name not in message:
            raise _missing(where + name)
    for name in ("role", "reasoning_content", "tool_call_id", "name"):
        _check(message, name, where, str, "a string")
    _check(message, "content", where, (str, list), "a string")
    for number, part in enumerate(message["content"] if isinstance(message["content"], list) else ()):
        if not isinstance(part, dict):
            raise MessageError("wrong_type", f"{where}content.{number} is {_shown(part)}; expected an object")
    _check(message, "train", where, bool, "true or false")
    if isinstance(message.get("weight"), bool):
        raise MessageError("wrong_type", f"{where}weight is {_shown(message['weight'])}; expected a valid number")
    _check(message, "weight", where, (int, float), "a valid number")
    _check(message, "tool_calls", where, list, "a list")
    for number, call in enumerate(message.get("tool_calls", ())):
        at = f"{where}tool_calls.{number}"
        if not isinstance(call, dict):
            raise MessageError("wrong_type", f"{at} is {_shown(call)}; expected an object")
        for name in ("id", "type"):
            _check(call, name, f"{at}.", str, "a string")
        function = call.get("function")
        if function is None:
            raise _missing(f"{at}.function")
        if not isinstance(function, dict):
            raise MessageError("wrong_type", f"{at}.function is {_shown(function)}; expected an object")
        for name in ("name", "arguments"):
            if name not in function:
                raise _missing(f"{at}.function.{name}")
        _check(function, "name", f"{at}.function.", str, "a string")
        _check(function, "arguments", f"{at}.function.", (str, dict), "JSON text or an object")


def _check(fields: Mapping[str, Any], name: str, where: str, kinds: type | tuple[type, ...], expected: str) -> None:
    if name in fields and not isinstance(fields[name], kinds):
        raise MessageError("wrong_type", f"{where}{name} is {_shown(fields[name])}; expected {expected}")


def _missing(where: str) -> MessageError:
    return MessageError("missing_field", f"{where} is missing; add it or drop the row")


def _shown(value: object) -> str:
    text = repr(value)
    return f"{text if len(text) <= 40 else text[:37] + '...'} ({type(value).__name__})"
