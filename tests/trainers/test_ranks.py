"""Two processes with gloo: DDP averages what `windows` scaled, and that is the gradient of one large batch."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tests.export.sources import episodes, random_rows  # noqa: E402
from tests.ranks import run_ranks  # noqa: E402
from tests.trainers.test_accumulation import gradient, model, open_with, token_losses  # noqa: E402

RANK = """
from pathlib import Path
import torch
from niels_gpt.trainers.steps import windows
from tests.ranks import join, leave
from tests.trainers.test_accumulation import gradient, model, open_with, token_losses

rank, (folder, out) = join()
net = torch.nn.parallel.DistributedDataParallel(model())
loader = open_with(Path(folder), 2)  # finds its rank by itself
window = next(windows(loader.batches(), 3, world_size=2))
for number, batch in enumerate(window.batches):
    last = number == len(window.batches) - 1
    with torch.enable_grad() if last else net.no_sync():
        window.loss(batch, token_losses(net, batch)).backward()
if rank == 0:
    torch.save(gradient(net), out)
leave()
"""


def test_ddp_over_gloo(tmp_path: Path) -> None:
    folder = episodes(tmp_path / "in", [row for row in random_rows(40, longest=25) if len(row.ids) > 1])
    out = tmp_path / "gradient.pt"
    run_ranks(RANK, tmp_path / "store", folder, out)
    whole = model()
    large = next(open_with(folder, 12).batches())
    ((token_losses(whole, large) * large.mask.flatten()).sum() / large.mask_sum).backward()
    torch.testing.assert_close(torch.load(out), gradient(whole))
