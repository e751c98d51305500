"""Columns of images, audio or video beside the messages of a row: refused, for nothing here reads them.

::

    {"messages": [...], "videos": ["a.mp4"]}    the model would be trained on an answer to a video that it never saw
    {"conversations": [...], "image": "a.jpg"}  the same, unless the messages name as many images themselves
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from niels_gpt.errors import MessageError
from niels_gpt.media import kind_of_file
from niels_gpt.messages import Message

_COLUMNS: Final = frozenset({"image", "images", "audio", "audios", "video", "videos"})
_SOURCES: Final = ("image", "image_url", "url", "path", "base64", "bytes", "data", "source")  # of a part with an image


def refuse_media_columns(row: Mapping[str, Any], messages: Iterable[Message]) -> None:
    """Refuse a row whose images, audio or video are in a column beside the messages.

    Args:
        messages: all of the row's messages, after `normalise`.

    Raises:
        MessageError: `unsupported_media` for audio and video; `images_in_column` for images that no message names.
    """
    if _COLUMNS.isdisjoint(row):  # nearly all rows; called for each of them
        return
    held = {name: _files_in(row[name], name) for name in sorted(_COLUMNS) if row.get(name)}
    parts = [part for message in messages if not isinstance(message["content"], str) for part in message["content"]]
    named = sum("image" in part.get("type", "image") and any(map(part.get, _SOURCES)) for part in parts)
    for name, files in held.items():
        if files > (named if name.startswith("image") else 0):
            raise MessageError(
                "images_in_column" if name.startswith("image") else "unsupported_media",
                f"column {name!r} holds files ({files}), and the messages name {named} images; expected images in a "
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
