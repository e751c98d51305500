"""`UnitExecutor`: a source is built in units, in this process or elsewhere; the bytes do not depend on it.

::

    source --slices--> UnitTasks --Runner--> units, finished in any order
                                               |
              split and files <-- chunks <-- read one by one, in order

A unit is finished when its file has its final name, see `units.py`. A build that dies leaves its finished units,
and the next build of the same recipe makes only the others. Units are read in order and contain nothing that depends on
where the input was cut, so the output does not depend on the units.

`LocalRunner` builds units in processes of this machine, `ray_executor.RayRunner` on a Ray cluster.
"""

from __future__ import annotations

import pickle
from collections.abc import Generator, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from niels_gpt.builds import units
from niels_gpt.builds.pool import built_in_order
from niels_gpt.builds.tasks import Chunk, ReadsFiles, Task
from niels_gpt.builds.units import Unit, UnitTask, build_unit
from niels_gpt.errors import DataError, UsageError, storage_errors
from niels_gpt.progress import Progress
from niels_gpt.ranges import UNIT_BYTES, WORKERS
from niels_gpt.sources.files.inputs import Rejected
from niels_gpt.sources.files.slices import SLICE_BYTES, Sliceable
from niels_gpt.sources.rejections import Rejections


class Runner(Protocol):
    """Builds units: in this process, in others, or on other machines."""

    def run(self, task: Task, source: Sliceable, unit_tasks: Iterable[UnitTask]) -> Generator[UnitTask]:
        """Yield each unit task in order, as soon as its unit is finished. Some later units are built ahead.

        Raises:
            NielsError: of the first unit, in order, that failed.
        """


@dataclass(frozen=True)
class LocalRunner:
    """Builds units in this process, or in several worker processes.

    Attributes:
        workers: number of processes; 1 means this one.

    Raises:
        UsageError: a number of workers out of range.
    """

    workers: int = 1

    def __post_init__(self) -> None:
        WORKERS.check(self.workers)

    def run(self, task: Task, source: Sliceable, unit_tasks: Iterable[UnitTask]) -> Generator[UnitTask]:
        """See `Runner`.

        Raises:
            UsageError: the task or the source does not pickle. EngineError: the workers of a unit died, three times.
        """
        if self.workers > 1:
            yield from built_in_order(pickled_job(task, source), unit_tasks, self.workers)
            return
        for unit_task in unit_tasks:
            build_unit(task, source, unit_task)
            yield unit_task


@dataclass(frozen=True)
class UnitExecutor:
    """Builds a source in units.

    Attributes:
        runner: `LocalRunner` or `ray_executor.RayRunner`.
        slice_bytes: size of a unit, in bytes of input; the output does not depend on it.
    """

    runner: Runner = field(default_factory=LocalRunner)
    slice_bytes: int = SLICE_BYTES

    def __post_init__(self) -> None:
        UNIT_BYTES.check(self.slice_bytes)

    def chunks(
        self,
        task: Task,
        source: Sliceable,
        rejections: Rejections,
        *,
        out: Path,
        recipe: Mapping[str, Any],
        progress: Progress,
    ) -> Generator[Chunk]:
        """The chunks of all units, in order; rejected rows are recorded between them, in the order of the input.

        When the generator is closed, all workers have stopped.

        Args:
            out, recipe: the output directory, beside which units are stored, and what decides its bytes.
        """
        # Once, here: all workers must read the same files, commit and format, and finding these may take requests.
        source = source.resolved()
        folder = units.prepare(out, recipe, self.slice_bytes, progress)
        earlier = {path.name for path in folder.glob(units.FINISHED)}
        # Lazy: to find the slices the input is read, while the runner builds the first units.
        unit_tasks = (UnitTask(number, part, folder) for number, part in enumerate(source.slices(self.slice_bytes)))
        is_here = isinstance(self.runner, LocalRunner)
        # Closed here, not by the garbage collector: the runner's workers end before this generator does.
        with closing(self.runner.run(task, source, unit_tasks)) as finished:
            for unit_task in finished:
                is_earlier = unit_task.path.name in earlier
                # What this machine has written just now is not compared with its checksum.
                unit = _opened(task, source, unit_task, is_earlier, is_earlier or not is_here, progress)
                for part in unit.contents():
                    if isinstance(part, Rejected):
                        rejections.record([part])
                    else:
                        yield part
                # A `Counter` adds what it is updated with.
                rejections.changed.update(unit.changed)
                rejections.unread.update(unit.unread)
                progress.reached(unit_task.part.read)


IN_THIS_PROCESS: Final = UnitExecutor()


def _opened(
    task: Task, source: Sliceable, unit_task: UnitTask, is_earlier: bool, check: bool, progress: Progress
) -> Unit:
    """A finished unit. If it cannot be used, it is built again, in this process.

    Args:
        is_earlier: an earlier run built it, so the files (images) that its rows name may have changed since: the
            recipe's hash covers which ones they are, not their bytes.
        check: compare its checksum.
    """
    try:
        unit = Unit(unit_task.path, check=check)
        if is_earlier and isinstance(task, ReadsFiles) and not task.is_current(unit.contents()):
            raise DataError(f"{unit_task.path}: made with other files than are there now; the unit is built again")
    except DataError as error:
        progress.note(str(error))
        with storage_errors("deleting the unit", unit_task.path):
            unit_task.path.unlink(missing_ok=True)
        build_unit(task, source, unit_task)
        return Unit(unit_task.path)
    return unit


def pickled_job(task: Task, source: Sliceable) -> bytes:
    """The task and the source as bytes, sent to a worker once for all units.

    Raises:
        UsageError: something in them does not pickle.
    """
    try:
        return pickle.dumps((task, source))
    except Exception as error:  # libraries raise TypeError, AttributeError, PicklingError, RuntimeError, ...
        raise UsageError(
            f"the encoder or the source cannot be sent to other processes ({error}); make it picklable, or use one "
            "worker"
        ) from error
