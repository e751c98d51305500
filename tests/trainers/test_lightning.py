"""Lightning keeps the place in its checkpoints, and a resumed fit goes on with the next batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
lightning = pytest.importorskip("lightning", reason="pip install 'niels-gpt[lightning]'")

from lightning.pytorch.callbacks import ModelCheckpoint  # noqa: E402

from niels_gpt.errors import UsageError  # noqa: E402
from niels_gpt.trainers.lightning import EpisodeDataModule  # noqa: E402
from tests.export.sources import VOCABULARY  # noqa: E402
from tests.trainers.small import dataset, packed  # noqa: E402

pytestmark = [pytest.mark.filterwarnings("ignore")]  # of Lightning, about workers and loggers


class Small(lightning.LightningModule):
    """A model of two tokens' context that remembers what it saw."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = torch.nn.Sequential(torch.nn.Embedding(VOCABULARY, 8), torch.nn.Linear(8, VOCABULARY))
        self.seen: list[list[int]] = []
        self.validated = 0

    def _loss(self, batch: dict[str, Any]) -> Any:
        logits = self.net(batch["input_ids"])
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())

    def training_step(self, batch: dict[str, Any], number: int) -> Any:
        self.seen.append(batch["input_ids"].flatten().tolist())
        return self._loss(batch)

    def validation_step(self, batch: dict[str, Any], number: int) -> None:
        self.validated += len(batch["input_ids"])

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(folder: Path, out: Path, *, steps: int, checkpoint: str | None = None) -> Small:
    model = Small()
    trainer = lightning.Trainer(
        max_steps=steps,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        num_sanity_val_steps=0,
        callbacks=[ModelCheckpoint(dirpath=out, every_n_train_steps=1, save_top_k=-1, filename="{step}")],
    )
    trainer.fit(model, datamodule=EpisodeDataModule(packed(folder), convention="torchtitan"), ckpt_path=checkpoint)
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


def test_a_loader_of_other_ranks_is_refused(tmp_path: Path) -> None:
    """One that was opened before Lightning made ranks known would give every rank the same rows."""
    folder = dataset(tmp_path / "in", 30)
    trainer = lightning.Trainer(max_steps=1, accelerator="cpu", logger=False, enable_progress_bar=False)
    with pytest.raises(UsageError, match=r"open for rank 0 of 2, the trainer is rank 0 of 1; open it after"):
        trainer.fit(Small(), datamodule=EpisodeDataModule(packed(folder, rank=0, world_size=2)))
    later = EpisodeDataModule(lambda: packed(folder))
    with pytest.raises(UsageError, match=r"opened when Lightning calls setup\(\)"):
        later.episodes  # noqa: B018
    later.setup("fit")  # without a trainer too, as people do to look at a batch
    assert next(iter(later.train_dataloader())).x.shape == (2, 48)
