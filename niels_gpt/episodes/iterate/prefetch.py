"""`Prefetch`: a background thread makes batches while the training step uses the last one.

::

    thread      _fill_queue: makes batch 3, 4, 5 ...; waits while `depth` batches are in the queue
    queue       1 2                         depth 2
    caller      __next__: takes 1, moves it to the device, and only then its state counts as read

The thread ends with `close` or the `with` block, when the iterator is dropped, and when Python exits. An error in the
thread goes through the queue too, and is raised where its batch would have come.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import weakref
from collections.abc import Callable
from typing import Any, Generic

from niels_gpt.episodes.batches import Batch, Batches
from niels_gpt.episodes.order.states import Place
from niels_gpt.ranges import DEPTH
from niels_gpt.required_torch import torch


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
    try:
        while not stop.is_set():
            batch, place = batch_source.batch(place)
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
