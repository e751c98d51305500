"""How the assistant's turns are graded: their tokens beside the mask."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from niels_gpt.doctor.rows import Bools, Int64s, Turns, counts_in
from niels_gpt.doctor.view import View


@dataclass(frozen=True)
class Graded:
    """The assistant's turns and how their tokens are graded; all of shape (turns,).

    Attributes:
        last: behind the last token before the stop.
        length, count: tokens before the stop, and how many of them are trained.
        stop: the stop is trained. left, right: the mask looks moved by one to the left or right.
        touched: anything from the header to behind the stop is trained.
    """

    turns: Turns
    last: Int64s
    length: Int64s
    count: Int64s
    stop: Bools
    left: Bools
    right: Bools
    touched: Bools

    @classmethod
    def of(cls, view: View, turns: Turns) -> Graded:
        """Measure the turns.

        ::

            header  h | body a b | stop E | tail n       right mask  . | # # | # | .
            left    # | # # | . | .                      right       . | . # | # | #
        """
        trained = view.trained
        ends = np.where(turns.stop >= 0, turns.stop, _trimmed(view, turns))
        last = np.maximum(ends, turns.body)
        count, length = counts_in(trained, turns.body, last), last - turns.body
        padded = np.concatenate((trained, [False]))
        stopped = turns.stop >= 0
        stop = stopped & padded[turns.stop]
        whole = stopped & (length > 0)
        before = (turns.body > turns.start) & padded[turns.body - 1]
        further = (turns.body - 1 > turns.start) & padded[turns.body - 2]
        left = whole & before & ~further & (count == length) & ~stop
        right = whole & ~padded[turns.body] & (count == length - 1) & stop & ~before
        touched = counts_in(trained, turns.start, np.minimum(turns.end, last + 2)) > 0
        return cls(turns, last, length, count, stop, left, right, touched)

    def shifted_rows(self, n: int) -> Bools:
        """Rows in which all trained turns are moved the same way."""
        of_row = np.bincount(self.turns.row[self.touched], minlength=n)
        lefts = np.bincount(self.turns.row[self.left], minlength=n)
        rights = np.bincount(self.turns.row[self.right], minlength=n)
        shifted: Bools = (of_row > 0) & ((lefts == of_row) | (rights == of_row))
        return shifted

    def how(self, row: int) -> str:
        """In words, which way the mask of a row is moved."""
        if self.left[self.turns.row == row].any():
            return "the mask begins one token too early, in the header, and leaves out the end-of-turn"
        return "the mask leaves out the first token of each answer"


def _trimmed(view: View, turns: Turns) -> Int64s:
    """The end of each turn without padding behind it."""
    padded = counts_in(view.padding, turns.body, turns.end)
    return turns.end - padded
