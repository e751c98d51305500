"""`EpisodeIterable`: a torch dataset whose batches are made by the worker processes of a `DataLoader`, in turn.

With 3 workers, whose batches the DataLoader takes in turn, an epoch of 7 batches, and `epochs=1`::

    worker 0    batches 0     3     6       the first pass
    worker 1    batches   1     4
    worker 2    batches     2     5
    next pass   begins with batch 7, the first of the next epoch, if the workers persist

Where a pass starts depends on the process that begins it::

    in which process                   the pass starts where                              code
    the main one (num_workers=0)       its last pass ended, or a call set it              _next
    a worker, its first pass           the dataset was when the worker was created;       _next
                                       refused if workers have begun there before
    a worker that persists             the main process set it since the last pass,       _shared.latest
                                       else where that pass ended                         _next
    a worker after load_state_dict     that state says; torchdata's loader calls it       _next, _has_state
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from niels_gpt.episodes.batches import NO_EPOCHS, Batch, Batches
from niels_gpt.episodes.iterate.pass_starts import PassStart, SharedStart, WorkerPlace
from niels_gpt.episodes.order.states import Place
from niels_gpt.errors import Mismatch, UsageError
from niels_gpt.ranges import EPOCHS
from niels_gpt.required_torch import torch


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
        if epochs is not None and batch_source.order.n is None:
            raise UsageError(
                f"epochs is {epochs}, but batch_sampling_mode 'random' has no epochs; leave it out, or use 'epoch'"
            )
        self.batch_source, self.epochs = batch_source, epochs
        self._next = PassStart(WorkerPlace(start), calls=0)
        self._now: WorkerPlace | None = None  # during a pass
        self._process: int | None = None  # that began a pass; a worker has that of the main process until its first one
        self._has_state = False  # a state was loaded into this worker
        self._shared = SharedStart(self._next)

    # ---- a pass

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
        self._now, logged = now, None
        while True:
            # Worker 1 of 3 makes batches 1 4 7: `ahead` is 1 for its first one, and 2 after each.
            place = self.batch_source.starting_place(self.batch_source.skip(now.place, now.ahead))
            if now.until is not None and place.epoch >= now.until:
                break
            # Every worker begins the epoch, but one line in the log is enough.
            if worker == 0 and place.epoch != logged:
                logged = place.epoch
                self.batch_source.log_epoch(logged)
            batch, after = self.batch_source.batch(place)
            if info is not None:
                self._shared.note_batch(worker, self._next.calls)
            self._now = now = replace(now, place=after, ahead=workers - 1)
            yield batch
        self._now, self._next = None, replace(self._next, at=WorkerPlace(self._first_after(now)))

    def _first_after(self, last: WorkerPlace) -> Place:
        """Where the next pass begins: at the first batch that begins in epoch `until` or later.

        Not at the start of that epoch: of a mixture, the last batch of a pass may hold its first rows already. The
        batch may be another worker's: of 3 workers with batches 0 to 6, worker 1 has made 1 and 4, and looks at 5 6 7.
        """
        assert last.until is not None  # a pass without end has no next one
        for batches in range(last.ahead):
            place = self.batch_source.starting_place(self.batch_source.skip(last.place, batches))
            if place.epoch >= last.until:
                return place
        return self.batch_source.starting_place(self.batch_source.skip(last.place, last.ahead))

    # ---- where a pass starts

    def _begin(self, worker: int) -> WorkerPlace:
        """Where the pass that is about to begin starts; see the table at the top."""
        # A new worker uses what it was created with, not the shared memory: a worker that is slow to start may see the
        # `set_epoch` of the next pass there, after its own pass was broken off.
        new = torch.utils.data.get_worker_info() is not None and self._process != os.getpid()
        start = self._next if new else self._start()
        if new and not self._has_state and self._shared.calls_at_last_batch(worker) == start.calls:
            raise UsageError(
                "a second pass with new worker processes, which would repeat the first; call set_epoch(...) of the "
                "dataset before each pass, or use loader.as_dataloader(...)"
            )
        # `_next` too, although this pass is about to begin there: a worker that is slow to begin may have read the
        # `set_epoch` of the next pass, which then begins at the same place.
        self._next = start
        self._process, self._has_state = os.getpid(), False
        return start.at

    def _start(self) -> PassStart:
        """Where the next pass of this process starts, if it is not a new worker.

        Persistent workers see here what the main process set since their last pass.
        """
        latest = self._shared.latest()
        if latest.calls > self._next.calls and not self._has_state:
            return latest
        return replace(self._next, calls=latest.calls)

    def _set(self, at: WorkerPlace) -> None:
        """Begin the next pass at a place, here and in all workers."""
        self._next, self._now = PassStart(at, self._next.calls + 1), None
        self._shared.publish(self._next)

    def set_epoch(self, epoch: int) -> None:
        """Begin the next pass at the start of an epoch, here and in all workers.

        Raises:
            UsageError: no such epoch, or batch_sampling_mode is "random", which has no epochs.
        """
        if self.batch_source.order.n is None:
            raise UsageError(NO_EPOCHS)
        self._set(WorkerPlace(self.batch_source.epoch_start(epoch)))

    # ---- states

    def state_dict(self) -> dict[str, Any]:
        """The state of this dataset, or in a worker process, of the worker."""
        now = self._now or self._start().at
        return self.batch_source.state(now.place) | now.as_state()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state of this dataset, of a loader, or of a batch.

        Raises:
            Mismatch, UsageError: as `GPTEpisodeDataLoader.load_state_dict`.
        """
        at = WorkerPlace.of_state(self.batch_source.place(state), state)
        # In the main process the state holds for the workers of the next pass, as an epoch does; in a worker, which
        # torchdata's loader resumes by itself, for this worker alone.
        if torch.utils.data.get_worker_info() is not None:
            self._next, self._now = replace(self._next, at=at), None
            self._has_state = True
        elif at.workers > 1:
            raise Mismatch(
                f"the state is of one of {at.workers} workers, which would all make the batches of that one; use the "
                "state of a batch, or load that of a StatefulDataLoader into a StatefulDataLoader"
            )
        else:
            self._set(at)
