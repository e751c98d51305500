"""Batches for those who read on from one to the next: some are made together, and wait."""

from __future__ import annotations

from niels_gpt.episodes.batch import EpisodeBatch
from niels_gpt.episodes.feed import EpisodeFeed
from niels_gpt.episodes.schedule import Place
from niels_gpt.errors import CacheError

BATCHES_AHEAD = 8  # made together at most; the first to be asked for waits for all
TOKENS_AHEAD = 1 << 16  # in them at most, unless one alone has more: 32 bytes each


class ReadAhead:
    """`EpisodeFeed.batch`, in about half the time where batches are small and asked for one after the other.

    Any place may be asked for; what waits for another place is then made in vain. Batches are the feed's, and belong to
    who gets them: no two share memory that can be written to.
    """

    def __init__(self, feed: EpisodeFeed) -> None:
        self._feed = feed
        tokens = feed.options.batch_size * feed.options.block_size
        self._n = min(BATCHES_AHEAD, max(1, TOKENS_AHEAD // tokens))
        self._next = Place()
        self._waiting: list[tuple[EpisodeBatch, Place]] = []  # the last one is the next

    def batch(self, place: Place) -> tuple[EpisodeBatch, Place]:
        """See `EpisodeFeed.batch`."""
        if not self._waiting or self._next != place:
            self._waiting = self._make(place)[::-1]
        batch, self._next = self._waiting.pop()
        return batch, self._next

    def _make(self, place: Place) -> list[tuple[EpisodeBatch, Place]]:
        try:
            return self._feed.batches(place, self._n)
        except CacheError:  # raised again if it is in this batch; else when its own is asked for
            return self._feed.batches(place, 1)

    def __reduce__(self) -> tuple[type[ReadAhead], tuple[EpisodeFeed]]:
        """Another process makes its own; a loader that is sent there must not carry tokens along."""
        return type(self), (self._feed,)
