"""Two processes with gloo: DDP averages what `windows` scaled, and that is the gradient of one large batch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tests.conftest import REPOSITORY  # noqa: E402
from tests.export.sources import episodes, random_rows  # noqa: E402
from tests.trainers.test_accumulation import gradient, model, open_with, token_losses  # noqa: E402

# Everything that holds the process group lives in `train`, and both ranks are done with it before either gives it up:
# a reducer that is still alive when the interpreter ends, or a store whose server has gone, aborts the process
# ("terminate called without an active exception"), most often with the CUDA build of PyTorch.
RANK = """
import sys
from pathlib import Path
import torch
import torch.distributed as dist
from niels_gpt.trainers.accumulation import windows
from tests.trainers.test_accumulation import model, open_with, token_losses

folder, store, rank, out = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)


def train():
    net = torch.nn.parallel.DistributedDataParallel(model())
    loader = open_with(folder, 2)  # finds its rank by itself
    window = next(windows(loader.batches(), 3, world_size=2))
    for number, batch in enumerate(window.batches):
        last = number == len(window.batches) - 1
        with torch.enable_grad() if last else net.no_sync():
            window.loss(batch, token_losses(net, batch)).backward()
    return torch.cat([p.grad.flatten() for p in net.parameters()])


gradient = train()
if rank == 0:
    torch.save(gradient, out)
dist.barrier()
dist.destroy_process_group()
"""


def test_ddp_over_gloo(tmp_path: Path) -> None:
    folder = episodes(tmp_path / "in", [row for row in random_rows(40, longest=25) if len(row.ids) > 1])
    store = tmp_path / "store"
    out = tmp_path / "gradient.pt"
    ranks = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", RANK, str(folder), str(store), str(rank), str(out)], cwd=REPOSITORY
        )
        for rank in range(2)
    ]
    assert [rank.wait(120) for rank in ranks] == [0, 0]
    whole = model()
    large = next(open_with(folder, 12).batches())
    ((token_losses(whole, large) * large.mask.flatten()).sum() / large.mask_sum).backward()
    torch.testing.assert_close(torch.load(out), gradient(whole))
