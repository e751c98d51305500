"""Which episodes stay after filtering, in memory that grows only with what was left out."""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]


class Kept:
    """The numbers 0..total-1 without `dropped`; index it with an array of positions.

    A position moves up by the number of dropped episodes before it. Dropped episode j has dropped[j] - j kept ones
    before it, so::

        episodes   0 1 2 3 4 5      dropped [1 3]      kept before each: [1 2]
        positions  0 1 2 3          dropped before:    0 1 2 2
        episode    0 2 4 5

    Args:
        total: how many episodes there are.
        dropped: which are left out, integers, increasing.
    """

    def __init__(self, total: int, dropped: npt.NDArray[np.integer[Any]]) -> None:
        self.total = total
        self._kept_before = dropped.astype(np.int64) - np.arange(len(dropped))

    def __len__(self) -> int:
        return self.total - len(self._kept_before)

    @property
    def key(self) -> bytes:
        """Differs wherever other episodes of as many are left out; empty if none is."""
        return self._kept_before.tobytes()

    def before(self, episode: int) -> int:
        """How many kept episodes have a lower number; the inverse of indexing for those that are kept."""
        dropped = range(len(self._kept_before))
        return episode - bisect_left(dropped, episode, key=lambda j: int(self._kept_before[j]) + j)

    def __getitem__(self, positions: npt.NDArray[np.integer[Any]]) -> Int64s:
        """The episodes at these positions, int64 of the same shape."""
        if not len(self._kept_before):
            return positions.astype(np.int64)
        return positions + np.searchsorted(self._kept_before, positions, side="right")
