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
from niels_gpt.episodes.logs import show_lines
from niels_gpt.episodes.pieces import RowPieces
from niels_gpt.episodes.reading import PieceReader, Texts
from niels_gpt.episodes.schedule import EMPTY, EveryRow, Place, Schedule, batches_left, skip, starting_place, take
from niels_gpt.episodes.settings import flag
from niels_gpt.episodes.state import place_in, state_of
from niels_gpt.errors import UsageError
from niels_gpt.format.collate import shifted
from niels_gpt.format.layout import layout_of
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
        self._rows = RowPieces(split, plan, self._width, too_long=options.too_long)
        self._reader = PieceReader(
            split,
            self._width,
            too_long=options.too_long,
            vocab_size=options.vocab_size,
            use_mask=options.use_mask,
        )
        self.fingerprint, self._earlier_fingerprint = self._fingerprints()

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
        return self.batches(place, 1)[0]

    def batches(self, place: Place, n: int) -> list[tuple[EpisodeBatch, Place]]:
        """At most `n` batches from a place on, each with the place after it; a batch that is not full is the last.

        Together they take less time, because in a small batch numpy's calls cost more than what they do.

        Raises:
            CacheError: as `batch`, for any of them.
        """
        o, reader = self.options, self._reader
        drawn = self._drawn(place, n)
        first, stop = o.rank * o.batch_size, (o.rank + 1) * o.batch_size
        pieces = self._rows.of_rows(np.concatenate([rows[first:stop] for rows, _ in drawn]))
        texts = reader.texts(pieces)
        weights = reader.weights(pieces, texts)[:, 1:]
        x, y = shifted(reader.ids(pieces, o.pad_id))
        mask = weights.astype(np.float32, order="C")
        layouts = self._layouts(texts, pieces, len(drawn))
        ends = pieces.row.searchsorted(np.arange(0, pieces.B + 1, o.batch_size)).tolist()
        made = []
        for number, (rows, after) in enumerate(drawn):
            own = slice(number * o.batch_size, (number + 1) * o.batch_size)
            sums = _sums(weights[own])
            trained, total = self._global_sums(rows, sums)
            batch = EpisodeBatch(
                x=torch.from_numpy(x[own]),
                y=torch.from_numpy(y[own]),
                mask=torch.from_numpy(mask[own]),
                episodes=pieces.episode[ends[number] : ends[number + 1]],
                num_trained_tokens=sums[0],
                mask_sum=sums[1],
                global_num_trained_tokens=trained,
                global_mask_sum=total,
                num_tokens=int(pieces.used[own].sum()),
                state=self.state(after),
                **layouts[number],
            )
            made.append((batch, after))
        return made

    def _drawn(self, place: Place, n: int) -> list[tuple[Int64s, Place]]:
        """The rows of at most `n` global batches, and the place after each."""
        drawn = []
        for _ in range(n):
            rows, place = take(self.schedule, place, self.global_rows, drop_last=self.options.drop_last)
            drawn.append((rows, place))
            if rows[-1] == EMPTY:
                break
        return drawn

    def _global_sums(self, rows: Int64s, own: tuple[int, float]) -> tuple[int | None, float | None]:
        """Trained tokens and mask sum over the rows of all ranks, of which this one's are known."""
        o = self.options
        if o.world_size == 1:
            return own
        if not o.global_counts:  # then the other ranks' rows need not be looked at
            return None, None
        if self.counts:
            return self.counts.of(self._rows.positions(rows))
        pieces = self._rows.of_rows(rows)
        return _sums(self._reader.weights(pieces, self._reader.texts(pieces))[:, 1:])

    def _layouts(self, texts: Texts, pieces: Pieces, n: int) -> list[dict[str, Any]]:
        """What tells texts of one row apart, where a row may have several, for each of `n` batches.

        Two batches of 8 inputs: sequences that start at 0 3 8 12, and the end 16, become 0 3 8 and 0 4 8.
        """
        B, T = self.options.batch_size, self.options.block_size
        if self.plan is None and not self._reader.has_segments:
            return [{}] * n
        found = layout_of(texts.places, pieces.used, T=T)
        starts = found.cu_seqlens
        at = starts.searchsorted(np.arange(0, (n + 1) * B * T, B * T)).tolist()
        longest = np.maximum.reduceat(starts[1:] - starts[:-1], at[:-1]).tolist()
        return [
            {
                "segment_ids": torch.from_numpy(found.segment_ids[i * B : (i + 1) * B]),
                "position_ids": torch.from_numpy(found.position_ids[i * B : (i + 1) * B]),
                "cu_seqlens": torch.from_numpy(starts[at[i] : at[i + 1] + 1] - i * B * T),
                "max_seqlen": longest[i],
            }
            for i in range(n)
        ]

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
        pieces = self._rows.of_rows(rows)
        texts = self._reader.texts(pieces)
        weights = self._reader.weights(pieces, texts)
        own, used = pieces.own, pieces.used
        row = texts.places // texts.width
        # Behind rows of 3 and 3 tokens, of width 5, the texts at places 0 2 5 begin at 0 2 3.
        begins = texts.places - row * texts.width + (used.cumsum() - used)[row]
        lengths = np.diff(begins, append=used.sum())
        numbers = np.arange(len(row)) - row.searchsorted(row)
        return self._reader.ids(pieces, 0)[own], used, weights[own], numbers.repeat(lengths)

    def _count(self, positions: Int64s) -> tuple[Int64s, npt.NDArray[np.float64]]:
        """Trained targets of the episodes at these positions, and the sums of their masks."""
        pieces = self._rows.of_positions(positions)
        weights = self._reader.weights(pieces, self._reader.texts(pieces))
        return np.count_nonzero(weights, axis=1), weights.sum(axis=1, dtype=np.float64)

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
        show_lines()  # a worker process that was not forked has set up nothing
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
        o = self.options
        return place_in(
            state,
            fingerprint=self.fingerprint,
            earlier=self._earlier_fingerprint,
            cutting=f"too_long {o.too_long!r} and block_size {o.block_size}",
            seed=o.seed,
            rows=self.schedule.n,
        )

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

    def _fingerprints(self) -> tuple[str, str]:
        """Equal where equal places mean equal rows; batch size, ranks and drop_last do not matter.

        The second is as states of version 1 have it: without what decides how a long episode is cut.
        """
        parts = {
            "split": self.split.fingerprint,
            "rows": self.schedule.describe(),
            "episodes": len(self.split),
            "packed": None if self.plan is None else [self.plan.capacity, self.plan.rows, self.plan.digest()],
        }
        cutting = {"block_size": self.options.block_size, "too_long": self.options.too_long}
        return _digest(parts | cutting), _digest(parts)


def _digest(parts: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def _sums(weights: npt.NDArray[Any]) -> tuple[int, float]:
    """How many weights are above 0, and their sum."""
    trained = int(np.count_nonzero(weights))
    return trained, float(trained) if weights.dtype == np.uint8 else float(weights.sum(dtype=np.float64))
