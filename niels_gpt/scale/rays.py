"""Units on a Ray cluster.

What travels: to a worker the encoder (once), a path and a range for each unit; back nothing, or an error. Ids never
pass through Ray. Units are written to the folder beside the output, which all machines must see under the same path.

Ray starts a task again when its worker or node dies. A worker that hangs is not dead to Ray, so we look ourselves: an
attempt that has begun (its directory exists) and takes longer than the timeout, by this process's own clock, is
cancelled, and another begins under a name of its own.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from contextlib import chdir, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from niels_gpt.errors import EngineError, NielsError
from niels_gpt.extras import check_library
from niels_gpt.portions import Work
from niels_gpt.ranges import WORKERS
from niels_gpt.scale.local import check_timeout, parcel
from niels_gpt.scale.pool import opened
from niels_gpt.scale.units import Task, build_unit
from niels_gpt.sources.slices import Sliceable

RAY_RETRIES = 8  # of one attempt, after its worker or node died
MOST_ATTEMPTS = 4
AHEAD = 4  # units begun or finished for each worker before the first of them is taken
POLL_SECONDS = 0.5
LOCAL = "local"


class RayRunner:
    """Builds units as Ray tasks of one CPU each.

    Args:
        address: of the cluster; `None` is $RAY_ADDRESS, or else "local": a cluster that is started on this machine and
            stopped afterwards. "auto" is the one that runs on this machine already. A program that has called
            `ray.init` keeps its connection.
        workers: how many units are built at once; `None` as many as the cluster has CPUs.
        timeout: seconds after which an attempt counts as hung; `None` waits for ever.

    Raises:
        MissingExtra: Ray is not installed. UsageError: its version does not fit, or a number out of range.
    """

    def __init__(self, address: str | None = None, *, workers: int | None = None, timeout: float | None = None) -> None:
        self._timeout = check_timeout(timeout)
        WORKERS.check(workers)
        self._ray = _ray()
        self._address, self._workers = address, workers

    def run(self, work: Work, source: Sliceable, tasks: Iterable[Task]) -> Generator[Task]:
        """See `engine.Runner`.

        Raises:
            EngineError: the cluster cannot be reached, or a unit's attempts died or hung four times.
        """
        with self._connected():
            workers = self._workers or max(1, int(self._ray.cluster_resources().get("CPU", 1)))
            shipped = self._ray.put(parcel(work, source))
            queue = _Queue(self._ray, shipped, self._timeout)
            try:
                yield from _in_order(queue, iter(tasks), workers)
            finally:
                queue.cancel()

    @contextmanager
    def _connected(self) -> Iterator[None]:
        if self._ray.is_initialized():
            yield
            return
        # Ray takes no address for the cluster that a file in its temporary directory names, however long that is gone.
        known = self._address or os.environ.get("RAY_ADDRESS") or LOCAL
        try:
            self._ray.init(address=known, num_cpus=self._workers if known == LOCAL else None, log_to_driver=False)
        except (ConnectionError, RuntimeError, ValueError) as error:
            place = "this machine" if known == LOCAL else known
            raise EngineError(
                f"no Ray cluster at {place} ({error}); start one with `ray start --head`, or name it with --ray-address"
            ) from error
        try:
            yield
        finally:
            self._ray.shutdown()


def _ray() -> Any:
    check_library("ray")
    import ray
    import ray.exceptions

    return ray


def _in_order(queue: _Queue, tasks: Iterator[Task], workers: int) -> Generator[Task]:
    waiting: deque[_Started] = deque()
    while True:
        under_way = sum(not started.done for started in waiting)
        wanted = min(AHEAD * workers - len(waiting), 2 * workers - under_way)
        waiting.extend(queue.start(task) for task in islice(tasks, max(0, wanted)))
        if not waiting:
            return
        if waiting[0].done:
            started = waiting.popleft()
            if started.error is not None:
                raise started.error
            yield started.task
        else:
            queue.wait([started for started in waiting if not started.done])


@dataclass
class _Started:
    """A unit that Ray was asked for.

    Attributes:
        since: when its attempt was first seen to have begun, by this process's monotonic clock.
    """

    task: Task
    ref: Any
    since: float | None = None
    done: bool = False
    error: NielsError | None = None


class _Queue:
    """What was sent to Ray and has not come back."""

    def __init__(self, ray: Any, shipped: Any, timeout: float | None) -> None:
        self._ray, self._shipped, self._timeout = ray, shipped, timeout
        options = {"num_cpus": 1, "max_retries": RAY_RETRIES, "scheduling_strategy": "SPREAD"}
        self._remote = ray.remote(**options)(_build)
        self._open: list[_Started] = []

    def start(self, task: Task) -> _Started:
        """Send a task."""
        started = _Started(task, self._send(task))
        self._open.append(started)
        return started

    def _send(self, task: Task) -> Any:
        return self._remote.remote(self._shipped, task, str(Path.cwd()))

    def wait(self, under_way: list[_Started]) -> None:
        """Until one is done or half a second has passed; those that died or hang are sent again."""
        refs = {started.ref: started for started in under_way}
        ready, _ = self._ray.wait(list(refs), num_returns=1, timeout=POLL_SECONDS)
        for ref in ready:
            self._take(refs[ref])
        for started in under_way:
            if not started.done and self._hangs(started):
                self._ray.cancel(started.ref, force=True)
                self._again(started, f"took longer than {self._timeout:g} s")

    def _take(self, started: _Started) -> None:
        try:
            started.error = self._ray.get(started.ref)
            started.done = True
            self._open.remove(started)
        except self._ray.exceptions.RayTaskError as error:  # no error of ours: a fault in a source or an encoder
            raise error.cause from error
        except self._ray.exceptions.RayError as error:
            self._again(started, f"died ({type(error).__name__})")

    def _hangs(self, started: _Started) -> bool:
        if self._timeout is None:
            return False
        now = time.monotonic()
        if started.since is None:
            started.since = now if started.task.attempts_path.exists() else None
            return False
        return now - started.since > self._timeout

    def _again(self, started: _Started, why: str) -> None:
        if started.task.attempt + 1 == MOST_ATTEMPTS:
            raise EngineError(
                f"unit {started.task.number} {why}, {MOST_ATTEMPTS} times over ({started.task.part}); see Ray's logs, "
                "or give it more time (--unit-timeout) or less to do (--unit-bytes), then run the same command again"
            )
        started.task = started.task.again()
        started.ref, started.since = self._send(started.task), None

    def cancel(self) -> None:
        """Nobody wants what is still under way."""
        for started in self._open:
            self._ray.cancel(started.ref, force=True)


def _build(shipped: bytes, task: Task, folder: str) -> NielsError | None:
    """One unit, on a worker: in the driver's directory, so that relative paths mean there what they mean here."""
    try:
        with chdir(folder):
            build_unit(*opened(shipped), task)
    except NielsError as error:
        return error
    return None
