"""`StoredImages`: the images of a dataset, from the folder that holds their files, by the model's own processor."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy.typing as npt

from niels_gpt.errors import CacheError, MessageError, UsageError
from niels_gpt.renderers.images.loading import ImagePart
from niels_gpt.renderers.images.processors import CACHE_SIZE, Images, ProcessedImage
from niels_gpt.store.images import StoredImage


class StoredImages:
    """Reads, checks and processes the images of a dataset; what was processed stays in a cache.

    Pass it to a loader: `ng.loader(path, images=StoredImages("photos", processor), ...)`.

    Args:
        folder: holds the files, by the paths that the dataset names.
        processor: what `transformers.AutoImageProcessor.from_pretrained(MODEL)` gives.
        most: how many images are cached, by the hashes of their files; together at most 1 GiB of arrays.

    Raises:
        UsageError: no such folder, or no processor of images.
    """

    def __init__(self, folder: str | Path, processor: Any, *, most: int = CACHE_SIZE) -> None:
        self.folder = Path(folder)
        if not self.folder.is_dir():
            raise UsageError(f"{folder}: no such directory; expected the folder of the dataset's images")
        self._images = Images.of(processor, most)

    def arrays(self, image: StoredImage) -> Mapping[str, npt.NDArray[Any]]:
        """The processor's arrays of one image, by the names of the model's arguments.

        Raises:
            CacheError: the file is missing or another one than when the dataset was built, or the processor gives it
                another number of tokens. MissingExtra: Pillow is not installed.
        """
        # By the file's hash, before it is read; `process` below caches by the hash of the pixels.
        processed = self._images.cached(f"file {image.sha256}", lambda: self._processed(image))
        if processed.tokens != image.tokens:
            raise CacheError(
                f"{image.where}: {image.path}: the processor gives {processed.tokens} tokens, and the dataset has "
                f"{image.tokens}; expected the processor with which it was built (see its manifest)"
            )
        return processed.item

    def _processed(self, image: StoredImage) -> ProcessedImage:
        path = self.folder / image.path
        # The paths are a dataset's, and `..` or `/etc/passwd` would read files that are not part of it.
        if Path(image.path).is_absolute() or ".." in Path(image.path).parts or "\0" in image.path:
            raise CacheError(
                f"{image.where}: {image.path!r} does not lie in a folder of images; do not trust this dataset"
            )
        try:
            data = path.read_bytes()
        except OSError as error:
            raise CacheError(
                f"{path}: {error.strerror or error}; {image.where} names it. Copy it there, or pass another folder"
            ) from error
        found = hashlib.sha256(data).hexdigest()
        if found != image.sha256:
            raise CacheError(
                f"{path}: sha256 {found}; expected {image.sha256} ({image.where}): it is not the image with which the "
                "dataset was built. Restore it, or build the dataset again"
            )
        # As bytes, so that what was checked is what is read.
        try:
            return self._images.process(ImagePart(0, 0, data))
        except MessageError as error:
            raise CacheError(f"{path}: {error}") from error
