"""Mixtures go on at the same row on any number of ranks and batch size, packed or not, at any position, in O(1)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from niels_gpt.episodes.episode_loader import GPTEpisodeDataLoader
from niels_gpt.episodes.order.sampling import Sampling
from niels_gpt.errors import UsageError
from tests.episodes.made import open_loader, write_dataset

FAR = 10**12
A, B, C = 41, 29, 5  # episodes of three datasets, primes all


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("elastic")
    return [
        write_dataset(folder / "a", [2 + (7 * n) % 11 for n in range(A)]),
        write_dataset(folder / "b", [2 + (5 * n) % 9 for n in range(B)], first=A),
        write_dataset(folder / "c", [3 + n for n in range(C)], first=A + B),
    ]


KINDS: dict[str, dict[str, Any]] = {
    "weights": {"weights": (0.6, 0.3, 0.1)},
    "temperature": {"temperature": 3.0},
    "phases": {"phases": ((A // 2, B, C), (0, 3, 2 * C))},
    "random": {"weights": (0.6, 0.3, 0.1), "batch_sampling_mode": "random"},
}


def open_mixture(datasets: list[Path], kind: str, *, packing: bool, **more: Any) -> GPTEpisodeDataLoader:
    told = dict(KINDS[kind])
    where: Any = datasets
    if "weights" in told:
        where = dict(zip(map(str, datasets), told.pop("weights"), strict=True))
    if "phases" in told:
        phases = [dict(zip(datasets, rows, strict=True)) for rows in told.pop("phases")]
        told["sampling"] = Sampling(phases=phases)
    return open_loader(where, packing=packing, **told, **more)


def rows_of(loaders: list[GPTEpisodeDataLoader], steps: int) -> list[tuple[list[int], ...]]:
    """The rows of the next global batches, each as all that a training step sees of it."""
    found = []
    for _ in range(steps):
        for batch in [loader.next_batch() for loader in loaders]:
            names = [name for name in ("x", "y", "mask", "segment_ids", "position_ids") if name in batch.tensors()]
            found += list(zip(*(batch.tensors()[name].tolist() for name in names), strict=True))
    return found


@settings(max_examples=6, deadline=None)
@given(
    legs=st.lists(
        st.tuples(st.integers(1, 7), st.sampled_from([1, 2, 3, 8]), st.integers(1, 3)), min_size=1, max_size=4
    ),
    start=st.sampled_from([0, 1, 73, FAR, FAR + 74]),
)
@pytest.mark.parametrize("packing", [False, True], ids=["apart", "packed"])
@pytest.mark.parametrize("kind", KINDS)
def test_any_legs_on_any_machines_are_one_order(
    datasets: list[Path], kind: str, packing: bool, legs: list[tuple[int, int, int]], start: int
) -> None:
    """A run of several legs, each with its own batch size and ranks, reads what one rank reads row by row."""
    loader = open_mixture(datasets, kind, packing=packing, batch_size=1)
    loader.seek(start)
    expected = rows_of([loader], sum(size * world * steps for size, world, steps in legs))
    first = open_mixture(datasets, kind, packing=packing, batch_size=1)
    first.seek(start)
    state, found = first.state_dict(), []
    for size, world, steps in legs:
        ranks = [
            open_mixture(datasets, kind, packing=packing, batch_size=size, rank=rank, world_size=world)
            for rank in range(world)
        ]
        for rank in ranks:
            rank.load_state_dict(json.loads(json.dumps(state)))
        found += rows_of(ranks, steps)
        states = [rank.state_dict() for rank in ranks]
        assert all(other == states[0] for other in states)
        state = states[0]
    assert found == expected
    assert first.rows_read() == start
    first.load_state_dict(state)
    assert first.rows_read() == start + len(found)


@pytest.mark.parametrize("row", [-1, 2**62 + 1, 1.5])
def test_rows_that_cannot_be(datasets: list[Path], row: Any) -> None:
    with pytest.raises(UsageError, match=r"row is .*; expected a whole number from 0 to 2\*\*62"):
        open_loader(datasets[0]).seek(row)


def test_a_state_beyond_all_rows_is_refused(datasets: list[Path]) -> None:
    loader = open_mixture(datasets, "weights", packing=False)
    loader.seek(2**62 - 10)
    loader.next_batch()
    state = loader.state_dict()
    with pytest.raises(UsageError, match=r"together more than 2\*\*62 rows"):
        loader.load_state_dict({**state, "epoch": 2**61})
