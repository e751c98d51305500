"""Units in processes of this machine."""

from __future__ import annotations

import pickle
from collections.abc import Generator, Iterable

from niels_gpt import ranges
from niels_gpt.errors import UsageError
from niels_gpt.portions import Work
from niels_gpt.scale.pool import Pool
from niels_gpt.scale.units import Task, build_unit
from niels_gpt.sources.slices import Sliceable


def check_timeout(timeout: float | None) -> float | None:
    """The seconds after which a unit's worker counts as hung.

    Raises:
        UsageError: less than a millisecond, or no number.
    """
    ranges.UNIT_TIMEOUT.check(timeout)
    return timeout


class LocalRunner:
    """Builds units in this process, or in several of their own.

    Args:
        workers: how many processes; 1 is this one, unless there is a timeout.
        timeout: seconds after which a worker counts as hung at a unit; `None` waits for ever. A process cannot watch
            itself, so with a timeout one worker is a process of its own too.

    Raises:
        UsageError: a number of workers or a timeout out of range.
    """

    def __init__(self, workers: int = 1, *, timeout: float | None = None) -> None:
        ranges.WORKERS.check(workers)
        self._workers, self._timeout = workers, check_timeout(timeout)

    def run(self, work: Work, source: Sliceable, tasks: Iterable[Task]) -> Generator[Task]:
        """See `engine.Runner`.

        Raises:
            UsageError: the work cannot be sent to other processes.
            EngineError: a unit's workers died or hung three times.
        """
        if self._workers > 1 or self._timeout is not None:
            yield from Pool(parcel(work, source), self._workers, self._timeout).run(tasks)
        else:
            for task in tasks:
                build_unit(work, source, task)
                yield task


def parcel(work: Work, source: Sliceable) -> bytes:
    """What a worker needs to know, once for all units.

    Raises:
        UsageError: something in it does not pickle.
    """
    try:
        return pickle.dumps((work, source))
    except Exception as error:  # each library refuses in its own way
        raise UsageError(
            f"the encoder or the source cannot be sent to other processes ({error}); make it picklable, or use one "
            "worker"
        ) from error
