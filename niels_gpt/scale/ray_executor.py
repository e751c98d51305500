"""Units on a Ray cluster.

A worker receives the task and source (once), and a path and a range for each unit. It returns `None` or an error; ids
never pass through Ray. Units are written to the folder beside the output, which all machines must see under the same
path.

Ray restarts a task when its worker or node dies. It does not notice a worker that hangs, so this module does: an
attempt that has begun (its directory exists) and exceeds the timeout, by this process's own clock, is cancelled, and
another begins in a directory of its own.

Where workers are idle, a unit that takes much longer than most is begun once more, as in `process_pool`.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from contextlib import chdir, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

from niels_gpt.builds.tasks import Task
from niels_gpt.builds.units import UnitTask, build_unit
from niels_gpt.errors import EngineError, NielsError
from niels_gpt.extras import check_library
from niels_gpt.ranges import UNIT_TIMEOUT, WORKERS
from niels_gpt.scale.executor import pickled_job
from niels_gpt.scale.process_pool import AHEAD, LAST_TIMES, LATE_SECONDS, LATE_TIMES, unpickled_job
from niels_gpt.sources.files.slices import Sliceable

RAY_RETRIES = 8  # of one attempt, after its worker or node died
MOST_ATTEMPTS = 4
POLL_SECONDS = 0.5
LOCAL = "local"
REACH_SECONDS = 10.0  # for one connection to the cluster's port


class RayRunner:
    """Builds units as Ray tasks of one CPU each.

    Args:
        address: of the cluster; `None` is $RAY_ADDRESS, or else "local": a cluster that is started on this machine and
            stopped afterwards. "auto" is the one that runs on this machine already. If the program has called
            `ray.init`, that connection is used.
        workers: number of units that are built at once; `None` is the number of the cluster's CPUs.
        timeout: seconds after which an attempt counts as hung; `None` waits for ever.

    Raises:
        MissingExtra: Ray is not installed. UsageError: its version does not fit, or a number out of range.
    """

    def __init__(self, address: str | None = None, *, workers: int | None = None, timeout: float | None = None) -> None:
        UNIT_TIMEOUT.check(timeout)
        WORKERS.check(workers)
        check_library("ray")
        import ray
        import ray.exceptions

        self._ray: Any = ray
        self._address, self._workers, self._timeout = address, workers, timeout

    def run(self, task: Task, source: Sliceable, unit_tasks: Iterable[UnitTask]) -> Generator[UnitTask]:
        """See `executor.Runner`.

        Raises:
            EngineError: the cluster cannot be reached, or a unit's attempts died or hung four times.
        """
        with self._connected():
            workers = self._workers or max(1, int(self._ray.cluster_resources().get("CPU", 1)))
            job = self._ray.put(pickled_job(task, source))
            queue = _Queue(self._ray, job, self._timeout)
            try:
                yield from _in_order(queue, iter(unit_tasks), workers)
            finally:
                queue.cancel()

    @contextmanager
    def _connected(self) -> Iterator[None]:
        if self._ray.is_initialized():  # by the program, which uses its connection afterwards
            yield
            return
        # Without an address Ray connects to the cluster named in a file in its temporary directory, even a dead one.
        address = self._address or os.environ.get("RAY_ADDRESS") or LOCAL
        try:
            _check_reachable(address)
            # Ray refuses `num_cpus` for a cluster that exists already.
            cpus = self._workers if address == LOCAL else None
            with _own_sigterm_handler():
                self._ray.init(address=address, num_cpus=cpus, log_to_driver=False)
        except (OSError, RuntimeError, ValueError) as error:
            place = "this machine" if address == LOCAL else address
            raise EngineError(
                f"no Ray cluster at {place} ({error}); start one with `ray start --head`, or name it with --ray-address"
            ) from error
        try:
            yield
        finally:
            self._ray.shutdown()


def _check_reachable(address: str) -> None:
    """Connect to the cluster's port once: for one that is gone Ray itself repeats that for a quarter of an hour.

    Raises:
        OSError: nothing answers there. ValueError: it is no HOST:PORT.
    """
    if address == "auto":
        from ray._private.services import canonicalize_bootstrap_address

        # No public function of Ray says which cluster "auto" is; that depends on its files and processes.
        address = canonicalize_bootstrap_address(address) or LOCAL
    if address == LOCAL:
        return
    # Of `ray://HOST:PORT`, the form of Ray's client, too; an IPv6 address is in brackets, which a socket does not take.
    host, colon, port = address.rpartition("://")[2].rpartition(":")
    if not (host and colon and port.isdecimal()):
        raise ValueError(f"found the address {address!r}; expected HOST:PORT, auto or local")
    socket.create_connection((host.strip("[]"), int(port)), timeout=REACH_SECONDS).close()


@contextmanager
def _own_sigterm_handler() -> Iterator[None]:
    """Restore a program's own handler of SIGTERM: `ray.init` replaces it by one that exits with 15 and says nothing."""
    before = signal.getsignal(signal.SIGTERM)
    # Only the main thread may set a handler, and only what a program has set (SIG_DFL is no function) is restored.
    if not callable(before) or threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived = False
    try:
        yield
    except SystemExit as left:  # of Ray's handler
        arrived = left.code == signal.SIGTERM
        if not arrived:
            raise
    finally:
        signal.signal(signal.SIGTERM, before)
    if arrived:
        signal.raise_signal(signal.SIGTERM)


def _in_order(queue: _Queue, unit_tasks: Iterator[UnitTask], workers: int) -> Generator[UnitTask]:
    """Keep two units per worker in Ray's queue, and yield finished units in order."""
    waiting: deque[_Started] = deque()
    while True:
        # 4 workers: at most 16 * 4 units are begun or wait for their turn, and 8 of them are in Ray's queue.
        wanted = min(AHEAD * workers - len(waiting), 2 * workers - len(queue.under_way))
        waiting.extend(queue.start(unit_task) for unit_task in islice(unit_tasks, max(0, wanted)))
        if not waiting:
            return
        if waiting[0].done:
            started = waiting.popleft()
            if started.error is not None:
                raise started.error
            yield started.unit_task
        else:
            queue.repeat_late(workers)
            queue.wait()


@dataclass
class _Started:
    """A unit that was submitted to Ray.

    Attributes:
        sent: when it was first submitted, by this process's monotonic clock.
        since: when its attempt was first seen to have begun, by the same clock.
        second: a second attempt, begun by a worker that was idle.
    """

    unit_task: UnitTask
    ref: Any
    sent: float
    second: Any = None
    since: float | None = None
    done: bool = False
    error: NielsError | None = None


class _Queue:
    """The units that were submitted to Ray and are not finished: `under_way`."""

    def __init__(self, ray: Any, job: Any, timeout: float | None) -> None:
        self._ray, self._job, self._timeout = ray, job, timeout
        # SPREAD, because by default Ray prefers machines that are busy already until half of their CPUs are used.
        options = {"num_cpus": 1, "max_retries": RAY_RETRIES, "scheduling_strategy": "SPREAD"}
        self._remote = ray.remote(**options)(_build)
        self.under_way: list[_Started] = []
        self._times: deque[float] = deque(maxlen=LAST_TIMES)  # from submission to the end
        self._late: list[Any] = []  # attempts that were overtaken

    def start(self, unit_task: UnitTask) -> _Started:
        """Submit a unit."""
        started = _Started(unit_task, self._send(unit_task), time.monotonic())
        self.under_way.append(started)
        return started

    def _send(self, unit_task: UnitTask) -> Any:
        return self._remote.remote(self._job, unit_task, str(Path.cwd()))

    def repeat_late(self, workers: int) -> None:
        """Submit units that are late a second time, as many as there are idle workers."""
        if self._late:  # of the overtaken attempts, those that still run
            _, self._late = self._ray.wait(self._late, num_returns=len(self._late), timeout=0)
        second_attempts = sum(started.second is not None for started in self.under_way)
        # 6 units, a second attempt at one of them, and an overtaken attempt that still runs: 8 workers have work.
        busy = len(self.under_way) + second_attempts + len(self._late)
        if busy >= workers or not self._times:
            return
        # Two units a worker are in the queue, so most wait for one other before they begin.
        most = max(LATE_SECONDS, (1 + LATE_TIMES) * median(self._times))
        late = [one for one in self.under_way if one.second is None and time.monotonic() - one.sent > most]
        for started in late[: workers - busy]:
            started.second = self._send(started.unit_task)

    def wait(self) -> None:
        """Wait until one is done, at most half a second; submit those again that died or hang."""
        refs = {started.ref: started for started in self.under_way}
        refs |= {started.second: started for started in self.under_way if started.second is not None}
        ready, _ = self._ray.wait(list(refs), num_returns=1, timeout=POLL_SECONDS)
        for ref in ready:
            self._take(refs[ref], ref)
        if self._timeout is None:
            return
        now = time.monotonic()
        for started in self.under_way:
            # The time in Ray's queue does not count: an attempt has begun when its directory exists.
            if started.since is None:
                started.since = now if started.unit_task.attempts_path.exists() else None
            elif now - started.since > self._timeout:
                # `force` kills the worker. Else Ray raises KeyboardInterrupt in it, which one that hangs may not see.
                self._ray.cancel(started.ref, force=True)
                self._again(started, f"took longer than {self._timeout:g} s")

    def _take(self, started: _Started, ref: Any) -> None:
        try:
            started.error = self._ray.get(ref)  # `None`, or an error that `_build` returned
            started.done = True
            self.under_way.remove(started)
            self._times.append(time.monotonic() - started.sent)
            # The other attempt at the unit goes on, and a CPU is busy with it.
            self._late += [other for other in (started.ref, started.second) if other not in (ref, None)]
        except self._ray.exceptions.RayTaskError as error:
            # Raised in a source or an encoder of the user's; errors of this package are returned.
            raise error.cause from error
        except self._ray.exceptions.RayError as error:
            if ref == started.second:  # the first attempt goes on
                started.second = None
                return
            self._again(started, f"died ({type(error).__name__})")

    def _again(self, started: _Started, why: str) -> None:
        if started.unit_task.attempt + 1 == MOST_ATTEMPTS:
            unit = started.unit_task
            raise EngineError(
                f"unit {unit.number} {why}, {MOST_ATTEMPTS} times over ({unit.part}); see Ray's logs, or give it more "
                "time (--unit-timeout) or less to do (--unit-bytes), then run the same command again"
            )
        started.unit_task = started.unit_task.again()
        started.ref, started.since = self._send(started.unit_task), None

    def cancel(self) -> None:
        """Cancel everything that is not finished."""
        refs = [ref for started in self.under_way for ref in (started.ref, started.second) if ref is not None]
        for ref in refs + self._late:
            self._ray.cancel(ref, force=True)


def _build(job: bytes, unit_task: UnitTask, folder: str) -> NielsError | None:
    """Build a unit on a worker, in the driver's working directory, so that relative paths mean the same."""
    try:
        with chdir(folder):
            build_unit(*unpickled_job(job), unit_task)
    except NielsError as error:
        return error
    return None
