"""Ways to iterate over the batches of a split: one after the other, from a thread, from worker processes.

`SplitIterator` is what a loader holds for each split: the place of the next batch, and one method for each way::

    next_batch       Lookahead         small batches are made several at a time
    prefetch         Prefetch          a background thread makes batches while the last is used
    iterable         EpisodeIterable   for torch's DataLoader: worker w of W makes batches w, w + W, ...
    workers          EpisodeWorkers    a DataLoader over it that records which batches were used

All give the same batches in the same order, and a state counts the batches that were handed out, never those that wait.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Generic

from niels_gpt.episodes.batches import NO_EPOCHS, TOKEN_BYTES, Batch, Batches
from niels_gpt.episodes.order.states import Place
from niels_gpt.errors import Mismatch, UsageError
from niels_gpt.ranges import DEPTH, EPOCHS, NUM_WORKERS
from niels_gpt.required_torch import torch
from niels_gpt.seeds import MAX_LENGTH

LOOKAHEAD_BATCHES = 8  # made together at most; the first is delayed until all are made
LOOKAHEAD_TOKENS = 1 << 17  # in them at most, if they have TOKEN_BYTES each; a larger batch is made alone
MAX_WORKERS = int(NUM_WORKERS.most)  # an `EpisodeIterable` has 8 bytes for each, in memory that all of them share
SHARED = 4  # numbers in that memory before those of the workers


class SplitIterator(Generic[Batch]):
    """A split with the place of its next batch.

    Attributes:
        batch_source: the batches as a pure function of the place.
        place: where the next batch is read.
    """

    def __init__(self, batch_source: Batches[Batch], device: str) -> None:
        self.batch_source, self.place = batch_source, Place()
        self._device, self._lookahead = device, Lookahead(batch_source)
        self._announced: int | None = None

    def next_batch(self) -> Batch:
        """The batch at the place, which then moves on; the log reports when an epoch begins."""
        epoch = self.batch_source.starting_place(self.place).epoch
        if self._announced != epoch:
            self._announced = epoch
            self.batch_source.log_epoch(epoch)
        batch, after = self._lookahead.batch(self.place)
        moved = batch.to(self._device)
        self.place = after  # only now: if the device had no room, the next call makes this batch again
        return moved

    def epoch(self, number: int) -> Iterator[Batch]:
        """One epoch from its start; the place does not change."""
        return self._steps(self.batch_source, self.batch_source.epoch_start(number))

    def in_order(self) -> Iterator[Batch]:
        """Every row once, in ascending order; the place does not change."""
        return self._steps(self.batch_source.in_order(), Place())

    def _steps(self, batch_source: Batches[Batch], place: Place) -> Iterator[Batch]:
        lookahead = Lookahead(batch_source)
        for _ in range(batch_source.steps_per_epoch()):
            batch, place = lookahead.batch(place)
            yield batch.to(self._device)

    def prefetch(self, depth: int) -> Prefetch[Batch]:
        """Batches from a background thread; the place follows the batches that are handed out."""
        return Prefetch(self.batch_source, self.place, depth=depth, device=self._device, on_batch=self._follow)

    def workers(self, epochs: int | None, **options: Any) -> EpisodeWorkers[Batch]:
        """Batches from worker processes; the place follows the batches that are handed out."""
        return EpisodeWorkers(self.batch_source, self.place, epochs=epochs, on_batch=self._follow, **options)

    def iterable(self, epochs: int | None) -> EpisodeIterable[Batch]:
        """A torch dataset that begins at the place; the place does not change."""
        return EpisodeIterable(self.batch_source, self.place, epochs=epochs)

    def _follow(self, state: dict[str, Any]) -> None:
        self.place = self.batch_source.place(state)

    def state(self) -> dict[str, Any]:
        """The place as a checkpoint state."""
        return self.batch_source.state(self.place)

    def move(self, place: Place) -> None:
        """Continue from another place; the log reports its epoch again."""
        self.place, self._announced = place, None
        self._lookahead = Lookahead(self.batch_source)  # without the old one's waiting batches

    @property
    def rows_read(self) -> int:
        """How many rows come before the place, over all epochs and ranks."""
        return self.batch_source.rows_before(self.place)


class Lookahead(Generic[Batch]):
    """`Batches.batch` in about half the time, for small batches that are read one after the other.

    When a caller continues from one batch to the next, several batches are made together and stored here. Reading any
    other place costs as much as without this class. The batches equal those of `Batches.batch`, and no two share
    writable memory.
    """

    def __init__(self, batch_source: Batches[Batch]) -> None:
        self._batch_source = batch_source
        tokens = batch_source.options.batch_size * batch_source.options.block_size
        most = LOOKAHEAD_TOKENS * TOKEN_BYTES // batch_source.token_bytes
        self._n = min(LOOKAHEAD_BATCHES, max(1, most // tokens))
        self._after: Place | None = None  # where a caller that continues will ask
        self._waiting: list[tuple[Batch, Place]] = []  # in reverse order: the last is the batch at `_after`

    def batch(self, place: Place) -> tuple[Batch, Place]:
        """See `Batches.batch`."""
        # One place has two names where an epoch ends: its last position, and the start of the next epoch. The first
        # comparison is the common case, without arithmetic.
        start = self._batch_source.starting_place
        continues = place is self._after or (self._after is not None and start(place) == start(self._after))
        # Until the batch is out: if Ctrl-C came between its `pop` and the new place, the next call would skip it.
        self._after = None
        if not continues:
            self._waiting = self._batch_source.batches(place, 1)
        elif not self._waiting:
            try:
                self._waiting = self._batch_source.batches(place, self._n)[::-1]
            # Any error of any batch, for it may be of a later one: made alone, this one raises it if it is its own.
            except Exception:
                self._waiting = self._batch_source.batches(place, 1)
        batch, self._after = self._waiting.pop()
        return batch, self._after

    def __reduce__(self) -> tuple[type[Lookahead[Batch]], tuple[Batches[Batch]]]:
        """Pickled without the waiting batches: another process makes its own."""
        return type(self), (self._batch_source,)


class Prefetch(Generic[Batch]):
    """An endless iterator whose batches a background thread makes; in page-locked memory if the device is CUDA.

    ::

        with loader.prefetch("train") as batches:
            for step, batch in zip(range(1000), batches): ...
            state = batches.state_dict()

    An error in the thread is raised where its batch would have come.
    """

    def __init__(
        self,
        batch_source: Batches[Batch],
        start: Place,
        *,
        depth: int,
        device: str | torch.device,
        on_batch: Callable[[dict[str, Any]], None] = lambda state: None,
    ) -> None:
        depth = DEPTH.whole(depth)
        self._batch_source, self._state, self._on_batch = batch_source, batch_source.state(start), on_batch
        self._logged: int | None = None
        self._process = os.getpid()
        self._device = torch.device(device)
        self._queue: queue.Queue[Batch | BaseException] = queue.Queue(maxsize=depth)
        self._stop = threading.Event()
        self._thread = thread = threading.Thread(
            target=_fill_queue,
            args=(batch_source, start, self._queue, self._stop, self._device.type == "cuda"),
            name="niels_gpt-prefetch",
            daemon=True,
        )
        # The thread holds no reference to this object, so the finalizer also ends it when the object is dropped
        # without close(), and when Python exits.
        self._end = weakref.finalize(self, _end_thread, thread, self._queue, self._stop)
        thread.start()

    def __iter__(self) -> Prefetch[Batch]:
        return self

    def __next__(self) -> Batch:
        """The next batch, on the device.

        Raises:
            StopIteration: after `close`. RuntimeError: in a process that was forked.
        """
        # A fork copies the queue's lock, perhaps locked, but not the thread. So `close` would wait for ever there.
        if os.getpid() != self._process:
            raise RuntimeError("the prefetching thread is gone; a process that was forked must make its own")
        try:
            item = self._wait()
            # The thread's error takes the place of the batch that it could not make.
            if isinstance(item, BaseException):
                raise item
            moved = item.to(self._device)
        except BaseException:  # even Ctrl-C: the batch may have left the queue, and another call would skip it
            self.close()
            raise
        self._state = item.state
        self._on_batch(item.state)
        if item.state["epoch"] != self._logged:
            self._logged = item.state["epoch"]
            self._batch_source.log_epoch(item.state["epoch"])
        return moved

    def _wait(self) -> Batch | BaseException:
        while not self._stop.is_set():
            with contextlib.suppress(queue.Empty):
                return self._queue.get(timeout=0.5)  # a timeout, to notice a thread that has died
            if not (self._thread.is_alive() or self._stop.is_set()) and self._queue.empty():
                raise RuntimeError("the prefetching thread ended without a batch")
        raise StopIteration  # `close` was called, perhaps by another thread during the wait

    def state_dict(self) -> dict[str, Any]:
        """The state after the last batch that was handed out."""
        return self._state

    def close(self) -> None:
        """Stop the thread; may be called repeatedly."""
        self._end()

    def __enter__(self) -> Prefetch[Batch]:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _fill_queue(
    batch_source: Batches[Batch],
    place: Place,
    waiting: queue.Queue[Batch | BaseException],
    stop: threading.Event,
    pinned: bool,
) -> None:
    """Makes batches until `stop` is set; runs in the thread."""
    lookahead = Lookahead(batch_source)
    try:
        while not stop.is_set():
            batch, place = lookahead.batch(place)
            _put(batch.pin_memory() if pinned else batch, waiting, stop)
    except BaseException as error:  # it would end the thread without being seen, so the consumer raises it
        _put(error, waiting, stop)


def _put(item: Batch | BaseException, waiting: queue.Queue[Batch | BaseException], stop: threading.Event) -> None:
    while not stop.is_set():
        with contextlib.suppress(queue.Full):
            waiting.put(item, timeout=1)  # a timeout, to notice `stop` while the queue is full
            return


def _end_thread(thread: threading.Thread, waiting: queue.Queue[Batch | BaseException], stop: threading.Event) -> None:
    stop.set()
    # The garbage collector may run this in the thread itself, or in a fork, where the thread does not exist.
    if thread is threading.current_thread() or not thread.is_alive():
        return
    with contextlib.suppress(queue.Empty):  # makes room, so that a thread that waits to put sees `stop` at once
        while True:
            waiting.get_nowait()
    thread.join()


class EpisodeIterable(torch.utils.data.IterableDataset[Batch]):
    """A torch dataset of batches, for `DataLoader(dataset, batch_size=None)` and torchdata's `StatefulDataLoader`.

    Worker w of W makes batches w, w + W, ...; the DataLoader takes from the workers in turn, so the order is that of
    one process. Every batch has the `state` after it: pass that of the last batch you used to `load_state_dict`,
    and batches that workers had made beyond it are made again. Batches are on the CPU.

    Each pass begins where the last whole pass ended, in one process and in workers that persist. After a pass that was
    broken off, call `set_epoch` or `load_state_dict`, because some of the workers that persist may have made all its
    batches. New worker processes cannot know of earlier passes: call `set_epoch` before every pass, or use
    `EpisodeWorkers`, which does. A second pass of new workers without it is refused, because it would repeat the first.

    Args:
        start: where the first pass begins.
        epochs: how many epochs a pass has; `None`: it never ends.
    """

    def __init__(self, batch_source: Batches[Batch], start: Place, *, epochs: int | None = None) -> None:
        super().__init__()
        epochs = None if epochs is None else EPOCHS.whole(epochs)
        if epochs is not None and batch_source.schedule.n is None:
            raise UsageError(
                f"epochs is {epochs}, but batch_sampling_mode 'random' has no epochs; leave it out, or use 'epoch'"
            )
        self.batch_source, self.epochs = batch_source, epochs
        self._next = _WorkerPlace(start)
        self._now: _WorkerPlace | None = None  # during a pass
        self._process: int | None = None  # that began a pass; a worker has that of the main process until its first one
        self._has_state = False  # a state was loaded into this worker
        self._calls = 0  # of `set_epoch` and `load_state_dict` in the main process, as far as this process knows
        # In memory that all workers share: [0] how many calls there were; [1] to [3] what the last one set: epoch,
        # position, until (-1 for `None`); [SHARED + w] how many calls there were when worker w last made a batch, -1
        # for never.
        self._shared = torch.full((SHARED + MAX_WORKERS,), -1, dtype=torch.int64)
        self._shared[0] = 0
        self._shared.share_memory_()  # type: ignore[no-untyped-call]

    def __iter__(self) -> Iterator[Batch]:
        """This worker's batches of a pass.

        Raises:
            Mismatch: a worker's state was loaded, and the number of workers is another.
            UsageError: new workers begin a second pass without `set_epoch`.
        """
        # At once, not with the first batch: torchdata's loader takes the state of a worker before it asks for one.
        self._now = None
        return self._pass()

    def _pass(self) -> Iterator[Batch]:
        info = torch.utils.data.get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)  # no info: the main process
        now = self._begin(worker).taking_turns(worker, workers)
        if now.until is None and self.epochs is not None:
            now = replace(now, until=self.batch_source.starting_place(now.place).epoch + self.epochs)
        self._now, logged, lookahead = now, None, Lookahead(self.batch_source)
        while True:
            # Worker 1 of 3 makes batches 1 4 7: `ahead` is 1 for its first one, and 2 after each.
            place = self.batch_source.starting_place(self.batch_source.skip(now.place, now.ahead))
            if now.until is not None and place.epoch >= now.until:
                break
            # Every worker begins the epoch, but one line in the log is enough.
            if worker == 0 and place.epoch != logged:
                logged = place.epoch
                self.batch_source.log_epoch(logged)
            batch, after = lookahead.batch(place)
            if info is not None:
                self._shared[SHARED + worker] = self._calls
            self._now = now = replace(now, place=after, ahead=workers - 1)
            yield batch
        # The next pass begins with the first batch that begins in epoch `until` or later, perhaps another worker's. Not
        # at the start of that epoch: of a mixture, the last batch of a pass may hold its first rows already.
        ahead = (self.batch_source.skip(now.place, batches) for batches in range(now.ahead + 1))
        begins = (place for place in map(self.batch_source.starting_place, ahead) if place.epoch >= now.until)
        self._now, self._next = None, _WorkerPlace(next(begins))

    def _begin(self, worker: int) -> _WorkerPlace:
        """Where the pass that is about to begin starts."""
        # A new worker uses what it was created with, not the shared memory: a worker that is slow to start may see the
        # `set_epoch` of the next pass there, after its own pass was broken off.
        new = torch.utils.data.get_worker_info() is not None and self._process != os.getpid()
        start, calls = (self._next, self._calls) if new else self._start()
        if new and not self._has_state and int(self._shared[SHARED + worker]) == calls:
            raise UsageError(
                "a second pass with new worker processes, which would repeat the first; call set_epoch(...) of the "
                "dataset before each pass, or use loader.as_dataloader(...)"
            )
        # `_next` too, although this pass is about to begin there: a worker that is slow to begin may have read the
        # `set_epoch` of the next pass, which then begins at the same place.
        self._next, self._calls = start, calls
        self._process, self._has_state = os.getpid(), False
        return start

    def _start(self) -> tuple[_WorkerPlace, int]:
        """Where the next pass starts, and how many calls there were until then.

        Persistent workers see here what the main process set since their last pass.
        """
        calls, epoch, position, until = self._shared[:SHARED].tolist()
        if calls > self._calls and not self._has_state:
            return _WorkerPlace(Place(epoch, position), until=None if until < 0 else until), calls
        return self._next, calls

    def _set(self, place: Place, until: int | None = None) -> None:
        """Begin the next pass at a place, here and in all workers."""
        self._next, self._now = _WorkerPlace(place, until=until), None
        self._calls += 1
        # No epoch is above 2**62, so an `until` above it is one that no pass reaches; int64 must hold it.
        until = -1 if until is None else min(until, MAX_LENGTH)
        self._shared[1:SHARED] = torch.tensor([place.epoch, place.position, until])
        # Last: a worker that is slow to begin may read at the same time, and with a new number there is a new place.
        self._shared[0] = self._calls

    def set_epoch(self, epoch: int) -> None:
        """Begin the next pass at the start of an epoch, here and in all workers.

        Raises:
            UsageError: no such epoch, or batch_sampling_mode is "random", which has no epochs.
        """
        if self.batch_source.schedule.n is None:
            raise UsageError(NO_EPOCHS)
        self._set(self.batch_source.epoch_start(epoch))

    def state_dict(self) -> dict[str, Any]:
        """The state of this dataset, or in a worker process, of the worker."""
        now = self._now or self._start()[0]
        return self.batch_source.state(now.place) | {"workers": now.workers, "ahead": now.ahead, "until": now.until}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state of this dataset, of a loader, or of a batch.

        Raises:
            Mismatch, UsageError: as `GPTEpisodeDataLoader.load_state_dict`.
        """
        place = self.batch_source.place(state)
        workers, ahead, until = state.get("workers", 1), state.get("ahead", 0), state.get("until")
        integers = isinstance(workers, int) and isinstance(ahead, int) and isinstance(until, int | None)
        if not integers or not 0 <= ahead < workers <= MAX_WORKERS or (until is not None and until < 0):
            raise UsageError(
                f"the state has workers {workers!r}, ahead {ahead!r}, until {until!r}; expected what state_dict() "
                "returned"
            )
        # In the main process the state holds for the workers of the next pass, as an epoch does; in a worker, which
        # torchdata's loader resumes by itself, for this worker alone.
        if torch.utils.data.get_worker_info() is not None:
            self._next, self._now = _WorkerPlace(place, workers, ahead, until), None
            self._has_state = True
        elif workers > 1:
            raise Mismatch(
                f"the state is of one of {workers} workers, which would all make the batches of that one; use the "
                "state of a batch, or load that of a StatefulDataLoader into a StatefulDataLoader"
            )
        else:
            self._set(place, until)


@dataclass(frozen=True)
class _WorkerPlace:
    """How far one of several workers has read.

    Attributes:
        workers: how many take turns; 1 for the place of a single process.
        ahead: how many batches the others make before this worker's next one.
        until: the epoch before which the pass ends; `None`: not known yet, or never.
    """

    place: Place
    workers: int = 1
    ahead: int = 0
    until: int | None = None

    def taking_turns(self, worker: int, workers: int) -> _WorkerPlace:
        """The place for worker `worker` of `workers`; a single process' place fits any number of workers."""
        if self.workers == 1:
            return replace(self, workers=workers, ahead=worker)
        if self.workers != workers:
            raise Mismatch(
                f"the state is of one of {self.workers} workers, here are {workers}; use as many, or the state of a "
                "batch, which fits any number"
            )
        return self


class EpisodeWorkers(Generic[Batch]):
    """Batches from the worker processes of torch's `DataLoader`; each pass continues after the last batch used.

    ::

        for epoch in range(3):
            for batch in workers: ...          # an epoch; after a `break`, the next pass is the rest of it

    Args:
        on_batch: called with the state after every batch.
        options: of `torch.utils.data.DataLoader`: num_workers, prefetch_factor, pin_memory, ...
    """

    def __init__(
        self,
        batch_source: Batches[Batch],
        start: Place,
        *,
        epochs: int | None,
        on_batch: Callable[[dict[str, Any]], None] = lambda state: None,
        **options: Any,
    ) -> None:
        self._batch_source, self._state, self._epochs = batch_source, batch_source.state(start), epochs
        self._on_batch, self._options = on_batch, options
        NUM_WORKERS.whole(options.get("num_workers", 0))
        EpisodeIterable(batch_source, start, epochs=epochs)  # raises now, not at the first pass, if epochs is wrong

    def __repr__(self) -> str:
        """One line: the shape of batches, and the place of the next one."""
        options, source = self._batch_source.options, self._batch_source
        place = source.place(self._state)
        rows = "no end" if source.schedule.n is None else f"{source.schedule.n:,} rows an epoch"
        return (
            f"<EpisodeWorkers: batches of {options.batch_size} x {options.block_size} from {source.split.split}, "
            f"{rows}, at epoch {place.epoch}, row {place.position:,}>"
        )

    def __iter__(self) -> Iterator[Batch]:
        """The batches of a pass, from new workers."""
        dataset = EpisodeIterable(self._batch_source, self._batch_source.place(self._state), epochs=self._epochs)
        for batch in torch.utils.data.DataLoader(dataset, batch_size=None, **self._options):
            self._state = batch.state
            self._on_batch(batch.state)
            yield batch

    def state_dict(self) -> dict[str, Any]:
        """The state after the last batch that was handed out, whatever the workers have made beyond it."""
        return self._state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state of a loader, an `EpisodeIterable` or a batch.

        Raises:
            Mismatch, UsageError: as `GPTEpisodeDataLoader.load_state_dict`.
        """
        self._state = self._batch_source.state(self._batch_source.place(state))
