"""Where two renderings of one conversation differ: by ids if both have the same tokenizer, else by text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

import numpy as np
import numpy.typing as npt

from niels_gpt.explorer.token_columns import TokenTable

MOST_PAIRS = 4_000_000  # difflib compares all pairs of entries; beyond this the whole stretch counts as one difference
_WORD = re.compile(r"\s+|\w+|[^\w\s]")
Span = tuple[int, int]


@dataclass(frozen=True)
class Drift:
    """The differences.

    Attributes:
        by: "ids" where both have the same tokenizer, else "text".
        same: there is no difference.
        left, right: a span `(start, stop)` of entries for each difference, in order; empty (start = stop) on the side
            that lacks what the other has.
        mask_at: the first entry that only one side trains; -1 if there is none, or where ids differ or are not
            compared.
    """

    by: str
    same: bool
    left: list[Span]
    right: list[Span]
    mask_at: int


def compare(left: TokenTable, right: TokenTable, mode: str = "end_of_turn") -> Drift:
    """Where two token tables differ.

    ::

        left     a b c d e f        differ    left   (2, 4) (5, 5)
        right    a b x e y f                  right  (2, 3) (4, 5)
    """
    by_ids = left.ids is not None and right.ids is not None and left.tokenizer == right.tokenizer
    # Ids of two tokenizers have nothing in common, so the words of the text are compared in their place.
    values: list[list[Any]] = [
        list(table.ids or []) if by_ids else _WORD.findall("".join(table.texts)) for table in (left, right)
    ]
    places = _differences(*values)
    # Spans of words become spans of entries, because words and tokens end at different characters.
    spans = [[(a, b) for a, b, _, _ in places], [(c, d) for _, _, c, d in places]]
    if not by_ids:
        spans = [
            [_entries(ends_of(table.texts), ends_of(words), span) for span in one_side]
            for table, words, one_side in zip((left, right), values, spans, strict=True)
        ]
    mask_at = -1
    if not places and by_ids:
        masks = [
            {edge for shown in table.modes if shown.name == mode for edge in shown.trained} for table in (left, right)
        ]
        # Where runs start and stop, 1 3 4 5 against 1 3 6 7: up to 4 both train the same.
        mask_at = min(masks[0] ^ masks[1], default=-1)
    return Drift("ids" if by_ids else "text", not places, spans[0], spans[1], mask_at)


def _differences(one: list[Any], other: list[Any]) -> list[tuple[int, int, int, int]]:
    """The spans `(a, b, c, d)` where one[a:b] differs from other[c:d]."""
    # Equal entries at both ends are skipped first: they are most of it, and difflib is quadratic.
    n = min(len(one), len(other))
    # The common end must not overlap the common front: a a a against a a has a front of 2 and an end of 0.
    front = next((at for at in range(n) if one[at] != other[at]), n)
    common_end = next((at for at in range(n - front) if one[-1 - at] != other[-1 - at]), n - front)
    a, b = one[front : len(one) - common_end], other[front : len(other) - common_end]
    if not a and not b:
        return []
    if len(a) * len(b) > MOST_PAIRS:
        return [(front, front + len(a), front, front + len(b))]
    # With autojunk difflib ignores values that occur often, which common tokens do.
    found = SequenceMatcher(None, a, b, autojunk=False).get_opcodes()
    return [(front + i, front + j, front + k, front + m) for tag, i, j, k, m in found if tag != "equal"]


def ends_of(texts: Sequence[str]) -> npt.NDArray[np.int64]:
    """Where consecutive texts end, in characters, after a leading 0: texts of 3 4 2 characters give 0 3 7 9."""
    return np.cumsum([0, *map(len, texts)])


def _entries(entries: npt.NDArray[np.int64], words: npt.NDArray[np.int64], span: Span) -> Span:
    """The entries that contain a span of words: with entries that end at 3 7 9, characters 4..8 are in entries 1..3."""
    start, stop = int(words[span[0]]), int(words[span[1]])
    # The entry that holds a character is the first that ends after it.
    first = int(np.searchsorted(entries[1:], start, side="right"))
    return first, first if stop == start else int(np.searchsorted(entries[1:], stop)) + 1
