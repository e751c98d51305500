"""Columns of images, audio or video beside the messages of a row: refused, for nothing here reads them.

::

    {"messages": [...], "videos": ["a.mp4"]}    the model would be trained on an answer to a video that it never saw
    {"messages": [...], "images": ["a.png"]}    the same, unless the messages name as many images themselves
    {"conversations": [...], "image": "a.jpg"}  the same, as LLaVA's data has it
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from niels_gpt.errors import MessageError
from niels_gpt.media import kind_of_file
from niels_gpt.messages import Message

_COLUMNS: Final = frozenset({"image", "images", "audio", "audios", "video", "videos"})
_FILE: Final = ("bytes", "path", "array")  # what `datasets` makes of a file: one of these keys
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
    contents = [message["content"] for message in messages]
    named = sum(_is_named_image(part) for content in contents if not isinstance(content, str) for part in content)
    for name in sorted(_COLUMNS):
        held = _files_in(row.get(name), plural=name.endswith("s"))
        if held > (named if name.startswith("image") else 0):
            raise MessageError(
                "images_in_column" if name.startswith("image") else "unsupported_media",
                f"column {name!r} holds files ({held}), and the messages name {named} images; expected images in a "
                'content, each as {"type": "image", "image": PATH}, and no audio or video. Put images there, drop the '
                "row, or remove the column where the messages make sense without it",
            )


def _files_in(value: Any, *, plural: bool) -> int:
    """How many files a column's value is; 0 for anything else, such as a title or a number."""
    if value is None or isinstance(value, int | float):
        return 0
    if isinstance(value, str):
        return int(bool(value) and (plural or bool(kind_of_file(value))))
    if isinstance(value, Mapping):
        # Arrow gives every row an object with all keys; in a row without a file each of them is null.
        return int(any(value.get(key) is not None for key in _FILE))
    if isinstance(value, list | tuple):
        return sum(item is not None for item in value) if plural else 0
    return 1  # bytes, or a decoded picture or sound


def _is_named_image(part: Mapping[str, Any]) -> bool:
    is_image = part.get("type") in ("image", "image_url") or "image" in part or "image_url" in part
    return is_image and any(part.get(key) for key in _SOURCES)
