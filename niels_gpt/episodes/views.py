"""The same batches through torch's data loaders, with worker processes or without."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch.utils.data

from niels_gpt.episodes.ahead import ReadAhead
from niels_gpt.episodes.batch import EpisodeBatch
from niels_gpt.episodes.feed import EpisodeFeed
from niels_gpt.episodes.schedule import Place
from niels_gpt.errors import Mismatch, UsageError
from niels_gpt.ranges import EPOCHS

MAX_WORKERS = 1024


class EpisodeIterable(torch.utils.data.IterableDataset[EpisodeBatch]):
    """A view for `DataLoader(view, batch_size=None, num_workers=W)` and torchdata's `StatefulDataLoader`.

    Worker w of W makes batches w, w + W, ...; the loader takes turns, so the order is that of one process. Every batch
    carries the `state` after it: give that of the last batch you used to `load_state_dict` and neither workers nor
    prefetching matter. Batches come on the CPU.

    Passes over the data: in one process, and in workers that persist, each begins where the last whole one ended. New
    worker processes cannot know of earlier ones: call `set_epoch` before every pass, or let `EpisodeWorkers` do it. A
    second pass of new workers without a word is refused, for it would repeat the first.

    Args:
        start: where the first pass begins.
        epochs: a pass stops after so many; default never.
    """

    def __init__(self, feed: EpisodeFeed, start: Place, *, epochs: int | None = None) -> None:
        super().__init__()
        epochs = None if epochs is None else EPOCHS.whole(epochs)
        if epochs is not None and feed.schedule.n is None:
            raise UsageError(
                f"epochs is {epochs}, but batch_sampling_mode 'random' has no epochs; leave it out, or use 'epoch'"
            )
        self.feed, self.epochs = feed, epochs
        self._next = _Location(start)
        self._now: _Location | None = None  # during a pass
        self._passes = 0  # of this process
        self._told = False  # a state was loaded into this worker
        self._calls = 0  # of `set_epoch`, as far as this process knows
        # Shared with all workers: how often `set_epoch` was called, its last epoch, and for each worker the number of
        # calls when it last gave a batch; -1 for never.
        self._shared = torch.full((2 + MAX_WORKERS,), -1, dtype=torch.int64)
        self._shared[0] = 0
        self._shared.share_memory_()  # type: ignore[no-untyped-call]

    def __iter__(self) -> Iterator[EpisodeBatch]:
        """The batches of this worker.

        Raises:
            Mismatch: going on from a worker's state among another number of workers.
            UsageError: new workers that nobody told which epoch comes next.
        """
        worker, workers = _turn()
        now = self._begin(worker).taking_turns(worker, workers)
        if now.until is None and self.epochs is not None:
            now = replace(now, until=self.feed.starting_place(now.place).epoch + self.epochs)
        self._now, logged, ahead = now, None, ReadAhead(self.feed)
        while True:
            place = self.feed.starting_place(self.feed.skip(now.place, now.ahead))
            if now.until is not None and place.epoch >= now.until:
                break
            if worker == 0 and place.epoch != logged:
                logged = place.epoch
                self.feed.log_epoch(logged)
            batch, after = ahead.batch(place)
            self._shared[2 + worker] = self._calls
            self._now = now = replace(now, place=after, ahead=workers - 1)
            yield batch
        self._now, self._next = None, _Location(Place(now.until, 0))

    def _begin(self, worker: int) -> _Location:
        """Where the pass that begins now starts."""
        # A new worker goes by what it was made with: one that starts late, when its pass has been broken off and
        # `set_epoch` called for the next, must not take that for its own.
        new = torch.utils.data.get_worker_info() is not None and self._passes == 0
        start = self._next if new else self._start()
        self._calls = self._calls if new else int(self._shared[0])
        if new and not self._told and int(self._shared[2 + worker]) == self._calls:
            raise UsageError(
                "a second pass with new worker processes, which would repeat the first; call set_epoch(...) of the "
                "view before each pass, or use loader.as_dataloader(...)"
            )
        self._passes += 1
        self._told = False
        return start

    def _start(self) -> _Location:
        """Where the next pass starts; workers that persist learn of `set_epoch` here."""
        calls, epoch = self._shared[:2].tolist()
        return _Location(Place(epoch, 0)) if calls > self._calls and not self._told else self._next

    def set_epoch(self, epoch: int) -> None:
        """Begin the next pass at the start of an epoch, here and in all workers."""
        self._next, self._now = _Location(Place(epoch, 0)), None
        self._calls += 1
        self._shared[:2] = torch.tensor([self._calls, epoch])

    def state_dict(self) -> dict[str, Any]:
        """Where this view stands (in a worker: where the worker stands)."""
        now = self._now or self._start()
        return self.feed.state(now.place) | {"workers": now.workers, "ahead": now.ahead, "until": now.until}

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
        self._next, self._now = _Location(place, workers, ahead, until), None
        if torch.utils.data.get_worker_info() is None:
            self._calls += 1
            self._shared[:2] = torch.tensor([self._calls, place.epoch])
        else:
            self._told = True


class EpisodeWorkers:
    """Batches made by torch's `DataLoader` with worker processes; each pass takes up where what was used ended.

    ::

        for epoch in range(3):
            for batch in workers: ...          # an epoch; after a `break`, the next pass gives its rest

    Args:
        handed_out: told the state after every batch.
        options: of `torch.utils.data.DataLoader`: num_workers, prefetch_factor, pin_memory, ...
    """

    def __init__(
        self,
        feed: EpisodeFeed,
        start: Place,
        *,
        epochs: int | None,
        handed_out: Callable[[dict[str, Any]], None] = lambda state: None,
        **options: Any,
    ) -> None:
        self._feed, self._state, self._epochs = feed, feed.state(start), epochs
        self._handed_out, self._options = handed_out, options
        EpisodeIterable(feed, start, epochs=epochs)  # says now what is wrong

    def __iter__(self) -> Iterator[EpisodeBatch]:
        """The batches of a pass; new workers each time."""
        view = EpisodeIterable(self._feed, self._feed.place(self._state), epochs=self._epochs)
        for batch in torch.utils.data.DataLoader(view, batch_size=None, **self._options):
            self._state = batch.state
            self._handed_out(batch.state)
            yield batch

    def state_dict(self) -> dict[str, Any]:
        """The state after the last batch that was handed out; what workers have made ahead does not matter."""
        return self._state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state of a loader, a view or a batch; raises as `GPTEpisodeDataLoader.load_state_dict`."""
        self._state = self._feed.state(self._feed.place(state))


@dataclass(frozen=True)
class _Location:
    """Where a worker stands.

    Attributes:
        workers, ahead: who takes turns, and how many batches the others make before its next one.
        until: the epoch before which the pass ends; `None` if that is not fixed yet, or never.
    """

    place: Place
    workers: int = 1
    ahead: int = 0
    until: int | None = None

    def taking_turns(self, worker: int, workers: int) -> _Location:
        """The same for a worker of a pass; where one process stands, any number may begin."""
        if self.workers == 1:
            return replace(self, workers=workers, ahead=worker)
        if self.workers != workers:
            raise Mismatch(
                f"the state is of one of {self.workers} workers, here are {workers}; use as many, or the state of a "
                "batch, which fits any number"
            )
        return self


def _turn() -> tuple[int, int]:
    """This worker's number, and how many there are."""
    info = torch.utils.data.get_worker_info()
    return (0, 1) if info is None else (info.id, info.num_workers)
