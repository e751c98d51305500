"""`ShardStream`: readers of the shards that batches are made of, where these come from a store as they are needed.

A schedule with windows of shards says which shards the next rows are in::

    rows         window 0 | window 1 | window 2
    mapped       ########                           a reader has these shards open
    fetched                 ########   ########     meanwhile threads download the next window's, and then, if the
                                                    cache is large, those of the windows after it
    batch at the end of a window: both are mapped

Each process has its own stream. What they have downloaded they share: see `store.shard_cache`.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
import numpy.typing as npt

from niels_gpt.episodes.order.order import Order
from niels_gpt.episodes.order.states import Place
from niels_gpt.episodes.rows import EpisodeReader
from niels_gpt.errors import UsageError
from niels_gpt.store.gather import Int64s
from niels_gpt.store.shard_cache import ShardCache, StoredFile
from niels_gpt.store.split import IndexedSplit

FETCHERS = 8  # files that are downloaded at a time; most of the time one waits for the store
MOST_AHEAD = 2 * FETCHERS  # shards that are downloaded before their window is the next one
SHARE_AHEAD = 4  # and they take a quarter of the cache at most: more could throw out what is about to be read

_log = logging.getLogger("niels_gpt.episodes")


@dataclass(frozen=True, eq=False)
class _Opened:
    """A reader of all shards, of which some are mapped.

    Attributes:
        here: of each shard of the split, whether it is mapped; bool.
        window: the epoch and number of the schedule's window that it was opened for, if known.
    """

    reader: EpisodeReader
    here: npt.NDArray[np.bool_]
    window: tuple[int, int] | None


class ShardStream:
    """Gives the reader for a batch's shards, and downloads the shards of the batches after it.

    Several threads may use it at once; a forked process begins without open shards.

    Args:
        open_reader: makes a reader of mapped shards, its keyword `shards`.
        rows: of a batch, over all ranks.

    Raises:
        UsageError: two windows of shards, or those of a batch, do not fit into the cache.
    """

    def __init__(
        self, split: IndexedSplit, schedule: Order, open_reader: Callable[..., EpisodeReader], rows: int
    ) -> None:
        self._split, self._schedule, self._open_reader = split, schedule, open_reader
        # The largest shards must fit, for which ones are in a window together changes every epoch.
        sizes = sorted((shard.remote_bytes for shard in split.shards), reverse=True)
        windows = schedule.most_windows(rows)
        assert schedule.window, "a split in a store is read in windows of shards"
        needed = sum(sizes[: windows * schedule.window])
        which = "the one that is read and the next" if windows == 2 else f"which a batch of {rows:,} rows may be in"
        room = min(shard.remote[0].max_bytes for shard in split.shards if shard.remote)
        if needed > room:
            raise UsageError(
                f"cache_bytes is {room:,}, but {windows} windows of {schedule.window} shards of "
                f"{split.name}, {which}, have up to {needed:,} bytes (one shard has up to {sizes[0]:,}); "
                "raise cache_bytes, or lower shuffle_shards" + (" or the batch size" if windows > 2 else "")
            )
        self._room_ahead = room // SHARE_AHEAD
        self._begin()

    def _begin(self) -> None:
        """Without open shards and threads."""
        self._process, self._lock = os.getpid(), threading.Lock()
        self._opened: _Opened | None = None
        self._fetcher = _Fetcher()
        weakref.finalize(self, self._fetcher.ended.set)

    def reader(self, shards: Int64s, place: Place | None) -> EpisodeReader:
        """The reader of these shards.

        Args:
            place: where the rows are in the schedule; `None`: anywhere, and nothing is known of what comes next.

        Raises:
            See `ShardCache.get`.
        """
        if self._process != os.getpid():  # a fork, in which the threads do not exist
            self._begin()
        opened = self._opened
        # In a new window the last one's shards are dropped, even if those of these rows are open already.
        is_new = opened is not None and place is not None and opened.window != self._schedule.window_at(place)
        if opened is None or is_new or not opened.here[shards].all():
            with self._lock:
                opened = self._open(np.unique(shards), place)
        return opened.reader

    def _open(self, hits: Int64s, place: Place | None) -> _Opened:
        window = None if place is None else self._schedule.window_at(place)
        upcoming = None if place is None else self._schedule.shards_from(place)
        wanted = hits if upcoming is None else np.union1d(next(upcoming), hits)
        before, self._opened = self._opened, None
        shards, here = list(self._split.shards), np.zeros(len(self._split.shards), dtype=np.bool_)
        # Those that are still needed stay mapped; of the others the room is free once their last batch is made.
        kept = wanted[:0] if before is None else wanted[before.here[wanted]]
        for n in kept.tolist():
            assert before is not None
            shards[n] = before.reader.shards[n]
        here[kept], before = True, None
        # Those that are here are used before anything is downloaded, which would delete what was used longest ago.
        for n in wanted[~here[wanted]].tolist():
            if all(cache.has(file) for cache, file in self._files([n])):
                shards[n], here[n] = shards[n].mapped(), True
        # What is needed now is downloaded by the threads too, several files at a time.
        missing = wanted[~here[wanted]].tolist()
        self._fetcher.want(self._files([*missing, *([] if upcoming is None else self._ahead(upcoming))]))
        for n in missing:
            shards[n] = shards[n].mapped()
        here[wanted] = True
        opened = self._opened = _Opened(self._open_reader(shards=shards), here, window)
        return opened

    def _ahead(self, upcoming: Iterator[Int64s]) -> list[int]:
        """The shards of the next window, and of as many windows after it as the limits allow."""
        # With the next window alone, all threads would wait for the store at once, and then for the next window.
        found: dict[int, None] = dict.fromkeys(next(upcoming).tolist())  # in the order of their use, each once
        for window in islice(upcoming, MOST_AHEAD):
            more = found | dict.fromkeys(window.tolist())
            size = sum(self._split.shards[n].remote_bytes for n in more)
            if len(more) > MOST_AHEAD or size > self._room_ahead:
                break
            found = more
        return list(found)

    def _files(self, numbers: list[int]) -> list[tuple[ShardCache, StoredFile]]:
        found = (self._split.shards[number].remote for number in numbers)
        return [(cache, file) for cache, files in filter(None, found) for file in files.values()]


class _Fetcher:
    """Downloads files in threads, `FETCHERS` at a time.

    Daemon threads, not a `ThreadPoolExecutor`: a process does not end before those of an executor have.
    """

    def __init__(self) -> None:
        self.ended = threading.Event()  # what waits for a thread then is not downloaded any more
        self._free, self._coming = threading.Semaphore(FETCHERS), set[StoredFile]()

    def want(self, files: list[tuple[ShardCache, StoredFile]]) -> None:
        """Download these, in this order, unless they are here or on their way."""
        for cache, file in files:
            if file not in self._coming and not cache.has(file):
                self._coming.add(file)
                threading.Thread(target=self._fetch, args=(cache, file), name="niels_gpt-fetch", daemon=True).start()

    def _fetch(self, cache: ShardCache, file: StoredFile) -> None:
        try:
            with self._free:
                if not self.ended.is_set():
                    cache.get(file)
        # Whatever a store's library raises: the reader that needs the file gets the same error, and raises it.
        except Exception as error:
            _log.debug("[Store] %s: not fetched ahead: %s", file.url, error)
        finally:
            self._coming.discard(file)
