"""An epoch as a DataLoader (`EpochLoader`), and gradient accumulation by trained tokens (`windows`).

A trainer that skips steps by number when it resumes, as `transformers.Trainer` does, skips them without reading
anything.

In gradient accumulation, the mean of micro-batches' means gives a token of a short answer more weight than one of a
long answer. The right loss is one sum divided by one number, both over all micro-batches of all ranks::

    micro-batch      1        2                 mean of means    (2/1 + 12/4) / 2 = 2.5
    loss sum         2        12                the right loss   (2 + 12) / (1 + 4) = 2.8
    trained tokens   1        4
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

from niels_gpt.episodes.batch import Batch
from niels_gpt.episodes.episode_loader import GPTEpisodeDataLoader
from niels_gpt.episodes.order.states import Place
from niels_gpt.episodes.settings import ranks
from niels_gpt.episodes.source import Source
from niels_gpt.errors import UsageError
from niels_gpt.required_torch import torch


def check_ranks(episodes: GPTEpisodeDataLoader, rank: int, world_size: int) -> None:
    """Check that the loader was opened for its trainer's rank.

    Raises:
        UsageError: it is not, and several ranks would train on the same rows.
    """
    if (episodes.rank, episodes.world_size) != (rank, world_size):
        raise UsageError(
            f"the loader is open for rank {episodes.rank} of {episodes.world_size}, the trainer is rank {rank} of "
            f"{world_size}; open it after the ranks are known, or pass it rank={rank}, world_size={world_size}"
        )


class EpochPlaces(torch.utils.data.Sampler[list[Place]]):
    """The places of the steps of the epoch that `set_epoch` sets, each as a batch of one item.

    Steps are counted through all epochs, and a place is computed from a number of steps: nothing is read to skip some.
    """

    def __init__(self, source: Source[Batch]) -> None:
        self._source, self._epoch = source, 0

    def set_epoch(self, epoch: int) -> None:
        """Trainers call this before every epoch."""
        self._epoch = epoch

    def __len__(self) -> int:
        return self._source.steps_per_epoch()

    def __iter__(self) -> Iterator[list[Place]]:
        # With 5 steps an epoch, epoch 2 begins at step 10.
        first = self._epoch * len(self)
        return iter([self._source.skip(Place(), step)] for step in range(first, first + len(self)))


class EpochLoader(torch.utils.data.DataLoader[Batch]):
    """A DataLoader over one epoch, with one `Batch` a step, converted by `convert`.

    Args:
        options: of `DataLoader`: num_workers, prefetch_factor, pin_memory, ...
    """

    def __init__(self, batch_source: Source[Batch], convert: Callable[[Batch], Any], **options: Any) -> None:
        self._places = EpochPlaces(batch_source)
        # A batch of the sampler is one place, because an item of the source is a whole batch already.
        super().__init__(batch_source, batch_sampler=self._places, collate_fn=partial(_only, convert), **options)

    def set_epoch(self, epoch: int) -> None:
        """Trainers call this before every epoch."""
        self._places.set_epoch(epoch)


def _only(convert: Callable[[Batch], Any], batches: list[Batch]) -> Any:
    """A `collate_fn` for lists of one item, which is a whole batch already."""
    (batch,) = batches
    return convert(batch)


@dataclass(frozen=True, eq=False)
class Window:
    """The micro-batches of one optimizer step.

    Attributes:
        batches: this rank's.
        mask_sum: the sum of the mask over all batches of all ranks: what the summed loss is divided by.
        world_size: how many ranks average their gradients.
    """

    batches: list[Batch]
    mask_sum: float
    world_size: int = 1

    def loss(self, batch: Batch, token_losses: torch.Tensor) -> torch.Tensor:
        """The loss to call `backward` on for one micro-batch; over window and ranks they add up to the right loss.

        DDP and FSDP average gradients over ranks, so the sum is multiplied by their number. The loss of a window
        without trained tokens is 0.

        Args:
            token_losses: unreduced, one per target, shape (B, T) or (B * T,).
        """
        # Two ranks with the gradients g and h: DDP's average is (g + h) / 2, and the right one (g + h) / mask_sum.
        summed = (token_losses.view(-1) * batch.mask.view(-1)).sum()
        return summed * (self.world_size / self.mask_sum if self.mask_sum else 0.0)


def windows(batches: Iterable[Batch], size: int, *, world_size: int = 1) -> Iterator[Window]:
    """Batches in windows of `size`; the last one may have fewer. One window is held in memory at a time.

    Args:
        world_size: how many ranks average their gradients; above 1, the mask is summed over them by one `all_reduce` a
            window, so all of them must read their windows together.

    Raises:
        UsageError: `size` is below 1, or torch.distributed is not initialised for `world_size` ranks.
    """
    if size < 1:
        raise UsageError(f"a window of {size} batches; expected at least 1")
    if world_size > 1 and (found := ranks(None, None)[1]) != world_size:
        raise UsageError(f"world_size is {world_size}, torch.distributed has {found}; expected one number")
    iterator = iter(batches)
    while taken := list(islice(iterator, size)):
        total = torch.tensor(sum(batch.mask_sum for batch in taken), dtype=torch.float64)
        if world_size > 1:
            if torch.distributed.get_backend() == "nccl":  # which reduces what is on a GPU
                total = total.cuda()
            torch.distributed.all_reduce(total)
        yield Window(taken, total.item(), world_size)
