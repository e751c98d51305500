"""Columns of images, audio or video beside the messages of a row: refused, for nothing here reads them.

::

    {"messages": [...], "videos": ["a.mp4"]}    the model would be trained on an answer to a video that it never saw
    {"messages": [...], "images": ["a.png"]}    the same, unless the messages name as many images themselves
    {"conversations": [...], "image": "a.jpg"}  the same, as LLaVA's data has it

Hub datasets have such columns for TRL, LLaMA-Factory and ms-swift. Empty ones and nulls mean nothing and are metadata.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from niels_gpt.errors import MessageError
from niels_gpt.media import kind_of_file
from niels_gpt.messages import Message

# Column -> what it holds. One in the singular may be any text or number; it counts where it holds a file.
_COLUMNS: Final = {
    **dict.fromkeys(("image", "images"), "image"),
    **dict.fromkeys(("audio", "audios"), "audio"),
    **dict.fromkeys(("video", "videos"), "video"),
}
_NAMES: Final = frozenset(_COLUMNS)
_FILE: Final = ("bytes", "path", "array")  # what `datasets` makes of a file: one of these keys
_SOURCES: Final = ("image", "image_url", "url", "path", "base64", "bytes", "data", "source")  # of a part with an image


def refuse_media_columns(row: Mapping[str, Any], messages: Iterable[Message]) -> None:
    """Refuse a row whose images, audio or video are in a column beside the messages.

    Args:
        messages: all of the row's messages, after `normalise`.

    Raises:
        MessageError: `unsupported_media` for audio and video; `images_in_column` for images that no message names.
    """
    if _NAMES.isdisjoint(row):  # nearly all rows; called for each of them
        return
    messages = list(messages)
    for name, kind in _COLUMNS.items():
        number = _held(row.get(name), plural=name.endswith("s"))
        if number and kind != "image":
            raise MessageError(
                "unsupported_media",
                f"column {name!r} holds {kind} ({number}); expected texts or images: no renderer here can count the "
                f"tokens of {kind}. Drop the row, or remove the column where the messages make sense without it",
            )
        if number and number > (named := sum(map(_named_images, messages))):
            how_many = f"the messages name {named}" if named else "no message names one"
            raise MessageError(
                "images_in_column",
                f"column {name!r} holds images ({number}), and {how_many}; expected each in a content, as "
                '{"type": "image", "image": PATH}. Put them there, drop the row, or remove the column where the '
                "messages make sense without it",
            )


def _held(value: Any, *, plural: bool) -> int:
    """How many files a column's value is; 0 for anything else, such as a title or a number."""
    if value is None or isinstance(value, int | float):
        return 0
    if isinstance(value, str):
        return int(bool(value) and (plural or bool(kind_of_file(value))))
    if isinstance(value, Mapping):
        # Arrow gives every row an object with all keys; in a row without a file each of them is null.
        return int(any(value.get(key) is not None for key in _FILE))
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return len([item for item in value if item is not None]) if plural else 0
    return 1  # bytes, or a decoded picture or sound


def _named_images(message: Message) -> int:
    """How many parts of the message's content are images that name their file or bytes."""
    content = message["content"]
    if isinstance(content, str):
        return 0
    return sum(
        isinstance(part, Mapping)
        and (part.get("type") in ("image", "image_url") or "image" in part or "image_url" in part)
        and any(part.get(key) for key in _SOURCES)
        for part in content
    )
