"""`SplitLoader`, what loaders share: the ways to read a split and to resume.

A loader has a `Reading` of each split: the batches as a function of the place, and the place of the next one.
Every method is one step on it, for example::

    next_batch("train")        the batch at the place, which then moves on
    prefetch("val")            a thread that begins at the place of val
    state_dict("train")        the place, as a checkpoint has it
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, Generic

from niels_gpt.episodes.batches import Batch, Batches
from niels_gpt.episodes.iterate import Loader, Places, Prefetch, Reading, one_epoch
from niels_gpt.episodes.order.states import Place


class SplitLoader(ABC, Generic[Batch]):
    """Batches of the splits of a dataset; the place of each split's next batch is its own."""

    @abstractmethod
    def _reading(self, split: str) -> Reading[Batch]:
        """The split's batches, and where the next one is.

        Raises:
            UsageError: no such split. CacheError: the dataset does not have it.
        """

    def batch_source(self, split: str) -> Batches[Batch]:
        """The split's batches as a pure function of the place: a map-style dataset, whose sampler is `places`.

        Raises:
            UsageError: no such split. CacheError: the dataset does not have it.
        """
        return self._reading(split).source

    # ---- batches in this process

    def next_batch(self, split: str = "train") -> Batch:
        """The next batch of the split; its `state` is the one after it."""
        return self._reading(split).next_batch()

    def evaluation_batches(self, split: str = "val") -> Iterator[Batch]:
        """Every row once, in ascending order, none dropped. Does not move `next_batch`."""
        at = self._reading(split)
        return one_epoch(at.source.in_order(), Place(), at.device)

    def batches(self, split: str = "train", *, epoch: int = 0) -> Iterator[Batch]:
        """One training epoch from its start. Does not move `next_batch`.

        Raises:
            UsageError: batch_sampling_mode is "random", which has no epochs.
        """
        at = self._reading(split)
        return one_epoch(at.source, at.source.epoch_start(epoch), at.device)

    # ---- batches from a thread or from worker processes

    def prefetch(self, split: str = "train", *, depth: int = 2) -> Prefetch[Batch]:
        """An endless iterator whose batches a background thread makes, from the place of `next_batch` on.

        The states of both count the batches that were handed out, never those that wait. Close it, or use `with`.
        """
        return Prefetch(self._reading(split), depth=depth)

    def as_dataloader(self, split: str = "train", *, epochs: int | None = 1, **options: Any) -> Loader[Batch]:
        """Batches from worker processes, from the place of `next_batch` on; each pass has `epochs` or the rest of them.

        The states of both count the batches that were handed out. Batches are on the CPU.

        Args:
            options: of `torch.utils.data.DataLoader`: num_workers, prefetch_factor, pin_memory, ...
        """
        return Loader(self._reading(split), epochs=epochs, **options)

    def places(self, split: str = "train", *, epochs: int | None = None) -> Places:
        """A sampler for your own DataLoader, from the place of `next_batch` on, which it does not move.

        ::

            source, places = loader.batch_source("train"), loader.places("train", epochs=1)
            DataLoader(source, sampler=places, batch_size=None, num_workers=2)
        """
        at = self._reading(split)
        return Places(at.source, at.place, epochs=epochs)

    # ---- the place of the next batch

    def state_dict(self, split: str = "train") -> dict[str, Any]:
        """The place of the next batch: version, fingerprint, seed, epoch and position (in rows over all ranks)."""
        at = self._reading(split)
        return at.source.state(at.place)

    def load_state_dict(self, state: dict[str, Any], split: str = "train") -> None:
        """Continue where a state was taken, perhaps with another number of ranks or batch size. O(1).

        It acts at once: a pass or a prefetching iterator of this split goes on from there.

        Raises:
            Mismatch: the state is of another dataset, block_size, too_long, packing, order or seed.
            UsageError: it is not a state.
        """
        at = self._reading(split)
        at.move(at.source.place(state))

    def rows_read(self, split: str = "train") -> int:
        """How many rows come before the next batch, over all epochs and ranks; dropped rows are included."""
        at = self._reading(split)
        return at.source.rows_before(at.place)

    def seek(self, row: int, split: str = "train") -> None:
        """Continue at any row, counted over all epochs and ranks: the inverse of `rows_read`. O(1).

        A run that has read so many tokens elsewhere is continued at `row = tokens // block_size`.

        Raises:
            UsageError: the row is below 0 or above 2**62.
        """
        at = self._reading(split)
        at.move(at.source.place_of(row))

    def steps_per_epoch(self, split: str = "train") -> int:
        """How many batches an epoch has, on every rank; see `Batches.steps_per_epoch`."""
        return self._reading(split).source.steps_per_epoch()
