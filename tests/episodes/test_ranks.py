"""Ranks share every global batch: nothing twice, nothing lost, the same steps, the same loss."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from niels_gpt.episodes.batch import Batch
from niels_gpt.episodes.episode_loader import GPTEpisodeDataLoader
from niels_gpt.episodes.settings import ranks
from niels_gpt.errors import UsageError
from tests.episodes.rows import numbers, open_loader, types_for, write_dataset
from tests.ranks import run_ranks

N = 41  # a prime: no number of ranks divides it
LENGTHS = [2 + (7 * number) % 11 for number in range(N)]
GLOBAL = 8

KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "packed": {"packing": True},
    "weighted": {"weight_by": "type", "weights": {"chat": 3, "code": 1, "math": 1}},
    "random": {"batch_sampling_mode": "random"},
}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks") / "data"
    return write_dataset(folder, LENGTHS, type=types_for(LENGTHS))


def of_ranks(dataset: Path, world: int, *, global_rows: int = GLOBAL, **options: Any) -> list[GPTEpisodeDataLoader]:
    """A loader for every rank, the global batch being the same for any number of them."""
    size = global_rows // world
    return [open_loader(dataset, batch_size=size, rank=rank, world_size=world, **options) for rank in range(world)]


def together(batches: list[Batch]) -> dict[str, Any]:
    """The global batch from those of all ranks."""
    names = [name for name in ("x", "y", "mask", "segment_ids", "position_ids") if name in batches[0].tensors()]
    joined: dict[str, Any] = {name: torch.cat([batch.tensors()[name] for batch in batches]).tolist() for name in names}
    sums = sum(batch.num_trained_tokens for batch in batches), sum(batch.mask_sum for batch in batches)
    return {**joined, "episodes": numbers(batches), "state": batches[0].state, "sums": sums}


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("global_rows", [8, 24, 40])
def test_every_rank_takes_as_many_steps(dataset: Path, global_rows: int, drop_last: bool) -> None:
    """Also where nothing is left for the last ranks: they get padding."""
    loaders = of_ranks(dataset, 8, global_rows=global_rows, epoch_drop_last=drop_last)
    assert len({loader.steps_per_epoch() for loader in loaders}) == 1
    epochs = [list(loader.batches()) for loader in loaders]
    assert {len(epoch) for epoch in epochs} == {loaders[0].steps_per_epoch()}
    shapes = {batch.x.shape for epoch in epochs for batch in epoch}
    assert shapes == {(global_rows // 8, 12)}
    if not drop_last:
        last = epochs[-1][-1]
        assert last.num_tokens == last.num_trained_tokens == last.mask_sum == 0


@pytest.mark.parametrize(("rank", "world"), [(0, None), (None, 2), (2, 2), (-1, 2), (0, 0), (1, 1)])
def test_ranks_that_cannot_be(rank: int | None, world: int | None) -> None:
    with pytest.raises(UsageError, match="world_size is 0" if world == 0 else "rank is"):
        ranks(rank, world)


RANK = """
import json
import torch.distributed as dist
from tests.episodes.rows import open_loader
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


class Tiny(torch.nn.Module):
    """Too small to learn, large enough to have gradients."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.embed = torch.nn.Embedding(100 * N + 20, 6, dtype=torch.float64)
        self.out = torch.nn.Linear(6, 100, dtype=torch.float64)

    def losses(self, batch: Batch) -> torch.Tensor:
        """The loss of every target, shape (B, T)."""
        logits = self.out(self.embed(batch.x))
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch.y.flatten() % 100, reduction="none").view(
            batch.y.shape
        )


def gradients(steps: list[list[Batch]], *, naive: bool) -> torch.Tensor:
    """All gradients after one step over accumulated batches (the outer list) of all ranks (the inner ones)."""
    model = Tiny()
    whole = sum(batch.mask_sum for step in steps for batch in step)
    for step in steps:
        for batch in step:
            weighted = (batch.mask * model.losses(batch)).sum()
            loss = weighted / batch.mask_sum / (len(steps) * len(step)) if naive else weighted / whole
            loss.backward()  # type: ignore[no-untyped-call]
    return torch.cat([value.grad.flatten() for value in model.parameters() if value.grad is not None])


@pytest.mark.parametrize("packing", [False, True])
def test_the_gradient_is_that_of_one_large_batch(dataset: Path, packing: bool) -> None:
    """16 rows at once, or 4 rows on each of 2 ranks twice; the mean of means is something else."""
    whole = open_loader(dataset, batch_size=16 if not packing else 8, epoch_drop_last=False, packing=packing)
    size = whole.config.batch_size // 4  # type: ignore[operator]
    parts = [
        open_loader(dataset, batch_size=size, rank=rank, world_size=2, epoch_drop_last=False, packing=packing)
        for rank in range(2)
    ]
    expected = gradients([[whole.next_batch()]], naive=False)
    steps = [[loader.next_batch() for loader in parts] for _ in range(2)]
    found = gradients(steps, naive=False)
    assert expected.abs().max() > 1e-3
    assert torch.allclose(found, expected, rtol=1e-9, atol=1e-15)
    assert not torch.allclose(gradients(steps, naive=True), expected, rtol=1e-2, atol=1e-6)
