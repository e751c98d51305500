"""Which spans of which files a row holds: `SpanLocator` finds them, `RowSpans` has them as arrays.

A row is made of spans, one after the other. Most rows have one span, packed rows have several::

    file    a a a b b c        spans    row 0 0 1    start 3 5 0    length 2 1 3
    rows    b b c
            a a a
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from niels_gpt.episodes.dataset import EpisodeSplit
from niels_gpt.episodes.order.schedule import EMPTY
from niels_gpt.format.packing import PackPlan

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

    def of_rows(self, rows: Int64s) -> RowSpans:
        """The spans of these rows, cut to the rows' width; rows with the number `EMPTY` come last."""
        return self._cut(*self._placed(rows), len(rows))

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
        used: how many values each row holds, int64, shape (B,).
        column: the column in which each span begins, int64: lengths 2 1 3 in rows 0 0 1 begin at 0 2 0.
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
    ) -> None:
        self.B, self.width, self.is_prefix, self.begins, self.sees = B, width, is_prefix, begins, sees
        self.row, self.episode, self.shard, self.start, self.length, self.cut = row, episode, shard, start, length, cut
        self.used = np.bincount(row, weights=length, minlength=B).astype(np.int64)
        # Tokens before each span (0 2 3) minus tokens before its row (0 0 3).
        self.column = length.cumsum() - length - (self.used.cumsum() - self.used)[row]

    def of_episodes(self, values: Int64s) -> Int64s:
        """Those of one value a span that are of the spans with which episodes begin."""
        return values if self.begins is None else values[self.begins]

    @property
    def token_mask(self) -> Bools:
        """True where a row holds a span's value, not padding; shape (B, width)."""
        # Columns 0 1 2 3 against 2 and 4 used: # # . . and # # # #.
        return np.arange(self.width) < self.used[:, None]

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
