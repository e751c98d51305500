"""Gradient accumulation in which every trained token counts alike, wherever it lies.

The mean of micro-batches' means gives a token of a short answer more weight than one of a long answer. The right loss
is one sum divided by one number, both over all micro-batches of all ranks::

    micro-batch      1        2                 mean of means    (2/1 + 12/4) / 2 = 2.5
    loss sum         2        12                the right loss   (2 + 12) / (1 + 4) = 2.8
    trained tokens   1        4
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

import torch

from niels_gpt.episodes.batch import EpisodeBatch
from niels_gpt.errors import UsageError


@dataclass(frozen=True, eq=False)
class Window:
    """The micro-batches of one optimizer step.

    Attributes:
        batches: this rank's.
        mask_sum: the sum of the mask over all batches of all ranks: what the summed loss is divided by.
        world_size: how many ranks average their gradients.
    """

    batches: list[EpisodeBatch]
    mask_sum: float
    world_size: int = 1

    def loss(self, batch: EpisodeBatch, token_losses: torch.Tensor) -> torch.Tensor:
        """What `backward` is called on for one micro-batch; over the window they add up to the right loss.

        DDP and FSDP average gradients over ranks, so the sum is multiplied by their number. A window that trains
        nothing gives 0.

        Args:
            token_losses: unreduced, one per target, shape (B, T) or (B * T,).
        """
        summed = (token_losses.view(-1) * batch.mask.view(-1)).sum()
        return summed * (self.world_size / self.mask_sum if self.mask_sum else 0.0)


def windows(batches: Iterable[EpisodeBatch], size: int, *, world_size: int = 1) -> Iterator[Window]:
    """Batches in windows of `size`; the last one may have fewer. Holds one window at a time.

    Args:
        world_size: how many ranks average their gradients; each batch then says how much is trained on all of them.

    Raises:
        UsageError: `size` below 1, or batches that do not know of the other ranks (`global_counts=False`).
    """
    if size < 1:
        raise UsageError(f"a window of {size} batches; expected at least 1")
    iterator = iter(batches)
    while taken := list(islice(iterator, size)):
        sums = [batch.mask_sum if world_size == 1 else batch.global_mask_sum for batch in taken]
        if any(known is None for known in sums):
            raise UsageError("the batches do not count all ranks' tokens; open the loader with global_counts=True")
        yield Window(taken, sum(known for known in sums if known is not None), world_size)
