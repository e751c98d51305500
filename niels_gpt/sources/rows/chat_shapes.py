"""The row formats in which conversations are stored ("dialects"), each converted to messages.

===================  =====================================================================================
messages             `messages`: role and content (OpenAI), with tool calls, reasoning, `train`, `weight`
sharegpt             `conversations`: `from` and `value`; `system` and `tools` beside it
alpaca               `instruction`, `input`, `output`; `system` and `history` beside them
prompt_completion    `prompt` and `completion`: two texts, or two lists of messages
anthropic, gemini,   as the interfaces of these providers write conversations, see `provider_shapes`
harmony
===================  =====================================================================================

`system` beside the messages is their system message in every format. `roles` say what roles mean that no format knows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count
from types import MappingProxyType
from typing import Any, Final

from niels_gpt.errors import MessageError, shown
from niels_gpt.sources.rows.provider_shapes import SHAPES, TOOLS, list_at, looks_like
from niels_gpt.unique_keys import UNIQUE_KEYS

Row = Mapping[str, Any]

SHAREGPT_ROLES: Final = {
    "system": "system",
    # Of ShareGPT itself "human" and "gpt"; the others are of data sets in its format.
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "model": "assistant",
    "chatgpt": "assistant",
    "function_call": "assistant",
    "tool": "tool",
    "observation": "tool",
    "function_response": "tool",
}

# A flag of a message that other tools have for `train` -> its value for a message that is trained.
_FLAGS: Final = {"trainable": True, "loss": True, "masked": False}
# Fields of OpenAI's interface that hold what an answer says, and that no format writes -> where it belongs.
_UNREAD: Final = {
    "function_call": "a list of tool_calls, which took its place",
    "refusal": "the text in 'content', as the model is to write it; or drop the row",
}
# A message without any of these needs no conversion, and few have one.
_MEANING: Final = frozenset((*_FLAGS, *_UNREAD, "channel", "recipient"))

Roles = Mapping[str, str]


def _messages(row: Row, roles: Roles) -> list[Any]:
    turns = list(map(plain_message, list_at(row, "messages"), count()))
    if roles:
        turns = [_with_role(turn, roles) for turn in turns]
    return beside(row, turns)


def _with_role(message: Any, roles: Roles) -> Any:
    if isinstance(message, Mapping) and isinstance(message.get("role"), str) and message["role"] in roles:
        return {**message, "role": roles[message["role"]]}
    return message


def beside(row: Row, turns: list[Any]) -> list[Any]:
    """The messages with the `system` that is beside them.

    Raises:
        MessageError: they begin with another system message (`system_twice`).
    """
    system = _system(row)
    first = turns[0] if turns and isinstance(turns[0], Mapping) else {}
    if not system or first.get("role") not in ("system", "developer"):
        return system + turns
    # Some data sets store the system message in both places.
    if first.get("content") != system[0]["content"]:
        raise MessageError(
            "system_twice",
            f"system is {shown(system[0]['content'])} beside messages that begin with another system message; drop one",
        )
    return turns


def plain_message(message: Any, index: int) -> Any:
    """A message with its flag as `train`.

    Raises:
        MessageError: it has a call, an analysis or a refusal where nothing here reads one (`harmony_message`,
            `function_call`, `refusal`); or see `_with_flag`.
    """
    if type(message) is dict and _MEANING.isdisjoint(message):  # the common case first, with the cheapest check
        return message
    if not isinstance(message, Mapping):
        return message
    if message.get("channel") == "analysis" or message.get("recipient") not in (None, "all"):
        raise MessageError(
            "harmony_message",
            f"message {index} has the channel {shown(message.get('channel'))} and the recipient "
            f"{shown(message.get('recipient'))}, as Harmony writes them, and the row is read as messages; name the "
            "format: --format harmony",
        )
    for name, remedy in _UNREAD.items():
        if message.get(name):
            raise MessageError(name, f"message {index} has {name} {shown(message[name])}; expected {remedy}")
    return _with_flag(message, index)


def _with_flag(message: Mapping[str, Any], index: int) -> Mapping[str, Any]:
    """A message in which the flags of other tools (`_FLAGS`) are renamed to `train`.

    Raises:
        MessageError: two flags contradict each other (`train_twice`).
    """
    found = {name: message[name] is meant for name, meant in _FLAGS.items() if isinstance(message.get(name), bool)}
    if not found:
        return message
    if isinstance(message.get("train"), bool):
        found["train"] = message["train"]
    if len(set(found.values())) > 1:
        both = " and ".join(f"{name} {message[name]}" for name in found)
        raise MessageError("train_twice", f"message {index} has {both}, which contradict each other; drop one")
    return {key: value for key, value in message.items() if key not in found} | {"train": next(iter(found.values()))}


def _sharegpt(row: Row, roles: Roles) -> list[Any]:
    # What the caller names comes last: it also counts for a role that the format knows by another meaning.
    known = {**SHAREGPT_ROLES, **roles}
    turns = [_sharegpt_turn(turn, index, known) for index, turn in enumerate(list_at(row, "conversations"))]
    return beside(row, turns)


def _sharegpt_turn(turn: Any, index: int, roles: Roles) -> dict[str, Any]:
    if not isinstance(turn, Mapping) or "from" not in turn or "value" not in turn:
        raise MessageError("missing_field", f"message {index}: expected an object with 'from' and 'value'")
    # Any JSON may be there; a list, for example, cannot be looked up.
    role = roles.get(turn["from"]) if isinstance(turn["from"], str) else None
    if role is None:
        known, found = ", ".join(roles), turn["from"]
        raise MessageError(
            "unknown_role",
            f"message {index}: from is {found!r}; expected one of {known}. Name its role: --roles {found}=user",
        )
    rest = {key: value for key, value in turn.items() if key not in ("from", "value")}
    other = _with_flag(rest, index)
    if turn["from"] == "function_call":
        return {"role": role, "content": "", "tool_calls": [_function_call(turn["value"], index)], **other}
    return {"role": role, "content": turn["value"], **other}


def _function_call(value: Any, index: int) -> dict[str, Any]:
    try:
        call = UNIQUE_KEYS.decode(value)
        return {"type": "function", "function": {"name": call["name"], "arguments": call["arguments"]}}
    except MessageError as error:
        raise MessageError(error.reason, f"message {index}: function_call: {error}") from error
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise MessageError(
            "wrong_type", f"message {index}: function_call is not JSON with 'name' and 'arguments' ({error})"
        ) from error


def _alpaca(row: Row, roles: Roles) -> list[Any]:
    return _system(row) + instruction_turns(row) + [{"role": "assistant", "content": row["output"]}]


def instruction_turns(row: Row) -> list[Any]:
    """The turns of `history`, and `instruction` and `input` as the last question.

    Raises:
        MessageError: `input` is no text, or `history` no list of pairs.
    """
    question, more = row["instruction"], row.get("input")
    if more is not None and not isinstance(more, str):
        raise MessageError("wrong_type", f"input is a {type(more).__name__}; expected a text, or null")
    if more and more.strip():
        question = f"{question}\n\n{more}"
    turns: list[Any] = []
    for number, pair in enumerate(row.get("history") or []):
        # LLaMA-Factory's alpaca format has earlier turns as pairs.
        if not isinstance(pair, list) or len(pair) != 2:
            raise MessageError("wrong_type", f"history {number}: expected a pair of question and answer")
        turns += [{"role": "user", "content": pair[0]}, {"role": "assistant", "content": pair[1]}]
    return [*turns, {"role": "user", "content": question}]


def _prompt_completion(row: Row, roles: Roles) -> list[Any]:
    """Only the completion is trained, so assistant messages inside a prompt get `train: False`."""
    prompt, completion = row["prompt"], row["completion"]
    if isinstance(prompt, str):
        before: list[Any] = [{"role": "user", "content": prompt}]
    else:
        before = [_untrained(_with_role(message, roles)) for message in list_at(row, "prompt")]
    if isinstance(completion, str):
        after: list[Any] = [{"role": "assistant", "content": completion}]
    else:
        turns = map(plain_message, list_at(row, "completion"), count(len(before)))
        after = [_with_role(turn, roles) for turn in turns]
    return beside(row, before + after)


def _untrained(message: Any) -> Any:
    if isinstance(message, Mapping) and message.get("role") == "assistant":
        return {key: value for key, value in message.items() if key not in _FLAGS} | {"train": False}
    return message


def _system(row: Row) -> list[Any]:
    return [{"role": "system", "content": row["system"]}] if row.get("system") else []


Convert = Callable[[Row, Roles], list[Any]]


def _of_provider(name: str) -> tuple[tuple[str, ...], Convert]:
    keys, convert = SHAPES[name]

    def renamed(row: Row, roles: Roles) -> list[Any]:
        turns = row[keys[0]]
        if roles and isinstance(turns, list):
            # A copy, because the row is the caller's, and its other columns become metadata.
            row = {**row, keys[0]: [_with_role(turn, roles) for turn in turns]}
        return convert(row)

    return keys, renamed


# Name -> the keys by which a row is recognised, and the conversion.
DIALECTS: Final[dict[str, tuple[tuple[str, ...], Convert]]] = {
    "messages": (("messages",), _messages),
    "sharegpt": (("conversations",), _sharegpt),
    "alpaca": (("instruction", "output"), _alpaca),
    "prompt_completion": (("prompt", "completion"), _prompt_completion),
    "anthropic": _of_provider("anthropic"),
    "gemini": _of_provider("gemini"),
    "harmony": _of_provider("harmony"),
}


def candidates(row: Row) -> list[str]:
    """The dialects whose keys a row has; if several share a key, the one that its contents fit."""
    # Providers name the key "messages", too, so this key alone does not decide.
    shown_by_contents = looks_like(row.get("messages"), row) or "messages"
    # A null counts as no key: Arrow gives every row the columns of all.
    found = [name for name, (keys, _) in DIALECTS.items() if all(row.get(key) is not None for key in keys)]
    return [name for name in found if "messages" not in DIALECTS[name][0] or name == shown_by_contents]


def detect(row: Row) -> str | None:
    """The dialect whose keys a row has, or `None`."""
    return next(iter(candidates(row)), None)


def to_messages(row: Row, dialect: str, roles: Roles = MappingProxyType({})) -> list[Any]:
    """A row's messages, not yet normalised.

    Args:
        roles: what the rows call some roles -> their names here.

    Raises:
        MessageError: a key of the dialect is missing, or its value has a wrong type; or the arguments of a call are
            JSON text with a repeated key, of which formats that write parameters one by one would lose a value.
    """
    keys, convert = DIALECTS[dialect]
    missing = [key for key in keys if row.get(key) is None]
    if missing:
        found = ", ".join(map(repr, row)) or "none"
        problem = f"{missing[0]!r} is null" if missing[0] in row else f"no {missing[0]!r}"
        raise MessageError("no_messages", f"{problem} in the row; keys found: {found}")
    return with_unique_arguments(convert(row, roles))


def with_unique_arguments(messages: list[Any]) -> list[Any]:
    """The same messages, if no call in them has arguments that are JSON text with a repeated key.

    Raises:
        MessageError: there is such a key (`repeated_key`).
    """
    for index, message in enumerate(messages):
        calls = message.get("tool_calls") if isinstance(message, Mapping) else None
        for call in calls if isinstance(calls, list) else ():
            function = call.get("function") if isinstance(call, Mapping) else None
            arguments = function.get("arguments") if isinstance(function, Mapping) else None
            if not isinstance(arguments, str):  # an object, whose keys cannot repeat any more
                continue
            try:
                UNIQUE_KEYS.decode(arguments)
            except MessageError as error:
                raise MessageError(error.reason, f"message {index}: arguments: {error}") from error
            except (ValueError, RecursionError):  # the renderer says what is wrong, and some take any text
                continue
    return messages


def tools_of(row: Row, dialect: str = "messages") -> list[Any] | None:
    """A row's `tools`: a list, or a JSON string of one.

    Raises:
        MessageError: it is neither; or the row has declarations in `functions`, as OpenAI's interface once called them.
    """
    tools, older = row.get("tools"), row.get("functions")
    if not tools and isinstance(older, list) and any(isinstance(one, Mapping) and "name" in one for one in older):
        raise MessageError(
            "functions",
            f"functions declares {len(older)} tools, and there are no tools; expected them in 'tools', which took its "
            "place: --columns tools=functions",
        )
    if isinstance(tools, str) and tools.strip():
        try:
            tools = UNIQUE_KEYS.decode(tools)
        except MessageError as error:
            raise MessageError(error.reason, f"tools: {error}") from error
        except (ValueError, RecursionError) as error:
            raise MessageError("wrong_type", f"tools is text but not JSON ({error})") from error
    # An empty text, as files without nulls have it, says the same as an empty list.
    if tools is not None and tools != "" and not isinstance(tools, list):
        raise MessageError("wrong_type", f"tools is a {type(tools).__name__}; expected a list or a JSON string of one")
    return TOOLS.get(dialect, list)(tools) if tools else None
