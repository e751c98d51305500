"""Units on a Ray cluster.

A worker receives the task and source (once), and a path and a range for each unit. It returns `None` or an error; ids
never pass through Ray. Units are written to the folder beside the output, which all machines must see under the same
path. Ray begins a unit again when its worker or node dies; a worker that takes too long ends itself (`pool.py`).
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from contextlib import chdir, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from niels_gpt.builds.executor import pickled_job
from niels_gpt.builds.pool import AHEAD, ending_after, unpickled_job
from niels_gpt.builds.tasks import Task
from niels_gpt.builds.units import UnitTask, build_unit
from niels_gpt.errors import EngineError, NielsError
from niels_gpt.extras import check_library
from niels_gpt.progress import SILENT, Progress
from niels_gpt.ranges import UNIT_TIMEOUT, WORKERS
from niels_gpt.sources.files.slices import Sliceable

RAY_RETRIES = 8  # of one unit, after its worker or node died
LOCAL = "local"
REACH_SECONDS = 10.0  # for one connection to the cluster's port


class RayRunner:
    """Builds units as Ray tasks of one CPU each.

    Args:
        address: of the cluster; `None` is $RAY_ADDRESS, or else "local": a cluster that is started on this machine and
            stopped afterwards. "auto" is the one that runs on this machine already. If the program has called
            `ray.init`, that connection is used.
        workers: number of units that are built at once; `None` is the number of the cluster's CPUs.
        timeout: seconds after which a worker ends itself at a unit; `None` waits for ever.

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

    def run(
        self, task: Task, source: Sliceable, unit_tasks: Iterable[UnitTask], progress: Progress = SILENT
    ) -> Generator[UnitTask]:
        """See `executor.Runner`.

        Raises:
            EngineError: the cluster cannot be reached, or a unit's workers died or took too long, nine times.
        """
        with self._connected():
            # SPREAD, because by default Ray prefers machines that are busy already until half of their CPUs are used.
            options = {"num_cpus": 1, "max_retries": RAY_RETRIES, "scheduling_strategy": "SPREAD"}
            remote, folder = self._ray.remote(**options)(_build), str(Path.cwd())
            workers = self._workers or max(1, int(self._ray.cluster_resources().get("CPU", 1)))
            job = self._ray.put(pickled_job(task, source))
            unit_tasks, waiting = iter(unit_tasks), deque[tuple[UnitTask, Any]]()
            under_way: list[Any] = []
            try:
                while True:
                    # 4 workers: at most 16 * 4 units are begun or wait for their turn, 8 of them in Ray's queue.
                    wanted = min(AHEAD * workers - len(waiting), 2 * workers - len(under_way))
                    for unit_task in islice(unit_tasks, max(0, wanted)):
                        under_way.append(remote.remote(job, unit_task, folder, self._timeout))
                        waiting.append((unit_task, under_way[-1]))
                    if not waiting:
                        return
                    if waiting[0][1] in under_way:
                        _, under_way = self._ray.wait(under_way, num_returns=1)
                    else:
                        self._check(*waiting[0])
                        yield waiting.popleft()[0]
            finally:
                for ref in under_way:
                    # `force` kills the worker. Else Ray raises KeyboardInterrupt in it, which may not be seen.
                    self._ray.cancel(ref, force=True)

    def _check(self, unit_task: UnitTask, ref: Any) -> None:
        """Raise the error of a unit that has ended."""
        try:
            error: NielsError | None = self._ray.get(ref)
        except self._ray.exceptions.RayTaskError as raised:
            # Raised in a source or an encoder of the user's; errors of this package are returned.
            raise raised.cause from raised
        except self._ray.exceptions.RayError as lost:
            late = "" if self._timeout is None else f" or took longer than {self._timeout:g} s"
            raise EngineError(
                f"unit {unit_task.number}: its workers died{late}, {RAY_RETRIES + 1} times over ({unit_task.part}; "
                f"{type(lost).__name__}); see Ray's logs, or give it more time (--unit-timeout) or less to do "
                "(--unit-bytes), then run the same command again"
            ) from lost
        if error is not None:
            raise error

    @contextmanager
    def _connected(self) -> Iterator[None]:
        if self._ray.is_initialized():  # by the program, which uses its connection afterwards
            yield
            return
        # Without an address Ray connects to the cluster named in a file in its temporary directory, even a dead one.
        address = self._address or os.environ.get("RAY_ADDRESS") or LOCAL
        before = signal.getsignal(signal.SIGTERM)
        try:
            _check_reachable(address)
            # Ray refuses `num_cpus` for a cluster that exists already.
            self._ray.init(address=address, num_cpus=self._workers if address == LOCAL else None, log_to_driver=False)
        except (OSError, RuntimeError, ValueError) as error:
            place = "this machine" if address == LOCAL else address
            raise EngineError(
                f"no Ray cluster at {place} ({error}); start one with `ray start --head`, or name it with --ray-address"
            ) from error
        finally:
            # `ray.init` replaces a program's handler by one that exits with 15 and says nothing. Only the main thread
            # may set a handler, and only what a program has set (SIG_DFL is no function) is restored.
            if callable(before) and threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, before)
        try:
            yield
        finally:
            self._ray.shutdown()


def _check_reachable(address: str) -> None:
    """Connect to the cluster's port once: for one that is gone Ray itself repeats that for a quarter of an hour.

    Raises:
        OSError: nothing answers there. ValueError: it is no HOST:PORT.
    """
    if address in (LOCAL, "auto"):
        return
    # Of `ray://HOST:PORT`, the form of Ray's client, too; an IPv6 address is in brackets, which a socket does not take.
    host, colon, port = address.rpartition("://")[2].rpartition(":")
    if not (host and colon and port.isdecimal()):
        raise ValueError(f"found the address {address!r}; expected HOST:PORT, auto or local")
    socket.create_connection((host.strip("[]"), int(port)), timeout=REACH_SECONDS).close()


def _build(job: bytes, unit_task: UnitTask, folder: str, timeout: float | None) -> NielsError | None:
    """Build a unit on a worker, in the driver's working directory, so that relative paths mean the same."""
    try:
        with chdir(folder), ending_after(timeout):
            build_unit(*unpickled_job(job), unit_task)
    except NielsError as error:
        return error
    return None
