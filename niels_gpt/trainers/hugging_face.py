"""`EpisodeTrainer`: a `transformers.Trainer` that reads episodes, packed or padded, and resumes exactly."""

from __future__ import annotations

from typing import Any

from niels_gpt.episodes.episode_loader import GPTEpisodeDataLoader
from niels_gpt.extras import check_library
from niels_gpt.required_torch import torch
from niels_gpt.trainers.fields import named
from niels_gpt.trainers.steps import EpochLoader, check_ranks

check_library("transformers")  # before the import, for an error that names the missing extra
import transformers  # noqa: E402


class EpisodeTrainer(transformers.Trainer):
    """Trains on the batches of a `GPTEpisodeDataLoader` as they are: no sampler, collator or sharding of the Trainer's.

    The loader has its own rank and world size, so each rank opens one. `per_device_train_batch_size` has no effect; the
    loader's batch_size counts. When training resumes from a checkpoint, even within an epoch, the next batch is the one
    that would have come. Batch size and number of ranks must not change then, because the Trainer stores steps. The
    Trainer itself divides the loss by the number of trained tokens of all accumulated batches.

    Args:
        episodes: the train split is trained on; the val split, if there is one, is evaluated on.
        convention: "hf" or "hf-flat" (needs Flash Attention); see `fields`.
        workers: options of `torch.utils.data.DataLoader`, for example `{"num_workers": 2}`.
        trainer_options: of `transformers.Trainer`.

    Raises:
        UsageError: the loader is open for another rank; open it after `TrainingArguments`, which makes ranks known.
    """

    def __init__(
        self,
        *args: Any,
        episodes: GPTEpisodeDataLoader,
        convention: str = "hf",
        workers: dict[str, Any] | None = None,
        **trainer_options: Any,
    ) -> None:
        # Before the Trainer's own set-up, so that a misspelt convention is refused at once.
        self.episodes, self._convert, self._workers = episodes, named(convention), workers or {}
        super().__init__(*args, **trainer_options)
        # After the Trainer has set up torch.distributed, which decides the rank.
        check_ranks(episodes, self.args.process_index, self.args.world_size)

    def get_train_dataloader(self) -> torch.utils.data.DataLoader[Any]:
        """One epoch of the train split; the Trainer calls `set_epoch`."""
        # Not passed to accelerate, as the Trainer's own loader is, for that would divide each rank's batches again.
        # A step is a number, so a Trainer that resumes skips those before it without reading them.
        return EpochLoader(self.episodes.batch_source("train"), self._convert, **self._workers)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> torch.utils.data.DataLoader[Any]:
        """Every row of the val split once, or `eval_dataset` as the Trainer itself reads it."""
        if eval_dataset is not None:
            return super().get_eval_dataloader(eval_dataset)
        return EpochLoader(self.episodes.batch_source("val").in_order(), self._convert, **self._workers)
