"""Batch after batch of a split: `Loader`, by torch's DataLoader and its workers, and `Prefetch`, by a thread.

The places of batches are found in the main process, by arithmetic. Making the batch of a place changes nothing, so any
process may make any batch, and a state is the place after the last batch that was handed out::

    Places        (0, 0) (0, 8) (0, 16) ...      where each batch begins; a sampler
    Source        place -> batch                 a map-style dataset, in this process, in a thread or in workers
    Reading       the place of the next batch    moves on with every batch that is handed out

`load_state_dict` and `seek` act at once: a pass that is under way goes on from the new place.
"""

from __future__ import annotations

import os
import weakref
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic

from niels_gpt.episodes.batches import NO_EPOCHS, Batch, Batches
from niels_gpt.episodes.order.states import Place
from niels_gpt.errors import UsageError
from niels_gpt.ranges import DEPTH, EPOCHS, NUM_WORKERS
from niels_gpt.required_torch import torch


class Places(torch.utils.data.Sampler[Place]):
    """The sampler of a `DataLoader(source, sampler=places, batch_size=None)`: where each batch of a pass begins.

    A pass begins where the last whole pass ended. `set_epoch` or `load_state_dict` say where the next one begins, for
    example after a pass that was broken off. torchdata's `StatefulDataLoader` saves and resumes it by itself.

    Args:
        place: where the first pass begins.
        epochs: how many epochs a pass has; `None`: it never ends.

    Raises:
        UsageError: `epochs` below 1, or there are no epochs.
    """

    def __init__(self, source: Batches[Any], place: Place, *, epochs: int | None = None) -> None:
        self.epochs = None if epochs is None else EPOCHS.whole(epochs)
        if epochs is not None and source.order.n is None:
            raise UsageError(f"epochs is {epochs}, but {NO_EPOCHS}; leave it out, or use 'epoch'")
        self.source, self.place = source, place

    def __iter__(self) -> Iterator[Place]:
        return _Pass(self)

    def set_epoch(self, epoch: int) -> None:
        """Begin the next pass at the start of an epoch.

        Raises:
            UsageError: no such epoch, or batch_sampling_mode is "random", which has no epochs.
        """
        self.place = self.source.epoch_start(epoch)

    def state_dict(self) -> dict[str, Any]:
        """The place at which the next pass begins."""
        return self.source.state(self.place)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Begin the next pass after a state of a loader or of a batch; raises as a loader's."""
        self.place = self.source.place(state)


class _Pass(Iterator[Place]):
    """The places of one pass; its state also says where the pass ends."""

    def __init__(self, places: Places) -> None:
        self._places, self._source = places, places.source
        self._place = self._source.starting_place(places.place)
        self._until = None if places.epochs is None else self._place.epoch + places.epochs

    def __next__(self) -> Place:
        place = self._source.starting_place(self._place)
        if self._until is not None and place.epoch >= self._until:
            # Not the start of that epoch: the last batch of a mixture's pass may hold its first rows already.
            self._places.place = place
            raise StopIteration
        self._place = self._source.skip(place, 1)
        return place

    def state_dict(self) -> dict[str, Any]:
        return self._source.state(self._place) | {"until": self._until}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        # Of the sampler, too: after the state of a finished pass, torchdata begins another one.
        self._places.place = self._place = self._source.place(state)
        self._until = state["until"]


class Reading(Generic[Batch]):
    """A split with the place of its next batch.

    Attributes:
        source: the batches as a pure function of the place.
        place: where the next batch is read.
        device: where batches are moved.
        moves: how often something else than a batch has changed the place.
    """

    def __init__(self, source: Batches[Batch], device: str) -> None:
        self.source, self.place, self.device, self.moves = source, Place(), device, 0
        self._logged: int | None = None  # the epoch of the last line in the log

    def next_batch(self) -> Batch:
        """The batch at the place, which then moves on."""
        self.log()
        batch, after = self.source.batch(self.place)
        moved = batch.to(self.device)
        self.place = after  # only now: if the device had no room, the next call makes this batch again
        return moved

    def log(self) -> None:
        """Log the epoch of the next batch, if it is a new one."""
        epoch = self.source.starting_place(self.place).epoch
        if self._logged != epoch:
            self._logged = epoch
            self.source.log_epoch(epoch)

    def follow(self, batch: Batch) -> None:
        """Go on behind a batch that is handed out."""
        self.log()
        self.place = Place(batch.state["epoch"], batch.state["position"])

    def move(self, place: Place) -> None:
        """Go on at another place, also in passes that are under way; the log reports its epoch again."""
        self.place, self._logged, self.moves = place, None, self.moves + 1


class Loader(Generic[Batch]):
    """Batches of one split, in this process or from workers of torch's `DataLoader`; on the CPU.

    ::

        for epoch in range(3):
            for batch in loader: ...          # an epoch; after a `break`, the next pass is the rest of it

    Args:
        reading: the place of the next batch, which others may share.
        epochs: of a pass; `None`: it never ends.
        options: of `torch.utils.data.DataLoader`: num_workers, prefetch_factor, pin_memory, ...
    """

    def __init__(self, reading: Reading[Batch], *, epochs: int | None, **options: Any) -> None:
        self._reading, self._epochs, self._options = reading, epochs, options
        NUM_WORKERS.whole(options.get("num_workers", 0))
        self._places()  # raises now, not at the first pass, if epochs is wrong

    def _places(self) -> Places:
        return Places(self._reading.source, self._reading.place, epochs=self._epochs)

    def __repr__(self) -> str:
        """One line: the shape of batches, and the place of the next one."""
        source, place = self._reading.source, self._reading.place
        rows = "no end" if source.order.n is None else f"{source.order.n:,} rows an epoch"
        return (
            f"<Loader: batches of {source.options.batch_size} x {source.options.block_size} from {source.split.name}, "
            f"{rows}, at epoch {place.epoch}, row {place.position:,}>"
        )

    def __iter__(self) -> Iterator[Batch]:
        """The batches of a pass, from new workers."""
        at = self._reading
        while True:
            moves = at.moves
            for batch in self._made(self._places()):
                at.follow(batch)
                yield batch
                if at.moves != moves:
                    break
            else:
                return

    def _made(self, places: Places) -> Iterator[Batch]:
        source = self._reading.source
        if self._options in ({}, {"num_workers": 0}):
            # A DataLoader draws a seed at each pass. Without this, the numbers that a model draws after it, such as
            # those of dropout, would depend on the number of workers.
            torch.empty((), dtype=torch.int64).random_()
            return map(source.__getitem__, places)
        return iter(torch.utils.data.DataLoader(source, sampler=places, batch_size=None, **self._options))

    def state_dict(self) -> dict[str, Any]:
        """The state after the last batch that was handed out, whatever the workers have made beyond it."""
        return self._reading.source.state(self._reading.place)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state of a loader or a batch, in a pass that is under way, too.

        Raises:
            Mismatch, UsageError: as `GPTEpisodeDataLoader.load_state_dict`.
        """
        self._reading.move(self._reading.source.place(state))


class Prefetch(Generic[Batch]):
    """An endless iterator whose batches a thread makes while the last one is used; in page-locked memory for CUDA.

    ::

        with loader.prefetch("train") as batches:
            for step, batch in zip(range(1000), batches): ...
            state = batches.state_dict()

    An error in the thread is raised where its batch would have come, and ends the iterator. The thread ends with
    `close` or the `with` block, when the iterator is dropped, and when Python exits.
    """

    def __init__(self, reading: Reading[Batch], *, depth: int) -> None:
        self._reading, self._depth, self._process = reading, DEPTH.whole(depth), os.getpid()
        self._thread: ThreadPoolExecutor | None = ThreadPoolExecutor(1, thread_name_prefix="niels_gpt-prefetch")
        # The thread holds no reference to this object, so dropping it ends the thread.
        weakref.finalize(self, self._thread.shutdown, wait=False, cancel_futures=True)
        self._begin()

    def _begin(self) -> None:
        """Make batches from the place of the split on."""
        self._state = self._reading.source.state(self._reading.place)
        self._moves, self._place = self._reading.moves, self._reading.place
        self._waiting: deque[Future[Batch]] = deque()
        for _ in range(self._depth):
            self._ask()

    def _ask(self) -> None:
        """Have the next batch made."""
        assert self._thread is not None
        source, pinned = self._reading.source, torch.device(self._reading.device).type == "cuda"
        self._waiting.append(self._thread.submit(_made, source, self._place, pinned))
        self._place = source.skip(self._place, 1)

    def __iter__(self) -> Prefetch[Batch]:
        return self

    def __next__(self) -> Batch:
        """The next batch, on the device.

        Raises:
            StopIteration: after `close`. RuntimeError: in a process that was forked.
        """
        if os.getpid() != self._process:
            raise RuntimeError("the prefetching thread is gone; a process that was forked must make its own")
        if self._thread is None:
            raise StopIteration
        if self._reading.moves != self._moves:
            for future in self._waiting:
                future.cancel()
            self._begin()
        try:
            batch = self._waiting.popleft().result()
            moved = batch.to(self._reading.device)
        except BaseException:  # even Ctrl-C: the batch may have left the queue, and another call would skip it
            self.close()
            raise
        self._ask()
        self._reading.follow(batch)
        self._state = batch.state
        return moved

    def state_dict(self) -> dict[str, Any]:
        """The state after the last batch that was handed out."""
        return self._state

    def close(self) -> None:
        """Stop the thread; may be called repeatedly."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.shutdown(wait=True, cancel_futures=True)

    def __enter__(self) -> Prefetch[Batch]:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _made(source: Batches[Batch], place: Place, pinned: bool) -> Batch:
    batch = source.batch(place)[0]
    return batch.pin_memory() if pinned else batch


def one_epoch(source: Batches[Batch], start: Place, device: str) -> Iterator[Batch]:
    """As many batches as an epoch has, from a place on."""
    place = start
    for _ in range(source.steps_per_epoch()):
        batch, place = source.batch(place)
        yield batch.to(device)
