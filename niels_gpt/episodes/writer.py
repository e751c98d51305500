"""`EpisodeWriter`: writes the files of one split of an episodes dataset, in one folder or in shards.

::

    write(ids, lengths, ...)
      checked          writer_columns.py    the arguments as `Episodes`, or a `UsageError`
      cuts             here                 the episodes before which a shard may end
      ShardFiles       writer_files.py      what each file of a folder gets

With `shard_bytes=32`, room for 8 tokens a shard, episodes of 3 4 2 5 tokens::

    train/shard_00000    3 4        7 tokens; with 2 more they would be 9
    train/shard_00001    2 5
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from niels_gpt.builds.images import PlacedImage
from niels_gpt.episodes.format import shard_name
from niels_gpt.episodes.writer_columns import Columns, Episodes, Weights, checked
from niels_gpt.episodes.writer_files import ShardFiles
from niels_gpt.ranges import EPISODES_SHARD_BYTES
from niels_gpt.storage.checksums import FileRecord


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
        with_images: bool = False,
    ) -> None:
        self._columns = Columns(
            mask_dtype=mask_dtype,
            segments_dtype=segments_dtype,
            completions=with_completions,
            images=with_images,
            metadata=with_metadata,
        )
        EPISODES_SHARD_BYTES.check(shard_bytes)
        self.tokens = self.episodes = self.trained_tokens = self.groups = self.images = self.image_tokens = 0
        self.files: dict[str, FileRecord] = {}
        self._folder, self._split = Path(folder), split
        self._shard_tokens = None if shard_bytes is None else shard_bytes // 4  # `tokens.bin` has 4 bytes a token
        self._shards = 0
        self._open: ShardFiles | None = None

    def write(
        self,
        ids: npt.NDArray[np.integer[Any]],
        lengths: npt.NDArray[np.integer[Any]],
        weights: Weights | None = None,
        metadata: Sequence[Mapping[str, Any]] = (),
        *,
        segments: npt.NDArray[np.integer[Any]] | None = None,
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
            completions: with `with_completions`, a record of `format.COMPLETION` per episode, whole groups of them.
            images: with `with_images`, those of each episode, in the order of their places.

        Raises:
            UsageError: lengths, ids and weights do not belong together, ids are outside uint32, the mask's dtype
                cannot hold the weights.
        """
        episodes = checked(
            self._columns,
            ids,
            lengths,
            weights,
            metadata=metadata,
            segments=segments,
            completions=completions,
            images=images,
        )
        cuts = _cuts(episodes)
        first = 0  # the first episode that is not written yet
        while first < len(episodes):
            shard = self._open_shard()
            stop = self._stop(shard, episodes, first, cuts)
            # Otherwise the next episode does not fit into what is left of this shard. It is closed below, and the next
            # one, which is empty, takes at least one episode.
            if stop > first:
                shard.write(episodes.part(first, stop))
                first = stop
            if first < len(episodes):
                self._close_shard()
        self._count(episodes)

    def _open_shard(self) -> ShardFiles:
        """The shard that is written to, or a new one."""
        if self._open is None:  # not before its first episode: a split without any has no directory
            name = self._split if self._shard_tokens is None else f"{self._split}/{shard_name(self._shards)}"
            self._open = ShardFiles(self._folder, name, self._columns)
            self._shards += 1
        return self._open

    def _stop(self, shard: ShardFiles, episodes: Episodes, first: int, cuts: npt.NDArray[np.int64] | None) -> int:
        """The episode before which the shard is full, if `first` and the following are written to it."""
        if self._shard_tokens is None:
            return len(episodes)
        # Lengths 3 4 2 have ends 3 7 9. With room for 8 tokens two episodes fit: searchsorted(ends, 8) is 2.
        start = int(episodes.ends[first] - episodes.lengths[first])
        room = self._shard_tokens - shard.tokens + start
        fitting = int(np.searchsorted(episodes.ends, room, side="right"))
        if cuts is None:
            return max(fitting, first + (shard.tokens == 0))  # an empty shard takes one episode of any length
        # Cuts 0 2 5 and `first` 2: at 1. With room for episodes 2 to 3, `fitting` is 4 and the last cut up to it is 2,
        # so nothing is written; with room for 2 to 4, `fitting` is 5, and the shard takes the group 2 3 4.
        at = int(np.searchsorted(cuts, first))
        # An empty shard takes one group of any length. A group that an earlier call began goes on in its shard.
        least = cuts[min(at + (shard.tokens == 0), len(cuts) - 1)]
        fit = int(np.searchsorted(cuts, fitting, side="right"))
        return int(max(cuts[fit - 1], least) if fit else least)

    def _count(self, episodes: Episodes) -> None:
        self.tokens += len(episodes.ids)
        self.episodes += len(episodes)
        self.trained_tokens += len(episodes.ids) if episodes.mask is None else int(np.count_nonzero(episodes.mask))
        if episodes.completions is not None:
            self.groups += int(np.count_nonzero(episodes.completions["number"] == 0))
        self.images += sum(map(len, episodes.images))
        self.image_tokens += sum(image.tokens for of_episode in episodes.images for image in of_episode)

    def counts(self) -> dict[str, int]:
        """The counts of what was written, as manifests record them."""
        counts = {"episodes": self.episodes, "tokens": self.tokens, "trained_tokens": self.trained_tokens}
        if self._columns.completions:
            counts["groups"] = self.groups
        if self._columns.images:
            counts |= {"images": self.images, "image_tokens": self.image_tokens}
        return counts

    def _close_shard(self) -> None:
        if self._open is not None:
            self.files.update(self._open.close())
            self._open = None

    def close(self) -> None:
        """Finish all files."""
        self._close_shard()

    def abandon(self) -> None:
        """Remove unfinished files; does nothing after `close`."""
        if self._open is not None:
            self._open.abandon()


def _cuts(episodes: Episodes) -> npt.NDArray[np.int64] | None:
    """The episodes before which a shard may end, and the number of episodes; `None`: before any of them."""
    if episodes.completions is None:
        return None
    # A group stays in one file: numbers 0 1 | 0 1 2 of two groups give 0 2 5.
    return np.append(np.flatnonzero(episodes.completions["number"] == 0), len(episodes))
