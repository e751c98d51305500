"""Rows in slices: small, in order, the same whoever works on them.

The reading process finds rows and hands them on undecoded (lines, Arrow batches); decoding is the workers' part.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from niels_gpt.doctor.arrow import packed, unpacked
from niels_gpt.doctor.rows import Int64s
from niels_gpt.inputs import Record, Rejected, parse_line, read_lines
from niels_gpt.sources.records import batch_records

SLICE_ROWS: Final = 256
SLICE_BYTES: Final = 1 << 20
Slice = tuple[Int64s, Any]  # the numbers of its rows, and one of the payloads below


@dataclass(frozen=True)
class Lines:
    """Undecoded JSON lines, each with where it stands."""

    lines: list[tuple[str, bytes]]


@dataclass(frozen=True)
class Objects:
    """Rows as objects."""

    records: list[Record | Rejected]


@dataclass(frozen=True)
class Arrow:
    """A record batch, packed; `own` are the numbers of its rows in their file."""

    name: str
    packed: bytes
    own: tuple[int, ...]

    @property
    def wheres(self) -> list[str]:
        """Where each row stands."""
        return [f"{self.name} row {number}" for number in self.own]


@dataclass(frozen=True)
class Stored:
    """Some examples of one of our own datasets."""

    folder: Path
    split: str


def of_lines(files: Iterable[Path], chosen: Int64s | None) -> Iterator[Slice]:
    """JSON lines in slices, undecoded.

    Args:
        chosen: only the rows of these numbers, in order.
    """
    wanted = None if chosen is None else iter(chosen.tolist())
    following = None if wanted is None else next(wanted, -1)
    numbers: list[int] = []
    lines: list[tuple[str, bytes]] = []
    size, number = 0, -1
    for file in files:
        for where, line in read_lines(file):
            number += 1
            if wanted is not None:
                if number != following:
                    continue
                following = next(wanted, -1)
            numbers.append(number)
            lines.append((where, line))
            size += len(line)
            if len(lines) >= SLICE_ROWS or size >= SLICE_BYTES:
                yield np.array(numbers), Lines(lines)
                numbers, lines, size = [], [], 0
    if lines:
        yield np.array(numbers), Lines(lines)


def of_records(records: Iterable[Record | Rejected], chosen: Int64s | None) -> Iterator[Slice]:
    """Rows as objects in slices.

    Args:
        chosen: only the rows of these numbers, in order.
    """
    wanted = None if chosen is None else set(chosen.tolist())
    numbers: list[int] = []
    held: list[Record | Rejected] = []
    for number, record in enumerate(records):
        if wanted is not None and number not in wanted:
            continue
        numbers.append(number)
        held.append(record)
        if len(held) >= SLICE_ROWS:
            yield np.array(numbers), Objects(held)
            numbers, held = [], []
    if held:
        yield np.array(numbers), Objects(held)


def of_batches(batches: Iterable[tuple[str, int, Any]], chosen: Int64s | None) -> Iterator[Slice]:
    """Record batches `(file, number of its first row, batch)` in slices.

    Args:
        chosen: only the rows of these numbers, in order.
    """
    base = 0
    for name, at, batch in batches:
        here = np.arange(batch.num_rows)
        if chosen is not None:
            here = chosen[(chosen >= base) & (chosen < base + batch.num_rows)] - base
        if len(here):
            kept = batch if chosen is None else batch.take(here)
            yield here + base, Arrow(name, packed(kept), tuple((here + at).tolist()))
        base += batch.num_rows


def decoded(payload: Lines | Objects | Arrow) -> list[Record | Rejected]:
    """The rows of a slice as objects."""
    if isinstance(payload, Objects):
        return payload.records
    if isinstance(payload, Lines):
        return [parse_line(line, where) for where, line in payload.lines]
    return batch_records(unpacked(payload.packed), payload.wheres)
