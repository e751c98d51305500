"""From the spans of rows (`spans`) to arrays of ids and weights.

`Column` reads one kind of value (ids, masks), and `EpisodeReader` reads and checks ids, weights and text starts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from niels_gpt.episodes.dataset import EpisodeSplit
from niels_gpt.episodes.format import MASK_NAME
from niels_gpt.episodes.shards import Shard
from niels_gpt.episodes.spans import Array, Int64s, RowSpans
from niels_gpt.errors import CacheError
from niels_gpt.format.fitting import without_cut_turn
from niels_gpt.format.gather import shifted, targets_of
from niels_gpt.format.packing import layout_of


class Column:
    """One kind of value (ids, mask, segment ids) of all shards.

    Args:
        files: one array per shard, shape (tokens,), mapped.
    """

    def __init__(self, files: Sequence[Array]) -> None:
        self._files = files
        # Shards may differ: a uint8 mask beside a float32 one is read as float32.
        self.dtype = np.result_type(*files)

    def rows(self, spans: RowSpans, fill: float) -> Array:
        """A new array of shape (B, width): the spans' values, and `fill` on padding."""
        rows = np.full((spans.B, spans.width), fill, dtype=self.dtype)
        # Span by span: a copy of neighbouring values takes a tenth of the time of reading them by their places, so
        # numpy's call for each span is paid back unless spans have some ten values.
        columns = (spans.row, spans.column, spans.shard, spans.start, spans.length)
        for row, at, shard, start, n in zip(*(column.tolist() for column in columns), strict=True):
            # Of a prefix at the file's end, `one_longer` asks for a value that is not there.
            values = self._files[shard][start : start + n]
            rows[row, at : at + len(values)] = values
        return rows


class Layout(NamedTuple):
    """The separation of texts within rows, in the forms that attention takes.

    Attributes:
        segment_ids, position_ids: int32 and int64, shape (B, T), see `packing.Layout`.
        cu_seqlens, max_seqlen: where sequences begin, int32, and the longest; `None` where texts see others.
        prefixes: int32, shape (B, T, 2), see `RowSpans.prefix_columns`; `None` where texts see no others.
    """

    segment_ids: npt.NDArray[np.int32]
    position_ids: Int64s
    cu_seqlens: npt.NDArray[np.int32] | None
    max_seqlen: int | None
    prefixes: npt.NDArray[np.int32] | None


class TrainingRows(NamedTuple):
    """The rows of a batch.

    Attributes:
        x, y: int64, shape (B, T).
        mask: the loss weights of the targets, float32, shape (B, T).
        trained, weight: how many targets have a weight above 0, and the sum of the weights.
        layout: `None` if it was not requested.
    """

    x: Int64s
    y: Int64s
    mask: npt.NDArray[np.float32]
    trained: int
    weight: float
    layout: Layout | None


class EpisodeReader:
    """Reads ids, weights and text starts of rows of `width` tokens, and checks them.

    Args:
        too_long: the policy for episodes that do not fit; see `fitting.check_policy`.
        vocab_size: ids must be below it; `None` if it is not known.
        use_mask: read the masks, if there are any; else every token counts as trained.
        shards: the mapped files of some of the split's shards, to which the spans' numbers then refer; default of all.
    """

    def __init__(
        self,
        split: EpisodeSplit,
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

    @property
    def has_segments(self) -> bool:
        """Whether episodes may have several texts."""
        return self._segments is not None

    def training_rows(self, spans: RowSpans, pad_id: int, *, with_layout: bool = False) -> TrainingRows:
        """Inputs, targets and weights of rows, and with `with_layout` what separates their texts.

        Args:
            pad_id: fills `x` and `y` on padding.

        Raises:
            CacheError: an id is outside the vocabulary, or a mask value is not a weight (file, record and token named).
        """
        texts = self.texts(spans)
        weights = targets_of(self.weights(spans, texts))
        x, y = shifted(self.ids(spans, pad_id))
        layout = self._layout(spans, texts) if with_layout else None
        return TrainingRows(x, y, weights.astype(np.float32, order="C"), *_sums(weights), layout)

    def _layout(self, spans: RowSpans, texts: Int64s) -> Layout:
        T = self._width - 1
        found = layout_of(texts, spans.used, T=T)
        if spans.sees is None:
            return Layout(found.segment_ids, found.position_ids, found.cu_seqlens, found.max_seqlen, None)
        # A branch goes on at the position after the tokens that it sees.
        prefixes = spans.prefix_columns()[:, :T]
        position_ids = found.position_ids + prefixes[..., 1] - prefixes[..., 0]
        return Layout(found.segment_ids, position_ids, None, None, prefixes)

    def ids(self, spans: RowSpans, pad_id: int) -> npt.NDArray[np.uint32]:
        """The ids, shape (B, width), with `pad_id` on padding.

        Raises:
            CacheError: an id is outside the vocabulary (file, record and token named).
        """
        ids = self._tokens.rows(spans, pad_id)
        limit = self._vocab_size
        # The padding is checked with the rest: its id must be in the vocabulary, too.
        if limit is not None and ids.max() >= limit:
            row, column = (int(found[0]) for found in np.nonzero(ids >= limit))
            where = self._describe(spans, row, column)
            verify = "cache verify" if self._split.has_windows else "episodes verify"
            raise CacheError(
                f"{where} is {int(ids[row, column])}, outside the vocabulary of {limit:,}; the dataset was made with "
                f"another tokenizer, or is damaged. Use the right one, or run: niels-gpt {verify}"
            )
        return ids

    def texts(self, spans: RowSpans) -> Int64s:
        """Where texts begin, ascending indices into the flattened rows: with episodes, and where segment ids change.

        ::

            spans       a a a b b .       segment ids  0 0 1 1 1 .      texts begin at  0 2 3
        """
        begins = spans.row * self._width + spans.column
        if spans.sees is None:  # else each sample of an item is a text of its own
            begins = spans.of_episodes(begins)
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

        The first token of every text weighs 0 too: nothing in its own text predicts it.

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
        if self._masks is not None and spans.sees is not None:
            self._check_branches(weights, spans, spans.sees)
        # After the checks: a damaged value there must be found, too.
        weights.reshape(-1)[texts] = 0
        if self._masks is not None and spans.is_prefix is not None:
            # They are trained in the episode that owns them.
            of_prefixes = np.zeros_like(spans.token_mask)
            of_prefixes[spans.token_mask] = spans.is_prefix.repeat(spans.length)
            weights[of_prefixes] = 0
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

    def _check_branches(self, weights: Array, spans: RowSpans, sees: Int64s) -> None:
        """The first token of a branch is no target in a shared row; alone, the prefix predicts it."""
        lost = (sees > 0) & (weights[spans.row, spans.column] > 0)
        if lost.any():
            at = int(np.argmax(lost))
            raise CacheError(
                f"{self._describe(spans, int(spans.row[at]), int(spans.column[at]))} follows a prefix and is trained; "
                "with share_prefixes nothing predicts it. Leave that out, or write a prefix that is one token shorter"
            )

    def _describe(self, spans: RowSpans, row: int, column: int) -> str:
        """The episode at a row and column, and the token's number from the episode's start, for messages."""
        # The span that covers a column is the last one that begins at or before it.
        at = int(np.flatnonzero((spans.row == row) & (spans.column <= column))[-1])
        place = int(spans.start[at]) + column - int(spans.column[at])
        ranges = self._split.ranges(spans.episode[at : at + 1])
        # Tokens are counted through all ranges of the episode. The last range that has the place is its own.
        hit = int(np.flatnonzero((ranges.start <= place) & (place < ranges.start + ranges.length))[-1])
        token = int(ranges.length[:hit].sum()) + place - int(ranges.start[hit])
        return f"{self._split.describe(int(spans.episode[at]))}: token {token:,}"


def _sums(weights: Array) -> tuple[int, float]:
    """How many weights are above 0, and the sum of all."""
    trained = int(np.count_nonzero(weights))
    return trained, float(trained if weights.dtype == np.uint8 else weights.sum(axis=1, dtype=np.float64).sum())


def check_binary_masks(shards: Sequence[Shard]) -> None:
    """Raise `CacheError` if a uint8 mask holds anything but 0 and 1; reads those masks once."""
    for shard in shards:
        if shard.mask is not None and shard.mask.dtype == np.uint8 and shard.mask.max(initial=0) > 1:
            at = int(np.argmax(shard.mask > 1))
            where = f"{shard.folder / MASK_NAME}: value {at:,}"
            raise CacheError(f"{where} is {shard.mask[at]}; expected 0 or 1. Build the dataset again")


def _segments(shard: Shard) -> npt.NDArray[Any]:
    """A shard's segment ids; if it has none, zeros of the same shape that take no memory."""
    if shard.segments is not None:
        return shard.segments
    return np.broadcast_to(np.zeros(1, dtype=np.uint16), len(shard.tokens))
