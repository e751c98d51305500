"""Rows between a dataset and a file of another format: ids, weights, and where texts begin, concatenated (`Rows`).

`padded` pads the texts of rows, `cut` truncates rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from niels_gpt.errors import UsageError
from niels_gpt.format.fitting import without_cut_turn
from niels_gpt.store.gather import gather
from niels_gpt.store.masks import IGNORE_INDEX

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Rows:
    """Some rows, concatenated. Three rows of 3, 2 and 1 tokens, the first of two texts::

        ids      a b c  d e  f
        lengths  3      2    1
        begins   # . #  # .  #
        weights  0 1 0  0 1  0        aligned with the ids; 0 wherever a text begins

    The first token of a text has nothing to be predicted from, so it is never trained. Our own batches do the same; a
    reader of the exported files must, too, whether it packs rows or not.

    Attributes:
        ids: unsigned integers, shape (tokens,).
        lengths: int64, shape (rows,), each at least 1.
        begins: bool, shape (tokens,).
        weights: uint8 of 0 and 1, or float32 of 0 and more; shape (tokens,). A token is trained if it is above 0.
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
        # Lengths 3 2 4: ends 3 5 9, starts 0 3 5.
        return np.cumsum(self.lengths) - self.lengths

    @property
    def trained(self) -> Bools:
        """True on trained tokens, bool of shape (tokens,)."""
        return np.asarray(self.weights > 0)

    def text_lengths(self) -> Int64s:
        """The lengths of all texts, int64 of shape (texts,): 2 1 2 1 in the example above."""
        return np.diff(np.flatnonzero(self.begins), append=len(self.ids))

    def texts_per_row(self) -> Int64s:
        """How many texts each row has, int64 of shape (rows,)."""
        # Flags 1 0 1 | 1 0 of rows that start at 0 3: 2 texts and 1.
        counts: Int64s = np.add.reduceat(self.begins, self.starts, dtype=np.int64)
        return counts

    def labels(self) -> npt.NDArray[np.int32]:
        """The ids where they are trained and -100 elsewhere, **unshifted**: label i is for token i.

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
            raise UsageError(
                f"id {int(self.ids.max())} does not fit into int32, as this format stores ids; check the tokenizer"
            )
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
        begins: where texts begin inside rows; a text begins with every row anyway.
    """
    # Copies, since the arrays may be views of mapped files.
    text_begins = np.zeros(len(ids), dtype=np.bool_) if begins is None else begins.copy()
    # Whatever the source records, a row begins a text.
    text_begins[np.cumsum(lengths) - lengths] = True
    text_weights = np.ones(len(ids), dtype=np.uint8) if weights is None else weights.copy()
    text_weights[text_begins] = 0
    return Rows(ids, lengths, text_begins, text_weights)


def padded_inputs(lengths: Int64s, multiple: int) -> Int64s:
    """How many inputs texts of these lengths have when padded, at least one multiple: 1 3 5 6 give 4 4 4 8 for 4."""
    return np.maximum(1, -(-(lengths - 1) // multiple)) * multiple


def padded(rows: Rows, multiple: int, pad_id: int) -> Rows:
    """The rows with every text padded to a multiple of inputs; padding is never trained.

    Context parallelism of CP ranks cuts each text into 2 * CP equal parts. Readers of packed rows use all tokens of a
    text but the last as inputs, because the last one is only a label. So the inputs must be a multiple, and a stored
    text has one token more. With a multiple of 4 and padding _::

        text     a b c               a b c d e            a b c d e f
        stored   a b c _ _           a b c d e            a b c d e f _ _ _
        inputs   a b c _             a b c d              a b c d e f _ _

    Texts of 3 and 2 begin at 0 3, and padded at 0 5, so tokens 0 1 2 3 4 go to 0 1 2 5 6.
    """
    old = rows.text_lengths()
    new = padded_inputs(old, multiple) + 1
    starts = np.cumsum(new) - new
    # Each text moves by the padding before it: old starts 0 3 and new starts 0 5 move the second text by 2.
    positions = np.arange(len(rows.ids)) + np.repeat(starts - (np.cumsum(old) - old), old)
    ids = np.full(int(new.sum()), pad_id, dtype=np.uint32)
    ids[positions] = rows.ids
    weights = np.zeros(len(ids), dtype=rows.weights.dtype)
    weights[positions] = rows.weights
    begins = np.zeros(len(ids), dtype=np.bool_)
    begins[starts] = True
    texts = rows.texts_per_row()
    # A row is as long as its padded texts together: new lengths 5 5 9 with 1 and 2 texts a row give 5 14.
    return Rows(ids, np.add.reduceat(new, np.cumsum(texts) - texts), begins, weights)


def cut(rows: Rows, width: int, policy: str) -> Rows:
    """Truncate rows to at most `width` tokens.

    The policy `head` keeps the first, `tail` the last, `drop_partial_turn` the first without loss on a turn that is
    cut.

    ::

        width 3         a b c d e | f g        head  a b c | f g       tail  c d e | f g

    Args:
        policy: "head", "tail" or "drop_partial_turn"; see `format.fitting.check_policy`.
    """
    # Most portions have none, and are returned as they are.
    long = np.flatnonzero(rows.lengths > width)
    if not len(long):
        return rows
    # The source may be a memory-mapped file.
    weights = rows.weights.copy()
    if policy == "drop_partial_turn":
        # The token after the cut shows whether it goes through a turn. Of rows that start at 0 5 and width 2, the
        # positions are 0 1 2 and 5 6 7; a row that is cut has at least width + 1 tokens.
        positions = rows.starts[long][:, None] + np.arange(width + 1)
        weights[positions[:, :width]] = without_cut_turn(weights[positions], width)
    # Rows stay in order; only their lengths and, with `tail`, their starts change.
    lengths = np.minimum(rows.lengths, width)
    # `tail` begins as many tokens later as are cut: a row of 5 cut to 3 begins at 2.
    starts = rows.starts + (rows.lengths - lengths if policy == "tail" else 0)
    ids, weights, begins = (gather(values, starts, lengths) for values in (rows.ids, weights, rows.begins))
    # Again through `rows_of`: after `tail` the first token of a row may be one that was trained.
    return rows_of(ids, lengths, weights, begins)
