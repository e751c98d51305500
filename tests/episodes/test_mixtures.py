"""How long an epoch of a mixture is and what it shows: temperature, repeats, and which group ends it."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from niels_gpt.episodes.loader import GPTEpisodeDataLoader
from niels_gpt.episodes.order.mixture import by_temperature
from niels_gpt.episodes.order.sampling import by_repeats, rows_until, shares
from niels_gpt.errors import UsageError
from tests.episodes.rows import numbers, open_loader, types_for, write_dataset

BIG, SMALL = 40, 10


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("mixtures")
    big, small = [3 + n % 7 for n in range(BIG)], [4 + n % 5 for n in range(SMALL)]
    return [
        write_dataset(folder / "big", big, type=types_for(big)),
        write_dataset(folder / "small", small, first=BIG, type=types_for(small)),
    ]


def epochs_of(loader: GPTEpisodeDataLoader, n: int) -> list[Counter[int]]:
    """How often each episode comes in the first epochs; a mixture runs on, so by rows."""
    rows = loader.batch_source("train").schedule.n
    assert rows is not None
    read = [open_at(loader, row) for row in range(0, n * rows, rows)]
    return [Counter(found) for found in read]


def open_at(loader: GPTEpisodeDataLoader, row: int) -> list[int]:
    loader.seek(row)
    return numbers(loader.next_batch() for _ in range(loader.batch_source("train").schedule.n or 0))


def of_each(counts: Counter[int]) -> tuple[int, int]:
    """Draws from the first dataset and the second."""
    return sum(n for e, n in counts.items() if e < BIG), sum(n for e, n in counts.items() if e >= BIG)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"temperature": 1}, (40, 10)),
        ({"temperature": 2}, (33, 17)),  # 2 : 1
        ({"temperature": math.inf}, (25, 25)),
        ({"temperature": 2, "epoch_rows": 300}, (200, 100)),
        ({"temperature": math.inf, "epoch_ends": "first"}, (10, 10)),
        ({"temperature": math.inf, "epoch_ends": "all"}, (40, 40)),
        ({"repeats": (1, 3)}, (40, 30)),
        ({"repeats": (0.5, 1)}, (20, 10)),
        ({"repeats": (0, 2)}, (0, 20)),
        ({"weights": (0.5, 0.5), "epoch_ends": "first"}, (10, 10)),
        ({"weights": (0.5, 0.5), "epoch_ends": "all"}, (40, 40)),
        ({"weights": (0.9, 0.1), "epoch_ends": "first"}, (40, 4)),
        ({"weights": (0.9, 0.1), "epoch_ends": "all"}, (90, 10)),
    ],
    ids=str,
)
def test_every_epoch_shows_just_these(datasets: list[Path], options: dict[str, Any], expected: tuple[int, int]) -> None:
    """And within a dataset everything comes before something repeats, over the ends of epochs too."""
    where: Any = datasets
    told = dict(options)
    if "weights" in told:
        where = dict(zip(map(str, datasets), told.pop("weights"), strict=True))
    if "repeats" in told:
        told["repeats"] = dict(zip(datasets, told["repeats"], strict=True))
    loader = open_loader(where, batch_size=1, **told)
    epochs = epochs_of(loader, 3)
    assert [of_each(epoch) for epoch in epochs] == [expected] * 3
    total = epochs[0] + epochs[1] + epochs[2]
    for members in (range(BIG), range(BIG, BIG + SMALL)):
        counts = [total[episode] for episode in members]
        assert max(counts) - min(counts) <= 1


def test_whole_repeats_show_every_episode_so_often_each_epoch(datasets: list[Path]) -> None:
    loader = open_loader(datasets, batch_size=1, repeats={datasets[0]: 1, datasets[1]: 4})
    for epoch in epochs_of(loader, 2):
        assert epoch == Counter({e: 1 if e < BIG else 4 for e in range(BIG + SMALL)})


@pytest.mark.parametrize("packing", [False, True])
def test_types_too(datasets: list[Path], packing: bool) -> None:
    """Any group may be repeated; rows of a group are counted, packed ones where rows are packed."""
    loader = open_loader(
        datasets[0], batch_size=1, weight_by="type", repeats={"chat": 2, "code": 1, "math": 1}, packing=packing
    )
    counts = epochs_of(loader, 1)[0]
    assert counts == Counter({e: 2 if name == "chat" else 1 for e, name in enumerate(types_for(range(BIG)))})


def test_temperature_by_packed_rows(datasets: list[Path]) -> None:
    loader = open_loader(datasets, batch_size=1, temperature=math.inf, packing=True, epoch_ends="first")
    groups = loader.batch_source("train").schedule.groups  # type: ignore[attr-defined]
    assert len({group.share for group in groups}) == 1
    assert groups[0].share == min(len(group.members) for group in groups)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 0}, "temperature is 0; expected a number above 0"),
        ({"temperature": -1}, "temperature is -1"),
        ({"temperature": math.nan}, "temperature is nan"),
        ({"temperature": "hot"}, "temperature is 'hot'"),
        ({"temperature": True}, "temperature is True"),
        ({"temperature": 2, "repeats": {"x": 1}}, "temperature and repeats are given; .* pass one of them"),
        ({"weight_by": "type", "weights": {"chat": 1}, "temperature": 2}, "weights and temperature are given"),
        ({"repeats": {"x": 1}, "epoch_rows": 5}, "epoch_rows and repeats are given; each decides how long"),
        ({"temperature": 2, "epoch_rows": 5, "epoch_ends": "all"}, "epoch_rows and epoch_ends are given"),
        ({"temperature": 2, "epoch_ends": "never"}, "epoch_ends is 'never'; expected first or all"),
        ({"epoch_ends": "all"}, "epoch_ends without weight_by"),
        ({"weight_by": "weight", "epoch_ends": "all"}, "epoch_ends with weight_by 'weight', which has no groups"),
        ({"weight_by": "weight", "temperature": 2}, "weight_by is 'weight'"),
        (
            {"temperature": 2, "epoch_ends": "all", "batch_sampling_mode": "random"},
            "epoch_ends with batch_sampling_mode",
        ),
        ({"repeats": {"x": 1}, "batch_sampling_mode": "random"}, "repeats with batch_sampling_mode 'random'"),
        ({"weight_by": "type", "repeats": {"chat": 1, "code": 1}}, "no weight for the type math"),
        ({"weight_by": "type", "repeats": {"chat": -1, "code": 1, "math": 1}}, "the weight of 'chat' is -1"),
        ({"weight_by": "type", "repeats": {"chats": 1}}, "repeats name the type 'chats'.* did you mean 'chat'"),
        ({"weight_by": "type", "repeats": {"chat": 1, "code": 1, "math": 1e-9}}, "has none of math"),
    ],
    ids=str,
)
def test_settings_that_cannot_be(datasets: list[Path], options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        open_loader(datasets[0], **options)


def test_the_state_of_another_mixture_is_refused(datasets: list[Path]) -> None:
    one = open_loader(datasets, temperature=2).state_dict()
    for options in (
        {"temperature": 3},
        {"temperature": 2, "epoch_ends": "all"},
        {"repeats": dict.fromkeys(datasets, 1)},
    ):
        with pytest.raises(UsageError, match="fingerprint"):
            open_loader(datasets, **options).load_state_dict(one)


# The arithmetic

SIZES = st.dictionaries(st.text("abc", min_size=1, max_size=3), st.integers(1, 10**12), min_size=1, max_size=5)


@given(sizes=SIZES, data=st.data())
def test_an_epoch_ends_where_it_says(sizes: dict[str, int], data: st.DataObject) -> None:
    weights = {name: data.draw(st.floats(1e-3, 1e3)) for name in sizes}
    first = shares(weights, rows_until("first", sizes, weights))
    assert all(first[name] <= sizes[name] for name in sizes)
    assert any(first[name] >= sizes[name] - len(sizes) for name in sizes)
    last = shares(weights, rows_until("all", sizes, weights))
    assert all(last[name] >= sizes[name] for name in sizes)
    assert any(last[name] <= sizes[name] + len(sizes) for name in sizes)


@given(sizes=SIZES, temperature=st.floats(0.5, 50))
def test_temperature_flattens(sizes: dict[str, int], temperature: float) -> None:
    weights = by_temperature(sizes, temperature)
    largest = max(sizes, key=lambda name: sizes[name])
    for name, size in sizes.items():
        assert math.isclose(
            weights[name] / weights[largest], (size / sizes[largest]) ** (1 / temperature), rel_tol=1e-9
        )


@given(sizes=SIZES, times=st.integers(1, 9))
def test_repeats_are_exact(sizes: dict[str, int], times: int) -> None:
    assert by_repeats(sizes, dict.fromkeys(sizes, times)) == {name: size * times for name, size in sizes.items()}
