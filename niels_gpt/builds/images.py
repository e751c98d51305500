"""Images of conversations that become a dataset: found in a folder, hashed, and where their placeholder tokens are.

A dataset stores ids and, of each image, its path in the folder, the hash of its file and its place::

    {"type": "image", "image": "cat.png"} --ImageFolder.located--> /photos/cat.png, sha256, 640 x 480
    ids  a b < i i i > c                  --ImageFolder.placed---> the same, and: 3 tokens from 3 on

Images inside of rows (data URIs, base64, bytes) are written to the folder as `inline/SHA256`.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

from niels_gpt.errors import MessageError, MissingExtra, UsageError, storage_errors
from niels_gpt.messages import Message
from niels_gpt.renderers.images.loading import ImagePart, image_part, is_image, source_of
from niels_gpt.renderers.images.processors import MultiModalData
from niels_gpt.store.files import write_atomic
from niels_gpt.store.schema import PlacedImage

INLINE = "inline"


@dataclass(frozen=True)
class ImageFile:
    """An image of a row: its file, the file's name relative to the folder, its hash, and its size in pixels."""

    path: Path
    name: str
    sha256: str
    width: int
    height: int


@dataclass(frozen=True)
class ImageFolder:
    """The folder of the images of rows.

    Args:
        folder: rows name images relative to it; absolute paths must also lie in it.
        processor: of the renderer, recorded in the manifest: it decides how many tokens an image takes.
    """

    folder: Path
    processor: Any = None

    def describe(self) -> dict[str, Any]:
        """The processor's class and a hash of its settings, if readable: these decide the number of tokens."""
        # A processor of transformers for images and text has the one for images inside; others are one themselves.
        inner = getattr(self.processor, "image_processor", self.processor)
        settings = inner.to_dict() if hasattr(inner, "to_dict") else None
        text = None if settings is None else json.dumps(settings, sort_keys=True, default=str)
        digest = None if text is None else hashlib.sha256(text.encode()).hexdigest()
        return {"class": type(inner).__name__, "sha256": digest}

    def located(self, messages: Sequence[Message]) -> tuple[list[Message], list[ImageFile]]:
        """The messages with the absolute path of each image, and the files of the images, in order.

        Raises:
            MessageError: an image that is missing, broken, on the network, in memory or outside of the folder.
            StorageError: an image in a row cannot be written to the folder.
        """
        found: list[ImageFile] = []
        located_messages: list[Message] = []
        for index, message in enumerate(messages):
            if isinstance(message["content"], str):
                located_messages.append(message)
                continue
            parts: list[Any] = []
            for number, part in enumerate(message["content"]):
                image = image_part(part, index, number)
                if image is not None:
                    found.append(self._file_of(image))
                    part = {"type": "image", "image": str(found[-1].path)}
                parts.append(part)
            located_messages.append({**message, "content": parts})
        return located_messages, found

    def placed(self, files: Sequence[ImageFile], media: MultiModalData | None) -> list[PlacedImage]:
        """The files of a conversation, each with its placeholder tokens in the rendering.

        Raises:
            UsageError: the renderer shows another number of images.
        """
        # Both are in the order of the conversation: the renderer has seen the messages that `located` returned.
        places = [] if media is None else media.mm_placeholders.get("image", [])
        if len(places) != len(files):
            raise UsageError(
                f"a conversation with {len(files)} images, of which the renderer shows {len(places)}; expected all. "
                "Use a renderer of a model with images"
            )
        return [
            PlacedImage(place.offset, place.length, file.width, file.height, file.name, file.sha256)
            for place, file in zip(places, files, strict=True)
        ]

    def first_changed(self, images: Iterable[tuple[str, str]]) -> str | None:
        """The first path, of pairs of path and sha256, whose file is missing or changed; each file is read once."""
        known: dict[str, str | None] = {}
        for name, sha256 in images:
            if name not in known:
                try:
                    known[name] = hashlib.sha256((self.folder / name).read_bytes()).hexdigest()
                except OSError:
                    known[name] = None
            if known[name] != sha256:
                return name
        return None

    def _file_of(self, image: ImagePart) -> ImageFile:
        if not isinstance(image.source, str | bytes | bytearray | os.PathLike):
            raise MessageError(
                "wrong_type",
                f"{image.where} is a {type(image.source).__name__}, and a dataset names files; give bytes, a data URI "
                "or a path (of datasets: cast_column(NAME, Image(decode=False)))",
            )
        source = source_of(image)
        # Resolved, because below a path is compared with it after its own links were followed.
        root = self.folder.resolve()
        if isinstance(source, BytesIO):
            data = source.getvalue()
            # Named by its hash: an image that several rows have is stored once, and a build that is repeated finds it.
            path = root / INLINE / hashlib.sha256(data).hexdigest()
            if not path.is_file():
                with storage_errors("creating the directory", path.parent):
                    path.parent.mkdir(parents=True, exist_ok=True)
                write_atomic(path, data)
        else:
            try:
                # Resolved, so that neither `..` nor a link in the folder leads out of it.
                path = (root / source).resolve()
            except ValueError as error:  # a NUL
                raise MessageError("broken_image", f"{image.where} is {str(source)!r}, no path: {error}") from error
            if not path.is_relative_to(root):
                raise MessageError(
                    "image_outside",
                    f"{image.where} is {str(source)!r}, which does not lie in {root}; name the folder of all images "
                    "with --images (images=)",
                )
            try:
                data = path.read_bytes()
            except OSError as error:
                raise MessageError("broken_image", f"{image.where}: {path}: {error.strerror or error}") from error
        width, height = _size_of(data, image)
        return ImageFile(path, path.relative_to(root).as_posix(), hashlib.sha256(data).hexdigest(), width, height)


def has_images(messages: Sequence[Message]) -> bool:
    """Whether some content has a part that is an image."""
    return any(
        is_image(part) for message in messages if not isinstance(message["content"], str) for part in message["content"]
    )


def _size_of(data: bytes, image: ImagePart) -> tuple[int, int]:
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingExtra("Pillow") from error
    try:
        with Image.open(BytesIO(data)) as opened:
            return opened.size
    except Exception as error:  # Pillow's readers raise OSError, SyntaxError, struct.error, ... on damage
        raise MessageError(
            "broken_image", f"{image.where} is no image that Pillow can read ({error}); repair it or drop the row"
        ) from error
