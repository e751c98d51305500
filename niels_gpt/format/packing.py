"""Packing many short items into few rows (`pack`), and where packed items lie in a batch (`layout_of`).

`pack` is best-fit decreasing: items come longest first, each goes into the fullest row that still has room for it, and
of several equally full rows into the one that was opened first. Item by item that would take millions of steps. But
items of one length are interchangeable, and so are rows with the same room left, so whole groups move at once. Capacity
8, lengths 5 5 5 3 2 2::

    length 5   no row: open three of 8         one item each      rows 0 1 2 have room 3 3 3
    length 3   best room is 3                  one item           row  0     has  room 0
    length 2   best room is 3 (rows 1 and 2)   one item each      rows 1 2   have room 1 1

A row that has taken one item is fuller than its equals, so it is the best fit also for the next item of that length: a
row with room r takes r // length items before the next row gets any. That leaves it less than r / 2, so a group moves
at most as often as its room can be halved, and the work depends on how many lengths there are, not on how many items:
10 million items of up to 4096 tokens take some ten thousand moves.

`layout_of` describes packed rows as attention, positions and the loss need them: segment ids, position ids, cu_seqlens.
"""

from __future__ import annotations

import operator
from bisect import bisect_left, insort
from dataclasses import dataclass
from functools import lru_cache
from heapq import heappop, heappush

import numpy as np
import numpy.typing as npt

from niels_gpt.errors import UsageError

DIGIT_BITS = 16  # numpy's stable sort of 16-bit keys is a radix sort, measured 3 times faster than for 32-bit keys

Integers = npt.NDArray[np.integer]
Int64s = npt.NDArray[np.int64]
Move = tuple[int, int, int]  # (items per row, first row, row after the last): these rows take the same


@dataclass(frozen=True, eq=False)
class PackPlan:
    """Which items share which row.

    Attributes:
        items: item numbers, row after row, shape (n,); int32, or int64 from 2**31 items on. Within a row, longer items
            come first, equally long ones by number.
        offsets: int64, shape (rows + 1,): row r holds `items[offsets[r]:offsets[r + 1]]`.
        capacity: how many tokens a row can hold.
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
        """The share of the rows' capacity that is filled; 1.0 if there are no rows."""
        return self.tokens / (self.rows * self.capacity) if self.rows else 1.0


def pack(lengths: Integers, capacity: int) -> PackPlan:
    """Put all items into rows of `capacity`: the same plan as best-fit decreasing done item by item.

    Nothing is random: the same lengths give the same plan on any machine.

    Args:
        lengths: integers from 1 to `capacity`, shape (n,).
        capacity: at least 1.

    Returns:
        A plan that holds every item once.

    Raises:
        UsageError: `capacity` is below 1, `lengths` is not a one-dimensional array of integers, or an item does not
            fit.
    """
    capacity = operator.index(capacity)
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
    if not lengths.size:
        return PackPlan(items=np.empty(0, np.int32), offsets=np.zeros(1, np.int64), capacity=capacity, tokens=0)
    order = _longest_first(lengths)
    decreasing = lengths[order]
    # The different lengths, and how many items have each: 5 5 5 3 2 2 begin at 0 3 4, so 5 3 2 with 3 1 2 items.
    starts = np.flatnonzero(np.append(True, decreasing[1:] != decreasing[:-1]))
    counts = np.diff(starts, append=len(decreasing))
    moves, rows = _moves(decreasing[starts].tolist(), counts.tolist(), capacity)
    items, offsets = _place(order, moves, rows)
    return PackPlan(items=items, offsets=offsets, capacity=capacity, tokens=int(lengths.sum(dtype=np.int64)))


def _longest_first(lengths: Integers) -> Integers:
    """Item numbers by decreasing length, equal lengths by number, int32 or int64, shape (n,).

    A radix sort by the difference to the longest item, lowest 16 bits first. With decimal digits in place of 16 bits::

        lengths               40 12 35 40 12 19
        difference             0 28  5  0 28 21
        sorted by last digit   0 3 5 2 1 4         digits 0 0 1 5 8 8
        then by first digit    0 3 2 5 1 4         digits 0 0 0 2 2 2
    """
    longest = lengths.max()
    # Lengths that differ by less than 65,536 need one round. Stable sorts retain the order by number of equal lengths.
    bits = int(longest - lengths.min()).bit_length()
    number = np.int32 if lengths.size < 2**31 else np.int64
    order: Integers = np.argsort((longest - lengths).astype(np.uint16), kind="stable").astype(number)
    for shift in range(DIGIT_BITS, bits, DIGIT_BITS):
        digits = ((longest - lengths[order]) >> shift).astype(np.uint16)
        order = order[np.argsort(digits, kind="stable")]
    return order


class _Rooms:
    """Rows by the room that they have left, as ranges [lo, hi) of row numbers."""

    def __init__(self) -> None:
        self.ranges: dict[int, list[tuple[int, int]]] = {}  # by room; heaps, because the lowest row comes first
        self.rooms: list[int] = []  # the keys in increasing order

    def put(self, room: int, lo: int, hi: int) -> None:
        """Rows lo to hi - 1 have `room`; full rows and empty ranges are not stored."""
        if lo == hi or room == 0:
            return
        if room not in self.ranges:
            self.ranges[room] = []
            insort(self.rooms, room)
        heappush(self.ranges[room], (lo, hi))

    def take(self, length: int) -> tuple[int, int, int] | None:
        """The smallest room of at least `length`, and the first range of rows with it; `None` if there is none."""
        at = bisect_left(self.rooms, length)
        if at == len(self.rooms):
            return None
        room = self.rooms[at]
        lo, hi = heappop(self.ranges[room])
        if not self.ranges[room]:
            del self.ranges[room], self.rooms[at]
        return room, lo, hi


def _moves(values: list[int], counts: list[int], capacity: int) -> tuple[list[Move], int]:
    """The moves that place all items in the order of `_longest_first`, and how many rows they open."""
    # Each length splits at most two ranges (where rows that take their fill end, and after the row that takes the
    # rest), so there are never many.
    rooms = _Rooms()
    moves: list[Move] = []
    rows = 0
    for length, count in zip(values, counts, strict=True):
        while count:
            found = rooms.take(length)
            if found is None:
                # Rows for all items of this length that are left: 7 of length 3, two in a row of 8, open 4 rows.
                opened = rows + -(-count // (capacity // length))
                found = capacity, rows, opened
                rows = opened
            room, lo, hi = found
            each = room // length
            full = lo + min(hi - lo, count // each)  # rows lo to full - 1 take as many as fit
            if full > lo:
                moves.append((each, lo, full))
                rooms.put(room - each * length, lo, full)
                count -= each * (full - lo)
            if full < hi and count:  # fewer items are left than the next row has room for
                moves.append((count, full, full + 1))
                rooms.put(room - count * length, full, full + 1)
                count, full = 0, full + 1
            rooms.put(room, full, hi)
    return moves, rows


def _place(order: Integers, moves: list[Move], rows: int) -> tuple[Integers, Int64s]:
    """`items` and `offsets` of a plan: first how many items each row takes, then which.

    ::

        order    a b c d e f        moves (1, 0, 3) and (3, 0, 1): rows of 4, 1 and 1 items
        free     0 4 5              the first move puts  a . . . b c      `free`: each row's next place in `items`
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
        # A move of 2 items to each of two rows with the free places 0 and 4: places 0 1 | 4 5.
        items[free[lo:hi, None] + steps[:each]] = order[taken : taken + total].reshape(-1, each)
        free[lo:hi] += each
        taken += total
    return items, offsets


@dataclass(frozen=True, eq=False)
class Layout:
    """Where packed items lie in a batch of B rows of T inputs.

    Attributes:
        segment_ids: int32, shape (B, T): 1, 2, ... along each row, 0 on padding.
        position_ids: int64, shape (B, T): from 0 in every item, and in the padding.
        cu_seqlens: int32, shape (k + 1,): where the sequences start in the B * T flattened inputs, and B * T. A row's
            padding is a sequence of its own.
        max_seqlen: the length of the longest of them.
    """

    segment_ids: npt.NDArray[np.int32]
    position_ids: Int64s
    cu_seqlens: npt.NDArray[np.int32]
    max_seqlen: int


def layout_of(places: Int64s, used: Int64s, *, T: int) -> Layout:
    """The layout of items that are put one after another into B rows of T + 1 tokens; nothing is checked.

    T of a row's tokens are inputs; the targets are one column further. So the token in column T is a target only, and
    the item that ends there has one input less. T = 5, P is padding::

        row           a b c d e f    g P P P P P       places  0 3 6      used  6 1
        segment_ids   1 1 1 2 2      1 0 0 0 0
        position_ids  0 1 2 0 1      0 0 1 2 3
        cu_seqlens    0     3        5 6         10    of sequences in the inputs, where rows have one column less

    Args:
        places: int64, shape (n,), ascending: where items begin in the B * (T + 1) flattened tokens.
        used: int64, shape (B,): how many tokens each row has before its padding.
    """
    B = len(used)
    row = places // (T + 1)
    starts = places - row
    # Items in rows 0 0 1 1 1: 1 2 3 4 5 minus the index of the row's first item 0 0 2 2 2 gives 1 2 1 2 3.
    numbers = (np.arange(1, len(row) + 1) - row.searchsorted(row)).astype(np.int32)
    short = (used < T).nonzero()[0]
    if len(short):  # a row's padding is a sequence too, with the number 0
        starts = np.concatenate([starts, short * T + used[short]])
        # Stable: an item of which only the last target exists stays before what begins at the same place, the next row.
        order = starts.argsort(kind="stable")
        starts, numbers = starts[order], np.concatenate([numbers, np.zeros(len(short), np.int32)])[order]
    bounds = np.concatenate([starts, [B * T]])
    sizes = bounds[1:] - bounds[:-1]
    if not sizes.all():  # an item whose only token is a row's last target has no input
        bounds = bounds[np.append(sizes > 0, True)]
    position_ids = starts.repeat(sizes)
    np.subtract(_counted(B * T), position_ids, out=position_ids)
    return Layout(
        segment_ids=numbers.repeat(sizes).reshape(B, T),
        position_ids=position_ids.reshape(B, T),
        cu_seqlens=bounds.astype(np.int32),
        max_seqlen=int(sizes.max()),
    )


@lru_cache(maxsize=4)
def _counted(n: int) -> Int64s:
    """The numbers 0 to n - 1, cached for the next batch of the same shape."""
    counted = np.arange(n)
    counted.flags.writeable = False  # every caller gets the same array
    return counted
