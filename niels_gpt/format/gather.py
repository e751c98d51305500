"""Inputs, targets and masks of batches. Targets are shifted in this file and nowhere else.

A row of S = T + 1 tokens has T inputs and T targets; the mask belongs to the targets::

    ids     a b c d        x  a b c
    mask    . . # #        y  b c d      loss on y:  . # #

`shifted` does this in numpy, and `targets_of` for other values of the targets. The other functions gather rows straight
from mapped files, by the native kernel: one pass over the values, no array in between. A row is made of spans of the
files, one after the other, and padding. For each function there is a slower one in numpy with equal results, which its
caller uses where the kernel was not built (`kernel.native`)::

    gather.inputs_and_targets   shifted of the gathered ids
    gather.target_mask          episodes.rows.EpisodeReader.weights without its first column
    gather.text_starts          episodes.rows.EpisodeReader.texts
    gather.number_texts         packing.layout_of

The results lie in memory of the caller's `Buffers`, which is used again: new memory must be mapped page by page, which
takes longer than filling it.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Sequence
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]
Float32s = npt.NDArray[np.float32]
Files = Sequence[npt.NDArray[Any]]

MOST_ID = (1 << 63) - 1

SMALLEST = 1 << 16  # bytes; the allocator keeps smaller arrays mapped by itself
ARRAYS_PER_SHAPE = 4  # for batches that are used, being used and made ahead; more are not retained
SHAPES = 16  # of arrays that are retained; after a change of shapes the earlier ones are freed
_HELD_HERE = 2  # references that `getrefcount` finds if only `Buffers.empty` holds an array: its own and the argument


class Spans(NamedTuple):
    """Which values of which files a batch is made of: int64 arrays of shape (spans,).

    Attributes:
        row: the row of each span, never descending.
        shard: the number of its file.
        start, length: the first value in the file, and how many (at least 1).
    """

    row: Int64s
    shard: Int64s
    start: Int64s
    length: Int64s


def shifted(rows: npt.NDArray[Any]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """`x` and `y` as int64 arrays, contiguous, shape (B, T), from rows of shape (B, T + 1)."""
    # In numpy, not torch: torch would use threads, which saves some microseconds on an idle machine, but costs
    # milliseconds when a thread must wait for a core that another process uses.
    return rows[:, :-1].astype(np.int64, order="C"), targets_of(rows).astype(np.int64, order="C")


def targets_of(rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The values of the targets, shape (B, T), from those of all tokens, shape (B, T + 1); the dtype stays."""
    return rows[:, 1:]


def inputs_and_targets(
    kernel: ModuleType,
    buffers: Buffers,
    files: Files,
    spans: Spans,
    *,
    B: int,
    T: int,
    pad_id: int = 0,
    limit: int | None = None,
) -> tuple[Int64s, Int64s] | None:
    """`x` and `y`, int64 of shape (B, T), from rows of at most T + 1 tokens; `None` if an id is `limit` or above.

    Args:
        files: arrays of shape (tokens,), uint8, uint16 or uint32.
        pad_id: fills `x` after a row's tokens, and `y` from the target of its last token on.
    """
    x, y = buffers.empty((B, T), np.int64), buffers.empty((B, T), np.int64)
    inside = kernel.gather_ids(files, spans, pad_id, MOST_ID if limit is None else limit - 1, x, y)
    return (x, y) if inside else None


def target_mask(
    kernel: ModuleType, buffers: Buffers, files: Files | None, spans: Spans, places: Int64s, *, B: int, T: int
) -> tuple[Float32s, Int64s] | None:
    """The mask of the targets, float32 of shape (B, T), and the trained targets of each row, int64 of shape (B,).

    The first token of a text is never trained. `None` if a value of the files is neither 0 nor 1.

    Args:
        files: masks, uint8 of shape (tokens,); `None`: every token of a span counts.
        places: where texts begin, see `text_starts`.
    """
    mask, trained = buffers.empty((B, T), np.float32), np.empty(B, np.int64)
    return (mask, trained) if kernel.gather_mask(files, spans, places, mask, trained) else None


def text_starts(
    kernel: ModuleType,
    buffers: Buffers,
    files: Sequence[npt.NDArray[Any] | None] | None,
    spans: Spans,
    *,
    B: int,
    width: int,
) -> Int64s:
    """Where texts begin: ascending indices into the flattened rows of `width` tokens, int64 of shape (texts,).

    A text begins with each span, and where the segment ids in `files` change inside one.
    """
    places = np.empty(len(spans.row), np.int64) if files is None else buffers.empty((B * width,), np.int64)
    return places[: kernel.text_starts(files, spans, width, places)]


def number_texts(
    kernel: ModuleType, buffers: Buffers, places: Int64s, used: Int64s, *, T: int
) -> tuple[Int32s, Int64s, Int32s]:
    """`(segment_ids, position_ids, cu_seqlens)`, the first two of shape (len(used), T); see `packing.layout_of`."""
    numbers, positions = buffers.empty((len(used), T), np.int32), buffers.empty((len(used), T), np.int64)
    bounds = np.empty(len(places) + len(used) + 1, np.int32)
    return numbers, positions, bounds[: kernel.number_texts(places, used, numbers, positions, bounds)]


class Buffers:
    """Gives arrays with arbitrary contents, and gives an array again once nothing else refers to it.

    A tensor made by `torch.from_numpy` refers to its array as long as the tensor, a view of it or its storage exists,
    so a batch that somebody keeps is never overwritten. Threads may share an instance; a pickled one is empty.
    """

    def __init__(self) -> None:
        self._retained: dict[tuple[Any, ...], deque[npt.NDArray[Any]]] = {}

    def empty(self, shape: tuple[int, ...], dtype: Any) -> npt.NDArray[Any]:
        """An array like that of `numpy.empty`."""
        key = (*shape, dtype)
        retained = self._retained.get(key)
        if retained is None:
            array = np.empty(shape, dtype)
            if array.nbytes >= SMALLEST:
                if len(self._retained) >= SHAPES:
                    self._retained.clear()
                self._retained[key] = deque([array], ARRAYS_PER_SHAPE)
            return array
        for _ in range(len(retained)):
            try:
                array = retained.popleft()  # from here on no other thread finds it
            except IndexError:  # other threads look at all of them
                break
            is_free = sys.getrefcount(array) == _HELD_HERE
            retained.append(array)
            if is_free:
                return array
        array = np.empty(shape, dtype)
        if len(retained) < ARRAYS_PER_SHAPE:
            retained.append(array)
        return array

    def __reduce__(self) -> tuple[type[Buffers], tuple[()]]:
        return type(self), ()
