"""`Loader`: batch after batch of a dataset's splits, in this process, by a thread, or by workers of torch's DataLoader.

The places of batches are found in the main process, by arithmetic. Making the batch of a place changes nothing, so any
process may make any batch, and a state is the place after the last batch that was handed out::

    Places        (0, 0) (0, 8) (0, 16) ...      where each batch begins; a sampler
    Source        place -> batch                 a map-style dataset, in this process, in a thread or in workers
    Reading       the place of the next batch    moves on with every batch that is handed out

`load_state_dict` and `seek` act at once: a pass that is under way goes on from the new place.
"""

from __future__ import annotations

import copy
import os
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, Self

from niels_gpt.episodes.order.states import Place
from niels_gpt.episodes.source import NO_EPOCHS, B, Source
from niels_gpt.errors import UsageError
from niels_gpt.ranges import DEPTH, EPOCHS, NUM_WORKERS
from niels_gpt.required_torch import torch
from niels_gpt.store.schema import SPLITS


class Places(torch.utils.data.Sampler[Place]):
    """The sampler of a `DataLoader(source, sampler=places, batch_size=None)`: where each batch of a pass begins.

    A pass begins where the last whole pass ended. `set_epoch` or `load_state_dict` say where the next one begins, for
    example after a pass that was broken off. torchdata's `StatefulDataLoader` saves and resumes it by itself.

    Args:
        place: where the first pass begins; default at the first row.
        epochs: how many epochs a pass has; `None`: it never ends.

    Raises:
        UsageError: `epochs` below 1, or there are no epochs.
    """

    def __init__(self, source: Source[Any], place: Place | None = None, *, epochs: int | None = None) -> None:
        self.epochs = None if epochs is None else EPOCHS.whole(epochs)
        if epochs is not None and source.order.n is None:
            raise UsageError(f"epochs is {epochs}, but {NO_EPOCHS}; leave it out, or use 'epoch'")
        self.source, self.place = source, place or Place()

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
        self._place = self._source.begin(places.place)
        self._until = None if places.epochs is None else self._place.epoch + places.epochs

    def __next__(self) -> Place:
        place = self._source.begin(self._place)
        if self._until is not None and place.epoch >= self._until:
            # Not the start of that epoch: the last batch of a mixture's pass may hold its first rows already.
            self._places.place = place
            raise StopIteration
        self._place = self._source.skip(place, 1)
        return place

    def state_dict(self) -> dict[str, Any]:
        return self._source.state(self._place) | {"until": self._until}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        # Also of the sampler: after the state of a finished pass, torchdata begins another one.
        self._places.place = self._place = self._source.place(state)
        self._until = state["until"]


class Reading(Generic[B]):
    """A split with the place of its next batch.

    Attributes:
        source: the batches as a pure function of the place.
        place: where the next batch is read.
        moves: how often something else than a batch has changed the place.
    """

    def __init__(self, source: Source[B]) -> None:
        self.source, self.place, self.moves = source, Place(), 0
        self._logged: int | None = None  # the epoch of the last line in the log

    def log(self) -> None:
        """Log the epoch of the next batch, if it is a new one; rank 0 only."""
        epoch = self.source.begin(self.place).epoch
        if self._logged != epoch:
            self._logged = epoch
            # Every rank begins the same epoch at the same batch, so one line is enough.
            if self.source.order.n is not None and not self.source.batching.rank:
                self.source.log_epoch(epoch)

    def follow(self, batch: B) -> None:
        """Go on after a batch that is handed out."""
        self.place = Place(batch.state["epoch"], batch.state["position"])

    def move(self, place: Place) -> None:
        """Go on at another place, also in passes that are under way; the log reports its epoch again."""
        self.place, self._logged, self.moves = place, None, self.moves + 1


class Loader(ABC, Generic[B]):
    """Batches of the splits of a dataset; the place of each split's next batch is its own.

    ::

        for epoch in range(3):
            for batch in loader: ...          # an epoch; after a `break`, the next pass is the rest of it

    Where a method is given no split, it means train, or the one of `as_dataloader`.

    Attributes:
        device: where batches are moved.
    """

    device: str

    def __init__(self) -> None:
        self._readings: dict[str, Reading[B]] = {}
        # How passes are iterated: `as_dataloader` sets others in its copy.
        self._split, self._workers = "train", dict[str, Any]()
        self._epochs: int | None = 1

    @abstractmethod
    def _open(self, split: str) -> Source[B]:
        """The batches of a split that is used for the first time; raises `CacheError` if the dataset lacks it."""

    def _reading(self, split: str | None) -> Reading[B]:
        name = self._split if split is None else split
        if name not in SPLITS:
            raise UsageError(f"split is {name!r}; expected 'train' or 'val'")
        # Opened when first used: a packing plan of val costs time that training alone need not spend.
        if name not in self._readings:
            self._readings[name] = Reading(self._open(name))
        return self._readings[name]

    def batch_source(self, split: str | None = None) -> Source[B]:
        """The split's batches as a pure function of the place: a map-style dataset, whose sampler is `places`.

        Raises:
            UsageError: no such split. CacheError: the dataset does not have it.
        """
        return self._reading(split).source

    # ---- batches in this process

    def next_batch(self, split: str | None = None) -> B:
        """The next batch of the split; its `state` is the one after it."""
        at = self._reading(split)
        at.log()
        batch = at.source[at.place]
        moved = batch.to(self.device)
        at.follow(batch)  # only now: if the device had no room, the next call makes this batch again
        return moved

    def evaluation_batches(self, split: str = "val") -> Iterator[B]:
        """Every row once, in ascending order, none dropped. Does not move `next_batch`."""
        source = self.batch_source(split).in_order()
        return self._passed(source, Place())

    def batches(self, split: str | None = None, *, epoch: int = 0) -> Iterator[B]:
        """One training epoch from its start. Does not move `next_batch`.

        Raises:
            UsageError: batch_sampling_mode is "random", which has no epochs.
        """
        source = self.batch_source(split)
        return self._passed(source, source.epoch_start(epoch))

    def _passed(self, source: Source[B], start: Place) -> Iterator[B]:
        for step in range(source.steps_per_epoch()):
            yield source[source.skip(start, step)].to(self.device)

    # ---- batches of passes, from a thread or from worker processes

    def __iter__(self) -> Iterator[B]:
        """The batches of a pass, from new workers; the loader's place moves with those that are handed out."""
        at = self._reading(None)
        while True:
            moves = at.moves
            for batch in self._made(self.places(epochs=self._epochs)):
                at.log()
                moved = batch.to(self.device)
                at.follow(batch)
                yield moved
                if at.moves != moves:
                    break
            else:
                return

    def __len__(self) -> int:
        """How many batches a whole pass has, as Lightning asks; a mixture's may have one less.

        Raises:
            TypeError: a pass never ends.
        """
        if self._epochs is None:  # as Python has it, so that progress bars do without a length
            raise TypeError("a pass over all epochs never ends, so it has no length")
        return self._epochs * self.steps_per_epoch()

    def _made(self, places: Places) -> Iterator[B]:
        if self._workers in ({}, {"num_workers": 0}):
            # A DataLoader draws a seed at each pass. Without this, the numbers that a model draws after it, such as
            # those of dropout, would depend on the number of workers.
            torch.empty((), dtype=torch.int64).random_()
            return map(places.source.__getitem__, places)
        return iter(torch.utils.data.DataLoader(places.source, sampler=places, batch_size=None, **self._workers))

    def as_dataloader(self, split: str | None = None, *, epochs: int | None = 1, **options: Any) -> Self:
        """The same loader, with the same places, iterated in another way: `for batch in loader.as_dataloader(...)`.

        Args:
            split: which is read. epochs: of a pass; `None`: it never ends.
            options: of `torch.utils.data.DataLoader`: num_workers, prefetch_factor, pin_memory, ...
        """
        NUM_WORKERS.whole(options.get("num_workers", 0))
        view = copy.copy(self)
        view._split, view._epochs, view._workers = self._split if split is None else split, epochs, options
        view.places(epochs=epochs)  # raises now, not at the first pass, if epochs is wrong
        return view

    def places(self, split: str | None = None, *, epochs: int | None = None) -> Places:
        """A sampler for your own DataLoader, from the place of `next_batch` on, which it does not move.

        ::

            source, places = loader.batch_source("train"), loader.places("train", epochs=1)
            DataLoader(source, sampler=places, batch_size=None, num_workers=2)
        """
        at = self._reading(split)
        return Places(at.source, at.place, epochs=epochs)

    def prefetch(self, split: str | None = None, *, depth: int = 2) -> Prefetch[B]:
        """An endless iterator whose batches a background thread makes, from the place of `next_batch` on.

        The states of both count the batches that were handed out, never those that wait. Close it, or use `with`.
        """
        return Prefetch(self._reading(split), self.device, depth=depth)

    # ---- the place of the next batch

    def state_dict(self, split: str | None = None) -> dict[str, Any]:
        """The place of the next batch: version, fingerprint, seed, epoch and position (in rows over all ranks)."""
        at = self._reading(split)
        return at.source.state(at.place)

    def load_state_dict(self, state: dict[str, Any], split: str | None = None) -> None:
        """Continue where a state was taken, perhaps with another number of ranks or batch size. O(1).

        It acts at once: a pass or a prefetching iterator of this split goes on from there.

        Raises:
            Mismatch: the state is of another dataset, block_size, too_long, packing, order or seed.
            UsageError: it is not a state.
        """
        at = self._reading(split)
        at.move(at.source.place(state))

    def rows_read(self, split: str | None = None) -> int:
        """How many rows come before the next batch, over all epochs and ranks; dropped rows are included."""
        at = self._reading(split)
        return at.source.rows_before(at.place)

    def seek(self, row: int, split: str | None = None) -> None:
        """Continue at any row, counted over all epochs and ranks: the inverse of `rows_read`. O(1).

        A run that has read so many tokens elsewhere is continued at `row = tokens // block_size`.

        Raises:
            UsageError: the row is below 0 or above 2**62.
        """
        at = self._reading(split)
        at.move(at.source.place_of(row))

    def steps_per_epoch(self, split: str | None = None) -> int:
        """How many batches an epoch has, on every rank; see `Source.steps_per_epoch`."""
        return self.batch_source(split).steps_per_epoch()


class Prefetch(Generic[B]):
    """An endless iterator whose batches a thread makes while the last one is used; in page-locked memory for CUDA.

    ::

        with loader.prefetch("train") as batches:
            for step, batch in zip(range(1000), batches): ...
            state = batches.state_dict()

    An error in the thread is raised where its batch would have come, and ends the iterator. The thread ends with
    `close` or the `with` block, when the iterator is dropped, and when Python exits.
    """

    def __init__(self, reading: Reading[B], device: str, *, depth: int) -> None:
        self._reading, self._device, self._depth = reading, device, DEPTH.whole(depth)
        self._process = os.getpid()
        self._thread: ThreadPoolExecutor | None = ThreadPoolExecutor(1, thread_name_prefix="niels_gpt-prefetch")
        # The thread holds no reference to this object, so dropping it ends the thread.
        weakref.finalize(self, self._thread.shutdown, wait=False, cancel_futures=True)
        self._begin()

    def _begin(self) -> None:
        """Make batches from the place of the split on."""
        self._state = self._reading.source.state(self._reading.place)
        self._moves, self._place = self._reading.moves, self._reading.place
        self._waiting: deque[Future[B]] = deque()
        for _ in range(self._depth):
            self._ask()

    def _ask(self) -> None:
        """Have the next batch made."""
        assert self._thread is not None
        source, pinned = self._reading.source, torch.device(self._device).type == "cuda"
        self._waiting.append(self._thread.submit(_made, source, self._place, pinned))
        self._place = source.skip(self._place, 1)

    def __iter__(self) -> Prefetch[B]:
        return self

    def __next__(self) -> B:
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
            moved = batch.to(self._device)
        except BaseException:  # even Ctrl-C: the batch may have left the queue, and another call would skip it
            self.close()
            raise
        self._ask()
        self._reading.log()
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

    def __enter__(self) -> Prefetch[B]:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _made(source: Source[B], place: Place, pinned: bool) -> B:
    batch = source[place]
    return batch.pin_memory() if pinned else batch
