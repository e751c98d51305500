"""Ranks with different numbers of batches."""

from __future__ import annotations

from pathlib import Path

from tests.episodes.made import epoch_of
from tests.episodes.rows import numbers, open_loader, write_dataset
from tests.museum.exhibit import Exhibit

EXHIBIT = Exhibit(
    number=24,
    title="One rank is done, the others hang",
    happened="Rows are distributed to ranks, and each makes batches of its own. One has a batch fewer and leaves "
    "the loop; the others wait for its gradients until the job times out, at the end of the epoch.",
    hidden="The curve is perfect up to the last step.",
    caught="Global batches of fixed shape are made before they are divided among ranks, so all ranks have the same "
    "number of steps. The last batch is dropped, or filled with rows of weight 0, by choice. There is no rule, "
    "because this concerns steps and not data.",
    rules=(),
    threads=("axolotl-ai-cloud/axolotl#461", "Lightning-AI/pytorch-lightning#20404", "mosaicml/composer#3415"),
)


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
