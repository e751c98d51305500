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


def test_ranks_have_their_parts_and_go_on_with_the_next_batch(tmp_path: Path) -> None:
    """Two ranks' rows of a step, one after the other, are the batch of one process with twice the batch size."""
    folder, script = dataset(tmp_path / "in", 60), tmp_path / "run.py"
    script.write_text(SCRIPT)
    variables = {"PYTHONPATH": str(REPOSITORY), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    command = [sys.executable, "-W", "ignore", *map(str, (script, folder, tmp_path, STOP, STEPS))]
    done = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]
    ranks: list[dict[str, Any]] = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2)]
    per_epoch = packed(folder, world_size=2, rank=0).steps_per_epoch()
    assert STOP < per_epoch < STEPS, "the first run stops in the middle of an epoch, and another epoch comes"
    alone = packed(folder, batch_size=4)
    for step in range(STEPS):
        first, second = (torch.tensor(rank["whole"]["seen"][step]).view(-1, 48).tolist() for rank in ranks)
        assert first != second
        assert first + second == alone.next_batch().x.tolist()
    for rank in ranks:
        assert len(rank["first"]["seen"]) == STOP
        assert rank["first"]["seen"] + rank["rest"]["seen"] == rank["whole"]["seen"]
        assert rank["rest"]["weights"] == rank["whole"]["weights"] == ranks[0]["whole"]["weights"], "to the last bit"
    validated = 2 * len(list(packed(folder, rank=0, world_size=2).evaluation_batches()))
    epochs = ranks[0]["whole"]["validated"] // validated
    assert epochs >= 1
    assert [rank["whole"]["validated"] for rank in ranks] == [validated * epochs] * 2
