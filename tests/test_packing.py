"""Packing and layouts: the same as the slow, obvious way, row by row."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from niels_gpt.errors import UsageError
from niels_gpt.format.packing import Layout, PackPlan, layout_of, pack

INTEGERS = [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64]
Draw = Callable[[np.random.Generator, int], npt.NDArray[np.int64]]


def pack_reference(lengths: list[int], capacity: int) -> list[list[int]]:
    """Best-fit decreasing, one item at a time; of equally full rows the one opened first."""
    rows: list[list[int]] = []
    room: list[int] = []
    for item in sorted(range(len(lengths)), key=lambda item: -lengths[item]):
        fitting = [row for row in range(len(rows)) if room[row] >= lengths[item]]
        if not fitting:
            rows.append([])
            room.append(capacity)
            fitting = [len(rows) - 1]
        row = min(fitting, key=lambda row: room[row])
        rows[row].append(item)
        room[row] -= lengths[item]
    return rows


def rows_of(plan: PackPlan) -> list[list[int]]:
    return [part.tolist() for part in np.split(plan.items, plan.offsets[1:-1])] if plan.rows else []


def lognormal(rng: np.random.Generator, n: int) -> npt.NDArray[np.int64]:
    """As conversations are: 700 tokens in the mean, a long tail."""
    return np.clip(rng.lognormal(6.1, 0.95, n), 1, 4096).astype(np.int64)


DRAWS: dict[str, Draw] = {
    "lognormal": lognormal,
    "any length": lambda rng, n: rng.integers(1, 4097, n),
    "equal": lambda rng, n: np.full(n, 700),
    "powers of two": lambda rng, n: 2 ** rng.integers(0, 13, n),
}


def fewest_rows(plan: PackPlan) -> int:
    """A lower bound for the rows of any plan: with this many, all but one would be full."""
    return -(-plan.tokens // plan.capacity)


def test_pinned() -> None:
    """Longest first into 10: 7, 6 and 5 open a row each; 4 fits 6 best, 3 fits 7; 2 2 1 fill up what the 5 left."""
    plan = pack(np.array([2, 7, 4, 1, 6, 2, 5, 3]), 10)
    assert plan.items.tolist() == [1, 7, 4, 2, 6, 0, 5, 3]  # lengths 7 3, 6 4, 5 2 2 1
    assert plan.offsets.tolist() == [0, 2, 4, 8]
    assert (plan.capacity, plan.tokens, plan.rows, fewest_rows(plan), plan.utilisation) == (10, 30, 3, 3, 1.0)


@st.composite
def items(draw: st.DrawFn) -> tuple[list[int], int]:
    capacity = draw(st.one_of(st.integers(1, 60), st.sampled_from([4096, 70_000, 2**31, 2**40])))
    some = draw(st.lists(st.integers(1, capacity), min_size=1, max_size=6))  # few lengths, so that groups arise
    lengths = draw(st.lists(st.one_of(st.sampled_from(some), st.integers(1, capacity)), max_size=120))
    return lengths, capacity


@given(items=items())
@settings(deadline=None, max_examples=300)
def test_gives_the_rows_of_item_by_item_packing(items: tuple[list[int], int]) -> None:
    lengths, capacity = items
    plan = pack(np.array(lengths, dtype=np.int64), capacity)
    assert rows_of(plan) == pack_reference(lengths, capacity)
    assert plan.tokens == sum(lengths)
    assert plan.rows >= fewest_rows(plan)


@pytest.mark.parametrize("name", DRAWS)
def test_gives_the_rows_of_item_by_item_packing_for_many_items(name: str) -> None:
    lengths = DRAWS[name](np.random.default_rng(1), 3000)
    assert rows_of(pack(lengths, 4096)) == pack_reference(lengths.tolist(), 4096)


def test_conversations_nearly_fill_their_rows() -> None:
    plan = pack(lognormal(np.random.default_rng(3), 200_000), 4096)
    assert plan.rows <= 1.005 * fewest_rows(plan)
    assert plan.utilisation > 0.995


@pytest.mark.parametrize("dtype", INTEGERS)
def test_any_integer_type_gives_the_same_plan(dtype: type[np.integer]) -> None:
    lengths = np.random.default_rng(4).integers(1, 101, 1000)
    plan, expected = pack(lengths.astype(dtype), 120), pack(lengths, 120)
    assert np.array_equal(plan.items, expected.items)
    assert np.array_equal(plan.offsets, expected.offsets)
    assert (plan.items.dtype, plan.offsets.dtype, type(plan.tokens)) == (np.int32, np.int64, int)


def test_no_items() -> None:
    plan = pack(np.empty(0, dtype=np.int64), 4096)
    assert (plan.rows, plan.tokens, fewest_rows(plan), plan.utilisation) == (0, 0, 0, 1.0)
    assert plan.items.shape == (0,)
    assert plan.offsets.tolist() == [0]


@pytest.mark.parametrize(
    ("lengths", "capacity", "message"),
    [
        (np.array([1]), 0, r"capacity is 0; expected at least 1"),
        (np.array([3, 9, 8, 9]), 8, r"item 1 has length 9; expected 1 to 8, the capacity of a row: leave it out"),
        (np.array([3, 1, 0]), 8, r"item 2 has length 0; expected 1 to 8"),
        (np.array([3, -1]), 8, r"item 1 has length -1"),
        (np.array([3.0]), 8, r"lengths are float64 of shape \(1,\); expected integers of shape \(n,\)"),
        (np.array([True]), 8, r"lengths are bool"),
        (np.array([[3]]), 8, r"of shape \(1, 1\)"),
    ],
)
def test_what_cannot_be_packed_is_named(lengths: npt.NDArray[np.integer], capacity: int, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        pack(lengths, capacity)


def layout_reference(rows: list[list[int]], T: int) -> tuple[list[list[int]], list[list[int]]]:
    """Token by token: the piece's number and place."""
    segments, positions = [], []
    for lengths in rows:
        tokens = [(number, at) for number, length in enumerate(lengths, 1) for at in range(length)]
        tokens += [(0, at) for at in range(T + 1 - len(tokens))]
        segments.append([number for number, _ in tokens[:T]])
        positions.append([at for _, at in tokens[:T]])
    return segments, positions


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[list[int]], int]:
    T = draw(st.integers(1, 12))
    batch = []
    for _ in range(draw(st.integers(1, 4))):
        row: list[int] = []
        for length in draw(st.lists(st.integers(1, T + 1), max_size=6)):
            row += [length] if sum(row) + length <= T + 1 else []
        fill = T + 1 - sum(row)
        batch.append([*row, fill] if fill and draw(st.booleans()) else row)
    return batch, T


def laid_out(batch: list[list[int]], T: int) -> Layout:
    places = [row * (T + 1) + sum(lengths[:at]) for row, lengths in enumerate(batch) for at in range(len(lengths))]
    return layout_of(np.array(places, np.int64), np.array([sum(lengths) for lengths in batch]), T=T)


@given(batch=batches())
@example(batch=([[5, 1]], 5))  # a piece that is a target only
@example(batch=([[6], [], [5]], 5))
@example(batch=([[1, 1], [2], [1], []], 1))
@settings(deadline=None, max_examples=300)
def test_lays_out_as_token_by_token(batch: tuple[list[list[int]], int]) -> None:
    pieces, T = batch
    found = laid_out(pieces, T)
    segments, positions = layout_reference(pieces, T)
    assert found.segment_ids.tolist() == segments
    assert found.position_ids.tolist() == positions
    starts = [at for at, place in enumerate(np.ravel(positions)) if place == 0]
    assert found.cu_seqlens.tolist() == [*starts, len(pieces) * T]
    assert found.max_seqlen == max(map(max, positions)) + 1


def test_a_batch_without_pieces_is_padding() -> None:
    found = laid_out([[], []], 3)
    assert not found.segment_ids.any()
    assert found.cu_seqlens.tolist() == [0, 3, 6]
