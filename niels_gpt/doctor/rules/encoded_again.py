"""Whether ids are those that a tokenizer makes of their text itself: they are decoded, and the text is encoded again.

::

    ids of this tokenizer   9906 1917      text "Hello world"      again  9906 1917
    ids of another one      9707 1879      text " stressed exp"    again  62852 1367

Only what is between control tokens is compared, because no ordinary text is encoded as these.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import groupby
from typing import Final

from niels_gpt.doctor.evidence import Evidence
from niels_gpt.doctor.layouts.layout import Layout
from niels_gpt.tokenizer.pieces import PieceEncoder

# Of the tokens; a run that was cut may end in another one. Ids of other tokenizers were seen to reach 0.4 to 0.94.
SAME: Final = 0.96


def are_its_own(samples: list[Evidence], encoder: PieceEncoder, layout: Layout) -> bool:
    """Whether nearly all tokens of these windows are the same when their text is encoded again.

    Tokens are compared as multisets, so that one changed token does not shift all others: of 5 6 7 8 and 5 9 8, two
    are the same, of four. Ids without text never are.
    """
    same = total = 0
    for sample in samples:
        row = [token.id for token in sample.window]
        total += sum(token >= layout.vocab_size for token in row)
        for ids in _between_controls(row, layout):
            again, _ = encoder.encode_pieces([encoder.decode(ids)], [False])
            same += sum((Counter(ids) & Counter(again.tolist())).values())
            total += max(len(ids), len(again))
    return total == 0 or same / total >= SAME


def _between_controls(ids: list[int], layout: Layout) -> Iterator[list[int]]:
    """The runs of ids that ordinary text is encoded as; an id outside of the vocabulary ends a run, too."""
    for is_text, run in groupby(ids, lambda token: 0 <= token < layout.vocab_size and token not in layout.controls):
        if is_text:
            yield list(run)
