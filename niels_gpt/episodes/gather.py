"""Runs of values from mapped files, laid into the rows of one array. No loop over tokens or rows.

A row is made of pieces, one after the other; most rows have one piece, packed rows have several::

    file    a a a b b c        pieces   row 0 0 1    start 3 5 0    length 2 1 3
    rows    b b c
            a a a
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from niels_gpt.cache.mmap import RowReader

Int64s = npt.NDArray[np.int64]
Array = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Pieces:
    """Where the pieces of `B` rows come from; arrays of shape (pieces,).

    Attributes:
        row: which row each lies in, int64, not decreasing.
        episode: which episode it is a piece of, int64.
        shard, start, length: which file, from where, how many values, int64.
        cut: bool, the episode goes on behind the piece.
    """

    B: int
    row: Int64s
    episode: Int64s
    shard: Int64s
    start: Int64s
    length: Int64s
    cut: Bools

    @cached_property
    def used(self) -> Int64s:
        """How many values each row holds, shape (B,)."""
        return np.bincount(self.row, weights=self.length, minlength=self.B).astype(np.int64)

    @cached_property
    def column(self) -> Int64s:
        """In which column each piece begins: lengths 2 1 3 in rows 0 0 1 begin at 0 2 0."""
        ends, used = self.length.cumsum(), self.used
        return ends - self.length - (used.cumsum() - used)[self.row]

    @cached_property
    def places(self) -> Int64s:
        """Where in its file every value lies, all pieces one after the other; ids and masks share it.

        Starts 3 5 0 and lengths 2 1 3 begin at 0 2 3 of the result, so places are number + (3 3 3 -3 -3 -3)::

            number   0 1 2 3 4 5
            place    3 4 5 0 1 2
        """
        places = (self.start - (self.length.cumsum() - self.length)).repeat(self.length)
        places += np.arange(len(places))
        return np.asarray(places)

    @cached_property
    def one_a_row(self) -> bool:
        """No row has two pieces."""
        return len(self.row) <= self.B and bool((self.row[1:] > self.row[:-1]).all())

    def own(self, width: int) -> Bools:
        """Which places of rows of `width` hold a piece's values, shape (B, width): those before `used`."""
        return np.arange(width, dtype=np.int32) < self.used.astype(np.int32)[:, None]

    def between(self, first: int, stop: int) -> Pieces:
        """The pieces of rows `first` to `stop` - 1, which become rows 0, 1, ..."""
        a, b = self.row.searchsorted([first, stop])
        return Pieces(
            B=stop - first,
            row=self.row[a:b] - first,
            episode=self.episode[a:b],
            shard=self.shard[a:b],
            start=self.start[a:b],
            length=self.length[a:b],
            cut=self.cut[a:b],
        )


class Column:
    """One kind of value (ids, mask, ...) of all shards.

    Args:
        files: one array per shard, shape (tokens,), read as they are mapped.
        width: the length of a row.
    """

    def __init__(self, files: Sequence[Array], width: int) -> None:
        self._files = files
        self._readers = [RowReader(values, width) for values in files]
        self._width = width
        self._dtype = np.result_type(*files)

    def rows(self, pieces: Pieces, own: Bools, fill: float) -> Array:
        """A new array of shape (B, width): the pieces where `own` (same shape, see `Pieces.own`), else `fill`."""
        rows = np.full(own.shape, fill, dtype=self._dtype)
        if not pieces.one_a_row:
            rows[own] = self._flat(pieces)
        elif len(self._files) == 1 and len(pieces.row) == len(rows):
            longest = int(pieces.length.max())
            runs = self._readers[0].read(pieces.start, longest)
            np.copyto(rows[:, :longest], runs, where=own[:, :longest])
        else:
            self._copy_runs(pieces, rows, own)
        return rows

    def _copy_runs(self, pieces: Pieces, rows: Array, own: Bools) -> None:
        """One copy a row; the loop is over the shards hit."""
        for shard in np.unique(pieces.shard).tolist():
            here = pieces.shard == shard
            longest = int(pieces.length[here].max())
            runs = self._readers[shard].read(pieces.start[here], longest)
            at = pieces.row[here]
            rows[at, :longest] = np.where(own[at, :longest], runs, rows[at, :longest])

    def _flat(self, pieces: Pieces) -> Array:
        """All pieces one after the other. The loop is over the shards hit."""
        if len(self._files) == 1:
            return self._files[0].take(pieces.places)
        values = np.empty(len(pieces.places), dtype=self._dtype)
        shard = np.repeat(pieces.shard, pieces.length)
        for hit in np.unique(pieces.shard).tolist():
            here = shard == hit
            values[here] = self._files[hit][pieces.places[here]]  # `take` would copy a file that is one repeated value
        return values
