"""Runs of values from mapped files, laid into the rows of one array. No loop over tokens or rows.

A row is made of pieces, one after the other; most rows have one piece, packed rows have several::

    file    a a a b b c        pieces   row 0 0 1    start 3 5 0    length 2 1 3
    rows    b b c
            a a a

A row is read on to its end, whatever the file has behind its last piece, and what does not belong there is overwritten:
whole rows are then copied in one piece, and a masked copy is needed for their ends alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from niels_gpt.cache.mmap import RowReader
from niels_gpt.forks import cached_property

Int64s = npt.NDArray[np.int64]
Array = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]


class Pieces:
    """Where the pieces of `B` rows of `width` values come from; arrays of shape (pieces,).

    Attributes:
        row: which row each lies in, int64: 0 0 1 2 and so on. Rows without a piece come last.
        episode: which episode it is a piece of, int64.
        shard, start, length: which file, from where, how many values (at least 1), int64.
        cut: bool, the episode goes on behind the piece.
        filled: how many rows have a piece.
        one_a_row: no row has two.
        used: how many values each row holds, int64 of shape (B,).
        shortest: the least of them.
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
    ) -> None:
        self.B, self.width = B, width
        self.row, self.episode, self.shard, self.start, self.length, self.cut = row, episode, shard, start, length, cut
        self.filled = int(row[-1]) + 1 if len(row) else 0
        self.one_a_row = len(row) == self.filled
        if len(row) == B and self.one_a_row:
            self.used = length
        else:
            self.used = np.bincount(row, weights=length, minlength=B).astype(np.int64)
        self.shortest = int(self.used.min())

    @property
    def full(self) -> bool:
        """All rows are filled to their ends."""
        return self.shortest == self.width

    @property
    def column(self) -> Int64s:
        """In which column each piece begins: lengths 2 1 3 in rows 0 0 1 begin at 0 2 0."""
        if self.one_a_row:
            return np.zeros(len(self.row), dtype=np.int64)
        ends, used = self.length.cumsum(), self.used
        return ends - self.length - (used.cumsum() - used)[self.row]

    @property
    def own(self) -> Bools:
        """Which places of the rows hold a piece's values, shape (B, width): those before `used`."""
        return np.arange(self.width) < self.used[:, None]

    @cached_property
    def reach(self) -> Int64s:
        """The lengths, where the last piece of each row goes on to the row's end."""
        reach = self.length.copy()
        last = self.row.searchsorted(np.arange(self.filled), side="right") - 1
        reach[last] += self.width - self.used[: self.filled]
        return reach

    @cached_property
    def places(self) -> Int64s:
        """Where in its file every value of the filled rows lies, row after row; ids and masks share it.

        Behind a row's pieces stand places that mean nothing and may lie beyond the file. Starts 3 5 0 and lengths 2 1 3
        in rows 0 0 1 of width 4 reach 2 2 4 and begin at 0 2 4, so places are number + (3 3 3 3 -4 -4 -4 -4)::

            number   0 1 2 3   4 5 6 7
            place    3 4 5 .   0 1 2 .
        """
        reach = self.reach
        places = (self.start - (reach.cumsum() - reach)).repeat(reach)
        places += np.arange(len(places))
        return np.asarray(places)

    @cached_property
    def _rest(self) -> Bools:
        """Which places from the column `shortest` on hold no value, shape (B, width - shortest).

        Rows of 4 that hold 2 and 3, so from column 2 on::

            . . # #
            . . . #
        """
        columns = np.arange(self.shortest, self.width, dtype=np.int32)  # int32 is compared twice as quickly
        return columns >= self.used.astype(np.int32)[:, None]

    def fill_rest(self, rows: Array, value: float) -> None:
        """Write `value` to all places of `rows`, shape (B, width), that hold no piece's value."""
        if not self.full:
            np.copyto(rows[:, self.shortest :], value, where=self._rest)

    def going_on(self) -> Pieces:
        """The same, one value wider, where the episode goes on behind its piece."""
        return Pieces(
            self.B,
            self.width + 1,
            row=self.row,
            episode=self.episode,
            shard=self.shard,
            start=self.start,
            length=self.length + self.cut,
            cut=self.cut,
        )


class Column:
    """One kind of value (ids, mask, ...) of all shards.

    Args:
        files: one array per shard, shape (tokens,), read as they are mapped.
        width: the length of the longest row.
    """

    def __init__(self, files: Sequence[Array], width: int) -> None:
        self._files = files
        self._readers = [RowReader(values, width) for values in files]
        self._dtype = np.result_type(*files)

    def rows(self, pieces: Pieces, fill: float) -> Array:
        """A new array of shape (B, width): the pieces, and `fill` where there is none."""
        rows = self.unfilled(pieces)
        pieces.fill_rest(rows, fill)
        return rows

    def unfilled(self, pieces: Pieces) -> Array:
        """The same with any values at all where there is no piece."""
        found = self._runs(pieces) if pieces.one_a_row else self._gathered(pieces)
        if found.shape == (pieces.B, pieces.width):
            return found
        rows = np.empty((pieces.B, pieces.width), dtype=self._dtype)
        rows[: len(found), : found.shape[1]] = found
        return rows

    def _runs(self, pieces: Pieces) -> Array:
        """One copy a row, all as long as the longest. The loop is over the shards hit."""
        longest = int(pieces.length.max(initial=0))
        if len(self._files) == 1:
            return self._readers[0].read(pieces.start, longest)
        runs = np.empty((len(pieces.row), longest), dtype=self._dtype)
        for hit in np.unique(pieces.shard).tolist():
            here = pieces.shard == hit
            runs[here] = self._readers[hit].read(pieces.start[here], longest)
        return runs

    def _gathered(self, pieces: Pieces) -> Array:
        """Value by value. The loop is over the shards hit."""
        places = pieces.places
        if len(self._files) == 1:
            return self._files[0].take(places, mode="clip").reshape(pieces.filled, pieces.width)
        values = np.empty(len(places), dtype=self._dtype)
        for hit in np.unique(pieces.shard).tolist():
            here = (pieces.shard == hit).repeat(pieces.reach)
            file = self._files[hit]
            values[here] = file[np.minimum(places[here], len(file) - 1)]  # `take` would copy one that repeats a value
        return values.reshape(pieces.filled, pieces.width)
