"""The row formats in which conversations are stored ("dialects"), each converted to messages.

===================  =====================================================================================
messages             `messages`: role and content (OpenAI), with tool calls, reasoning, `train`, `weight`
sharegpt             `conversations`: `from` and `value`; `system` and `tools` beside it
alpaca               `instruction`, `input`, `output`; `system` and `history` beside them
prompt_completion    `prompt` and `completion`: two texts, or two lists of messages
===================  =====================================================================================
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from niels_gpt.errors import MessageError

Row = Mapping[str, Any]

SHAREGPT_ROLES: Final = {
    "system": "system",
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


def _messages(row: Row) -> list[Any]:
    return list(map(_with_flag, _list(row, "messages")))


def _with_flag(message: Any) -> Any:
    """Rename `trainable`, as some tools call it, to `train`."""
    if type(message) is dict and "trainable" not in message:  # the common case first, with the cheapest check
        return message
    if isinstance(message, Mapping) and "trainable" in message and "train" not in message:
        return {"train" if key == "trainable" else key: value for key, value in message.items()}
    return message


def _sharegpt(row: Row) -> list[Any]:
    turns = [_sharegpt_turn(turn, index) for index, turn in enumerate(_list(row, "conversations"))]
    return _system(row) + turns


def _sharegpt_turn(turn: Any, index: int) -> dict[str, Any]:
    if not isinstance(turn, Mapping) or "from" not in turn or "value" not in turn:
        raise MessageError("missing_field", f"message {index}: expected an object with 'from' and 'value'")
    role = SHAREGPT_ROLES.get(turn["from"]) if isinstance(turn["from"], str) else None
    if role is None:
        known = ", ".join(SHAREGPT_ROLES)
        raise MessageError("unknown_role", f"message {index}: from is {turn['from']!r}; expected one of {known}")
    other = {key: value for key, value in turn.items() if key not in ("from", "value")}
    if turn["from"] == "function_call":
        return {"role": role, "content": "", "tool_calls": [_function_call(turn["value"], index)], **other}
    return {"role": role, "content": turn["value"], **other}


def _function_call(value: Any, index: int) -> dict[str, Any]:
    try:
        call = json.loads(value)
        return {"type": "function", "function": {"name": call["name"], "arguments": call["arguments"]}}
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise MessageError(
            "wrong_type", f"message {index}: function_call is not JSON with 'name' and 'arguments' ({error})"
        ) from error


def _alpaca(row: Row) -> list[Any]:
    question = row["instruction"]
    if isinstance(row.get("input"), str) and row["input"].strip():
        question = f"{question}\n\n{row['input']}"
    turns: list[Any] = []
    for number, pair in enumerate(row.get("history") or []):
        if not isinstance(pair, list) or len(pair) != 2:
            raise MessageError("wrong_type", f"history {number}: expected a pair of question and answer")
        turns += [{"role": "user", "content": pair[0]}, {"role": "assistant", "content": pair[1]}]
    last = [{"role": "user", "content": question}, {"role": "assistant", "content": row["output"]}]
    return _system(row) + turns + last


def _prompt_completion(row: Row) -> list[Any]:
    """Only the completion is trained, so assistant messages inside a prompt get `train: False`."""
    prompt, completion = row["prompt"], row["completion"]
    if isinstance(prompt, str):
        before: list[Any] = [{"role": "user", "content": prompt}]
    else:
        before = [
            {**message, "train": False} if isinstance(message, dict) and message.get("role") == "assistant" else message
            for message in _list(row, "prompt")
        ]
    after = [{"role": "assistant", "content": completion}] if isinstance(completion, str) else _list(row, "completion")
    return before + after


def _system(row: Row) -> list[Any]:
    return [{"role": "system", "content": row["system"]}] if row.get("system") else []


def _list(row: Row, key: str) -> list[Any]:
    value = row[key]
    if not isinstance(value, list):
        raise MessageError("messages_not_a_list", f"{key} is a {type(value).__name__}; expected a list of objects")
    return value


# Name -> the keys by which a row is recognised, and the conversion. `detect` takes the first whose keys a row has.
DIALECTS: Final[dict[str, tuple[tuple[str, ...], Callable[[Row], list[Any]]]]] = {
    "messages": (("messages",), _messages),
    "sharegpt": (("conversations",), _sharegpt),
    "alpaca": (("instruction", "output"), _alpaca),
    "prompt_completion": (("prompt", "completion"), _prompt_completion),
}


def detect(row: Row) -> str | None:
    """The dialect whose keys a row has, or `None`."""
    for name, (keys, _) in DIALECTS.items():
        if all(row.get(key) is not None for key in keys):
            return name
    return None


def to_messages(row: Row, dialect: str) -> list[Any]:
    """A row's messages, not yet normalised.

    Raises:
        MessageError: a key of the dialect is missing, or its value has a wrong type.
    """
    keys, convert = DIALECTS[dialect]
    missing = [key for key in keys if row.get(key) is None]
    if missing:
        found = ", ".join(map(repr, row)) or "none"
        problem = f"{missing[0]!r} is null" if missing[0] in row else f"no {missing[0]!r}"
        raise MessageError("no_messages", f"{problem} in the row; keys found: {found}")
    return convert(row)


def tools_of(row: Row) -> list[Any] | None:
    """A row's `tools`: a list, or a JSON string of one.

    Raises:
        MessageError: it is neither.
    """
    tools = row.get("tools")
    if isinstance(tools, str) and tools.strip():
        try:
            tools = json.loads(tools)
        except (ValueError, RecursionError) as error:
            raise MessageError("wrong_type", f"tools is text but not JSON ({error})") from error
    if tools is not None and tools != "" and not isinstance(tools, list):
        raise MessageError("wrong_type", f"tools is a {type(tools).__name__}; expected a list or a JSON string of one")
    return tools or None
