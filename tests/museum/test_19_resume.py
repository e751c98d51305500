"""A shuffle buffer that a checkpoint does not hold."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from random import Random

from tests.episodes.rows import numbers, open_loader, write_dataset
from tests.museum.exhibit import Exhibit

EXHIBIT = Exhibit(
    number=19,
    title="Resuming repeats rows and skips others",
    happened="Rows are shuffled in a buffer while they are read. A checkpoint stores how far reading had come, but "
    "not what was in the buffer, so those rows are never trained; with prefetching workers others are trained twice. "
    "Some loaders began again at row 0.",
    hidden="Every batch is valid. No average shows that some rows came twice and others never.",
    caught="The row at each position is computed from seed and epoch, so a checkpoint is one number and there is no "
    "buffer. tests/episodes/test_resume.py resumes twice, at the end of an epoch, and with workers. There is no rule, "
    "because each batch is valid.",
    rules=(),
    threads=("huggingface/datasets#8308", "huggingface/datasets#7901", "Lightning-AI/litData#316"),
)


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
