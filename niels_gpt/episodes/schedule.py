"""Which row comes at which position: pure functions of (seed, epoch, position), so that nothing has to be replayed.

A row is an episode, or several packed ones. A `Place` counts rows over all ranks, so it means the same on any number of
ranks, workers and prefetched batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from niels_gpt.episodes.members import digest
from niels_gpt.seeds import derived, order, uniform

Int64s = npt.NDArray[np.int64]
BLOCK = 4096
BELOW_1 = np.nextafter(1.0, 0.0)
EMPTY = -1  # a row that holds nothing: the end of a last batch that is not full


@dataclass(frozen=True)
class Place:
    """How far a split has been read: `position` rows of `epoch`, over all ranks."""

    epoch: int = 0
    position: int = 0


class Schedule(Protocol):
    """The rows of all epochs.

    Attributes:
        n: rows in an epoch; `None` if there are no epochs.
        runs_on: a batch may hold the end of one epoch and the beginning of the next, so that no draw is lost.
    """

    @property
    def n(self) -> int | None: ...

    @property
    def runs_on(self) -> bool: ...

    def rows(self, epoch: int, start: int, stop: int) -> Int64s:
        """The rows at positions `start` to `stop` - 1 of an epoch."""

    def describe(self) -> dict[str, Any]:
        """All that decides the rows, for fingerprints."""


@dataclass(frozen=True)
class EveryRow:
    """Every row once an epoch, shuffled by (seed, epoch) or in order."""

    runs_on: ClassVar[bool] = False

    n: int
    seed: int
    shuffle: bool

    def rows(self, epoch: int, start: int, stop: int) -> Int64s:
        """See `Schedule`."""
        return ordered(self.seed, epoch, self.n, start, stop) if self.shuffle else np.arange(start, stop)

    def describe(self) -> dict[str, Any]:
        """See `Schedule`."""
        return {"kind": "every row", "n": self.n, "shuffle": self.shuffle}


@dataclass(frozen=True)
class RandomRows:
    """Rows drawn with replacement for ever, all equally likely or by weight.

    Attributes:
        among: how many rows there are.
        ends: with weights, the running total of each row's share, up to 1.
    """

    among: int
    seed: int
    ends: npt.NDArray[np.float64] | None = None
    n: None = None
    runs_on: ClassVar[bool] = True

    def rows(self, epoch: int, start: int, stop: int) -> Int64s:
        """See `Schedule`; the epoch is always 0."""
        drawn = uniform(self.seed, np.arange(start, stop))
        if self.ends is None:
            return (drawn * self.among).astype(np.int64)
        return np.searchsorted(self.ends, drawn, side="right")

    def describe(self) -> dict[str, Any]:
        """See `Schedule`."""
        weights = None if self.ends is None else digest(self.ends)
        return {"kind": "random rows", "n": self.among, "weights": weights}


@dataclass(frozen=True)
class WeightedRows:
    """Each row as often as its weight says: n * weight / sum, rounded down or up, every epoch.

    The weights are laid out as lengths along a line of n steps; the row under each step's mark is taken. With weights
    1 2 1 on n = 4 steps and marks at .5 in every step::

        line     |0   |1        |2   |
        marks      .    .    .    .          rows 0 1 1 2

    The marks move with the epoch, so a row of weight 0.3 comes in about three epochs of ten.

    Attributes:
        ends: where each row's part of the line ends, as a share of the whole, up to 1.
    """

    runs_on: ClassVar[bool] = True

    ends: npt.NDArray[np.float64]
    n: int
    seed: int
    shuffle: bool

    def rows(self, epoch: int, start: int, stop: int) -> Int64s:
        """See `Schedule`."""
        slots = ordered(self.seed, epoch, self.n, start, stop) if self.shuffle else np.arange(start, stop)
        mark = uniform(derived(self.seed, "marks"), np.array([epoch]))
        along = np.minimum((slots + mark) / self.n, BELOW_1)  # rounding must not step past the line's end
        return np.searchsorted(self.ends, along, side="right")

    def describe(self) -> dict[str, Any]:
        """See `Schedule`."""
        return {"kind": "weights", "n": self.n, "weights": digest(self.ends), "shuffle": self.shuffle}


def ordered(seed: int, epoch: int, n: int, start: int, stop: int) -> Int64s:
    """Positions `start` to `stop` - 1 of an epoch's order, by whole blocks: a few positions cost almost as much."""
    blocks = [_block(seed, epoch, n, number) for number in range(start // BLOCK, -(-stop // BLOCK))]
    at = start // BLOCK * BLOCK
    whole = blocks[0] if len(blocks) == 1 else np.concatenate([*blocks, np.empty(0, dtype=np.int64)])
    return whole[start - at : stop - at]


@lru_cache(maxsize=8)
def _block(seed: int, epoch: int, n: int, number: int) -> Int64s:
    rows = order(seed, epoch, n)[number * BLOCK : (number + 1) * BLOCK]
    rows.flags.writeable = False
    return rows


def running_shares(weights: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The running total of each weight's share: 1 2 1 -> 0.25 0.75 1.0."""
    total = np.cumsum(weights / weights.max())  # weights near the largest float would add up to infinity
    return np.asarray(total / total[-1])


def take(schedule: Schedule, place: Place, n: int, *, drop_last: bool) -> tuple[Int64s, Place]:
    """The next `n` rows, and the place after them; a last batch that is not full is filled up with `EMPTY` or dropped.

    Epochs of 6 rows in batches of 4, as (epoch, position)::

        drop_last    (0, 0) -> rows 0-3, (0, 4) -> next epoch's 0-3, (1, 4)
        else         (0, 0) -> rows 0-3, (0, 4) -> rows 4 5 and two empty, (0, 6) -> next epoch's 0-3, (1, 4)
        running on   (0, 0) -> rows 0-3, (0, 4) -> rows 4 5 and the next epoch's 0 1, (1, 2)
    """
    if schedule.n is None:
        stop = place.position + n
        return schedule.rows(0, place.position, stop), Place(place.epoch, stop)
    place = starting_place(schedule, place, n, drop_last=drop_last)
    stop = min(schedule.n, place.position + n)
    rows = schedule.rows(place.epoch, place.position, stop)
    after = Place(place.epoch, stop)
    if len(rows) == n:
        return rows, after
    if schedule.runs_on:
        more, after = take(schedule, after, n - len(rows), drop_last=False)
    else:
        more = np.full(n - len(rows), EMPTY)
    return np.concatenate([rows, more]), after


def starting_place(schedule: Schedule, place: Place, n: int, *, drop_last: bool) -> Place:
    """Where the next batch of `n` rows is read: here, or at the next epoch's start if this one has too few left."""
    if schedule.n is None:
        return place
    left = schedule.n - place.position
    return Place(place.epoch + 1, 0) if left < (n if drop_last and not schedule.runs_on else 1) else place


def skip(schedule: Schedule, place: Place, n: int, batches: int, *, drop_last: bool) -> Place:
    """The place after so many batches of `n` rows, by arithmetic alone."""
    if schedule.n is None:
        return Place(place.epoch, place.position + batches * n)
    if batches == 0:
        return place
    if schedule.runs_on:  # (1, 4) in epochs of 6 is row 10 of all; ends of epochs stay ends: 12 is (1, 6)
        epoch, last = divmod(place.epoch * schedule.n + place.position + batches * n - 1, schedule.n)
        return Place(epoch, last + 1)
    place = starting_place(schedule, place, n, drop_last=drop_last)
    here = batches_left(schedule.n, place.position, n, drop_last=drop_last)
    if batches <= here:
        return Place(place.epoch, min(schedule.n, place.position + batches * n))
    epochs, rest = divmod(batches - here - 1, batches_left(schedule.n, 0, n, drop_last=drop_last))
    return Place(place.epoch + 1 + epochs, min(schedule.n, (rest + 1) * n))


def batches_left(rows: int, position: int, n: int, *, drop_last: bool) -> int:
    """How many batches of `n` an epoch still gives: 6 rows from position 4, 4 a batch: none, or 1 that is not full."""
    left = rows - position
    return left // n if drop_last else -(-left // n)
