"""Whether ids are those that a tokenizer makes of their text itself: they are decoded, and the text is encoded again.

::

    ids of this tokenizer   9906 1917      text "Hello world"      again  9906 1917
    ids of another one      9707 1879      text " stressed exp"    again  62852 1367

Only what is between control tokens is compared, because no ordinary text is encoded as these.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Final

from niels_gpt.doctor.evidence import Evidence
from niels_gpt.doctor.layouts.layout import Layout
from niels_gpt.tokenizer.pieces import PieceEncoder

# Of the tokens; a run that was cut may end in another one. Ids of other tokenizers were seen to reach 0.4 to 0.94.
SAME: Final = 0.96
# Tokens of a text's beginning and end that may change: tools encode headers and messages separately, and rows are cut.
BORDER: Final = 4


def are_its_own(samples: list[Evidence], encoder: PieceEncoder, layout: Layout) -> bool:
    """Whether nearly all tokens of these windows are the same when their text is encoded again."""
    return share_unchanged([[token.id for token in sample.window] for sample in samples], encoder, layout) >= SAME


def share_unchanged(rows: Iterable[list[int]], encoder: PieceEncoder, layout: Layout) -> float:
    """The share of the tokens, 0 to 1, that are the same when their text is encoded again; ids without text are not.

    Tokens are compared as multisets, so that one changed token does not shift all others: of 5 6 7 8 and 5 9 8, two
    are the same, of four.
    """
    same = total = 0
    for row in rows:
        total += sum(token >= layout.vocab_size for token in row)
        for ids in between_controls(row, layout):
            again = _again(ids, encoder)
            same += sum((Counter(ids) & Counter(again)).values())
            total += max(len(ids), len(again))
    return same / total if total else 1.0


def changes_inside(ids: list[int], encoder: PieceEncoder) -> bool:
    """Whether the text of these ids is encoded as other ids, and not only at its beginning or end.

    ::

        ids      5 6 7 8 9 1 2 3 4      again  5 6 7 8 9 50 3 4      the same on the left 5, on the right 2
    """
    again = _again(ids, encoder)
    left, right = _common(ids, again), _common(ids[::-1], again[::-1])
    return again != ids and len(ids) - right > BORDER and left < len(ids) - BORDER


def between_controls(ids: list[int], layout: Layout) -> Iterator[list[int]]:
    """The runs of ids that ordinary text is encoded as; an id outside of the vocabulary ends a run, too."""
    for is_text, run in groupby(ids, lambda token: 0 <= token < layout.vocab_size and token not in layout.controls):
        if is_text:
            yield list(run)


def _again(ids: list[int], encoder: PieceEncoder) -> list[int]:
    again, _ = encoder.encode_pieces([encoder.decode(ids)], [False])
    return [int(token) for token in again]


def _common(first: list[int], second: list[int]) -> int:
    """How many tokens two lists have in common at their beginning."""
    pairs = zip(first, second, strict=False)
    return next((place for place, (one, other) in enumerate(pairs) if one != other), min(len(first), len(second)))
