"""`GPTDataLoader`: random windows of a token stream; `make_data_loader` chooses between it and the episode loader.

Each position of an endless random sequence draws one of all windows of all files: see `store.token_stream`.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from niels_gpt.episodes.batch import Batch
from niels_gpt.episodes.episode_loader import GPTEpisodeDataLoader
from niels_gpt.episodes.loader import Loader
from niels_gpt.episodes.order.order import Group, random_rows
from niels_gpt.episodes.settings import dataset_mode, ensure_log_output, ranks, resolve
from niels_gpt.episodes.source import Batching, EpisodeSource, RowOptions
from niels_gpt.errors import CacheError, UsageError, without_passwords
from niels_gpt.required_torch import torch
from niels_gpt.store.index_sets import Span
from niels_gpt.store.kinds import is_episode_indexed_dataset
from niels_gpt.store.published import is_url
from niels_gpt.store.schema import SPLITS
from niels_gpt.store.token_stream import TokenStream, stream_files

_log = logging.getLogger("niels_gpt.stream")


def make_data_loader(
    config: Any, tokenizer: Any | None = None, dataset_dir: Any = None, **options: Any
) -> GPTDataLoader | GPTEpisodeDataLoader:
    """The loader for the config's `dataset_mode`: "token_stream" (the default) or "sft_episode".

    Args:
        config: a mapping, or any object with attributes.
        options: keywords of the chosen loader, and `dataset_mode`, which wins over the config's.

    Raises:
        UsageError: the mode or an option does not exist. Also what the loaders raise.
    """
    if dataset_mode(config, options.pop("dataset_mode", None)) == "token_stream":
        return GPTDataLoader(config, tokenizer, dataset_dir, **options)
    return GPTEpisodeDataLoader(config, tokenizer, dataset_dir, **options)


class GPTDataLoader(Loader[Batch]):
    """Random windows of block_size + 1 tokens from one file or shards; every window of every file is equally likely.

    `dataset_dir/train` (and `val`) may hold `tokens.bin` (uint32) with an optional `mask.bin`; or the same in
    `shard_00000/`, ...; or the `shard_00000.bin`, ... of a pretrain cache, whose `meta.json` records the dtype.

    Args:
        config: a mapping or any object with `batch_size`, `block_size` and `device`.
        tokenizer: not used; accepted so that both loaders are called alike.
        use_loss_mask: return masks if the dataset has them; default yes.
        epoch_seed: of the windows; default the config's, else 42.
        episode_settings: fields of `TrainingConfig` that concern episodes only; checked, and without effect here.
        rank, world_size: default those of torch.distributed if it is initialised. `batch_size` is each rank's.

    States, `next_batch`, `prefetch` and what else it has are those of `Loader`; there are no epochs.

    Raises:
        UsageError: an argument out of range, or every file has fewer than block_size + 1 tokens.
        CacheError: there are no tokens, or a file is cut short or not a file of tokens.
    """

    def __init__(
        self,
        config: Any,
        tokenizer: Any | None = None,
        dataset_dir: str | Path | None = None,
        *,
        use_loss_mask: bool | None = None,
        epoch_seed: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        **episode_settings: Any,
    ) -> None:
        super().__init__()
        del tokenizer
        if dataset_dir is None:
            raise UsageError("no dataset_dir; pass the directory that holds train/ and val/")
        if is_url(dataset_dir):
            raise UsageError(
                f"{without_passwords(str(dataset_dir))} is a URL, and windows at random places are read from the "
                "disk; ng.loader reads windows of a pretraining cache from a store, each once an epoch. Or download it "
                "(niels-gpt fetch URL) and pass the directory that this prints"
            )
        keywords = {"use_loss_mask": use_loss_mask, "epoch_seed": epoch_seed} | episode_settings
        self.config, self.batch_size, self.block_size = resolve(config, "token_stream", keywords)
        self.device, self.dataset_dir = self.config.device, Path(dataset_dir)
        self.rank, self.world_size = ranks(rank, world_size)
        found = [name for name in SPLITS if stream_files(self.dataset_dir / name)]
        if not found:
            raise CacheError(
                f"{self.dataset_dir}: no token stream: expected train/tokens.bin, train/shard_00000/tokens.bin or "
                "train/shard_00000.bin. Build one with: niels-gpt build --kind pretrain"
            )
        ensure_log_output()
        for name in found:
            self.batch_source(name)  # raises what is wrong now, not at the first step
        if is_episode_indexed_dataset(self.dataset_dir):
            _log.warning(
                "[DataLoader] %s holds episodes, and windows cross their boundaries; dataset_mode sft_episode reads "
                "whole episodes",
                self.dataset_dir,
            )

    def get_batch(self, split: str = "train") -> tuple[torch.Tensor, ...]:
        """`(x, y, mask)`, or `(x, y)` without masks: int64, int64, float32 of shape (batch_size, block_size).

        Raises:
            UsageError, CacheError: no such split.
        """
        source, batch = self.batch_source(split), self.next_batch(split)
        assert isinstance(source, EpisodeSource)
        return (batch.x, batch.y, batch.mask) if source.uses_mask else (batch.x, batch.y)

    def _open(self, split: str) -> EpisodeSource:
        folder = self.dataset_dir / split
        if not stream_files(folder):
            raise CacheError(f"{folder}: no tokens; this dataset has no {split} split")
        windows = TokenStream(self.dataset_dir, split, self.block_size)
        if not len(windows):
            sizes = ", ".join(f"{shard.path} {len(shard.tokens):,}" for shard in windows.shards)
            raise UsageError(
                f"block_size + 1 = {self.block_size + 1:,} tokens fit into no file (tokens: {sizes}); use a smaller "
                "block_size"
            )
        if not windows.has_mask and self.config.use_loss_mask:
            why = windows.why_no_mask
            _log.warning("[DataLoader] split=%s: no loss mask, get_batch returns (x, y): %s", split, why)
        order = random_rows([Group("windows", Span(0, len(windows)))], [1], self.config.epoch_seed)
        use_mask = self.config.use_loss_mask is not False
        # Every window fills its row, so the padding is never used.
        options = RowOptions(self.block_size, pad_id=0, too_long="head", vocab_size=None, use_mask=use_mask)
        return EpisodeSource(windows, order, Batching(self.batch_size, True, self.rank, self.world_size), options)
