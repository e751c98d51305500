"""`EpisodeDataModule`: a `LightningDataModule` of episodes that Lightning's checkpoints resume exactly."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from niels_gpt.episodes.batch import Batch
from niels_gpt.episodes.episode_loader import GPTEpisodeDataLoader
from niels_gpt.errors import UsageError
from niels_gpt.extras import check_library
from niels_gpt.trainers.fields import named
from niels_gpt.trainers.steps import EpochLoader, check_ranks

check_library("lightning")  # before the import, for an error that names the missing extra
import lightning  # noqa: E402


class EpisodeDataModule(lightning.LightningDataModule):
    """The train and val splits of a `GPTEpisodeDataLoader` for `Trainer.fit(model, datamodule=...)`.

    Checkpoints hold the place after the last batch that was handed out; a resumed run continues there, even within an
    epoch. On several ranks each must open a loader of its own, after Lightning has made the ranks known; pass a
    function then::

        EpisodeDataModule(lambda: GPTEpisodeDataLoader(config, dataset_dir="episodes/chats", pad_token_id=0))

    Lightning does not shard the batches again, whatever `use_distributed_sampler` is.

    Args:
        episodes: the loader, or a function that opens it.
        convention: the names in the batches, see `fields`; `None`: batches are `Batch`.
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
        self._loader_or_function = episodes
        self._opened = episodes if isinstance(episodes, GPTEpisodeDataLoader) else None
        self._convert = _unchanged if convention is None else named(convention)
        self._options = options

    @property
    def episodes(self) -> GPTEpisodeDataLoader:
        """The loader of this rank.

        Raises:
            UsageError: it is not open yet, because Lightning has not called `setup`.
        """
        if self._opened is None:
            raise UsageError("the episodes are opened when Lightning calls setup(); ask after fit() has begun")
        return self._opened

    def setup(self, stage: str) -> None:
        """Open the loader, now that ranks are known.

        Raises:
            UsageError: the loader was opened before, for another rank than Lightning's.
        """
        del stage  # fit, validate or test: all read the same loader
        if self._opened is None and callable(self._loader_or_function):
            self._opened = self._loader_or_function()
        if self.trainer is not None:  # who calls `setup` without a Trainer has one rank
            check_ranks(self.episodes, self.trainer.global_rank, self.trainer.world_size)

    def train_dataloader(self) -> EpochBatches:
        """The rest of the loader's current epoch, then whole epochs."""
        # No torch DataLoader: Lightning would replace its sampler, and shard rows that are sharded already.
        return EpochBatches(self.episodes, self._convert, **self._options)

    def val_dataloader(self) -> UnshardedLoader | list[Any]:
        """Every row of the val split once; nothing if there is no such split."""
        if not self.episodes.has_split("val"):
            return []
        return UnshardedLoader(
            EpochLoader(self.episodes.batch_source("val").in_order(), self._convert, **self._options)
        )

    def state_dict(self) -> dict[str, Any]:
        """The state of the train split."""
        # Only of the train split: the others are read from their beginning each time.
        return {"train": self.episodes.state_dict("train")}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state; raises as `GPTEpisodeDataLoader.load_state_dict`."""
        self.episodes.load_state_dict(state["train"], "train")


class EpochBatches:
    """Passes over the train split, each to the end of an epoch; they move the loader's place."""

    def __init__(self, episodes: GPTEpisodeDataLoader, convert: Callable[[Batch], Any], **options: Any) -> None:
        self._episodes, self._convert, self._options = episodes, convert, options

    def __len__(self) -> int:
        return self._episodes.steps_per_epoch("train")

    def __iter__(self) -> Iterator[Any]:
        # Opened anew for each pass, from the place where the last one ended.
        for batch in self._episodes.as_dataloader("train", epochs=1, **self._options):
            yield self._convert(batch)

    def state_dict(self) -> dict[str, Any]:
        """The loader's state."""
        return self._episodes.state_dict("train")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state."""
        self._episodes.load_state_dict(state, "train")


class UnshardedLoader:
    """Hides a DataLoader from Lightning, which would replace it by one with its own distributed sampler."""

    def __init__(self, loader: EpochLoader) -> None:
        self._loader = loader

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._loader)


def _unchanged(batch: Batch) -> Batch:
    return batch
