"""Rows as conversations, and what every kind of row has beside its messages: tools, options, metadata, media."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import chain
from typing import Any, Final

from niels_gpt.errors import MessageError, shown
from niels_gpt.media import kind_of_file
from niels_gpt.messages import Conversation, Message, Notes, ReadMessages, read_messages, read_tools
from niels_gpt.messages.keys import FLAGS
from niels_gpt.sources.arrow_nulls import without_arrow_nulls
from niels_gpt.sources.mapping import NO_MAPPING, RowMapping
from niels_gpt.sources.rows.provider_shapes import list_at
from niels_gpt.sources.rows.shapes import DIALECTS, KWARGS, Row, Shape, beside, named, prompt_of, turns_of

ARROW_NULLS: Final = "arrow_nulls_dropped"  # counted as rows
_STORED: Final = frozenset({"type", "source"})  # metadata that builds store
_MEDIA: Final = frozenset({"image", "images", "audio", "audios", "video", "videos"})
# The fields of a part that hold an image.
_IMAGE_FIELDS: Final = ("image", "image_url", "url", "path", "base64", "bytes", "data", "source")


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
    shape = DIALECTS[dialect]
    shape.check(row, "no_messages")
    messages = mapping.with_system(read_messages(to_messages(row, shape), notes))
    return as_conversation(row, ReadMessages(messages), shape, where, notes)


def plain_row(row: Row, notes: Notes, *, arrow: bool) -> Row:
    """The row without the nulls that Arrow added."""
    if arrow:
        row, nulls = without_arrow_nulls(row)
        notes.changes.update({ARROW_NULLS: nulls} if nulls else {})
    return row


def to_messages(row: Row, shape: Shape) -> list[Any]:
    """The messages of a row that has this shape, not yet read."""
    if shape.messages:
        return shape.convert(row) if shape.convert else beside(row, list_at(row, shape.messages[0]))
    name, answer = shape.prompt[0], shape.completions[0][0]
    before = prompt_of(row, name)
    if name != "instruction":
        # Only the completion is trained, but in alpaca's rows also the history.
        before = list(map(_untrained, before))
    return beside(row, before + turns_of(row[answer], answer, "assistant"))


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


def refuse_media_columns(row: Mapping[str, Any], messages: Iterable[Message]) -> None:
    """Refuse a row whose images, audio or video are in a column beside the messages, which nothing reads.

    ::

        {"messages": [...], "videos": ["a.mp4"]}    it would be trained as an answer to a video that the model never saw
        {"conversations": [...], "image": "a.jpg"}  the same, unless the messages name as many images themselves

    Args:
        messages: all of the row's messages, after `normalise`.

    Raises:
        MessageError: `unsupported_media` for audio and video; `images_in_column` for images that no message names.
    """
    if _MEDIA.isdisjoint(row):  # nearly all rows; called for each of them
        return
    held = {name: _files_in(row[name], name) for name in sorted(_MEDIA) if row.get(name)}
    parts = [part for message in messages if not isinstance(message["content"], str) for part in message["content"]]
    in_parts = sum("image" in part.get("type", "image") and any(map(part.get, _IMAGE_FIELDS)) for part in parts)
    for name, files in held.items():
        if files > (in_parts if name.startswith("image") else 0):
            raise MessageError(
                "images_in_column" if name.startswith("image") else "unsupported_media",
                f"column {name!r} holds files ({files}), and the messages name {in_parts} images; expected images in a "
                'content, each as {"type": "image", "image": PATH}, and no audio or video. Put images there, drop the '
                "row, or remove the column where the messages make sense without it",
            )


def _files_in(value: Any, column: str) -> int:
    """How many files a column's value is; 0 for anything else, such as a title or a number."""
    if isinstance(value, list):
        return sum(item is not None for item in value) if column.endswith("s") else 0
    if isinstance(value, Mapping):
        # What `datasets` makes of a file. Arrow gives every row an object with all keys.
        return int(any(value.get(key) is not None for key in ("bytes", "path", "array")))
    is_title = isinstance(value, str) and not column.endswith("s") and not kind_of_file(value)
    return int(not is_title and not isinstance(value, int | float))
