"""Images in messages: what a part may hold, and what the user's processor makes of it (document 003, DESIGN 2.3).

::

    {"type": "image", "image": ...} --image_part--> ImagePart --Images.process--> ProcessedImage
    at the door: is there an image at all?              only where ids are made: loaded, hashed, processed once
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable
from urllib.parse import unquote, urlsplit

import numpy as np
import numpy.typing as npt

from niels_gpt.errors import MessageError, MissingExtra, UsageError
from niels_gpt.messages import Message

if TYPE_CHECKING:
    from PIL.Image import Image

_TYPES = ("image", "image_url", "input_image")
_FIELDS = ("image", "image_url", "url", "path", "bytes", "base64")
_SOURCES = "a PIL image, bytes, a path, or a data URI (data:image/png;base64,...)"
CACHE_MOST, CACHE_BYTES = 256, 1 << 30


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
        """The place, for people."""
        return f"message {self.msg}: content.{self.number}"


@dataclass(frozen=True)
class ProcessedImage:
    """What the processor made of one image.

    Attributes:
        tokens: how many placeholder tokens stand for it.
        item: the processor's arrays by the names of the model's arguments (`pixel_values`, `image_grid_thw`). They are
            shared with everyone who shows the same image: not to be changed.
    """

    hash: str
    tokens: int
    item: Mapping[str, npt.NDArray[Any]]


# ---- at the door


def is_image(part: Mapping[str, Any]) -> bool:
    """A part of a content says that it is an image."""
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
    """The image that a part of a content is; `None` for a part that is none.

    The shapes in use: `{"type": "image", "image": ...}`, `{"type": "image_url", "image_url": {"url": ...}}`, the
    fields `url`, `path` and `base64` of Transformers, and `{"bytes", "path"}` in place of the image, as `datasets`
    writes it.

    Raises:
        MessageError: `unsupported_content`: an image part without an image, or one that is a text too.
    """
    if not is_image(part):
        if "image" in part or "image_url" in part:
            raise MessageError(
                "unsupported_content",
                f"message {msg}: content.{number} is of type {part.get('type')!r} and holds an image too; expected a "
                "part for each",
            )
        return None
    held: Any = part
    field = ""
    while isinstance(held, Mapping):  # {"image_url": {"url": ...}}
        field = next((name for name in _FIELDS if held.get(name) is not None), "")
        held = held.get(field)
    if not field:
        raise MessageError(
            "unsupported_content",
            f"message {msg}: content.{number} is of type {part.get('type')!r} and holds no image; expected {_SOURCES} "
            "in it, as 'image' or 'image_url'",
        )
    return ImagePart(msg, number, held, field == "base64")


def no_processor(format_name: str, part: ImagePart) -> MessageError:
    """What an image meets where no processor was given."""
    return MessageError(
        "no_processor",
        f"{part.where} is an image, and there is no processor to say how many tokens it takes; make the {format_name} "
        "renderer with processor=transformers.AutoImageProcessor.from_pretrained(MODEL), or drop the row",
    )


# ---- to a PIL image


def load_image(part: ImagePart) -> Image:
    """The image of a part. What is given as a PIL image stays as it is; files are turned as they say, and made RGB.

    Raises:
        MissingExtra: Pillow is not installed. MessageError: `broken_image`, `image_on_network`, `wrong_type`.
    """
    try:
        from PIL import Image, ImageOps
    except ImportError as error:
        raise MissingExtra("Pillow") from error
    try:
        if isinstance(part.source, Image.Image):
            part.source.load()
            return part.source
        with Image.open(_file(part)) as opened:
            return ImageOps.exif_transpose(opened).convert("RGB")
    except FileNotFoundError as error:
        raise MessageError("broken_image", f"{part.where}: no such file: {_shown(part.source)}") from error
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        if isinstance(error, MessageError):
            raise
        raise MessageError(
            "broken_image", f"{part.where} is no image that Pillow can read ({error}); repair it or drop the row"
        ) from error


def _file(part: ImagePart) -> BytesIO | Path:
    """What Pillow opens."""
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
    return Path(unquote(urlsplit(source).path)) if scheme.startswith("file://") else Path(source)


def _decoded(payload: str, part: ImagePart) -> BytesIO:
    try:
        return BytesIO(base64.b64decode("".join(payload.split()), validate=True))
    except (binascii.Error, ValueError) as error:
        raise MessageError("broken_image", f"{part.where} is not base64 ({error}); encode it again") from error


def _shown(source: Any) -> str:
    text = str(source)
    return repr(text if len(text) <= 60 else text[:57] + "...")


def image_hash(image: Image) -> str:
    """sha256 of an image's pixels, size and mode: the same however it came."""
    plain = image.convert("RGBA") if image.mode in ("P", "PA") else image
    told = hashlib.sha256(f"{plain.mode} {plain.size} {plain.info.get('transparency')}".encode())
    told.update(plain.tobytes())
    return told.hexdigest()


# ---- to what a model takes


@runtime_checkable
class _GridProcessor(Protocol):
    """Image processors of Transformers whose images are grids of patches (Qwen's, and Kimi's own in Transformers)."""

    merge_size: int

    def __call__(self, images: Any, **options: Any) -> Mapping[str, Any]: ...


@runtime_checkable
class _MediaProcessor(Protocol):
    """The image processor that Kimi's repositories bring along."""

    def media_tokens_calculator(self, media: Any) -> int: ...

    def preprocess(self, medias: Any, **options: Any) -> Mapping[str, Any]: ...


class Images:
    """The user's processor, and what it made of the last images (by hash).

    Threads may share it, as far as they may share the processor (Transformers' may be). It pickles with the processor.

    Args:
        processor: what `AutoProcessor` or `AutoImageProcessor` gives.
        most: how many images are kept; beside that no more than 1 GiB of arrays.

    Raises:
        UsageError: it is no processor of images.
    """

    def __init__(self, processor: Any, *, most: int = CACHE_MOST) -> None:
        inner = getattr(processor, "image_processor", processor)
        if not isinstance(inner, _GridProcessor | _MediaProcessor):
            raise UsageError(
                f"processor is a {type(processor).__name__}, which counts no tokens of images; expected what "
                "transformers.AutoProcessor or AutoImageProcessor gives for the model"
            )
        self._inner, self.most = inner, most
        self._made: OrderedDict[str, ProcessedImage] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    @classmethod
    def of(cls, processor: Any, most: int) -> Images:
        """Itself where it is one already: the renderers of a pool share what was made."""
        return processor if isinstance(processor, cls) else cls(processor, most=most)

    def process(self, part: ImagePart) -> ProcessedImage:
        """What a model takes for an image, made once for each.

        Raises:
            MissingExtra: Pillow is not installed. MessageError: there is no image, or the processor fails on it
                (`image_refused`). UsageError: the processor gives something else than one grid.
        """
        image = load_image(part)
        key = image_hash(image)
        with self._lock:
            made = self._made.get(key)
            if made is not None:
                self._made.move_to_end(key)
                return made
        made = self._processed(image, key, part)
        with self._lock:
            if key not in self._made:
                self._made[key] = made
                self._bytes += _size(made)
                while len(self._made) > self.most or self._bytes > CACHE_BYTES:
                    self._bytes -= _size(self._made.popitem(last=False)[1])
        return made

    def _processed(self, image: Image, key: str, part: ImagePart) -> ProcessedImage:
        try:
            if isinstance(self._inner, _MediaProcessor):
                medium = {"type": "image", "image": image}
                tokens = int(self._inner.media_tokens_calculator(medium))
                made = self._inner.preprocess([medium], return_tensors="np")
            else:
                made = self._inner(images=[image], return_tensors="np")
                tokens = int(np.prod(_grid(made))) // self._inner.merge_size**2
        except UsageError:
            raise
        except Exception as error:  # a processor may fail with anything; a row is no reason to end a run
            raise MessageError(
                "image_refused",
                f"{part.where}: the processor fails on this image of {image.width} x {image.height} pixels, mode "
                f"{image.mode} ({type(error).__name__}: {error}); change the image or drop the row",
            ) from error
        if tokens < 1:
            raise MessageError(
                "image_refused", f"{part.where}: the processor gives this image {tokens} tokens; expected 1 or more"
            )
        return ProcessedImage(key, tokens, {name: np.asarray(held) for name, held in made.items()})

    def __getstate__(self) -> dict[str, Any]:
        """The processor alone: what was made is made again."""
        return {"processor": self._inner, "most": self.most}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__init__(state["processor"], most=state["most"])  # type: ignore[misc]


def _grid(made: Mapping[str, Any]) -> npt.NDArray[Any]:
    """Patches in time, height and width of the one image.

    Raises:
        UsageError: there is none.
    """
    grid = np.asarray(made["image_grid_thw"]) if "image_grid_thw" in made else np.zeros(0)
    if grid.shape != (1, 3):
        raise UsageError(
            f"the processor gives {', '.join(made)} and a grid of shape {grid.shape} for one image; expected "
            "image_grid_thw of shape (1, 3). Pass the processor of the model"
        )
    return grid


def _size(made: ProcessedImage) -> int:
    return sum(held.nbytes for held in made.item.values())
