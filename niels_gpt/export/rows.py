"""Rows on their way out: ids, weights, and where texts begin, of many rows one after another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from niels_gpt.errors import UsageError
from niels_gpt.format.masks import IGNORE_INDEX

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Rows:
    """Some rows, flat. Three rows of 3, 2 and 1 tokens, the first of two texts::

        ids      a b c  d e  f
        lengths  3      2    1
        begins   # . #  # .  #
        weights  0 1 0  0 1  0        aligned with the ids; 0 wherever a text begins

    The first token of a text has nothing to be predicted from, so it is never trained: batches of ours treat it so,
    and so must every consumer, whatever it does with its rows.

    Attributes:
        ids: unsigned integers, shape (tokens,).
        lengths: int64, shape (rows,), each at least 1.
        begins: bool, shape (tokens,).
        weights: uint8 of 0 and 1, or float32 of 0 and more; shape (tokens,). Above 0 means trained.
    """

    ids: npt.NDArray[np.unsignedinteger[Any]]
    lengths: Int64s
    begins: Bools
    weights: npt.NDArray[Any]

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def starts(self) -> Int64s:
        """Where each row starts in `ids`, int64 of shape (rows,)."""
        return np.cumsum(self.lengths) - self.lengths

    @property
    def trained(self) -> Bools:
        """bool, shape (tokens,)."""
        return np.asarray(self.weights > 0)

    def text_lengths(self) -> Int64s:
        """The lengths of all texts, int64, one row's after another's."""
        return np.diff(np.flatnonzero(self.begins), append=len(self.ids))

    def texts_per_row(self) -> Int64s:
        """How many texts each row has, int64 of shape (rows,)."""
        counts: Int64s = np.add.reduceat(self.begins, self.starts, dtype=np.int64)
        return counts

    def labels(self) -> npt.NDArray[np.int32]:
        """The ids where they are trained and -100 elsewhere, **unshifted**: label i belongs to token i.

        Raises:
            UsageError: an id that int32 does not hold.
        """
        return np.where(self.trained, self.signed_ids(), np.int32(IGNORE_INDEX))

    def signed_ids(self) -> npt.NDArray[np.int32]:
        """The ids as int32.

        Raises:
            UsageError: an id that int32 does not hold.
        """
        if self.ids.size and self.ids.max() > np.iinfo(np.int32).max:
            raise UsageError(f"id {int(self.ids.max())}: this format keeps ids as int32; no vocabulary is that large")
        return self.ids.astype(np.int32)

    def first(self, n: int) -> Rows:
        """The first `n` rows."""
        stop = int(self.lengths[:n].sum())
        return Rows(self.ids[:stop], self.lengths[:n], self.begins[:stop], self.weights[:stop])


def rows_of(
    ids: npt.NDArray[Any], lengths: Int64s, weights: npt.NDArray[Any] | None, begins: Bools | None = None
) -> Rows:
    """Rows whose weights are 0 where texts begin.

    Args:
        weights: `None` where everything is trained.
        begins: where texts begin inside rows; rows begin texts anyway.
    """
    at = np.zeros(len(ids), dtype=np.bool_) if begins is None else begins.copy()
    at[np.cumsum(lengths) - lengths] = True
    own = np.ones(len(ids), dtype=np.uint8) if weights is None else weights.copy()
    own[at] = 0
    return Rows(ids, lengths, at, own)


def runs(values: npt.NDArray[Any], starts: Int64s, lengths: Int64s) -> npt.NDArray[Any]:
    """Runs of a file, one after another; a view where they follow each other.

    ::

        values  a b c d e f      starts [4 1]  lengths [2 3]      e f b c d
        at      4 5 1 2 3        0 1 2 3 4 plus (4 - 0) twice and (1 - 2) three times
    """
    if not len(starts):
        return values[:0]
    ends = np.cumsum(lengths)
    if (starts[1:] == starts[:-1] + lengths[:-1]).all():
        return values[int(starts[0]) : int(starts[0] + ends[-1])]
    places = np.arange(ends[-1]) + np.repeat(starts - (ends - lengths), lengths)
    return np.asarray(values[places])
