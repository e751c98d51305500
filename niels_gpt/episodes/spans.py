"""Which spans of which files a row holds: `SpanLocator` finds them, `RowSpans` has them as arrays.

A row is made of spans, one after the other. Most rows have one span, packed rows have several::

    file    a a a b b c        spans    row 0 0 1    start 3 5 0    length 2 1 3
    rows    b b c
            a a a
"""

from __future__ import annotations

from functools import cached_property
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from niels_gpt.episodes.dataset import EpisodeSplit
from niels_gpt.episodes.order.schedule import EMPTY
from niels_gpt.format.gather import Spans
from niels_gpt.format.packing import PackPlan
from niels_gpt.kernel import native

Int64s = npt.NDArray[np.int64]
Array = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]


class SpanLocator:
    """Finds the spans of rows of `width` tokens.

    Args:
        plan: which episodes (by position) share a row; `None`: row p holds the episode at position p.
        too_long: the policy for episodes that do not fit: "tail" keeps the last tokens, all others the first.
    """

    def __init__(self, split: EpisodeSplit, plan: PackPlan | None, width: int, *, too_long: str) -> None:
        self._split, self._plan, self._width = split, plan, width
        self._tail = too_long == "tail"
        self._index = split.index  # of all shards; the kernel opens those that it needs
        self._has_prefixes = split.has_prefixes

    def of_rows(self, rows: Int64s) -> RowSpans:
        """The spans of these rows, cut to the rows' width; rows with the number `EMPTY` come last."""
        # The kernel knows episodes with one prefix; an item of `share_prefixes` has several samples.
        if (kernel := native()) and not self._split.shares_prefixes:
            return self._located(kernel, rows, self._plan)
        return self._cut(*self._placed(rows), len(rows))

    def of_positions(self, positions: Int64s) -> RowSpans:
        """The spans of the episodes at these positions, one a row."""
        if (kernel := native()) and not self._split.shares_prefixes:
            return self._located(kernel, positions, None)
        return self._cut(np.arange(len(positions)), positions, len(positions))

    def _located(self, kernel: ModuleType, rows: Int64s, plan: PackPlan | None) -> RowSpans:
        """The same by the kernel, which finds the spans of all rows in one pass."""
        offsets, items = (None, None) if plan is None else (plan.offsets, plan.items)
        room, n, memory = kernel.locate(rows, offsets, items, *self._index, self._width, self._tail)
        # Of 3 rows with room for 5 spans: 3 int64 (how many values each row has), 5 columns of 5 int64, 3 of 5 bool.
        B = len(rows)
        row, episode, shard, start, length = np.frombuffer(memory, np.int64, 5 * room, 8 * B).reshape(5, room)[:, :n]
        cut, begins, is_prefix = np.frombuffer(memory, np.bool_, 3 * room, 8 * (B + 5 * room)).reshape(3, room)[:, :n]
        return RowSpans(
            B,
            self._width,
            row=row,
            episode=episode,
            shard=shard,
            start=start,
            length=length,
            cut=cut,
            is_prefix=is_prefix if self._has_prefixes else None,
            begins=begins if self._has_prefixes else None,
            used=np.frombuffer(memory, np.int64, B),
        )

    def positions(self, rows: Int64s) -> Int64s:
        """The positions of the episodes in these rows."""
        return self._placed(rows)[1]

    def _placed(self, rows: Int64s) -> tuple[Int64s, Int64s]:
        """For every episode in these rows: the index of its row in `rows`, and its position."""
        # EMPTY rows are at the end, so the last row shows whether there are any.
        filled = np.arange(len(rows)) if rows[-1] != EMPTY else np.flatnonzero(rows != EMPTY)
        if self._plan is None:
            return filled, rows[filled]
        first, stop = self._plan.offsets[rows[filled]], self._plan.offsets[rows[filled] + 1]
        sizes = stop - first
        # Two rows with the items 20 21 and 5 6 7 of the plan: first 20 5, sizes 2 3, repeated differences
        # 20 20 3 3 3, plus 0 1 2 3 4: places 20 21 5 6 7.
        places = (first - (sizes.cumsum() - sizes)).repeat(sizes)
        places += np.arange(len(places))
        return filled.repeat(sizes), self._plan.items[places].astype(np.int64)

    def _cut(self, row: Int64s, positions: Int64s, n: int) -> RowSpans:
        """The spans of the episodes at these positions, in `n` rows."""
        episodes = self._split.filtered[positions]
        if self._split.has_prefixes:
            return self._cut_ranges(row, episodes, n)
        shard, start, length = self._split.locate(episodes)
        cut = length > self._width
        if self._tail:
            # "tail" keeps the last tokens: an episode of 9 in a row of 6 starts 3 later.
            start = start + np.maximum(0, length - self._width)
        length = np.minimum(length, self._width)
        return RowSpans(n, self._width, row=row, episode=episodes, shard=shard, start=start, length=length, cut=cut)

    def _cut_ranges(self, row: Int64s, episodes: Int64s, n: int) -> RowSpans:
        """The same where episodes may have prefixes, and two spans."""
        ranges = self._split.ranges(episodes)
        of, is_prefix, sees = ranges.of, ranges.is_prefix, ranges.sees
        assert is_prefix is not None
        lengths = np.bincount(of, weights=ranges.length, minlength=len(episodes)).astype(np.int64)
        # A prefix of 4 and 5 own tokens in a row of 6: from token 0 to 6, so 4 and 2; for "tail" from 3 to 9: 1 and 5.
        begin = np.maximum(0, lengths - self._width) if self._tail else np.zeros_like(lengths)
        # The number of each range's first token in its episode: here 0 and 4.
        at = ranges.length.cumsum() - ranges.length - (lengths.cumsum() - lengths)[of]
        skipped = np.clip(begin[of] - at, 0, ranges.length)
        length = np.clip(begin[of] + self._width - at, 0, ranges.length) - skipped
        keep = length > 0
        # The tokens after the last span that is in the row are missing.
        last = np.append(of[1:] != of[:-1], True) | np.append(~keep[1:], False)
        return RowSpans(
            n,
            self._width,
            row=row[of][keep],
            episode=episodes[of][keep],
            shard=ranges.shard[keep],
            start=(ranges.start + skipped)[keep],
            length=length[keep],
            cut=((lengths > self._width)[of] & last)[keep],
            is_prefix=is_prefix[keep],
            begins=np.diff(of[keep], prepend=-1) > 0,
            sees=None if sees is None else sees[keep],
        )


class RowSpans:
    """The spans of `B` rows of `width` values, as arrays of shape (spans,).

    Attributes:
        row: the row of each span, int64, never falling: 0 0 1 2. Rows without a span come last.
        episode: the episode of each span, int64.
        shard, start, length: its file, first value and number of values (at least 1), int64.
        cut: bool: the episode has tokens after the span, none of them in the row.
        is_prefix: bool: the span is the prefix of its episode, so nothing in it is trained; `None` where no episode has
            a prefix.
        begins: bool: an episode begins with the span; `None` where all do, because no episode has a prefix.
        sees: with `share_prefixes`: how many tokens of its item's first span come before each span, which is a text of
            its own; else `None`.
        filled: how many rows have a span.
        one_per_row: no row has two spans.
        used: how many values each row holds, int64, shape (B,).
    """

    def __init__(
        self,
        B: int,
        width: int,
        *,
        row: Int64s,
        episode: Int64s,
        shard: Int64s,
        start: Int64s,
        length: Int64s,
        cut: Bools,
        is_prefix: Bools | None = None,
        begins: Bools | None = None,
        sees: Int64s | None = None,
        used: Int64s | None = None,
    ) -> None:
        self.B, self.width, self.is_prefix, self.begins, self.sees = B, width, is_prefix, begins, sees
        self.row, self.episode, self.shard, self.start, self.length, self.cut = row, episode, shard, start, length, cut
        # `row` never falls, so the last span is in the last row that has one.
        self.filled = int(row[-1]) + 1 if len(row) else 0
        self.one_per_row = len(row) == self.filled
        # The common case, one episode in every row: the lengths are the answer, without counting.
        if used is not None:
            self.used = used
        elif len(row) == B and self.one_per_row:
            self.used = length
        else:
            self.used = np.bincount(row, weights=length, minlength=B).astype(np.int64)

    @cached_property
    def shortest(self) -> int:
        """The smallest of `used`."""
        return int(self.used.min())

    @property
    def full(self) -> bool:
        """Whether all rows are filled to their ends."""
        return self.shortest == self.width

    @cached_property
    def for_kernel(self) -> Spans:
        """The same spans for `format.gather`."""
        arrays = (self.row, self.shard, self.start, self.length)
        row, shard, start, length = (np.ascontiguousarray(array, dtype=np.int64) for array in arrays)
        return Spans(row, shard, start, length, self.begins, self.is_prefix, self.sees)

    def of_episodes(self, values: Int64s) -> Int64s:
        """Those of one value a span that are of the spans with which episodes begin."""
        return values if self.begins is None else values[self.begins]

    @property
    def column(self) -> Int64s:
        """The column in which each span begins: lengths 2 1 3 in rows 0 0 1 begin at 0 2 0."""
        if self.one_per_row:
            return np.zeros(len(self.row), dtype=np.int64)
        # Tokens before each span (0 2 3) minus tokens before its row (0 0 3).
        ends, used = self.length.cumsum(), self.used
        return ends - self.length - (used.cumsum() - used)[self.row]

    @property
    def token_mask(self) -> Bools:
        """True where a row holds a span's value, not padding; shape (B, width)."""
        # Columns 0 1 2 3 against 2 and 4 used: # # . . and # # # #.
        return np.arange(self.width) < self.used[:, None]

    @cached_property
    def reach(self) -> Int64s:
        """The spans' lengths, with the last span of each row extended to the row's end."""
        reach = self.length.copy()
        # The last span of each row: rows 0 0 1 2 2 give spans 1 2 4.
        last = self.row.searchsorted(np.arange(self.filled), side="right") - 1
        reach[last] += self.width - self.used[: self.filled]
        return reach

    @cached_property
    def places(self) -> Int64s:
        """The place in its file of every value of the filled rows, row after row, shape (filled * width,).

        Ids and masks share it. After a row's spans come places that mean nothing and may lie past the file's end: all
        rows then have one width, and `fill_rest` overwrites these values. Starts 3 5 0 and lengths 2 1 3 in rows 0 0 1
        of width 4 have the reach 2 2 4 and begin at 0 2 4, so 3 3 3 3 -4 -4 -4 -4 is added to the values' numbers::

            number   0 1 2 3   4 5 6 7
            place    3 4 5 6   0 1 2 3      the spans' own: 3 4, 5 and 0 1 2
        """
        reach = self.reach
        places = (self.start - (reach.cumsum() - reach)).repeat(reach)
        places += np.arange(len(places))
        return np.asarray(places)

    @cached_property
    def _rest(self) -> Bools:
        """True where there is padding, for the columns from `shortest` on; shape (B, width - shortest).

        Rows of width 4 that hold 2 and 3 values, so for columns 2 and 3::

            # #
            . #
        """
        columns = np.arange(self.shortest, self.width, dtype=np.int32)  # comparing int32 takes half as long as int64
        return columns >= self.used.astype(np.int32)[:, None]

    def fill_rest(self, rows: Array, value: float) -> None:
        """Write `value` to all padding of `rows`, shape (B, width)."""
        if not self.full:
            np.copyto(rows[:, self.shortest :], value, where=self._rest)

    def one_longer(self) -> RowSpans:
        """The same spans in rows that are one value wider, each extended by a value if its episode has one more."""
        return RowSpans(
            self.B,
            self.width + 1,
            row=self.row,
            episode=self.episode,
            shard=self.shard,
            start=self.start,
            # An episode that is cut has at least one token more; others end here and must not read the next one's.
            length=self.length + self.cut,
            cut=self.cut,
            is_prefix=self.is_prefix,
            begins=self.begins,
            sees=self.sees,
        )

    def prefix_columns(self) -> npt.NDArray[np.int32]:
        """The columns that each value sees besides those of its own text: begin and end, int32, shape (B, width, 2).

        An item of spans of 3 2 2 values at columns 4 7 9, which see 0 1 3 values of its first one::

            4..6    0, 0        7..8    4, 5        9..10   4, 7
        """
        columns = np.zeros((self.B, self.width, 2), dtype=np.int32)
        if self.sees is None:
            return columns
        # Of spans 0 1 2 | 3 that begin episodes at 0 and 3, the first ones are 0 0 0 3.
        begins = np.arange(len(self.row)) if self.begins is None else np.flatnonzero(self.begins)
        first = begins[begins.searchsorted(np.arange(len(self.row)), side="right") - 1]
        begin = np.where(self.sees > 0, self.column[first], 0)
        columns[self.token_mask] = np.stack([begin, begin + self.sees], axis=1).repeat(self.length, axis=0)
        return columns
