"""Rows as conversations, and what every kind of row has beside its messages: tools, options, metadata."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import chain
from types import MappingProxyType
from typing import Any, Final

from niels_gpt.errors import MessageError, shown
from niels_gpt.messages import Conversation, Message, Notes, ReadMessages, read_messages, read_tools
from niels_gpt.messages.keys import FLAGS
from niels_gpt.sources.arrow_nulls import without_arrow_nulls
from niels_gpt.sources.mapping import NO_MAPPING, RowMapping
from niels_gpt.sources.rows.media_columns import refuse_media_columns
from niels_gpt.sources.rows.provider_shapes import list_at
from niels_gpt.sources.rows.shapes import DIALECTS, KWARGS, Row, Shape, beside, named, prompt_of, turns_of

ARROW_NULLS: Final = "arrow_nulls_dropped"  # counted as rows
_STORED: Final = frozenset({"type", "source"})  # metadata that builds store

Roles = Mapping[str, str]


def read_chat(row: Row, dialect: str, where: str, mapping: RowMapping = NO_MAPPING, *, arrow: bool) -> Conversation:
    """A row as a conversation.

    Args:
        arrow: it was read through Arrow, whose nulls are dropped, see `arrow_nulls`.

    Raises:
        MessageError: a column is missing, or its value has a wrong type.
    """
    notes = Notes()
    # After the columns have the names by which calls and tools are found.
    row = plain_row(mapping.renamed(row) if mapping else row, notes, arrow=arrow)
    messages = mapping.with_system(read_messages(to_messages(row, dialect, dict(mapping.roles)), notes))
    return as_conversation(row, ReadMessages(messages), DIALECTS[dialect], where, notes)


def plain_row(row: Row, notes: Notes, *, arrow: bool) -> Row:
    """The row without the nulls that Arrow added."""
    if arrow:
        row, nulls = without_arrow_nulls(row)
        notes.changes.update({ARROW_NULLS: nulls} if nulls else {})
    return row


def to_messages(row: Row, dialect: str, roles: Roles = MappingProxyType({})) -> list[Any]:
    """A row's messages, not yet read.

    Args:
        roles: what the rows call some roles -> their names here.

    Raises:
        MessageError: a column of the dialect is missing, or its value has a wrong type.
    """
    shape = DIALECTS[dialect]
    shape.check(row, "no_messages")
    if shape.messages:
        name = named(row, shape.messages) or ""
        turns = with_roles(list_at(row, name), roles)
        # A copy, because the row is the caller's, and its other columns become metadata.
        return shape.convert({**row, name: turns}) if shape.convert else beside(row, turns)
    name = named(row, shape.prompt) or ""
    before = with_roles(prompt_of(row, name), roles)
    if name != "instruction":
        # Only the completion is trained, but in alpaca's rows also the history.
        before = list(map(_untrained, before))
    answer = named(row, shape.completions[0]) or ""
    return beside(row, before + with_roles(turns_of(row[answer], answer, "assistant"), roles))


def with_roles(turns: list[Any], roles: Roles) -> list[Any]:
    """The messages with the roles that the caller has named; `from` is the role in a turn of ShareGPT."""
    return [_with_role(turn, roles) for turn in turns] if roles else list(turns)


def _with_role(message: Any, roles: Roles) -> Any:
    name = "role" if isinstance(message, Mapping) and "role" in message else "from"
    if isinstance(message, Mapping) and isinstance(message.get(name), str) and message[name] in roles:
        return {**message, name: roles[message[name]]}
    return message


def _untrained(message: Any) -> Any:
    if isinstance(message, Mapping) and message.get("role") == "assistant":
        return {key: value for key, value in message.items() if key not in FLAGS} | {"train": False}
    return message


def as_conversation(
    row: Row, messages: list[Message], shape: Shape, where: str, notes: Notes, completions: Iterable[Message] = ()
) -> Conversation:
    """A conversation of messages that were read, and of what is beside them in their row.

    Args:
        completions: messages that are read from the row, but are not of the conversation.

    Raises:
        MessageError: the row has tools, options or a column that cannot be read, or images beside its messages.
    """
    refuse_media_columns(row, chain(messages, completions))
    tools: Any = read_tools(row.get("tools"), notes)
    used = shape.columns
    if row.get("instruction") is not None and named(row, shape.prompt) == "instruction":
        used |= {"input", "history"}
    metadata = {key: value for key, value in row.items() if key not in used}
    if metadata:
        refuse_columns(metadata, tools)
        read = _STORED.union(*shape.scores)
        notes.unread.update({f"row.{key}": 1 for key, one in metadata.items() if one is not None and key not in read})
    return Conversation(messages, where, None, tools, _kwargs_of(row), metadata, notes.changes, notes.unread)


def refuse_columns(metadata: Row, tools: Any) -> None:
    """Raise `MessageError` for the weight of a row (`row_weight`), or functions without tools (`functions`)."""
    weight, functions = metadata.get("weight"), metadata.get("functions")
    if weight is not None:
        raise MessageError(
            "row_weight",
            f"the row has a weight, {shown(weight)}; expected none: rows are not sampled by one. A mixture is by "
            "dataset, type or source (docs/episodes.md); the share of a message in the loss is the 'weight' of that "
            "message. Remove the column, or move it there",
        )
    listed = functions if tools is None and isinstance(functions, list) else []
    declared = sum(isinstance(one, Mapping) and "name" in one for one in listed)
    if declared:
        raise MessageError(
            "functions",
            f"functions declares {declared} tools, and there are no tools; expected them in 'tools', which took "
            "its place: --columns tools=functions",
        )


def _kwargs_of(row: Row) -> dict[str, Any]:
    """The `chat_template_kwargs` of a row, an object or JSON text of one; empty where there are none."""
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
