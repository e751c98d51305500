"""Rows that say nearly the same, and rows that validation data hold too, found over the whole input.

Every slice brings the hashes of its rows and, of conversations, their MinHashes (512 bytes a row, which go to a
temporary file). `Copies.finish` groups similar rows. Rows of validation data come first, so that of a group with rows
of both the first is one of theirs::

    row      v0  v1  t0  t1  t2  t3      v validation, t input
    group    v0  v1  v1  t1  t1  t3      t0 is a leak, t2 a near duplicate of t1
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

from niels_gpt.doctor.counters import Counters
from niels_gpt.doctor.evidence import Evidence
from niels_gpt.doctor.rows import ChatRow
from niels_gpt.progress import Progress
from niels_gpt.sources.curation.ngrams import Groups, MinHashes, minhashes_of

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

    def read_validation(self, parts: Iterable[Counters]) -> Counters:
        """Take the rows of the validation data, before those of the input; returns what was found in them."""
        found = Counters(0)
        for part in parts:
            self.take(part)
            found.merge(part)
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
            held_out = _held_out(numbers, splits)
            order = np.argsort(~held_out, kind="stable")
            hashes, numbers, first = hashes[order], numbers[order], int(held_out.sum())
            self._validation = "validation"
        groups = Groups(self._folder, len(hashes))
        groups.join_exact(self._folder, hashes)
        groups.close_exact()
        is_first = groups.is_first.copy()
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
        found = _Found(groups, numbers, hashes, self._name, self._validation or "", first)
        self._count("validation-leak", _joined(leaks, np.int64), found, counters)
        similar = _joined(near, np.int64)
        counters.sums["near duplicates"] = len(similar)
        if len(similar) >= max(FEWEST, SHARE * (len(hashes) - first)):
            self._count("near-duplicate", similar, found, counters)

    def _count(self, rule: str, rows: Int64s, found: _Found, counters: Counters) -> None:
        evidence = list(found.evidence(rows[: counters.max_evidence]))
        counters.add(rule, evidence, count=len(rows), rows=len(rows))


class _Found:
    """Writes the evidence of rows that are in the group of another."""

    def __init__(
        self, groups: Groups, numbers: Int64s, hashes: UInt64s, name: str, validation: str, first: int
    ) -> None:
        self._groups, self._numbers, self._hashes = groups, numbers, hashes
        self._name, self._validation, self._first = name, validation, first

    def evidence(self, rows: Int64s) -> Iterator[Evidence]:
        for row in rows.tolist():
            original = int(self._groups.original[row])
            number, other = int(self._numbers[row]), int(self._numbers[original])
            place = f"row {other}" if original >= self._first else f"row {other} of {self._validation}"
            if self._hashes[row] == self._hashes[original]:
                note = f"the same as {place}"
            else:
                share = float(self._groups.similarity[row])
                note = f"about {share:.0%} of its {WORDS}-word sequences are those of {place}"
            yield Evidence(number, f"{self._name} row {number}", f"{note}")


def is_split(splits: Mapping[str, int]) -> bool:
    """Whether some of these splits are for validation and others are not."""
    return len({name.startswith(HELD_OUT) for name in splits}) == 2


def _held_out(numbers: Int64s, splits: Mapping[str, int]) -> npt.NDArray[np.bool_]:
    """True for rows of splits for validation; splits of 3 and 2 rows have the numbers 0 1 2 and 3 4."""
    ends = np.cumsum(list(splits.values()))
    of_split = np.array([name.startswith(HELD_OUT) for name in splits])
    held: npt.NDArray[np.bool_] = of_split[np.searchsorted(ends, numbers, side="right")]
    return held


def _joined(parts: Sequence[npt.NDArray[_Number]], dtype: type[_Number]) -> npt.NDArray[_Number]:
    return np.concatenate([np.zeros(0, dtype=dtype), *parts])
