"""From rows to arrays of ids and weights: where the episodes of rows are in the files, and reading them.

A row is made of spans of the files, one after the other. Most rows have one span, packed rows have several::

    file    a a a b b c        spans    row 0 0 1    start 3 5 0    length 2 1 3
    rows    b b c
            a a a

`spans_of` finds the spans of rows, `RowSpans` has them as arrays, `Column` reads one kind of value (ids, masks), and
`EpisodeReader` reads and checks ids, weights and text starts. Padded rows, packed ones, windows and preferences take
this one path.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from niels_gpt.episodes.order.order import EMPTY
from niels_gpt.errors import CacheError
from niels_gpt.format.fitting import without_cut_turn
from niels_gpt.format.packing import PackPlan
from niels_gpt.store.gather import Computed
from niels_gpt.store.shards import Shard
from niels_gpt.store.split import IndexedSplit, check_binary_masks

Int64s = npt.NDArray[np.int64]
Array = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]


def spans_of(split: IndexedSplit, plan: PackPlan | None, rows: Int64s, width: int, *, tail: bool = False) -> RowSpans:
    """The spans of some rows, cut to `width`; rows with the number `EMPTY` come last, and have none.

    Args:
        plan: which episodes (by position) share a row; `None`: row p holds the episode at position p.
        tail: keep the last tokens of an episode that is too long, not the first.
    """
    row = np.flatnonzero(rows != EMPTY)
    positions = rows[row]
    if plan is not None:
        first, stop = plan.offsets[positions], plan.offsets[positions + 1]
        sizes = stop - first
        # Two rows with the items 20 21 and 5 6 7 of the plan: first 20 5, sizes 2 3, repeated differences
        # 20 20 3 3 3, plus 0 1 2 3 4: places 20 21 5 6 7.
        places = (first - (sizes.cumsum() - sizes)).repeat(sizes)
        places += np.arange(len(places))
        row, positions = row.repeat(sizes), plan.items[places].astype(np.int64)
    episodes = split.filtered[positions]
    shard, start, length = split.locate(episodes)
    cut = length > width
    if tail:
        # An episode of 9 in a row of 6 starts 3 later.
        start = start + np.maximum(0, length - width)
    length = np.minimum(length, width)
    return RowSpans(len(rows), width, row=row, episode=episodes, shard=shard, start=start, length=length, cut=cut)


@dataclass(eq=False)
class RowSpans:
    """The spans of `B` rows of `width` values, as arrays of shape (spans,).

    Attributes:
        row: the row of each span, int64, never falling: 0 0 1 2. Rows without a span come last.
        episode: the episode of each span, int64.
        shard, start, length: its file, first value and number of values (at least 1), int64.
        cut: bool: the episode has tokens after the span, none of them in the row.
        used: how many values each row holds, int64, shape (B,).
        column: the column in which each span begins, int64: lengths 2 1 3 in rows 0 0 1 begin at 0 2 0.
    """

    B: int
    width: int
    row: Int64s
    episode: Int64s
    shard: Int64s
    start: Int64s
    length: Int64s
    cut: Bools

    def __post_init__(self) -> None:
        self.used: Int64s = np.bincount(self.row, weights=self.length, minlength=self.B).astype(np.int64)
        # Tokens before each span (0 2 3) minus tokens before its row (0 0 3).
        self.column: Int64s = self.length.cumsum() - self.length - (self.used.cumsum() - self.used)[self.row]

    @property
    def token_mask(self) -> Bools:
        """True where a row holds a span's value, not padding; shape (B, width)."""
        # Columns 0 1 2 3 against 2 and 4 used: # # . . and # # # #.
        return np.arange(self.width) < self.used[:, None]

    def one_longer(self) -> RowSpans:
        """The same spans in rows that are one value wider, each extended by a value if its episode has one more."""
        # An episode that is cut has at least one token more; others end here and must not read the next one's.
        return replace(self, width=self.width + 1, length=self.length + self.cut)


class Column:
    """One kind of value (ids, mask, segment ids) of all shards.

    Args:
        files: one per shard, shape (tokens,), mapped; or a mask that is computed.
    """

    def __init__(self, files: Sequence[Array | Computed]) -> None:
        self._files = files
        # Shards may differ: a uint8 mask beside a float32 one is read as float32.
        self.dtype = np.result_type(*(file.dtype for file in files))

    def rows(self, spans: RowSpans, fill: float) -> Array:
        """A new array of shape (B, width): the spans' values, and `fill` on padding."""
        rows = np.full((spans.B, spans.width), fill, dtype=self.dtype)
        # Span by span: copying neighbouring values takes much less time than reading each by its place, which pays for
        # numpy's call for each span unless spans are very short.
        columns = (spans.row, spans.column, spans.shard, spans.start, spans.length)
        for row, at, shard, start, n in zip(*(column.tolist() for column in columns), strict=True):
            rows[row, at : at + n] = self._files[shard][start : start + n]
        return rows


class EpisodeReader:
    """Reads ids, weights and text starts of rows of `width` tokens, and checks them.

    Args:
        too_long: the policy for episodes that do not fit; see `fitting.check_policy`.
        vocab_size: ids must be below it; `None` if it is not known.
        use_mask: read the masks, if there are any; else every token counts as trained.
        shards: those of the split, of which those that are read must be mapped; default the split's own.
    """

    def __init__(
        self,
        split: IndexedSplit,
        width: int,
        *,
        too_long: str,
        vocab_size: int | None,
        use_mask: bool,
        shards: Sequence[Shard] | None = None,
    ) -> None:
        self._split, self._width, self._vocab_size = split, width, vocab_size
        self._by_turn = too_long == "drop_partial_turn"
        self.shards = shards = split.shards if shards is None else shards
        self._tokens = Column([shard.tokens for shard in shards])
        self._masks: Column | None = None
        if split.has_mask and use_mask:
            masks = [shard.mask for shard in shards if shard.mask is not None]
            if len({mask.dtype for mask in masks}) > 1:
                # Read together, uint8 and float32 masks become float32, where a damaged 255 would pass as a weight.
                check_binary_masks(shards)
            self._masks = Column(masks)
        self._segments = Column([_segments(shard) for shard in shards]) if split.has_segments else None

    def ids(self, spans: RowSpans, pad_id: int) -> npt.NDArray[np.uint32]:
        """The ids, shape (B, width), with `pad_id` on padding.

        Raises:
            CacheError: an id is outside the vocabulary (file, record and token named).
        """
        ids = self._tokens.rows(spans, pad_id)
        limit = self._vocab_size
        # The padding is checked with the rest: also its id must be in the vocabulary.
        if limit is not None and ids.max() >= limit:
            row, column = (int(found[0]) for found in np.nonzero(ids >= limit))
            where = self._describe(spans, row, column)
            raise CacheError(
                f"{where} is {int(ids[row, column])}, outside the vocabulary of {limit:,}; the dataset was made with "
                f"another tokenizer, or is damaged. Use the right one, or run: niels-gpt verify"
            )
        return ids

    def texts(self, spans: RowSpans) -> Int64s:
        """Where texts begin, ascending indices into the flattened rows: with episodes, and where segment ids change.

        ::

            spans       a a a b b .       segment ids  0 0 1 1 1 .      texts begin at  0 2 3
        """
        begins = spans.row * self._width + spans.column
        if self._segments is None:
            return begins
        segments = self._segments.rows(spans, 0).reshape(-1)
        # The first value needs no comparison: every row begins with a span.
        changes = np.empty(segments.shape, dtype=np.bool_)
        np.not_equal(segments[1:], segments[:-1], out=changes[1:])
        # Also between two episodes that happen to carry the same segment number.
        changes[begins] = True
        changes &= spans.token_mask.reshape(-1)  # they also change where padding begins
        return changes.nonzero()[0]

    def weights(self, spans: RowSpans, texts: Int64s) -> Array:
        """The loss weight of every token, uint8 or float32, shape (B, width); 0 on padding.

        The first token of every text also weighs 0: nothing in its own text predicts it.

        Raises:
            CacheError: a mask value is not a weight (file, record and token named).
        """
        if self._masks is None:
            # Without masks every token of an episode counts, and padding does not.
            weights: Array = spans.token_mask.astype(np.uint8)
        elif self._by_turn and spans.cut.any():
            # Reading one token more shows whether a row's end cuts a turn, which then is not trained.
            longer = self._masks.rows(spans.one_longer(), 0)
            weights = longer[:, : self._width].copy()
            rows = spans.row[spans.cut]  # an episode that is cut fills its row, so it has the row to itself
            weights[rows] = without_cut_turn(longer[rows], self._width)
        else:
            weights = self._masks.rows(spans, 0)
        self._check_weights(weights, spans)
        # After the checks: a damaged value there must also be found.
        weights.reshape(-1)[texts] = 0
        return weights

    def _check_weights(self, weights: Array, spans: RowSpans) -> None:
        binary = weights.dtype == np.uint8
        # Minimum and maximum are enough to find out whether a value is bad; which one matters only for the message.
        if weights.max() <= 1 if binary else np.isfinite(weights).all() and weights.min() >= 0:
            return
        bad = weights > 1 if binary else ~(np.isfinite(weights) & (weights >= 0))
        row, column = (int(found[0]) for found in np.nonzero(bad))
        expected = "0 or 1" if binary else "a weight of 0 or more"
        raise CacheError(
            f"{self._describe(spans, row, column)}: mask {weights[row, column]}; expected {expected}. "
            "Build the dataset again"
        )

    def _describe(self, spans: RowSpans, row: int, column: int) -> str:
        """The episode at a row and column, and the token's number from the episode's start, for messages."""
        # The span that covers a column is the last one that begins at or before it.
        at = int(np.flatnonzero((spans.row == row) & (spans.column <= column))[-1])
        # Counted from the episode's start, of which "tail" leaves tokens out.
        start = int(self._split.locate(spans.episode[at : at + 1])[1][0])
        token = int(spans.start[at]) - start + column - int(spans.column[at])
        return f"{self._split.where(int(spans.episode[at]))}: token {token:,}"


def _segments(shard: Shard) -> npt.NDArray[Any]:
    """A shard's segment ids; if it has none, zeros of the same shape that take no memory."""
    if shard.segments is not None:
        return shard.segments
    return np.broadcast_to(np.zeros(1, dtype=np.uint16), len(shard.tokens))
