"""Images to what a model takes: the user's processor, and what it made of the last ones (document 003)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from niels_gpt.errors import MessageError, UsageError
from niels_gpt.forks import new_lock
from niels_gpt.renderers.images import ImagePart, image_hash, load_image

if TYPE_CHECKING:
    from PIL.Image import Image

CACHE_MOST, CACHE_BYTES = 256, 1 << 30


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


def no_processor(format_name: str, part: ImagePart) -> MessageError:
    """What an image meets where no processor was given."""
    return MessageError(
        "no_processor",
        f"{part.where} is an image, and there is no processor to say how many tokens it takes; make the {format_name} "
        "renderer with processor=transformers.AutoImageProcessor.from_pretrained(MODEL), or drop the row",
    )


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
        self._lock = new_lock()

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
