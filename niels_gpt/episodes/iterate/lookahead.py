"""`Lookahead`: small batches are made several at a time, in about half the time that each alone would take.

It is asked for the batch at a place, like `Batches.batch`, and makes later batches only for a caller that continues::

    asked for    made                                   waiting
    batch 0      0 alone: who asks first may read on    -
                 or not
    batch 1      1 to 8 together                        2 to 8
    batch 2      -                                      3 to 8
    batch 50     50 alone: the caller has moved         -

The batches equal those of `Batches.batch`, and no two share writable memory.
"""

from __future__ import annotations

from typing import Generic

from niels_gpt.episodes.batches import TOKEN_BYTES, Batch, Batches
from niels_gpt.episodes.order.states import Place

LOOKAHEAD_BATCHES = 8  # made together at most; the first is delayed until all are made
LOOKAHEAD_TOKENS = 1 << 17  # in them at most, if they have TOKEN_BYTES each; a larger batch is made alone


class Lookahead(Generic[Batch]):
    """`Batches.batch` for callers that continue from one batch to the next; any other place costs as much as there."""

    def __init__(self, batch_source: Batches[Batch]) -> None:
        self._batch_source = batch_source
        # Batches of 8 rows of 1,024 tokens: 131,072 // 8,192 = 16 would be within the limit of tokens, so 8 are made.
        tokens = batch_source.options.batch_size * batch_source.options.block_size
        most = LOOKAHEAD_TOKENS * TOKEN_BYTES // batch_source.token_bytes
        self._n = min(LOOKAHEAD_BATCHES, max(1, most // tokens))
        self._after: Place | None = None  # where a caller that continues will ask
        self._waiting: list[tuple[Batch, Place]] = []  # in reverse order: the last is the batch at `_after`

    def batch(self, place: Place) -> tuple[Batch, Place]:
        """See `Batches.batch`."""
        # One place has two names where an epoch ends: its last position, and the start of the next epoch. The first
        # comparison is the common case, without arithmetic.
        start = self._batch_source.starting_place
        continues = place is self._after or (self._after is not None and start(place) == start(self._after))
        # Until the batch is out: if Ctrl-C came between its `pop` and the new place, the next call would skip it.
        self._after = None
        if not continues:
            self._waiting = self._batch_source.batches(place, 1)
        elif not self._waiting:
            try:
                self._waiting = self._batch_source.batches(place, self._n)[::-1]
            # Any error of any batch, for it may be of a later one: made alone, this one raises it if it is its own.
            except Exception:
                self._waiting = self._batch_source.batches(place, 1)
        batch, self._after = self._waiting.pop()
        return batch, self._after

    def __reduce__(self) -> tuple[type[Lookahead[Batch]], tuple[Batches[Batch]]]:
        """Pickled without the waiting batches: another process makes its own."""
        return type(self), (self._batch_source,)
