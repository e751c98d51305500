"""From the spans of rows (`spans`) to arrays of ids and weights.

`Column` gathers one kind of value (ids, masks), and `EpisodeReader` reads and checks ids, weights and text starts: with
the native kernel by `format.gather`, else in numpy. There is no Python loop over tokens or rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from niels_gpt.cache.mmap import RowReader
from niels_gpt.episodes.dataset import EpisodeSplit
from niels_gpt.episodes.format import MASK_NAME
from niels_gpt.episodes.shards import Shard
from niels_gpt.episodes.spans import Array, Int64s, RowSpans
from niels_gpt.errors import CacheError
from niels_gpt.format import gather
from niels_gpt.format.fitting import without_cut_turn
from niels_gpt.format.gather import Buffers, shifted, targets_of
from niels_gpt.format.packing import layout_of
from niels_gpt.kernel import native


class Column:
    """One kind of value (ids, mask, segment ids) of all shards.

    Args:
        files: one array per shard, shape (tokens,), mapped.
        width: the longest row that will be read.
    """

    def __init__(self, files: Sequence[Array], width: int) -> None:
        self.files = files
        self._readers = [RowReader(values, width) for values in files]
        # Shards may differ: a uint8 mask beside a float32 one is read as float32.
        self.dtype = np.result_type(*files)

    def rows(self, spans: RowSpans, fill: float) -> Array:
        """A new array of shape (B, width): the spans' values, and `fill` on padding."""
        rows = self.unfilled(spans)
        spans.fill_rest(rows, fill)
        return rows

    def unfilled(self, spans: RowSpans) -> Array:
        """The same with arbitrary values on padding."""
        if not spans.one_per_row:
            found = self._gathered(spans)
        else:
            # One contiguous copy a row, each as long as the longest span. The loop is over the shards that are hit.
            longest = int(spans.length.max(initial=0))
            if len(self.files) == 1:
                found = self._readers[0].read(spans.start, longest)
            else:
                found = np.empty((len(spans.row), longest), dtype=self.dtype)
                for hit in np.unique(spans.shard).tolist():
                    here = spans.shard == hit
                    found[here] = self._readers[hit].read(spans.start[here], longest)
        # Full rows need no second array; all others are copied into one with room for padding.
        if found.shape == (spans.B, spans.width):
            return found
        rows = np.empty((spans.B, spans.width), dtype=self.dtype)
        rows[: len(found), : found.shape[1]] = found
        return rows

    def _gathered(self, spans: RowSpans) -> Array:
        """One indexed read for all values of rows of several spans."""
        # Three reads of 2 4 3 values would be three calls; numpy takes one list of places. A loop only over shards.
        places = spans.places
        if len(self.files) == 1:
            # Places on padding may lie past the end of the file. "clip" reads the last value there, and `fill_rest`
            # overwrites it.
            return self.files[0].take(places, mode="clip").reshape(spans.filled, spans.width)
        values = np.empty(len(places), dtype=self.dtype)
        for hit in np.unique(spans.shard).tolist():
            # One flag per span becomes one per value: flags # . with reaches 2 3 give # # . . .
            here = (spans.shard == hit).repeat(spans.reach)
            file = self.files[hit]
            # Not `take`: it would copy the whole of an array that repeats one value, as `_segments` returns.
            values[here] = file[np.minimum(places[here], len(file) - 1)]
        return values.reshape(spans.filled, spans.width)


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
        buffers: memory to share with other readers.
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
        buffers: Buffers | None = None,
    ) -> None:
        self._split, self._width, self._vocab_size = split, width, vocab_size
        self._by_turn = too_long == "drop_partial_turn"
        self.buffers = buffers or Buffers()
        self.shards = shards = split.shards if shards is None else shards
        self._tokens = Column([shard.tokens for shard in shards], width)
        self._masks: Column | None = None
        if split.has_mask and use_mask:
            masks = [shard.mask for shard in shards if shard.mask is not None]
            if len({mask.dtype for mask in masks}) > 1:
                # Read together, uint8 and float32 masks become float32, where a damaged 255 would pass as a weight.
                check_binary_masks(shards)
            # The token after the row shows whether the cut went through a turn.
            self._masks = Column(masks, width + self._by_turn)
        self._segments = Column([_segments(shard) for shard in shards], width) if split.has_segments else None
        self._files = gather.Files(
            ids=self._tokens.files,
            # The kernel reads masks of 0 and 1 alone, see `_weighs_in_kernel`.
            masks=None if self._masks is None else self._masks.files,
            segments=[shard.segments for shard in shards] if split.has_segments else None,
        )

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
        kernel, limit = native(), self._vocab_size
        # The kernel compares the ids of files with the limit, and numpy those of the padding too.
        if kernel is not None and (limit is None or pad_id < limit):
            found = self._by_kernel(kernel, spans, pad_id, with_layout)
            if found is not None:
                return found
        # With numpy, where there is no kernel or it does not fit; and after a wrong value, which is named here.
        texts = self.texts(spans)
        weights = targets_of(self.weights(spans, texts))
        x, y = shifted(self.ids(spans, pad_id))
        layout = self._layout(spans, texts) if with_layout else None
        return TrainingRows(x, y, weights.astype(np.float32, order="C"), *_sums(weights), layout)

    def _by_kernel(self, kernel: ModuleType, spans: RowSpans, pad_id: int, with_layout: bool) -> TrainingRows | None:
        """See `training_rows`; `None` if a value is wrong."""
        with_mask = self._weighs_in_kernel(spans)
        found = gather.training_rows(
            kernel,
            self.buffers,
            self._files if with_mask else self._files._replace(masks=None),
            spans.for_kernel,
            batches=1,
            B=spans.B,
            T=self._width - 1,
            pad_id=pad_id,
            limit=self._vocab_size,
            with_mask=with_mask,
            with_layout=with_layout,
        )
        if found is None:
            return None
        trained, _, _, sequences, longest = found.totals[0].tolist()
        # The kernel counts weights of 0 and 1, whose sum is the number of trained targets.
        mask, weight = found.mask, float(trained)
        if mask is None:  # of weights that the kernel does not know, see `_weighs_in_kernel`
            weights = targets_of(self.weights(spans, self.texts(spans)))
            mask, (trained, weight) = weights.astype(np.float32, order="C"), _sums(weights)
        layout = None
        if found.numbers is not None and found.positions is not None:
            # A copy of the bounds: what was gathered has room for many more texts.
            bounds = None if found.bounds is None else found.bounds[: sequences + 1].copy()
            layout = Layout(found.numbers, found.positions, bounds, longest, found.columns)
        return TrainingRows(found.x, found.y, mask, trained, weight, layout)

    def _layout(self, spans: RowSpans, texts: Int64s) -> Layout:
        T = self._width - 1
        found = layout_of(texts, spans.used, T=T)
        if spans.sees is None:
            return Layout(found.segment_ids, found.position_ids, found.cu_seqlens, found.max_seqlen, None)
        # A branch goes on at the position after the tokens that it sees.
        prefixes = spans.prefix_columns()[:, :T]
        position_ids = found.position_ids + prefixes[..., 1] - prefixes[..., 0]
        return Layout(found.segment_ids, position_ids, None, None, prefixes)

    def _weighs_in_kernel(self, spans: RowSpans) -> bool:
        """Whether the kernel can do this: it knows masks of 0 and 1, and no policy that depends on what was cut."""
        by_value = self._by_turn and bool(spans.cut.any())
        return not by_value and (self._masks is None or self._masks.dtype == np.uint8)

    def trained_targets(self, spans: RowSpans) -> tuple[Int64s, npt.NDArray[Any]]:
        """How many targets of each row have a weight above 0, int64 of shape (B,), and the sum of each row's weights.

        The sums are int64 if the weights are 0 and 1, else float64.

        Raises:
            CacheError: a mask value is not a weight (file, record and token named).
        """
        kernel = native()
        if kernel is not None and self._weighs_in_kernel(spans):
            found = gather.trained_targets(kernel, self._files, spans.for_kernel, B=spans.B, T=self._width - 1)
            if found is not None:
                return found, found
        weights = targets_of(self.weights(spans, self.texts(spans)))
        trained = np.count_nonzero(weights, axis=1)
        return trained, trained if weights.dtype == np.uint8 else weights.sum(axis=1, dtype=np.float64)

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
        if kernel := native():
            files, kernel_spans, T = self._files.segments, spans.for_kernel, self._width - 1
            return gather.text_starts(kernel, self.buffers, files, kernel_spans, B=spans.B, T=T)
        begins = spans.row * self._width + spans.column
        if spans.sees is None:  # else each sample of an item is a text of its own
            begins = spans.of_episodes(begins)
        if self._segments is None:
            return begins
        segments = self._segments.unfilled(spans).reshape(-1)
        # The first value needs no comparison: every row begins with a span.
        changes = np.empty(segments.shape, dtype=np.bool_)
        np.not_equal(segments[1:], segments[:-1], out=changes[1:])
        # Also between two episodes that happen to carry the same segment number.
        changes[begins] = True
        places = changes.nonzero()[0]
        if not spans.full:  # segment ids also change in the arbitrary values on padding
            row = places // self._width
            places = places[places - row * self._width < spans.used[row]]
        return places

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
            # They are trained in the episode that owns them. Prefixes # . . of 2 1 3 tokens, the last one's row of 4:
            # # # . . . .
            weights[: spans.filled].reshape(-1)[spans.is_prefix.repeat(spans.reach)] = 0
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
