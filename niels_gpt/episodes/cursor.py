"""One split as it is read: where it stands, and the doors through which its batches come from there on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from niels_gpt.episodes.ahead import ReadAhead
from niels_gpt.episodes.batch import EpisodeBatch
from niels_gpt.episodes.feed import EpisodeFeed
from niels_gpt.episodes.prefetch import Prefetch
from niels_gpt.episodes.schedule import Place
from niels_gpt.episodes.views import EpisodeIterable, EpisodeWorkers


class Cursor:
    """What `GPTEpisodeDataLoader` keeps of a split that is read; its methods say more.

    Attributes:
        feed: the batches as a pure function of the place.
        place: where the next batch is read.
    """

    def __init__(self, feed: EpisodeFeed, device: str) -> None:
        self.feed, self.place = feed, Place()
        self._device, self._ahead = device, ReadAhead(feed)
        self._announced: int | None = None

    def next_batch(self) -> EpisodeBatch:
        """The batch at the place, which moves on; the log tells when an epoch begins."""
        epoch = self.feed.starting_place(self.place).epoch
        if self._announced != epoch:
            self._announced = epoch
            self.feed.log_epoch(epoch)
        batch, after = self._ahead.batch(self.place)
        moved = batch.to(self._device)
        self.place = after  # not before: a device without room for the batch must not lose it
        return moved

    def epoch(self, number: int) -> Iterator[EpisodeBatch]:
        """One epoch from its start; the place stays."""
        return self._steps(self.feed, Place(number, 0))

    def in_order(self) -> Iterator[EpisodeBatch]:
        """Every row once, in order; the place stays."""
        return self._steps(self.feed.in_order(), Place())

    def _steps(self, feed: EpisodeFeed, place: Place) -> Iterator[EpisodeBatch]:
        ahead = ReadAhead(feed)
        for _ in range(feed.steps_per_epoch()):
            batch, place = ahead.batch(place)
            yield batch.to(self._device)

    def prefetch(self, depth: int) -> Prefetch:
        """Batches of a background thread; the place follows what it hands out."""
        return Prefetch(self.feed, self.place, depth=depth, device=self._device, handed_out=self._follow)

    def workers(self, epochs: int | None, **options: Any) -> EpisodeWorkers:
        """Batches of worker processes; the place follows what they hand out."""
        return EpisodeWorkers(self.feed, self.place, epochs=epochs, handed_out=self._follow, **options)

    def iterable(self, epochs: int | None) -> EpisodeIterable:
        """A view from the place on, for torch's data loaders; the place stays."""
        return EpisodeIterable(self.feed, self.place, epochs=epochs)

    def _follow(self, state: dict[str, Any]) -> None:
        self.place = self.feed.place(state)

    def state(self) -> dict[str, Any]:
        """The place as a checkpoint keeps it."""
        return self.feed.state(self.place)

    def move(self, place: Place) -> None:
        """Go on from another place, whose epoch the log tells again; what was made ahead is let go."""
        self.place, self._announced = place, None
        self._ahead = ReadAhead(self.feed)

    @property
    def rows_read(self) -> int:
        """How many rows come before the place, over all epochs and ranks."""
        return self.feed.rows_before(self.place)
