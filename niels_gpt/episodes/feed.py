"""Rows of a split as batches: a pure function from a place to a batch and the place after it."""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from niels_gpt.episodes.batch import EpisodeBatch
from niels_gpt.episodes.counts import Counts, counts_path, keep_counts
from niels_gpt.episodes.dataset import EpisodeSplit
from niels_gpt.episodes.gather import Int64s, Pieces
from niels_gpt.episodes.reading import PieceReader, Texts
from niels_gpt.episodes.schedule import EMPTY, EveryRow, Place, Schedule, batches_left, skip, starting_place, take
from niels_gpt.episodes.settings import flag
from niels_gpt.episodes.state import place_in, state_of
from niels_gpt.errors import UsageError
from niels_gpt.format.collate import inputs_and_targets
from niels_gpt.format.layout import layout
from niels_gpt.format.packing import PackPlan
from niels_gpt.progress import SILENT, Progress
from niels_gpt.seeds import MAX_LENGTH

_log = logging.getLogger("niels_gpt.episodes")


@dataclass(frozen=True)
class FeedOptions:
    """What a feed needs to know; see `GPTEpisodeDataLoader` for the meanings."""

    batch_size: int
    block_size: int
    pad_id: int
    seed: int
    drop_last: bool
    too_long: str
    vocab_size: int | None
    rank: int
    world_size: int
    use_mask: bool = True
    shuffle: bool = True
    global_counts: bool = True

    def __post_init__(self) -> None:
        if self.batch_size * self.block_size >= 2**31:  # places in a batch are int32, as attention kernels want them
            raise UsageError(
                f"a batch of {self.batch_size:,} rows of {self.block_size:,} tokens; expected fewer than 2**31 tokens "
                "together: lower batch_size or block_size"
            )


class EpisodeFeed:
    """Makes the batches of one rank from an opened split, a schedule of rows, and a plan if rows are packed.

    The rows of the global batch (`batch_size * world_size` of them) come from the schedule; rank r has those from
    r * batch_size on. Nothing here changes while batches are made, so any number of threads may ask for any place.
    """

    def __init__(
        self,
        split: EpisodeSplit,
        options: FeedOptions,
        schedule: Schedule,
        plan: PackPlan | None = None,
        counts: Counts | None = None,
    ) -> None:
        self.split, self.options, self.schedule, self.plan, self.counts = split, options, schedule, plan, counts
        self._width = options.block_size + 1
        self._reader = PieceReader(
            split,
            self._width,
            too_long=options.too_long,
            vocab_size=options.vocab_size,
            use_mask=options.use_mask,
        )
        self.fingerprint = self._fingerprint()

    @property
    def uses_mask(self) -> bool:
        """The dataset says which tokens are trained, and is asked."""
        return self._reader.has_masks

    @property
    def global_rows(self) -> int:
        """Rows in a batch over all ranks."""
        return self.options.batch_size * self.options.world_size

    def starting_place(self, place: Place) -> Place:
        """Where the batch at `place` really begins: the next epoch, if this one has too few rows left."""
        return starting_place(self.schedule, place, self.global_rows, drop_last=self.options.drop_last)

    def skip(self, place: Place, batches: int) -> Place:
        """The place after so many batches; reads nothing."""
        return skip(self.schedule, place, self.global_rows, batches, drop_last=self.options.drop_last)

    def batch(self, place: Place) -> tuple[EpisodeBatch, Place]:
        """The batch at a place, on the CPU, and the place after it.

        Raises:
            CacheError: a token outside the vocabulary, or a mask value that is no weight (file and record named).
        """
        o, reader = self.options, self._reader
        rows, after = take(self.schedule, place, self.global_rows, drop_last=o.drop_last)
        first, stop = o.rank * o.batch_size, (o.rank + 1) * o.batch_size
        counted = self.counts.of(self._positions(rows)[1]) if o.global_counts and self.counts else None
        if counted or not o.global_counts:  # then the other ranks' rows need not be looked at
            rows, first, stop = rows[first:stop], 0, o.batch_size
        everyones = self._pieces(rows)
        own = everyones.own(self._width)
        texts = reader.texts(everyones, own)
        weights = reader.weights(everyones, own, texts)[:, 1:]
        pieces = everyones if len(rows) == o.batch_size else everyones.between(first, stop)
        x, y = inputs_and_targets(reader.ids(pieces, own[first:stop], o.pad_id), "cpu")
        mask = weights[first:stop]
        trained, total = _sums(mask)
        all_trained, all_total = counted or ((trained, total) if len(rows) == o.batch_size else _sums(weights))
        batch = EpisodeBatch(
            x=x,
            y=y,
            mask=torch.from_numpy(mask.astype(np.float32, order="C")),
            episodes=pieces.episode,
            num_trained_tokens=trained,
            mask_sum=total,
            global_num_trained_tokens=all_trained if o.global_counts or o.world_size == 1 else None,
            global_mask_sum=all_total if o.global_counts or o.world_size == 1 else None,
            num_tokens=int(pieces.length.sum()),
            state=self.state(after),
            **self._layout(texts.between(first, stop)),
        )
        return batch, after

    def _layout(self, texts: Texts) -> dict[str, Any]:
        """What tells texts of one row apart, where a row may have several."""
        if self.plan is None and not self._reader.has_segments:
            return {}
        found = layout(texts.row, texts.length, B=self.options.batch_size, T=self.options.block_size)
        return {
            "segment_ids": torch.from_numpy(found.segment_ids),
            "position_ids": torch.from_numpy(found.position_ids),
            "cu_seqlens": torch.from_numpy(found.cu_seqlens),
            "max_seqlen": found.max_seqlen,
        }

    def counts_path(self) -> Path:
        """Where the counts of this split's episodes are kept."""
        o = self.options
        return counts_path(self.split, width=self._width, too_long=o.too_long, use_mask=o.use_mask)

    def keep_counts(self, progress: Progress = SILENT) -> None:
        """Count all episodes, keep the numbers beside the dataset, and use them; see `counts.keep_counts`."""
        self.counts = keep_counts(self.counts_path(), len(self.split), self._width, self._count, progress)

    def flat_rows(self, rows: Int64s) -> tuple[npt.NDArray[np.uint32], Int64s, npt.NDArray[Any], Int64s]:
        """Rows without padding, one after another: ids, the rows' lengths, weights, and the tokens' texts (0, 1, ...).

        Rows of texts of 2 and 1 and of 3 tokens: lengths 3 3, texts 0 0 1 0 0 0.
        """
        pieces = self._pieces(rows)
        own = pieces.own(self._width)
        texts = self._reader.texts(pieces, own)
        weights = self._reader.weights(pieces, own, texts)[own]
        numbers = np.arange(len(texts.row)) - np.searchsorted(texts.row, texts.row)
        return self._reader.ids(pieces, own, 0)[own], pieces.used, weights, numbers.repeat(texts.length)

    def _count(self, positions: Int64s) -> tuple[Int64s, npt.NDArray[np.float64]]:
        """Trained targets of the episodes at these positions, and the sums of their masks."""
        pieces = self._cut(np.arange(len(positions)), positions, len(positions))
        own = pieces.own(self._width)
        weights = self._reader.weights(pieces, own, self._reader.texts(pieces, own))
        return np.count_nonzero(weights, axis=1), weights.sum(axis=1, dtype=np.float64)

    def _pieces(self, rows: Int64s) -> Pieces:
        """The episodes of these rows, cut to the rows' width."""
        return self._cut(*self._positions(rows), len(rows))

    def _cut(self, row: Int64s, positions: Int64s, n: int) -> Pieces:
        """The episodes at these positions, as pieces of `n` rows."""
        episodes = self.split.kept[positions]
        shard, start, length = self.split.locate(episodes)
        cut = length > self._width
        if self.options.too_long == "tail":
            start = start + np.maximum(0, length - self._width)
        return Pieces(n, row, episodes, shard, start, np.minimum(length, self._width), cut)

    def _positions(self, rows: Int64s) -> tuple[Int64s, Int64s]:
        """Which episodes (by position) lie in these rows: the row's number here, and the position, of each."""
        filled = np.flatnonzero(rows != EMPTY)
        if self.plan is None:
            return filled, rows[filled]
        first, stop = self.plan.offsets[rows[filled]], self.plan.offsets[rows[filled] + 1]
        sizes = stop - first
        # Rows 7 and 2 hold items 20 21 and 5 6 7 of the plan: places 20 21 5 6 7.
        places = (first - (sizes.cumsum() - sizes)).repeat(sizes)
        places += np.arange(len(places))
        return filled.repeat(sizes), self.plan.items[places].astype(np.int64)

    def in_order(self) -> EpisodeFeed:
        """The same rows, each once, in order and none dropped."""
        n = len(self.split) if self.plan is None else self.plan.rows
        schedule = EveryRow(n, self.options.seed, shuffle=False)
        return EpisodeFeed(self.split, replace(self.options, drop_last=False), schedule, self.plan, self.counts)

    def steps_per_epoch(self) -> int:
        """How many batches an epoch has, on every rank; weighted epochs run on, so that one may have one less.

        Raises:
            UsageError: there are no epochs.
        """
        if self.schedule.n is None:
            raise UsageError("batch_sampling_mode is 'random', which has no epochs; choose your own number of steps")
        drop_last = self.options.drop_last and not self.schedule.runs_on
        return batches_left(self.schedule.n, 0, self.global_rows, drop_last=drop_last)

    def log_epoch(self, epoch: int) -> None:
        """The log line of document 002 when an epoch begins; once, by rank 0."""
        o = self.options
        if self.schedule.n is None or o.rank:
            return
        _log.info(
            "[EpisodeLoader] split=%s epoch=%d episodes=%d batches=%d shuffle=%s drop_last=%s pad_id=%d mask=%s",
            self.split.split,
            epoch,
            len(self.split),
            self.steps_per_epoch(),
            flag(o.shuffle),
            flag(o.drop_last),
            o.pad_id,
            flag(self.uses_mask),
        )

    def state(self, place: Place) -> dict[str, Any]:
        """`place` as a checkpoint keeps it."""
        return state_of(place, fingerprint=self.fingerprint, seed=self.options.seed)

    def place(self, state: dict[str, Any]) -> Place:
        """The place that a checkpoint keeps; raises as `state.place_in`."""
        return place_in(state, fingerprint=self.fingerprint, seed=self.options.seed, rows=self.schedule.n)

    def rows_before(self, place: Place) -> int:
        """How many rows come before a place, over all epochs and ranks."""
        return place.epoch * (self.schedule.n or 0) + place.position

    def place_of(self, row: int) -> Place:
        """The place of a row of the endless order; raises `UsageError` where there is none."""
        if isinstance(row, bool) or not isinstance(row, int) or not 0 <= row <= MAX_LENGTH:
            raise UsageError(f"row is {row!r}; expected a whole number from 0 to 2**62")
        return Place(0, row) if self.schedule.n is None else Place(*divmod(row, self.schedule.n))

    def __reduce__(self) -> tuple[type[EpisodeFeed], tuple[Any, ...]]:
        """A worker that receives a feed opens the files itself; maps would be sent as copies, token by token."""
        return type(self), (self.split, self.options, self.schedule, self.plan, self.counts)

    def _fingerprint(self) -> str:
        """Equal where equal places mean equal rows; batch size, ranks and drop_last do not matter."""
        parts = {
            "split": self.split.fingerprint,
            "rows": self.schedule.describe(),
            "episodes": len(self.split),
            "packed": None if self.plan is None else [self.plan.capacity, self.plan.rows, self.plan.digest()],
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def _sums(weights: npt.NDArray[Any]) -> tuple[int, float]:
    """How many weights are above 0, and their sum."""
    trained = int(np.count_nonzero(weights))
    return trained, float(trained) if weights.dtype == np.uint8 else float(weights.sum(dtype=np.float64))
