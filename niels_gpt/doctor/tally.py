"""What the rules have found so far: counts, and the first few places of each. Merged in order, whoever counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from niels_gpt.doctor.report import Evidence


@dataclass
class Hits:
    """Of one rule: how many places in how many rows, and the first of them; `last` is the row counted last."""

    count: int = 0
    rows: int = 0
    last: int | None = None
    evidence: list[Evidence] = field(default_factory=list)


class Tally:
    """Hits by rule, and plain sums by name.

    Args:
        keep: how many places of each rule are kept as evidence.

    Attributes:
        hits: by rule id. sums: whatever rules add up over the whole input.
        hashes, numbers: of every row, 8 bytes each, for duplicates.
        trained_turns: of every assistant turn that is trained, 8 bytes. untrained_turns, untrained_kinds: of those that
            are not, in rows that train others, 24 bytes. Nothing else grows with the input.
    """

    def __init__(self, keep: int) -> None:
        self.keep = keep
        self.hits: dict[str, Hits] = {}
        self.sums: Counter[str] = Counter()
        self.hashes: list[npt.NDArray[np.uint64]] = []
        self.numbers: list[npt.NDArray[np.int64]] = []
        self.trained_turns: list[npt.NDArray[np.uint64]] = []
        self.untrained_turns: list[npt.NDArray[np.uint64]] = []
        self.untrained_kinds: list[npt.NDArray[np.int64]] = []

    def add(
        self, rule: str, evidence: Iterable[Evidence], *, count: int | None = None, rows: int | None = None
    ) -> None:
        """Hits with their evidence, of which only the first few are made; without `count` it is one hit each.

        Args:
            count, rows: how many places and rows, where `evidence` gives only the first.
        """
        held = self.hits.setdefault(rule, Hits())
        if count is None:
            made = list(evidence)
            count, rows = len(made), len({one.row for one in made} - {held.last, -1})
            held.last = made[-1].row if made else held.last
            evidence = made
        held.count += count
        held.rows += count if rows is None else rows
        for one in evidence:
            if len(held.evidence) >= self.keep:
                break
            held.evidence.append(one)
        if not held.count:
            del self.hits[rule]

    def places(
        self,
        rule: str,
        rows: npt.NDArray[np.integer[Any]],
        places: npt.NDArray[np.integer[Any]],
        make: Callable[[int, int], Evidence],
    ) -> None:
        """Hits at many places, in order; evidence is made for the first few only.

        Args:
            rows, places: of each hit, both of shape (hits,). make: from row and place.
        """
        if not len(rows):
            return
        first = zip(rows[: self.keep].tolist(), places[: self.keep].tolist(), strict=True)
        evidence = [make(row, place) for row, place in first]
        self.add(rule, evidence, count=len(rows), rows=len(np.unique(rows)))

    def merge(self, later: Tally) -> None:
        """Take in the tally of the part of the input that follows."""
        for rule, hits in later.hits.items():
            self.add(rule, hits.evidence, count=hits.count, rows=hits.rows)
        self.sums.update(later.sums)
        self.hashes += later.hashes
        self.numbers += later.numbers
        self.trained_turns += later.trained_turns
        self.untrained_turns += later.untrained_turns
        self.untrained_kinds += later.untrained_kinds

    def drop(self, rule: str) -> Hits | None:
        """Forget a rule's hits and return them."""
        return self.hits.pop(rule, None)

    def move(self, source: str, target: str) -> None:
        """Count the hits of one rule as those of another."""
        hits = self.drop(source)
        if hits is not None:
            self.add(target, hits.evidence, count=hits.count, rows=hits.rows)

    def fired(self, rules: Sequence[str]) -> bool:
        """One of these rules has hits."""
        return any(rule in self.hits for rule in rules)
