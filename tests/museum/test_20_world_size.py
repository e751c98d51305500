"""Every rank keeps its own place in its own rows, and the number of ranks changes."""

from __future__ import annotations

from pathlib import Path

from tests.episodes.made import numbers, open_loader, write_dataset


def naive(rows: list[int], rank: int, ranks: int, done: int) -> list[int]:
    return rows[rank::ranks][done:]


def test_naive() -> None:
    rows = list(range(24))
    seen = [row for rank in range(2) for row in naive(rows, rank, 2, 0)[:6]]  # twelve of them, on two ranks
    rest = [row for rank in range(4) for row in naive(rows, rank, 4, 3)]  # the other twelve, on four
    assert sorted(seen + rest) == rows  # by luck: 12 divides evenly
    seen = [row for rank in range(2) for row in naive(rows, rank, 2, 0)[:5]]
    rest = [row for rank in range(4) for row in naive(rows, rank, 4, 5 * 2 // 4)]
    assert sorted(seen + rest) != rows
    assert set(seen) & set(rest)  # rows that come twice


def test_ours(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "data", [6] * 24)
    whole = numbers(open_loader(dataset, batch_size=4).batches())
    two = [open_loader(dataset, batch_size=2, rank=rank, world_size=2) for rank in range(2)]
    four = [open_loader(dataset, batch_size=1, rank=rank, world_size=4) for rank in range(4)]
    seen = [row for _ in range(2) for rank in two for row in numbers([rank.next_batch()])]
    for rank in four:
        rank.load_state_dict(two[0].state_dict())
    seen += [row for _ in range(4) for rank in four for row in numbers([rank.next_batch()])]
    assert seen == whole
    assert sorted(seen) == list(range(24))
