"""Lightning with a DataModule whose place is in the checkpoint.

python examples/lightning_fit.py episodes/chats --steps 20 --out /tmp/run
python examples/lightning_fit.py episodes/chats --steps 40 --out /tmp/run --resume
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from niels_gpt.config import TrainingConfig
from niels_gpt.episodes import EpisodeBatch, GPTEpisodeDataLoader
from niels_gpt.trainers.lightning import EpisodeDataModule


class Model(lightning.LightningModule):
    """A bigram model: small enough for any machine."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Embedding(vocab_size, 32), torch.nn.Linear(32, vocab_size))

    def training_step(self, batch: EpisodeBatch, number: int) -> torch.Tensor:
        losses = torch.nn.functional.cross_entropy(self.net(batch.x).flatten(0, 1), batch.y.flatten(), reduction="none")
        return (losses * batch.mask.flatten()).sum() / max(1.0, batch.mask_sum)

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("episodes", type=Path)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--block-size", type=int, default=256)
    parser.add_argument("--out", type=Path, default=Path("lightning-run"))
    parser.add_argument("--resume", action="store_true")
    given = parser.parse_args()

    config = TrainingConfig(batch_size=2, block_size=given.block_size)
    loader = GPTEpisodeDataLoader(config, dataset_dir=given.episodes, pad_token_id=0, packing=True, too_long="head")
    trainer = lightning.Trainer(
        max_steps=given.steps,
        accelerator="cpu",
        logger=False,
        limit_val_batches=0,
        enable_progress_bar=False,
        use_distributed_sampler=False,
        callbacks=[ModelCheckpoint(dirpath=given.out, save_last=True, every_n_train_steps=1)],
    )
    last = str(given.out / "last.ckpt") if given.resume else None
    trainer.fit(Model(loader.vocab_size or 2**17), datamodule=EpisodeDataModule(loader), ckpt_path=last)
    print(f"{trainer.global_step} steps, the next batch begins at {loader.state_dict()}")


if __name__ == "__main__":
    main()
