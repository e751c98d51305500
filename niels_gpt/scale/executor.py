"""`UnitExecutor`: builds in units, on this machine or elsewhere, with the same bytes as a build without units.

::

    source --slices--> UnitTasks --Runner--> units, finished in any order
                                               |
              split and files <-- chunks <-- checked one by one, in order

A unit is finished when its directory has its final name, see `builds/units.py`. A build that dies leaves its finished
units, and the next build of the same recipe makes only the others. Units are read in order and contain nothing that
depends on where the input was cut, so the output does not depend on the units.

`LocalRunner` builds units in processes of this machine, `ray_executor.RayRunner` on a Ray cluster.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Generator, Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol

from niels_gpt import ranges
from niels_gpt.builds import unit_folder
from niels_gpt.builds.tasks import Chunk, ReadsFiles, Task
from niels_gpt.builds.unit_reader import Unit
from niels_gpt.builds.units import UnitTask, build_unit, is_finished
from niels_gpt.errors import DataError, StorageError, UsageError
from niels_gpt.progress import Progress
from niels_gpt.ranges import UNIT_BYTES
from niels_gpt.scale.process_pool import built_in_order
from niels_gpt.sources.files.inputs import Rejected
from niels_gpt.sources.files.slices import SLICE_BYTES, Sliceable
from niels_gpt.sources.rejections import Rejections
from niels_gpt.storage.staging import rename_and_delete

LOOK_SECONDS = 1.0  # between two measurements of unfinished units, for the progress


class Runner(Protocol):
    """Builds units: in this process, in others, or on other machines."""

    def run(self, task: Task, source: Sliceable, unit_tasks: Iterable[UnitTask]) -> Generator[UnitTask]:
        """Yield each unit task in order, as soon as its unit is finished. Some later units are built ahead.

        Raises:
            NielsError: of the first unit, in order, that failed.
        """


class UnitExecutor:
    """An `Executor` that builds in units.

    Args:
        runner: `LocalRunner` or `ray_executor.RayRunner`.
        slice_bytes: size of a unit, in bytes of input; the output does not depend on it.
    """

    def __init__(self, runner: Runner, *, slice_bytes: int = SLICE_BYTES) -> None:
        UNIT_BYTES.check(slice_bytes)
        self._runner = runner
        self._slice_bytes = slice_bytes
        self._fraction_read: float | None = None
        self._folder: Path | None = None

    def chunks(
        self,
        task: Task,
        rows: Iterable[Any],
        rejections: Rejections,
        *,
        out: Path,
        recipe: Mapping[str, Any],
        progress: Progress,
    ) -> Generator[Chunk]:
        """The chunks of all units, in order; see `Executor`. `rows` must be a source that can be cut into slices.

        Raises:
            UsageError: another kind of rows.
        """
        if not isinstance(rows, Sliceable):
            raise UsageError(
                f"{type(rows).__name__} cannot be cut into units; pass the source itself (ChatFile(path)), or no "
                "executor"
            )
        # Once, here: all workers must read the same files, commit and format, and finding these may take requests.
        source = rows.resolved()
        folder = self._folder = unit_folder.prepare(out, recipe, self._slice_bytes, progress)
        # An executor may run several builds, one after the other.
        self._fraction_read = None
        watch = _Watch(progress)
        # Lazy: to find the slices the input is read, while the runner builds the first units.
        unit_tasks = (
            watch.begun(_without_outdated(task, UnitTask(number, part, folder), progress))
            for number, part in enumerate(unit_folder.listed(folder, source, self._slice_bytes))
        )
        usable_rows = 0
        # Closed here, not by the garbage collector: the runner's workers end before this generator does.
        with watch, closing(self._runner.run(task, source, unit_tasks)) as finished:
            for unit_task in finished:
                # Opening compares checksums: a unit of an earlier run may have been damaged since.
                unit = _open_unit(task, source, unit_task, progress)
                before, tokens = self._fraction_read or 0.0, 0
                for chunk in _chunks_of(unit, rejections):
                    tokens += len(chunk.ids)
                    # A unit from 0.2 to 0.4 of the input, of which half of the tokens have been taken: 0.2 + 0.2 * 0.5
                    # = 0.3.
                    self._fraction_read = before + (unit_task.part.read - before) * tokens / max(1, unit.tokens)
                    yield chunk
                usable_rows += unit.rows
                self._fraction_read = unit_task.part.read
                watch.consumed(unit_task)
        if not usable_rows:  # the build is about to fail with "no usable rows", and the units hold nothing
            rename_and_delete(unit_folder.units_path(out))

    def fraction_read(self) -> float | None:
        """The share of the input that is in the output, 0 to 1; `None` before the first chunk."""
        return self._fraction_read

    def build_finished(self, out: Path) -> None:
        """Delete the units of a finished build."""
        self._folder = None
        unit_folder.delete_all(out)

    def build_failed(self, out: Path, progress: Progress) -> None:
        """Retain the units of a build that failed, if the next one can continue with them; else delete them."""
        folder, self._folder = self._folder, None
        # `None` if this executor had not begun, for example because another process is building here.
        if folder is not None:
            unit_folder.retain_or_delete(out, folder, progress)


class _Watch:
    """Reports to the progress which share of the input is done, with the parts of units that are being built.

    A thread measures once a second, because this process may itself be busy building a unit.
    """

    def __init__(self, progress: Progress) -> None:
        self._progress, self._end = progress, threading.Event()
        self._lock = threading.Lock()
        self._begun: dict[int, UnitTask] = {}  # those that are not consumed
        self._consumed = 0.0  # the share of the input

    def begun(self, unit_task: UnitTask) -> UnitTask:
        """Note that a unit is given to the runner; returns it."""
        with self._lock:
            self._begun[unit_task.number] = unit_task
        return unit_task

    def consumed(self, unit_task: UnitTask) -> None:
        """Note that the output contains a unit."""
        with self._lock:
            self._begun.pop(unit_task.number, None)
            self._consumed = unit_task.part.read
        self._report()  # at once, because at the end of a build there may be no next second

    def __enter__(self) -> _Watch:
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._end.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._end.wait(LOOK_SECONDS):
            self._report()

    def _report(self) -> None:
        with self._lock:
            begun, before = list(self._begun.values()), self._consumed
        done = before
        for unit_task in begun:
            # Units end at 0.2 0.5 0.6 of the input; half of the first and all of the second are done: 0.1 + 0.3.
            done += unit_task.share_done() * (unit_task.part.read - before)
            before = unit_task.part.read
        if done:
            self._progress.reached(done)


def _chunks_of(unit: Unit, rejections: Rejections) -> Generator[Chunk]:
    """The unit's chunks; rejected rows are recorded between them, in the order of the input."""
    for part in unit.contents():
        if isinstance(part, Rejected):
            rejections.record([part])
        else:
            yield part
    # A `Counter` adds what it is updated with.
    rejections.changed.update(unit.changed)
    rejections.unread.update(unit.unread)


def _without_outdated(task: Task, unit_task: UnitTask, progress: Progress) -> UnitTask:
    """The same unit task, after deleting a unit of an earlier run that read files (images) which have changed since."""
    # Which images rows name is part of the input, which the recipe's hash covers; the bytes of these files are not.
    if isinstance(task, ReadsFiles) and is_finished(unit_task):
        try:
            current = task.is_current(_contents(unit_task.path))
        except DataError:  # damaged: it is built again when it is opened
            return unit_task
        if not current:
            progress.note(f"{unit_task.path}: made with other files than are there now; the unit is built again")
            rename_and_delete(unit_task.path)
    return unit_task


def _contents(path: Path) -> Generator[Chunk | Rejected]:
    """The contents of a unit. A generator, because opening a unit reads all of it, and most tasks do not need that."""
    yield from Unit(path).contents()


def _open_unit(task: Task, source: Sliceable, unit_task: UnitTask, progress: Progress) -> Unit:
    """Open a finished unit; if it was damaged after it was written, build it again, in this process."""
    try:
        return Unit(unit_task.path)
    except StorageError:  # a DataError too, but building again would not help on a disk that refuses
        raise
    except DataError as error:
        progress.note(str(error))
        rename_and_delete(unit_task.path)
        build_unit(task, source, unit_task)
        return Unit(unit_task.path)


class LocalRunner:
    """Builds units in this process, or in several worker processes.

    Args:
        workers: number of processes; 1 means this one, unless there is a timeout.
        timeout: seconds after which a worker counts as hung at a unit; `None` waits for ever. A process cannot watch
            itself, so with a timeout a single worker is a process of its own too.

    Raises:
        UsageError: a number of workers or a timeout out of range.
    """

    def __init__(self, workers: int = 1, *, timeout: float | None = None) -> None:
        ranges.WORKERS.check(workers)
        ranges.UNIT_TIMEOUT.check(timeout)
        self._workers, self._timeout = workers, timeout

    def run(self, task: Task, source: Sliceable, unit_tasks: Iterable[UnitTask]) -> Generator[UnitTask]:
        """See `Runner`.

        Raises:
            UsageError: the task or the source does not pickle.
            EngineError: the workers of a unit died or took too long, three times.
        """
        if self._workers > 1 or self._timeout is not None:
            yield from built_in_order(pickled_job(task, source), unit_tasks, self._workers, self._timeout)
        else:
            for unit_task in unit_tasks:
                build_unit(task, source, unit_task)
                yield unit_task


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
