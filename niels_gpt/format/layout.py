"""Where the pieces of packed rows lie in a batch: what attention, positions and the loss have to know of the seams."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

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
        cu_seqlens: int32, shape (k + 1,): where the sequences start in the B * T flattened inputs, and B * T. A row's
            padding is a sequence of its own.
        max_seqlen: the length of the longest of them.
        ends: bool, shape (B,): True where the row's last target is the first token of a piece, or padding.
    """

    segment_ids: npt.NDArray[np.int32]
    position_ids: Int64s
    cu_seqlens: npt.NDArray[np.int32]
    max_seqlen: int
    ends: npt.NDArray[np.bool_]

    @property
    def seams(self) -> npt.NDArray[np.bool_]:
        """bool, shape (B, T): True where the target, the row's token one column further, is the first of a piece or
        padding. Nothing may be predicted there."""
        seams = self.segment_ids == 0
        seams[:, :-1] |= self.position_ids[:, 1:] == 0
        seams[:, -1] |= self.ends
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
    before, used = _extents(rows, lengths, B, T)
    rows = rows.astype(np.int64, copy=False)  # unsigned and signed numbers would add up to floats
    columns: Int64s = before[:-1] - (used.cumsum() - used)[rows]
    return layout_of(rows * (T + 1) + columns, used, T=T)


def layout_of(places: Int64s, used: Int64s, *, T: int) -> Layout:
    """The layout of pieces that are known by where they begin; nothing is checked.

    ::

        T = 5    a b c d e P  f P P P P P      places  0 3 6      used  5 1
        starts   0     3      5 6              of sequences in the inputs, where a row is one shorter

    Args:
        places: int64, shape (n,): where the pieces begin in the B * (T + 1) flattened tokens, ascending.
        used: int64, shape (B,): how many tokens each row has; behind them is padding.
    """
    B = len(used)
    row = places // (T + 1)
    starts = places - row
    numbers = (np.arange(1, len(row) + 1) - row.searchsorted(row)).astype(np.int32)
    short = (used < T).nonzero()[0]
    if len(short):  # their padding is a sequence too, with the number 0
        starts = np.concatenate([starts, short * T + used[short]])
        order = starts.argsort(kind="stable")  # the target-only piece before what begins the next row
        starts, numbers = starts[order], np.concatenate([numbers, np.zeros(len(short), np.int32)])[order]
    bounds = np.concatenate([starts, [B * T]])
    sizes = bounds[1:] - bounds[:-1]
    ends = used <= T
    if not sizes.all():  # a piece whose only token is a row's last target: no input of it is left
        ends[starts[sizes == 0] // T - 1] = True
        bounds = bounds[np.append(sizes > 0, True)]
    position_ids = starts.repeat(sizes)
    np.subtract(_counted(B * T), position_ids, out=position_ids)
    return Layout(
        segment_ids=numbers.repeat(sizes).reshape(B, T),
        position_ids=position_ids.reshape(B, T),
        cu_seqlens=bounds.astype(np.int32),
        max_seqlen=int(sizes.max()),
        ends=ends,
    )


@lru_cache(maxsize=4)
def _counted(n: int) -> Int64s:
    """The numbers 0 to n - 1, kept for the next batch of that shape."""
    counted = np.arange(n)
    counted.flags.writeable = False
    return counted


def _extents(rows: Integers, lengths: Integers, B: int, T: int) -> tuple[Int64s, Int64s]:
    """Tokens before each piece and, last, of all, shape (n + 1,); the tokens of each row, shape (B,)."""
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
    return before, used
