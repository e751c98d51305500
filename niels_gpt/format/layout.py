"""Where the pieces of packed rows lie in a batch: what attention, positions and the loss have to know of the seams."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from niels_gpt.errors import UsageError

Integers = npt.NDArray[np.integer]
Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Layout:
    """Where pieces lie in a batch of B rows of T inputs.

    Attributes:
        segment_ids: int32, shape (B, T): 1, 2, ... along each row, 0 on padding.
        position_ids: int64, shape (B, T): from 0 in every piece, and in the padding.
        seam_places: int64: the seams between pieces, as places in the B * T flattened targets; see `seams`.
        cu_seqlens: int32, shape (k + 1,): where the sequences start in the B * T flattened inputs, and B * T. A row's
            padding is a sequence of its own.
        max_seqlen: the length of the longest of them.
    """

    segment_ids: npt.NDArray[np.int32]
    position_ids: Int64s
    cu_seqlens: npt.NDArray[np.int32]
    max_seqlen: int
    seam_places: Int64s

    @property
    def seams(self) -> npt.NDArray[np.bool_]:
        """bool, shape (B, T): True where the target, the row's token one column further, is the first of a piece or
        padding. Nothing may be predicted there."""
        seams = self.segment_ids == 0
        seams.ravel()[self.seam_places] = True
        return np.asarray(seams)


def layout(rows: Integers, lengths: Integers, *, B: int, T: int) -> Layout:
    """Lay pieces one after another into B rows of T + 1 tokens, of which T are inputs and T, one further, targets.

    The token in column T is a target only, so the sequence that ends there is one shorter as an input. T = 5, one row
    with pieces of 3 and 2::

        row           a b c d e P        P: padding
        segment_ids   1 1 1 2 2
        position_ids  0 1 2 0 1
        targets       b c d e P
        seams         . . # . #
        cu_seqlens    0     3   5

    Args:
        rows: the row of each piece, integers from 0 to B - 1 that never fall, shape (n,). Rows may have no piece.
        lengths: tokens of each piece, integers of at least 1, shape (n,); together at most T + 1 in a row.

    Raises:
        UsageError: the pieces do not fit, `rows` falls or points outside, or B * T is not between 1 and 2**31 - 1.
    """
    first, used = _extents(rows, lengths, B, T)
    rows = rows.astype(np.int64, copy=False)  # unsigned and signed numbers would add up to floats
    own = np.arange(len(rows)) + rows  # slots: the pieces in order, after each row's pieces its padding
    pads = first[1:] + np.arange(B)
    sizes = np.empty(len(rows) + B, dtype=np.int64)
    sizes[own] = lengths
    sizes[pads] = T + 1 - used
    numbers = np.zeros(len(sizes), dtype=np.int32)
    numbers[own] = np.arange(1, len(rows) + 1) - first[rows]
    shorter = pads - (used == T + 1)  # the slots that reach column T
    sizes[shorter] -= 1
    ends = np.cumsum(sizes)
    segment_ids = np.repeat(numbers, sizes).reshape(B, T)
    position_ids = np.arange(B * T)
    position_ids -= np.repeat(ends - sizes, sizes)
    closed = sizes > 0  # of what is left of pieces, only those that end before column T have a seam behind them
    cu_seqlens = np.zeros(np.count_nonzero(closed) + 1, dtype=np.int32)
    cu_seqlens[1:] = ends[closed]
    closed[shorter] = False
    return Layout(segment_ids, position_ids.reshape(B, T), cu_seqlens, int(sizes.max()), ends[closed] - 1)


def _extents(rows: Integers, lengths: Integers, B: int, T: int) -> tuple[Int64s, Int64s]:
    """The first piece of each row and, last, how many there are, shape (B + 1,); the tokens of each row, shape (B,)."""
    if B < 1 or T < 1 or B * T >= 2**31:
        raise UsageError(f"layout: B is {B} and T is {T}; expected at least 1 and together below 2**31 tokens")
    if rows.shape != lengths.shape or rows.ndim != 1 or rows.dtype.kind not in "iu" or lengths.dtype.kind not in "iu":
        raise UsageError(
            f"layout: rows are {rows.dtype} of shape {rows.shape}, lengths {lengths.dtype} of shape {lengths.shape}; "
            "expected integers of one shape (n,)"
        )
    if rows.size and (rows[0] < 0 or rows[-1] >= B or (rows[1:] < rows[:-1]).any()):
        raise UsageError(f"layout: rows run from {rows.min()} to {rows.max()}; expected 0 to {B - 1}, never falling")
    if rows.size and lengths.min() < 1:
        piece = int(lengths.argmin())
        raise UsageError(f"layout: piece {piece} has length {lengths[piece]}; expected at least 1")
    first = np.searchsorted(rows, np.arange(B + 1))
    before = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum(lengths, out=before[1:])
    used = np.diff(before[first])
    if used.max() > T + 1:
        row = int(used.argmax())
        raise UsageError(
            f"layout: the pieces of row {row} have {used[row]} tokens; expected at most {T + 1}, T and the last target"
        )
    return first, used
