"""A `LightningDataModule` of episodes whose place is kept in Lightning's checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from niels_gpt.episodes.batch import EpisodeBatch
from niels_gpt.episodes.loader import GPTEpisodeDataLoader
from niels_gpt.episodes.views import EpisodeWorkers
from niels_gpt.extras import check_library
from niels_gpt.trainers.fields import named
from niels_gpt.trainers.steps import EpochLoader

check_library("lightning")  # says which extra is missing, or too old
import lightning  # noqa: E402


class EpisodeDataModule(lightning.LightningDataModule):
    """The train and val splits of a `GPTEpisodeDataLoader` for `Trainer.fit(model, datamodule=...)`.

    Checkpoints hold the place after the last batch that was handed out; a run that resumes, also in the middle of an
    epoch, goes on there. Each rank opens the loader for itself, so pass `use_distributed_sampler=False`.

    Args:
        episodes: what to train on.
        convention: the names in the batches; see `fields`. `None` hands out `EpisodeBatch`.
        options: of `torch.utils.data.DataLoader`: num_workers, prefetch_factor, pin_memory, ...
    """

    def __init__(self, episodes: GPTEpisodeDataLoader, *, convention: str | None = None, **options: Any) -> None:
        super().__init__()
        self.episodes = episodes
        self._convention, self._options = convention, options

    def train_dataloader(self) -> EpochBatches:
        """The rest of the epoch in which the loader stands, then whole epochs."""
        return EpochBatches(self.episodes, self._convention, **self._options)

    def val_dataloader(self) -> EpochLoader | list[Any]:
        """Every row of the val split once; nothing if there is no such split."""
        if not self.episodes.has_split("val"):
            return []
        return EpochLoader(self.episodes.feed("val").in_order(), _converted(self._convention), **self._options)

    def state_dict(self) -> dict[str, Any]:
        """Where the train split stands."""
        return {"train": self.episodes.state_dict("train")}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on there; raises as `GPTEpisodeDataLoader.load_state_dict`."""
        self.episodes.load_state_dict(state["train"], "train")


class EpochBatches:
    """Passes over the train split, each to the end of an epoch; they move the loader on."""

    def __init__(self, episodes: GPTEpisodeDataLoader, convention: str | None, **options: Any) -> None:
        self._episodes, self._convert, self._options = episodes, _converted(convention), options

    def __len__(self) -> int:
        return self._episodes.steps_per_epoch("train")

    def __iter__(self) -> Iterator[Any]:
        workers: EpisodeWorkers = self._episodes.as_dataloader("train", epochs=1, **self._options)
        for batch in workers:
            yield self._convert(batch)

    def state_dict(self) -> dict[str, Any]:
        """Where the loader stands."""
        return self._episodes.state_dict("train")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on there."""
        self._episodes.load_state_dict(state, "train")


def _converted(convention: str | None) -> Callable[[EpisodeBatch], Any]:
    return _unchanged if convention is None else named(convention)


def _unchanged(batch: EpisodeBatch) -> EpisodeBatch:
    return batch
