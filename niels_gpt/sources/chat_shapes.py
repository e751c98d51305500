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

import json
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from niels_gpt.errors import MessageError, shown
from niels_gpt.sources.provider_shapes import SHAPES, TOOLS, list_at, looks_like

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


Roles = Mapping[str, str]


def _messages(row: Row, roles: Roles) -> list[Any]:
    turns = list(map(_with_flag, list_at(row, "messages")))
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
    if first.get("content") != system[0]["content"]:
        raise MessageError(
            "system_twice",
            f"system is {shown(system[0]['content'])} beside messages that begin with another system message; drop one",
        )
    return turns


def _with_flag(message: Any) -> Any:
    """Rename `trainable`, as some tools call it, to `train`."""
    if type(message) is dict and "trainable" not in message:  # the common case first, with the cheapest check
        return message
    if isinstance(message, Mapping) and "trainable" in message and "train" not in message:
        return {"train" if key == "trainable" else key: value for key, value in message.items()}
    return message


def _sharegpt(row: Row, roles: Roles) -> list[Any]:
    known = {**SHAREGPT_ROLES, **roles}
    turns = [_sharegpt_turn(turn, index, known) for index, turn in enumerate(list_at(row, "conversations"))]
    return _system(row) + turns


def _sharegpt_turn(turn: Any, index: int, roles: Roles) -> dict[str, Any]:
    if not isinstance(turn, Mapping) or "from" not in turn or "value" not in turn:
        raise MessageError("missing_field", f"message {index}: expected an object with 'from' and 'value'")
    role = roles.get(turn["from"]) if isinstance(turn["from"], str) else None
    if role is None:
        known, found = ", ".join(roles), turn["from"]
        raise MessageError(
            "unknown_role",
            f"message {index}: from is {found!r}; expected one of {known}. Name its role: --roles {found}=user",
        )
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
        before = [
            {**message, "train": False} if isinstance(message, dict) and message.get("role") == "assistant" else message
            for message in list_at(row, "prompt")
        ]
    after = (
        [{"role": "assistant", "content": completion}] if isinstance(completion, str) else list_at(row, "completion")
    )
    return beside(row, [_with_role(turn, roles) for turn in before + after])


def _system(row: Row) -> list[Any]:
    return [{"role": "system", "content": row["system"]}] if row.get("system") else []


Convert = Callable[[Row, Roles], list[Any]]


def _of_provider(name: str) -> tuple[tuple[str, ...], Convert]:
    keys, convert = SHAPES[name]

    def renamed(row: Row, roles: Roles) -> list[Any]:
        turns = row[keys[0]]
        if roles and isinstance(turns, list):
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
    """The dialects whose keys a row has; of those that share a key, the one that its contents show."""
    shown_by_contents = looks_like(row.get("messages"), row) or "messages"
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
        MessageError: a key of the dialect is missing, or its value has a wrong type.
    """
    keys, convert = DIALECTS[dialect]
    missing = [key for key in keys if row.get(key) is None]
    if missing:
        found = ", ".join(map(repr, row)) or "none"
        problem = f"{missing[0]!r} is null" if missing[0] in row else f"no {missing[0]!r}"
        raise MessageError("no_messages", f"{problem} in the row; keys found: {found}")
    return convert(row, roles)


def tools_of(row: Row, dialect: str = "messages") -> list[Any] | None:
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
    return TOOLS.get(dialect, list)(tools) if tools else None
