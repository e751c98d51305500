"""Tasks: the part of a build that runs anywhere, in any process, on any machine.

::

    rows --Task.chunks--> Chunk, Chunk, ... --split, writers--> files
          ^^^^^^^^^^^
          in units (units.py), built where the executor says (executor.py)

A task turns each row into ids without regard to the other rows, so the input may be cut anywhere. A task pickles, so it
can be sent to other processes. What depends on the order of rows (the split, the shuffle buffer, the budgets, the
files) comes after the chunks and stays in one process.

Tasks are in `documents` (texts), `conversations` (chats) and `preferences.encode`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

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

    def only(self, chosen: npt.NDArray[np.bool_]) -> Chunk:
        """The chosen rows.

        One flag per row becomes one per id: `# .` with lengths 2 3 gives `# # . . .`
        """
        tokens, rows = np.repeat(chosen, self.lengths), np.flatnonzero(chosen).tolist()
        weights = self.weights[tokens] if len(self.weights) else self.weights
        metadata = [self.metadata[row] for row in rows] if self.metadata else ()
        return Chunk(self.ids[tokens], self.lengths[chosen], weights, [self.groups[row] for row in rows], metadata)


class Task(Protocol):
    """Encodes rows. The ids of a row depend on that row alone, never on where the input is cut."""

    @property
    def binary_mask(self) -> bool:
        """Whether all weights are 0 or 1, so that units store them as uint8."""

    def chunks(self, rows: Iterable[Any], rejections: Rejections) -> Iterator[Chunk]:
        """Encode the rows in order; rows that cannot be used go to `rejections`, also in order."""


@runtime_checkable
class ReadsFiles(Protocol):
    """A task that also reads files which the recipe does not name, such as images."""

    def is_current(self, contents: Iterable[Chunk | Rejected]) -> bool:
        """Whether files are unchanged, so that this run would make the same of these rows as an earlier run did."""
