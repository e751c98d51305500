"""Lightning reads the loader itself, whose place is in the checkpoint.

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

import niels_gpt as ng
from niels_gpt.config import TrainingConfig
from niels_gpt.episodes import Batch, GPTEpisodeDataLoader


class Model(lightning.LightningModule):
    """A bigram model: small enough for any machine."""

    def __init__(self, folder: Path, block_size: int, vocab_size: int) -> None:
        super().__init__()
        self.folder, self.block_size = folder, block_size
        self.net = torch.nn.Sequential(torch.nn.Embedding(vocab_size, 32), torch.nn.Linear(32, vocab_size))

    def train_dataloader(self) -> GPTEpisodeDataLoader:
        """Opened here, where Lightning has made the ranks known: each reads its own part of every batch."""
        config = TrainingConfig(batch_size=2, block_size=self.block_size)
        return GPTEpisodeDataLoader(config, dataset_dir=self.folder, pad_token_id=0, packing=True, too_long="head")

    def training_step(self, batch: Batch, number: int) -> torch.Tensor:
        losses = torch.nn.functional.cross_entropy(self.net(batch.x).flatten(0, 1), batch.y.flatten(), reduction="none")
        # Ranks average their gradients: the right loss is a sum over all of them, divided by what all of them train.
        trained = torch.tensor(batch.mask_sum)
        if self.trainer.world_size > 1:
            torch.distributed.all_reduce(trained)
        return (losses * batch.mask.flatten()).sum() * self.trainer.world_size / trained.clamp(min=1.0)

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def main() -> None:
    """Train, or go on from the last checkpoint."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("episodes", type=Path)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--block-size", type=int, default=256)
    parser.add_argument("--out", type=Path, default=Path("lightning-run"))
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--resume", action="store_true")
    given = parser.parse_args()

    trainer = lightning.Trainer(
        max_steps=given.steps,
        accelerator="cpu",
        devices=given.ranks,
        strategy="ddp" if given.ranks > 1 else "auto",
        logger=False,
        limit_val_batches=0,
        enable_progress_bar=False,
        callbacks=[ModelCheckpoint(dirpath=given.out, save_last=True, every_n_train_steps=1)],
    )
    last = str(given.out / "last.ckpt") if given.resume else None
    vocab_size = ng.open(given.episodes).vocab_size or 2**17
    trainer.fit(Model(given.episodes, given.block_size, vocab_size), ckpt_path=last)
    print(f"{trainer.global_step} steps, the next batch begins at {trainer.train_dataloader.state_dict()}")


if __name__ == "__main__":
    main()
