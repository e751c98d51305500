"""Which pieces of which files make the rows of a split, with a plan or with an episode a row."""

from __future__ import annotations

import numpy as np

from niels_gpt.episodes.dataset import EpisodeSplit
from niels_gpt.episodes.gather import Int64s, Pieces
from niels_gpt.episodes.schedule import EMPTY
from niels_gpt.format.packing import PackPlan


class RowPieces:
    """Finds the pieces of rows of `width` tokens.

    Args:
        plan: which episodes (by position) lie in which row; without one, row p is the episode at position p.
        too_long: the policy for episodes that are cut: "tail" keeps the last tokens, all others the first.
    """

    def __init__(self, split: EpisodeSplit, plan: PackPlan | None, width: int, *, too_long: str) -> None:
        self._split, self._plan, self._width = split, plan, width
        self._tail = too_long == "tail"

    def of_rows(self, rows: Int64s) -> Pieces:
        """The episodes of these rows, cut to the rows' width; `EMPTY` rows come last."""
        return self._cut(*self._placed(rows), len(rows))

    def of_positions(self, positions: Int64s) -> Pieces:
        """The episodes at these positions, one a row."""
        return self._cut(np.arange(len(positions)), positions, len(positions))

    def positions(self, rows: Int64s) -> Int64s:
        """Which episodes (by position) lie in these rows."""
        return self._placed(rows)[1]

    def _placed(self, rows: Int64s) -> tuple[Int64s, Int64s]:
        """Which episodes (by position) lie in these rows: the row's number here, and the position, of each."""
        filled = np.arange(len(rows)) if rows[-1] != EMPTY else np.flatnonzero(rows != EMPTY)
        if self._plan is None:
            return filled, rows[filled]
        first, stop = self._plan.offsets[rows[filled]], self._plan.offsets[rows[filled] + 1]
        sizes = stop - first
        # Rows 7 and 2 hold items 20 21 and 5 6 7 of the plan: places 20 21 5 6 7.
        places = (first - (sizes.cumsum() - sizes)).repeat(sizes)
        places += np.arange(len(places))
        return filled.repeat(sizes), self._plan.items[places].astype(np.int64)

    def _cut(self, row: Int64s, positions: Int64s, n: int) -> Pieces:
        """The episodes at these positions, as pieces of `n` rows."""
        episodes = self._split.kept[positions]
        shard, start, length = self._split.locate(episodes)
        cut = length > self._width
        if self._tail:
            start = start + np.maximum(0, length - self._width)
        length = np.minimum(length, self._width)
        return Pieces(n, self._width, row=row, episode=episodes, shard=shard, start=start, length=length, cut=cut)
