"""`BatchSource`, a pure function from a place to the batch there.

Eight rows of a global batch, two ranks with batch_size 4, and what one row of block_size 3 becomes::

    order        rows 7 2 9 4 | 1 8 3 6        rank 0 | rank 1
    row 7        ids     a b c d   weights  . . # #       (block_size + 1 tokens)
    batch        x       a b c     y   b c d     mask   . # #

`open_batch_source` makes a source from an opened split: it groups, packs, and chooses the order.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from niels_gpt.episodes.batch import EpisodeBatch, WindowBatch
from niels_gpt.episodes.batches import Batches, BatchOptions, hash_of
from niels_gpt.episodes.order.order import Order, every_row
from niels_gpt.episodes.order.sampling import Sampling, episode_groups, order_of
from niels_gpt.episodes.order.states import Place
from niels_gpt.episodes.packing import packing_plan
from niels_gpt.episodes.rows import EpisodeReader, Int64s, RowSpans, SpanLocator
from niels_gpt.episodes.settings import flag
from niels_gpt.episodes.shard_stream import stream_of
from niels_gpt.errors import CacheError, UsageError
from niels_gpt.format.packing import Layout, PackPlan
from niels_gpt.required_torch import torch
from niels_gpt.store.images import joined
from niels_gpt.store.split import IndexedSplit


def open_batch_source(
    split: IndexedSplit, options: BatchOptions, sampling: Sampling, *, packed: bool, names: list[str]
) -> BatchSource:
    """The batches of an opened split.

    Args:
        packed: several episodes share a row.
        names: what each dataset is called in the sampling's weights.

    Raises:
        CacheError: no episode is left after filtering, or there is no metadata to weight by.
        UsageError: an epoch has fewer rows than a global batch and drop_last is set, or the weights do not fit the
            data.
    """
    directories = ", ".join(str(dataset / split.name) for dataset in split.datasets)
    if len(split) == 0 and split.has_windows:
        raise CacheError(f"{directories}: no shard with two tokens, an input and its target; build from more text")
    if len(split) == 0:
        raise CacheError(
            f"{directories}: no episode to read: of {split.n_rows:,} in the index {split.too_short:,} are too "
            f"short and {split.too_long:,} too long; lower episode_min_tokens, raise block_size, or build with more"
        )
    groups = episode_groups(split, sampling, names)
    # Groups are packed separately: a row with episodes of two groups could not be drawn by either's share.
    width = options.block_size + 1
    members = groups.members if groups else None
    if sampling.shuffle_shards is not None:
        # So are shards: a row with episodes of two could not be read before both are here.
        members = {f"shard {number}": span for number, span in enumerate(split.positions_of_shards())}
    plan = packing_plan(split, width, groups=members) if packed else None
    order = order_of(split, plan, sampling, groups)
    rows = options.batch_size * options.world_size
    if options.drop_last and not order.crosses_epochs and order.n is not None and order.n < rows:
        raise UsageError(
            f"{directories}: {order.n:,} rows an epoch, but a global batch has {rows:,} ({options.batch_size:,} "
            f"on each of {options.world_size:,} ranks), so drop_last would drop everything; use a smaller batch_size, "
            "or epoch_drop_last=False"
        )
    return BatchSource(split, options, order, plan)


class BatchSource(Batches[EpisodeBatch]):
    """Makes one rank's batches from an opened split, an order of rows, and a packing plan if rows are packed.

    The order gives the `batch_size * world_size` rows of a global batch; rank r takes `batch_size` of them from
    r * batch_size on. Making batches changes nothing here, so several threads may ask for any places at once.

    Attributes:
        uses_mask: whether `mask` says what is trained: the dataset has masks, or is one of windows, and they are used.
    """

    logger: ClassVar[logging.Logger] = logging.getLogger("niels_gpt.episodes")

    def __init__(
        self,
        split: IndexedSplit,
        options: BatchOptions,
        order: Order,
        plan: PackPlan | None = None,
    ) -> None:
        super().__init__(split, options, order)
        self.plan = plan
        self._width = options.block_size + 1
        self._locator = SpanLocator(split, plan, self._width, too_long=options.too_long)
        # Windows need no mask file: all of a window is trained, its padding is not. `has_mask` looks at every shard,
        # which no batch should do.
        self.uses_mask = (split.has_windows or split.has_mask) and options.use_mask
        self._batch_class = WindowBatch if split.has_windows else EpisodeBatch
        self._has_layout = plan is not None or split.has_segments  # rows may hold several texts
        # Not a method: with a cycle of references, a loader that is dropped would keep its shards from being evicted.
        open_reader = partial(
            EpisodeReader,
            split,
            self._width,
            too_long=options.too_long,
            vocab_size=options.vocab_size,
            use_mask=options.use_mask,
        )
        self._stream = stream_of(split, order, open_reader, self.global_rows)
        self._reader = open_reader() if self._stream is None else None
        self.fingerprint = self._fingerprint()

    def _reader_of(self, spans: RowSpans, place: Place | None = None) -> EpisodeReader:
        """The reader of some spans; waits for shards that come from a store, and numbers the spans' shards anew."""
        if self._reader is not None:
            return self._reader
        assert self._stream is not None
        return self._stream.reader(spans, None if place is None else self.starting_place(place))

    def batch(self, place: Place) -> tuple[EpisodeBatch, Place]:
        """See `Batches`.

        Raises:
            CacheError: an id is outside the vocabulary, or a mask value is not a weight (file, record and token named).
        """
        o = self.options
        # Arithmetic up to here: which rows, and where they are in the files. Nothing is read before `training_rows`.
        rows, after = self.draw(place)
        spans = self._locator.of_rows(rows[self.own_rows])
        reader = self._reader_of(spans, place)
        gathered = reader.training_rows(spans, o.pad_id, with_layout=self._has_layout)
        media: dict[str, torch.Tensor] | None = None
        if o.images is not None:
            arrays = joined(self.split.images_of(spans.episode), o.images)
            media = {name: torch.from_numpy(array) for name, array in arrays.items()}
        batch = self._batch_class(
            x=torch.from_numpy(gathered.x),
            y=torch.from_numpy(gathered.y),
            mask=torch.from_numpy(gathered.mask),
            episodes=spans.episode,
            num_trained_tokens=gathered.trained,
            mask_sum=gathered.weight,
            num_tokens=int(spans.used.sum()),
            lengths=spans.used,
            media=media,
            state=self.state(after),
            **_layout_fields(gathered.layout),
        )
        return batch, after

    def flat_rows(self, rows: Int64s) -> tuple[npt.NDArray[np.uint32], Int64s, npt.NDArray[Any], Int64s]:
        """Rows without padding, one after another: ids, lengths of the rows, weights, and each token's text number.

        Texts are numbered from 0 in every row. A row of texts of 2 and 1 tokens and a row of one text of 3: lengths
        3 3, text numbers 0 0 1 0 0 0.
        """
        spans = self._locator.of_rows(rows)
        reader = self._reader_of(spans)
        texts = reader.texts(spans)
        weights = reader.weights(spans, texts)
        is_token, used = spans.token_mask, spans.used
        row = texts // self._width
        # In the example with width 5, texts at places 0 2 5 of the padded rows begin at 0 2 3 without padding.
        begins = texts - row * self._width + (used.cumsum() - used)[row]
        lengths = np.diff(begins, append=used.sum())
        numbers = np.arange(len(row)) - row.searchsorted(row)
        return reader.ids(spans, 0)[is_token], used, weights[is_token], numbers.repeat(lengths)

    def in_order(self) -> BatchSource:
        """A source of the same rows in ascending order, each once, without dropping any."""
        n = len(self.split) if self.plan is None else self.plan.rows
        order = every_row(n, self.options.seed, shuffle=False)
        # Where shards come from a store, a stream needs to know which ones a place is in.
        if self.order.window is not None:
            order = replace(self.order, shuffle=False)
        return BatchSource(self.split, replace(self.options, drop_last=False), order, self.plan)

    def describe_epoch(self, epoch: int) -> str:
        """See `Batches`."""
        o, split = self.options, self.split
        return (
            f"{split.log_name} split={split.name} epoch={epoch} {split.unit}={len(split)} "
            f"batches={self.steps_per_epoch()} shuffle={flag(o.shuffle)} drop_last={flag(o.drop_last)} "
            f"pad_id={o.pad_id} mask={flag(self.uses_mask)}"
        )

    def __reduce__(self) -> tuple[type[BatchSource], tuple[Any, ...]]:
        """Pickled for a worker, the source opens its files again there: maps would be sent as copies of all tokens."""
        return type(self), (self.split, self.options, self.order, self.plan)

    def _fingerprint(self) -> str:
        """A hash of everything that decides which row is at a place; neither batch size, ranks nor drop_last does."""
        parts = {
            "split": self.split.fingerprint,
            # The order, its weights and groups; the seed is a field of its own in states, so that a message can name
            # it.
            "rows": self.order.describe(),
            "episodes": len(self.split),
            "packed": None if self.plan is None else [self.plan.capacity, self.plan.rows, self.plan.digest()],
            "block_size": self.options.block_size,
            "too_long": self.options.too_long,
        }
        return hash_of(parts)


def _layout_fields(layout: Layout | None) -> dict[str, Any]:
    """The fields that separate the texts of a row; empty if each row has one text."""
    if layout is None:
        return {}
    return {
        "segment_ids": torch.from_numpy(layout.segment_ids),
        "position_ids": torch.from_numpy(layout.position_ids),
        "cu_seqlens": torch.from_numpy(layout.cu_seqlens),
        "max_seqlen": layout.max_seqlen,
    }
