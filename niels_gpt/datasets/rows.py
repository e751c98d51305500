"""Rows of ids, a split of them, and spans gathered from mapped files."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from niels_gpt.cache.meta import Meta
from niels_gpt.cache.mmap import Tokens
from niels_gpt.errors import UsageError
from niels_gpt.forks import cached_property

CHUNK_TOKENS: Final = 1 << 20
CHUNK_ROWS: Final = 1 << 15  # at most so many rows are looked up at a time, however short they are

Array = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]
Int64s = npt.NDArray[np.int64]
TokenText = Callable[[int], str]


@dataclass(frozen=True, eq=False)
class Row:
    """One row of a split.

    Attributes:
        number: its number in the split.
        ids: unsigned integers of shape (tokens,), in the dtype of the files.
        weights: the loss weight of each token when it is the target: uint8 of 0 and 1, or float32. `None` where the
            dataset records none, which trains every token.
        segment_ids: of each token; another text begins where they change. `None` where a row is one text.
    """

    number: int
    ids: Tokens
    weights: Array | None = None
    segment_ids: Array | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def trained(self) -> Bools:
        """Which tokens are in the loss, bool of shape (tokens,)."""
        return np.ones(len(self.ids), np.bool_) if self.weights is None else np.asarray(self.weights > 0)


@dataclass(frozen=True, eq=False)
class Rows:
    """Some rows, one after the other.

    ::

        numbers  7 3
        starts   0 3 5            row 7 is ids[0:3], row 3 is ids[3:5]
        ids      a b c d e
        weights  0 1 1 0 1        aligned with the ids

    Attributes:
        numbers: the rows' numbers in the split, int64 of shape (rows,).
        starts: int64 of shape (rows + 1,).
        ids, weights, segment_ids: as in `Row`, of shape (tokens,).
    """

    numbers: Int64s
    starts: Int64s
    ids: Tokens
    weights: Array | None = None
    segment_ids: Array | None = None

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def lengths(self) -> Int64s:
        """The tokens of each row, int64 of shape (rows,)."""
        return np.diff(self.starts)

    def __getitem__(self, at: int) -> Row:
        """The row at a place of `numbers`."""
        here = slice(int(self.starts[at]), int(self.starts[at + 1]))
        weights, segments = (None if values is None else values[here] for values in (self.weights, self.segment_ids))
        return Row(int(self.numbers[at]), self.ids[here], weights, segments)


class Split(ABC):
    """One split of a dataset: rows that can be read in any order.

    Attributes:
        name: "train" or "val".
        n_tokens: how many tokens the split's files hold.
    """

    name: str
    n_tokens: int

    @abstractmethod
    def __len__(self) -> int:
        """How many rows there are."""

    @abstractmethod
    def lengths_of(self, numbers: Int64s) -> Int64s:
        """The tokens of some rows, int64 of the same shape; only what is asked for is read."""

    @abstractmethod
    def rows(self, numbers: Int64s) -> Rows:
        """Some rows, in the order of `numbers` (0 to len - 1, not checked)."""

    @abstractmethod
    def describe(self, number: int) -> str:
        """Which row this is, for messages: the file and the record in it."""

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Equal for equal content, wherever it is stored: 32 hex digits."""

    @cached_property
    def lengths(self) -> Int64s:
        """The tokens of every row, int64 of shape (rows,): 8 bytes a row, kept after the first use."""
        return self.lengths_of(np.arange(len(self)))

    def row(self, number: int) -> Row:
        """One row.

        Raises:
            UsageError: there is no such row.
        """
        if not 0 <= number < len(self):
            raise UsageError(f"{self.name} has rows 0 to {len(self) - 1:,}; there is no row {number:,}")
        return self.rows(np.array([number]))[0]

    def chunks(self, max_tokens: int = CHUNK_TOKENS) -> Iterator[Rows]:
        """All rows in order, about `max_tokens` tokens at a time; a longer row comes by itself."""
        for first in range(0, len(self), CHUNK_ROWS):
            numbers = np.arange(first, min(first + CHUNK_ROWS, len(self)))
            for part in slices_of_tokens(self.lengths_of(numbers), max_tokens):
                yield self.rows(numbers[part])

    def __iter__(self) -> Iterator[Row]:
        for rows in self.chunks():
            for at in range(len(rows)):
                yield rows[at]


def slices_of_tokens(lengths: Int64s, max_tokens: int = CHUNK_TOKENS) -> Iterator[slice]:
    """Neighbouring rows in slices of at most `max_tokens` tokens; a longer row has a slice of its own.

    ::

        lengths 3 4 2 9 1    max_tokens 7    slices 0:2 2:3 3:4 4:5
    """
    ends = np.cumsum(lengths)
    first, before = 0, 0
    while first < len(lengths):
        stop = max(first + 1, int(np.searchsorted(ends, before + max_tokens, side="right")))
        yield slice(first, stop)
        first, before = stop, int(ends[stop - 1])


def gather(values: Array, starts: Int64s, lengths: Int64s) -> Array:
    """Spans of an array, one after the other; a view where each begins at the end of the one before it.

    ::

        values  a b c d e f      starts [4 1]  lengths [2 3]      e f b c d
        places  4 5 1 2 3        0 1 2 3 4 plus (4 - 0) twice and (1 - 2) three times
    """
    if not len(starts):
        return values[:0]
    ends = np.cumsum(lengths)
    if (starts[1:] == starts[:-1] + lengths[:-1]).all():
        return values[int(starts[0]) : int(starts[0] + ends[-1])]
    places = np.arange(ends[-1]) + np.repeat(starts - (ends - lengths), lengths)
    return np.asarray(values[places])


def gather_from(files: Sequence[Array], file: Int64s, starts: Int64s, lengths: Int64s) -> Array:
    """Spans of several files, in the order asked for; an empty file stands for zeros.

    ::

        files  a b c | d e      file [1 0]  starts [0 1]  lengths [2 2]      d e b c

    Args:
        file, starts, lengths: of each span; starts are counted in its file.
    """
    used = np.unique(file).tolist()
    if len(used) == 1:
        return _gather_or_zeros(files[used[0]], starts, lengths)
    if not used:
        return files[0][:0] if files else np.empty(0, np.uint32)
    values = np.empty(int(lengths.sum()), dtype=np.result_type(*(files[number] for number in used)))
    places, everywhere = np.cumsum(lengths) - lengths, np.arange(len(values))
    for number in used:
        here = file == number
        values[gather(everywhere, places[here], lengths[here])] = _gather_or_zeros(
            files[number], starts[here], lengths[here]
        )
    return values


def _gather_or_zeros(file: Array, starts: Int64s, lengths: Int64s) -> Array:
    return gather(file, starts, lengths) if len(file) else np.zeros(int(lengths.sum()), dtype=file.dtype)


def row_starts(lengths: Int64s) -> Int64s:
    """Where rows of these lengths start, and the end: 3 2 gives 0 3 5."""
    return np.concatenate(([0], np.cumsum(lengths)))


def cache_fingerprint(meta: Meta, split: str) -> str:
    """What tells two splits of a cache apart: a digest of the checksums of the split's files."""
    sums = {name: record["sha256"] for name, record in meta["files"].items() if name.startswith(split)}
    return hashlib.blake2b(json.dumps(sums, sort_keys=True).encode(), digest_size=16).hexdigest()
