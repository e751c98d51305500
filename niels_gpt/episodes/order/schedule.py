"""Schedules: which row comes at which position, as pure functions of (seed, epoch, position).

A row is what fills one line of a batch: one episode, or several packed ones. A schedule numbers the positions of an
epoch from 0 and maps each to a row. Nothing but the position decides, so no state has to be replayed: a resumed run
continues at its next position, and each rank computes its own part of a batch.

A `Place` is an epoch and a position in it, counted over all ranks, so it means the same for any number of ranks,
workers and prefetched batches. Epochs of 6 rows in global batches of 4::

    EveryRow       epoch 0   3 0 5 1 | 4 2 . .               `.` is EMPTY; with drop_last this batch is left out
                   epoch 1   5 4 0 2 | 1 3 . .
    GroupedRows    epochs    3 0 5 1 | 4 2 5 4 | 0 2 1 3     crosses_epochs: batches run across the epochs' ends

`states` turns a place into a checkpoint state and back.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from niels_gpt.episodes.index_sets import IndexSet, Int64s, digest
from niels_gpt.episodes.order.states import Place
from niels_gpt.seeds import derived, order, uniform

BLOCK = 4096  # positions of an order that are computed and cached together
EMPTY = -1  # the number of an empty row, which fills up an epoch's last batch

_log = logging.getLogger("niels_gpt.episodes")


class Schedule(Protocol):
    """Maps every position of every epoch to a row.

    Attributes:
        n: rows in an epoch; `None` if there are no epochs.
        crosses_epochs: a batch may hold the end of one epoch and the beginning of the next. Weighted schedules do
            that, because dropping a last batch would change the proportions.
    """

    @property
    def n(self) -> int | None: ...

    @property
    def crosses_epochs(self) -> bool: ...

    def rows(self, epoch: int, start: int, stop: int) -> Int64s:
        """The rows at positions `start` to `stop` - 1 of an epoch."""

    def describe(self) -> dict[str, Any]:
        """Everything that decides the rows, as JSON values; part of a loader's fingerprint."""


@dataclass(frozen=True)
class EveryRow:
    """Every row once an epoch, shuffled by (seed, epoch) or in ascending order."""

    crosses_epochs: ClassVar[bool] = False

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
    """Rows drawn with replacement, without end, all equally likely.

    Attributes:
        among: how many rows there are.
    """

    among: int
    seed: int
    n: None = None
    crosses_epochs: ClassVar[bool] = True

    def rows(self, epoch: int, start: int, stop: int) -> Int64s:
        """See `Schedule`; there are no epochs, so `epoch` is not used."""
        # Truncated: 0.0 to below 1.0 times 6 gives 0 to 5.
        return (uniform(self.seed, np.arange(start, stop)) * self.among).astype(np.int64)

    def describe(self) -> dict[str, Any]:
        """See `Schedule`."""
        # `weights` is part of fingerprints, which must not change.
        return {"kind": "random rows", "n": self.among, "weights": None}


@dataclass(frozen=True)
class Group:
    """The rows of one type, source or dataset, and how many of them an epoch draws (0 if there are no epochs)."""

    name: str
    members: IndexSet
    share: int


@dataclass(frozen=True)
class RandomGroups:
    """Rows drawn with replacement, without end: a group in proportion to its share, then one of its members uniformly.

    One random number decides both. Two groups with shares 0.25 and 0.75, the second with 3 members::

        drawn      0     .25   .5    .75   1
        group      |  0  |        1        |
        member     |     |  0  |  1  |  2  |
    """

    groups: Sequence[Group]
    ends: npt.NDArray[np.float64]
    seed: int
    n: None = None
    crosses_epochs: ClassVar[bool] = True

    def rows(self, epoch: int, start: int, stop: int) -> Int64s:
        """See `Schedule`; there are no epochs, so `epoch` is not used."""
        drawn = uniform(self.seed, np.arange(start, stop))
        owner = np.searchsorted(self.ends, drawn, side="right")
        begins = np.append(0.0, self.ends[:-1])
        # The place inside the group's part, 0 to 1: drawn 0.5 in a part from 0.25 to 1 is a third of the way.
        within = (drawn - begins[owner]) / (self.ends - begins)[owner]
        rows = np.empty(len(drawn), dtype=np.int64)
        for number in np.unique(owner).tolist():
            members, here = self.groups[number].members, owner == number
            at = (within[here] * len(members)).astype(np.int64)
            rows[here] = members[np.minimum(at, len(members) - 1)]  # a quotient rounded up to 1 would be past the end
        return rows

    def describe(self) -> dict[str, Any]:
        """See `Schedule`."""
        members = [[group.name, digest(group.members)] for group in self.groups]
        return {"kind": "random groups", "groups": members, "weights": digest(self.ends)}


@dataclass(frozen=True)
class GroupedRows:
    """Exactly `share` rows of each group in every epoch; within a group, every member comes before one repeats.

    A group continues in the next epoch where it stopped. A group of 3 members (a b c) with a share of 2::

        epoch         0     1       2
        draw          0 1   2   3   4 5
        member        b a   c | c   a b      `|`: all members have come once, the next 3 draws are shuffled anew
    """

    crosses_epochs: ClassVar[bool] = True

    groups: Sequence[Group]
    seed: int
    shuffle: bool

    @property
    def n(self) -> int:
        """Rows in an epoch: the sum of the shares."""
        return sum(group.share for group in self.groups)

    def rows(self, epoch: int, start: int, stop: int) -> Int64s:
        """See `Schedule`; without shuffling, one group after the other."""
        slots = ordered(self.seed, epoch, self.n, start, stop) if self.shuffle else np.arange(start, stop)
        return self.draw(slots, [(group.share, epoch * group.share) for group in self.groups])

    def draw(self, slots: Int64s, parts: Sequence[tuple[int, int]]) -> Int64s:
        """The rows in some slots; the slots of a group follow those of the group before it.

        Args:
            slots: int64, shape (n,), each below the sum of all groups' slots.
            parts: of each group: how many slots it has, and which of its draws the first one is, counted through all
                epochs.
        """
        # Shares 2 3 1 have bounds 0 2 5 6: slot 4 belongs to group 1 and is its draw 4 - 2 = 2 of this epoch.
        bounds = np.cumsum([0, *(share for share, _ in parts)])
        owner = np.searchsorted(bounds, slots, side="right") - 1
        rows = np.empty(len(slots), dtype=np.int64)
        for number in np.unique(owner).tolist():
            group, here = self.groups[number], owner == number
            size = len(group.members)
            # Draw 7 of a group of 3 is member 1 of its third round.
            rounds, within = np.divmod(parts[number][1] + slots[here] - bounds[number], size)
            if self.shuffle:
                # By name, so that adding a group does not reshuffle the others.
                seed = derived(self.seed, f"group {group.name}")
                # A batch touches one round, or two where one ends.
                for turn in np.unique(rounds).tolist():
                    of_round = rounds == turn
                    within[of_round] = order(seed, turn, size)[within[of_round]]
            rows[here] = group.members[within]
        return rows

    def describe(self) -> dict[str, Any]:
        """See `Schedule`."""
        groups = [[group.name, digest(group.members), group.share] for group in self.groups]
        return {"kind": "groups", "groups": groups, "shuffle": self.shuffle}


@dataclass(frozen=True)
class PhasedRows:
    """A curriculum: an epoch is several phases, each with its own number of rows of each group.

    A group continues in the next phase where it stopped, and in the next epoch where the last phase did. Group a of 3
    rows and group b of 2, phases of 2 a and 1 b, then of 1 a and 2 b::

        epoch 0     a1 b0 a0 | b1 a2 b0         within a phase the order is random

    Attributes:
        grouped: the groups, each with its rows of all phases together as its share.
        phases: rows of each group in each phase.
    """

    crosses_epochs: ClassVar[bool] = True

    grouped: GroupedRows
    phases: tuple[tuple[int, ...], ...]

    @property
    def n(self) -> int:
        """Rows in an epoch: those of all phases."""
        return self.grouped.n

    def rows(self, epoch: int, start: int, stop: int) -> Int64s:
        """See `Schedule`."""
        ends = np.cumsum([sum(phase) for phase in self.phases]).tolist()
        parts, at = [np.empty(0, dtype=np.int64)], start
        while at < stop:
            # Phases that end at 3 and 6: position 2 is in phase 0, position 3 in phase 1.
            number = int(np.searchsorted(ends, at, side="right"))
            begin, until = ends[number] - sum(self.phases[number]), min(stop, ends[number])
            parts.append(self._rows_of(epoch, number, at - begin, until - begin))
            at = until
        return np.concatenate(parts)

    def _rows_of(self, epoch: int, number: int, start: int, stop: int) -> Int64s:
        """The rows at some positions of one phase."""
        phase = self.phases[number]
        # A seed of its own for each phase, or phases of the same length would have the same order.
        seed = derived(self.grouped.seed, f"phase {number}")
        slots = ordered(seed, epoch, sum(phase), start, stop) if self.grouped.shuffle else np.arange(start, stop)
        # Phases of 2 a 1 b and 1 a 2 b: in epoch 1 the draws before phase 1 are 3 + 2 of a, and 3 + 1 of b.
        before = [sum(earlier) for earlier in zip(*self.phases[:number], strict=True)] or [0] * len(phase)
        firsts = [epoch * group.share + past for group, past in zip(self.grouped.groups, before, strict=True)]
        return self.grouped.draw(slots, list(zip(phase, firsts, strict=True)))

    def describe(self) -> dict[str, Any]:
        """See `Schedule`."""
        return {**self.grouped.describe(), "kind": "phases", "phases": [list(phase) for phase in self.phases]}


@dataclass(frozen=True, eq=False)
class ShardWindows:
    """Every row once an epoch, shuffled within windows of `window` shards; the shards have a new order every epoch.

    For datasets that arrive shard by shard: only two windows have to be on the disk at a time. Four shards of two rows
    in windows of two::

        shards       3 1 | 0 2              a new order in every epoch
        rows         6 3 7 2 | 1 4 0 5      every row of a window's shards, before the first of the next window

    Attributes:
        bounds: the first row of each shard and, last, the number of rows; int64, shape (shards + 1,).
        window: shards in a window, at least 1.
    """

    crosses_epochs: ClassVar[bool] = False

    bounds: Int64s
    window: int
    seed: int
    shuffle: bool

    @property
    def n(self) -> int:
        """Rows in an epoch."""
        return int(self.bounds[-1])

    def rows(self, epoch: int, start: int, stop: int) -> Int64s:
        """See `Schedule`."""
        if not self.shuffle:
            return np.arange(start, stop)
        shards, ends = self._epoch(epoch)
        # Windows that end at rows 5 10 11: position 5 has one end at or below it, so it is in window 1.
        first = int(ends.searchsorted(start, side="right"))
        parts, at = [np.empty(0, dtype=np.int64)], start
        while at < stop:
            begin, end = (int(ends[first - 1]) if first else 0), int(ends[first])
            until = min(stop, end)
            # The window's own permutation, as if its shards' rows were numbered from 0 in the order of the shards.
            seed = derived(self.seed, f"window {first}")
            places = ordered(seed, epoch, end - begin, at - begin, until - begin)
            parts.append(self._rows_of(shards[first * self.window : (first + 1) * self.window], places))
            at, first = until, first + 1
        return np.concatenate(parts)

    def _rows_of(self, shards: Int64s, places: Int64s) -> Int64s:
        """Rows by their number within some shards: of shards with the rows 6 7 and 2 3, number 2 is row 2."""
        # In the example firsts 6 2 and ends 2 4: number 2 has one end at or below it, so it is in the second shard,
        # whose row 2 + 2 - 2 = 2 it is.
        firsts = self.bounds[shards]
        ends = np.cumsum(self.bounds[shards + 1] - firsts)
        shard = ends.searchsorted(places, side="right")
        before = np.concatenate([[0], ends[:-1]])[shard]
        return np.asarray(firsts[shard] + places - before)

    def window_at(self, place: Place) -> tuple[int, int]:
        """The epoch and the number of the window in which a place is."""
        _, ends = self._epoch(place.epoch)
        return place.epoch, int(ends.searchsorted(place.position, side="right"))

    def most_windows(self, rows: int) -> int:
        """How many windows so many rows that follow each other are in, at most; two at least.

        Three windows of 5 rows: 7 rows may be all of the second, and one of each of the others.
        """
        # The fewest rows that 1, 2, ... whole windows can have are those of the smallest shards. Sizes 1 3 5 5 in
        # windows of 2: 4 and 14. So 6 rows or more may hold a whole window, and one row at each side of it.
        smallest = np.cumsum(np.sort(np.diff(self.bounds)))[self.window - 1 :: self.window]
        return 2 + int(np.searchsorted(smallest, rows - 2, side="right"))

    def shards_from(self, place: Place) -> Iterator[Int64s]:
        """The shards of the window at a place, those of the next one, and so on without end."""
        epoch, first = self.window_at(place)
        shards, _ = self._epoch(epoch)
        while True:
            for at in range(first * self.window, len(shards), self.window):
                window = shards[at : at + self.window]
                yield window[self.bounds[window] < self.bounds[window + 1]]  # without shards that have no row
            epoch, first = epoch + 1, 0
            shards, _ = self._epoch(epoch)

    def _epoch(self, epoch: int) -> tuple[Int64s, Int64s]:
        """The shards in the order of an epoch, and how many rows there are up to the end of each window."""
        return _windows_of(self, epoch if self.shuffle else 0)

    def describe(self) -> dict[str, Any]:
        """See `Schedule`."""
        shards = [digest(self.bounds), self.window if self.shuffle else None]
        return {"kind": "shard windows", "n": self.n, "shards": shards, "shuffle": self.shuffle}


@lru_cache(maxsize=8)
def _windows_of(schedule: ShardWindows, epoch: int) -> tuple[Int64s, Int64s]:
    n = len(schedule.bounds) - 1
    shards = order(derived(schedule.seed, "shards"), epoch, n)[:] if schedule.shuffle else np.arange(n)
    sizes = np.diff(schedule.bounds)[shards]
    # Sizes 3 2 4 1 1 in windows of 2: 5 5 1, so the windows end at rows 5 10 11.
    return shards, np.cumsum(np.add.reduceat(sizes, np.arange(0, n, schedule.window)))


def ordered(seed: int, epoch: int, n: int, start: int, stop: int) -> Int64s:
    """Positions `start` to `stop` - 1 of an epoch's shuffled order, int64."""
    # Batches ask for neighbouring positions, and a few cost almost as much as a block does: so blocks are cached.
    blocks = [_block(seed, epoch, n, number) for number in range(start // BLOCK, -(-stop // BLOCK))]
    # The first position of the first block: with blocks of 8, positions 10 to 12 are 2 to 4 after 8.
    first = start // BLOCK * BLOCK
    joined = blocks[0] if len(blocks) == 1 else np.concatenate([*blocks, np.empty(0, dtype=np.int64)])
    return joined[start - first : stop - first]


@lru_cache(maxsize=8)
def _block(seed: int, epoch: int, n: int, number: int) -> Int64s:
    rows = order(seed, epoch, n)[number * BLOCK : (number + 1) * BLOCK]
    rows.flags.writeable = False  # every caller gets a view of this array
    return rows


def running_shares(weights: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The cumulative share of each weight: 1 2 1 -> 0.25 0.75 1.0."""
    total = np.cumsum(weights / weights.max())  # divided first: weights near the largest float would sum to infinity
    return np.asarray(total / total[-1])


def take(schedule: Schedule, place: Place, n: int, *, drop_last: bool) -> tuple[Int64s, Place]:
    """The next `n` rows from a place on, and the place after them.

    Where an epoch has fewer than `n` rows left, they are dropped, or filled up with `EMPTY`, or joined with the first
    rows of the next epoch. Epochs of 6 rows in batches of 4, places as (epoch, position), rows by their positions::

        drop_last        (0, 0) -> 0 1 2 3, (0, 4)      (0, 4) -> 0 1 2 3 of epoch 1, (1, 4)
        not drop_last    (0, 0) -> 0 1 2 3, (0, 4)      (0, 4) -> 4 5 EMPTY EMPTY, (0, 6)
        crosses_epochs   (0, 0) -> 0 1 2 3, (0, 4)      (0, 4) -> 4 5, then 0 1 of epoch 1, (1, 2)
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
    if schedule.crosses_epochs:
        # An epoch may be shorter than a batch: then several are joined.
        more, after = take(schedule, after, n - len(rows), drop_last=False)
    else:
        more = np.full(n - len(rows), EMPTY)
    return np.concatenate([rows, more]), after


def starting_place(schedule: Schedule, place: Place, n: int, *, drop_last: bool) -> Place:
    """Where the next batch of `n` rows begins: at `place`, or at the next epoch's start if too few rows are left."""
    if schedule.n is None:
        return place
    left = schedule.n - place.position
    # Without drop_last, and where batches cross epochs, one row is enough to begin a batch.
    needed = n if drop_last and not schedule.crosses_epochs else 1
    return Place(place.epoch + 1, 0) if left < needed else place


def skip(schedule: Schedule, place: Place, n: int, batches: int, *, drop_last: bool) -> Place:
    """The place after `batches` batches of `n` rows, in constant time."""
    if schedule.n is None:
        return Place(place.epoch, place.position + batches * n)
    if batches == 0:
        return place
    if schedule.crosses_epochs:
        # In epochs of 6, place (1, 4) is row 10 of all. `take` writes an epoch's end as (1, 6), not (2, 0), so the
        # number of the last row read (11) is divided, not that of the next one (12).
        epoch, last = divmod(place.epoch * schedule.n + place.position + batches * n - 1, schedule.n)
        return Place(epoch, last + 1)
    place = starting_place(schedule, place, n, drop_last=drop_last)
    # The first epoch may be partly read; those after it are whole.
    in_this_epoch = batches_left(schedule.n, place.position, n, drop_last=drop_last)
    if batches <= in_this_epoch:
        return Place(place.epoch, min(schedule.n, place.position + batches * n))
    # One batch left here and 2 in every epoch: 4 batches end with the first of epoch + 2, divmod(4 - 1 - 1, 2) = 1, 0.
    per_epoch = batches_left(schedule.n, 0, n, drop_last=drop_last)
    epochs, rest = divmod(batches - in_this_epoch - 1, per_epoch)
    return Place(place.epoch + 1 + epochs, min(schedule.n, (rest + 1) * n))


def batches_left(rows: int, position: int, n: int, *, drop_last: bool) -> int:
    """How many batches of `n` rows an epoch of `rows` has from `position` on.

    Six rows, batches of 4, position 4: none with `drop_last`, else one that is not full.
    """
    left = rows - position
    # -(-left // n) rounds up: 5 rows in batches of 4 are 2.
    return left // n if drop_last else -(-left // n)
