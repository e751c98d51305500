"""What an epoch of a mixture shows: shares, temperature, and the exact rows of phases."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from niels_gpt.episodes.episode_loader import GPTEpisodeDataLoader
from niels_gpt.episodes.order.sampling import Sampling
from niels_gpt.errors import UsageError
from tests.episodes.made import numbers, open_loader, types_for, write_dataset

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
    rows = loader.batch_source("train").order.n
    assert rows is not None
    read = [open_at(loader, row) for row in range(0, n * rows, rows)]
    return [Counter(found) for found in read]


def open_at(loader: GPTEpisodeDataLoader, row: int) -> list[int]:
    loader.seek(row)
    return numbers(loader.next_batch() for _ in range(loader.batch_source("train").order.n or 0))


def of_each(counts: Counter[int]) -> tuple[int, int]:
    """Draws from the first dataset and the second."""
    return sum(n for e, n in counts.items() if e < BIG), sum(n for e, n in counts.items() if e >= BIG)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"temperature": 1}, (40, 10)),
        ({"temperature": 2}, (33, 17)),  # 2 : 1
        ({"temperature": math.inf}, (25, 25)),
        ({"weights": (0.5, 0.5)}, (25, 25)),
        ({"weights": (0.9, 0.1)}, (45, 5)),
        ({"phases": [(200, 100)]}, (200, 100)),  # an epoch of any length
        ({"phases": [(10, 10)]}, (10, 10)),  # which ends before the first dataset repeats
        ({"phases": [(40, 40)]}, (40, 40)),  # or when all have been shown
        ({"phases": [(20, 10)]}, (20, 10)),  # half of one, all of the other
        ({"phases": [(0, 20)]}, (0, 20)),
        ({"phases": [(30, 5), (10, 25)]}, (40, 30)),
    ],
    ids=str,
)
def test_every_epoch_shows_just_these(datasets: list[Path], options: dict[str, Any], expected: tuple[int, int]) -> None:
    """And within a dataset everything comes before something repeats, over the ends of epochs too."""
    where: Any = datasets
    told = dict(options)
    if "weights" in told:
        where = dict(zip(map(str, datasets), told.pop("weights"), strict=True))
    if "phases" in told:
        phases = [dict(zip(datasets, rows, strict=True)) for rows in told.pop("phases")]
        told["sampling"] = Sampling(phases=phases)
    loader = open_loader(where, batch_size=1, **told)
    epochs = epochs_of(loader, 3)
    assert [of_each(epoch) for epoch in epochs] == [expected] * 3
    total = epochs[0] + epochs[1] + epochs[2]
    for members in (range(BIG), range(BIG, BIG + SMALL)):
        counts = [total[episode] for episode in members]
        assert max(counts) - min(counts) <= 1


@pytest.mark.parametrize("packing", [False, True])
def test_types_too(datasets: list[Path], packing: bool) -> None:
    """Rows of a group are counted, packed ones where rows are packed."""
    shown = open_loader(datasets[0], batch_size=1, weight_by="type", temperature=1, packing=packing)
    sizes = {group.name: len(group.members) for group in shown.batch_source("train").order.groups}
    sampling = Sampling(weight_by="type", phases=[sizes | {"chat": 2 * sizes["chat"]}])
    loader = open_loader(datasets[0], batch_size=1, sampling=sampling, packing=packing)
    counts = epochs_of(loader, 1)[0]
    assert counts == Counter({e: 2 if name == "chat" else 1 for e, name in enumerate(types_for(range(BIG)))})


GOOD = {"chat": 1, "code": 1, "math": 1}
BY_TYPE: dict[str, Any] = {"weight_by": "type", "weights": GOOD}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({**BY_TYPE, "weight_by": "typ"}, "weight_by is 'typ'; expected one of type, source, dataset"),
    ({"weight_by": "type"}, "expected weights by name"),
    ({"weights": GOOD}, "expected weights by name"),
    ({**BY_TYPE, "weights": [1, 2]}, r"weights is \[1, 2\]; expected a mapping from names to numbers"),
    ({**BY_TYPE, "weights": "chat"}, "weights is 'chat'; expected a mapping"),
    ({**BY_TYPE, "weights": {**GOOD, "maths": 1}}, r"the type 'maths'.*math \(8\); did you mean 'math'\?"),
    ({**BY_TYPE, "weights": {"chat": 1, "code": 1}}, "no weight for the type math; give each one"),
    *(({**BY_TYPE, "weights": {**GOOD, "code": bad}}, f"the weight of 'code' is {bad!r}") for bad in (-1, "1", None)),
    ({**BY_TYPE, "weights": {**GOOD, "code": math.nan}}, "the weight of 'code' is nan"),
    ({**BY_TYPE, "weights": dict.fromkeys(GOOD, 0)}, "all 0"),
    ({**BY_TYPE, "weights": {**GOOD, "code": 1e-9}}, "has none of code, whose weight is too small"),
    ({"temperature": 0}, "temperature is 0; expected a number above 0"),
    ({"temperature": math.nan}, "temperature is nan"),
    ({"temperature": "hot"}, "temperature is 'hot'"),
    ({**BY_TYPE, "temperature": 2}, "weights and temperature are given"),
    ({"temperature": 2, "phases": [{"x": 1}]}, "temperature and phases are given; .* pass one of them"),
    ({"phases": [{"x": 1}], "mode": "random"}, "phases with batch_sampling_mode 'random', which has no epochs"),
    ({"weight_by": "type", "phases": [{"chat": 1, "code": 1}]}, "no weight for the type math"),
    ({"weight_by": "type", "phases": [GOOD | {"chat": -1}]}, "phase 0 has -1 rows of 'chat'"),
    ({"weight_by": "type", "phases": [{"chats": 1}]}, "phases name the type 'chats'.* did you mean 'chat'"),
]


def test_proportions_that_cannot_be(datasets: list[Path]) -> None:
    for options, message in REFUSED:
        with pytest.raises(UsageError, match=message):
            open_loader(datasets[0], sampling=Sampling(**options))
    with pytest.raises(UsageError, match="names a directory twice"):
        open_loader([str(datasets[0]), f"{datasets[0]}/"])
    with pytest.raises(UsageError, match="expected one of them"):
        open_loader({str(datasets[0]): 1.0}, **BY_TYPE)
