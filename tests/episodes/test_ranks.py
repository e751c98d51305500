"""Rank and world size: from arguments or torch.distributed; how ranks share batches is in test_reference."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from niels_gpt.episodes.settings import ranks
from niels_gpt.errors import UsageError
from tests.episodes.made import open_loader, types_for, write_dataset
from tests.ranks import run_ranks

N = 41  # a prime: no number of ranks divides it
LENGTHS = [2 + (7 * number) % 11 for number in range(N)]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks") / "data"
    return write_dataset(folder, LENGTHS, type=types_for(LENGTHS))


@pytest.mark.parametrize(("rank", "world"), [(0, None), (None, 2), (2, 2), (-1, 2), (0, 0), (1, 1)])
def test_ranks_that_cannot_be(rank: int | None, world: int | None) -> None:
    with pytest.raises(UsageError, match="world_size is 0" if world == 0 else "rank is"):
        ranks(rank, world)


RANK = """
import json
import torch.distributed as dist
from tests.episodes.made import open_loader
from tests.ranks import join, leave

rank, (dataset,) = join()
loader = open_loader(dataset, batch_size=4, epoch_drop_last=False)
assert (loader.rank, loader.world_size) == (rank, 2)
seen = [[batch.x.tolist(), batch.mask.tolist(), batch.mask_sum] for batch in loader.batches()]
everything = [None] * 2
dist.all_gather_object(everything, seen)
if rank == 0:
    print(json.dumps(everything))
leave()
"""


def test_two_processes_of_torch_distributed(dataset: Path, tmp_path: Path) -> None:
    """Rank and world size are taken from it; both together see what one process sees."""
    printed, _ = run_ranks(RANK, tmp_path / "store", dataset)
    of_rank = json.loads(printed.splitlines()[-1])
    alone = list(open_loader(dataset, batch_size=8, epoch_drop_last=False).batches())
    assert len(of_rank[0]) == len(of_rank[1]) == len(alone)
    for first, second, batch in zip(*of_rank, alone, strict=True):
        assert first[0] + second[0] == batch.x.tolist()
        assert first[1] + second[1] == batch.mask.tolist()
        assert first[2] + second[2] == batch.mask_sum
