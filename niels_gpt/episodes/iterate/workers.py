"""`EpisodeWorkers`: batches from worker processes of torch's `DataLoader`, or without any, pass after pass.

`EpisodeIterable` alone cannot know which of the batches that its workers made were used. This class sees each batch
that is handed out and starts new workers for every pass, after the last one. With batches 0 to 4 an epoch::

    for batch in workers: ...          0 1 2 3 4
    for batch in workers: break        5             workers may have made 6 and 7 by then
    for batch in workers: ...          6 7 8 9       the rest of the epoch
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Generic

from niels_gpt.episodes.batches import Batch, Batches
from niels_gpt.episodes.iterate.iterable import EpisodeIterable
from niels_gpt.episodes.order.states import Place
from niels_gpt.ranges import NUM_WORKERS
from niels_gpt.required_torch import torch


class EpisodeWorkers(Generic[Batch]):
    """Batches from worker processes of torch's `DataLoader`, or without any; each pass goes on after the last one used.

    ::

        for epoch in range(3):
            for batch in workers: ...          # an epoch; after a `break`, the next pass is the rest of it

    Args:
        on_batch: called with the state after every batch.
        options: of `torch.utils.data.DataLoader`: num_workers, prefetch_factor, pin_memory, ...
    """

    def __init__(
        self,
        batch_source: Batches[Batch],
        start: Place,
        *,
        epochs: int | None,
        on_batch: Callable[[dict[str, Any]], None] = lambda state: None,
        **options: Any,
    ) -> None:
        self._batch_source, self._state, self._epochs = batch_source, batch_source.state(start), epochs
        self._on_batch, self._options = on_batch, options
        NUM_WORKERS.whole(options.get("num_workers", 0))
        EpisodeIterable(batch_source, start, epochs=epochs)  # raises now, not at the first pass, if epochs is wrong

    def __repr__(self) -> str:
        """One line: the shape of batches, and the place of the next one."""
        options, source = self._batch_source.options, self._batch_source
        place = source.place(self._state)
        rows = "no end" if source.order.n is None else f"{source.order.n:,} rows an epoch"
        return (
            f"<EpisodeWorkers: batches of {options.batch_size} x {options.block_size} from {source.split.split}, "
            f"{rows}, at epoch {place.epoch}, row {place.position:,}>"
        )

    def __iter__(self) -> Iterator[Batch]:
        """The batches of a pass, from new workers."""
        dataset = EpisodeIterable(self._batch_source, self._batch_source.place(self._state), epochs=self._epochs)
        # With no worker process and no other option, a DataLoader would pass on the same batches, and take longer for
        # each than it takes to make a small one.
        plain = self._options in ({}, {"num_workers": 0})
        if plain:
            # A DataLoader draws a seed at each pass. Without this, the numbers that a model draws after it, such as
            # those of dropout, would depend on the number of workers.
            torch.empty((), dtype=torch.int64).random_()
        for batch in dataset if plain else torch.utils.data.DataLoader(dataset, batch_size=None, **self._options):
            self._state = batch.state
            self._on_batch(batch.state)
            yield batch

    def state_dict(self) -> dict[str, Any]:
        """The state after the last batch that was handed out, whatever the workers have made beyond it."""
        return self._state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state of a loader, an `EpisodeIterable` or a batch.

        Raises:
            Mismatch, UsageError: as `GPTEpisodeDataLoader.load_state_dict`.
        """
        self._state = self._batch_source.state(self._batch_source.place(state))
