"""Rows of ids with what is trained, many at once: what every rule on tokens looks at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from niels_gpt.forks import cached_property

Bools = npt.NDArray[np.bool_]
Int64s = npt.NDArray[np.int64]

ROLES: Final = ("system", "user", "assistant", "tool")
ASSISTANT: Final = ROLES.index("assistant")
TOOL: Final = ROLES.index("tool")
SYSTEM: Final = ROLES.index("system")


@dataclass(frozen=True)
class TokenRows:
    """Some rows, one after the other; none is empty.

    Attributes:
        numbers: of each row its index in the input, int64 of shape (rows,).
        wheres: of each row where it stands.
        ids: int64 of shape (tokens,).
        starts: int64 of shape (rows + 1,): row r is `ids[starts[r] : starts[r + 1]]`.
        trained: bool of shape (tokens,), token-aligned: the token itself is graded when it is predicted. `None` where
            the data has no mask.
        labels: int64 of shape (tokens,) where the data has labels, unshifted as the Hugging Face trainers take them.
        attended: bool of shape (tokens,), False where an attention mask says padding; `None` without one.
        documents: int64 of shape (tokens,): the number of the text inside its row, where the data tells.
        mask_from: the column that the mask is from; empty where it is our own.
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
        """Tokens of each row."""
        return np.diff(self.starts)

    @cached_property
    def row_of(self) -> Int64s:
        """Of each token its row."""
        return np.repeat(np.arange(len(self)), self.lengths)

    @cached_property
    def first_of_document(self) -> Bools:
        """True where a row, or a text inside a row, begins."""
        first = np.zeros(len(self.ids), dtype=np.bool_)
        first[self.starts[:-1]] = True
        if self.documents is not None:
            first[1:] |= self.documents[1:] != self.documents[:-1]
        return first

    def per_row(self, values: Bools) -> Int64s:
        """How many tokens of each row are True.

        ::

            values  1 0 | 1 1 1     starts 0 2 5     per row  1 3
        """
        if not len(self):
            return np.zeros(0, dtype=np.int64)
        return np.add.reduceat(values, self.starts[:-1], dtype=np.int64)


@dataclass(frozen=True)
class Turns:
    """Where the turns of some rows lie, all int64 of shape (turns,), places counted in `TokenRows.ids`.

    ::

        place   0  1  2  3  4  5  6        A header of the assistant's turn, S what the prompt supplies behind it
        token   A  A  S  b  b  E  n        E the stop, n the new line behind it
        start 0, supplied 2, body 3, stop 5, end 7

    Attributes:
        row, role: `role` indexes `ROLES`.
        start: the first token of its header.
        supplied, body: only told for the assistant; elsewhere both are the end of the header.
        stop: the token that ends what the model says, -1 if there is none.
        end: behind the turn's last token.
    """

    row: Int64s
    role: Int64s
    start: Int64s
    supplied: Int64s
    body: Int64s
    stop: Int64s
    end: Int64s

    def __len__(self) -> int:
        return len(self.row)

    def of(self, chosen: Bools) -> Turns:
        """The chosen ones."""
        return Turns(
            self.row[chosen],
            self.role[chosen],
            self.start[chosen],
            self.supplied[chosen],
            self.body[chosen],
            self.stop[chosen],
            self.end[chosen],
        )

    @cached_property
    def assistants(self) -> Turns:
        """The assistant's."""
        return self.of(self.role == ASSISTANT)

    @cached_property
    def resumed(self) -> Bools:
        """True where the assistant's turn stands right behind another of the assistant's that has its stop.

        ::

            analysis 0:4, final 4:9, user 9:12, final 12:15      resumed  . # . .
        """
        resumed = np.zeros(len(self), dtype=np.bool_)
        both = (self.role[1:] == ASSISTANT) & (self.role[:-1] == ASSISTANT) & (self.row[1:] == self.row[:-1])
        resumed[1:] = both & (self.start[1:] == self.end[:-1]) & (self.stop[:-1] >= 0)
        return resumed

    @property
    def said_end(self) -> Int64s:
        """Behind the last token that the model says: its stop, or the turn's end where there is none."""
        return np.where(self.stop >= 0, self.stop + 1, self.end)


def covered(starts: Int64s, stops: Int64s, n: int) -> Bools:
    """True on the tokens of any of the spans `starts[i] : stops[i]`.

    ::

        spans 1:3 and 4:5 of 6      steps  . + . - + -      sums  0 1 1 0 1 0
    """
    steps = np.zeros(n + 1, dtype=np.int64)
    np.add.at(steps, starts, 1)
    np.add.at(steps, np.maximum(starts, stops), -1)
    return np.cumsum(steps[:-1]) > 0


def counts_in(values: Bools, starts: Int64s, stops: Int64s) -> Int64s:
    """How many of `values` are True in each span."""
    sums = np.concatenate(([0], np.cumsum(values)))
    counted: Int64s = sums[np.maximum(starts, stops)] - sums[starts]
    return counted
