"""Many rows of token ids as flat arrays (`TokenRows`).

Rows of ids are concatenated, so that judging them is a handful of numpy calls however many rows a slice has::

    row 0    5 6 7        row 1    8 9
    ids      5 6 7 8 9        shape (tokens,)
    starts   0     3   5      shape (rows + 1,)
    row_of   0 0 0 1 1        shape (tokens,)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

Bools = npt.NDArray[np.bool_]
Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True)
class TokenRows:
    """Rows of ids, concatenated; no row is empty.

    Attributes:
        numbers: index of each row in the input, int64 of shape (rows,).
        wheres: where each row comes from, for reports (`chats.jsonl:17`).
        ids: int64 of shape (tokens,).
        starts: int64 of shape (rows + 1,): row r is `ids[starts[r] : starts[r + 1]]`.
        trained: bool of shape (tokens,), aligned with the ids: the token is in the loss when it is predicted. `None`
            where the data has no mask.
        labels: int64 of shape (tokens,) where the data has labels, unshifted as the Hugging Face trainers take them.
        attended: bool of shape (tokens,), False where an attention mask marks padding; `None` without one.
        documents: int64 of shape (tokens,): a number that changes where another text of a packed row begins; `None`
            where the data does not record it.
        mask_from: the column that `trained` comes from; empty where the dataset is one of ours.
    """

    numbers: Int64s
    wheres: Sequence[str]
    ids: Int64s
    starts: Int64s
    trained: Bools | None = None
    labels: Int64s | None = None
    attended: Bools | None = None
    documents: Int64s | None = None
    mask_from: str = ""

    def __len__(self) -> int:
        return len(self.numbers)

    @cached_property
    def lengths(self) -> Int64s:
        """Tokens of each row, shape (rows,)."""
        return np.diff(self.starts)

    @cached_property
    def row_of(self) -> Int64s:
        """The row of each token, shape (tokens,)."""
        return np.repeat(np.arange(len(self)), self.lengths)

    @cached_property
    def first_of_document(self) -> Bools:
        """True on the first token of a row, and of each text of a packed row."""
        first = np.zeros(len(self.ids), dtype=np.bool_)
        first[self.starts[:-1]] = True
        if self.documents is not None:
            first[1:] |= self.documents[1:] != self.documents[:-1]
        return first

    def select(self, chosen: Bools) -> TokenRows:
        """The rows where `chosen`, of shape (rows,), is True."""
        of_chosen = chosen[self.row_of]  # of shape (tokens,)

        def of_tokens(values: npt.NDArray[Any] | None) -> npt.NDArray[Any] | None:
            return None if values is None else values[of_chosen]

        return replace(
            self,
            numbers=self.numbers[chosen],
            wheres=[self.wheres[row] for row in np.flatnonzero(chosen).tolist()],
            ids=self.ids[of_chosen],
            starts=np.concatenate(([0], np.cumsum(self.lengths[chosen]))),
            trained=of_tokens(self.trained),
            labels=of_tokens(self.labels),
            attended=of_tokens(self.attended),
            documents=of_tokens(self.documents),
        )

    def per_row(self, values: Bools) -> Int64s:
        """How many tokens of each row are True.

        ::

            values  1 0 | 1 1 1     starts 0 2 5     per row  1 3
        """
        if not len(self):
            return np.zeros(0, dtype=np.int64)
        # reduceat sums from each start to the next; it needs every row to hold a token.
        return np.add.reduceat(values, self.starts[:-1], dtype=np.int64)
