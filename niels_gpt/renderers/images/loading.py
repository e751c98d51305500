"""Images in messages: the forms that a part may have, and how it is loaded.

::

    {"type": "image", "image": ...} --image_part--> ImagePart --Images.process--> ProcessedImage (processors.py)
    when messages are read: is it an image?             when ids are made: loaded, hashed, processed once
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from niels_gpt.errors import MessageError, MissingExtra
from niels_gpt.messages import Message

if TYPE_CHECKING:
    from PIL.Image import Image

_TYPES = ("image", "image_url", "input_image")
_FIELDS = ("image", "image_url", "url", "path", "bytes", "base64")
_SOURCES = "a PIL image, bytes, a path, or a data URI (data:image/png;base64,...)"


@dataclass(frozen=True)
class ImagePart:
    """An image as a message holds it.

    Attributes:
        msg: index of the message; number: of the part in its content.
        source: a PIL image, bytes, a path or a URL; with `encoded`, base64 text.
    """

    msg: int
    number: int
    source: Any
    encoded: bool = False

    @property
    def where(self) -> str:
        """Its place, for errors."""
        return f"message {self.msg}: content.{self.number}"


# ---- is a part an image?


def is_image(part: Mapping[str, Any]) -> bool:
    """Whether a part of a content is an image, by its type or by its fields."""
    return part["type"] in _TYPES if "type" in part else "image" in part or "image_url" in part


def refuse_images(messages: Sequence[Message], reason: str, remedy: str) -> None:
    """Refuse a conversation that holds an image, with the place of the first in front of `remedy`.

    Raises:
        MessageError: with this reason.
    """
    for index, message in enumerate(messages):
        content = message["content"]
        number = (
            None if isinstance(content, str) else next((i for i, part in enumerate(content) if is_image(part)), None)
        )
        if number is not None:
            raise MessageError(reason, f"message {index}: content.{number} is an image; {remedy}")


def image_part(part: Mapping[str, Any], msg: int, number: int) -> ImagePart | None:
    """The image of a content's part; `None` for a part of another kind.

    The forms in use: `{"type": "image", "image": ...}`, `{"type": "image_url", "image_url": {"url": ...}}`, the
    fields `url`, `path` and `base64` of Transformers, and `{"bytes", "path"}` in place of the image, as `datasets`
    writes it.

    Raises:
        MessageError: `unsupported_content`: an image part without an image, or one that is a text too.
    """
    if not is_image(part):
        if "image" in part or "image_url" in part:
            raise MessageError(
                "unsupported_content",
                f"message {msg}: content.{number} is of type {part.get('type')!r} and also holds an image; expected a "
                "part for each",
            )
        return None
    source: Any = part
    field = ""
    # {"image_url": {"url": ...}}; in {"bytes": ..., "path": ...} of `datasets` one of both may be `None`.
    while isinstance(source, Mapping):
        field = next((name for name in _FIELDS if source.get(name) is not None), "")
        source = source.get(field)
    if not field:
        raise MessageError(
            "unsupported_content",
            f"message {msg}: content.{number} is of type {part.get('type')!r} and holds no image; expected {_SOURCES} "
            "in it, as 'image' or 'image_url'",
        )
    return ImagePart(msg, number, source, field == "base64")


# ---- the image of a part


def load_image(part: ImagePart) -> Image:
    """The image of a part. A PIL image is not changed; a file is rotated by its EXIF orientation and converted to RGB.

    Raises:
        MissingExtra: Pillow is not installed. MessageError: `broken_image`, `image_on_network`, `wrong_type`.
    """
    try:
        from PIL import Image, ImageOps
    except ImportError as error:
        raise MissingExtra("Pillow") from error
    try:
        if isinstance(part.source, Image.Image):
            part.source.load()  # Pillow reads files when their pixels are needed: now, where errors are caught
            return part.source
        with Image.open(source_of(part)) as opened:
            return ImageOps.exif_transpose(opened).convert("RGB")
    except FileNotFoundError as error:
        raise MessageError("broken_image", f"{part.where}: no such file: {_shown(part.source)}") from error
    # Pillow's decoders raise all of these for broken files: SyntaxError for a PNG with wrong chunks, struct.error for a
    # file that is cut. `MessageError` is a ValueError and comes from `source_of`.
    except (OSError, ValueError, SyntaxError, TypeError, struct.error, Image.DecompressionBombError) as error:
        if isinstance(error, MessageError):
            raise
        raise MessageError(
            "broken_image", f"{part.where} is no image that Pillow can read ({error}); repair it or drop the row"
        ) from error


def source_of(part: ImagePart) -> BytesIO | Path:
    """The file of an image, or its bytes where the message holds them.

    Raises:
        MessageError: `broken_image`, `image_on_network`, `wrong_type`.
    """
    source = part.source
    if isinstance(source, bytes | bytearray):
        return BytesIO(source)
    if isinstance(source, os.PathLike):
        return Path(source)
    if not isinstance(source, str):
        raise MessageError(
            "wrong_type",
            f"{part.where} is a {type(source).__name__}; expected {_SOURCES}. Image.fromarray makes one of an array",
        )
    if part.encoded:
        return _decoded(source, part)
    # Only the beginning, because a data URI may have megabytes, all of which `lower` would copy.
    scheme = source[:8].lower()
    if scheme.startswith("data:"):
        head, comma, payload = source.partition(",")
        if not comma or not head.endswith(";base64"):
            raise MessageError("broken_image", f"{part.where} is {_shown(source)}; expected data:image/png;base64,...")
        return _decoded(payload, part)
    if scheme.startswith(("http://", "https://")):
        raise MessageError(
            "image_on_network",
            f"{part.where} is at {_shown(source)}; nothing is fetched while rendering. Download it first, and give "
            + _SOURCES,
        )
    if not scheme.startswith("file://"):
        return Path(source)
    try:
        return Path(unquote(urlsplit(source).path))
    except ValueError as error:
        raise MessageError("broken_image", f"{part.where} is {_shown(source)}, no address: {error}") from error


def _decoded(payload: str, part: ImagePart) -> BytesIO:
    try:
        # `validate` refuses characters that Python would skip. White space is allowed: encoders break lines.
        return BytesIO(base64.b64decode("".join(payload.split()), validate=True))
    except (binascii.Error, ValueError) as error:
        raise MessageError("broken_image", f"{part.where} is not base64 ({error}); encode it again") from error


def _shown(source: Any) -> str:
    text = str(source)
    return repr(text if len(text) <= 60 else text[:57] + "...")


def image_hash(image: Image) -> str:
    """sha256 of an image's pixels, size and mode; it does not depend on the file format."""
    # The bytes of a palette image are indices into a palette that the hash would miss.
    plain = image.convert("RGBA") if image.mode in ("P", "PA") else image
    # The transparent colour of an image is not among its pixels.
    digest = hashlib.sha256(f"{plain.mode} {plain.size} {plain.info.get('transparency')}".encode())
    digest.update(plain.tobytes())
    return digest.hexdigest()
