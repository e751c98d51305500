"""Orders: pinned, one-to-one, fair, and free of memory."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from niels_gpt.errors import UsageError
from niels_gpt.seeds import CHUNK, MAX_LENGTH, Order, order

HUGE = 10**12


@pytest.mark.parametrize(
    ("seed", "epoch", "n", "expected"),
    [
        # Changing any of these values breaks every run that is resumed with a newer version: never change them.
        (42, 0, 10, [1, 5, 4, 8, 2, 7, 3, 9, 6, 0]),
        (42, 1, 10, [0, 5, 9, 6, 3, 4, 7, 2, 1, 8]),
        (43, 0, 10, [4, 0, 9, 2, 6, 8, 5, 3, 1, 7]),
        (42, 0, 1000, [22, 788, 570, 104, 166]),
        (0, 0, HUGE, [1664405536, 854737988412, 352709537710]),
        (7, 3, 2**62, [911111444456489696, 4468616212651292487]),
    ],
)
def test_pinned(seed: int, epoch: int, n: int, expected: list[int]) -> None:
    assert order(seed, epoch, n)[: len(expected)].tolist() == expected


@given(seed=st.integers(), epoch=st.integers(), n=st.integers(1, 100_000))
@settings(deadline=None, max_examples=40)
def test_is_a_permutation(seed: int, epoch: int, n: int) -> None:
    o = order(seed, epoch, n)
    indices = o[:]
    assert np.array_equal(np.sort(indices), np.arange(n))


@pytest.mark.parametrize("n", [HUGE, MAX_LENGTH])
def test_huge_orders_are_created_at_once_and_one_to_one(n: int) -> None:
    """Nothing of the size of `n` is ever held: an order is a few numbers."""
    o = order(3, 1, n)
    assert len(o) == n
    assert set(vars(o)) == {"n", "bits", "keys"}
    assert len(o.keys) < 100
    sample = np.unique(np.random.default_rng(0).integers(0, n, 50_000))
    indices = o[sample]
    assert 0 <= indices.min() <= indices.max() < n
    assert np.unique(indices).size == sample.size


@given(n=st.integers(1, 3 * CHUNK), data=st.data())
@settings(deadline=None, max_examples=30)
def test_every_way_of_indexing_agrees(n: int, data: st.DataObject) -> None:
    o = order(5, 6, n)
    indices = o[:]
    assert indices.dtype == np.int64
    part = data.draw(st.slices(n))
    assert np.array_equal(o[part], indices[part])
    at = data.draw(st.integers(-n, n - 1))
    assert o[at] == indices[at]
    assert isinstance(o[at], int)
    square = np.array(data.draw(st.lists(st.integers(0, n - 1), min_size=4, max_size=4))).reshape(2, 2)
    assert np.array_equal(o[square], indices[square])


def test_index_arrays_may_be_empty_or_of_any_integer_type() -> None:
    o = order(1, 2, 200)
    assert o[np.array([], dtype=np.int64)].shape == (0,)
    for dtype in (np.uint8, np.int32, np.uint64):
        assert o[np.array([0, 199], dtype=dtype)].tolist() == [o[0], o[199]]


@pytest.mark.parametrize("n", [0, 1, 10])
def test_outside_is_an_index_error(n: int) -> None:
    o = order(0, 0, n)
    for outside in (n, -n - 1, 2**70):
        with pytest.raises(IndexError, match=f"outside an order of {n} items"):
            o[outside]
    for outside in (n, -1):
        with pytest.raises(IndexError, match=f"position {outside} is outside an order of {n} items"):
            o[np.array([outside])]


def test_seed_epoch_and_length_all_matter() -> None:
    keys = [(seed, epoch, n) for seed in (-1, 0, 1, 2**80) for epoch in (0, 1, 12) for n in (1000, 1001)]
    assert len({tuple(order(*key)[:20].tolist()) for key in keys}) == len(keys)


def chi_square(counts: Counter[object], cells: int) -> float:
    """How far the counts are from equal; with `cells - 1` degrees of freedom."""
    expected = counts.total() / cells
    return (cells - len(counts)) * expected + sum((found - expected) ** 2 / expected for found in counts.values())


@pytest.mark.parametrize(("n", "limit"), [(2, 10.8), (5, 18.5), (7, 22.5), (64, 103.4), (100, 148.2)])
@pytest.mark.parametrize("position", [0, -1])
def test_every_item_is_equally_likely_at_a_position(n: int, limit: float, position: int) -> None:
    """Over 20 seeds per item; `limit` is chi-square's 99.9 % quantile, so 1 of 1000 fair orders would exceed it."""
    counts: Counter[object] = Counter(order(seed, 0, n)[position] for seed in range(20 * n))
    assert chi_square(counts, n) < limit


@pytest.mark.parametrize(("n", "limit"), [(3, 20.5), (5, 173.6)])
def test_every_order_is_equally_likely(n: int, limit: float) -> None:
    """The same over whole orders: 5 epochs for each of the n! orders, 30 where they are few."""
    n_orders = math.factorial(n)
    counts: Counter[object] = Counter(tuple(order(0, epoch, n)[:].tolist()) for epoch in range(max(5 * n_orders, 180)))
    assert chi_square(counts, n_orders) < limit


@pytest.mark.parametrize("n", [-1, 2**62 + 1])
def test_bad_lengths(n: int) -> None:
    with pytest.raises(UsageError, match=rf"n is {n}; expected 0 to 2\*\*62"):
        order(0, 0, n)


def test_numpy_integers_are_integers() -> None:
    o = order(np.int64(42), np.int64(0), np.int64(10))  # type: ignore[arg-type]
    assert o == order(42, 0, 10)
    assert isinstance(o, Order)
    assert o[np.int64(-1)] == 0
