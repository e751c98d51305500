"""The random choices of a build: pinned, fair, and the same however the rows are batched."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from itertools import groupby, islice

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from niels_gpt.builds.splits import BLOCK, ValidationSplit, _Draws, shuffled
from niels_gpt.errors import UsageError

FRACTIONS = [0.5, 0.1, 0.25, 1 / 3, 0.3, 0.9, 0.01, 0.005, 2 / 7]


def split_reference(fraction: float, seed: int, n: int) -> list[bool]:
    """Each group draws one number for its one row; group g holds the rows from g/fraction up to (g+1)/fraction."""
    exact = Fraction(fraction).limit_denominator(1_000_000)
    generator = torch.Generator().manual_seed(2 * seed)
    chosen, first = set(), 0
    while first < n:
        group = math.floor(first * exact)
        after = math.ceil((group + 1) / exact)
        draw = torch.rand(1, generator=generator, dtype=torch.float64).item()
        chosen.add(first + int(draw * (after - first)))
        first = after
    return [row in chosen for row in range(n)]


@pytest.mark.parametrize("fraction", FRACTIONS)
@pytest.mark.parametrize("seed", [0, 42])
def test_split_equals_the_slow_reference(fraction: float, seed: int) -> None:
    assert ValidationSplit(fraction, seed).draws([None] * 5000).tolist() == split_reference(fraction, seed, 5000)


@given(
    fraction=st.sampled_from(FRACTIONS), seed=st.integers(0, 2**40), batches=st.lists(st.integers(0, 500), max_size=12)
)
@settings(deadline=None)
def test_split_is_independent_of_batching(fraction: float, seed: int, batches: list[int]) -> None:
    whole = ValidationSplit(fraction, seed).draws([None] * (sum(batches)))
    split = ValidationSplit(fraction, seed)
    parts = [split.draws([None] * n) for n in batches]
    assert [part.shape for part in parts] == [(n,) for n in batches]
    assert np.array_equal(np.concatenate([*parts, []]), whole)


@given(st.integers(-(2**70), 2**70))
@example(2**31)
@example(2**62)
def test_the_numbers_are_torch_s(seed: int) -> None:
    """Caches built when the numbers were drawn from torch itself stay the same."""
    for purpose in (0, 1):
        generator = torch.Generator().manual_seed((seed * 2 + purpose) % 2**63)
        expected = torch.rand(5 * BLOCK, generator=generator, dtype=torch.float64).numpy()
        assert np.array_equal(_Draws(seed, purpose).take(5 * BLOCK), expected)


@given(
    groups=st.lists(st.sampled_from([None, None, "a", "b", ""]), max_size=200),
    fraction=st.sampled_from(FRACTIONS),
    seed=st.integers(0, 2**40),
)
@settings(deadline=None)
def test_neighbours_of_one_group_count_as_one_row(groups: list[str | None], fraction: float, seed: int) -> None:
    runs = [list(run) for _, run in groupby(enumerate(groups), key=lambda row: row[0] if row[1] is None else row[1])]
    sides = ValidationSplit(fraction, seed).draws([None] * (len(runs))).tolist()
    split = ValidationSplit(fraction, seed)
    assert [split.draw(group) for group in groups] == [side for side, run in zip(sides, runs, strict=True) for _ in run]


@pytest.mark.parametrize(
    ("fraction", "seed", "n", "expected"),
    [
        # Changing these values moves rows between training and validation of caches that exist.
        (0.25, 42, 40, [1, 5, 9, 12, 18, 21, 26, 28, 35, 37]),
        (0.1, 0, 60, [9, 17, 24, 39, 46, 57]),
    ],
)
def test_split_is_pinned(fraction: float, seed: int, n: int, expected: list[int]) -> None:
    assert np.flatnonzero(ValidationSplit(fraction, seed).draws([None] * n)).tolist() == expected


@pytest.mark.parametrize("fraction", [-0.1, 1.0, 1.5, math.nan, math.inf])
def test_bad_fractions(fraction: float) -> None:
    with pytest.raises(UsageError, match=f"the validation fraction is {fraction}; expected 0 or more and below 1"):
        ValidationSplit(fraction, seed=0)


@given(n=st.integers(0, 300), buffer_size=st.integers(1, 350), seed=st.integers(-(2**40), 2**40))
@settings(deadline=None)
def test_shuffled_is_a_permutation_and_deterministic(n: int, buffer_size: int, seed: int) -> None:
    items = list(shuffled(range(n), buffer_size, seed))
    assert sorted(items) == list(range(n))
    assert items == list(shuffled(iter(range(n)), buffer_size, seed))
    # An item leaves at the earliest when it is replaced, so nobody comes early by more than the buffer.
    assert all(item < place + buffer_size for place, item in enumerate(items[: max(0, n - buffer_size)]))


def test_shuffled_is_pinned() -> None:
    """Changing these values changes the bytes of every shuffled cache."""
    assert list(shuffled(range(10), 4, seed=42)) == [2, 1, 3, 6, 0, 5, 9, 7, 8, 4]
    assert list(shuffled(range(10), 100, seed=42)) == [4, 7, 1, 5, 9, 6, 0, 8, 2, 3]


def test_shuffled_is_lazy() -> None:
    """It works on endless streams: the first item costs the buffer and one more."""
    taken = 0

    def endless() -> Iterator[int]:
        nonlocal taken
        while True:
            taken += 1
            yield taken

    assert len(list(islice(shuffled(endless(), 100, seed=0), 20))) == 20
    assert taken == 120
