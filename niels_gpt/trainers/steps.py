"""Batches by step number (`StepBatches`, `EpochLoader`), and gradient accumulation by trained tokens (`windows`).

The batch of a step is a pure function of its number, so a trainer that skips steps by number, as
`transformers.Trainer` does when it resumes, skips them without reading anything.

In gradient accumulation, the mean of micro-batches' means gives a token of a short answer more weight than one of a
long answer. The right loss is one sum divided by one number, both over all micro-batches of all ranks::

    micro-batch      1        2                 mean of means    (2/1 + 12/4) / 2 = 2.5
    loss sum         2        12                the right loss   (2 + 12) / (1 + 4) = 2.8
    trained tokens   1        4
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from niels_gpt.episodes.batch import EpisodeBatch
from niels_gpt.episodes.batch_source import BatchSource
from niels_gpt.episodes.loader import GPTEpisodeDataLoader
from niels_gpt.episodes.order.states import Place
from niels_gpt.episodes.settings import ranks
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


class StepBatches(torch.utils.data.Dataset[EpisodeBatch]):
    """A map-style dataset: item i is the batch of step i, counted through all epochs, on the CPU.

    Two epochs of 3 steps are the items 0 1 2 and 3 4 5. The length is that of one epoch, but any item can be read.
    """

    def __init__(self, batch_source: BatchSource) -> None:
        self.batch_source = batch_source
        self._steps = batch_source.steps_per_epoch()

    def __len__(self) -> int:
        return self._steps

    def __getitem__(self, step: int) -> EpisodeBatch:
        """The batch of a step; no earlier step is read.

        Raises:
            UsageError: the step is below 0.
        """
        if step < 0:
            raise UsageError(f"step {step}; steps are counted from 0")
        # From the beginning of the run: a place is computed from a number of steps, nothing is read for it.
        return self.batch_source.batch(self.batch_source.skip(Place(), step))[0]


class EpochSteps(torch.utils.data.Sampler[list[int]]):
    """The steps of the epoch that `set_epoch` sets, each as a batch of one item."""

    def __init__(self, steps: int) -> None:
        self._steps, self._epoch = steps, 0

    def set_epoch(self, epoch: int) -> None:
        """Trainers call this before every epoch."""
        self._epoch = epoch

    def __len__(self) -> int:
        return self._steps

    def __iter__(self) -> Iterator[list[int]]:
        # Steps are counted through all epochs: with 5 steps an epoch, epoch 2 begins at 10.
        first = self._epoch * self._steps
        return iter([step] for step in range(first, first + self._steps))


class EpochLoader(torch.utils.data.DataLoader[EpisodeBatch]):
    """A DataLoader over one epoch, with one `EpisodeBatch` a step, converted by `convert`.

    Args:
        options: of `DataLoader`: num_workers, prefetch_factor, pin_memory, ...
    """

    def __init__(self, batch_source: BatchSource, convert: Callable[[EpisodeBatch], Any], **options: Any) -> None:
        dataset = StepBatches(batch_source)
        self._epoch_steps = EpochSteps(len(dataset))
        # A batch of the sampler is one step, because an item of the dataset is a whole batch already.
        super().__init__(dataset, batch_sampler=self._epoch_steps, collate_fn=_SingleBatch(convert), **options)

    def set_epoch(self, epoch: int) -> None:
        """Trainers call this before every epoch."""
        self._epoch_steps.set_epoch(epoch)


class _SingleBatch:
    """A `collate_fn` for lists of one item, which is a whole batch already."""

    def __init__(self, convert: Callable[[EpisodeBatch], Any]) -> None:
        self._convert = convert

    def __call__(self, batches: list[EpisodeBatch]) -> Any:
        (batch,) = batches
        return self._convert(batch)


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
        """The loss to call `backward` on for one micro-batch; over window and ranks they add up to the right loss.

        DDP and FSDP average gradients over ranks, so the sum is multiplied by their number. The loss of a window
        without trained tokens is 0.

        Args:
            token_losses: unreduced, one per target, shape (B, T) or (B * T,).
        """
        # Two ranks with the gradients g and h: DDP's average is (g + h) / 2, and the right one (g + h) / mask_sum.
        summed = (token_losses.view(-1) * batch.mask.view(-1)).sum()
        return summed * (self.world_size / self.mask_sum if self.mask_sum else 0.0)


def windows(batches: Iterable[EpisodeBatch], size: int, *, world_size: int = 1) -> Iterator[Window]:
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
