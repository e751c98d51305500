"""What is exported: one split of a cache or of episodes, as rows of ids and weights.

Episodes and SFT caches have rows that can be read in any order (`Examples`); a pretrain cache is one stream, whose rows
are its documents (`caches.Stream`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from niels_gpt.errors import CacheError, UsageError
from niels_gpt.export.rows import Int64s, Rows

PORTION_TOKENS = 1 << 20
PORTION_ROWS = 1 << 15


@dataclass(frozen=True)
class Facts:
    """What is known of a split before it is read.

    Attributes:
        kind: "episodes", "sft" or "pretrain".
        vocab_size: ids are below it; `None` if that is not recorded.
        has_mask: the source says which tokens are trained; else all are.
        has_weights: the mask is float32, so weights may lie between.
        several_texts: a row may hold several texts.
        special_token_ids, tokenizer_sha256: as recorded.
        fingerprint: tells two sources apart.
    """

    path: Path
    kind: str
    split: str
    n_tokens: int
    vocab_size: int | None
    has_mask: bool
    has_weights: bool
    several_texts: bool
    special_token_ids: dict[str, int]
    tokenizer_sha256: str | None
    fingerprint: str


@dataclass(frozen=True, eq=False)
class Examples:
    """Rows that can be read in any order.

    Attributes:
        lengths: the length of rows, by number.
        read: rows by number, in that order.
    """

    facts: Facts
    n: int
    lengths: Callable[[Int64s], Int64s]
    read: Callable[[Int64s], Rows]

    def in_order(self, order: Callable[[Int64s], Int64s], n: int) -> Iterator[Rows]:
        """`n` rows in portions; `order` says which row comes at which place."""
        for first in range(0, n, PORTION_ROWS):
            numbers = order(np.arange(first, min(first + PORTION_ROWS, n)))
            for part in portions_of(self.lengths(numbers)):
                yield self.read(numbers[part])


def portions_of(lengths: Int64s) -> Iterator[slice]:
    """Rows in slices of about `PORTION_TOKENS` tokens; a longer row has one of its own."""
    ends = np.cumsum(lengths)
    first, before = 0, 0
    while first < len(lengths):
        stop = max(first + 1, int(np.searchsorted(ends, before + PORTION_TOKENS, side="right")))
        yield slice(first, stop)
        first, before = stop, int(ends[stop - 1])


def check(rows: Rows, facts: Facts, where: Callable[[int], str]) -> None:
    """Raise `CacheError` for ids outside the vocabulary and weights that are none."""
    limit = facts.vocab_size
    if limit is not None and rows.ids.size and rows.ids.max() >= limit:
        at = int(np.argmax(rows.ids >= limit))
        raise CacheError(
            f"{where(_row(rows, at))}: id {int(rows.ids[at])} is outside the vocabulary of {limit:,}; the files are "
            "damaged, or of another tokenizer. Restore them, or build again"
        )
    weights = rows.weights
    good = weights <= 1 if weights.dtype == np.uint8 else np.isfinite(weights) & (weights >= 0)
    if not good.all():
        at = int(np.argmin(good))
        expected = "0 or 1" if weights.dtype == np.uint8 else "a weight of 0 or more"
        raise CacheError(f"{where(_row(rows, at))}: mask {weights[at]}; expected {expected}. Build the dataset again")


def _row(rows: Rows, token: int) -> int:
    return int(np.searchsorted(rows.starts, token, side="right")) - 1


def checked_split(split: str | None) -> list[str] | None:
    """A split that the caller names, as a list.

    Raises:
        UsageError: no such split.
    """
    if split is None:
        return None
    if split not in ("train", "val"):
        raise UsageError(f"split is {split!r}; expected 'train' or 'val', or None for both")
    return [split]
