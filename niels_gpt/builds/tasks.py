"""Tasks and executors: the part of a build that runs anywhere, and what runs it.

::

    rows --Task.chunks--> Chunk, Chunk, ... --split, writers--> files
          ^^^^^^^^^^^
          an Executor decides in how many processes, and on which machines

A task turns each row into ids without regard to the other rows, so the input may be cut anywhere. A task pickles, so an
executor can send it to other processes. What depends on the order of rows (the split, the shuffle buffer, the budgets,
the files) comes after the chunks and stays in one process.

Tasks are in `documents` (texts) and `conversations` (chats). `SerialExecutor` is here, `UnitExecutor` in
`niels_gpt.scale`.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from niels_gpt.progress import Progress
from niels_gpt.sources.files.inputs import Rejected
from niels_gpt.sources.rejections import Rejections

RowMetadata = Mapping[str, Any]


@dataclass(frozen=True)
class Chunk:
    """Some encoded rows (conversations or documents), ready to be split and written.

    Two rows of 3 and 2 ids::

        ids      [7 8 9 4 5]        lengths  [3 2]
        weights  [0 1 1 0 1]        groups   [None, "tree-17"]

    Attributes:
        ids: integers, the rows concatenated, shape (n,).
        lengths: number of ids of each row, int64.
        weights: loss weights, float32 or uint8 of shape (n,); 0 is not trained. Shape (0,) for documents.
        groups: per row; neighbouring rows with the same group go to the same split.
        metadata: per row, what else is stored with it, such as its row of `episodes.parquet`; empty where nothing is.
    """

    ids: npt.NDArray[np.integer[Any]]
    lengths: npt.NDArray[np.int64]
    weights: npt.NDArray[Any]
    groups: Sequence[str | None]
    metadata: Sequence[RowMetadata] = ()


class Task(Protocol):
    """Encodes rows. The ids of a row depend on that row alone, never on where the input is cut."""

    @property
    def binary_mask(self) -> bool:
        """Whether all weights are 0 or 1, so that units store them as uint8."""

    @property
    def with_metadata(self) -> bool:
        """Whether chunks have `metadata`."""

    def chunks(self, rows: Iterable[Any], rejections: Rejections) -> Iterator[Chunk]:
        """Encode the rows in order; rows that cannot be used go to `rejections`, in order too."""


@runtime_checkable
class ReadsFiles(Protocol):
    """A task that also reads files which the recipe does not name, such as images."""

    def is_current(self, contents: Iterable[Chunk | Rejected]) -> bool:
        """Whether files are unchanged, so that this run would make the same of these rows as an earlier run did."""


class Executor(Protocol):
    """Runs the task of a build: in this process, in several, or on several machines."""

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
        """The chunks of all rows, in the order of the rows; rejections come in that order too.

        When the generator is closed, all workers have stopped.

        Args:
            out, recipe: the output directory and its recipe, for executors that store finished units beside it.
        """

    def fraction_read(self) -> float | None:
        """How much of the input has been read, 0 to 1; `None` if that is not known."""

    def build_finished(self, out: Path) -> None:
        """`out` is complete: delete whatever is stored beside it."""

    def build_failed(self, out: Path, progress: Progress) -> None:
        """`out` was not completed: report what the next run can use, if anything."""


class SerialExecutor:
    """Runs the task in this process and stores nothing."""

    # Nothing to report or to delete, so `out`, `recipe` and `progress` are not used here.

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
        """See `Executor`."""
        yield from task.chunks(rows, rejections)

    def fraction_read(self) -> float | None:
        """See `Executor`."""
        return None

    def build_finished(self, out: Path) -> None:
        """See `Executor`."""

    def build_failed(self, out: Path, progress: Progress) -> None:
        """See `Executor`."""


SERIAL: Final = SerialExecutor()


@contextmanager
def reporting_outcome(executor: Executor, out: Path, progress: Progress) -> Iterator[None]:
    """Report to the executor whether the block completed `out`, so that it deletes or retains the units beside it."""
    try:
        yield
    except BaseException:  # Ctrl-C too must not lose finished units
        executor.build_failed(out, progress)
        raise
    executor.build_finished(out)
