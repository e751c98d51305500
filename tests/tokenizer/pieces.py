"""Pieces as the tests of encoders draw them, and what holds for every encoder."""

from __future__ import annotations

import numpy as np

from niels_gpt.tokenizer.pieces import SCAFFOLD, PieceEncoder

Pieces = list[tuple[str, bool]]  # of one string: a text, and whether it is scaffold


def split(pieces: Pieces) -> tuple[list[str], list[bool]]:
    """The texts, and which of them are scaffold, as encoders take them."""
    return [text for text, _ in pieces], [flag for _, flag in pieces]


def check_many(encoder: PieceEncoder, batch: list[Pieces]) -> None:
    """Many strings are encoded as one by one."""
    facts = [[SCAFFOLD if flag else 0 for _, flag in pieces] for pieces in batch]
    found = encoder.encode_strings([split(pieces)[0] for pieces in batch], facts)
    assert [one.dtype for one in found] == [np.int32, np.int64, np.int64, np.int32, np.int64]
    assert found.facts.tolist() == [fact for own in facts for fact in own]
    assert found.pieces.tolist() == [len(pieces) for pieces in batch]
    within = np.array([index for pieces in batch for index in range(len(pieces))], np.int64)
    owner, edges = within.repeat(found.counts), [0, *np.cumsum(found.lengths).tolist()]
    assert edges[-1] == found.ids.size
    for pieces, a, b in zip(batch, edges[:-1], edges[1:], strict=True):
        one_ids, one_owner = encoder.encode_pieces(*split(pieces))
        assert (one_ids.tolist(), one_owner.tolist()) == (found.ids[a:b].tolist(), owner[a:b].tolist())
