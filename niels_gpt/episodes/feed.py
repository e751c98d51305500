"""Rows of a split as batches: a pure function from a place to a batch and the place after it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from niels_gpt.episodes.batch import EpisodeBatch
from niels_gpt.episodes.dataset import EpisodeSplit
from niels_gpt.episodes.gather import Bools, Column, Int64s, Pieces
from niels_gpt.episodes.schedule import EMPTY, Place, Schedule, skip, starting_place, take
from niels_gpt.episodes.state import place_in, state_of
from niels_gpt.errors import CacheError, UsageError
from niels_gpt.format.collate import inputs_and_targets
from niels_gpt.format.fitting import without_cut_turn
from niels_gpt.format.layout import layout
from niels_gpt.format.packing import PackPlan

Weights = npt.NDArray[np.float32]


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
        self, split: EpisodeSplit, options: FeedOptions, schedule: Schedule, plan: PackPlan | None = None
    ) -> None:
        self.split, self.options, self.schedule, self.plan = split, options, schedule, plan
        self._width = options.block_size + 1
        self._tokens = Column([shard.tokens for shard in split.shards], self._width)
        self._masks: Column | None = None
        if split.has_mask and options.use_mask:
            # One token more where the policy must know whether the cut went through a turn.
            wide = self._width + (options.too_long == "drop_partial_turn")
            self._masks = Column([shard.mask for shard in split.shards if shard.mask is not None], wide)
        self._segments: Column | None = None
        if split.has_segments:
            none = np.zeros(1, dtype=np.uint16)
            files = [
                np.broadcast_to(none, len(shard.tokens)) if shard.segments is None else shard.segments
                for shard in split.shards
            ]
            self._segments = Column(files, self._width)
        self.fingerprint = self._fingerprint()

    @property
    def uses_mask(self) -> bool:
        """The dataset says which tokens are trained, and is asked."""
        return self._masks is not None

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
        o = self.options
        rows, after = take(self.schedule, place, self.global_rows, drop_last=o.drop_last)
        episodes, pieces, long = self._pieces(rows)
        first, stop = o.rank * o.batch_size, (o.rank + 1) * o.batch_size
        mine = pieces if o.world_size == 1 else pieces.between(first, stop)
        own = pieces.own(self.global_rows, self._width)
        ids = self._tokens.rows(mine, own[first:stop], o.pad_id)
        a, b = np.searchsorted(pieces.row, [first, stop])
        self._check_ids(ids, episodes[a:b], mine)
        runs = self._runs(pieces)
        weights = self._weights(pieces, own, long, runs, episodes)
        x, y = inputs_and_targets(ids, "cpu")
        targets = weights[:, 1:]
        ours = targets[first:stop]
        extra: dict[str, Any] = {}
        if self.plan is not None or self._segments is not None:
            own_runs = runs.between(first, stop)
            found = layout(own_runs.row, own_runs.length, B=o.batch_size, T=o.block_size)
            extra = {
                "segment_ids": torch.from_numpy(found.segment_ids),
                "position_ids": torch.from_numpy(found.position_ids),
                "cu_seqlens": torch.from_numpy(found.cu_seqlens),
                "max_seqlen": found.max_seqlen,
            }
        trained, total = np.count_nonzero(ours), float(ours.sum(dtype=np.float64))
        alone = o.world_size == 1
        batch = EpisodeBatch(
            x=x,
            y=y,
            mask=torch.from_numpy(ours.astype(np.float32, order="C")),
            episodes=episodes[a:b],
            num_trained_tokens=int(trained),
            mask_sum=total,
            global_num_trained_tokens=int(trained if alone else np.count_nonzero(targets)),
            global_mask_sum=total if alone else float(targets.sum(dtype=np.float64)),
            num_tokens=int(mine.length.sum()),
            state=self.state(after),
            **extra,
        )
        return batch, after

    def _pieces(self, rows: Int64s) -> tuple[Int64s, Pieces, Bools]:
        """The episodes of these rows, where they lie, and which of them are cut."""
        filled = np.flatnonzero(rows != EMPTY)
        if self.plan is None:
            row, positions = filled, rows[filled]
        else:
            first, stop = self.plan.offsets[rows[filled]], self.plan.offsets[rows[filled] + 1]
            row = np.repeat(filled, stop - first)
            # Rows 7 and 2 hold items 20 21 and 5 6 7: places of their items in the plan, row after row.
            begins = np.cumsum(stop - first) - (stop - first)
            places = np.repeat(first - begins, stop - first) + np.arange(len(row))
            positions = self.plan.items[places].astype(np.int64)
        episodes = self.split.kept[positions]
        shard, start, length = self.split.locate(episodes)
        long = length > self._width
        if self.options.too_long == "tail":
            start = start + np.maximum(0, length - self._width)
        return episodes, Pieces(row, shard, start, np.minimum(length, self._width)), long

    def _runs(self, pieces: Pieces) -> Pieces:
        """The texts of each row: its pieces, cut further where the dataset's segment ids change. `start` is the column.

        ::

            pieces      a a a b b         segment ids  0 0 1 1 1        texts  a a | a | b b
        """
        B = self.global_rows
        columns = pieces.columns(B)
        if self._segments is None:
            return Pieces(pieces.row, pieces.shard, columns, pieces.length)
        own, used = pieces.own(B, self._width), pieces.used(B)
        segments = self._segments.rows(pieces, own, 0)
        begins = np.zeros(segments.shape, dtype=np.bool_)
        begins[:, 1:] = (segments[:, 1:] != segments[:, :-1]) & own[:, 1:]
        begins[pieces.row, columns] = True
        row, column = np.nonzero(begins)
        ends = np.append(column[1:], 0)
        last = np.append(row[1:] != row[:-1], True)
        ends[last] = used[row[last]]
        return Pieces(row, np.zeros_like(row), column, ends - column)

    def _weights(self, pieces: Pieces, own: Bools, long: Bools, runs: Pieces, episodes: Int64s) -> npt.NDArray[Any]:
        """The mask of all tokens of the global batch: 0 on padding and on the first token of every text.

        uint8 or float32 of shape (global rows, block_size + 1).
        """
        if self._masks is None:
            weights: npt.NDArray[Any] = own.astype(np.uint8)
        elif self.options.too_long == "drop_partial_turn":
            weights = self._weights_by_turn(pieces, long)
        else:
            weights = self._masks.rows(pieces, own, 0)
        self._check_weights(weights, pieces, episodes)
        weights[runs.row, runs.start] = 0
        return weights

    def _weights_by_turn(self, pieces: Pieces, long: Bools) -> npt.NDArray[Any]:
        """As the dataset says, but nothing on a turn that the row's end cuts."""
        assert self._masks is not None
        longer = Pieces(pieces.row, pieces.shard, pieces.start, pieces.length + long)
        wide = self._masks.rows(longer, longer.own(self.global_rows, self._width + 1), 0)
        weights = wide[:, : self._width].copy()
        rows = pieces.row[long]  # an episode that is cut fills its row, so the row is its own
        weights[rows] = without_cut_turn(wide[rows], self._width)
        return weights

    def _check_ids(self, ids: npt.NDArray[Any], episodes: Int64s, mine: Pieces) -> None:
        limit = self.options.vocab_size
        if limit is None or ids.max(initial=0) < limit:
            return
        row, column = (int(value[0]) for value in np.nonzero(ids >= limit))
        where = self._describe(row, column, mine, episodes)
        raise CacheError(
            f"{where} is {int(ids[row, column])}, outside the vocabulary of {limit:,}; the dataset was made with "
            "another tokenizer, or is damaged. Use the right one, or run: niels-gpt episodes verify"
        )

    def _check_weights(self, weights: npt.NDArray[Any], pieces: Pieces, episodes: Int64s) -> None:
        if weights.dtype == np.uint8:
            fine = weights.max(initial=0) <= 1
        else:
            fine = bool(np.isfinite(weights).all()) and weights.min(initial=0) >= 0
        if fine:
            return
        bad = (weights > 1) if weights.dtype == np.uint8 else ~(np.isfinite(weights) & (weights >= 0))
        row, column = (int(value[0]) for value in np.nonzero(bad))
        where = self._describe(row, column, pieces, episodes)
        expected = "0 or 1" if weights.dtype == np.uint8 else "a weight of 0 or more"
        raise CacheError(f"{where}: mask {weights[row, column]}; expected {expected}. Build the dataset again")

    def _describe(self, row: int, column: int, pieces: Pieces, episodes: Int64s) -> str:
        """Which token of which episode lies at a row and column, in words; counted from the episode's own start."""
        columns = pieces.columns(int(pieces.row.max()) + 1)
        at = int(np.flatnonzero((pieces.row == row) & (columns <= column))[-1])
        _, (start,), _ = self.split.locate(episodes[at : at + 1])
        token = int(pieces.start[at] - start) + column - int(columns[at])
        return f"{self.split.describe(int(episodes[at]))}: token {token:,}"

    def state(self, place: Place) -> dict[str, Any]:
        """`place` as a checkpoint keeps it."""
        return state_of(place, fingerprint=self.fingerprint, seed=self.options.seed)

    def place(self, state: dict[str, Any]) -> Place:
        """The place that a checkpoint keeps; raises as `state.place_in`."""
        return place_in(state, fingerprint=self.fingerprint, seed=self.options.seed, rows=self.schedule.n)

    def _fingerprint(self) -> str:
        """Equal where equal places mean equal rows; batch size, ranks and drop_last do not matter."""
        parts = {
            "split": self.split.fingerprint,
            "rows": self.schedule.describe(),
            "episodes": len(self.split),
            "packed": None if self.plan is None else [self.plan.capacity, self.plan.rows],
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]
