"""Two renderings of one conversation: where they part, and where they meet again."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from niels_gpt.explorer.strip import Strip


@dataclass(frozen=True)
class Drift:
    """What differs.

    Attributes:
        by: "ids" where both have the same tokenizer, else "text".
        same: nothing does.
        left, right: the entries that differ, first and the one behind the last; equal where one only lacks some.
        same_mask: with the same ids, whether the same are trained, as far as the mode that is usual goes.
        mask_at: the first entry that only one of them trains; -1 if there is none, or if the ids differ.
    """

    by: str
    same: bool
    left: tuple[int, int]
    right: tuple[int, int]
    mask_at: int


def compare(left: Strip, right: Strip, mode: str = "end_of_turn") -> Drift:
    """The differing stretch of two strips, between what is common in front and behind.

    ::

        left     a b c d e        common in front  a b
        right    a b x e          common behind    e          left 2..4, right 2..3
    """
    by_ids = left.ids is not None and right.ids is not None and left.tokenizer == right.tokenizer
    if by_ids:
        one, other = np.array(left.ids, np.int64), np.array(right.ids, np.int64)
    else:
        one, other = (_characters("".join(strip.texts)) for strip in (left, right))
    front, behind = _common(one, other)
    same = len(one) == len(other) == front
    spans = [(front, len(values) - behind) for values in (one, other)]
    if not by_ids:
        spans = [_entries(strip, *span) for strip, span in zip((left, right), spans, strict=True)]
    mask_at = _mask_difference(left, right, mode) if same and by_ids else -1
    return Drift("ids" if by_ids else "text", same, spans[0], spans[1], mask_at)


def _characters(text: str) -> npt.NDArray[np.int64]:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4").astype(np.int64)


def _common(one: npt.NDArray[np.int64], other: npt.NDArray[np.int64]) -> tuple[int, int]:
    """How many values are equal in front, and of the rest behind."""
    n = min(len(one), len(other))
    differ = np.flatnonzero(one[:n] != other[:n])
    front = int(differ[0]) if differ.size else n
    left = n - front
    differ = np.flatnonzero(one[len(one) - left :][::-1] != other[len(other) - left :][::-1])
    return front, int(differ[0]) if differ.size else left


def _entries(strip: Strip, start: int, stop: int) -> tuple[int, int]:
    """The entries that hold these characters: of entries of 3 4 2 characters, 4..8 lie in 1..3."""
    ends = np.cumsum([len(text) for text in strip.texts])
    first = int(np.searchsorted(ends, start, side="right"))
    return first, first if stop <= start else int(np.searchsorted(ends, stop, side="left")) + 1


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
