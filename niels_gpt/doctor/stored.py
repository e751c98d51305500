"""Rows of our own datasets (`niels_gpt.datasets`) in slices, as the rules take them.

The documents of a pretraining cache come as `DocumentPieces`: the reading process only finds where they are, and a
worker reads their ids. A document that goes on after its slice comes in several pieces.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np

from niels_gpt.datasets import Dataset, DocumentPieces, DocumentSplit, TokenStream, gather
from niels_gpt.doctor.rows import Int64s, TokenRows
from niels_gpt.doctor.slices import Slice

SLICE_TOKENS: Final = 1 << 18  # 512 KB of ids of two bytes: documents are longer than conversations


def sentinels_of(dataset: Dataset) -> dict[str, int]:
    """The four sentinels that a dataset records; empty if it records none, or others."""
    special = dataset.special_token_ids
    # With other names the rules about sentinels would judge the wrong tokens.
    return special if set(special) == {"sys", "usr", "asst", "eot"} else {}


def rows_of(dataset: Dataset, split: str, in_split: Int64s, numbers: Int64s) -> TokenRows:
    """Some examples or episodes.

    Args:
        in_split: their numbers in the split. numbers: in the input.
    """
    rows = dataset.split(split).rows(in_split)
    unit = "episode" if dataset.kind == "episodes" else "example"
    return TokenRows(
        numbers=numbers,
        wheres=[f"{dataset.path} {split} {unit} {number}" for number in in_split.tolist()],
        ids=rows.ids.astype(np.int64),
        starts=rows.starts,
        trained=None if rows.weights is None else rows.weights > 0,
    )


def stream_of(dataset: Dataset, split: str) -> TokenStream:
    """The ids of a split of a pretraining cache."""
    documents = dataset.split(split)
    assert isinstance(documents, DocumentSplit)
    return documents.stream


def document_slices(dataset: Dataset, splits: Mapping[str, int], chosen: Int64s | None) -> Iterator[Slice]:
    """The documents of a pretraining cache in slices.

    Args:
        splits: how many documents each has, as the meta counts them.
        chosen: only those of these numbers, counted through all splits.
    """
    base = 0
    for split, count in splits.items():
        documents = dataset.split(split)
        assert isinstance(documents, DocumentSplit)
        for pieces in documents.pieces(SLICE_TOKENS):
            # Documents are numbered through all splits: with 10 of train, number 2 of val is 12.
            numbers = pieces.numbers + base
            wanted = np.ones(len(numbers), dtype=np.bool_) if chosen is None else np.isin(numbers, chosen)
            if wanted.any():
                yield numbers[wanted], pieces.select(wanted)
        base += count


def rows_of_pieces(dataset: Dataset, pieces: DocumentPieces, numbers: Int64s) -> tuple[TokenRows, Int64s]:
    """The pieces that are not empty, without the ids that end documents, and which of the pieces they are.

    Args:
        numbers: of each piece its document's number in the input.
    """
    filled = np.flatnonzero(pieces.stops > pieces.starts)  # `TokenRows` must not contain empty rows
    starts, stops = pieces.starts[filled], pieces.stops[filled]
    ids = np.zeros(0, np.int64)
    if len(filled):
        # All pieces of a slice are neighbours in the run: it is read once, and what ends documents is left out.
        first = int(starts[0])
        block = stream_of(dataset, pieces.split).read(first, int(stops[-1]))
        ids = gather(block, starts - first, stops - starts).astype(np.int64)
    rows = TokenRows(
        numbers=numbers[filled],
        wheres=[where(dataset, pieces, piece) for piece in filled.tolist()],
        ids=ids,
        starts=np.concatenate(([0], np.cumsum(stops - starts))),
    )
    return rows, filled


def where(dataset: Dataset, pieces: DocumentPieces, piece: int) -> str:
    """Where a piece is, for evidence."""
    # A document of many pieces has one number; the token distinguishes its pieces.
    document = f"{dataset.path} {pieces.split} document {int(pieces.numbers[piece])}"
    if pieces.begins[piece]:
        return document
    return f"{document}, a later piece from token {int(pieces.starts[piece])} of the split"
