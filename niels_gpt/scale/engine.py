"""An engine that cuts the input into units, has them built somewhere, and hands them on in order.

::

    slices of the input -> tasks -> Runner: units, in any order -> checked, in order -> portions -> split and files

A unit is finished when its directory has its name. A build that dies leaves its finished units, and the next one
with the same recipe only builds the others. Because units are taken in order and hold nothing that depends on
where they are cut, the bytes are those of a build without units.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol

from niels_gpt.errors import DataError, StorageError, UsageError
from niels_gpt.inputs import Rejected
from niels_gpt.portions import Portion, Work
from niels_gpt.progress import Progress
from niels_gpt.ranges import UNIT_BYTES
from niels_gpt.scale import kept
from niels_gpt.scale.finished import Unit
from niels_gpt.scale.units import Task, build_unit, forget
from niels_gpt.sources.rejections import Rejections
from niels_gpt.sources.slices import SLICE_BYTES, Sliceable


class Runner(Protocol):
    """Builds units, somewhere."""

    def run(self, work: Work, source: Sliceable, tasks: Iterable[Task]) -> Generator[Task]:
        """Each task in order, as soon as its unit is there; a few are begun ahead.

        Raises:
            NielsError: of the first task, in order, that failed.
        """


class UnitEngine:
    """See the module; `portions.Engine`.

    Args:
        runner: `local.LocalRunner` or `rays.RayRunner`.
        slice_bytes: size of a unit, in bytes of input; the result does not depend on it.
    """

    def __init__(self, runner: Runner, *, slice_bytes: int = SLICE_BYTES) -> None:
        UNIT_BYTES.check(slice_bytes)
        self._runner = runner
        self._slice_bytes = slice_bytes
        self._read: float | None = None
        self._folder: Path | None = None

    def portions(
        self,
        work: Work,
        rows: Iterable[Any],
        rejections: Rejections,
        *,
        out: Path,
        recipe: Mapping[str, Any],
        progress: Progress,
    ) -> Generator[Portion]:
        """See `Engine`; `rows` is a source that can be cut.

        Raises:
            UsageError: another kind of rows.
        """
        if not isinstance(rows, Sliceable):
            raise UsageError(
                f"{type(rows).__name__} cannot be cut into units; pass the source itself (ChatFile(path)), or no engine"
            )
        source = rows.settled()
        folder = self._folder = kept.prepare(out, recipe, self._slice_bytes, progress)
        self._read = None
        tasks = (
            Task(number, part, folder, rejections.most) for number, part in enumerate(source.slices(self._slice_bytes))
        )
        kept_rows = 0
        with closing(self._runner.run(work, source, tasks)) as running:
            for task in running:
                unit = _checked(work, source, task, progress)
                yield from _handed_on(unit, rejections)
                kept_rows += unit.rows
                self._read = task.part.read
        if not kept_rows:  # the build will fail, and nothing here is worth keeping
            forget(kept.units_path(out))

    def read_share(self) -> float | None:
        """See `Engine`."""
        return self._read

    def discard(self, out: Path) -> None:
        """See `Engine`."""
        self._folder = None
        kept.discard(out)

    def keep(self, out: Path, progress: Progress) -> None:
        """See `Engine`; nothing if this engine had not begun, as where another process is building."""
        folder, self._folder = self._folder, None
        if folder is not None:
            kept.keep_or_drop(out, folder, progress)


def _handed_on(unit: Unit, rejections: Rejections) -> Generator[Portion]:
    try:
        for part in unit.contents():
            if isinstance(part, Rejected):
                rejections.take([part])
            else:
                yield part
        rejections.changed.update(unit.changed)
    finally:
        if unit.stopped:  # `take` has raised, or nobody wants more; another run may allow more bad rows
            forget(unit.path)


def _checked(work: Work, source: Sliceable, task: Task, progress: Progress) -> Unit:
    """The unit; one that was damaged since it was written is built once more, here."""
    try:
        return Unit(task.path)
    except StorageError:
        raise
    except DataError as error:
        progress.note(str(error))
        forget(task.path)
        build_unit(work, source, task)
        return Unit(task.path)
