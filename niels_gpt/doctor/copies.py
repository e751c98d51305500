"""Rows that say nearly the same, and rows that validation data hold too, found over the whole input.

Every slice brings the hashes of its rows and, of conversations, their MinHashes (512 bytes a row, which go to a
temporary file). `Copies.finish` groups similar rows. Rows of validation data come first, so that of a group with rows
of both the first is one of theirs::

    row      v0  v1  t0  t1  t2  t3      v validation, t input
    group    v0  v1  v1  t1  t1  t3      t0 is a leak, t2 a near duplicate of t1
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

from niels_gpt.doctor.counters import Counters
from niels_gpt.doctor.evidence import Evidence
from niels_gpt.doctor.rows import ChatRow
from niels_gpt.progress import Progress
from niels_gpt.sources.curation.ngrams import Groups, MinHashes, minhashes_of

# Rows are similar where about four fifths of their 5-word sequences are shared, a usual limit of MinHash deduplication.
SIMILARITY: Final = 0.8
WORDS: Final = 5
ROLES: Final = ("user", "assistant")
SHARE: Final = 0.01  # of the rows; fewer near duplicates are in every collection
FEWEST: Final = 2

HELD_OUT: Final = ("val", "test", "eval", "dev")  # how splits for validation are named

Int64s = npt.NDArray[np.int64]
UInt64s = npt.NDArray[np.uint64]
_Number = TypeVar("_Number", np.int64, np.uint64)


def store_minhashes(chats: Sequence[ChatRow], counters: Counters) -> None:
    """Store the MinHash of every conversation, in the order of their hashes."""
    if chats:
        counters.minhashes.append(minhashes_of([chat.messages for chat in chats], WORDS, ROLES))


class Copies:
    """Hashes and MinHashes of validation data and of the input.

    Args:
        validation: the name of the validation data, for evidence; `None` without them.
    """

    def __init__(self, name: str, validation: str | None = None) -> None:
        self._name, self._validation = name, validation
        self._folder = Path(tempfile.gettempdir())
        self._minhashes: MinHashes | None = None
        self._hashes: list[UInt64s] = []
        self._numbers: list[Int64s] = []

    def __enter__(self) -> Copies:
        return self

    def __exit__(self, *error: object) -> None:
        if self._minhashes is not None:
            self._minhashes.close()

    def read_validation(self, parts: Iterable[Counters], progress: Progress) -> Counters:
        """Take the rows of the validation data, before those of the input; returns what was found in them."""
        found = Counters(0)
        for part in parts:
            self.take(part)
            found.merge(part)
            progress.advance(part.sums["rows"])
        # Their own findings are not reported: only rows that the input holds, too, are.
        self._hashes, self._numbers = found.hashes, found.numbers
        return found

    def take(self, part: Counters) -> None:
        """Move the MinHashes of a slice from its counters to the file."""
        for values in part.minhashes:
            if self._minhashes is None:
                self._minhashes = MinHashes(self._folder)
            self._minhashes.add(values)
        part.minhashes = []

    def finish(self, counters: Counters, splits: Mapping[str, int], progress: Progress) -> None:
        """Count near duplicates and rows that the validation data hold.

        Args:
            splits: rows of each split of the input, in order; those for validation are held against the others.
        """
        hashes = np.concatenate([_joined(self._hashes, np.uint64), *counters.hashes])
        numbers = np.concatenate([_joined(self._numbers, np.int64), *counters.numbers])
        first = len(hashes) - sum(map(len, counters.hashes))
        if first == 0 and is_split(splits):
            # The input's own splits for validation take the place of validation data. Splits of 3 and 2 rows have the
            # numbers 0 1 2 and 3 4, and ends 3 5: number 3 is of the split at searchsorted(.., 3, right) = 1.
            ends = np.cumsum(list(splits.values()))
            is_validation = np.array([name.startswith(HELD_OUT) for name in splits])
            held_out = is_validation[np.searchsorted(ends, numbers, side="right")]
            # Stable, so that rows stay in the order of the input and the earlier one of two copies is the original.
            order = np.argsort(~held_out, kind="stable")
            hashes, numbers, first = hashes[order], numbers[order], int(held_out.sum())
            self._validation = "validation"
        # Exact copies by the hash of a row, then similar rows by MinHash; a row's original is the first of its group.
        groups = Groups(self._folder, len(hashes))
        groups.join_exact(self._folder, hashes)
        groups.close_exact()
        is_first = groups.is_first.copy()  # before rows that are only similar join the groups
        if self._minhashes is not None:
            self._minhashes.join_similar(groups, SIMILARITY, progress)
        near, leaks = [], []
        for rows in groups.left_out():
            # Slices of numpy arrays, not of the memory map: they may outlive it.
            original = groups.original[rows]
            is_examined = rows >= first
            leaks.append(rows[is_examined & (original < first)])
            # An exact copy of an earlier row is a finding of another rule.
            near.append(rows[is_examined & (original >= first) & is_first[rows]])

        def add(rule: str, rows: Int64s) -> None:
            evidence = []
            for row in rows[: counters.max_evidence].tolist():
                original = int(groups.original[row])
                number, other = int(numbers[row]), int(numbers[original])
                where = f"row {other}" if original >= first else f"row {other} of {self._validation or ''}"
                if hashes[row] == hashes[original]:
                    note = f"the same as {where}"
                else:
                    share = float(groups.similarity[row])
                    note = f"about {share:.0%} of its {WORDS}-word sequences are those of {where}"
                evidence.append(Evidence(number, f"{self._name} row {number}", note))
            counters.add(rule, evidence, count=len(rows), rows=len(rows))

        add("validation-leak", _joined(leaks, np.int64))
        similar = _joined(near, np.int64)
        counters.sums["near duplicates"] = len(similar)
        if len(similar) >= max(FEWEST, SHARE * (len(hashes) - first)):
            add("near-duplicate", similar)


def is_split(splits: Mapping[str, int]) -> bool:
    """Whether some of these splits are for validation and others are not."""
    return len({name.startswith(HELD_OUT) for name in splits}) == 2


def _joined(parts: Sequence[npt.NDArray[_Number]], dtype: type[_Number]) -> npt.NDArray[_Number]:
    """The parts as one array; `np.concatenate` refuses to join none."""
    return np.concatenate([np.zeros(0, dtype=dtype), *parts])
