"""The same batches from a background thread, which makes the next ones while the last is used."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch

from niels_gpt.episodes.ahead import ReadAhead
from niels_gpt.episodes.batch import EpisodeBatch
from niels_gpt.episodes.feed import EpisodeFeed
from niels_gpt.episodes.schedule import Place
from niels_gpt.ranges import DEPTH


@dataclass(frozen=True)
class _Failed:
    """What the thread hands over instead of a batch."""

    error: BaseException


_Queue = queue.Queue[EpisodeBatch | _Failed]


class Prefetch:
    """An endless iterator whose batches a background thread makes ahead, in page-locked memory where CUDA is there.

    ::

        with loader.prefetch("train") as batches:
            for step, batch in zip(range(1000), batches): ...
            state = batches.state_dict()

    An error in the thread is raised where its batch would have come.
    """

    def __init__(
        self,
        feed: EpisodeFeed,
        start: Place,
        *,
        depth: int,
        device: str | torch.device,
        handed_out: Callable[[dict[str, Any]], None] = lambda state: None,
    ) -> None:
        depth = DEPTH.whole(depth)
        self._feed, self._state, self._handed_out = feed, feed.state(start), handed_out
        self._logged: int | None = None
        self._process = os.getpid()
        self._device = torch.device(device)
        self._queue: _Queue = queue.Queue(maxsize=depth)
        self._stop = threading.Event()
        self._thread = thread = threading.Thread(
            target=_make_ahead,
            args=(feed, start, self._queue, self._stop, self._device.type == "cuda"),
            name="niels_gpt-prefetch",
            daemon=True,
        )
        # The thread knows nothing of this object, so it ends too when the object is merely dropped, or Python exits.
        self._end = weakref.finalize(self, _end, thread, self._queue, self._stop)
        thread.start()

    def __iter__(self) -> Prefetch:
        return self

    def __next__(self) -> EpisodeBatch:
        """The next batch, on the device.

        Raises:
            StopIteration: after `close`.
        """
        made = self._wait()
        if isinstance(made, _Failed):
            self.close()
            raise made.error
        try:
            moved = made.to(self._device)
        except BaseException:  # the batch is gone, so the next one must not come in its place
            self.close()
            raise
        self._state = made.state
        self._handed_out(made.state)
        if made.state["epoch"] != self._logged:
            self._logged = made.state["epoch"]
            self._feed.log_epoch(made.state["epoch"])
        return moved

    def _wait(self) -> EpisodeBatch | _Failed:
        while not self._stop.is_set():
            if os.getpid() != self._process:  # the queue's lock may be one that no thread here releases
                raise RuntimeError("the prefetching thread is gone; a process that was forked must make its own")
            with contextlib.suppress(queue.Empty):
                return self._queue.get(timeout=0.5)
            if not (self._thread.is_alive() or self._stop.is_set()) and self._queue.empty():
                raise RuntimeError("the prefetching thread ended without a batch")
        raise StopIteration  # `close` was called, maybe by another thread while this one waited

    def state_dict(self) -> dict[str, Any]:
        """The state after the last batch that was handed out."""
        return self._state

    def close(self) -> None:
        """Stop the thread; harmless when repeated."""
        self._end()

    def __enter__(self) -> Prefetch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _make_ahead(feed: EpisodeFeed, place: Place, waiting: _Queue, stop: threading.Event, pinned: bool) -> None:
    """What the thread does until it is told to stop."""
    ahead = ReadAhead(feed)
    try:
        while not stop.is_set():
            batch, place = ahead.batch(place)
            _hand_over(batch.pin_memory() if pinned else batch, waiting, stop)
    except BaseException as error:  # whatever it is belongs to whoever waits for the batch
        _hand_over(_Failed(error), waiting, stop)


def _hand_over(made: EpisodeBatch | _Failed, waiting: _Queue, stop: threading.Event) -> None:
    while not stop.is_set():
        with contextlib.suppress(queue.Full):
            waiting.put(made, timeout=1)
            return


def _end(thread: threading.Thread, waiting: _Queue, stop: threading.Event) -> None:
    stop.set()
    if thread is threading.current_thread() or not thread.is_alive():  # garbage is collected in any thread, or a fork
        return
    with contextlib.suppress(queue.Empty):  # a thread that waits for room sees the flag at once
        while True:
            waiting.get_nowait()
    thread.join()
