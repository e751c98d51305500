"""accelerate: a loader knows its rank and has a state: it is registered for checkpoints, and `prepare` leaves it."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("accelerate")
import accelerate
import torch

import niels_gpt as ng
from niels_gpt.episodes import Batch, Loader
from tests.trainers.small import dataset

VOCABULARY = 300


def run(folder: Path, accelerator: Any, steps: int, *, workers: int) -> tuple[Loader[Batch], list[list[int]]]:
    """Some steps of training, resumed if a checkpoint is there; the numbers of the episodes of each."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Embedding(VOCABULARY, 8), torch.nn.Linear(8, VOCABULARY))
    place = {"rank": accelerator.process_index, "world_size": accelerator.num_processes}
    loader = ng.loader(
        folder / "in", batch_size=2, sequence_length=48, pad_token_id=0, epochs=None, num_workers=workers, **place
    )
    # As programs do that pass everything to `prepare`: it wraps torch's loaders, and would shard their batches again.
    model, optimizer, prepared = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), loader)
    assert prepared is loader
    accelerator.register_for_checkpointing(loader)
    if (folder / "state").exists():
        accelerator.load_state(str(folder / "state"))
    seen = []
    for batch in islice(prepared, steps):
        losses = torch.nn.functional.cross_entropy(model(batch.x).flatten(0, 1), batch.y.flatten(), reduction="none")
        accelerator.backward((losses * batch.mask.flatten()).sum() / max(batch.mask_sum, 1))
        optimizer.step()
        optimizer.zero_grad()
        seen.append(batch.episodes.tolist())
    return loader, seen


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_a_run_that_is_resumed_reads_on_where_it_stopped(tmp_path: Path, workers: int) -> None:
    dataset(tmp_path / "in")
    _, expected = run(tmp_path, accelerate.Accelerator(cpu=True), 11, workers=workers)
    accelerator = accelerate.Accelerator(cpu=True)
    loader, first = run(tmp_path, accelerator, 4, workers=workers)
    accelerator.save_state(str(tmp_path / "state"))
    state = loader.state_dict()
    resumed, rest = run(tmp_path, accelerate.Accelerator(cpu=True), 7, workers=workers)
    assert first + rest == expected
    assert resumed.rows_read() == 22 > state["position"] > 0
