"""Mixtures: rows of each part from proportions, and the order in which phases draw them."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from niels_gpt.episodes.episode_loader import GPTEpisodeDataLoader
from niels_gpt.episodes.order.mixture import (
    MEASURES,
    Mixture,
    Part,
    Proportions,
    measured,
    read_mixture,
    rows_of,
    write_mixture,
)
from niels_gpt.episodes.order.order import Group, mixed_rows
from niels_gpt.episodes.order.sampling import Sampling
from niels_gpt.errors import CacheError, UsageError
from tests.episodes.made import numbers, write_dataset

A, B = Part("a", 4, 4000, 3000), Part("b", 10, 5000, 1000)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"weights": {"a": 0.75, "b": 0.25}, "amount": 8000}, {"a": 6, "b": 4}),
        ({"weights": {"a": 1, "b": 1}}, {"a": 5, "b": 9}),  # 4,500 tokens each: 4.5 rows are 5
        ({"weights": {"a": 1, "b": 1}, "by": "rows"}, {"a": 7, "b": 7}),
        ({"weights": {"a": 1, "b": 1}, "by": "trained_tokens"}, {"a": 3, "b": 20}),
        ({"weights": {"a": 1, "b": 0}}, {"a": 4, "b": 0}),
        ({"temperature": 1}, {"a": 4, "b": 10}),
        ({}, {"a": 4, "b": 10}),
        ({"weights": {"a": 3, "b": 1}, "max_epochs": 1}, {"a": 4, "b": 3}),  # a comes out once, b keeps its share
        ({"weights": {"a": 3, "b": 1}, "max_epochs": {"b": 0.2}}, {"a": 3, "b": 2}),
    ],
)
def test_rows_of_proportions(options: dict[str, Any], expected: dict[str, int]) -> None:
    assert rows_of([A, B], Proportions(**options)) == expected


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"weights": {"a": 1, "b": 1}, "amount": 10_000, "max_epochs": 1}, "at most 8,000 are possible"),
        ({"weights": {"a": 1, "b": 1e-9}}, "less than half a row of 500"),
        ({"weights": {"a": 1}}, "no weight for b"),
        ({"weights": {"a": 1, "c": 1}}, "the mixture names 'c'; expected one of a, b"),
        ({"max_epochs": {"c": 1}}, "the mixture names 'c'"),
        ({"by": "words"}, "by is 'words'"),
        ({"weights": {"a": -1}}, "the weight of 'a'"),
        ({"temperature": -1}, "expected a number above 0"),
        ({"max_epochs": {"a": float("nan")}}, "max_epochs of a"),
    ],
)
def test_proportions_that_cannot_be_met(options: dict[str, Any], expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        rows_of([A, B], Proportions(**options))


EMPTY = Part("b", 3, 90, 0)


def test_a_part_without_the_measured_amount_needs_weight_0() -> None:
    with pytest.raises(UsageError, match="b has 3 rows and no trained tokens"):
        rows_of([A, EMPTY], Proportions(by="trained_tokens", weights={"a": 1, "b": 1}))
    assert rows_of([A, EMPTY], Proportions(by="trained_tokens", weights={"a": 1, "b": 0})) == {"a": 4, "b": 0}
    # (2 / 9) ** 10,000 is 0 as a float, by which the part was left out without a word.
    with pytest.raises(UsageError, match=r"the weight of b is 0 at temperature 0\.0001"):
        rows_of([Part("a", 9, 9, 9), Part("b", 2, 2, 2)], Proportions(temperature=1e-4))


PARTS = st.lists(st.tuples(st.integers(1, 10**6), st.integers(1, 5000), st.integers(1, 100)), min_size=1, max_size=5)


@given(PARTS, st.data(), st.sampled_from(MEASURES))
def test_no_part_is_off_by_more_than_half_a_row(
    sizes: list[tuple[int, int, int]], data: st.DataObject, by: str
) -> None:
    parts = [Part(f"p{n}", rows, rows * mean + n, rows * less) for n, (rows, mean, less) in enumerate(sizes)]
    weights = {part.name: data.draw(st.floats(0.01, 100)) for part in parts}
    amount = data.draw(st.integers(1, 10**10))
    total = sum(Fraction(weight) for weight in weights.values())
    target = {part.name: amount * Fraction(weights[part.name]) / total for part in parts}
    row = {part.name: Fraction(part.amount(by), part.rows) for part in parts}
    assume(all(target[name] >= row[name] for name in target))
    rows = rows_of(parts, Proportions(by=by, weights=weights, amount=amount))
    for part in parts:
        assert abs(rows[part.name] * row[part.name] - target[part.name]) <= row[part.name] / 2


# ---- phases


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.tuples(st.integers(1, 7), st.lists(st.integers(0, 9), min_size=3, max_size=3)), min_size=1, max_size=4),
    st.booleans(),
    st.integers(0, 99),
)
def test_phases_against_a_slow_reference(groups: list[tuple[int, list[int]]], shuffle: bool, seed: int) -> None:
    """Every phase has exactly its rows of each group, and a group shows all its members before one repeats."""
    phases = [tuple(shares[number] for _, shares in groups) for number in range(3)]
    assume(all(sum(phase) for phase in phases))
    bounds = np.cumsum([0, *(size for size, _ in groups)])
    members = [np.arange(bounds[n], bounds[n + 1]) for n in range(len(groups))]
    schedule = mixed_rows([Group(f"g{n}", m) for n, m in enumerate(members)], phases, seed, shuffle=shuffle)
    assert schedule.n is not None
    drawn: list[list[int]] = [[] for _ in groups]
    for epoch in range(3):
        rows = schedule.rows(epoch, 0, schedule.n)
        assert len(rows) == schedule.n
        at = 0
        for phase in phases:
            part = rows[at : at + sum(phase)]
            owner = np.searchsorted(bounds, part, side="right") - 1
            assert np.bincount(owner, minlength=len(groups)).tolist() == list(phase)
            for n in range(len(groups)):
                drawn[n] += part[owner == n].tolist()
            at += len(part)
        cut = seed % schedule.n
        assert [*schedule.rows(epoch, 0, cut), *schedule.rows(epoch, cut, schedule.n)] == rows.tolist()
    for n, (size, _) in enumerate(groups):
        # Over whole phases the order within a round may be any; the numbers of showings never differ by more than one
        # round and its part.
        counts = [Counter(drawn[n])[member] for member in members[n].tolist()]
        assert max(counts) - min(counts) <= 1, (size, counts)


# ---- loaders and files


LENGTHS = {"big": [3 + n % 7 for n in range(40)], "small": [4 + n % 5 for n in range(10)]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_dataset(tmp_path / "sources/big", LENGTHS["big"])
    write_dataset(tmp_path / "sources/small", LENGTHS["small"], first=40)
    return tmp_path


def loader(folder: Path, phases: list[dict[str, int]], **options: Any) -> GPTEpisodeDataLoader:
    return GPTEpisodeDataLoader(
        {"batch_size": 5, "block_size": 15, "device": "cpu"},
        dataset_dir=[str(folder / "sources/big"), str(folder / "sources/small")],
        sampling=Sampling(phases=phases, seed=3),
        pad_token_id=0,
        **options,
    )


def test_a_loader_draws_the_phases_and_resumes_within_one(folder: Path) -> None:
    big, small = str(folder / "sources/big"), str(folder / "sources/small")
    phases = [{big: 15, small: 0}, {big: 5, small: 20}]
    ours = loader(folder, phases)
    steps = [numbers([ours.next_batch()]) for _ in range(16)]  # two epochs of 8
    for epoch in (steps[:8], steps[8:]):
        assert all(number < 40 for step in epoch[:3] for number in step)
        assert sum(number >= 40 for step in epoch[3:] for number in step) == 20
    resumed = loader(folder, phases)
    again = loader(folder, phases)
    for _ in range(5):
        resumed.next_batch()
    again.load_state_dict(resumed.state_dict())
    assert [numbers([again.next_batch()]) for _ in range(11)] == steps[5:]


@pytest.mark.parametrize(
    ("phases", "expected"),
    [
        ([], "phases is empty"),
        ([{"big": 0, "small": 0}], "phase 0 has no rows"),
        ([{"big": 1.5, "small": 1}], "phase 0 has 1.5 rows of"),
        ([{"big": 2}], "no weight for the dataset"),
        ([{"big": 2, "small": 1, "none": 1}], "which has no rows"),
    ],
)
def test_phases_that_cannot_be(folder: Path, phases: list[dict[str, Any]], expected: str) -> None:
    named = [{str(folder / "sources" / name): rows for name, rows in phase.items()} for phase in phases]
    with pytest.raises(UsageError, match=expected):
        loader(folder, named)


@pytest.mark.parametrize("packing", [False, True])
def test_parts_are_measured_as_loaders_draw_them(folder: Path, packing: bool) -> None:
    places = [folder / "sources/big", folder / "sources/small"]
    parts = measured(places, ["big", "small"], sequence_length=9, packing=packing, too_long="skip")
    for part, place in zip(parts, places, strict=True):
        alone = GPTEpisodeDataLoader(
            {"batch_size": 1, "block_size": 9, "device": "cpu"},
            dataset_dir=place,
            pad_token_id=0,
            packing=packing,
            too_long="skip",
        )
        batches = list(alone.evaluation_batches("train"))
        assert part.rows == len(batches)
        assert part.tokens == sum(LENGTHS[part.name])
        # A mask is aligned to targets, so the first token of a text, which none of them trains, is not in it.
        assert part.trained_tokens == sum(int((batch.mask > 0).sum()) for batch in batches)


def test_the_file_is_read_back_and_damage_is_found(tmp_path: Path) -> None:
    mixture = Mixture(8, True, "skip", 3, (A, B), {"a": "sources/a", "b": "sources/b"}, ({"a": 1, "b": 2},))
    write_mixture(tmp_path, mixture)
    assert read_mixture(tmp_path) == mixture
    path = tmp_path / "mixture.json"
    path.write_text(path.read_text().replace('"b": 2', '"b": 3'))
    with pytest.raises(CacheError, match="edited or damaged"):
        read_mixture(tmp_path)
    assert read_mixture(tmp_path / "nowhere") is None
