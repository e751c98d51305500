"""Batches for those who read on from one to the next: some are made together, and wait."""

from __future__ import annotations

from niels_gpt.episodes.batch import EpisodeBatch
from niels_gpt.episodes.feed import EpisodeFeed
from niels_gpt.episodes.schedule import Place

BATCHES_AHEAD = 8  # made together at most; the first to be asked for waits for all
TOKENS_AHEAD = 1 << 16  # in them at most, unless one alone has more: 32 bytes each


class ReadAhead:
    """`EpisodeFeed.batch`, in about half the time where batches are small and asked for one after the other.

    Any place may be asked for, and costs what it costs the feed; batches are made together for who goes on to the next.
    They are the feed's, and belong to who gets them: no two share memory that can be written to.
    """

    def __init__(self, feed: EpisodeFeed) -> None:
        self._feed = feed
        tokens = feed.options.batch_size * feed.options.block_size
        self._n = min(BATCHES_AHEAD, max(1, TOKENS_AHEAD // tokens))
        self._next: Place | None = None  # where who reads on will ask
        self._waiting: list[tuple[EpisodeBatch, Place]] = []  # the last one is that of `_next`

    def batch(self, place: Place) -> tuple[EpisodeBatch, Place]:
        """See `EpisodeFeed.batch`."""
        start = self._feed.starting_place(place)
        if self._next != start:
            self._waiting = self._feed.batches(place, 1)
        elif not self._waiting:
            self._waiting = self._together(place)
        batch, after = self._waiting.pop()
        self._next = self._feed.starting_place(after)
        return batch, after

    def _together(self, place: Place) -> list[tuple[EpisodeBatch, Place]]:
        try:
            return self._feed.batches(place, self._n)[::-1]
        except Exception:  # raised again if it is in this batch; else when its own is asked for
            return self._feed.batches(place, 1)

    def __reduce__(self) -> tuple[type[ReadAhead], tuple[EpisodeFeed]]:
        """Another process makes its own; a loader that is sent there must not carry tokens along."""
        return type(self), (self._feed,)
