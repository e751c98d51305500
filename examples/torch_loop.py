"""A training loop in plain torch: packed rows, accumulation by trained tokens, exact resuming.

python examples/torch_loop.py episodes/chats --steps 20 --checkpoint /tmp/loop.pt
Run it again with more steps, and it goes on with the batch that would have come next.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import torch

from niels_gpt.config import TrainingConfig
from niels_gpt.episodes import Batch, GPTEpisodeDataLoader
from niels_gpt.trainers.steps import windows


class Model(torch.nn.Module):
    """A bigram model: small enough for any machine."""

    def __init__(self, vocab_size: int, width: int = 32) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(vocab_size, width)
        self.head = torch.nn.Linear(width, vocab_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.embed(x))


def token_losses(model: Model, batch: Batch) -> torch.Tensor:
    """One loss per target; `windows` weighs and divides them."""
    return torch.nn.functional.cross_entropy(model(batch.x).flatten(0, 1), batch.y.flatten(), reduction="none")


def endless(loader: GPTEpisodeDataLoader) -> Iterator[Batch]:
    """Batches from where the loader stands, epoch after epoch."""
    while True:
        yield loader.next_batch()


def main() -> None:
    """Train, and save after every step what the next run goes on with."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("episodes", type=Path)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--accumulate", type=int, default=4)
    parser.add_argument("--block-size", type=int, default=256)
    parser.add_argument("--checkpoint", type=Path, default=Path("loop.pt"))
    given = parser.parse_args()

    config = TrainingConfig(batch_size=2, block_size=given.block_size)
    loader = GPTEpisodeDataLoader(config, dataset_dir=given.episodes, pad_token_id=0, packing=True, too_long="head")
    model = Model(loader.vocab_size or 2**17)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    done = 0
    if given.checkpoint.is_file():
        saved = torch.load(given.checkpoint)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["data"])
        done = saved["steps"]
    for step, window in zip(range(done, given.steps), windows(endless(loader), given.accumulate), strict=False):
        total = 0.0
        for batch in window.batches:
            loss = window.loss(batch, token_losses(model, batch))
            loss.backward()
            total += loss.item()
        optimizer.step()
        optimizer.zero_grad()
        # The state of the last batch that was used: the iterator may be further.
        saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "steps": step + 1}
        torch.save(saved | {"data": window.batches[-1].state}, given.checkpoint)
        print(f"step {step} loss {total:.4f} trained tokens {window.mask_sum:.0f}")


if __name__ == "__main__":
    main()
