"""What `EpisodeWriter` writes: which files a split has (`Columns`), and checked episodes (`Episodes`).

Two episodes with ids a b c and d e, and a mask::

    ids       a b c d e          a value per id: ids, mask, segments
    mask      0 1 1 0 1
    lengths   3 2                a value per episode: lengths, metadata, completions, images

`part(1, 2)` is the second episode alone: a shard ends between episodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from niels_gpt.builds.images import PlacedImage
from niels_gpt.episodes.format import (
    COMPLETION,
    COMPLETIONS_NAME,
    IMAGE_PATHS_NAME,
    IMAGES_NAME,
    INDEX_NAME,
    MASK_DTYPES,
    MASK_NAME,
    MOST_WEIGHT,
    SEGMENT_DTYPES,
    SEGMENTS_NAME,
    TOKEN_DTYPE,
    TOKENS_NAME,
)
from niels_gpt.errors import UsageError

Integers = npt.NDArray[np.integer[Any]]
Weights = npt.NDArray[np.floating[Any]] | npt.NDArray[np.integer[Any]] | npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Columns:
    """The optional files of a split, besides `tokens.bin` and `episodes.idx`.

    Raises:
        UsageError: unknown `mask_dtype` or `segments_dtype`.
    """

    mask_dtype: str | None  # mask.bin: a weight per id
    segments_dtype: str | None  # segment_ids.bin: a number per id
    completions: bool  # completions.bin: a record per episode
    images: bool  # images.idx and image_paths.bin: a record and a path per image
    metadata: bool  # episodes.parquet: type, source and weight of each episode; written by pyarrow

    def __post_init__(self) -> None:
        mask, segments = self.mask_dtype, self.segments_dtype
        if mask is not None and mask not in MASK_DTYPES:
            raise UsageError(f"mask_dtype is {mask!r}; expected one of {', '.join(MASK_DTYPES)}, or None")
        if segments is not None and segments not in SEGMENT_DTYPES:
            raise UsageError(f"segments_dtype is {segments!r}; expected one of {', '.join(SEGMENT_DTYPES)}, or None")

    @property
    def files(self) -> list[str]:
        """The names of all files of a folder but `episodes.parquet`, in the order in which they are finished."""
        optional = {
            MASK_NAME: self.mask_dtype is not None,
            SEGMENTS_NAME: self.segments_dtype is not None,
            COMPLETIONS_NAME: self.completions,
            IMAGE_PATHS_NAME: self.images,
            IMAGES_NAME: self.images,
        }
        # The index last: without it a folder holds no episodes.
        return [TOKENS_NAME, *(name for name, is_written in optional.items() if is_written), INDEX_NAME]


@dataclass(frozen=True, kw_only=True)
class Episodes:
    """Some episodes with their columns, in the dtypes of the files; `checked` makes them.

    A column is `None` (metadata and images: empty) if the split has no file for it.
    """

    ids: npt.NDArray[np.uint32]  # of all episodes, one after the other
    lengths: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]  # where each episode ends in `ids`: lengths 3 2 have ends 3 5
    mask: npt.NDArray[Any] | None  # per id
    segments: npt.NDArray[Any] | None  # per id
    metadata: Sequence[Mapping[str, Any]]
    completions: npt.NDArray[np.void] | None
    images: Sequence[Sequence[PlacedImage]]

    def __len__(self) -> int:
        return len(self.lengths)

    def part(self, first: int, stop: int) -> Episodes:
        """Episodes `first` to `stop` - 1, at least one."""
        start, end = int(self.ends[first] - self.lengths[first]), int(self.ends[stop - 1])
        return Episodes(
            ids=self.ids[start:end],
            lengths=self.lengths[first:stop],
            ends=self.ends[first:stop] - start,
            mask=None if self.mask is None else self.mask[start:end],
            segments=None if self.segments is None else self.segments[start:end],
            metadata=self.metadata[first:stop],
            completions=None if self.completions is None else self.completions[first:stop],
            images=self.images[first:stop],
        )


def checked(
    columns: Columns,
    ids: Integers,
    lengths: Integers,
    weights: Weights | None,
    *,
    metadata: Sequence[Mapping[str, Any]],
    segments: Integers | None,
    completions: npt.NDArray[np.void] | None,
    images: Sequence[Sequence[PlacedImage]],
) -> Episodes:
    """The arguments of `EpisodeWriter.write` as `Episodes`.

    Raises:
        UsageError: a column is missing or not asked for, has another length, or values that its file cannot hold.
    """
    ids, sizes = np.asarray(ids), np.asarray(lengths, dtype=np.int64)
    _check_ids(ids, sizes)
    mask = None if columns.mask_dtype is None else _mask(weights, len(ids), columns.mask_dtype)
    _check_per_episode(columns, len(sizes), metadata, images)
    segments = _segments(segments, len(ids), columns.segments_dtype)
    _check_completions(columns, len(sizes), completions)
    return Episodes(
        ids=ids.astype(TOKEN_DTYPE),
        lengths=sizes,
        ends=np.cumsum(sizes),
        mask=mask,
        segments=segments,
        metadata=metadata,
        completions=None if completions is None else completions.astype(COMPLETION),
        images=images,
    )


def _check_ids(ids: Integers, lengths: npt.NDArray[np.int64]) -> None:
    if lengths.sum() != len(ids) or (lengths.size and lengths.min() < 1):
        raise UsageError(f"{len(ids)} ids for lengths that add up to {lengths.sum()}; expected as many, each above 0")
    if ids.dtype.kind not in "iu":
        raise UsageError(f"ids are {ids.dtype}; expected integers")
    # The file's uint32 would wrap around silently: 2**32 + 5 would be read as 5.
    if ids.size and (ids.min() < 0 or ids.max() >= 2**32):
        raise UsageError(f"ids from {ids.min()} to {ids.max()}; expected 0 to 2**32 - 1")


def _mask(weights: Weights | None, n: int, dtype: str) -> npt.NDArray[Any]:
    """The weights in the dtype of the mask's file."""
    if weights is None or len(weights) != n:
        raise UsageError(f"{n} ids but {0 if weights is None else len(weights)} weights; expected one per id")
    values: npt.NDArray[Any] = np.asarray(weights)
    any_weight = dtype == "float32"
    # NaN fails both comparisons, so it is refused as well.
    valid = (values >= 0) & (values <= MOST_WEIGHT) if any_weight else (values == 0) | (values == 1)
    if not valid.all():
        expected = "0 or more" if any_weight else '0 or 1, or mask_dtype="float32"'
        raise UsageError(f"a weight of {values[~valid][0]} in a mask of {dtype}; expected {expected}")
    return values.astype(MASK_DTYPES[dtype])


def _segments(segments: Integers | None, n: int, dtype: str | None) -> npt.NDArray[Any] | None:
    """The numbers of texts in the dtype of their file."""
    found = 0 if segments is None else len(segments)
    if (dtype is None) != (segments is None) or (segments is not None and found != n):
        raise UsageError(
            f"{n} ids, segments_dtype {dtype} and {found} segments; expected one per id with a segments_dtype, and "
            "none without"
        )
    if segments is None or dtype is None:
        return None
    most = int(np.iinfo(SEGMENT_DTYPES[dtype]).max)
    # Larger numbers would wrap around silently: 0 and 65,536 would be one text.
    if n and (segments.min() < 0 or segments.max() > most):
        raise UsageError(f"segments from {segments.min()} to {segments.max()} in {dtype}; expected 0 to {most:,}")
    return segments.astype(SEGMENT_DTYPES[dtype])


def _check_per_episode(
    columns: Columns, n: int, metadata: Sequence[Mapping[str, Any]], images: Sequence[Sequence[PlacedImage]]
) -> None:
    """Metadata and images, which are sequences with an item for each of the `n` episodes."""
    if columns.metadata and len(metadata) != n:
        raise UsageError(f"{n} episodes but {len(metadata)} rows of metadata; expected one of each")
    if len(images) != (n if columns.images else 0):
        raise UsageError(
            f"{n} episodes, with_images {columns.images} and images of {len(images)}; expected those of each with "
            "with_images, and none without"
        )


def _check_completions(columns: Columns, n: int, completions: npt.NDArray[np.void] | None) -> None:
    """Completions are an array with a record for each of the `n` episodes."""
    if columns.completions != (completions is not None) or (completions is not None and len(completions) != n):
        raise UsageError(
            f"{n} episodes, with_completions {columns.completions} and "
            f"{'no' if completions is None else len(completions)} records of completions; expected one per episode "
            "with with_completions, and none without"
        )
