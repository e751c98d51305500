"""`Order`: which row comes at which place, as a pure function of (seed, epoch, position).

A row is what fills one line of a batch: one episode, several packed ones, or a window of tokens. An epoch is a sequence
of blocks; a block has so many rows of each group; within a block the order is random::

    every row once        one group, one block                         3 0 5 1 4 2
    a mixture             one block of several groups, which repeat    a2 b0 a0 b3 a1
    a curriculum          several such blocks                          a2 b0 a0 | b3 b1 a1
    shards in windows     a block for each window of whole groups, in a new order in every epoch
                                                                       6 3 7 2 | 1 4 0 5
    random                rows drawn by shares, with replacement, without epochs

Nothing but the position decides, so no state is replayed: a resumed run continues at its next position, each rank
computes its own part of a batch, and any position costs what the first costs. A `Place` is an epoch and a position in
it, counted over all ranks, so it means the same for any number of ranks, workers and prefetched batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from niels_gpt.episodes.order.states import Place
from niels_gpt.seeds import derived, order, uniform
from niels_gpt.store.gather import Int64s
from niels_gpt.store.index_sets import IndexSet, Span, digest

BLOCK = 4096  # positions of an order that are computed and cached together
EMPTY = -1  # the number of an empty row, which fills up an epoch's last batch


@dataclass(frozen=True)
class Group:
    """The rows of one type, source, dataset or shard."""

    name: str
    members: IndexSet


@dataclass(frozen=True, eq=False)
class Order:
    """The order of the rows of some groups, see the module. Make one with `every_row`, `mixed_rows`, ... below.

    Attributes:
        groups: their names are part of the seeds, so that adding a group does not reshuffle the others.
        blocks: rows of each group in each block of an epoch; of `windows` and of random draws there are none.
        seed, shuffle: of the order; unshuffled, blocks and groups come as they are given.
        repeats: a group continues in the next block and epoch where it stopped, and every member comes before one
            repeats; else each block has whole groups, of members that follow each other.
        window: a block has so many groups, all of them whole, in an order of groups that is new in every epoch.
        shares: of random draws: the share of each group, cumulative, float64.
    """

    groups: Sequence[Group]
    blocks: tuple[tuple[int, ...], ...] = ()
    seed: int = 0
    shuffle: bool = True
    repeats: bool = False
    window: int | None = None
    shares: npt.NDArray[np.float64] | None = None

    @cached_property
    def sizes(self) -> Int64s:
        """Rows of each group."""
        return np.array([len(group.members) for group in self.groups], dtype=np.int64)

    @cached_property
    def n(self) -> int | None:
        """Rows in an epoch; `None` if there are no epochs."""
        if self.shares is not None:
            return None
        return sum(map(sum, self.blocks)) if self.window is None else int(self.sizes.sum())

    @property
    def crosses_epochs(self) -> bool:
        """Whether a batch may hold the end of one epoch and the beginning of the next.

        Batches of mixtures do, because dropping a last batch would change the proportions.
        """
        return self.repeats or self.shares is not None

    def rows(self, epoch: int, start: int, stop: int) -> Int64s:
        """The rows at positions `start` to `stop` - 1 of an epoch, int64."""
        if self.shares is not None:
            return self._drawn(self.shares, start, stop)
        ends = self._epoch(epoch)[1]
        # Blocks that end at rows 5 10 11: position 5 has one end at or below it, so it is in block 1.
        number, at, parts = int(ends.searchsorted(start, "right")), start, [np.empty(0, dtype=np.int64)]
        while at < stop:
            begin, until = int(ends[number - 1]) if number else 0, min(stop, int(ends[number]))
            parts.append(self._of_block(epoch, number, at - begin, until - begin))
            at, number = until, number + 1
        return parts[1] if len(parts) == 2 else np.concatenate(parts)

    def _epoch(self, epoch: int) -> tuple[Int64s, Int64s]:
        """The groups in the order of an epoch, and how many rows there are up to the end of each block."""
        return _blocks_of(self, epoch if self.window is not None and self.shuffle else 0)

    def _of_block(self, epoch: int, number: int, start: int, stop: int) -> Int64s:
        """The rows at some positions of one block."""
        groups = self._epoch(epoch)[0]
        if self.window is not None:
            groups = groups[number * self.window : (number + 1) * self.window]
            counts = self.sizes[groups]
        else:
            counts = np.array(self.blocks[number])
        slots = np.arange(start, stop)
        if self.shuffle:
            slots = ordered(self._block_seed(number), epoch, int(counts.sum()), start, stop)
        # Counts 2 3 1 have bounds 0 2 5 6: slot 4 belongs to group 1 and is its row 4 - 2 = 2 in this block.
        bounds = np.cumsum([0, *counts])
        owner = bounds.searchsorted(slots, "right") - 1
        rows = np.empty(len(slots), dtype=np.int64)
        for hit in np.unique(owner).tolist():
            here, group = owner == hit, int(groups[hit])
            within = slots[here] - bounds[hit]
            if self.repeats:
                within = self._turns(group, epoch, number, within)
            rows[here] = self.groups[group].members[within]
        return rows

    def _block_seed(self, number: int) -> int:
        # Blocks of the same length must not have the same order. One block is the whole epoch, with the seed itself: a
        # curriculum of one phase is the mixture of these numbers.
        if self.window is not None:
            return derived(self.seed, f"window {number}")
        return self.seed if len(self.blocks) == 1 else derived(self.seed, f"phase {number}")

    def _turns(self, group: int, epoch: int, number: int, within: Int64s) -> Int64s:
        """The members that some draws of a group in a block are, for a group that repeats.

        Draws are counted through all epochs. A group of 3 members (a b c), of which each epoch draws 2::

            epoch         0     1       2
            draw          0 1   2   3   4 5
            member        b a   c | c   a b      `|`: all have come once, the next 3 draws are shuffled anew
        """
        total, before = sum(block[group] for block in self.blocks), sum(b[group] for b in self.blocks[:number])
        size = len(self.groups[group].members)
        # Draw 7 of a group of 3 is member 1 of its third round.
        rounds, within = np.divmod(epoch * total + before + within, size)
        if self.shuffle:
            seed = derived(self.seed, f"group {self.groups[group].name}")
            # A batch touches one round, or two where one ends.
            for turn in np.unique(rounds).tolist():
                of_round = rounds == turn
                within[of_round] = order(seed, turn, size)[within[of_round]]
        return within

    def _drawn(self, ends: npt.NDArray[np.float64], start: int, stop: int) -> Int64s:
        """Rows drawn with replacement: a group in proportion to its share, then one of its members uniformly.

        One random number decides both. Two groups with shares 0.25 and 0.75, the second with 3 members::

            drawn      0     .25   .5    .75   1
            group      |  0  |        1        |
            member     |     |  0  |  1  |  2  |
        """
        drawn = uniform(self.seed, np.arange(start, stop))
        owner = ends.searchsorted(drawn, "right")
        begins = np.append(0.0, ends[:-1])
        # The place inside the group's part, 0 to 1: drawn 0.5 in a part from 0.25 to 1 is a third of the way.
        within = (drawn - begins[owner]) / (ends - begins)[owner]
        rows = np.empty(len(drawn), dtype=np.int64)
        for hit in np.unique(owner).tolist():
            members, here = self.groups[hit].members, owner == hit
            at = (within[here] * len(members)).astype(np.int64)
            rows[here] = members[np.minimum(at, len(members) - 1)]  # a quotient rounded up to 1 would be past the end
        return rows

    def describe(self) -> dict[str, Any]:
        """Everything that decides the rows but the seed, as JSON values; part of a loader's fingerprint."""
        return {
            "groups": [[group.name, _described(group.members)] for group in self.groups],
            "blocks": self.blocks,
            "shuffle": self.shuffle,
            "repeats": self.repeats,
            "window": self.window if self.shuffle else None,
            "shares": None if self.shares is None else self.shares.tolist(),
        }

    # ---- steps from place to place

    def begin(self, place: Place, n: int, *, drop_last: bool) -> Place:
        """Where the next batch of `n` rows begins: at `place`, or at the next epoch if too few rows are left."""
        if self.n is None:
            return place
        # Without drop_last, and where batches cross epochs, one row is enough to begin a batch.
        needed = n if drop_last and not self.crosses_epochs else 1
        return Place(place.epoch + 1) if self.n - place.position < needed else place

    def take(self, place: Place, n: int, *, drop_last: bool) -> tuple[Int64s, Place]:
        """The next `n` rows from a place on, and the place after them.

        Where an epoch has fewer than `n` rows left, they are dropped, or filled up with `EMPTY`, or joined with the
        first rows of the next epoch. Epochs of 6 rows in batches of 4, places as (epoch, position)::

            drop_last        (0, 0) -> 0 1 2 3, (0, 4)      (0, 4) -> 0 1 2 3 of epoch 1, (1, 4)
            not drop_last    (0, 0) -> 0 1 2 3, (0, 4)      (0, 4) -> 4 5 EMPTY EMPTY, (0, 6)
            crosses_epochs   (0, 0) -> 0 1 2 3, (0, 4)      (0, 4) -> 4 5, then 0 1 of epoch 1, (1, 2)
        """
        place = self.begin(place, n, drop_last=drop_last)
        stop = place.position + n if self.n is None else min(self.n, place.position + n)
        rows, after = self.rows(place.epoch, place.position, stop), Place(place.epoch, stop)
        if len(rows) == n:
            return rows, after
        if self.crosses_epochs:  # an epoch may be shorter than a batch: then several are joined
            more, after = self.take(after, n - len(rows), drop_last=False)
        else:
            more = np.full(n - len(rows), EMPTY)
        return np.concatenate([rows, more]), after

    def skip(self, place: Place, n: int, batches: int, *, drop_last: bool) -> Place:
        """The place after `batches` batches of `n` rows, in constant time."""
        if self.n is None:
            return Place(place.epoch, place.position + batches * n)
        if batches == 0:
            return place
        if self.crosses_epochs:
            # In epochs of 6, place (1, 4) is row 10 of all. `take` writes an epoch's end as (1, 6), not (2, 0), so the
            # number of the last row read (11) is divided, not that of the next one (12).
            epoch, last = divmod(place.epoch * self.n + place.position + batches * n - 1, self.n)
            return Place(epoch, last + 1)
        place = self.begin(place, n, drop_last=drop_last)
        # The first epoch may be partly read; those after it are whole.
        here = self.batches(place.position, n, drop_last=drop_last)
        if batches <= here:
            return Place(place.epoch, min(self.n, place.position + batches * n))
        # One batch left here and 2 in every epoch: 4 batches end with the first of epoch + 2, divmod(4 - 1 - 1, 2).
        epochs, rest = divmod(batches - here - 1, self.batches(0, n, drop_last=drop_last))
        return Place(place.epoch + 1 + epochs, min(self.n, (rest + 1) * n))

    def batches(self, position: int, n: int, *, drop_last: bool) -> int:
        """How many batches of `n` rows an epoch has from a position on: 2 of 6 rows are left for batches of 4 at 4."""
        left = (self.n or 0) - position
        return left // n if drop_last and not self.crosses_epochs else -(-left // n)

    # ---- windows of shards, for whoever fetches them

    def window_at(self, place: Place) -> tuple[int, int]:
        """The epoch and the number of the window in which a place is."""
        return place.epoch, int(self._epoch(place.epoch)[1].searchsorted(place.position, "right"))

    def most_windows(self, rows: int) -> int:
        """How many windows so many rows that follow each other are in, at most; two at least.

        Three windows of 5 rows: 7 rows may be all of the second, and one of each of the others.
        """
        # The fewest rows that 1, 2, ... whole windows can have are those of the smallest shards. Sizes 1 3 5 5 in
        # windows of 2: 4 and 14. So 6 rows or more may hold a whole window, and one row at each side of it.
        window = self.window or len(self.groups)
        smallest = np.cumsum(np.sort(self.sizes))[window - 1 :: window]
        return 2 + int(np.searchsorted(smallest, rows - 2, side="right"))

    def shards_from(self, place: Place) -> Iterator[Int64s]:
        """The shards of the window at a place, those of the next one, and so on without end; none without rows."""
        epoch, first = self.window_at(place)
        window = self.window or len(self.groups)
        while True:
            shards = self._epoch(epoch)[0]
            for at in range(first * window, len(shards), window):
                found = shards[at : at + window]
                yield found[self.sizes[found] > 0]
            epoch, first = epoch + 1, 0


def every_row(n: int, seed: int, *, shuffle: bool) -> Order:
    """Every row once an epoch."""
    return Order([Group("rows", Span(0, n))], ((n,),), seed, shuffle)


def mixed_rows(groups: Sequence[Group], phases: Sequence[Sequence[int]], seed: int, *, shuffle: bool) -> Order:
    """So many rows of each group in each phase of an epoch, exactly; phases follow one another."""
    return Order(groups, tuple(map(tuple, phases)), seed, shuffle, repeats=True)


def shards_in_windows(bounds: Sequence[int], window: int, seed: int, *, shuffle: bool) -> Order:
    """Every row once an epoch, shuffled within windows of `window` shards; the shards have a new order every epoch.

    For datasets that arrive shard by shard: only two windows have to be on the disk at a time.

    Args:
        bounds: the first row of each shard and, last, the number of rows.
    """
    shards = [Group(f"shard {number}", Span(*span)) for number, span in enumerate(pairwise(bounds))]
    return Order(shards, (), seed, shuffle, window=window)


def random_rows(groups: Sequence[Group], weights: Sequence[float], seed: int) -> Order:
    """Rows drawn with replacement, without end; each group in proportion to its weight."""
    found = np.array(weights, dtype=np.float64)
    total = np.cumsum(found / found.max())  # divided first: weights near the largest float would sum to infinity
    return Order(groups, (), seed, shares=total / total[-1])


def _described(members: IndexSet) -> list[int] | str:
    # Not the digest of a span, which would count through all of its numbers.
    return [members.start, members.stop] if isinstance(members, Span) else digest(members)


@lru_cache(maxsize=8)
def _blocks_of(one: Order, epoch: int) -> tuple[Int64s, Int64s]:
    n = len(one.groups)
    if one.window is None:
        return np.arange(n), np.cumsum([sum(block) for block in one.blocks])
    groups = order(derived(one.seed, "shards"), epoch, n)[:] if one.shuffle else np.arange(n)
    # Sizes 3 2 4 1 1 in windows of 2: 5 5 1, so the windows end at rows 5 10 11.
    return groups, np.cumsum(np.add.reduceat(one.sizes[groups], np.arange(0, n, one.window)))


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
