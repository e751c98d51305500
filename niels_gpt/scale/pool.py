"""Processes of this machine that build units, each watched by itself.

A worker is given units one after the other, so it is always known which unit it is at and since when. One that dies,
or takes longer than it may, is killed and replaced; what it costs is that unit, which another worker begins anew.
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

from niels_gpt.errors import EngineError, NielsError
from niels_gpt.interrupts import shielded
from niels_gpt.portions import Work
from niels_gpt.scale.units import Task, build_unit
from niels_gpt.sources.slices import Sliceable

MOST_DEATHS = 3
AHEAD = 4  # units begun or finished for each worker before the first of them is taken
GIVEN = 2  # units that a worker has at once: the one it builds, and the next, so that it never waits for us
START_SECONDS = 120.0  # for a worker that has to import and load a tokenizer before its first unit
POLL_SECONDS = 0.5
MOST_AT_ONCE = 5.0  # seconds that count between two looks
_READY = "ready"


@lru_cache(maxsize=1)
def opened(parcel: bytes) -> tuple[Work, Sliceable]:
    """A parcel's contents; loading a tokenizer takes seconds, so a worker does it once."""
    work, source = pickle.loads(parcel)
    return work, source


@dataclass(eq=False)
class _Unit:
    """A unit that is wanted: how often its worker was lost, and what came of it."""

    task: Task
    deaths: int = 0
    done: bool = False
    error: BaseException | None = None


@dataclass(eq=False)
class _Worker:
    """A process, the units it was given, and since when (by the pool's clock) it has been at the first of them."""

    process: multiprocessing.process.BaseProcess
    connection: Connection
    since: float
    units: deque[_Unit] = field(default_factory=deque)
    ready: bool = False

    def give(self, unit: _Unit, now: float) -> None:
        """Queue a unit; a worker that has died is noticed when it is listened to."""
        if not self.units and self.ready:
            self.since = now
        self.units.append(unit)
        with suppress(OSError):
            self.connection.send(unit.task)

    def end(self) -> None:
        """Kill it, stopped or not; units are renamed when they are whole, so nothing is lost but time."""
        self.process.kill()
        self.process.join()
        self.connection.close()


class Pool:
    """Builds units in processes.

    Args:
        parcel: see `local.parcel`.
        workers: how many processes.
        timeout: seconds after which a worker counts as hung at a unit; `None` waits for ever.
    """

    def __init__(self, parcel: bytes, workers: int, timeout: float | None) -> None:
        self._parcel, self._most, self._timeout = parcel, workers, timeout
        self._workers: list[_Worker] = []
        self._waiting: deque[_Unit] = deque()
        self._watched, self._looked = 0.0, time.monotonic()

    def _now(self) -> float:
        """Seconds that this process has watched its workers: a build that is stopped as a whole (Ctrl-Z, a paused
        container) does not hang.
        """
        now = time.monotonic()
        self._watched += min(now - self._looked, MOST_AT_ONCE)
        self._looked = now
        return self._watched

    def run(self, tasks: Iterable[Task]) -> Generator[Task]:
        """See `engine.Runner`; when it is closed, all workers are gone."""
        tasks = iter(tasks)
        units: deque[_Unit] = deque()
        # Python waits at its end for all processes, also where nobody has closed this generator.
        end = Finalize(self, _end, args=(self._workers,), exitpriority=0)
        try:
            while True:
                begun = [_Unit(task) for task in islice(tasks, AHEAD * self._most - len(units))]
                units.extend(begun)
                self._waiting.extend(begun)
                if not units:
                    return
                self._hand_out()
                self._listen(0 if units[0].done else POLL_SECONDS)
                if units[0].done:
                    unit = units.popleft()
                    if unit.error is not None:
                        raise unit.error
                    yield unit.task
        finally:
            end()

    def _hand_out(self) -> None:
        """Waiting units to whoever has fewest; a new worker where all have one."""
        while self._waiting:
            free = min(self._workers, key=lambda worker: len(worker.units), default=None)
            if (free is None or free.units) and len(self._workers) < self._most:
                free = _Worker(*_start(self._parcel, self._most), self._now())
                self._workers.append(free)
            if free is None or len(free.units) == GIVEN:
                return
            free.give(self._waiting.popleft(), self._now())

    def _listen(self, seconds: float) -> None:
        """Until a worker says something, or so long; those that died or hang are replaced."""
        heard = wait([worker.connection for worker in self._workers], seconds)
        for worker in list(self._workers):
            if worker.connection in heard:
                self._take(worker)
            elif self._hangs(worker):
                self._lost(worker, f"took longer than {self._timeout:g} s")

    def _take(self, worker: _Worker) -> None:
        try:
            said = worker.connection.recv()
        except (EOFError, OSError):
            self._lost(worker, "died")
            return
        worker.since = self._now()
        if said == _READY:
            worker.ready = True
        else:
            unit = worker.units.popleft()
            unit.done, unit.error = True, said

    def _hangs(self, worker: _Worker) -> bool:
        if self._timeout is None or not worker.units:
            return False
        return self._now() - worker.since > self._timeout + (0 if worker.ready else START_SECONDS)

    def _lost(self, worker: _Worker, why: str) -> None:
        self._workers.remove(worker)
        worker.end()
        if worker.units:
            unit = worker.units[0]
            unit.deaths += 1
            unit.task = unit.task.again()
            if unit.deaths == MOST_DEATHS:
                unit.done, unit.error = True, _given_up(unit.task, why)
                worker.units.popleft()
        self._waiting.extendleft(reversed(worker.units))


def _end(workers: list[_Worker]) -> None:
    while workers:
        workers.pop().end()


def _given_up(task: Task, why: str) -> EngineError:
    what = f"workers {why} {MOST_DEATHS} times and unit {task.number} ({task.part}) was never finished; "
    again = "then run the same command again"
    if why == "died":
        return EngineError(
            f"{what}most often memory is short (see dmesg): use fewer --workers or smaller --unit-bytes, {again}. "
            "In a script, workers begin by importing it: keep the call below `if __name__ == '__main__':`"
        )
    return EngineError(f"{what}give it more time (--unit-timeout) or less to do (--unit-bytes), {again}")


def _start(parcel: bytes, workers: int) -> tuple[multiprocessing.process.BaseProcess, Connection]:
    """A fresh process and the line to it; forking one that has threads, as tokenizers start them, may lock up."""
    threads = max(1, (os.cpu_count() or 1) // workers)
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, parcel, threads))
    with shielded():  # Ctrl-C is the parent's to handle
        process.start()
    theirs.close()  # so that its end is seen here
    return process, ours


def _serve(orders: Connection, parcel: bytes, threads: int) -> None:
    """In a worker: one answer to each task, `None` or an error, until nobody asks any more."""
    os.environ.setdefault("RAYON_NUM_THREADS", str(threads))  # of the tokenizers
    threading.Thread(target=_die_with_parent, daemon=True).start()
    with suppress(Exception):  # it comes again with the first unit, and is told there
        opened(parcel)
    with suppress(EOFError, OSError):
        orders.send(_READY)
        while True:
            orders.send(_built(parcel, orders.recv()))


def _die_with_parent() -> None:
    """A worker whose parent was killed would finish its unit for nobody."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _built(parcel: bytes, task: Task) -> BaseException | None:
    try:
        build_unit(*opened(parcel), task)
    except NielsError as error:
        return error
    except Exception as error:  # a fault in a source or an encoder
        error.add_note(f"in a worker:\n{traceback.format_exc()}")
        return error if _travels(error) else RuntimeError(traceback.format_exc())
    return None


def _travels(error: Exception) -> bool:
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # a class of somebody else's may refuse in any way
        return False
    return True
