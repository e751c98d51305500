"""The same batches through other doors: torch's data loaders with workers, and a background thread."""

from __future__ import annotations

import contextlib
import queue
import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch.utils.data

from niels_gpt.episodes.batch import EpisodeBatch
from niels_gpt.episodes.feed import EpisodeFeed
from niels_gpt.episodes.schedule import Place
from niels_gpt.errors import Mismatch, UsageError


class EpisodeIterable(torch.utils.data.IterableDataset[EpisodeBatch]):
    """A view for `DataLoader(view, batch_size=None, num_workers=W)` and torchdata's `StatefulDataLoader`.

    Worker w of W makes batches w, w + W, ...; the loader takes turns, so the order is that of one process. Every batch
    carries the `state` after it: give that of the last batch you used to `load_state_dict` and neither workers nor
    prefetching matter. Batches come on the CPU.

    Args:
        start: where to begin.
        epochs: stop after so many; default never. With it, iterating again goes on with the next epochs (worker
            processes cannot report back to the view: there call `set_epoch` before each).
    """

    def __init__(self, feed: EpisodeFeed, start: Place, *, epochs: int | None = None) -> None:
        super().__init__()
        if epochs is not None and (epochs < 1 or feed.schedule.n is None):
            raise UsageError(f"epochs is {epochs}; expected at least 1, and batch_sampling_mode 'epoch'")
        self.feed, self.epochs = feed, epochs
        self._place = start
        self._workers, self._ahead = 1, 0  # who takes turns, and how many batches the others make before our next one
        self._until: int | None = None  # the epoch before which this iteration ends; None: not begun, or endless

    def __iter__(self) -> Iterator[EpisodeBatch]:
        """The batches of this worker.

        Raises:
            Mismatch: going on from a worker's state among another number of workers.
        """
        self._take_turns()
        if self._until is None and self.epochs is not None:
            self._until = self.feed.starting_place(self._place).epoch + self.epochs
        while True:
            place = self.feed.starting_place(self.feed.skip(self._place, self._ahead))
            if self._until is not None and place.epoch >= self._until:
                self.set_epoch(self._until)
                return
            batch, self._place = self.feed.batch(place)
            self._ahead = self._workers - 1
            yield batch

    def _take_turns(self) -> None:
        info = torch.utils.data.get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        if self._workers == 1:  # where one process stands, any number may begin
            self._workers, self._ahead = workers, worker
        elif self._workers != workers:
            raise Mismatch(
                f"the state is of one of {self._workers} workers, here are {workers}; use as many, or the state of a "
                "batch, which fits any number"
            )

    def set_epoch(self, epoch: int) -> None:
        """Begin at the start of an epoch."""
        self._place, self._workers, self._ahead, self._until = Place(epoch, 0), 1, 0, None

    def state_dict(self) -> dict[str, Any]:
        """Where this view stands (in a worker: where the worker stands)."""
        return self.feed.state(self._place) | {"workers": self._workers, "ahead": self._ahead, "until": self._until}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state of this view, of a loader, or of a batch.

        Raises:
            Mismatch, UsageError: as `GPTEpisodeDataLoader.load_state_dict`.
        """
        place = self.feed.place(state)
        workers, ahead, until = state.get("workers", 1), state.get("ahead", 0), state.get("until")
        whole = isinstance(workers, int) and isinstance(ahead, int) and isinstance(until, int | None)
        if not whole or not 0 <= ahead < workers:
            raise UsageError(
                f"the state says workers {workers!r}, ahead {ahead!r}, until {until!r}; expected what state_dict() "
                "returned"
            )
        self._place, self._workers, self._ahead, self._until = place, workers, ahead, until


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

    def __init__(self, feed: EpisodeFeed, start: Place, *, depth: int, device: str | torch.device) -> None:
        if depth < 1:
            raise UsageError(f"depth is {depth}; expected at least 1 batch made ahead")
        self._state = feed.state(start)
        self._device = torch.device(device)
        self._queue: _Queue = queue.Queue(maxsize=depth)
        self._stop = threading.Event()
        thread = threading.Thread(
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
        if self._stop.is_set():
            raise StopIteration
        made = self._queue.get()
        if isinstance(made, _Failed):
            self.close()
            raise made.error
        self._state = made.state
        return made.to(self._device)

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
    try:
        while not stop.is_set():
            batch, place = feed.batch(place)
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
