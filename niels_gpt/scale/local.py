"""Units in processes of this machine."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
from collections import deque
from collections.abc import Generator, Iterable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import lru_cache
from itertools import islice

from niels_gpt.errors import EngineError, UsageError
from niels_gpt.portions import Work
from niels_gpt.scale.units import Task, build_unit
from niels_gpt.sources.slices import Sliceable

MOST_DEATHS = 3
AHEAD = 4  # units begun for each worker before the first of them is taken


class LocalRunner:
    """Builds units in this process, or in several of their own.

    Args:
        workers: how many processes; 1 is this one.

    Raises:
        UsageError: fewer than 1.
    """

    def __init__(self, workers: int = 1) -> None:
        if workers < 1:
            raise UsageError(f"workers is {workers}; expected at least 1")
        self._workers = workers

    def run(self, work: Work, source: Sliceable, tasks: Iterable[Task]) -> Generator[Task]:
        """See `engine.Runner`.

        Raises:
            UsageError: the work cannot be sent to other processes.
            EngineError: a worker died three times over the same unit.
        """
        if self._workers > 1:
            yield from _in_pool(parcel(work, source), iter(tasks), self._workers)
        else:
            for task in tasks:
                build_unit(work, source, task)
                yield task


def parcel(work: Work, source: Sliceable) -> bytes:
    """What a worker needs to know, once for all units.

    Raises:
        UsageError: something in it does not pickle.
    """
    try:
        return pickle.dumps((work, source))
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise UsageError(
            f"the encoder cannot be sent to other processes ({error}); make it picklable, or use one worker"
        ) from error


@lru_cache(maxsize=1)
def opened(parcel: bytes) -> tuple[Work, Sliceable]:
    """A parcel's contents; loading a tokenizer takes seconds, so a worker does it once."""
    work, source = pickle.loads(parcel)
    return work, source


def _in_pool(parcel: bytes, tasks: Iterable[Task], workers: int) -> Generator[Task]:
    """A pool whose worker dies is broken as a whole: a new one takes over all units that are under way."""
    tasks, deaths = iter(tasks), 0
    pool = _pool(parcel, workers)
    waiting: deque[tuple[Task, Future[None]]] = deque()
    try:
        while True:
            try:
                for task in islice(tasks, AHEAD * workers - len(waiting)):
                    waiting.append((task, _submit(pool, task)))
                if not waiting:
                    return
                waiting[0][1].result()
            except BrokenProcessPool as error:
                deaths += 1
                _give_up_after(deaths, waiting[0][0], error)
                pool.shutdown()
                pool = _pool(parcel, workers)
                waiting = deque((task, _submit(pool, task)) for task, _ in waiting)
            else:
                deaths = 0
                yield waiting.popleft()[0]
    finally:
        pool.shutdown(cancel_futures=True)


def _submit(pool: ProcessPoolExecutor, task: Task) -> Future[None]:
    """A pool that broke a moment ago gives a future that says so, like the ones it has given before."""
    try:
        return pool.submit(_build, task)
    except BrokenProcessPool as error:
        broken: Future[None] = Future()
        broken.set_exception(error)
        return broken


def _give_up_after(deaths: int, task: Task, error: BaseException) -> None:
    if deaths == MOST_DEATHS:
        raise EngineError(
            f"workers died {deaths} times and unit {task.number} ({task.part.kind} {task.part.start:,} to "
            f"{task.part.stop:,}) was never finished; most often memory is short (see dmesg): use fewer --workers or "
            "smaller --unit-bytes, then run the same command again. In a script, workers begin by importing it: keep "
            "the call below `if __name__ == '__main__':`"
        ) from error


def _pool(parcel: bytes, workers: int) -> ProcessPoolExecutor:
    """Fresh processes: forking one that has threads, as tokenizers and torch start them, may lock up."""
    threads = max(1, (os.cpu_count() or 1) // workers)
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(workers, mp_context=context, initializer=_start, initargs=(parcel, threads))


_parcel = b""


def _start(parcel: bytes, threads: int) -> None:
    global _parcel
    _parcel = parcel
    os.environ.setdefault("RAYON_NUM_THREADS", str(threads))  # of the tokenizers
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    threading.Thread(target=_die_with_parent, daemon=True).start()


def _die_with_parent() -> None:
    """A worker whose parent was killed would wait for orders for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _build(task: Task) -> None:
    build_unit(*opened(_parcel), task)
