"""Inputs, targets and masks of batches. Targets are shifted in this file and nowhere else.

A row of S = T + 1 tokens has T inputs and T targets; the mask belongs to the targets::

    ids     a b c d        x  a b c
    mask    . . # #        y  b c d      loss on y:  . # #

`shifted` does this in numpy, and `targets_of` for other values of the targets. The other functions gather rows straight
from mapped files, by the native kernel: one pass over the values, no array in between. A row is made of spans of the
files, one after the other, and padding. For each function there is a slower one in numpy with equal results, which its
caller uses where the kernel was not built (`kernel.native`)::

    gather.windows              cache.pretrain_dataset.PretrainTokenStreamDataset.get_batch
    gather.inputs_and_targets   shifted of the gathered ids
    gather.training_rows        the same; EpisodeReader.weights (episodes.rows) without its first column; layout_of
    gather.trained_targets      how many of those weights are not 0
    gather.text_starts          episodes.rows.EpisodeReader.texts

The results lie in memory of the caller's `Buffers`, which is used again: new memory must be mapped page by page, which
takes longer than filling it.
"""

from __future__ import annotations

import math
import sys
from collections import deque
from collections.abc import Sequence
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from niels_gpt.errors import UsageError

Int64s = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]
Float32s = npt.NDArray[np.float32]
Bools = npt.NDArray[np.bool_]
ValueFiles = Sequence[npt.NDArray[Any]]

MOST_ID = (1 << 63) - 1
TOTALS = 5  # of a batch: trained targets, tokens, episodes, sequences, and the length of the longest one


class Files(NamedTuple):
    """The files of all shards, arrays of shape (tokens,); `None`: not read.

    Attributes:
        ids: uint8, uint16 or uint32.
        masks: uint8.
        segments: uint8, uint16 or uint32; or `None` for a shard whose episodes are one text each.
    """

    ids: ValueFiles | None = None
    masks: ValueFiles | None = None
    segments: Sequence[npt.NDArray[Any] | None] | None = None


ALIGNMENT = 64  # bytes: a line of the processor's cache; vectors that are written across two lines take longer
SMALLEST = 1 << 16  # bytes; the allocator does not return smaller arrays to the system, so they are reused anyway
# Three arrays of a batch have one size: enough for batches that are used, and made ahead; more are not retained.
ARRAYS_PER_SIZE = 8
SIZES = 16  # of arrays that are retained; when there are more, the earlier ones are freed
_HELD_HERE = 3  # references that `getrefcount` finds if only `Buffers._room` holds bytes: a pair, its own, the argument


class Spans(NamedTuple):
    """Which values of which files a batch is made of: int64 arrays of shape (spans,).

    Attributes:
        row: the row of each span, never descending.
        shard: the number of its file.
        start, length: the first value in the file, and how many (at least 1).
        begins: bool: an episode begins with the span, and so does a text; `None`: with every span.
        copied: bool: nothing in the span is trained; `None`: all is trained that the masks say.
        sees: how many tokens of its episode's first span each span sees besides its own; each is then a text.
    """

    row: Int64s
    shard: Int64s
    start: Int64s
    length: Int64s
    begins: Bools | None = None
    copied: Bools | None = None
    sees: Int64s | None = None


class Outputs(NamedTuple):
    """Arrays that the kernel fills, for `B` rows of `T` inputs and targets; `None`: not wanted.

    Attributes:
        x, y: int64, shape (B, T).
        mask: of the targets, float32, shape (B, T). The first token of a text is never trained.
        numbers, positions: int32 and int64, shape (B, T): the number of each input's text in its row, from 1, and its
            position in it, from 0; padding is a text with the number 0. A text that sees others begins after them.
        columns: int32, shape (B, T, 2): the columns, begin and end, that an input sees besides its own text.
        places: int64, one for each text: where it begins in the flattened rows of T + 1 tokens.
        bounds: int32: of each batch where its sequences (texts, padding) begin in its flattened inputs, and its size.
        trained: int64, shape (B,): how many targets of each row are trained.
        totals: int64, shape (batches, TOTALS).
    """

    x: Int64s | None = None
    y: Int64s | None = None
    mask: Float32s | None = None
    numbers: Int32s | None = None
    positions: Int64s | None = None
    columns: Int32s | None = None
    places: Int64s | None = None
    bounds: Int32s | None = None
    trained: Int64s | None = None
    totals: Int64s | None = None


class Gathered(NamedTuple):
    """The arrays that `training_rows` has filled; see `Outputs`."""

    x: Int64s
    y: Int64s
    mask: Float32s | None
    numbers: Int32s | None
    positions: Int64s | None
    columns: Int32s | None
    bounds: Int32s | None
    totals: Int64s


def shifted(rows: npt.NDArray[Any]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """`x` and `y` as int64 arrays, contiguous, shape (B, T), from rows of shape (B, T + 1)."""
    # In numpy, not torch: torch would use threads, which saves some microseconds on an idle machine, but costs
    # milliseconds when a thread must wait for a core that another process uses.
    return rows[:, :-1].astype(np.int64, order="C"), targets_of(rows).astype(np.int64, order="C")


def targets_of(rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The values of the targets, shape (B, T), from those of all tokens, shape (B, T + 1); the dtype stays."""
    return rows[:, 1:]


def windows(
    kernel: ModuleType, buffers: Buffers, files: ValueFiles, first: Int64s, numbers: Int64s, *, T: int
) -> tuple[Int64s, Int64s]:
    """`x` and `y`, int64 of shape (B, T), of windows of T + 1 neighbouring values.

    Args:
        files: arrays of shape (tokens,), uint8, uint16 or uint32.
        first: the number of each file's first window, int64, from 0 on, ascending: files of 6 and 8 values have 3 and 5
            windows of 4, with the numbers 0 to 2 and 3 to 7.
        numbers: of the windows, int64, shape (B,).
    """
    shape = (len(numbers), T)
    arrays = buffers.empty(shape, np.int64), buffers.empty(shape, np.int64)
    kernel.gather_windows((numbers, first), files, T, arrays)
    return arrays


def inputs_and_targets(
    kernel: ModuleType,
    buffers: Buffers,
    files: ValueFiles,
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
    most = MOST_ID if limit is None else limit - 1
    inside, _, _, _ = kernel.gather_rows(spans, (files, None, None), (B, T, B), pad_id, most, Outputs(x, y))
    return (x, y) if inside else None


def training_rows(
    kernel: ModuleType,
    buffers: Buffers,
    files: Files,
    spans: Spans,
    *,
    batches: int,
    B: int,
    T: int,
    pad_id: int,
    limit: int | None,
    with_mask: bool,
    with_layout: bool,
) -> Gathered | None:
    """Everything of `B` rows that are divided among `batches`; `None` if an id is `limit` or above, or a mask above 1.

    `None` too if a text that sees others would lose a trained token: its first one, which nothing predicts.

    Args:
        files: `masks` may be `None`: then every token of a span counts.
        with_mask: fill `mask`, and count trained targets in `totals`.
        with_layout: fill `numbers`, `positions` and `bounds`, or in place of `bounds` `columns` if spans see others.
    """
    shape, shared, room = (B, T), spans.sees is not None, None
    if with_layout and not shared:
        # A sequence for each text and for the padding of each row, and the end of each batch. A text is a span, but
        # with segment ids each token may be one. The former number differs from batch to batch, so its memory is not
        # retained: `Buffers` has room for a few sizes.
        if files.segments is None:
            room = np.empty(len(spans.row) + B + batches, np.int32)
        else:
            room = buffers.empty((B * (T + 1) + B + batches,), np.int32)
    gathered = Gathered(
        buffers.empty(shape, np.int64),
        buffers.empty(shape, np.int64),
        buffers.empty(shape, np.float32) if with_mask else None,
        buffers.empty(shape, np.int32) if with_layout else None,
        buffers.empty(shape, np.int64) if with_layout else None,
        buffers.empty((B, T, 2), np.int32) if with_layout and shared else None,
        room,
        np.empty((batches, TOTALS), np.int64),
    )
    x, y, mask, numbers, positions, columns, bounds, totals = gathered
    # One call for several batches that are made ahead; the kernel begins `bounds` and `totals` anew every B // batches
    # rows.
    wanted = Outputs(x, y, mask, numbers, positions, columns, None, bounds, None, totals)
    most = MOST_ID if limit is None else limit - 1
    inside, weighted, _, _ = kernel.gather_rows(spans, files, (B, T, B // batches), pad_id, most, wanted)
    return gathered if inside and weighted else None


def trained_targets(kernel: ModuleType, files: Files, spans: Spans, *, B: int, T: int) -> Int64s | None:
    """How many targets of each row are trained, int64 of shape (B,); `None` as `training_rows`, of masks.

    Args:
        files: masks and segments; `ids` is not read.
    """
    trained = np.empty(B, np.int64)
    _, weighted, _, _ = kernel.gather_rows(
        spans, (None, files.masks, files.segments), (B, T, B), 0, 0, Outputs(trained=trained)
    )
    return trained if weighted else None


def text_starts(
    kernel: ModuleType,
    buffers: Buffers,
    segments: Sequence[npt.NDArray[Any] | None] | None,
    spans: Spans,
    *,
    B: int,
    T: int,
) -> Int64s:
    """Where texts begin: ascending indices into the flattened rows of T + 1 tokens, int64 of shape (texts,).

    A text begins with each span that begins an episode, and where the segment ids in the files change.
    """
    # With segment ids each token may begin a text, else each span at most.
    n = len(spans.row)
    places = np.empty(n, np.int64) if segments is None else buffers.empty((B * (T + 1),), np.int64)
    _, _, found, _ = kernel.gather_rows(spans, (None, None, segments), (B, T, B), 0, 0, Outputs(places=places))
    return places[:found]


class Buffers:
    """Gives arrays with arbitrary contents, and gives an array again once nothing else refers to it.

    A tensor made by `torch.from_numpy` refers to its array as long as the tensor, a view of it or its storage exists,
    so a batch that is still in use is never overwritten. Threads may share an instance; a pickled one is empty.
    """

    def __init__(self) -> None:
        # Of each size: bytes, and where among them arrays begin. Bytes and not arrays, because a view of a view refers
        # to the array that owns the memory alone.
        self._retained: dict[int, deque[tuple[npt.NDArray[np.uint8], int]]] = {}

    def empty(self, shape: tuple[int, ...], dtype: Any) -> npt.NDArray[Any]:
        """An array like that of `numpy.empty`, which begins with a line of the processor's cache if it is large.

        Raises:
            UsageError: there is no memory for it.
        """
        size = math.prod(shape) * np.dtype(dtype).itemsize
        if size < SMALLEST:
            return np.empty(shape, dtype)
        return np.ndarray(shape, dtype, *self._room(size))

    def _room(self, size: int) -> tuple[npt.NDArray[np.uint8], int]:
        """Bytes that nothing else refers to, and where an array of `size` bytes begins among them."""
        if size not in self._retained and len(self._retained) >= SIZES:
            self._retained.clear()
        retained = self._retained.setdefault(size, deque())
        for _ in range(len(retained)):
            try:
                room, begin = one = retained.popleft()  # from here on no other thread finds it
            except IndexError:  # other threads look at all of them
                break
            is_free = sys.getrefcount(room) == _HELD_HERE
            # At the end, so that the next call looks at the others first.
            retained.append(one)
            if is_free:
                return room, begin  # not `one`: a new pair refers to the bytes, so no other thread takes them for free
        try:
            room = np.empty(size + ALIGNMENT, np.uint8)
        except MemoryError as error:
            raise UsageError(
                f"no memory for {size:,} bytes, one of the arrays of a batch; lower the batch size (B, batch_size) or "
                "the length of rows (T, block_size)"
            ) from error
        # Memory at 1000: -1000 % 64 = 24, and 1024 is a multiple of 64.
        begin = -room.ctypes.data % ALIGNMENT
        if len(retained) < ARRAYS_PER_SIZE:
            retained.append((room, begin))
        return room, begin

    def __reduce__(self) -> tuple[type[Buffers], tuple[()]]:
        return type(self), ()
