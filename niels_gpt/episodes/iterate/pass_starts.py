"""Where a pass of `EpisodeIterable` starts, for each worker, and how the main process sets it for its workers.

A pass is one iteration over the dataset by all workers together. Workers have copies of the dataset from the time at
which they were created, so what `set_epoch` and `load_state_dict` set later in the main process is in memory that all
processes share (`SharedStart`). With 2 workers, after `set_epoch(7)`, a pass, and `set_epoch(8)`::

    CALLS 2, EPOCH 8, POSITION 0, UNTIL -1     there were 2 calls; the last one set epoch 8, position 0 and no end
    WORKERS 1 1 -1 -1 ...                      when workers 0 and 1 last made a batch, there had been 1 call

Workers that persist know of 1 call and find 2 here, so their next pass starts at epoch 8. New workers, created after 2
calls, find that nobody made a batch since the second, so their pass repeats none. It writes 2 2, and the next new
workers are refused unless there is a third call.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from niels_gpt.episodes.order.states import Place
from niels_gpt.errors import Mismatch, UsageError
from niels_gpt.ranges import NUM_WORKERS
from niels_gpt.required_torch import torch
from niels_gpt.seeds import MAX_LENGTH

MAX_WORKERS = int(NUM_WORKERS.most)  # each has 8 bytes in the shared memory
CALLS, EPOCH, POSITION, UNTIL, WORKERS = range(5)  # where in it; from WORKERS on, one each
NONE = -1  # in the shared memory, whose other numbers are 0 or more


@dataclass(frozen=True)
class WorkerPlace:
    """How far one of several workers has read."""

    place: Place
    workers: int = 1  # how many take turns; 1 for the place of a single process
    ahead: int = 0  # how many batches the others make before this worker's next one
    until: int | None = None  # the epoch before which the pass ends; `None`: not known yet, or never

    def taking_turns(self, worker: int, workers: int) -> WorkerPlace:
        """The place for worker `worker` of `workers`; a single process' place fits any number of workers."""
        if self.workers == 1:
            return replace(self, workers=workers, ahead=worker)
        if self.workers != workers:
            raise Mismatch(
                f"the state is of one of {self.workers} workers, here are {workers}; use as many, or the state of a "
                "batch, which fits any number"
            )
        return self

    def as_state(self) -> dict[str, Any]:
        """What a state of `EpisodeIterable` has besides the place."""
        return {"workers": self.workers, "ahead": self.ahead, "until": self.until}

    @classmethod
    def of_state(cls, place: Place, state: dict[str, Any]) -> WorkerPlace:
        """The inverse of `as_state`; states of loaders and batches, which lack these keys, are of a single process.

        Raises:
            UsageError: `state_dict` does not return such values.
        """
        workers, ahead, until = state.get("workers", 1), state.get("ahead", 0), state.get("until")
        integers = isinstance(workers, int) and isinstance(ahead, int) and isinstance(until, int | None)
        if not integers or not 0 <= ahead < workers <= MAX_WORKERS or (until is not None and until < 0):
            raise UsageError(
                f"the state has workers {workers!r}, ahead {ahead!r}, until {until!r}; expected what state_dict() "
                "returned"
            )
        return cls(place, workers, ahead, until)


@dataclass(frozen=True)
class PassStart:
    """Where the next pass starts, as one process knows it."""

    at: WorkerPlace
    calls: int  # of `set_epoch` and `load_state_dict` in the main process, as far as this process knows


class SharedStart:
    """The last start that the main process has set, and who has made batches since; in memory of all processes."""

    def __init__(self, start: PassStart) -> None:
        # One tensor, because each in shared memory takes a file descriptor of every process.
        self._numbers = torch.full((WORKERS + MAX_WORKERS,), NONE, dtype=torch.int64)
        self.publish(start)
        self._numbers.share_memory_()  # type: ignore[no-untyped-call]

    def publish(self, start: PassStart) -> None:
        """Set the latest start; called in the main process, with one call more each time."""
        # No epoch is above 2**62, so an `until` above it is one that no pass reaches; int64 must hold it.
        until = NONE if start.at.until is None else min(start.at.until, MAX_LENGTH)
        self._numbers[EPOCH:WORKERS] = torch.tensor([start.at.place.epoch, start.at.place.position, until])
        # Last: a worker that is slow to begin may read at the same time, and with a new number there is a new place.
        self._numbers[CALLS] = start.calls

    def latest(self) -> PassStart:
        """The start that was published last."""
        calls, epoch, position, until = self._numbers[:WORKERS].tolist()
        return PassStart(WorkerPlace(Place(epoch, position), until=None if until == NONE else until), calls)

    def note_batch(self, worker: int, calls: int) -> None:
        """A worker has made a batch of a pass that began after so many calls."""
        self._numbers[WORKERS + worker] = calls

    def calls_at_last_batch(self, worker: int) -> int:
        """How many calls there had been when worker `worker` last made a batch; -1 if it has made none."""
        return int(self._numbers[WORKERS + worker])
