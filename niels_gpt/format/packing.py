"""Many short pieces into few rows: which piece goes into which row. Where it then lies in a batch, `layout` says.

`pack` is best-fit decreasing: pieces come longest first, each into the fullest row that still has room for it, of
several equally full rows into the one opened first. Done piece by piece that is millions of steps; but pieces of one
length are alike, and so are rows with the same room left, so whole groups move at once. Capacity 8, lengths
5 5 5 3 2 2::

    length 5   no row: open three of 8         one piece each     rows 0 1 2 have room 3 3 3
    length 3   best room is 3                  one piece          row  0     has  room 0
    length 2   best room is 3 (rows 1 and 2)   one piece each     rows 1 2   have room 1 1

A row that has taken one piece is fuller than its equals, so it is the best fit for the next of that length too: a
row of room r takes r // length of them before its neighbour gets any. That leaves less than r / 2, so a group moves
no more often than its room can be halved, and the work depends on how many lengths there are, not on how many pieces:
10 million pieces of up to 4096 tokens take some ten thousand moves.
"""

from __future__ import annotations

import hashlib
import operator
from bisect import bisect_left, insort
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np
import numpy.typing as npt

from niels_gpt.errors import UsageError

DIGIT_BITS = 16  # numpy's stable sort of 16-bit keys is a radix sort, measured 3 times faster than that of 32 bits

Integers = npt.NDArray[np.integer]
Int64s = npt.NDArray[np.int64]
Move = tuple[int, int, int]  # (pieces per row, first row, row after the last): rows that take the same


@dataclass(frozen=True, eq=False)
class PackPlan:
    """Which items lie in which row.

    Attributes:
        items: item numbers, row after row, shape (n,); int32, or int64 from 2**31 items on. Within a row longer items
            come first, equal ones by number.
        offsets: int64, shape (rows + 1,): row r holds `items[offsets[r]:offsets[r + 1]]`.
        capacity: what a row can hold.
        tokens: the sum of all lengths.
    """

    items: Integers
    offsets: Int64s
    capacity: int
    tokens: int

    @property
    def rows(self) -> int:
        """How many rows the plan has."""
        return len(self.offsets) - 1

    @property
    def utilisation(self) -> float:
        """The share of the rows that is filled, 1.0 without rows."""
        return self.tokens / (self.rows * self.capacity) if self.rows else 1.0

    def digest(self) -> str:
        """Equal for equal plans, 32 hex digits."""
        found = hashlib.blake2b(np.ascontiguousarray(self.items, dtype="<i8").data, digest_size=16)
        found.update(np.ascontiguousarray(self.offsets, dtype="<i8").data)
        return found.hexdigest()

    @property
    def fewest_rows(self) -> int:
        """No plan can have fewer rows: these many would be full to the last token."""
        return -(-self.tokens // self.capacity)


def pack(lengths: Integers, capacity: int) -> PackPlan:
    """Put all items into rows of `capacity`, row by row what item-by-item best-fit decreasing would give.

    Nothing is drawn at random: the same lengths give the same plan on any machine.

    Args:
        lengths: integers from 1 to `capacity`, shape (n,).
        capacity: at least 1.

    Returns:
        A plan that holds every item once.

    Raises:
        UsageError: `capacity` is below 1, `lengths` is not a row of integers, or an item does not fit.
    """
    capacity = operator.index(capacity)
    _check_lengths(lengths, capacity)
    if not lengths.size:
        return PackPlan(items=np.empty(0, np.int32), offsets=np.zeros(1, np.int64), capacity=capacity, tokens=0)
    order = _longest_first(lengths)
    values, counts = _runs(lengths, order)
    moves, rows = _moves(values, counts, capacity)
    items, offsets = _place(order, moves, rows)
    return PackPlan(items=items, offsets=offsets, capacity=capacity, tokens=int(lengths.sum(dtype=np.int64)))


def _check_lengths(lengths: Integers, capacity: int) -> None:
    if capacity < 1:
        raise UsageError(f"pack: capacity is {capacity}; expected at least 1")
    if lengths.ndim != 1 or lengths.dtype.kind not in "iu":
        raise UsageError(f"pack: lengths are {lengths.dtype} of shape {lengths.shape}; expected integers of shape (n,)")
    if lengths.size and (lengths.min() < 1 or lengths.max() > capacity):
        item = int(np.flatnonzero((lengths < 1) | (lengths > capacity))[0])
        raise UsageError(
            f"pack: item {item} has length {lengths[item]}; expected 1 to {capacity}, the capacity of a row: "
            "leave it out, cut it, or use longer rows"
        )


def _longest_first(lengths: Integers) -> Integers:
    """Item numbers by falling length, equal lengths by number, int32 or int64, shape (n,).

    A radix sort by how much shorter than the longest each item is, lowest 16 bits first. With decimal digits::

        lengths             40 12 35 40 12 19
        shorter by           0 28  5  0 28 21
        by the last digit    0 3 5 2 1 4         digits 0 0 1 5 8 8
        by the first digit   0 3 2 5 1 4         digits 0 0 0 2 2 2
    """
    longest = lengths.max()
    bits = int(longest - lengths.min()).bit_length()
    number = np.int32 if lengths.size < 2**31 else np.int64
    order: Integers = np.argsort((longest - lengths).astype(np.uint16), kind="stable").astype(number)
    for shift in range(DIGIT_BITS, bits, DIGIT_BITS):
        digits = ((longest - lengths[order]) >> shift).astype(np.uint16)
        order = order[np.argsort(digits, kind="stable")]
    return order


def _runs(lengths: Integers, order: Integers) -> tuple[list[int], list[int]]:
    """The different lengths in falling order, and how many items have each: 5 5 5 3 2 2 gives 5 3 2 and 3 1 2."""
    falling = lengths[order]
    starts = np.flatnonzero(np.append(True, falling[1:] != falling[:-1]))
    return falling[starts].tolist(), np.diff(starts, append=len(falling)).tolist()


class _Rooms:
    """Rows by the room that they have left, as ranges [lo, hi) of row numbers."""

    def __init__(self) -> None:
        self.ranges: dict[int, list[tuple[int, int]]] = {}  # heaps: of equal rooms the lowest row is wanted first
        self.rooms: list[int] = []  # the keys in rising order

    def put(self, room: int, lo: int, hi: int) -> None:
        """Rows lo..hi - 1 have `room`; nothing is kept of full rows and empty ranges."""
        if lo == hi or room == 0:
            return
        if room not in self.ranges:
            self.ranges[room] = []
            insort(self.rooms, room)
        heappush(self.ranges[room], (lo, hi))

    def take(self, length: int) -> tuple[int, int, int] | None:
        """The smallest room that is enough for `length` and the first range of such rows; None without any."""
        at = bisect_left(self.rooms, length)
        if at == len(self.rooms):
            return None
        room = self.rooms[at]
        lo, hi = heappop(self.ranges[room])
        if not self.ranges[room]:
            del self.ranges[room], self.rooms[at]
        return room, lo, hi


def _moves(values: list[int], counts: list[int], capacity: int) -> tuple[list[Move], int]:
    """The moves that use up all items in the order of `_longest_first`, and how many rows they open.

    A length splits two ranges at most, one where full and one where partial rows end, so there are few of them.
    """
    rooms = _Rooms()
    moves: list[Move] = []
    rows = 0
    for length, count in zip(values, counts, strict=True):
        while count:
            found = rooms.take(length)
            if found is None:
                opened = rows + -(-count // (capacity // length))
                found = capacity, rows, opened
                rows = opened
            room, lo, hi = found
            each = room // length
            full = lo + min(hi - lo, count // each)  # rows lo..full - 1 take what they can
            if full > lo:
                moves.append((each, lo, full))
                rooms.put(room - each * length, lo, full)
                count -= each * (full - lo)
            if full < hi and count:  # too few are left to fill another
                moves.append((count, full, full + 1))
                rooms.put(room - count * length, full, full + 1)
                count, full = 0, full + 1
            rooms.put(room, full, hi)
    return moves, rows


def _place(order: Integers, moves: list[Move], rows: int) -> tuple[Integers, Int64s]:
    """`items` and `offsets` of a plan: first how much each row takes, then where.

    ::

        order    a b c d e f        moves (1, 0, 3) and (3, 0, 1): rows of 4, 1 and 1 items
        free     0 4 5              the first move puts  a . . . b c
                 1 5 6              the second           a d e f b c
    """
    offsets = np.zeros(rows + 1, dtype=np.int64)
    sizes = offsets[1:]
    for each, lo, hi in moves:
        sizes[lo:hi] += each
    np.cumsum(sizes, out=sizes)
    free = offsets[:-1].copy()
    steps = np.arange(max(each for each, _, _ in moves))
    items = np.empty_like(order)
    taken = 0
    for each, lo, hi in moves:
        total = each * (hi - lo)
        items[free[lo:hi, None] + steps[:each]] = order[taken : taken + total].reshape(-1, each)
        free[lo:hi] += each
        taken += total
    return items, offsets
