"""A shuffle buffer that a checkpoint does not hold."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from random import Random

from tests.episodes.made import numbers, open_loader, write_dataset


def naive(rows: int, begin: int = 0) -> Iterator[tuple[int, int]]:
    """Pairs of a row and the state after it."""
    buffer: list[int] = []
    random = Random(0)
    for row in range(begin, rows):
        buffer.append(row)
        if len(buffer) == 4:
            yield buffer.pop(random.randrange(4)), row + 1
    yield from ((row, rows) for row in buffer)


def test_naive() -> None:
    assert sorted(row for row, _ in naive(20)) == list(range(20))
    before = list(islice(naive(20), 7))
    after = list(naive(20, begin=before[-1][1]))
    seen = [row for row, _ in before + after]
    assert len(set(range(20)) - set(seen)) == 3  # what the buffer held


def test_ours(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "data", [6] * 20)
    whole = numbers(open_loader(dataset).batches())
    first = open_loader(dataset)
    seen = numbers(first.next_batch() for _ in range(4))
    second = open_loader(dataset)
    second.load_state_dict(first.state_dict())
    seen += numbers(second.next_batch() for _ in range(6))
    assert seen == whole
    assert sorted(seen) == list(range(20))
