"""Two processes with gloo: what DDP averages, and the losses that are added up, are those of one large batch."""

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
total = torch.zeros(())
for number, batch in enumerate(window.batches):
    last = number == len(window.batches) - 1
    with torch.enable_grad() if last else net.no_sync():
        loss = window.loss(batch, token_losses(net, batch))
        loss.backward()
        total += loss.detach() / 2  # the mean over ranks, as DDP takes it of gradients
torch.distributed.all_reduce(total)
if rank == 0:
    torch.save({"gradient": gradient(net), "loss": total, "mask_sum": window.mask_sum}, out)
leave()
"""


@pytest.mark.parametrize("weighted", [False, True])
def test_ddp_over_gloo(tmp_path: Path, weighted: bool) -> None:
    rows = [row for row in random_rows(40, longest=25, weighted=weighted) if len(row.ids) > 1]
    folder = episodes(tmp_path / "in", rows, mask_dtype="<f4" if weighted else "u1")
    out = tmp_path / "gradient.pt"
    run_ranks(RANK, tmp_path / "store", folder, out)
    whole = model()
    large = next(open_with(folder, 12).batches())
    loss = (token_losses(whole, large) * large.mask.flatten()).sum() / large.mask_sum
    loss.backward()
    found = torch.load(out)
    torch.testing.assert_close(found["gradient"], gradient(whole))
    torch.testing.assert_close(found["loss"], loss.detach())
    assert found["mask_sum"] == pytest.approx(large.mask_sum)
