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
from contextlib import suppress
from types import MappingProxyType
from typing import Any, Final

from niels_gpt.errors import MessageError, shown
from niels_gpt.messages.keys import FLAGS
from niels_gpt.sources.rows.provider_shapes import SHAPES, list_at, looks_like

READ_COLUMNS: Final = frozenset({"type", "source"})  # of a row's metadata: what builds store
KWARGS: Final = "chat_template_kwargs"  # the column with options of the renderer for its row alone

Row = Mapping[str, Any]
Roles = Mapping[str, str]


def _messages(row: Row, roles: Roles) -> list[Any]:
    return beside(row, _with_roles(list_at(row, "messages"), roles))


def _with_roles(turns: list[Any], roles: Roles) -> list[Any]:
    """The messages with the roles that the caller has named; `from` is the role in a turn of ShareGPT."""
    return [_with_role(turn, roles) for turn in turns] if roles else list(turns)


def _with_role(message: Any, roles: Roles) -> Any:
    name = "role" if isinstance(message, Mapping) and "role" in message else "from"
    if isinstance(message, Mapping) and isinstance(message.get(name), str) and message[name] in roles:
        return {**message, name: roles[message[name]]}
    return message


def beside(row: Row, turns: list[Any]) -> list[Any]:
    """The messages with the `system` that is beside them.

    Raises:
        MessageError: they begin with another system message (`system_twice`).
    """
    system = _system(row)
    first = turns[0] if turns and isinstance(turns[0], Mapping) else {}
    # In a turn of ShareGPT the role is `from`.
    if not system or first.get("role", first.get("from")) not in ("system", "developer"):
        return system + turns
    # Some data sets store the system message in both places.
    if first.get("content", first.get("value")) != system[0]["content"]:
        raise MessageError(
            "system_twice",
            f"system is {shown(system[0]['content'])} beside messages that begin with another system message; drop one",
        )
    return turns


def _sharegpt(row: Row, roles: Roles) -> list[Any]:
    turns = list_at(row, "conversations")
    for index, turn in enumerate(turns):
        if not isinstance(turn, Mapping) or "from" not in turn or "value" not in turn:
            raise MessageError("missing_field", f"message {index}: expected an object with 'from' and 'value'")
    return beside(row, _with_roles(turns, roles))


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
        before = list(map(_untrained, _with_roles(list_at(row, "prompt"), roles)))
    if isinstance(completion, str):
        after: list[Any] = [{"role": "assistant", "content": completion}]
    else:
        after = _with_roles(list_at(row, "completion"), roles)
    return beside(row, before + after)


def _untrained(message: Any) -> Any:
    if isinstance(message, Mapping) and message.get("role") == "assistant":
        return {key: value for key, value in message.items() if key not in FLAGS} | {"train": False}
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
            row = {**row, keys[0]: _with_roles(turns, roles)}
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
    """A row's messages, not yet read.

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


def tools_at(row: Row) -> Any:
    """What a row has as `tools`, not yet read.

    Raises:
        MessageError: it has declarations in `functions`, as OpenAI's interface once called them.
    """
    tools, older = row.get("tools"), row.get("functions")
    if not tools and isinstance(older, list) and any(isinstance(one, Mapping) and "name" in one for one in older):
        raise MessageError(
            "functions",
            f"functions declares {len(older)} tools, and there are no tools; expected them in 'tools', which took its "
            "place: --columns tools=functions",
        )
    return tools


def kwargs_at(row: Row) -> dict[str, Any]:
    """The `chat_template_kwargs` of a row, an object or JSON text of one; empty where there are none.

    Raises:
        MessageError: they are something else (`wrong_type`).
    """
    found = row.get(KWARGS)
    if isinstance(found, str) and found.strip():
        with suppress(ValueError):
            found = json.loads(found)
    if not found:
        return {}
    if not isinstance(found, Mapping):
        raise MessageError("wrong_type", f"{KWARGS} is {shown(str(found))}; expected an object of names and values")
    # Arrow adds a null for every key that any row has.
    return {name: value for name, value in found.items() if value is not None}


def unread_columns(metadata: Mapping[str, Any]) -> dict[str, int]:
    """The columns of a row that nothing reads, as `Normalised.unread` has them.

    Args:
        metadata: the columns that are not of the conversation.

    Raises:
        MessageError: as `refuse_row_weight`.
    """
    refuse_row_weight(metadata)
    return {f"row.{name}": 1 for name, value in metadata.items() if value is not None and name not in READ_COLUMNS}


def refuse_row_weight(metadata: Mapping[str, Any]) -> None:
    """Raise `MessageError` (`row_weight`) if a row has a weight."""
    if metadata.get("weight") is not None:
        raise MessageError(
            "row_weight",
            f"the row has a weight, {shown(metadata['weight'])}; expected none: rows are not sampled by one. A mixture "
            "is by dataset, type or source (docs/episodes.md); the share of a message in the loss is the 'weight' of "
            "that message. Remove the column, or move it there",
        )
