"""Lightning's own `strategy="ddp"` on two processes with gloo: parts that add up, and an exact return in mid-epoch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("lightning", reason="pip install 'niels-gpt[lightning]'")

from tests.conftest import REPOSITORY  # noqa: E402
from tests.ports import free_port  # noqa: E402
from tests.trainers.small import dataset, packed  # noqa: E402

STOP, STEPS = 3, 9

# Lightning starts the other rank by running this file once more; both do all three fits, one after another.
SCRIPT = """
import json, sys
from pathlib import Path
import lightning, torch
from lightning.pytorch.callbacks import ModelCheckpoint
from tests.ranks import leave
from tests.trainers.test_lightning import Small

folder, out, stop, steps = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
torch.set_num_threads(1)


def fit(name, steps, checkpoint=None):
    model = Small(folder)
    trainer = lightning.Trainer(
        max_steps=steps, accelerator="cpu", devices=2, strategy="ddp", logger=False, num_sanity_val_steps=0,
        use_distributed_sampler=False, enable_progress_bar=False, enable_model_summary=False,
        callbacks=[ModelCheckpoint(dirpath=out / name, every_n_train_steps=1, save_top_k=-1, filename="{step}")],
    )
    trainer.fit(model, ckpt_path=checkpoint)
    weights = torch.cat([weight.detach().flatten() for weight in model.parameters()])
    return trainer.global_rank, {"seen": model.seen, "validated": model.validated, "weights": weights.tolist()}


whole = fit("whole", steps)
first = fit("parts", stop)
rest = fit("parts", steps, str(out / "parts" / f"step={stop}.ckpt"))
told = {"whole": whole[1], "first": first[1], "rest": rest[1]}
(out / f"rank{whole[0]}.json").write_text(json.dumps(told))
leave()
"""


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """The dataset, and what each of two ranks saw."""
    folder = dataset(tmp_path_factory.mktemp("data") / "in", 60)
    out = tmp_path_factory.mktemp("out")
    script = out / "run.py"
    script.write_text(SCRIPT)
    port = str(free_port())
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(script), str(folder), str(out), str(STOP), str(STEPS)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return folder, [json.loads((out / f"rank{rank}.json").read_text()) for rank in range(2)]


def rows(flat: list[int]) -> list[list[int]]:
    """A batch that a model noted down, as its rows."""
    return torch.tensor(flat).view(-1, 48).tolist()


def test_each_rank_has_its_own_part_of_the_global_batch(ranks: tuple[Path, list[dict[str, Any]]]) -> None:
    """Two ranks' rows of a step, one after the other, are the batch of one process with twice the batch size."""
    folder, told = ranks
    per_epoch = packed(folder, world_size=2, rank=0).steps_per_epoch()
    assert STOP < per_epoch < STEPS, "the first run stops in the middle of an epoch, and another epoch comes"
    alone = packed(folder, batch_size=4)
    for step in range(STEPS):
        both = [rows(rank["whole"]["seen"][step]) for rank in told]
        assert both[0] != both[1]
        assert both[0] + both[1] == alone.next_batch().x.tolist()


def test_every_rank_goes_on_with_the_next_batch(ranks: tuple[Path, list[dict[str, Any]]]) -> None:
    for rank in ranks[1]:
        assert len(rank["first"]["seen"]) == STOP
        assert rank["first"]["seen"] + rank["rest"]["seen"] == rank["whole"]["seen"]
        assert rank["rest"]["weights"] == rank["whole"]["weights"], "to the last bit"
        assert rank["whole"]["weights"] == ranks[1][0]["whole"]["weights"]


def test_the_val_split_is_shared_out_too(ranks: tuple[Path, list[dict[str, Any]]]) -> None:
    folder, told = ranks
    steps = len(list(packed(folder, rank=0, world_size=2).evaluation_batches()))
    epochs = told[0]["whole"]["validated"] // (2 * steps)
    assert epochs >= 1
    assert [rank["whole"]["validated"] for rank in told] == [2 * steps * epochs] * 2
