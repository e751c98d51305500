"""Resuming anywhere, through any door, gives what would have come without stopping."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torchdata.stateful_dataloader import StatefulDataLoader

from niels_gpt.episodes.batch import Batch
from niels_gpt.episodes.episode_loader import GPTEpisodeDataLoader
from niels_gpt.errors import Mismatch, UsageError
from tests.episodes.made import LENGTHS, assert_all_equal, open_loader, types_for, write_dataset

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),  # this machine may have fewer cores
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),  # torchdata 0.11 calls it
]

State = dict[str, Any]
Open = Callable[[], GPTEpisodeDataLoader]
Run = tuple[Iterator[Batch], Callable[[], State]]


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two datasets with types, the second's episodes with tokens of their own."""
    lengths = [length for length in LENGTHS if length <= 13]
    folder = tmp_path_factory.mktemp("resume")
    other = [4, 11, 6, 9, 3, 8, 5]
    return (
        write_dataset(folder / "one", lengths, type=types_for(lengths)),
        write_dataset(folder / "two", other, first=50, type=types_for(other)),
    )


@dataclass(frozen=True)
class Setting:
    """What rows come, and how."""

    kind: str
    packing: bool
    drop_last: bool

    def open(self, datasets: tuple[Path, Path], **more: Any) -> GPTEpisodeDataLoader:
        where: Any = datasets[0]
        if self.kind == "mixture":
            where = {str(datasets[0]): 0.6, str(datasets[1]): 0.4}
        if self.kind == "weighted":
            more |= {"weight_by": "type", "weights": {"chat": 1, "code": 2, "math": 0.5}}
        if self.kind == "random":
            more |= {"batch_sampling_mode": "random"}
        return open_loader(where, packing=self.packing, epoch_drop_last=self.drop_last, **more)

    def __str__(self) -> str:
        return f"{self.kind}{'-packed' * self.packing}{'-dropping' * self.drop_last}"


KINDS = ("plain", "weighted", "mixture")
SETTINGS = [Setting(*values) for values in itertools.product(KINDS, (False, True), (False, True))]
OTHERS = [Setting("random", False, True), Setting("random", True, True)]


def stops(loader: GPTEpisodeDataLoader) -> list[int]:
    """After how many batches to stop: none, within an epoch, at its end, just behind it, after two epochs."""
    if loader.config.sampling_mode == "random":
        return [0, 3, 4, 11, 30]
    steps = loader.steps_per_epoch()
    return [0, steps // 2, steps, steps + 1, 2 * steps]


# The doors: each starts at a state, or from the beginning, and can say at any time where it stands.


def by_next_batch(loader: GPTEpisodeDataLoader, state: State | None) -> Run:
    if state is not None:
        loader.load_state_dict(state)
    return iter(lambda: loader.next_batch(), None), loader.state_dict


def by_prefetch(loader: GPTEpisodeDataLoader, state: State | None) -> Run:
    if state is not None:
        loader.load_state_dict(state)
    ahead = loader.prefetch(depth=4)  # batches wait in the queue whenever a state is taken
    return ahead, ahead.state_dict


def view(kind: Any, loader: GPTEpisodeDataLoader, *, epochs: int | None = None, **options: Any) -> Any:
    """A DataLoader of torch or torchdata over the loader's source and places."""
    places = loader.places("train", epochs=epochs)
    return kind(loader.batch_source("train"), sampler=places, batch_size=None, **options)


def by_torch(workers: int) -> Callable[[GPTEpisodeDataLoader, State | None], Run]:
    def start(loader: GPTEpisodeDataLoader, state: State | None) -> Run:
        if state is not None:
            loader.load_state_dict(state)
        last = [loader.state_dict()]
        door = view(torch.utils.data.DataLoader, loader, num_workers=workers)

        def batches() -> Iterator[Batch]:
            for batch in door:
                last[0] = batch.state
                yield batch

        return batches(), lambda: last[0]

    return start


def by_torchdata(workers: int) -> Callable[[GPTEpisodeDataLoader, State | None], Run]:
    def start(loader: GPTEpisodeDataLoader, state: State | None) -> Run:
        door = view(StatefulDataLoader, loader, num_workers=workers, snapshot_every_n_steps=1)
        if state is not None:
            door.load_state_dict(state)
        return iter(door), door.state_dict

    return start


DOORS = {
    "next_batch": by_next_batch,
    "prefetch": by_prefetch,
    "torch-0": by_torch(0),
    "torch-2": by_torch(2),
    "torchdata-0": by_torchdata(0),
    "torchdata-2": by_torchdata(2),
}


def run(door: Any, loader: GPTEpisodeDataLoader, state: State | None, n: int) -> tuple[list[Batch], State]:
    """The first `n` batches through a door, and the state after them as it comes back from a JSON file."""
    batches, where = door(loader, state)
    try:
        return list(itertools.islice(batches, n)), json.loads(json.dumps(where()))
    finally:
        with contextlib.suppress(AttributeError):
            batches.close()


# Processes take long to start, and rows do not know who makes them: every third setting.
@pytest.mark.parametrize(
    ("setting", "name"),
    [(setting, name) for name in DOORS for setting in (SETTINGS[::3] if name.endswith("2") else [*SETTINGS, *OTHERS])],
    ids=str,
)
def test_the_rest_comes_through_every_door(datasets: tuple[Path, Path], setting: Setting, name: str) -> None:
    """Resumed again and again, at each of the stops."""
    loader = setting.open(datasets)
    expected = [loader.next_batch() for _ in range(stops(loader)[-1] + 4)]
    at, state = 0, None
    for stop in [*stops(loader), len(expected)]:
        found, state = run(DOORS[name], setting.open(datasets), state, stop - at)
        assert_all_equal(found, expected[at:stop])
        at = stop


@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (3, True)])
def test_a_finished_epoch_is_followed_by_the_next(datasets: tuple[Path, Path], workers: int, persistent: bool) -> None:
    """torchdata's loader over one epoch at a time, its state taken when the loop has ended (D5)."""
    loader = open_loader(datasets[0], epoch_drop_last=False)
    steps = loader.steps_per_epoch()
    expected = [loader.next_batch() for _ in range(2 * steps)]

    def door() -> Any:
        opened = open_loader(datasets[0], epoch_drop_last=False)
        return view(StatefulDataLoader, opened, epochs=1, num_workers=workers, persistent_workers=persistent)

    first, second = door(), door()
    assert_all_equal(list(first), expected[:steps])
    second.load_state_dict(first.state_dict())
    assert_all_equal(list(second), expected[steps:])


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_a_resumed_epoch_still_ends_where_it_ends(datasets: tuple[Path, Path], workers: int) -> None:
    loader = open_loader(datasets[0], epoch_drop_last=False)
    expected = list(loader.batches(epoch=0))

    def door() -> Any:
        opened = open_loader(datasets[0], epoch_drop_last=False)
        return view(StatefulDataLoader, opened, epochs=1, num_workers=workers)

    for stop in (1, 4, len(expected)):
        first = door()
        batches = iter(first)
        for _ in range(stop):
            next(batches)
        state = first.state_dict()
        second = door()
        second.load_state_dict(state)
        assert_all_equal(list(second), expected[stop:])


@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_acts_at_once(datasets: tuple[Path, Path], workers: int) -> None:
    """A pass that is under way goes on from the state that is loaded (D5), as does a prefetching iterator."""
    expected = [batch for loader in [open_loader(datasets[0])] for batch in [loader.next_batch() for _ in range(20)]]
    loader = open_loader(datasets[0])
    door = loader.as_dataloader(num_workers=workers, epochs=None)
    batches = iter(door)
    assert_all_equal([next(batches) for _ in range(5)], expected[:5])
    door.load_state_dict(expected[1].state)
    assert_all_equal([next(batches) for _ in range(3)], expected[2:5])
    loader.load_state_dict(expected[11].state)
    assert_all_equal([next(batches) for _ in range(3)], expected[12:15])
    with loader.prefetch(depth=3) as ahead:
        assert_all_equal([next(ahead), next(ahead)], expected[15:17])
        loader.load_state_dict(expected[0].state)
        assert_all_equal([next(ahead), next(ahead)], expected[1:3])


@pytest.mark.parametrize(
    "other",
    [
        {"epoch_seed": 4},
        {"packing": True},
        {"epoch_shuffle": False},
        {"batch_sampling_mode": "random"},
        {"episode_min_tokens": 5},
        {"too_long": "skip", "block_size": 11},
        {"too_long": "tail"},
        {"too_long": "drop_partial_turn"},
        {"block_size": 11},
        {"weight_by": "type", "weights": {"chat": 1, "code": 1, "math": 1}},
    ],
    ids=str,
)
def test_the_state_of_other_rows_is_refused(datasets: tuple[Path, Path], other: dict[str, Any]) -> None:
    state = open_loader(datasets[0]).state_dict()
    with pytest.raises(Mismatch, match=r"seed|fingerprint"):
        open_loader(datasets[0], **other).load_state_dict(state)
    with pytest.raises(Mismatch, match=r"seed|fingerprint"):
        open_loader(datasets[0]).load_state_dict(open_loader(datasets[0], **other).state_dict())


def test_the_state_of_another_dataset_is_refused(datasets: tuple[Path, Path]) -> None:
    state = open_loader(datasets[0]).state_dict()
    for where in (datasets[1], list(datasets), {str(datasets[0]): 1.0}):
        with pytest.raises(Mismatch, match="fingerprint"):
            open_loader(where).load_state_dict(state)


def test_states_that_cannot_be_are_refused_and_change_nothing(datasets: tuple[Path, Path]) -> None:
    loader = open_loader(datasets[0])
    loader.next_batch()
    before, places = loader.state_dict(), loader.places()
    numbers = [{"position": -1}, {"position": 24}, {"position": None}, {"epoch": -1}]
    cases: list[tuple[type[Exception], str, Any]] = [(UsageError, "the state", before | change) for change in numbers]
    no_states = ({}, None, 3, "state", [], {"epoch": 1, "position": 2})
    cases += [(UsageError, "expected what state_dict", state) for state in no_states]
    cases += [(Mismatch, r"of version .* reads 3\.", before | {"version": version}) for version in (1, None)]
    for kind, message, state in cases:
        for target in (loader, places):
            with pytest.raises(kind, match=message):
                target.load_state_dict(state)
    assert loader.state_dict() == before
