"""The images of episodes: `images.idx` and `image_paths.bin`, and what a loader needs to make arrays of them.

A dataset contains no pixels. For each image it records the path, the hash of the file, and where its placeholder tokens
are. A training script passes the folder of the files and the model's processor
(`renderers.images.stored.StoredImages`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from niels_gpt.errors import CacheError
from niels_gpt.store.files import map_array
from niels_gpt.store.schema import IMAGE, IMAGE_PATHS_NAME, IMAGES_NAME, PlacedImage

Arrays = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class StoredImage(PlacedImage):
    """An image of an episode.

    Attributes:
        episode: its number in the index of its folder.
        where: the index and record, for messages.
    """

    episode: int
    where: str


class ImageSource(Protocol):
    """Makes the arrays of images."""

    def arrays(self, image: StoredImage) -> Arrays:
        """The processor's arrays by the names of the model's arguments.

        Raises:
            CacheError: the file is missing, or another one than when the dataset was built.
        """


@dataclass(frozen=True, eq=False)
class ImageIndex:
    """The images of one folder of episodes, mapped.

    Attributes:
        records: of `store.schema.IMAGE`, in the order of the episodes.
        paths: the bytes of all paths.
    """

    folder: Path
    records: npt.NDArray[np.void]
    paths: npt.NDArray[np.uint8]

    def of(self, episode: int) -> list[StoredImage]:
        """The images of an episode, in the order of their places."""
        # Not `searchsorted`, which would copy the column of the whole file. Images of episodes 0 2 2 5: those of 2 are
        # from the first that is not below 2 to the first that is not below 3, so numbers 1 and 2.
        bounds = (
            bisect_left(self.records, number, key=lambda record: int(record["episode"]))
            for number in (episode, episode + 1)
        )
        return [self[number] for number in range(*bounds)]

    def __getitem__(self, number: int) -> StoredImage:
        record = self.records[number]
        begin, length = int(record["path_start"]), int(record["path_length"])
        return StoredImage(
            episode=int(record["episode"]),
            start=int(record["start"]),
            tokens=int(record["tokens"]),
            width=int(record["width"]),
            height=int(record["height"]),
            # Damaged bytes become a path that no file has, so that the message names it and its record.
            path=self.paths[begin : begin + length].tobytes().decode("utf-8", "replace"),
            sha256=record["sha256"].tobytes().hex(),
            where=f"{self.folder / IMAGES_NAME}: record {number:,}",
        )

    def __len__(self) -> int:
        return len(self.records)


def open_images(folder: Path, episodes: int) -> ImageIndex | None:
    """The images of a folder; `None` if it has none.

    Raises:
        CacheError: the two files do not belong together, or to these episodes.
    """
    path, names = folder / IMAGES_NAME, folder / IMAGE_PATHS_NAME
    if not path.is_file():
        return None
    size = path.stat().st_size
    if size % IMAGE.itemsize or not names.is_file():
        state = "found" if names.is_file() else "missing"
        raise CacheError(
            f"{path}: {size:,} bytes, and {IMAGE_PATHS_NAME} is {state}; expected both, and records of "
            f"{IMAGE.itemsize} bytes. Copy or build the dataset again"
        )
    records = map_array(path, IMAGE)
    paths = map_array(names, "u1")
    # Records ascend by episode, and their paths lie one after the other: the last record has the largest numbers. The
    # others are read when their episodes are.
    last = records[-1:]
    if (last["episode"] >= episodes).any() or (last["path_start"] + last["path_length"] > len(paths)).any():
        raise CacheError(
            f"{path}: the last record is {last[0]}, for {episodes:,} episodes and {len(paths):,} bytes of paths; the "
            "files do not belong together. Copy or build the dataset again"
        )
    return ImageIndex(folder, records, paths)


def joined(images: Sequence[StoredImage], source: ImageSource) -> dict[str, npt.NDArray[Any]]:
    """The arrays of several images, one after the other along the first axis, as models of Transformers take them."""
    # Without an image the names of the arrays are not known, so the result is empty.
    processed = [source.arrays(image) for image in images]
    # Of images of 4 and 6 patches, `pixel_values` of shape (4, d) and (6, d) become (10, d).
    return {
        name: np.concatenate([arrays[name] for arrays in processed]) for name in (processed[0] if processed else ())
    }
