"""Two renderings of one conversation: every place where they differ, the first of them first."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from niels_gpt.explorer.strip import Strip

MOST_PAIRS = 4_000_000  # a longer stretch than this is one difference: finding more would take seconds
_WORD = re.compile(r"\s+|\w+|[^\w\s]")
Span = tuple[int, int]


@dataclass(frozen=True)
class Drift:
    """What differs.

    Attributes:
        by: "ids" where both have the same tokenizer, else "text".
        same: nothing does.
        left, right: the entries that differ, `(first, the one behind the last)` of each place, in order; equal where
            one side only lacks something.
        mask_at: the first entry that only one of them trains in the usual mode; -1 if there is none, or where the ids
            differ or are not compared.
    """

    by: str
    same: bool
    left: list[Span]
    right: list[Span]
    mask_at: int


def compare(left: Strip, right: Strip, mode: str = "end_of_turn") -> Drift:
    """Where two strips differ.

    ::

        left     a b c d e f        differ    left   (2, 4) (5, 5)
        right    a b x e y f                  right  (2, 3) (4, 5)
    """
    by_ids = left.ids is not None and right.ids is not None and left.tokenizer == right.tokenizer
    one, other = (_values(strip, by_ids) for strip in (left, right))
    places = _places(one, other)
    spans = [[(a, b) for a, b, _, _ in places], [(c, d) for _, _, c, d in places]]
    if not by_ids:
        spans = [
            [_entries(ends_of(strip.texts), ends_of(values), span) for span in own]
            for strip, values, own in zip((left, right), (one, other), spans, strict=True)
        ]
    mask_at = _mask_difference(left, right, mode) if not places and by_ids else -1
    return Drift("ids" if by_ids else "text", not places, spans[0], spans[1], mask_at)


def _values(strip: Strip, by_ids: bool) -> list[Any]:
    """What is compared: ids, or the words of the text."""
    return list(strip.ids or []) if by_ids else _WORD.findall("".join(strip.texts))


def _places(one: list[Any], other: list[Any]) -> list[tuple[int, int, int, int]]:
    """The stretches that differ, between what is equal in front and behind."""
    n = min(len(one), len(other))
    front = next((at for at in range(n) if one[at] != other[at]), n)
    behind = next((at for at in range(n - front) if one[-1 - at] != other[-1 - at]), n - front)
    a, b = one[front : len(one) - behind], other[front : len(other) - behind]
    if not a and not b:
        return []
    if len(a) * len(b) > MOST_PAIRS:
        return [(front, front + len(a), front, front + len(b))]
    found = SequenceMatcher(None, a, b, autojunk=False).get_opcodes()
    return [(front + i, front + j, front + k, front + m) for tag, i, j, k, m in found if tag != "equal"]


def ends_of(texts: Sequence[str]) -> npt.NDArray[np.int64]:
    """Where texts that follow each other end, in characters, with a 0 in front: of 3 4 2 characters 0 3 7 9."""
    return np.cumsum([0, *map(len, texts)])


def _entries(entries: npt.NDArray[np.int64], words: npt.NDArray[np.int64], span: Span) -> Span:
    """The entries that hold these words: of entries that end at 3 7 9, characters 4..8 lie in 1..3."""
    start, stop = int(words[span[0]]), int(words[span[1]])
    first = int(np.searchsorted(entries[1:], start, side="right"))
    return first, first if stop == start else int(np.searchsorted(entries[1:], stop)) + 1


def _mask_difference(left: Strip, right: Strip, mode: str) -> int:
    masks = []
    for strip in (left, right):
        flags = np.zeros(len(strip.texts), np.bool_)
        trained = next((made.trained for made in strip.modes if made.name == mode), [])
        for start, stop in list(pairwise(trained))[::2]:
            flags[start:stop] = True
        masks.append(flags)
    differ = np.flatnonzero(masks[0] != masks[1])
    return int(differ[0]) if differ.size else -1
