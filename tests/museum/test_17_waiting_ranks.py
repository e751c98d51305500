"""All ranks of a training job wait while one of them prepares the data."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier, BrokenBarrierError, Event

import pytest

from niels_gpt.errors import CacheError
from tests.episodes.made import open_loader


def naive(rank: int, barrier: Barrier, prepare: Callable[[], object]) -> None:
    if rank == 0:
        prepare()
    barrier.wait(timeout=0.05)  # thirty minutes, in life


def test_naive() -> None:
    barrier, slow = Barrier(2), Event()
    with ThreadPoolExecutor(2) as ranks:
        first = ranks.submit(naive, 0, barrier, slow.wait)
        second = ranks.submit(naive, 1, barrier, slow.wait)
        assert isinstance(second.exception(), BrokenBarrierError)
        slow.set()
        assert isinstance(first.exception(), BrokenBarrierError)  # prepared, and dead all the same


def test_ours(tmp_path: Path) -> None:
    for rank in range(2):
        with pytest.raises(CacheError, match="niels-gpt build"):
            open_loader(tmp_path / "none", rank=rank, world_size=2)
