"""`SplitIterator`: the place of a split's next batch, which moves on with every batch that is handed out.

A loader holds one for each split. With batches of 4 rows::

    next_batch()          place (0, 0) -> rows 0 to 3,  place (0, 4)      epoch 0, position 4
    next_batch()          place (0, 4) -> rows 4 to 7,  place (0, 8)
    loader.prefetch()     begins at (0, 8), and calls `follow` with the state of each batch that it hands out
    move(Place(2, 0))     the next batch is the first of epoch 2
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Generic

from niels_gpt.episodes.batches import Batch, Batches
from niels_gpt.episodes.order.states import Place


class SplitIterator(Generic[Batch]):
    """A split with the place of its next batch.

    Attributes:
        batch_source: the batches as a pure function of the place.
        place: where the next batch is read.
        device: where batches are moved.
    """

    def __init__(self, batch_source: Batches[Batch], device: str) -> None:
        self.batch_source, self.place, self.device = batch_source, Place(), device
        self._logged: int | None = None  # the epoch of the last line in the log

    def next_batch(self) -> Batch:
        """The batch at the place, which then moves on; the log reports when an epoch begins."""
        epoch = self.batch_source.starting_place(self.place).epoch
        if self._logged != epoch:
            self._logged = epoch
            self.batch_source.log_epoch(epoch)
        batch, after = self.batch_source.batch(self.place)
        moved = batch.to(self.device)
        self.place = after  # only now: if the device had no room, the next call makes this batch again
        return moved

    def follow(self, state: dict[str, Any]) -> None:
        """Continue after a batch that was handed out by a thread or a worker process, which have logged its epoch."""
        self.place = self.batch_source.place(state)

    def move(self, place: Place) -> None:
        """Continue from another place; the log reports its epoch again."""
        self.place, self._logged = place, None


def one_epoch(batch_source: Batches[Batch], start: Place, device: str) -> Iterator[Batch]:
    """As many batches as an epoch has, from a place on."""
    place = start
    for _ in range(batch_source.steps_per_epoch()):
        batch, place = batch_source.batch(place)
        yield batch.to(device)
