"""Units on a Ray cluster.

A worker receives the task and source (once), and a path and a range for each unit; ids never pass through Ray. Units
are written to the folder beside the output, which all machines must see under the same path. Ray begins a unit again
when its worker or node dies.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from contextlib import chdir, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from niels_gpt.builds.executor import pickled_job
from niels_gpt.builds.pool import AHEAD, unpickled_job
from niels_gpt.builds.tasks import Task
from niels_gpt.builds.units import UnitTask, build_unit
from niels_gpt.errors import EngineError, NielsError
from niels_gpt.extras import check_library
from niels_gpt.ranges import WORKERS
from niels_gpt.sources.files.slices import Sliceable

RAY_RETRIES = 8  # of one unit, after its worker or node died
LOCAL = "local"


class RayRunner:
    """Builds units as Ray tasks of one CPU each.

    Args:
        address: of the cluster; `None` is $RAY_ADDRESS, or else "local": a cluster that is started on this machine and
            stopped afterwards. "auto" is the one that runs on this machine already. If the program has called
            `ray.init`, that connection is used.
        workers: number of units that are built at once; `None` is the number of the cluster's CPUs.

    Raises:
        MissingExtra: Ray is not installed. UsageError: its version does not fit, or a number out of range.
    """

    def __init__(self, address: str | None = None, *, workers: int | None = None) -> None:
        WORKERS.check(workers)
        check_library("ray")
        import ray
        import ray.exceptions

        self._ray: Any = ray
        self._address, self._workers = address, workers

    def run(self, task: Task, source: Sliceable, unit_tasks: Iterable[UnitTask]) -> Generator[UnitTask]:
        """See `executor.Runner`.

        Raises:
            EngineError: there is no such cluster, or a unit's workers died nine times.
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
                        under_way.append(remote.remote(job, unit_task, folder))
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
            raise EngineError(
                f"unit {unit_task.number}: its workers died {RAY_RETRIES + 1} times ({unit_task.part}; "
                f"{type(lost).__name__}); see Ray's logs, or give it less to do (--unit-bytes), then run the same "
                "command again"
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


def _build(job: bytes, unit_task: UnitTask, folder: str) -> NielsError | None:
    """Build a unit on a worker, in the driver's working directory, so that relative paths mean the same."""
    try:
        with chdir(folder):
            build_unit(*unpickled_job(job), unit_task)
    except NielsError as error:
        return error
    return None
