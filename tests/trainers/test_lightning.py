"""Lightning keeps the place in its checkpoints, and a resumed fit goes on with the next batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
lightning = pytest.importorskip("lightning", reason="pip install 'niels-gpt[lightning]'")

from lightning.pytorch.callbacks import ModelCheckpoint  # noqa: E402

from niels_gpt.episodes import Batch  # noqa: E402
from niels_gpt.episodes.loader import Places  # noqa: E402
from niels_gpt.trainers.fields import fields  # noqa: E402
from tests.export.sources import VOCABULARY  # noqa: E402
from tests.trainers.small import dataset, packed  # noqa: E402

pytestmark = [pytest.mark.filterwarnings("ignore")]  # of Lightning, about workers and loggers


class Small(lightning.LightningModule):
    """A model of two tokens' context that remembers what it saw; it opens the loader where Lightning knows its rank."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        torch.manual_seed(0)
        self.net = torch.nn.Sequential(torch.nn.Embedding(VOCABULARY, 8), torch.nn.Linear(8, VOCABULARY))
        self.seen: list[list[int]] = []
        self.validated = 0

    def train_dataloader(self) -> Any:
        return packed(self.folder)

    def val_dataloader(self) -> Any:
        source = packed(self.folder).batch_source("val").in_order()
        return torch.utils.data.DataLoader(source, sampler=Places(source, epochs=1), batch_size=None)

    def training_step(self, batch: Batch, number: int) -> Any:
        found = fields(batch, "torchtitan")
        self.seen.append(found["input_ids"].flatten().tolist())
        logits = self.net(found["input_ids"])
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), found["labels"].flatten())

    def validation_step(self, batch: Batch, number: int) -> None:
        self.validated += len(batch.x)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(folder: Path, out: Path, *, steps: int, checkpoint: str | None = None) -> Small:
    model = Small(folder)
    trainer = lightning.Trainer(
        max_steps=steps,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        callbacks=[ModelCheckpoint(dirpath=out, every_n_train_steps=1, save_top_k=-1, filename="{step}")],
    )
    trainer.fit(model, ckpt_path=checkpoint)
    return model


@pytest.mark.parametrize("stop", [4, 13, 20])
def test_resuming_goes_on_with_the_next_batch(tmp_path: Path, stop: int) -> None:
    """In the first epoch, in the second, and in a third."""
    folder = dataset(tmp_path / "in", 60)
    assert 4 < packed(folder).steps_per_epoch() < 13
    whole = fit(folder, tmp_path / "whole", steps=stop + 9)
    first = fit(folder, tmp_path / "parts", steps=stop)
    rest = fit(folder, tmp_path / "parts", steps=stop + 9, checkpoint=str(tmp_path / "parts" / f"step={stop}.ckpt"))
    assert first.seen + rest.seen == whole.seen
    for one, other in zip(rest.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    assert whole.validated > 0
