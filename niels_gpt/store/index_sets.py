"""Sets of row or episode numbers that cost little memory: `IndexSet` and `RowFilter`.

A dataset may hold 10**8 episodes, and 8 bytes for each of them would be 800 MB. Two representations avoid that:

* Numbers that follow each other, such as the episodes of one dataset in a mixture, are a `Span`: two integers.
* What remains after filtering is a `RowFilter`, which stores only the numbers that were filtered out.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]

CHUNK = 1 << 20  # numbers per chunk: 8 MiB, however long a set is


@dataclass(frozen=True)
class Span:
    """The numbers `start` to `stop` - 1; it is indexed like the array that would hold them."""

    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    def __getitem__(self, places: npt.NDArray[np.integer[Any]]) -> Int64s:
        """The numbers at these places (0 to len - 1, not checked), int64 of the same shape."""
        return np.asarray(places + self.start, dtype=np.int64)


IndexSet = Int64s | Span


def between(members: IndexSet, start: int, stop: int) -> IndexSet:
    """The members at places `start` to `stop` - 1; a `stop` past the end means the end."""
    if isinstance(members, Span):
        # A part of a range is a range; no array is made.
        return Span(members.start + start, min(members.stop, members.start + stop))
    return members[start:stop]


def in_chunks(members: IndexSet, size: int = CHUNK) -> Iterator[Int64s]:
    """The numbers as arrays of at most `size`."""
    for at in range(0, len(members), size):
        part = between(members, at, at + size)
        yield np.arange(part.start, part.stop) if isinstance(part, Span) else part


def digest(members: Span | npt.NDArray[Any]) -> str:
    """A hash of the numbers, 32 hex digits; an array and a `Span` of the same numbers have the same hash."""
    found = hashlib.blake2b(digest_size=16)
    for chunk in in_chunks(members):
        # In chunks, so that a `Span` of a billion numbers is never an array.
        found.update(np.ascontiguousarray(chunk).data)
    return found.hexdigest()


class RowFilter:
    """The numbers 0 to total - 1 without `dropped`; indexing maps positions (after filtering) to numbers.

    The number at a position is the position plus how many dropped numbers come before it. The j-th dropped number has
    dropped[j] - j remaining numbers before it, so `searchsorted` over these differences finds that count::

        numbers             0 1 2 3 4 5       dropped [1 3]       remaining before each [1-0 3-1] = [1 2]
        positions           0 1 2 3
        dropped before      0 1 2 2           searchsorted([1 2], position, side="right")
        number              0 2 4 5           position + dropped before

    Args:
        total: how many numbers there are before filtering.
        dropped: the numbers to leave out, integers, increasing.

    Attributes:
        remaining_before: of each dropped number, int64, shape (dropped,).
    """

    def __init__(self, total: int, dropped: npt.NDArray[np.integer[Any]]) -> None:
        self.total = total
        self.remaining_before = dropped.astype(np.int64) - np.arange(len(dropped))

    def __len__(self) -> int:
        return self.total - len(self.remaining_before)

    @property
    def key(self) -> bytes:
        """Bytes that differ between different filters of one total; empty if nothing is dropped."""
        return self.remaining_before.tobytes()

    def before(self, number: int) -> int:
        """How many remaining numbers are below `number`: for a remaining number, its position."""
        dropped = range(len(self.remaining_before))
        # Dropped [1 3] are stored as [1 2]: of number 4 both are below it, so its position is 4 - 2 = 2.
        # The key restores the j-th dropped number, so the array of dropped numbers need not be stored.
        return number - bisect_left(dropped, number, key=lambda j: int(self.remaining_before[j]) + j)

    def __getitem__(self, positions: npt.NDArray[np.integer[Any]]) -> Int64s:
        """The numbers at these positions, int64 of the same shape."""
        if not len(self.remaining_before):  # the common case: positions are numbers
            return positions.astype(np.int64)
        # "right": a dropped number that has as many remaining ones before it comes before the number at this position.
        return positions + np.searchsorted(self.remaining_before, positions, side="right")
