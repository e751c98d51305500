"""`Source`: the batch at a place, a pure function. `EpisodeSource` makes those of episodes, packed rows and windows.

Eight rows of a global batch, two ranks with batch_size 4, and what one row of block_size 3 becomes::

    order        rows 7 2 9 4 | 1 8 3 6        rank 0 | rank 1
    row 7        ids     a b c d   weights  . . # #       (block_size + 1 tokens)
    batch        x       a b c     y   b c d     mask   . # #
"""

from __future__ import annotations

import hashlib
import json
import logging
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Protocol, Self, TypeVar

import numpy as np
import numpy.typing as npt

from niels_gpt.episodes.batch import Batch
from niels_gpt.episodes.order.order import Order, every_row
from niels_gpt.episodes.order.states import Place, place_in, state_of
from niels_gpt.episodes.packing import StoredPlan
from niels_gpt.episodes.rows import EpisodeReader, RowSpans, spans_of
from niels_gpt.episodes.settings import ensure_log_output, flag
from niels_gpt.episodes.shard_stream import ShardStream
from niels_gpt.errors import UsageError
from niels_gpt.format.gather import shifted, targets_of
from niels_gpt.format.packing import layout_of
from niels_gpt.ranges import ROW
from niels_gpt.required_torch import torch
from niels_gpt.seeds import MAX_LENGTH
from niels_gpt.store.gather import Int64s
from niels_gpt.store.images import ImageSource, joined
from niels_gpt.store.split import IndexedSplit

NO_EPOCHS = "batch_sampling_mode is 'random', which has no epochs"

_log = logging.getLogger("niels_gpt.episodes")


class AnyBatch(Protocol):
    """A batch of any kind, as far as iterating needs it."""

    @property
    def state(self) -> dict[str, Any]: ...

    def to(self, device: str | torch.device) -> Self: ...

    def pin_memory(self, device: Any = None) -> Self: ...


B = TypeVar("B", bound=AnyBatch)


@dataclass(frozen=True)
class Batching:
    """How rows are divided into batches, and these among ranks; `batch_size` is each rank's."""

    batch_size: int
    drop_last: bool = True
    rank: int = 0
    world_size: int = 1

    @property
    def rows(self) -> int:
        """Rows in a batch over all ranks."""
        return self.batch_size * self.world_size

    @property
    def own(self) -> slice:
        """This rank's part of them: rank 1 of batches of 4 takes rows 4 to 7."""
        return slice(self.rank * self.batch_size, (self.rank + 1) * self.batch_size)


@dataclass(eq=False)
class Source(torch.utils.data.Dataset[B], ABC):
    """One rank's batches of one kind of row; all but `made` is arithmetic, and reads nothing.

    A map-style dataset of torch, whose items are places: see `Loader.places`. Making a batch changes nothing here, so
    several threads and processes may ask for any places at once.

    Attributes:
        split: the files: an `IndexedSplit`, or the windows of a token stream.
        order: which row is at which position, and the seed.
        batching: sizes and ranks.
    """

    split: Any
    order: Order
    batching: Batching

    @abstractmethod
    def made(self, rows: Int64s, place: Place, state: dict[str, Any]) -> B:
        """The batch of the rows of all ranks that are at a place, on the CPU, with the state after it."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """What decides the rows beside the order, as JSON values."""

    @abstractmethod
    def log_epoch(self, epoch: int) -> None:
        """Log the beginning of an epoch."""

    @property
    @abstractmethod
    def n_rows(self) -> int:
        """How many different rows there are."""

    def __getitem__(self, place: Place) -> B:
        """The batch at a place, on the CPU; its state is the place after it."""
        rows, after = self.order.take(place, self.batching.rows, drop_last=self.batching.drop_last)
        return self.made(rows, place, self.state(after))

    def __len__(self) -> int:
        """As `steps_per_epoch`."""
        return self.steps_per_epoch()

    @cached_property
    def fingerprint(self) -> str:
        """A hash of everything that decides which row is at a place; neither batch size, ranks nor drop_last does.

        The seed is a field of its own in states, so that a message can name it.
        """
        parts = {"split": self.split.fingerprint, "rows": self.order.describe(), **self.describe()}
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]

    def in_order(self) -> Self:
        """The same rows, each once, in ascending order, none dropped."""
        order = every_row(self.n_rows, self.order.seed, shuffle=False)
        # Where shards come from a store, a stream needs to know which ones a place is in.
        if self.order.window is not None:
            order = replace(self.order, shuffle=False)
        return replace(self, order=order, batching=replace(self.batching, drop_last=False))

    def check_epoch(self, unit: str, option: str) -> None:
        """Raise `UsageError` if an epoch has fewer rows than a global batch, so that `option` would drop all."""
        n, size = self.order.n, self.batching
        if size.drop_last and not self.order.crosses_epochs and n is not None and n < size.rows:
            folders = ", ".join(str(dataset / self.split.name) for dataset in self.split.datasets)
            raise UsageError(
                f"{folders}: {n:,} {unit} an epoch, but a global batch has {size.rows:,} ({size.batch_size:,} on each "
                f"of {size.world_size:,} ranks), so drop_last would drop everything; use a smaller batch_size, or "
                f"{option}=False"
            )

    # ---- places

    def begin(self, place: Place) -> Place:
        """The place of the batch at `place`: at the start of the next epoch, if too few rows are left in this one."""
        return self.order.begin(place, self.batching.rows, drop_last=self.batching.drop_last)

    def skip(self, place: Place, batches: int) -> Place:
        """The place after `batches` batches, in constant time."""
        return self.order.skip(place, self.batching.rows, batches, drop_last=self.batching.drop_last)

    def steps_per_epoch(self) -> int:
        """How many batches an epoch has on every rank; a weighted epoch may have one less, as batches run across ends.

        Raises:
            UsageError: there are no epochs.
        """
        if self.order.n is None:
            raise UsageError(f"{NO_EPOCHS}; choose your own number of steps")
        return self.order.batches(0, self.batching.rows, drop_last=self.batching.drop_last)

    def rows_before(self, place: Place) -> int:
        """How many rows come before a place, over all epochs and ranks."""
        return place.epoch * (self.order.n or 0) + place.position

    def place_of(self, row: int) -> Place:
        """The place of a row, counted over all epochs and ranks: the inverse of `rows_before`.

        Raises:
            UsageError: the row is below 0 or above 2**62.
        """
        if isinstance(row, bool) or not isinstance(row, int) or not 0 <= row <= MAX_LENGTH:
            raise UsageError(f"row is {row!r}; expected a whole number from 0 to 2**62")
        # In epochs of 6 rows, row 10 is position 4 of epoch 1.
        return Place(0, row) if self.order.n is None else Place(*divmod(row, self.order.n))

    def epoch_start(self, epoch: int) -> Place:
        """The place of an epoch's first row.

        Raises:
            UsageError: it is not a number of 0 or more, there are no epochs, or more than 2**62 rows up to its end.
        """
        if self.order.n is None:
            raise UsageError(NO_EPOCHS)
        epoch = ROW.whole(epoch, "epoch")
        # Rows are counted through all epochs (`rows_before`), and the count must stay within int64 with room to spare.
        if (epoch + 1) * self.order.n > MAX_LENGTH:
            raise UsageError(
                f"epoch is {epoch:,}, of {self.order.n:,} rows each; expected at most 2**62 rows before its end"
            )
        return Place(epoch)

    def state(self, place: Place) -> dict[str, Any]:
        """A place as a checkpoint state."""
        return state_of(place, fingerprint=self.fingerprint, seed=self.order.seed)

    def place(self, state: dict[str, Any]) -> Place:
        """The place in a checkpoint state; raises as `states.place_in`."""
        return place_in(state, fingerprint=self.fingerprint, seed=self.order.seed, rows=self.order.n)


@dataclass(frozen=True)
class RowOptions:
    """What rows of a source hold; `GPTEpisodeDataLoader` documents them."""

    block_size: int
    pad_id: int
    too_long: str
    vocab_size: int | None
    use_mask: bool = True
    images: ImageSource | None = None


@dataclass(eq=False)
class EpisodeSource(Source[Batch]):
    """Batches of an opened split: a row is an episode, several of them by a packing plan, or a window.

    Attributes:
        options: of the rows.
        plan: which episodes share a row; `None`: every episode has one of its own.
        uses_mask: whether `mask` says what is trained: the dataset has masks, or is one of windows, and they are used.
    """

    split: IndexedSplit
    options: RowOptions
    plan: StoredPlan | None = None

    def __post_init__(self) -> None:
        o = self.options
        self._width = o.block_size + 1
        # Windows need no mask file: all of a window is trained, its padding is not. `has_mask` looks at every shard,
        # which no batch should do.
        self.uses_mask = (self.split.has_windows or self.split.has_mask) and o.use_mask
        self._has_layout = self.plan is not None or self.split.has_segments  # rows may hold several texts
        # Not a method: with a cycle of references, a loader that is dropped would keep its shards from being evicted.
        open_reader = partial(
            EpisodeReader,
            self.split,
            self._width,
            too_long=o.too_long,
            vocab_size=o.vocab_size,
            use_mask=o.use_mask,
        )
        self._stream: ShardStream | None = None
        if self.split.streamed:
            self._stream = ShardStream(self.split, self.order, open_reader, self.batching.rows)
        self._reader = None if self._stream else open_reader()

    @property
    def n_rows(self) -> int:
        return len(self.split) if self.plan is None else self.plan.rows

    def _read(self, rows: Int64s, place: Place | None = None) -> tuple[RowSpans, EpisodeReader]:
        """The spans of some rows, and their reader; waits for shards that come from a store."""
        spans = spans_of(self.split, self.plan, rows, self._width, tail=self.options.too_long == "tail")
        if self._reader is not None:
            return spans, self._reader
        assert self._stream is not None
        return spans, self._stream.reader(spans.shard, None if place is None else self.begin(place))

    def made(self, rows: Int64s, place: Place, state: dict[str, Any]) -> Batch:
        """See `Source`.

        Raises:
            CacheError: an id is outside the vocabulary, or a mask value is not a weight (file, record and token named).
        """
        o = self.options
        spans, reader = self._read(rows[self.batching.own], place)
        texts = reader.texts(spans)
        weights = targets_of(reader.weights(spans, texts))
        x, y = shifted(reader.ids(spans, o.pad_id))
        media: dict[str, torch.Tensor] | None = None
        if o.images is not None:
            arrays = joined(self.split.images_of(spans.episode), o.images)
            media = {name: torch.from_numpy(array) for name, array in arrays.items()}
        trained = int(np.count_nonzero(weights))
        layout: dict[str, Any] = {}
        if self._has_layout:
            found = layout_of(texts, spans.used, T=o.block_size)
            layout = {
                name: torch.from_numpy(getattr(found, name)) for name in ("segment_ids", "position_ids", "cu_seqlens")
            } | {"max_seqlen": found.max_seqlen}
        return Batch(
            x=torch.from_numpy(x),
            y=torch.from_numpy(y),
            mask=torch.from_numpy(weights.astype(np.float32, order="C")),
            episodes=spans.episode,
            num_trained_tokens=trained,
            mask_sum=float(trained if weights.dtype == np.uint8 else weights.sum(axis=1, dtype=np.float64).sum()),
            num_tokens=int(spans.used.sum()),
            lengths=spans.used,
            media=media,
            state=state,
            **layout,
        )

    def flat_rows(self, rows: Int64s) -> tuple[npt.NDArray[np.uint32], Int64s, npt.NDArray[Any], Int64s]:
        """Rows without padding, one after another: ids, lengths of the rows, weights, and each token's text number.

        Texts are numbered from 0 in every row. A row of texts of 2 and 1 tokens and a row of one text of 3: lengths
        3 3, text numbers 0 0 1 0 0 0.
        """
        spans, reader = self._read(rows)
        texts = reader.texts(spans)
        weights = reader.weights(spans, texts)
        is_token, used = spans.token_mask, spans.used
        row = texts // self._width
        # In the example with width 5, texts at places 0 2 5 of the padded rows begin at 0 2 3 without padding.
        begins = texts - row * self._width + (used.cumsum() - used)[row]
        lengths = np.diff(begins, append=used.sum())
        numbers = np.arange(len(row)) - row.searchsorted(row)
        return reader.ids(spans, 0)[is_token], used, weights[is_token], numbers.repeat(lengths)

    def log_epoch(self, epoch: int) -> None:
        # A worker process that was spawned, not forked, has not done this.
        ensure_log_output()
        _log.info(
            "%s split=%s epoch=%d %s=%d batches=%d shuffle=%s drop_last=%s pad_id=%d mask=%s",
            self.split.log_name,
            self.split.name,
            epoch,
            self.split.unit,
            len(self.split),
            self.steps_per_epoch(),
            flag(self.order.shuffle),
            flag(self.batching.drop_last),
            self.options.pad_id,
            flag(self.uses_mask),
        )

    def describe(self) -> dict[str, Any]:
        return {
            "episodes": len(self.split),
            "packed": None if self.plan is None else self.plan.path.name,
            "block_size": self.options.block_size,
            "too_long": self.options.too_long,
        }

    def __reduce__(self) -> tuple[type[EpisodeSource], tuple[Any, ...]]:
        """Pickled for a worker, the source opens its files again there: maps would be sent as copies of all tokens."""
        return type(self), (self.split, self.order, self.batching, self.options, self.plan)
