"""`EpisodeWriter`: writes one split of an episodes dataset from arrays of any program, after checking them.

Two episodes with ids a b c and d e, and a mask::

    ids       a b c d e          a value per id: ids, weights, segments
    weights   0 1 1 0 1
    lengths   3 2                a value per episode: lengths, metadata, completions, images
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from niels_gpt.errors import UsageError
from niels_gpt.messages.loss import MOST_WEIGHT
from niels_gpt.ranges import EPISODES_SHARD_BYTES
from niels_gpt.store.checksums import FileRecord
from niels_gpt.store.schema import (
    COMPLETION,
    EPISODES,
    MASK_DTYPES,
    SEGMENT_DTYPES,
    TOKEN_DTYPES,
    PlacedImage,
)
from niels_gpt.store.writer import SplitWriter

Integers = npt.NDArray[np.integer[Any]]
Weights = npt.NDArray[np.floating[Any]] | npt.NDArray[np.integer[Any]] | npt.NDArray[np.bool_]


class EpisodeWriter:
    """Writes one split: ids, masks and index records as they come; a new shard begins between episodes.

    Args:
        folder: the dataset; `split` names the directory in it, which is created with the first episode.
        mask_dtype: "uint8" for 0 and 1, "float32" for weights, `None` for no mask.
        shard_bytes: begin another shard before `tokens.bin` grows beyond this; `None` keeps one file.
        with_metadata: also write `episodes.parquet` (needs pyarrow).
        segments_dtype: also write `segment_ids.bin`, as "uint16" or "uint32".
        with_completions: also write `completions.bin`; a new shard then begins between groups of completions.
        with_images: also write `images.idx` and `image_paths.bin`.

    Attributes:
        trained_tokens, groups, images, image_tokens: written so far; groups only with completions.
        files: the finished files by name, relative to `folder`; complete after `close`.

    Raises:
        UsageError: unknown `mask_dtype` or `segments_dtype`, or `shard_bytes` has no room for one token.
        MissingExtra: no pyarrow.
    """

    def __init__(
        self,
        folder: Path,
        split: str,
        *,
        mask_dtype: str | None = "uint8",
        shard_bytes: int | None = None,
        with_metadata: bool = False,
        segments_dtype: str | None = None,
        with_completions: bool = False,
        with_images: bool = False,
    ) -> None:
        for name, chosen, known in (
            ("mask_dtype", mask_dtype, tuple(MASK_DTYPES)),
            ("segments_dtype", segments_dtype, ("uint16", "uint32")),
        ):
            if chosen is not None and chosen not in known:
                raise UsageError(f"{name} is {chosen!r}; expected one of {', '.join(known)}, or None")
        EPISODES_SHARD_BYTES.check(shard_bytes)
        self.trained_tokens = self.groups = self.images = self.image_tokens = 0
        self._mask_dtype, self._segments_dtype = mask_dtype, segments_dtype
        self._completions, self._images, self._metadata = with_completions, with_images, with_metadata
        dtypes: dict[str, npt.DTypeLike] = {"tokens": TOKEN_DTYPES["uint32"]}
        dtypes |= {"mask": MASK_DTYPES[mask_dtype]} if mask_dtype is not None else {}
        dtypes |= {"segments": SEGMENT_DTYPES[segments_dtype]} if segments_dtype is not None else {}
        dtypes |= {"completions": COMPLETION} if with_completions else {}
        self._writer = SplitWriter(
            Path(folder),
            split,
            EPISODES,
            dtypes,
            shard_bytes=shard_bytes,
            images=with_images,
            metadata=with_metadata,
        )
        self.files: dict[str, FileRecord] = self._writer.files

    @property
    def tokens(self) -> int:
        """The tokens that were written so far."""
        return self._writer.tokens

    @property
    def episodes(self) -> int:
        """The episodes that were written so far."""
        return self._writer.rows

    def write(
        self,
        ids: Integers,
        lengths: Integers,
        weights: Weights | None = None,
        metadata: Sequence[Mapping[str, Any]] = (),
        *,
        segments: Integers | None = None,
        completions: npt.NDArray[np.void] | None = None,
        images: Sequence[Sequence[PlacedImage]] = (),
    ) -> None:
        """Append episodes.

        Args:
            ids: of all episodes, one after the other, shape (n,).
            lengths: how many ids each episode has, shape (episodes,).
            weights: one per id, 0 where it is not trained; `None` only without a mask.
            metadata: with `with_metadata`, a mapping with `type`, `source` and `weight` for each episode.
            segments: with `segments_dtype`, a number per id; where it changes, another text begins.
            completions: with `with_completions`, a record of `COMPLETION` per episode, whole groups of them.
            images: with `with_images`, those of each episode, in the order of their places.

        Raises:
            UsageError: lengths, ids and weights do not belong together, ids are outside uint32, the mask's dtype
                cannot hold the weights.
        """
        ids, sizes = np.asarray(ids), np.asarray(lengths, dtype=np.int64)
        _check_ids(ids, sizes)
        values: dict[str, npt.NDArray[Any]] = {"tokens": ids}
        if self._mask_dtype is not None:
            values["mask"] = _checked_mask(weights, len(ids), self._mask_dtype)
        n = len(sizes)
        _check_count("rows of metadata", len(metadata) if self._metadata else None, n if self._metadata else None)
        _check_count("lists of images", len(images) if images or self._images else None, n if self._images else None)
        found = None if completions is None else len(completions)
        _check_count("records of completions", found, n if self._completions else None)
        found = None if segments is None else len(segments)
        _check_count("segments", found, None if self._segments_dtype is None else len(ids))
        cuts = None
        if segments is not None:
            values["segments"] = _checked_segments(segments, self._segments_dtype or "uint16")
        if completions is not None:
            values["completions"] = completions
            # A group stays in one shard: numbers 0 1 | 0 1 2 of two groups give 0 2.
            cuts = np.flatnonzero(completions["number"] == 0)
            self.groups += len(cuts)
        self._writer.write(values, sizes, cuts=cuts, images=images, metadata=metadata)
        self.trained_tokens += int(np.count_nonzero(values.get("mask", ids >= 0)))
        self.images += sum(map(len, images))
        self.image_tokens += sum(image.tokens for of_episode in images for image in of_episode)

    def counts(self) -> dict[str, int]:
        """The counts of what was written, as manifests record them."""
        counts = {"episodes": self.episodes, "tokens": self.tokens, "trained_tokens": self.trained_tokens}
        if self._completions:
            counts["groups"] = self.groups
        if self._images:
            counts |= {"images": self.images, "image_tokens": self.image_tokens}
        return counts

    def close(self) -> None:
        """Finish all files."""
        self._writer.close()

    def abandon(self) -> None:
        """Remove unfinished files; does nothing after `close`."""
        self._writer.abandon()


def _check_count(what: str, found: int | None, wanted: int | None) -> None:
    """Raise `UsageError` unless there are as many as wanted; `None`: none were passed, or the writer has no file."""
    if found != wanted:
        expected = "none, because the writer was opened without them" if wanted is None else f"{wanted:,}, one for each"
        raise UsageError(f"{'no' if found is None else found} {what}; expected {expected}")


def _checked_segments(segments: Integers, dtype: str) -> Integers:
    most = int(np.iinfo(SEGMENT_DTYPES[dtype]).max)
    # Larger numbers would wrap around silently: 0 and 65,536 would be one text.
    if len(segments) and (segments.min() < 0 or segments.max() > most):
        raise UsageError(f"segments from {segments.min()} to {segments.max()} in {dtype}; expected 0 to {most:,}")
    return segments


def _check_ids(ids: Integers, lengths: npt.NDArray[np.int64]) -> None:
    if lengths.sum() != len(ids) or (lengths.size and lengths.min() < 1):
        raise UsageError(f"{len(ids)} ids for lengths that add up to {lengths.sum()}; expected as many, each above 0")
    if ids.dtype.kind not in "iu":
        raise UsageError(f"ids are {ids.dtype}; expected integers")
    # The file's uint32 would wrap around silently: 2**32 + 5 would be read as 5.
    if ids.size and (ids.min() < 0 or ids.max() >= 2**32):
        raise UsageError(f"ids from {ids.min()} to {ids.max()}; expected 0 to 2**32 - 1")


def _checked_mask(weights: Weights | None, n: int, dtype: str) -> npt.NDArray[Any]:
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
