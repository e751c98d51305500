"""`ShardStream`: readers of the shards that batches are made of, where these come from a store as they are needed.

A schedule with windows of shards says which shards the next rows are in::

    rows         window 0 | window 1 | window 2
    held         ########                           a reader has these shards mapped, and they are not evicted
    fetched                 ########   ########     meanwhile threads download the next window's, and then, if the
                                                    cache is large, those of the windows after it
    batch at the end of a window: both are held

Each process has its own stream. What they have downloaded they share: see `storage.shard_cache`.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from niels_gpt.episodes.dataset import EpisodeSplit
from niels_gpt.episodes.index_sets import Int64s
from niels_gpt.episodes.order.schedule import ShardWindows
from niels_gpt.episodes.order.states import Place
from niels_gpt.episodes.rows import EpisodeReader, RowSpans
from niels_gpt.errors import UsageError
from niels_gpt.storage.shard_cache import HeldShard, ShardCache
from niels_gpt.storage.shard_cache_folder import RemoteShard
from niels_gpt.storage.shard_cache_room import release_when_full

FETCHERS = 8  # threads that download, each a shard at a time; most of the time they wait for the store
MOST_AHEAD = 2 * FETCHERS  # shards that are downloaded before their window is the next one
SHARE_AHEAD = 4  # and they take a quarter of the cache at most: more could evict what is about to be read
ROOM_SECONDS = 0.2  # until a thread looks again whether there is room for a shard

_log = logging.getLogger("niels_gpt.episodes")
_Fetch = tuple[ShardCache, RemoteShard]


@dataclass(frozen=True, eq=False)
class _Opened:
    """A reader of some shards.

    Attributes:
        number: the reader's number of each shard of the split, -1 for those that it does not have; int64.
        window: the epoch and number of the schedule's window that it was opened for, if known.
    """

    reader: EpisodeReader
    shards: Int64s
    number: Int64s
    window: tuple[int, int] | None


class ShardStream:
    """Gives the reader for a batch's spans, and downloads the shards of the batches after it.

    Several threads may use it at once; a forked process begins without open shards.

    Args:
        open_reader: makes a reader of mapped shards, its keyword `shards`.
        rows: of a batch, over all ranks.

    Raises:
        UsageError: two windows of shards, or those of a batch, do not fit into the cache.
    """

    def __init__(
        self, split: EpisodeSplit, schedule: ShardWindows, open_reader: Callable[..., EpisodeReader], rows: int
    ) -> None:
        self._split, self._schedule, self._open_reader = split, schedule, open_reader
        caches = {shard.remote[0] for shard in split.shards if shard.remote}
        # The largest shards must fit, for which ones are in a window together changes every epoch.
        sizes = sorted((shard.remote[1].bytes for shard in split.shards if shard.remote), reverse=True)
        windows = schedule.most_windows(rows)
        needed = sum(sizes[: windows * schedule.window])
        which = "the one that is read and the next" if windows == 2 else f"which a batch of {rows:,} rows may be in"
        for cache in caches:
            if needed > cache.max_bytes:
                raise UsageError(
                    f"cache_bytes is {cache.max_bytes:,}, but {windows} windows of {schedule.window} shards of "
                    f"{split.split}, {which}, have up to {needed:,} bytes (one shard has up to {sizes[0]:,}); "
                    "raise cache_bytes, or lower shuffle_shards" + (" or the batch size" if windows > 2 else "")
                )
        self._room_ahead = min(cache.max_bytes for cache in caches) // SHARE_AHEAD
        self._begin()
        release_when_full(self)

    def _begin(self) -> None:
        """Without open shards and threads."""
        self._process = os.getpid()
        self._lock, self._fetcher = threading.Lock(), _Fetcher()
        self._opened: _Opened | None = None

    def release(self) -> None:
        """Drop the open shards: another stream of this process, such as that of val, needs the room."""
        self._opened = None

    def reader(self, spans: RowSpans, place: Place | None) -> EpisodeReader:
        """The reader of these spans; their shards get the numbers that it has for them.

        Args:
            place: where the rows are in the schedule; `None`: anywhere, and nothing is known of what comes next.

        Raises:
            See `ShardCache.hold`.
        """
        if self._process != os.getpid():  # a fork, in which the threads do not exist
            self._begin()
        opened = self._opened
        numbers = None if opened is None else opened.number[spans.shard]
        # In a new window the last one's shards are dropped, even if those of these rows are open already.
        is_new = opened is not None and place is not None and opened.window != self._schedule.window_at(place)
        if opened is None or numbers is None or is_new or numbers.min(initial=0) < 0:
            opened = None  # its shards are held as long as anything refers to it
            with self._lock:
                opened = self._open(np.unique(spans.shard), place)
            numbers = opened.number[spans.shard]
        spans.shard = numbers
        return opened.reader

    def _open(self, hits: Int64s, place: Place | None) -> _Opened:
        window = None if place is None else self._schedule.window_at(place)
        upcoming = None if place is None else self._schedule.shards_from(place)
        wanted = hits if upcoming is None else np.union1d(next(upcoming), hits)
        before, held = self._opened, dict[int, HeldShard | None]()
        if before is not None:
            still_needed = np.intersect1d(wanted, before.shards)
            held = {n: before.reader.shards[before.number[n]].held for n in still_needed.tolist()}
        before = self._opened = None  # from here on shards that are not needed any more may be evicted, to make room
        # Before anything is fetched: shards that are not held may be evicted to make room for the next window's.
        for n in wanted.tolist():
            remote = self._split.shards[n].remote
            if n not in held and remote is not None and (found := remote[0].held_if_here(remote[1])) is not None:
                held[n] = found
        # What is needed now is downloaded by the threads too, several shards at a time.
        missing = [n for n in wanted.tolist() if n not in held]
        coming = self._remote([*missing, *([] if upcoming is None else self._ahead(upcoming))])
        # Once all shards are here, no thread is woken for them.
        self._fetcher.want([(cache, shard) for cache, shard in coming if not cache.has(shard)])
        shards = [self._split.shards[n].mapped(held.get(n)) for n in wanted.tolist()]
        number = np.full(len(self._split.shards), -1, dtype=np.int64)
        number[wanted] = np.arange(len(wanted))
        opened = self._opened = _Opened(self._open_reader(shards=shards), wanted, number, window)
        return opened

    def _ahead(self, upcoming: Iterator[Int64s]) -> list[int]:
        """The shards of the next window, and of as many windows after it as the limits allow."""
        # With the next window alone, all threads would wait for the store at once, and then for the next window.
        found: dict[int, None] = dict.fromkeys(next(upcoming).tolist())  # in the order of their use, each once
        for window in islice(upcoming, MOST_AHEAD):
            more = found | dict.fromkeys(window.tolist())
            if len(more) > MOST_AHEAD or sum(shard.bytes for _, shard in self._remote(list(more))) > self._room_ahead:
                break
            found = more
        return list(found)

    def _remote(self, numbers: list[int]) -> list[_Fetch]:
        found = (self._split.shards[number].remote for number in numbers)
        return [remote for remote in found if remote is not None]


class _Fetcher:
    """Threads that download shards; they start with the first shard, and end with this object."""

    def __init__(self) -> None:
        self._wanted = _Wanted()
        self._started = False
        weakref.finalize(self, self._wanted.end)

    def want(self, shards: list[_Fetch]) -> None:
        """Download these, in this order, in place of what was wanted before."""
        self._wanted.set(shards)
        if shards and not self._started:
            self._started = True
            for _ in range(FETCHERS):
                # The threads hold no reference to this object, so that it can end them.
                threading.Thread(target=_fetch, args=(self._wanted,), name="niels_gpt-fetch", daemon=True).start()


class _Wanted:
    """The shards that threads take from."""

    def __init__(self) -> None:
        self._changed, self._shards, self._ended = threading.Condition(), list[_Fetch](), False
        self._wanted, self._taken = set[_Fetch](), set[_Fetch]()  # all that were wanted last; what threads work on

    def set(self, shards: list[_Fetch]) -> None:
        with self._changed:
            self._wanted = set(shards)
            # A thread that took another's shard would wait for it in vain, in place of downloading the next one.
            self._shards = [shard for shard in shards if shard not in self._taken]
            self._changed.notify_all()

    def end(self) -> None:
        self._ended = True
        # Without the lock: the garbage collector may call this in a thread that has it. The threads look by themselves.

    def take(self) -> _Fetch | None:
        """The next shard; `None` after `end`."""
        with self._changed:
            while not self._ended:
                if self._shards:
                    self._taken.add(shard := self._shards.pop(0))
                    return shard
                self._changed.wait(1.0)
        return None

    def done(self, shard: _Fetch) -> None:
        """A shard that was taken is here, or failed."""
        with self._changed:
            self._taken.discard(shard)

    def put_back(self, shard: _Fetch) -> None:
        """There was no room for a shard, or another process downloads it: look again later, if it is still wanted."""
        with self._changed:
            self._changed.wait(ROOM_SECONDS)
            self._taken.discard(shard)
            if shard in self._wanted and shard not in self._shards:
                self._shards.append(shard)


def _fetch(wanted: _Wanted) -> None:
    while (shard := wanted.take()) is not None:
        cache, remote = shard
        try:
            if cache.fetch(remote, wait=False):
                wanted.done(shard)
            else:
                wanted.put_back(shard)
        # Whatever a store's library raises: a thread that ended would download nothing any more. The reader that needs
        # the shard gets the same error, and raises it.
        except Exception as error:
            wanted.done(shard)
            _log.debug("[Store] %s: not fetched ahead: %s", remote.url, error)


def stream_of(
    split: EpisodeSplit, schedule: Any, open_reader: Callable[..., EpisodeReader], rows: int
) -> ShardStream | None:
    """A stream, if any shard of the split is in a store; `rows` is the size of a batch over all ranks.

    Raises:
        UsageError: see `ShardStream`.
    """
    if not split.streamed:
        return None
    assert isinstance(schedule, ShardWindows), "a split in a store is read in windows of shards"
    return ShardStream(split, schedule, open_reader, rows)
