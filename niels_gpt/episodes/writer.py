"""`EpisodeWriter`: writes the files of one split of an episodes dataset, in one folder or in shards."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from niels_gpt.builds.images import PlacedImage
from niels_gpt.episodes.format import (
    COMPLETION,
    COMPLETIONS_NAME,
    IMAGE,
    IMAGE_PATHS_NAME,
    IMAGES_NAME,
    INDEX_NAME,
    MASK_DTYPES,
    MASK_NAME,
    METADATA_NAME,
    MOST_WEIGHT,
    PREFIXES_NAME,
    SEGMENT_DTYPES,
    SEGMENTS_NAME,
    TOKEN_DTYPE,
    TOKENS_NAME,
    shard_name,
)
from niels_gpt.errors import UsageError, storage_errors
from niels_gpt.extras import check_library
from niels_gpt.ranges import EPISODES_SHARD_BYTES
from niels_gpt.storage.checksums import FileRecord, file_record
from niels_gpt.storage.files import HashedWriter

ROW_GROUP_ROWS = 1 << 13  # of episodes.parquet
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
        with_prefixes: also write `prefixes.idx`; a new shard then begins at an episode without prefix.

    Attributes:
        tokens, episodes, trained_tokens, groups, images, image_tokens: written so far; groups only with completions.
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
        with_prefixes: bool = False,
        with_images: bool = False,
    ) -> None:
        if mask_dtype is not None and mask_dtype not in MASK_DTYPES:
            raise UsageError(f"mask_dtype is {mask_dtype!r}; expected one of {', '.join(MASK_DTYPES)}, or None")
        if segments_dtype is not None and segments_dtype not in SEGMENT_DTYPES:
            raise UsageError(
                f"segments_dtype is {segments_dtype!r}; expected one of {', '.join(SEGMENT_DTYPES)}, or None"
            )
        EPISODES_SHARD_BYTES.check(shard_bytes)
        self.tokens = self.episodes = self.trained_tokens = self.groups = self.images = self.image_tokens = 0
        self.files: dict[str, FileRecord] = {}
        self._folder, self._split, self._mask_dtype = Path(folder), split, mask_dtype
        self._shard_tokens = None if shard_bytes is None else shard_bytes // 4  # `tokens.bin` has 4 bytes a token
        self._with_metadata, self._segments_dtype = with_metadata, segments_dtype
        self._with_completions, self._with_prefixes = with_completions, with_prefixes
        self._with_images = with_images
        self._new_shard = partial(
            _ShardFiles,
            self._folder,
            mask_dtype=mask_dtype,
            with_metadata=with_metadata,
            segments=segments_dtype,
            with_completions=with_completions,
            with_prefixes=with_prefixes,
            with_images=with_images,
        )
        self._shards = 0
        self._open: _ShardFiles | None = None

    def write(
        self,
        ids: npt.NDArray[np.integer[Any]],
        lengths: npt.NDArray[np.integer[Any]],
        weights: Weights | None = None,
        metadata: Sequence[Mapping[str, Any]] = (),
        *,
        segments: npt.NDArray[np.integer[Any]] | None = None,
        completions: npt.NDArray[np.void] | None = None,
        prefixes: npt.NDArray[np.int64] | None = None,
        images: Sequence[Sequence[PlacedImage]] = (),
    ) -> None:
        """Append episodes.

        Args:
            ids: of all episodes, one after the other, shape (n,).
            lengths: how many ids each episode has, shape (episodes,).
            weights: one per id, 0 where it is not trained; `None` only without a mask.
            metadata: with `with_metadata`, a mapping with `type`, `source` and `weight` for each episode.
            segments: with `segments_dtype`, a number per id; where it changes, another text begins.
            completions: with `with_completions`, a record of `format.COMPLETION` per episode, whole groups of them.
            prefixes: with `with_prefixes`, where the tokens before each episode are, shape (episodes, 2): their start,
                counted from the episode's own first id, so below 0; and their number. They lie among the ids of
                episodes since the last one without a prefix, whose number is 0. The first own id after a prefix is not
                trained: where samples share a row, nothing predicts it.
            images: with `with_images`, those of each episode, in the order of their places.

        Raises:
            UsageError: lengths, ids and weights do not belong together, ids are outside uint32, the mask's dtype
                cannot hold the weights, a prefix is not in the preceding episodes, or it is trained.
        """
        ids, lengths = np.asarray(ids), np.asarray(lengths, dtype=np.int64)
        mask = self._checked(ids, lengths, weights)
        if self._with_metadata and len(metadata) != len(lengths):
            raise UsageError(f"{len(lengths)} episodes but {len(metadata)} rows of metadata; expected one of each")
        if len(images) != (len(lengths) if self._with_images else 0):
            raise UsageError(
                f"{len(lengths)} episodes, with_images {self._with_images} and images of {len(images)}; expected those "
                "of each with with_images, and none without"
            )
        self._check_segments(len(ids), segments)
        cuts = self._cuts(len(lengths), completions, prefixes)
        ends = np.cumsum(lengths)
        if prefixes is not None and mask is not None and mask[(ends - lengths)[prefixes[:, 1] > 0]].any():
            raise UsageError("the first id after a prefix is trained; expected a weight of 0: make the prefix shorter")
        first, start = 0, 0  # the first episode and the first id that are not written yet
        while first < len(lengths):
            if self._open is None:  # not before its first episode: a split without any has no directory
                name = self._split if self._shard_tokens is None else f"{self._split}/{shard_name(self._shards)}"
                self._open = self._new_shard(name)
                self._shards += 1
            shard = self._open
            stop = self._stop(shard, ends, first, start, cuts)
            # Otherwise the next episode does not fit into what is left of this shard. It is closed below, and the next
            # one, which is empty, takes at least one episode.
            if stop > first:
                end = int(ends[stop - 1])
                part = None if mask is None else mask[start:end]
                texts = None if segments is None else segments[start:end]
                groups = None if completions is None else completions[first:stop]
                before = None if prefixes is None else prefixes[first:stop]
                shard.write(ids[start:end], lengths[first:stop], part, metadata[first:stop], texts, groups, before)
                shard.write_images(images[first:stop])
                first, start = stop, end
            if first < len(lengths):
                self._close_shard()
        self.tokens += len(ids)
        self.episodes += len(lengths)
        self.groups += 0 if completions is None else int(np.count_nonzero(completions["number"] == 0))
        self.images += sum(map(len, images))
        self.image_tokens += sum(image.tokens for of_episode in images for image in of_episode)
        self.trained_tokens += len(ids) if mask is None else int(np.count_nonzero(mask))

    def _cuts(
        self, n: int, completions: npt.NDArray[np.void] | None, prefixes: npt.NDArray[np.int64] | None
    ) -> npt.NDArray[np.int64] | None:
        """The episodes before which a shard may end, and the end; `None`: before any of the `n` episodes."""
        if self._with_prefixes != (prefixes is not None) or (prefixes is not None and prefixes.shape != (n, 2)):
            raise UsageError(
                f"{n} episodes, with_prefixes {self._with_prefixes} and prefixes of shape "
                f"{None if prefixes is None else prefixes.shape}; expected ({n}, 2) with with_prefixes, else none"
            )
        if self._with_completions != (completions is not None) or (completions is not None and len(completions) != n):
            raise UsageError(
                f"{n} episodes, with_completions {self._with_completions} and "
                f"{'no' if completions is None else len(completions)} records of completions; expected one per episode "
                "with with_completions, and none without"
            )
        if prefixes is None and completions is None:
            return None
        # A record of a prefix names tokens of its own file, so episodes stay with the one that holds what they begin
        # with. A group is one file's, too: numbers 0 1 | 0 1 2 of two groups give 0 2 5.
        may_begin = np.ones(n, np.bool_)
        if prefixes is not None:
            may_begin &= prefixes[:, 1] == 0
        if completions is not None:
            may_begin &= completions["number"] == 0
        return np.append(np.flatnonzero(may_begin), n)

    def _stop(
        self,
        shard: _ShardFiles,
        ends: npt.NDArray[np.int64],
        first: int,
        start: int,
        cuts: npt.NDArray[np.int64] | None,
    ) -> int:
        """The episode before which the shard is full, if `first` and the following are written to it."""
        if self._shard_tokens is None:
            return len(ends)
        # Lengths 3 4 2 have ends 3 7 9. With room for 8 tokens two episodes fit: searchsorted(ends, 8) is 2.
        room = self._shard_tokens - shard.tokens + start
        fitting = int(np.searchsorted(ends, room, side="right"))
        if cuts is None:
            return max(fitting, first + (shard.tokens == 0))  # an empty shard takes one episode of any length
        # Cuts 0 2 5 and `first` 2: at 1. With room for episodes 2 to 3, `fitting` is 4 and the last cut up to it is 2,
        # so nothing is written; with room for 2 to 4, `fitting` is 5, and the shard takes the group 2 3 4.
        at = int(np.searchsorted(cuts, first))
        # An empty shard takes one group of any length. A group that an earlier call began goes on in its shard.
        least = cuts[min(at + (shard.tokens == 0), len(cuts) - 1)]
        fit = int(np.searchsorted(cuts, fitting, side="right"))
        return int(max(cuts[fit - 1], least) if fit else least)

    def _check_segments(self, n: int, segments: npt.NDArray[np.integer[Any]] | None) -> None:
        found = 0 if segments is None else len(segments)
        if (self._segments_dtype is None) != (segments is None) or (segments is not None and found != n):
            raise UsageError(
                f"{n} ids, segments_dtype {self._segments_dtype} and {found} segments; expected one per id with a "
                "segments_dtype, and none without"
            )
        if segments is None or self._segments_dtype is None or not n:
            return
        most = int(np.iinfo(SEGMENT_DTYPES[self._segments_dtype]).max)
        # Larger numbers would wrap around silently: 0 and 65,536 would be one text.
        if segments.min() < 0 or segments.max() > most:
            raise UsageError(
                f"segments from {segments.min()} to {segments.max()} in {self._segments_dtype}; expected 0 to {most:,}"
            )

    def _checked(
        self, ids: npt.NDArray[Any], lengths: npt.NDArray[Any], weights: Weights | None
    ) -> npt.NDArray[Any] | None:
        """The weights as the mask file's dtype; raises `UsageError` unless ids, lengths and weights are usable."""
        if lengths.sum() != len(ids) or (lengths.size and lengths.min() < 1):
            raise UsageError(
                f"{len(ids)} ids for lengths that add up to {lengths.sum()}; expected as many, each above 0"
            )
        if ids.dtype.kind not in "iu":
            raise UsageError(f"ids are {ids.dtype}; expected integers")
        # The file's uint32 would wrap around silently: 2**32 + 5 would be read as 5.
        if ids.size and (ids.min() < 0 or ids.max() >= 2**32):
            raise UsageError(f"ids from {ids.min()} to {ids.max()}; expected 0 to 2**32 - 1")
        if self._mask_dtype is None:
            return None
        if weights is None or len(weights) != len(ids):
            raise UsageError(
                f"{len(ids)} ids but {0 if weights is None else len(weights)} weights; expected one per id"
            )
        values: npt.NDArray[Any] = np.asarray(weights)
        any_weight = self._mask_dtype == "float32"
        # NaN fails both comparisons, so it is refused as well.
        valid = (values >= 0) & (values <= MOST_WEIGHT) if any_weight else (values == 0) | (values == 1)
        if not valid.all():
            expected = "0 or more" if any_weight else '0 or 1, or mask_dtype="float32"'
            raise UsageError(f"a weight of {values[~valid][0]} in a mask of {self._mask_dtype}; expected {expected}")
        return values.astype(MASK_DTYPES[self._mask_dtype])

    def _close_shard(self) -> None:
        if self._open is not None:
            self.files.update(self._open.close())
            self._open = None

    def counts(self) -> dict[str, int]:
        """The counts of what was written, as manifests record them."""
        counts = {"episodes": self.episodes, "tokens": self.tokens, "trained_tokens": self.trained_tokens}
        if self._with_completions:
            counts["groups"] = self.groups
        return {**counts, "images": self.images, "image_tokens": self.image_tokens} if self._with_images else counts

    def close(self) -> None:
        """Finish all files."""
        self._close_shard()

    def abandon(self) -> None:
        """Remove unfinished files; does nothing after `close`."""
        if self._open is not None:
            self._open.abandon()


class _ShardFiles:
    """The files of one folder, open for writing."""

    def __init__(
        self,
        root: Path,
        name: str,
        *,
        mask_dtype: str | None,
        with_metadata: bool,
        segments: str | None,
        with_completions: bool,
        with_prefixes: bool,
        with_images: bool,
    ) -> None:
        self.tokens, self._segments_dtype = 0, segments
        self._episodes_of_images = self._path_bytes = 0
        self._shared_from = 0  # the first token that a prefix may begin with
        self._name, folder = name, root / name
        with storage_errors("creating the directory", folder):
            folder.mkdir(parents=True, exist_ok=True)
        self._ids = HashedWriter(folder / TOKENS_NAME)
        self._records = HashedWriter(folder / INDEX_NAME)
        self._mask = HashedWriter(folder / MASK_NAME) if mask_dtype else None
        self._segments = HashedWriter(folder / SEGMENTS_NAME) if segments else None
        self._completions = HashedWriter(folder / COMPLETIONS_NAME) if with_completions else None
        self._prefixes = HashedWriter(folder / PREFIXES_NAME) if with_prefixes else None
        self._images = HashedWriter(folder / IMAGES_NAME) if with_images else None
        self._image_paths = HashedWriter(folder / IMAGE_PATHS_NAME) if with_images else None
        self._metadata = _MetadataFile(folder / METADATA_NAME) if with_metadata else None
        optional = (self._mask, self._segments, self._completions, self._prefixes, self._image_paths, self._images)
        # In the order in which they are closed, the index last: without it the folder holds no episodes.
        self._writers = [writer for writer in (self._ids, *optional, self._records) if writer is not None]

    def write(
        self,
        ids: npt.NDArray[Any],
        lengths: npt.NDArray[Any],
        mask: npt.NDArray[Any] | None,
        metadata: Sequence[Mapping[str, Any]],
        segments: npt.NDArray[np.integer[Any]] | None,
        completions: npt.NDArray[np.void] | None,
        prefixes: npt.NDArray[np.int64] | None,
    ) -> None:
        # Lengths 3 2 after 10 tokens have ends 13 15: the records (10, 3) and (13, 2).
        ends = self.tokens + np.cumsum(lengths)
        self._ids.write(ids.astype(TOKEN_DTYPE))
        self._records.write(np.stack([ends - lengths, lengths], axis=1).astype("<u8"))
        if self._mask is not None and mask is not None:
            self._mask.write(mask)
        if self._segments is not None and segments is not None:
            self._segments.write(segments.astype(SEGMENT_DTYPES[self._segments_dtype or ""]))
        if self._completions is not None and completions is not None:
            self._completions.write(completions.astype(COMPLETION))
        # The caller counts from the start of each episode, not knowing where in which shard it will be; the file counts
        # from the start of the shard.
        if self._prefixes is not None and prefixes is not None:
            self._prefixes.write(self._records_of(prefixes, ends - lengths).astype("<u8"))
        if self._metadata is not None:
            self._metadata.write(metadata)
        self.tokens += len(ids)

    def write_images(self, images: Sequence[Sequence[PlacedImage]]) -> None:
        """The images of the next episodes."""
        if self._images is None or self._image_paths is None:
            return
        # Numbers of episodes and places of paths begin at 0 in every shard, whose files are read by themselves.
        rows, names = [], []
        for number, episode_images in enumerate(images, self._episodes_of_images):
            for image in episode_images:
                names.append(image.path.encode())
                place = (image.start, image.tokens, image.width, image.height)
                rows.append((number, self._path_bytes, len(names[-1]), *place, list(bytes.fromhex(image.sha256))))
                self._path_bytes += len(names[-1])
        self._images.write(np.array(rows, dtype=IMAGE))
        self._image_paths.write(np.frombuffer(b"".join(names), np.uint8))
        self._episodes_of_images += len(images)

    def _records_of(self, prefixes: npt.NDArray[np.int64], starts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Prefixes as places in the file: (-3, 2) of the episode that starts at 10 is (7, 2)."""
        n = prefixes[:, 1]
        alone = n == 0
        # Where the last episode without a prefix starts: starts 4 9 12, of which 9 has none, give 0 9 9 after a 0.
        owner = np.maximum.accumulate(np.where(alone, starts, self._shared_from))
        self._shared_from = int(owner[-1])
        begins = np.where(alone, 0, starts + prefixes[:, 0])
        wrong = (n < 0) | (~alone & ((begins < owner) | (begins + n > starts)))
        if wrong.any():
            at = int(np.argmax(wrong))
            raise UsageError(
                f"a prefix of {n[at]} ids from {prefixes[at, 0]} on, counted from the episode's first; expected it "
                f"between {owner[at] - starts[at]} and 0"
            )
        return np.stack([begins, n], axis=1)

    def close(self) -> dict[str, FileRecord]:
        records = {f"{self._name}/{writer.path.name}": writer.close() for writer in self._writers}
        if self._metadata is not None:
            records[f"{self._name}/{METADATA_NAME}"] = self._metadata.close()
        return records

    def abandon(self) -> None:
        for writer in self._writers:
            writer.abandon()
        if self._metadata is not None:
            self._metadata.abandon()


class _MetadataFile:
    """Writes `episodes.parquet`, in row groups of a fixed size, so that its bytes do not depend on sizes of writes."""

    def __init__(self, path: Path) -> None:
        check_library("pyarrow")
        # Not at the top: only metadata needs pyarrow, which is an extra and slow to import.
        import pyarrow
        import pyarrow.parquet

        self._path = path
        self._schema = pyarrow.schema(
            [("type", pyarrow.string()), ("source", pyarrow.string()), ("weight", pyarrow.float64())]
        )
        self._table = pyarrow.Table
        self._waiting: list[Mapping[str, Any]] = []
        with storage_errors("creating the file", path):
            self._writer = pyarrow.parquet.ParquetWriter(path, self._schema)

    def write(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self._waiting.extend(rows)
        while len(self._waiting) >= ROW_GROUP_ROWS:
            self._write_group(self._waiting[:ROW_GROUP_ROWS])
            del self._waiting[:ROW_GROUP_ROWS]

    def _write_group(self, rows: Sequence[Mapping[str, Any]]) -> None:
        with storage_errors("writing", self._path):
            self._writer.write_table(self._table.from_pylist([dict(row) for row in rows], schema=self._schema))

    def close(self) -> FileRecord:
        if self._waiting:
            self._write_group(self._waiting)
        with storage_errors("writing", self._path):
            self._writer.close()
            with self._path.open("rb") as file:
                # pyarrow does not flush to the disk, and the manifest must not be there before the data is.
                os.fsync(file.fileno())
        return file_record(self._path)

    def abandon(self) -> None:
        if self._writer.is_open:
            self._writer.close()
            self._path.unlink(missing_ok=True)
