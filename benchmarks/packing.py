"""`pack` beside best-fit decreasing item by item and beside the sort that it cannot do without; `layout` beside a loop.

Lengths are lognormal, 680 tokens in the mean, as those of conversations are.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.pairs import Result, measure
from niels_gpt.format.packing import layout_of, pack

CAPACITY = 4097  # rows of T = 4096 inputs
ITEMS = 10_000_000
FEW = 200_000  # item by item takes about a second for these
SHAPES = ((8, 4096), (32, 1024))
PIECE = 600  # tokens of a piece of a batch in the mean
ROUNDS = 3

Lengths = npt.NDArray[np.int32]
Batch = tuple[npt.NDArray[np.int32], npt.NDArray[np.int64], npt.NDArray[np.bool_], list[int]]


def run(folder: Path) -> list[Result]:
    """Ten million items; a sample that can be waited for; batches."""
    del folder
    rng = np.random.default_rng(6)
    lengths = np.clip(rng.lognormal(6.1, 0.95, ITEMS), 1, CAPACITY).astype(np.int32)
    few = lengths[:FEW]
    results = measure(
        "packing",
        f"{ITEMS:,} items into {CAPACITY:,}",
        {"pack": partial(pack, lengths, CAPACITY), "np.sort of the lengths": partial(np.sort, lengths)},
        amounts={"items": ITEMS},
        rounds=ROUNDS,
    )
    results += measure(
        "packing",
        f"{FEW:,} items into {CAPACITY:,}",
        {"pack": partial(pack, few, CAPACITY), "item by item, segment tree": partial(item_by_item, few, CAPACITY)},
        amounts={"items": FEW},
        rounds=ROUNDS,
    )
    for B, T in SHAPES:
        results += _layout(rng, B, T)
    return results


def _layout(rng: np.random.Generator, B: int, T: int) -> list[Result]:
    pieces = -(-T // PIECE)
    lengths = rng.integers(PIECE // 2, (T + 1) // pieces, B * pieces)
    rows = np.repeat(np.arange(B), pieces)
    used = lengths.reshape(B, pieces).sum(axis=1)
    places = rows * (T + 1) + lengths.cumsum() - lengths - (used.cumsum() - used)[rows]
    return measure(
        "packing",
        f"layout, B {B} T {T}, {B * pieces} pieces",
        {
            "layout": lambda: layout_of(places, used, T=T),
            "loop over pieces": lambda: piece_by_piece(rows, lengths, B, T),
        },
        amounts={"tokens": B * T},
    )


def item_by_item(lengths: Lengths, capacity: int) -> list[list[int]]:
    """Best-fit decreasing as trainers have it: a segment tree over rooms finds the smallest that is enough.

    Leaf `size + room` holds the room if a row has it, else 0; a node holds the largest room below it.
    """
    size = 1 << capacity.bit_length()
    tree = [0] * (2 * size)
    having: list[list[int]] = [[] for _ in range(capacity + 1)]
    rows: list[list[int]] = []

    def update(room: int) -> None:
        at = size + room
        tree[at] = room if having[room] else 0
        while at > 1:
            at >>= 1
            tree[at] = max(tree[2 * at], tree[2 * at + 1])

    having[capacity] = [0]
    update(capacity)  # a row that nothing lies in yet is always there
    for item in np.argsort(-lengths, kind="stable").tolist():
        length = int(lengths[item])
        # Down from the root to the smallest room that is enough: to the left where the largest room there is enough.
        at = 1
        while at < size:
            at = 2 * at if tree[2 * at] >= length else 2 * at + 1
        room = at - size
        row = having[room].pop()
        if row == len(rows):
            rows.append([])
            having[capacity].append(len(rows))
        rows[row].append(item)
        having[room - length].append(row)
        update(room)
        update(room - length)
    return rows


def piece_by_piece(rows: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64], B: int, T: int) -> Batch:
    """What `layout` gives, with a slice for every piece."""
    segments = np.zeros((B, T), dtype=np.int32)
    positions = np.zeros((B, T), dtype=np.int64)
    seams = np.ones((B, T), dtype=np.bool_)
    starts: list[int] = []
    used, numbers = [0] * B, [0] * B
    for row, length in zip(rows.tolist(), lengths.tolist(), strict=True):
        lo = used[row]
        hi = min(lo + length, T)
        numbers[row] += 1
        used[row] = lo + length
        segments[row, lo:hi] = numbers[row]
        positions[row, lo:hi] = np.arange(hi - lo)
        seams[row, lo : lo + length - 1] = False
        starts.append(row * T + lo)
    for row, end in enumerate(used):
        if end < T:
            positions[row, end:] = np.arange(T - end)
            starts.append(row * T + end)
    return segments, positions, seams, [*sorted(starts), B * T]
