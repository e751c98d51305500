"""A `transformers.Trainer` that reads episodes: packed or padded, weighted right, and exact when it resumes."""

from __future__ import annotations

from typing import Any

import torch.utils.data

from niels_gpt.episodes.loader import GPTEpisodeDataLoader
from niels_gpt.extras import check_library
from niels_gpt.trainers.fields import named
from niels_gpt.trainers.steps import EpochLoader, check_ranks

check_library("transformers")  # says which extra is missing, or too old
import transformers  # noqa: E402


class EpisodeTrainer(transformers.Trainer):
    """Trains on the batches of a `GPTEpisodeDataLoader`, as it makes them: no sampler, no collator, no sharding.

    The loader's own rank and world size apply, so each rank opens it for itself. `per_device_train_batch_size` does
    nothing; the loader's batch_size counts. When training resumes from a checkpoint, in the middle of an epoch too, the
    next batch is the one that would have come; the batch size and the number of ranks must be as they were, because
    the Trainer remembers steps. The loss is divided by the number of trained tokens of all accumulated batches, by the
    Trainer itself.

    Raises:
        UsageError: the loader is open for another rank; open it after `TrainingArguments`, which makes ranks known.

    Args:
        episodes: what to train on; its val split, if it has one, is evaluated on.
        convention: "hf" or "hf-flat" (needs Flash Attention); see `fields`.
        workers: options of `torch.utils.data.DataLoader`, for example `{"num_workers": 2}`.
        given: of `transformers.Trainer`.
    """

    def __init__(
        self,
        *args: Any,
        episodes: GPTEpisodeDataLoader,
        convention: str = "hf",
        workers: dict[str, Any] | None = None,
        **given: Any,
    ) -> None:
        self.episodes, self._convert, self._workers = episodes, named(convention), workers or {}
        super().__init__(*args, **given)
        check_ranks(episodes, self.args.process_index, self.args.world_size)

    def get_train_dataloader(self) -> torch.utils.data.DataLoader[Any]:
        """One epoch of the train split; the Trainer says which."""
        return EpochLoader(self.episodes.feed("train"), self._convert, **self._workers)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> torch.utils.data.DataLoader[Any]:
        """Every row of the val split once, unless another dataset is given."""
        if eval_dataset is not None:
            return super().get_eval_dataloader(eval_dataset)
        return EpochLoader(self.episodes.feed("val").in_order(), self._convert, **self._workers)
