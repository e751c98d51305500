"""Worker processes of this machine that build units, by `concurrent.futures`.

A process that dies breaks its pool, and with it the units that were under way. Another pool goes on: it first builds
these units one at a time, so that it is certain which of them kills its worker, and then the others.

A worker that takes too long at a unit ends itself: a thread of the interpreter (`faulthandler`) watches it, even while
a library holds the GIL.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import pickle
import threading
import traceback
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from functools import lru_cache
from itertools import islice
from multiprocessing.connection import Connection
from pathlib import Path

from niels_gpt.builds.tasks import Task
from niels_gpt.builds.units import UnitTask, build_unit
from niels_gpt.errors import EngineError, NielsError
from niels_gpt.interrupts import sigint_blocked
from niels_gpt.sources.files.slices import Sliceable

MOST_DEATHS = 3  # workers lost at one unit, built alone, before the build gives up
# Units per worker that are begun or finished before the first of them is consumed: one slow unit must not make all
# workers wait for it, and finished units stay on the disk until the end anyway.
AHEAD = 16

_Started = tuple[UnitTask, "Future[BaseException | None]"]


@lru_cache(maxsize=1)
def unpickled_job(pickled_job: bytes) -> tuple[Task, Sliceable]:
    """The task and the source of a job. Loading a tokenizer takes seconds, so a worker does it once."""
    task, source = pickle.loads(pickled_job)
    return task, source


def built_in_order(
    job: bytes, unit_tasks: Iterable[UnitTask], workers: int, timeout: float | None
) -> Generator[UnitTask]:
    """Yield each unit task in order, as soon as its unit is finished; when the generator is closed, workers have ended.

    Args:
        job: see `executor.pickled_job`.
        timeout: seconds per unit after which a worker ends itself; `None` means no limit.

    Raises:
        EngineError: the workers of a unit died or took too long. Another error: of the first unit that failed.
    """
    unit_tasks, waiting = iter(unit_tasks), deque[_Started]()
    pool = _Pool(job, workers, timeout)
    try:
        while True:
            # A few at a time: to find the cuts the input is read, and workers should not wait for all of them.
            begun = list(islice(unit_tasks, min(AHEAD * workers - len(waiting), workers)))
            try:
                waiting.extend((unit_task, pool.submit(unit_task)) for unit_task in begun)
                if not waiting:
                    return
                if begun and not waiting[0][1].done():
                    continue
                error = waiting[0][1].result()
            except BrokenProcessPool:
                known = {unit_task.number for unit_task, _ in waiting}
                lost = [*waiting, *((unit_task, None) for unit_task in begun if unit_task.number not in known)]
                pool.end()
                pool = _Pool(job, workers, timeout)
                waiting = deque(pool.recovered(lost))
                continue
            if error is not None:
                raise error
            yield waiting.popleft()[0]
    finally:
        pool.end()


class _Pool:
    """Processes, and the pipe by which they notice that this process ends, or wants them to end."""

    def __init__(self, job: bytes, workers: int, timeout: float | None) -> None:
        self._job, self._workers, self._timeout = job, workers, timeout
        self._open()

    def _open(self) -> None:
        context = multiprocessing.get_context("spawn")  # forking a process with threads (tokenizers) may deadlock
        theirs, self._ours = context.Pipe(duplex=False)
        # 8 workers on 64 cores: 8 threads each. By default each would start a thread for every core.
        threads = max(1, (os.cpu_count() or 1) // self._workers)
        self._pool = ProcessPoolExecutor(self._workers, context, _begin, (theirs, self._job, threads))

    def submit(self, unit_task: UnitTask) -> Future[BaseException | None]:
        with sigint_blocked():  # Ctrl-C reaches all processes of a terminal; the parent handles it
            return self._pool.submit(_built, unit_task, self._timeout)

    def end(self) -> None:
        """Kill the processes. A unit gets its name only when it is complete, so nothing but time is lost."""
        self._ours.close()
        self._pool.shutdown(cancel_futures=True)

    def recovered(self, lost: list[tuple[UnitTask, Future[BaseException | None] | None]]) -> Iterator[_Started]:
        """The units of a broken pool, in order: finished, or begun again.

        Raises:
            EngineError: the workers of a unit that is built alone died, or took too long.
        """
        others = list[UnitTask]()
        for unit_task, future in lost:
            if future is not None and future.done() and not future.cancelled() and future.exception() is None:
                yield unit_task, future
            elif unit_task.was_begun:
                yield unit_task, self._alone(unit_task)
            else:
                others.append(unit_task)  # units begin in order, so these come last
        yield from [(unit_task, self.submit(unit_task)) for unit_task in others]

    def _alone(self, unit_task: UnitTask) -> Future[BaseException | None]:
        for _ in range(MOST_DEATHS):
            try:
                future = self.submit(unit_task)
                future.result()
            except BrokenProcessPool:
                self.end()
                self._open()
            else:
                return future
        died = "died" if self._timeout is None else f"died or took longer than {self._timeout:g} s"
        raise EngineError(
            f"workers {died} {MOST_DEATHS} times and unit {unit_task.number} ({unit_task.part}) was never finished; "
            "most often memory is short (see dmesg): use fewer --workers or smaller --unit-bytes, or give a unit more "
            "time (--unit-timeout), then run the same command again. In a script, workers begin by importing it: keep "
            "the call below `if __name__ == '__main__':`"
        )


# ---- in a worker


def _begin(parent: Connection, job: bytes, threads: int) -> None:
    """Load the job, once for all units. The worker ends when the pool or the death of its process closes the pipe."""
    global _job
    _job = job
    os.environ.setdefault("RAYON_NUM_THREADS", str(threads))  # read by the tokenizers' thread pools
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    # Whatever unpickling a user's objects raises: it fails again with the first unit, whose answer carries the error.
    with suppress(Exception):
        unpickled_job(job)


_job = b""


def _end_with(parent: Connection) -> None:
    with suppress(EOFError, OSError):
        parent.recv()
    os._exit(1)  # `sys.exit` would end this thread alone


def _built(unit_task: UnitTask, timeout: float | None) -> BaseException | None:
    try:
        with ending_after(timeout):
            build_unit(*unpickled_job(_job), unit_task)
    except NielsError as error:
        return error
    except Exception as error:  # a bug in a source or an encoder, which may be the user's
        error.add_note(f"in a worker:\n{traceback.format_exc()}")  # notes pickle, tracebacks do not
        return error if _pickles(error) else RuntimeError(traceback.format_exc())
    return None


@contextmanager
def ending_after(seconds: float | None) -> Iterator[None]:
    """End this process, at once, if the block takes longer."""
    if seconds is None:
        yield
        return
    with Path(os.devnull).open("w") as nothing:  # where its trace goes
        faulthandler.dump_traceback_later(seconds, exit=True, file=nothing)
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()


def _pickles(error: Exception) -> bool:
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # classes of other libraries may raise anything
        return False
    return True
