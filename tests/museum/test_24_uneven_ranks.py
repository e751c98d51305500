"""Ranks with different numbers of batches."""

from __future__ import annotations

from pathlib import Path

from tests.episodes.made import epoch_of, numbers, open_loader, write_dataset


def naive(rows: list[int], rank: int, ranks: int, batch_size: int) -> list[list[int]]:
    mine = rows[rank::ranks]
    return [mine[start : start + batch_size] for start in range(0, len(mine), batch_size)]


def test_naive() -> None:
    steps = [len(naive(list(range(17)), rank, 4, 2)) for rank in range(4)]
    assert steps == [3, 2, 2, 2]


def test_ours(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "data", [6] * 17)
    for drop_last, steps, seen in ((True, 2, 16), (False, 3, 17)):
        loaders = [open_loader(dataset, rank=rank, world_size=4, epoch_drop_last=drop_last) for rank in range(4)]
        batches = [epoch_of(opened) for opened in loaders]
        assert [len(of_rank) for of_rank in batches] == [steps] * 4
        assert {batch.x.shape for of_rank in batches for batch in of_rank} == {(2, 12)}
        assert len({row for of_rank in batches for row in numbers(of_rank)}) == seen
