"""Inputs and targets of rows. Targets are shifted in this file and nowhere else.

A row of S = T + 1 tokens has T inputs and T targets; the mask belongs to the targets::

    ids     a b c d        x  a b c
    mask    . . # #        y  b c d      loss on y:  . # #
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def shifted(rows: npt.NDArray[Any]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """`x` and `y` as int64 arrays, contiguous, shape (B, T), from rows of shape (B, T + 1)."""
    # In numpy, not torch: torch would use threads, which saves some microseconds on an idle machine, but costs
    # milliseconds when a thread must wait for a core that another process uses.
    return rows[:, :-1].astype(np.int64, order="C"), targets_of(rows).astype(np.int64, order="C")


def targets_of(rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The values of the targets, shape (B, T), from those of all tokens, shape (B, T + 1); the dtype stays."""
    return rows[:, 1:]
