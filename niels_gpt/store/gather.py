"""Spans of arrays, one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Int64s = npt.NDArray[np.int64]

CHUNK_TOKENS: Final = 1 << 20
CHUNK_ROWS: Final = 1 << 15  # at most so many rows are looked up at a time, however short they are


class Computed(Protocol):
    """Values that are computed as they are read: `store.masks.SentinelMask`."""

    @property
    def dtype(self) -> np.dtype[Any]: ...

    def __len__(self) -> int: ...

    def __getitem__(self, span: slice, /) -> Array: ...

    def gather(self, starts: Int64s, lengths: Int64s) -> Array: ...


def gather(values: Array | Computed, starts: Int64s, lengths: Int64s) -> Array:
    """Spans of an array, one after the other; a view where each begins at the end of the one before it.

    ::

        values  a b c d e f      starts [4 1]  lengths [2 3]      e f b c d
        places  4 5 1 2 3        0 1 2 3 4 plus (4 - 0) twice and (1 - 2) three times
    """
    if not len(starts):
        return values[:0] if isinstance(values, np.ndarray) else np.empty(0, values.dtype)
    if not isinstance(values, np.ndarray):
        return values.gather(starts, lengths)
    ends = np.cumsum(lengths)
    # Neighbours in order, which reading a split gives: a view of the file, nothing is copied.
    if (starts[1:] == starts[:-1] + lengths[:-1]).all():
        return values[int(starts[0]) : int(starts[0] + ends[-1])]
    # Position in the result plus a shift that is the same within a span, its start in the file minus its start in the
    # result: spans 5:7 and 1:4 have shifts 5 and -1, so 0 1 2 3 4 are 5 6 1 2 3 in the file.
    positions = np.arange(ends[-1]) + np.repeat(starts - (ends - lengths), lengths)
    return np.asarray(values[positions])


def gather_from(files: Sequence[Array | Computed], file: Int64s, starts: Int64s, lengths: Int64s) -> Array:
    """Spans of several files, concatenated in the order of the arguments; an empty file counts as zeros.

    ::

        files  a b c | d e      file [1 0]  starts [0 1]  lengths [2 2]      d e b c

    Args:
        file, starts, lengths: of each span; starts are counted in its file.
    """
    # Most reads are of one file; then no array of all spans is needed.
    used = np.unique(file).tolist()
    if len(used) == 1:
        return _gather_or_zeros(files[used[0]], starts, lengths)
    if not used:
        return np.empty(0, files[0].dtype if files else np.uint32)
    # Files may differ in dtype: uint8 and float32 masks are read as float32.
    values = np.empty(int(lengths.sum()), dtype=np.result_type(*(files[number].dtype for number in used)))
    begins, everywhere = np.cumsum(lengths) - lengths, np.arange(len(values))
    for number in used:
        here = file == number
        # `gather` of 0 1 2 ... gives the positions in the result that the spans of this file fill.
        values[gather(everywhere, begins[here], lengths[here])] = _gather_or_zeros(
            files[number], starts[here], lengths[here]
        )
    return values


def _gather_or_zeros(file: Array | Computed, starts: Int64s, lengths: Int64s) -> Array:
    """Spans of one file; zeros for an empty file, as shards without segments have."""
    return gather(file, starts, lengths) if len(file) else np.zeros(int(lengths.sum()), dtype=file.dtype)


def row_starts(lengths: Int64s) -> Int64s:
    """Where rows of these lengths start, and the end: 3 2 gives 0 3 5."""
    return np.concatenate(([0], np.cumsum(lengths)))


def slices_of_tokens(lengths: Int64s, max_tokens: int = CHUNK_TOKENS) -> Iterator[slice]:
    """Neighbouring rows in slices of at most `max_tokens` tokens; a longer row has a slice of its own.

    ::

        lengths 3 4 2 9 1    max_tokens 7    slices 0:2 2:3 3:4 4:5
    """
    ends = np.cumsum(lengths)
    first, before = 0, 0
    # One step per slice, not per row: `ends` ascends, so a binary search finds the last row that fits.
    while first < len(lengths):
        stop = max(first + 1, int(np.searchsorted(ends, before + max_tokens, side="right")))
        yield slice(first, stop)
        first, before = stop, int(ends[stop - 1])
