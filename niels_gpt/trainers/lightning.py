"""A `LightningDataModule` of episodes whose place is kept in Lightning's checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from niels_gpt.episodes.batch import EpisodeBatch
from niels_gpt.episodes.loader import GPTEpisodeDataLoader
from niels_gpt.episodes.views import EpisodeWorkers
from niels_gpt.errors import UsageError
from niels_gpt.extras import check_library
from niels_gpt.trainers.fields import named
from niels_gpt.trainers.steps import EpochLoader, check_ranks

check_library("lightning")  # says which extra is missing, or too old
import lightning  # noqa: E402


class EpisodeDataModule(lightning.LightningDataModule):
    """The train and val splits of a `GPTEpisodeDataLoader` for `Trainer.fit(model, datamodule=...)`.

    Checkpoints hold the place after the last batch that was handed out; a run that resumes, also in the middle of an
    epoch, goes on there. On several ranks each opens a loader for itself, once Lightning has made the ranks known; so
    give a function then::

        EpisodeDataModule(lambda: GPTEpisodeDataLoader(config, dataset_dir="episodes/chats", pad_token_id=0))

    Lightning's own sharding is kept away from the batches, whatever `use_distributed_sampler` says.

    Args:
        episodes: what to train on, or what opens it.
        convention: the names in the batches; see `fields`. `None` hands out `EpisodeBatch`.
        options: of `torch.utils.data.DataLoader`: num_workers, prefetch_factor, pin_memory, ...
    """

    def __init__(
        self,
        episodes: GPTEpisodeDataLoader | Callable[[], GPTEpisodeDataLoader],
        *,
        convention: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self._given = episodes
        self._opened = episodes if isinstance(episodes, GPTEpisodeDataLoader) else None
        self._convert = _unchanged if convention is None else named(convention)
        self._options = options

    @property
    def episodes(self) -> GPTEpisodeDataLoader:
        """The loader of this rank.

        Raises:
            UsageError: it is not open yet, because Lightning has not begun.
        """
        if self._opened is None:
            raise UsageError("the episodes are opened when Lightning calls setup(); ask after fit() has begun")
        return self._opened

    def setup(self, stage: str) -> None:
        """Open the loader, now that ranks are known.

        Raises:
            UsageError: the loader was opened before, for other ranks than Lightning's: each would train on the same.
        """
        del stage
        if self._opened is None and callable(self._given):
            self._opened = self._given()
        if self.trainer is not None:
            check_ranks(self.episodes, self.trainer.global_rank, self.trainer.world_size)

    def train_dataloader(self) -> EpochBatches:
        """The rest of the epoch in which the loader stands, then whole epochs."""
        return EpochBatches(self.episodes, self._convert, **self._options)

    def val_dataloader(self) -> Untouched | list[Any]:
        """Every row of the val split once; nothing if there is no such split."""
        if not self.episodes.has_split("val"):
            return []
        return Untouched(EpochLoader(self.episodes.feed("val").in_order(), self._convert, **self._options))

    def state_dict(self) -> dict[str, Any]:
        """Where the train split stands."""
        return {"train": self.episodes.state_dict("train")}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on there; raises as `GPTEpisodeDataLoader.load_state_dict`."""
        self.episodes.load_state_dict(state["train"], "train")


class EpochBatches:
    """Passes over the train split, each to the end of an epoch; they move the loader on."""

    def __init__(self, episodes: GPTEpisodeDataLoader, convert: Callable[[EpisodeBatch], Any], **options: Any) -> None:
        self._episodes, self._convert, self._options = episodes, convert, options

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


class Untouched:
    """A DataLoader that Lightning does not take for one: it would make it again, with a sampler of its own."""

    def __init__(self, loader: EpochLoader) -> None:
        self._loader = loader

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._loader)


def _unchanged(batch: EpisodeBatch) -> EpisodeBatch:
    return batch
