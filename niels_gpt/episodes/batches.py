"""`Batches`: which rows the batch at a place holds, on every rank, and how a place becomes a checkpoint state.

What a row is (an episode, a packed row, the completions of a prompt) is decided by the subclasses, which read it.
"""

from __future__ import annotations

import hashlib
import json
import logging
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self, TypeVar

from niels_gpt.episodes.order.order import Order
from niels_gpt.episodes.order.states import Place, place_in, state_of
from niels_gpt.episodes.settings import ensure_log_output
from niels_gpt.errors import UsageError
from niels_gpt.ranges import ROW
from niels_gpt.required_torch import torch
from niels_gpt.seeds import MAX_LENGTH
from niels_gpt.store.gather import Int64s
from niels_gpt.store.images import ImageSource
from niels_gpt.store.split import IndexedSplit

NO_EPOCHS = "batch_sampling_mode is 'random', which has no epochs"


@dataclass(frozen=True)
class BatchOptions:
    """The settings of a `BatchSource`; `GPTEpisodeDataLoader` documents them.

    Raises:
        UsageError: a batch has 2**31 tokens or more.
    """

    batch_size: int
    block_size: int
    pad_id: int
    seed: int
    drop_last: bool
    too_long: str
    vocab_size: int | None
    rank: int
    world_size: int
    use_mask: bool = True
    shuffle: bool = True
    images: ImageSource | None = None

    def __post_init__(self) -> None:
        # Attention kernels take cu_seqlens as int32.
        if self.batch_size * self.block_size >= 2**31:
            raise UsageError(
                f"a batch of {self.batch_size:,} rows of {self.block_size:,} tokens; expected fewer than 2**31 tokens "
                "together: lower batch_size or block_size"
            )


class AnyBatch(Protocol):
    """A batch of any kind, as far as iterating needs it."""

    @property
    def state(self) -> dict[str, Any]:
        """The state that `load_state_dict` takes to continue after this batch."""

    def to(self, device: str | torch.device) -> Self:
        """The batch on another device."""

    def pin_memory(self, device: Any = None) -> Self:
        """The batch in page-locked memory."""


Batch = TypeVar("Batch", bound=AnyBatch)


class Batches(torch.utils.data.Dataset[Batch], ABC):
    """One rank's batches as a pure function of the place; everything here but `batch` is arithmetic, and reads nothing.

    A map-style dataset of torch, whose items are places: see `SplitLoader.places`.

    Attributes:
        split: the files.
        options: sizes, ranks and the seed.
        order: which row is at which position.
        fingerprint: a hash of everything that decides which row is at a place; set by the subclass.

    Class attributes:
        logger: takes the line of each epoch.
    """

    logger: ClassVar[logging.Logger]
    fingerprint: str

    def __init__(self, split: IndexedSplit, options: BatchOptions, order: Order) -> None:
        self.split, self.options, self.order = split, options, order

    @abstractmethod
    def batch(self, place: Place) -> tuple[Batch, Place]:
        """The batch at a place, on the CPU, and the place after it."""

    def __getitem__(self, place: Place) -> Batch:
        """The batch at a place, on the CPU."""
        return self.batch(place)[0]

    def __len__(self) -> int:
        """As `steps_per_epoch`."""
        return self.steps_per_epoch()

    @abstractmethod
    def in_order(self) -> Batches[Batch]:
        """The same rows, each once, in ascending order, none dropped."""

    @abstractmethod
    def describe_epoch(self, epoch: int) -> str:
        """The line of the log for the beginning of an epoch."""

    def log_epoch(self, epoch: int) -> None:
        """Log the beginning of an epoch, if there are epochs; rank 0 only."""
        # Every rank begins the same epoch at the same batch, so one line is enough.
        if self.order.n is None or self.options.rank:
            return
        ensure_log_output()  # a worker process that was spawned, not forked, has not done this
        self.logger.info(self.describe_epoch(epoch))

    @property
    def global_rows(self) -> int:
        """Rows in a batch over all ranks."""
        return self.options.batch_size * self.options.world_size

    @property
    def own_rows(self) -> slice:
        """This rank's part of the rows of a global batch: rank 1 of batches of 4 takes rows 4 to 7."""
        return slice(self.options.rank * self.options.batch_size, (self.options.rank + 1) * self.options.batch_size)

    def draw(self, place: Place) -> tuple[Int64s, Place]:
        """The rows of the global batch at a place, and the place after it."""
        return self.order.take(place, self.global_rows, drop_last=self.options.drop_last)

    def starting_place(self, place: Place) -> Place:
        """The place of the batch at `place`: at the start of the next epoch, if too few rows are left in this one."""
        return self.order.begin(place, self.global_rows, drop_last=self.options.drop_last)

    def skip(self, place: Place, batches: int) -> Place:
        """The place after `batches` batches, in constant time; reads nothing."""
        return self.order.skip(place, self.global_rows, batches, drop_last=self.options.drop_last)

    def steps_per_epoch(self) -> int:
        """How many batches an epoch has on every rank; a weighted epoch may have one less, as batches run across ends.

        Raises:
            UsageError: there are no epochs.
        """
        if self.order.n is None:
            raise UsageError(f"{NO_EPOCHS}; choose your own number of steps")
        return self.order.batches(0, self.global_rows, drop_last=self.options.drop_last)

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
        return state_of(place, fingerprint=self.fingerprint, seed=self.options.seed)

    def place(self, state: dict[str, Any]) -> Place:
        """The place in a checkpoint state; raises as `states.place_in`."""
        return place_in(state, fingerprint=self.fingerprint, seed=self.options.seed, rows=self.order.n)


def hash_of(parts: dict[str, Any]) -> str:
    """A hash of JSON values, 32 hex digits."""
    # Sorted, so that the order in which code writes keys is not part of a fingerprint.
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]
