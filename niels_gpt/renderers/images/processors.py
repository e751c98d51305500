"""`Images`: the user's image processor with a cache of what it made; `MultiModalData`: that of a whole rendering.

The processor decides how many placeholder tokens an image takes, and makes the arrays that the model gets.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from niels_gpt.errors import MessageError, UsageError, shown
from niels_gpt.extras import check_library
from niels_gpt.renderers.images.loading import ImagePart, image_hash, load_image

if TYPE_CHECKING:
    from PIL.Image import Image

# Both are limited: of a megapixel Qwen's processors make 24 MB (four bytes per value and channel, every frame twice).
CACHE_SIZE, CACHE_BYTES = 256, 1 << 30


@dataclass(frozen=True)
class ProcessedImage:
    """The processor's output for one image.

    Attributes:
        hash: see `image_hash`.
        tokens: the number of its placeholder tokens.
        item: the processor's arrays by the names of the model's arguments (`pixel_values`, `image_grid_thw`). They are
            shared by all renderings with the same image and must not be changed.
    """

    hash: str
    tokens: int
    item: Mapping[str, npt.NDArray[Any]]


def no_processor(format_name: str, part: ImagePart) -> MessageError:
    """The error for an image where the renderer has no processor."""
    return MessageError(
        "no_processor",
        f"{part.where} is an image, and there is no processor to say how many tokens it takes; make the {format_name} "
        "renderer with processor=transformers.AutoImageProcessor.from_pretrained(MODEL), or drop the row",
    )


def load_processor(name: str) -> Any:
    """The image processor of a model, from its directory or hub name, by Transformers.

    Raises:
        MissingExtra: Transformers is not installed. UsageError: there is no image processor.
    """
    check_library("transformers")
    from transformers import AutoImageProcessor

    load: Callable[[str], Any] = AutoImageProcessor.from_pretrained
    try:
        return load(name)
    # What Transformers raises for a missing file, an unknown class, an incomplete config, a missing library.
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise UsageError(
            f"{name}: no image processor ({shown(str(error))}); expected preprocessor_config.json there, as "
            "models with images have it"
        ) from error


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
    """The user's processor and a least-recently-used cache of what it made, by the images' hashes.

    Threads may share it if they may share the processor, as Transformers' allow. A pickle holds the processor only.

    Args:
        processor: what `AutoProcessor` or `AutoImageProcessor` gives.
        most: how many images are cached; the cache also holds at most 1 GiB of arrays.

    Raises:
        UsageError: it is no processor of images.
    """

    def __init__(self, processor: Any, *, most: int = CACHE_SIZE) -> None:
        # `AutoProcessor` gives a processor of texts and images that holds the image processor; `AutoImageProcessor` it
        # alone.
        inner = getattr(processor, "image_processor", processor)
        if not isinstance(inner, _GridProcessor | _MediaProcessor):
            raise UsageError(
                f"processor is a {type(processor).__name__}, which counts no tokens of images; expected what "
                "transformers.AutoProcessor or AutoImageProcessor gives for the model"
            )
        self._inner, self.most = inner, most
        self._cache: OrderedDict[str, ProcessedImage] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    @classmethod
    def of(cls, processor: Any, most: int) -> Images:
        """An `Images` is returned as it is, so that the renderers of a pool share one cache."""
        return processor if isinstance(processor, cls) else cls(processor, most=most)

    @property
    def processor(self) -> Any:
        """The image processor that makes the arrays."""
        return self._inner

    def process(self, part: ImagePart) -> ProcessedImage:
        """The processor's output for an image; computed once while it is in the cache.

        Raises:
            MissingExtra: Pillow is not installed.
            MessageError: the image cannot be loaded, or the processor fails on it (`image_refused`).
            UsageError: the processor returns something else than one grid.
        """
        image = load_image(part)
        key = image_hash(image)
        return self.cached(key, lambda: self._run_processor(image, key, part))

    def cached(self, key: str, make: Callable[[], ProcessedImage]) -> ProcessedImage:
        """The value in the cache under this key; if there is none, the result of `make`, which is then stored."""
        with self._lock:
            processed = self._cache.get(key)
            if processed is not None:
                self._cache.move_to_end(key)
                return processed
        # Outside of the lock, because it takes long: two threads may process the same image, and one result is stored.
        processed = make()
        with self._lock:
            if key not in self._cache:
                self._cache[key] = processed
                self._bytes += _size(processed)
                while len(self._cache) > self.most or self._bytes > CACHE_BYTES:
                    self._bytes -= _size(self._cache.popitem(last=False)[1])
        return processed

    def _run_processor(self, image: Image, key: str, part: ImagePart) -> ProcessedImage:
        try:
            if isinstance(self._inner, _MediaProcessor):
                medium = {"type": "image", "image": image}
                tokens = int(self._inner.media_tokens_calculator(medium))
                arrays = self._inner.preprocess([medium], return_tensors="np")
            else:
                arrays = self._inner(images=[image], return_tensors="np")
                # A grid of 1 x 16 x 24 patches, of which 2 x 2 are merged to one token: 384 // 4 = 96 tokens.
                tokens = int(np.prod(_grid(arrays))) // self._inner.merge_size**2
        except UsageError:  # of `_grid`: the processor is wrong for every image
            raise
        # Everything: processors are the models' own code, and one row must not end a build.
        except Exception as error:
            raise MessageError(
                "image_refused",
                f"{part.where}: the processor fails on this image of {image.width} x {image.height} pixels, mode "
                f"{image.mode} ({type(error).__name__}: {error}); change the image or drop the row",
            ) from error
        if tokens < 1:
            raise MessageError(
                "image_refused", f"{part.where}: the processor gives this image {tokens} tokens; expected 1 or more"
            )
        return ProcessedImage(key, tokens, {name: np.asarray(array) for name, array in arrays.items()})

    def __getstate__(self) -> dict[str, Any]:
        """The processor without the cache, which may hold a gigabyte."""
        return {"processor": self._inner, "most": self.most}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__init__(state["processor"], most=state["most"])  # type: ignore[misc]


def _grid(arrays: Mapping[str, Any]) -> npt.NDArray[Any]:
    """The grid of the one image: patches in time, height and width, of shape (1, 3).

    Raises:
        UsageError: there is none.
    """
    grid = np.asarray(arrays["image_grid_thw"]) if "image_grid_thw" in arrays else np.zeros(0)
    if grid.shape != (1, 3):
        raise UsageError(
            f"the processor gives {', '.join(arrays)} and a grid of shape {grid.shape} for one image; expected "
            "image_grid_thw of shape (1, 3). Pass the processor of the model"
        )
    return grid


def _size(processed: ProcessedImage) -> int:
    """The bytes that an entry takes in the cache."""
    return sum(array.nbytes for array in processed.item.values())


# ---- the images of a rendering


@dataclass(frozen=True)
class PlaceholderRange:
    """The placeholder tokens of one image: `token_ids[offset : offset + length]`."""

    offset: int
    length: int


@dataclass(frozen=True)
class MultiModalData:
    """The images of a conversation, in lists by modality ("image"), in order of appearance.

    Attributes:
        mm_hashes: the hash of each image's pixels.
        mm_placeholders: its tokens.
        mm_items: the processor's numpy arrays, by the names of the model's arguments; not compared by `==`.
    """

    mm_hashes: dict[str, list[str]] = field(default_factory=dict)
    mm_placeholders: dict[str, list[PlaceholderRange]] = field(default_factory=dict)
    mm_items: dict[str, list[dict[str, Any]]] = field(default_factory=dict, compare=False)

    def is_empty(self) -> bool:
        """Whether there are no images."""
        return not (self.mm_hashes or self.mm_placeholders or self.mm_items)

    def shifted(self, by: int) -> MultiModalData:
        """The same images, `by` tokens later."""
        places = {
            kind: [PlaceholderRange(place.offset + by, place.length) for place in ranges]
            for kind, ranges in self.mm_placeholders.items()
        }
        return MultiModalData(self.mm_hashes, places, self.mm_items)

    def followed_by(self, later: MultiModalData) -> MultiModalData:
        """These images, and later ones in the same ids."""

        def join(one: dict[str, list[Any]], other: dict[str, list[Any]]) -> dict[str, list[Any]]:
            return {kind: [*one.get(kind, ()), *other.get(kind, ())] for kind in {**one, **other}}

        return MultiModalData(
            join(self.mm_hashes, later.mm_hashes),
            join(self.mm_placeholders, later.mm_placeholders),
            join(self.mm_items, later.mm_items),
        )
