"""What rules have found so far: a number of hits, the first places of each rule, and sums over the input.

A *hit* is one place at which a rule fires. Every slice is examined with counters of its own, which are merged in the
order of the input, so a report is the same whatever the number of workers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from niels_gpt.doctor.evidence import Evidence, Severity


@dataclass
class Hits:
    """The hits of one rule: how many places in how many rows, the first of them, and the last row counted."""

    count: int = 0
    rows: int = 0
    last_row: int | None = None
    evidence: list[Evidence] = field(default_factory=list)


class Counters:
    """Hits by rule, and plain sums by name.

    Memory grows with the input by the hashes and turn keys below and by nothing else.

    Args:
        max_evidence: how many places of each rule are stored.

    Attributes:
        hits: by rule id.
        sums: numbers that rules add up over the whole input, by name.
        milder: severities of rules whose hits are too few for their own.
        hashes, numbers: hash and number of every row, 8 bytes each, to find duplicates.
        trained_turns: keys of every trained assistant turn, 8 bytes each.
        untrained_turns: key and row of every assistant turn that is not trained although its row trains another one,
            16 bytes each. See `rules.masks`.
    """

    def __init__(self, max_evidence: int) -> None:
        self.max_evidence = max_evidence
        self.hits: dict[str, Hits] = {}
        self.sums: Counter[str] = Counter()
        self.milder: dict[str, Severity] = {}
        self.hashes: list[npt.NDArray[np.uint64]] = []
        self.numbers: list[npt.NDArray[np.int64]] = []
        self.trained_turns: list[npt.NDArray[np.uint64]] = []
        self.untrained_turns: list[npt.NDArray[np.uint64]] = []

    def add(
        self, rule: str, evidence: Iterable[Evidence], *, count: int | None = None, rows: int | None = None
    ) -> None:
        """Count hits, and store the first pieces of their evidence.

        Args:
            evidence: one piece for each hit where `count` is `None`, else the first few.
            count, rows: how many hits in how many rows. With `count` alone every hit is in a row of its own.
        """
        if count is None:
            evidence = list(evidence)
            if not evidence:  # the usual case, which costs nothing
                return
        hits = self.hits.setdefault(rule, Hits())
        if count is None:
            pieces = list(evidence)
            # Several hits of one row may arrive in several calls; the row counts once.
            count, rows = len(pieces), len({piece.row for piece in pieces} - {hits.last_row, -1})
            hits.last_row = pieces[-1].row if pieces else hits.last_row
            evidence = pieces
        hits.count += count
        hits.rows += count if rows is None else rows
        # Evidence arrives in the order of the input, so the first pieces are those of the first rows.
        for piece in evidence:
            if len(hits.evidence) >= self.max_evidence:
                break
            hits.evidence.append(piece)
        # A rule with an entry counts as one that fired, so there is none without hits.
        if not hits.count:
            del self.hits[rule]

    def places(
        self,
        rule: str,
        rows: npt.NDArray[np.integer[Any]],
        positions: npt.NDArray[np.integer[Any]],
        make: Callable[[int, int], Evidence],
    ) -> None:
        """Count hits at many places, in order.

        Args:
            rows, positions: row and position of each hit, both of shape (hits,).
            make: evidence from row and position; called for the first few hits only, since windows of tokens are slow.
        """
        if not len(rows):
            return
        first = zip(rows[: self.max_evidence].tolist(), positions[: self.max_evidence].tolist(), strict=True)
        evidence = [make(row, position) for row, position in first]
        self.add(rule, evidence, count=len(rows), rows=len(np.unique(rows)))

    def merge(self, later: Counters) -> None:
        """Add the counters of the part of the input that follows."""
        for rule, hits in later.hits.items():
            self.add(rule, hits.evidence, count=hits.count, rows=hits.rows)
        self.sums.update(later.sums)
        # Not `milder`: these are decided by counts of the whole input, after the last slice.
        self.hashes += later.hashes
        self.numbers += later.numbers
        self.trained_turns += later.trained_turns
        self.untrained_turns += later.untrained_turns

    def keep_frequent(self, rule: str, remark: float, warning: float) -> None:
        """Drop the hits of a rule if they are fewer than `remark`; make it a remark if fewer than `warning`."""
        hits = self.hits.get(rule)
        if hits is not None and hits.count < remark:
            self.drop(rule)
        elif hits is not None and hits.count < warning:
            self.milder[rule] = "info"

    def drop(self, rule: str) -> Hits | None:
        """Remove the hits of a rule and return them."""
        return self.hits.pop(rule, None)

    def move(self, source: str, target: str, *, rows: int | None = None) -> None:
        """Count the hits of one rule as hits of another.

        Args:
            rows: in how many rows both have hits; by default no row has hits of both.
        """
        hits = self.drop(source)
        if hits is None:
            return
        self.add(target, (), count=hits.count, rows=hits.rows)
        moved = self.hits[target]
        moved.rows = moved.rows if rows is None else rows
        # Both lists are in the order of the input; so is what is stored of them together.
        pieces = sorted([*moved.evidence, *hits.evidence], key=lambda piece: (piece.row, piece.token or 0))
        moved.evidence = pieces[: self.max_evidence]
