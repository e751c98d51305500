"""Worker processes of this machine that build units, by `concurrent.futures`.

A process that dies breaks its pool, and with it the units that were under way. Another pool goes on with the units that
were not begun; those that were are each built alone when their turn comes, so that it is certain which of them kills
its worker.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import threading
import traceback
from collections import deque
from collections.abc import Generator, Iterable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, suppress
from functools import lru_cache
from itertools import islice
from multiprocessing.connection import Connection

from niels_gpt.builds.tasks import Task
from niels_gpt.builds.units import UnitTask, build_unit
from niels_gpt.errors import EngineError, NielsError
from niels_gpt.interrupts import sigint_blocked
from niels_gpt.sources.files.slices import Sliceable

MOST_DEATHS = 3  # workers lost at one unit, built alone, before the build gives up
# Units per worker that are begun or finished before the first of them is consumed: one slow unit must not make all
# workers wait for it, and finished units stay on the disk until the end anyway.
AHEAD = 16


@lru_cache(maxsize=1)
def unpickled_job(pickled_job: bytes) -> tuple[Task, Sliceable]:
    """The task and the source of a job. Loading a tokenizer takes seconds, so a worker does it once."""
    task, source = pickle.loads(pickled_job)
    return task, source


def built_in_order(job: bytes, unit_tasks: Iterable[UnitTask], workers: int) -> Generator[UnitTask]:
    """Yield each unit task in order, as soon as its unit is finished; when the generator is closed, workers have ended.

    Args:
        job: see `executor.pickled_job`.

    Raises:
        EngineError: the workers of a unit died. Another error: of the first unit that failed.
    """
    unit_tasks, waiting = iter(unit_tasks), deque[tuple[UnitTask, Future[None] | None]]()  # `None`: to be built alone
    pool = _Pool(job, workers)
    try:
        while True:
            # A few at a time: to find the cuts the input is read, and workers should not wait for all of them.
            begun = list(islice(unit_tasks, min(AHEAD * workers - len(waiting), workers)))
            waiting.extend((unit_task, pool.submit(unit_task)) for unit_task in begun)
            if not waiting:
                return
            unit_task, future = waiting[0]
            if begun and future is not None and not future.done():
                continue
            try:
                if future is None:
                    _build_alone(job, unit_task)
                else:
                    future.result()
            except BrokenProcessPool:
                pool.close()
                pool = _Pool(job, workers)
                waiting = deque((one, pool.again(one, made, one is unit_task)) for one, made in waiting)
                continue
            yield waiting.popleft()[0]
    finally:
        pool.close()


def _build_alone(job: bytes, unit_task: UnitTask) -> None:
    for _ in range(MOST_DEATHS):
        with suppress(BrokenProcessPool), closing(_Pool(job, 1)) as pool:
            return pool.submit(unit_task).result()
    raise EngineError(
        f"workers died {MOST_DEATHS} times and unit {unit_task.number} ({unit_task.part}) was never finished; most "
        "often memory is short (see dmesg): use fewer --workers or smaller --unit-bytes, then run the same command "
        "again. In a script, workers begin by importing it: keep the call below `if __name__ == '__main__':`"
    )


class _Pool:
    """Processes, and the pipe by which they notice that this process ends, or wants them to end."""

    def __init__(self, job: bytes, workers: int) -> None:
        context = multiprocessing.get_context("spawn")  # forking a process with threads (tokenizers) may deadlock
        theirs, self._ours = context.Pipe(duplex=False)
        # 8 workers on 64 cores: 8 threads each. By default each would start a thread for every core.
        threads = max(1, (os.cpu_count() or 1) // workers)
        self._pool = ProcessPoolExecutor(workers, context, _begin, (theirs, job, threads))

    def submit(self, unit_task: UnitTask) -> Future[None]:
        """Begin a unit. A pool that is broken says so by the future."""
        with sigint_blocked():  # Ctrl-C reaches all processes of a terminal; the parent handles it
            try:
                return self._pool.submit(_built, unit_task)
            except BrokenProcessPool as error:
                failed = Future[None]()
                failed.set_exception(error)
                return failed

    def again(self, unit_task: UnitTask, made: Future[None] | None, is_first: bool) -> Future[None] | None:
        """What becomes of a unit of a pool that broke: nothing if it has ended, else begun again, alone if need be."""
        if made is None or (
            made.done() and not made.cancelled() and not isinstance(made.exception(), BrokenProcessPool)
        ):
            return made
        return None if is_first or unit_task.was_begun else self.submit(unit_task)

    def close(self) -> None:
        """Kill the processes. A unit gets its name only when it is complete, so nothing but time is lost."""
        self._ours.close()
        self._pool.shutdown(cancel_futures=True)


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


def _built(unit_task: UnitTask) -> None:
    try:
        build_unit(*unpickled_job(_job), unit_task)
    except NielsError:
        raise
    except Exception as error:  # a bug in a source or an encoder, which may be the user's
        error.add_note(f"in a worker:\n{traceback.format_exc()}")  # notes pickle, tracebacks do not
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:  # classes of other libraries may raise anything
            raise RuntimeError(traceback.format_exc()) from None
        raise
