"""Pieces laid into rows, against slow, obvious Python."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from niels_gpt.episodes.rows import Column, RowSpans

FILL = 7


@dataclass
class Rows:
    """Rows as lists of pieces (file, start, length), of `width` values at most; those without a piece come last."""

    files: list[list[int]]
    rows: list[list[tuple[int, int, int]]]
    width: int

    def spans(self) -> RowSpans:
        flat = [(number, *piece) for number, row in enumerate(self.rows) for piece in row]
        row, shard, start, length = np.array(flat, dtype=np.int64).reshape(-1, 4).T
        n = len(row)
        cut = np.arange(n) % 2 == 0
        return RowSpans(
            len(self.rows),
            self.width,
            row=row,
            episode=np.arange(n),
            shard=shard,
            start=start,
            length=length,
            cut=cut,
        )

    def expected(self) -> list[list[int]]:
        """Piece after piece, then padding."""
        found = []
        for row in self.rows:
            values = [value for file, start, n in row for value in self.files[file][start : start + n]]
            found.append(values + [FILL] * (self.width - len(values)))
        return found


@st.composite
def rows_of_pieces(draw: st.DrawFn, most: int = 4) -> Rows:
    """Up to `most` pieces a row, from one to three files whose values tell where they stand; ends of files included."""
    files = [
        [100 * (file + 1) + at for at in range(draw(st.integers(1, 12)))] for file in range(draw(st.integers(1, 3)))
    ]
    width = draw(st.integers(1, 10))
    rows: list[list[tuple[int, int, int]]] = []
    for _ in range(draw(st.integers(1, 5))):
        row: list[tuple[int, int, int]] = []
        for _ in range(draw(st.integers(1, most))):
            file = draw(st.integers(0, len(files) - 1))
            start = draw(st.integers(0, len(files[file]) - 1))
            room = min(width - sum(n for _, _, n in row), len(files[file]) - start)
            row += [(file, start, draw(st.integers(1, room)))] if room else []
        rows.append(row)
    return Rows(files, rows + [[]] * draw(st.integers(0, 2)), width)


@pytest.mark.parametrize("most", [1, 4])
@given(data=st.data())
def test_rows_are_their_pieces_and_then_padding(data: st.DataObject, most: int) -> None:
    rows = data.draw(rows_of_pieces(most))
    column = Column([np.array(file, dtype=np.uint32) for file in rows.files])
    spans = rows.spans()
    found, expected = column.rows(spans, FILL), rows.expected()
    assert found.tolist() == expected
    assert found.dtype == np.uint32
    for row, lengths in enumerate([[n for _, _, n in row] for row in rows.rows]):
        used = sum(lengths)
        assert spans.used[row] == used
        assert spans.token_mask[row].tolist() == [True] * used + [False] * (rows.width - used)
    columns = [sum(n for _, _, n in row[:at]) for row in rows.rows for at in range(len(row))]
    assert spans.column.tolist() == columns


@given(rows=rows_of_pieces())
def test_the_value_behind_a_piece_that_was_cut(rows: Rows) -> None:
    spans, longer = rows.spans(), rows.spans().one_longer()
    assert longer.width == spans.width + 1
    assert (longer.length - spans.length).tolist() == spans.cut.tolist()


def test_a_file_that_is_one_repeated_value_is_not_copied() -> None:
    """A shard without segment ids, beside one that has them, is one value repeated in no memory; here 8 TiB of it."""
    zeros: Any = np.broadcast_to(np.zeros(1, dtype=np.uint16), 1 << 42)
    row = np.array([0, 0, 1])
    spans = RowSpans(
        2,
        4,
        row=row,
        episode=row,
        shard=np.array([0, 0, 1]),
        start=np.array([1 << 41, 5, 0]),
        length=np.array([2, 2, 1]),
        cut=np.zeros(3, dtype=np.bool_),
    )
    files = [zeros, np.array([3, 3], dtype=np.uint16)]
    assert Column(files).rows(spans, FILL).tolist() == [[0, 0, 0, 0], [3, FILL, FILL, FILL]]
