"""Which rows come: exact shares of groups, packed or not; and the plans of packed rows."""

from __future__ import annotations

import math
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from niels_gpt.config import TrainingConfig
from niels_gpt.episodes.episode_loader import GPTEpisodeDataLoader
from niels_gpt.episodes.order.order import EMPTY, Group, Order, every_row, mixed_rows, random_rows
from niels_gpt.episodes.order.sampling import shares
from niels_gpt.episodes.order.states import Place
from niels_gpt.errors import CacheError, UsageError
from niels_gpt.store.index_sets import Span
from tests.episodes.made import LENGTHS, numbers, open_loader, types_for, write_dataset, write_metadata, write_split

FITTING = [length for length in LENGTHS if length <= 13]
TYPES = types_for(FITTING)


def walk(n: int, size: int, drop_last: bool, batches: int, start: Place) -> list[tuple[Place, list[int], Place]]:
    """Where each batch begins, its rows, and where it ends: one row at a time."""
    found, epoch, position = [], start.epoch, start.position
    for _ in range(batches):
        if position == n or (drop_last and position + size > n):
            epoch, position = epoch + 1, 0
        begin, rows = Place(epoch, position), []
        while len(rows) < size and position < n:
            rows.append(position)
            position += 1
        rows += [EMPTY] * (size - len(rows))
        found.append((begin, rows, Place(epoch, position)))
    return found


@given(n=st.integers(1, 30), size=st.integers(1, 35), drop_last=st.booleans(), epoch=st.integers(0, 3), data=st.data())
@settings(deadline=None, max_examples=200)
def test_steps_are_those_of_an_obvious_loop(
    n: int, size: int, drop_last: bool, epoch: int, data: st.DataObject
) -> None:
    if drop_last:
        size = min(size, n)
    start = Place(epoch, data.draw(st.integers(0, n)))
    schedule = every_row(n, 0, shuffle=False)
    place, expected = start, walk(n, size, drop_last, 25, start)
    for number, (begin, rows, end) in enumerate(expected):
        assert schedule.begin(place, size, drop_last=drop_last) == begin
        taken, place = schedule.take(place, size, drop_last=drop_last)
        assert (taken.tolist(), place) == (rows, end)
        assert schedule.skip(start, size, number + 1, drop_last=drop_last) == end
    assert schedule.skip(start, size, 0, drop_last=drop_last) == start
    left = sum(begin.epoch == epoch for begin, _, _ in walk(n, size, drop_last, 40, start))
    assert schedule.batches(start.position, size, drop_last=drop_last) == left


@given(size=st.integers(1, 9), start=st.integers(0, 10**12), batches=st.integers(0, 10**6))
def test_random_rows_have_no_epochs(size: int, start: int, batches: int) -> None:
    schedule, place = random_rows([Group("rows", Span(0, 100))], [1], 3), Place(0, start)
    rows, after = schedule.take(place, size, drop_last=True)
    assert after == Place(0, start + size) == schedule.skip(place, size, 1, drop_last=True)
    assert schedule.skip(place, size, batches, drop_last=False) == Place(0, start + batches * size)
    assert rows.tolist() == [schedule.rows(0, at, at + 1)[0] for at in range(start, start + size)]


TWO = [Group("a", np.arange(5)), Group("b", np.arange(5, 40))]
SCHEDULES: list[Order] = [
    every_row(57, 3, shuffle=True),
    every_row(57, 3, shuffle=False),
    random_rows([Group("rows", Span(0, 57))], [1], 3),
    mixed_rows(TWO, [[9, 11]], 3, shuffle=True),
    mixed_rows(TWO, [[9, 11]], 3, shuffle=False),
]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=["every", "in order", "random", "mixture", "mixture in order"])
def test_rows_may_be_asked_for_in_any_pieces(schedule: Order) -> None:
    n = schedule.n or 57
    for epoch in (0, 1, 7) if schedule.n else (0,):
        whole = schedule.rows(epoch, 0, n)
        for start, stop in [(0, 0), (0, 1), (3, 9), (n - 1, n), (5, n)]:
            assert schedule.rows(epoch, start, stop).tolist() == whole[start:stop].tolist()


@given(
    proportions=st.dictionaries(st.text(max_size=3), st.one_of(st.integers(0, 9), st.floats(0, 1e6)), min_size=1),
    n=st.integers(0, 1000),
)
@settings(deadline=None)
def test_shares_add_up_and_are_less_than_a_row_off(proportions: dict[str, float], n: int) -> None:
    if not any(proportions.values()):
        return
    found = shares(proportions, n)
    assert list(found) == list(proportions)
    assert sum(found.values()) == n
    total = math.fsum(proportions.values())
    for name, share in found.items():
        assert abs(share - n * proportions[name] / total) < 1 + 1e-9
        assert proportions[name] or share == 0


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    sources = [f"s{number % 2}" for number in range(len(FITTING))]
    return write_dataset(tmp_path / "data", FITTING, type=TYPES, source=sources)


def counts_by(labels: list[str], found: list[int]) -> Counter[str]:
    return Counter(labels[number] for number in found)


def test_filtered_episodes_keep_their_labels(tmp_path: Path) -> None:
    """Labels belong to episodes, not to the positions that filtering leaves."""
    folder = write_dataset(tmp_path / "data", [1, 5, 5, 1, 5, 5], type=["a", "b", "c", "a", "b", "c"])
    loader = open_loader(folder, batch_size=1, weight_by="type", weights={"b": 1, "c": 3})
    assert Counter(number % 3 for number in numbers(loader.batches())) == {1: 1, 2: 3}


@pytest.mark.parametrize("weights", [{"chat": 1, "code": 1, "math": 1}, {"chat": 1, "code": 5, "math": 0}])
def test_packed_rows_do_not_mix_groups(dataset: Path, weights: dict[str, float]) -> None:
    loader = open_loader(dataset, batch_size=1, weight_by="type", weights=weights, packing=True)
    several = 0
    for epoch in range(3):
        for batch in loader.batches(epoch=epoch):
            assert len({TYPES[number] for number in batch.episodes}) == 1
            several += len(batch.episodes) > 1
    assert several > 3


def test_random_mode_by_group(dataset: Path) -> None:
    """A group's share is its weight, however many members it has; 4 standard deviations."""
    weights = {"chat": 1.0, "code": 2.0, "math": 1.0}
    loader = open_loader(
        dataset, batch_size=500, batch_sampling_mode="random", weight_by="type", weights=weights, epoch_seed=5
    )
    found = counts_by(TYPES, numbers(loader.next_batch() for _ in range(8)))
    for name, weight in weights.items():
        share = weight / 4
        assert abs(found[name] / 4000 - share) < 4 * math.sqrt(share * (1 - share) / 4000)


def test_val_is_not_weighted(dataset: Path) -> None:
    write_dataset(dataset, [4] * 9, split="val", first=60)
    loader = open_loader(dataset, batch_size=1, weight_by="type", weights={"chat": 1, "code": 0, "math": 1})
    assert sorted(numbers(loader.batches("val"))) == list(range(9))


def test_metadata_that_is_not_there(tmp_path: Path) -> None:
    folder = write_dataset(tmp_path / "data", [4, 5, 6])
    with pytest.raises(CacheError, match=r"episodes\.parquet: no such file; sampling by type needs it"):
        open_loader(folder, weight_by="type", weights={"a": 1})
    write_metadata(folder, source=["a", "b", "c"])
    with pytest.raises(UsageError, match="no column 'type'; it has source"):
        open_loader(folder, weight_by="type", weights={"a": 1})
    write_metadata(folder, type=["a", None, "c"])
    with pytest.raises(CacheError, match="row 1: no type; give every episode one"):
        open_loader(folder, weight_by="type", weights={"a": 1})


def test_a_mixture_is_the_same_under_any_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint must find its data on another machine."""
    for name, first in (("zoo", 0), ("ant", 100)):
        write_split(tmp_path / name / "train", [[first + n] * 3 for n in range(1, 20)])
    config = TrainingConfig(batch_size=4, block_size=4)
    monkeypatch.chdir(tmp_path)

    def opened(*names: str) -> GPTEpisodeDataLoader:
        mixture = dict(zip(names, (0.5, 0.5), strict=True))
        return GPTEpisodeDataLoader(config, None, mixture, pad_token_id=0, packing=False)

    here = opened("zoo", "ant")
    for _ in range(3):
        here.next_batch()
    moved = shutil.copytree(tmp_path / "zoo", tmp_path / "aaa")
    there = opened(str(moved), "./ant")
    there.load_state_dict(here.state_dict())
    assert there.next_batch().x.equal(here.next_batch().x)
