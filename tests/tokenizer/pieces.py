"""Pieces as the tests of encoders draw them, and what holds for every encoder."""

from __future__ import annotations

import numpy as np

from niels_gpt.tokenizer.pieces import SCAFFOLD, PieceEncoder

Pieces = list[tuple[str, bool]]  # of one string: a text, and whether it is scaffold


def split(pieces: Pieces) -> tuple[list[str], list[bool]]:
    """The texts, and which of them are scaffold, as encoders take them."""
    return [text for text, _ in pieces], [flag for _, flag in pieces]


def check_many(encoder: PieceEncoder, batch: list[Pieces]) -> None:
    """Many strings are encoded as one by one, by both ways of passing them."""
    ids, owner, lengths = encoder.encode_many([split(pieces) for pieces in batch])
    assert (lengths.dtype, lengths.shape, int(lengths.sum())) == (np.int64, (len(batch),), ids.size)
    facts = [[SCAFFOLD if flag else 0 for _, flag in pieces] for pieces in batch]
    flat = encoder.encode_strings([split(pieces)[0] for pieces in batch], facts)
    assert (flat.ids.tolist(), flat.lengths.tolist()) == (ids.tolist(), lengths.tolist())
    within = [index for pieces in batch for index in range(len(pieces))]
    assert np.repeat(within, flat.counts).tolist() == owner.tolist()
    edges = [0, *np.cumsum(lengths).tolist()]
    for pieces, a, b in zip(batch, edges[:-1], edges[1:], strict=True):
        one_ids, one_owner = encoder.encode_pieces(*split(pieces))
        assert (one_ids.tolist(), one_owner.tolist()) == (ids[a:b].tolist(), owner[a:b].tolist())
