"""Rows that validation data hold too, found over the whole input by the hashes of its rows.

Splits for validation of a dataset take the place of validation data::

    row      v0  v1  t0  t1  t2      v validation, t input
    hash     7   3   5   3   5       t1 is a leak: v1 is the same
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from niels_gpt.doctor.counters import Counters
from niels_gpt.doctor.evidence import Evidence
from niels_gpt.progress import Progress

HELD_OUT: Final = ("val", "test", "eval", "dev")  # how splits for validation are named


class Copies:
    """Hashes of the rows of validation data.

    Args:
        name: the input. validation: the validation data; both for evidence.
    """

    def __init__(self, name: str, validation: str = "validation") -> None:
        self._name, self._validation = name, validation
        self._hashes: list[npt.NDArray[np.uint64]] = []
        self._numbers: list[npt.NDArray[np.int64]] = []

    def read_validation(self, parts: Iterable[Counters], progress: Progress) -> Counters:
        """Take the rows of the validation data; returns what was found in them."""
        found = Counters(0)
        for part in parts:
            found.merge(part)
            progress.advance(part.sums["rows"])
        # Their own findings are not reported: only rows that the input holds, too, are.
        self._hashes, self._numbers = found.hashes, found.numbers
        return found

    def finish(self, counters: Counters, splits: Mapping[str, int]) -> None:
        """Count the rows that the validation data hold.

        Args:
            splits: rows of each split of the input, in order; those for validation are held against the others.
        """
        if not counters.hashes:
            return
        hashes, numbers = np.concatenate(counters.hashes), np.concatenate(counters.numbers)
        if self._hashes:
            held_out, held_out_numbers = np.concatenate(self._hashes), np.concatenate(self._numbers)
        elif is_split(splits):
            # Splits of 3 and 2 rows have the numbers 0 1 2 and 3 4, and ends 3 5: number 3 is of the split at
            # searchsorted(.., 3, right) = 1.
            ends = np.cumsum(list(splits.values()))
            is_validation = np.array([name.startswith(HELD_OUT) for name in splits])
            chosen = is_validation[np.searchsorted(ends, numbers, side="right")]
            held_out, held_out_numbers = hashes[chosen], numbers[chosen]
            hashes, numbers = hashes[~chosen], numbers[~chosen]
        else:
            return
        leaks = np.flatnonzero(np.isin(hashes, held_out))
        evidence = []
        for row in leaks[: counters.max_evidence].tolist():
            number, other = int(numbers[row]), int(held_out_numbers[np.argmax(held_out == hashes[row])])
            note = f"the same as row {other} of {self._validation}"
            evidence.append(Evidence(number, f"{self._name} row {number}", note))
        counters.add("validation-leak", evidence, count=len(leaks), rows=len(leaks))


def is_split(splits: Mapping[str, int]) -> bool:
    """Whether some of these splits are for validation and others are not."""
    return len({name.startswith(HELD_OUT) for name in splits}) == 2
