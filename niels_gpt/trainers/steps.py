"""Batches by number: a map-style dataset, and a DataLoader whose epochs any trainer can skip into.

The batch of a step is a pure function of its number, so whoever skips steps by number, as `transformers.Trainer` does
when it resumes, skips them without reading anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch.utils.data

from niels_gpt.episodes.ahead import ReadAhead
from niels_gpt.episodes.batch import EpisodeBatch
from niels_gpt.episodes.feed import EpisodeFeed
from niels_gpt.episodes.loader import GPTEpisodeDataLoader
from niels_gpt.episodes.schedule import Place
from niels_gpt.errors import UsageError


def check_ranks(episodes: GPTEpisodeDataLoader, rank: int, world_size: int) -> None:
    """Is the loader open for the rank that its trainer has?

    Raises:
        UsageError: it is not, so that ranks would train on the same rows.
    """
    if (episodes.rank, episodes.world_size) != (rank, world_size):
        raise UsageError(
            f"the loader is open for rank {episodes.rank} of {episodes.world_size}, the trainer is rank {rank} of "
            f"{world_size}; open it after the ranks are known, or give it rank={rank}, world_size={world_size}"
        )


class StepBatches(torch.utils.data.Dataset[EpisodeBatch]):
    """Map-style: item i is the batch of step i, counted through all epochs; on the CPU. Never ends.

    Two epochs of 3 steps are the items 0 1 2 and 3 4 5. Its length is one epoch.
    """

    def __init__(self, feed: EpisodeFeed) -> None:
        self.feed, self._ahead = feed, ReadAhead(feed)
        self._steps = feed.steps_per_epoch()

    def __len__(self) -> int:
        return self._steps

    def __getitem__(self, step: int) -> EpisodeBatch:
        """The batch of a step; O(1) to find.

        Raises:
            UsageError: below 0.
        """
        if step < 0:
            raise UsageError(f"step {step}; steps are counted from 0")
        return self._ahead.batch(self.feed.skip(Place(), step))[0]


class EpochSteps(torch.utils.data.Sampler[list[int]]):
    """The steps of one epoch, one to a batch; `set_epoch` says which."""

    def __init__(self, steps: int) -> None:
        self._steps, self._epoch = steps, 0

    def set_epoch(self, epoch: int) -> None:
        """Trainers call this before every epoch."""
        self._epoch = epoch

    def __len__(self) -> int:
        return self._steps

    def __iter__(self) -> Iterator[list[int]]:
        first = self._epoch * self._steps
        return iter([step] for step in range(first, first + self._steps))


class EpochLoader(torch.utils.data.DataLoader[EpisodeBatch]):
    """A DataLoader with one batch of episodes a step, converted by `convert`, and `set_epoch`.

    Args:
        options: of `DataLoader`: num_workers, prefetch_factor, pin_memory, ...
    """

    def __init__(self, feed: EpisodeFeed, convert: Callable[[EpisodeBatch], Any], **options: Any) -> None:
        dataset = StepBatches(feed)
        self._epoch_steps = EpochSteps(len(dataset))
        super().__init__(dataset, batch_sampler=self._epoch_steps, collate_fn=_TheOne(convert), **options)

    def set_epoch(self, epoch: int) -> None:
        """Trainers call this before every epoch."""
        self._epoch_steps.set_epoch(epoch)


class _TheOne:
    """What is left to collate: a list of one batch."""

    def __init__(self, convert: Callable[[EpisodeBatch], Any]) -> None:
        self._convert = convert

    def __call__(self, batches: list[EpisodeBatch]) -> Any:
        (batch,) = batches
        return self._convert(batch)
