"""A pool of worker processes on this machine that build units.

Every worker has its own pipe and receives its units one after the other, so the pool knows which unit it is building,
and since when. (`concurrent.futures` shares one queue and gives up all work when one process dies.) A worker that dies
or exceeds the timeout is killed and replaced. That costs one unit, which another worker begins again.

Idle workers also build the units of a worker that takes much longer than most. The attempt that finishes first gives
the unit its name; both have the same bytes.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import threading
import time
import traceback
from collections import deque
from collections.abc import Generator, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from multiprocessing.connection import Connection, wait
from multiprocessing.util import Finalize
from statistics import median

from niels_gpt.builds.tasks import Task
from niels_gpt.builds.units import UnitTask, build_unit
from niels_gpt.errors import EngineError, NielsError
from niels_gpt.interrupts import sigint_blocked
from niels_gpt.sources.files.slices import Sliceable

MOST_DEATHS = 3  # workers lost at the same unit before the build gives up
# Units per worker that are begun or finished before the first of them is consumed. With 4, one slow unit makes a
# thousand workers wait for it (docs/scale.md, simulated); finished units stay on the disk until the end anyway.
AHEAD = 16
QUEUED = 2  # units that a worker has: the one it builds and the next, so that it never waits for the pool
START_SECONDS = 120.0  # added to the timeout of a worker that still has to import and load a tokenizer
POLL_SECONDS = 0.5
# A unit is late if it takes this many times the median, and at least this many seconds. docs/scale.md simulates a
# thousand workers: 3 times saves half of what slow machines cost, and hardly any unit is built twice.
LATE_TIMES, LATE_SECONDS = 3.0, 2.0
LAST_TIMES = 101  # the number of last units whose times make the median
MOST_AT_ONCE = 5.0  # the largest step of the pool's clock, in seconds, see `Pool._now`
_READY = "ready"


@lru_cache(maxsize=1)
def unpickled_job(pickled_job: bytes) -> tuple[Task, Sliceable]:
    """The task and the source of a job. Loading a tokenizer takes seconds, so a worker does it once."""
    task, source = pickle.loads(pickled_job)
    return task, source


@dataclass(eq=False)
class _Unit:
    """A unit and its state.

    Attributes:
        deaths: how often a worker died or hung while building it.
        attempts: how many workers have it in their queues now.
        error: of the finished unit; `None` if it was built.
    """

    unit_task: UnitTask
    deaths: int = 0
    attempts: int = 0
    done: bool = False
    error: BaseException | None = None


@dataclass(eq=False)
class _Worker:
    """A worker process.

    Attributes:
        since: the pool's time at which it began with the first of its units.
        units: its queue; the first is being built.
        ready: it has loaded the job, so that its times are those of units.
    """

    process: multiprocessing.process.BaseProcess
    connection: Connection
    since: float
    units: deque[_Unit] = field(default_factory=deque)
    ready: bool = False

    def enqueue(self, unit: _Unit, now: float) -> None:
        """Queue a unit. If the worker has died, the pool notices it when it reads from the pipe."""
        if not self.units and self.ready:
            self.since = now
        self.units.append(unit)
        unit.attempts += 1
        with suppress(OSError):
            self.connection.send(unit.unit_task)

    def end(self) -> None:
        """Kill the process. A unit gets its name only when it is complete, so nothing but time is lost."""
        self.process.kill()  # not `terminate`: one that is stopped (SIGSTOP) takes no SIGTERM
        self.process.join()
        self.connection.close()


class Pool:
    """Builds units in processes.

    Args:
        pickled_job: see `executor.pickled_job`.
        workers: how many processes.
        timeout: seconds per unit after which a worker counts as hung; `None` means no limit.
    """

    def __init__(self, pickled_job: bytes, workers: int, timeout: float | None) -> None:
        self._pickled_job, self._most, self._timeout = pickled_job, workers, timeout
        self._workers: list[_Worker] = []
        self._waiting: deque[_Unit] = deque()
        self._times: deque[float] = deque(maxlen=LAST_TIMES)
        self._watched, self._looked = 0.0, time.monotonic()

    def _now(self) -> float:
        """The pool's clock: seconds during which this process has watched its workers.

        It does not run while the whole build is stopped (Ctrl-Z, a paused container): that is no hung worker.
        """
        now = time.monotonic()
        self._watched += min(now - self._looked, MOST_AT_ONCE)
        self._looked = now
        return self._watched

    def run(self, unit_tasks: Iterable[UnitTask]) -> Generator[UnitTask]:
        """See `executor.Runner`; when the generator is closed, all workers have ended."""
        unit_tasks = iter(unit_tasks)
        units: deque[_Unit] = deque()
        # At exit Python waits for all child processes, for ever if this generator was never closed.
        end = Finalize(self, _end, args=(self._workers,), exitpriority=0)
        try:
            while True:
                # A few at a time: to find the cuts the input is read, and workers should not wait for all of them.
                room = min(AHEAD * self._most - len(units), self._most)
                begun = [_Unit(unit_task) for unit_task in islice(unit_tasks, room)]
                units.extend(begun)
                self._waiting.extend(begun)
                if not units:
                    return
                self._hand_out()
                self._repeat_late()
                # If the first unit is done or new ones were begun, only look: workers that wait to write results must
                # go on, but the consumer should not wait here.
                self._listen(0 if units[0].done or begun else POLL_SECONDS)
                if units[0].done:
                    unit = units.popleft()
                    if unit.error is not None:
                        raise unit.error
                    yield unit.unit_task
        finally:
            end()

    def _hand_out(self) -> None:
        """Send waiting units to the worker with the fewest; start a new worker if all have one."""
        while self._waiting:
            free = min(self._workers, key=lambda worker: len(worker.units), default=None)
            # An idle worker is preferred to a new one, which first imports for seconds: few units start few workers.
            if (free is None or free.units) and len(self._workers) < self._most:
                free = _Worker(*_start(self._pickled_job, self._most), self._now())
                self._workers.append(free)
            if free is None or len(free.units) == QUEUED:
                return
            free.enqueue(self._waiting.popleft(), self._now())

    def _repeat_late(self) -> None:
        """Queue the units of late workers at idle ones, too; also those that wait after the late unit."""
        idle = [worker for worker in self._workers if worker.ready and not worker.units]
        if self._waiting or not idle or not self._times:
            return
        now, most = self._now(), max(LATE_SECONDS, LATE_TIMES * median(self._times))
        late = [worker for worker in self._workers if worker.units and now - worker.since > most]
        for unit in (unit for worker in late for unit in worker.units):
            # Not one that two workers have already: a third would rarely be faster.
            if idle and unit.attempts == 1 and not unit.done:
                idle.pop().enqueue(unit, now)

    def _listen(self, seconds: float) -> None:
        """Wait up to `seconds` for results of workers; replace workers that died or hang."""
        ready = wait([worker.connection for worker in self._workers], seconds)
        for worker in list(self._workers):  # a copy, because lost workers are removed from it
            if worker.connection in ready:
                self._receive(worker)
            elif self._timeout is not None and worker.units:
                allowed = self._timeout if worker.ready else self._timeout + START_SECONDS
                if self._now() - worker.since > allowed:
                    self._lost(worker, f"took longer than {self._timeout:g} s")

    def _receive(self, worker: _Worker) -> None:
        try:
            message = worker.connection.recv()
        except (EOFError, OSError):
            self._lost(worker, "died")
            return
        began, worker.since = worker.since, self._now()
        if message == _READY:
            worker.ready = True
            return
        # Workers answer in the order in which they received their units, so messages need not name them.
        unit = worker.units.popleft()
        unit.attempts -= 1
        # Without the slower attempt at a unit that was finished elsewhere, whose time would raise the median.
        if not unit.done:
            self._times.append(worker.since - began)
            unit.done, unit.error = True, message

    def _lost(self, worker: _Worker, why: str) -> None:
        self._workers.remove(worker)
        worker.end()
        for unit in worker.units:
            unit.attempts -= 1
        # Only the first unit was being built, so only this one may be the cause of the death.
        if worker.units and not worker.units[0].done:
            unit = worker.units[0]
            unit.deaths += 1
            # The next attempt writes into another directory, since the killed worker's holds half a unit.
            unit.unit_task = unit.unit_task.again()
            if unit.deaths == MOST_DEATHS:
                unit.done, unit.error = True, _too_many_deaths(unit.unit_task, why)
        left = [unit for unit in worker.units if not unit.done and not unit.attempts]
        # In front and in their order (`extendleft` reverses), because the consumer waits for the earliest unit.
        self._waiting.extendleft(reversed(left))


def _end(workers: list[_Worker]) -> None:
    while workers:
        workers.pop().end()


def _too_many_deaths(unit_task: UnitTask, why: str) -> EngineError:
    what = f"workers {why} {MOST_DEATHS} times and unit {unit_task.number} ({unit_task.part}) was never finished; "
    again = "then run the same command again"
    if why == "died":
        return EngineError(
            f"{what}most often memory is short (see dmesg): use fewer --workers or smaller --unit-bytes, {again}. "
            "In a script, workers begin by importing it: keep the call below `if __name__ == '__main__':`"
        )
    return EngineError(f"{what}give it more time (--unit-timeout) or less to do (--unit-bytes), {again}")


def _start(pickled_job: bytes, workers: int) -> tuple[multiprocessing.process.BaseProcess, Connection]:
    """A new worker and the pipe to it. Spawned, because forking a process with threads (tokenizers) may deadlock."""
    # 8 workers on 64 cores: 8 threads each. By default each would start a thread for every core.
    threads = max(1, (os.cpu_count() or 1) // workers)
    context = multiprocessing.get_context("spawn")  # up to Python 3.13 Linux would fork
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, pickled_job, threads))
    with sigint_blocked():  # Ctrl-C reaches all processes of a terminal; the parent handles it
        process.start()
    theirs.close()  # else `recv` would not raise EOFError when the worker ends
    return process, ours


def _serve(orders: Connection, pickled_job: bytes, threads: int) -> None:
    """The worker's loop: answers each unit task with `None` or an error, until the pool closes the pipe."""
    os.environ.setdefault("RAYON_NUM_THREADS", str(threads))  # read by the tokenizers' thread pools
    threading.Thread(target=_die_with_parent, daemon=True).start()
    # Whatever unpickling a user's objects raises: it fails again with the first unit, whose answer carries the error.
    with suppress(Exception):
        unpickled_job(pickled_job)
    with suppress(EOFError, OSError):
        orders.send(_READY)
        while True:
            orders.send(_built(pickled_job, orders.recv()))


def _die_with_parent() -> None:
    """End this worker when its parent is killed, instead of finishing a unit whose result would be lost."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)  # `sys.exit` would end this thread alone


def _built(pickled_job: bytes, unit_task: UnitTask) -> BaseException | None:
    try:
        build_unit(*unpickled_job(pickled_job), unit_task)
    except NielsError as error:
        return error
    except Exception as error:  # a bug in a source or an encoder, which may be the user's
        error.add_note(f"in a worker:\n{traceback.format_exc()}")  # notes pickle, tracebacks do not
        return error if _pickles(error) else RuntimeError(traceback.format_exc())
    return None


def _pickles(error: Exception) -> bool:
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # classes of other libraries may raise anything
        return False
    return True
