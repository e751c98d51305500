"""`GPTDataLoader`: random windows of a token stream; `make_data_loader` chooses between it and the episode loader.

A window is block_size + 1 neighbouring tokens of one file, wherever texts begin or end in it. All windows of all files
are numbered through, and each position of an endless random sequence draws one::

    files of 5 and 7 tokens, windows of 3      windows 0 1 2 | 3 4 5 6 7      window 4 is tokens 1 to 3 of the second
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from niels_gpt.episodes.batch import Batch
from niels_gpt.episodes.episode_loader import GPTEpisodeDataLoader
from niels_gpt.episodes.loader import Loader
from niels_gpt.episodes.order.order import EMPTY, Group, random_rows
from niels_gpt.episodes.order.states import Place
from niels_gpt.episodes.rows import Column, RowSpans
from niels_gpt.episodes.settings import dataset_mode, ensure_log_output, ranks, resolve
from niels_gpt.episodes.source import Batching, Source
from niels_gpt.errors import CacheError, UsageError, without_passwords
from niels_gpt.format.gather import shifted, targets_of
from niels_gpt.required_torch import torch
from niels_gpt.store.files import samples
from niels_gpt.store.gather import Int64s
from niels_gpt.store.index_sets import Span
from niels_gpt.store.kinds import is_episode_indexed_dataset, meta_beside
from niels_gpt.store.published import is_url
from niels_gpt.store.schema import META_DTYPES, SPLITS, TOKENS_NAME
from niels_gpt.store.shards import EPISODE_TOKENS, Tokens, map_tokens, open_mask

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
        found = [name for name in SPLITS if _find(self.dataset_dir / name)]
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
        assert isinstance(source, RandomWindows)
        return (batch.x, batch.y) if source.masks is None else (batch.x, batch.y, batch.mask)

    def _open(self, split: str) -> RandomWindows:
        """See `Loader`."""
        folder = self.dataset_dir / split
        if not _find(folder):
            raise CacheError(f"{folder}: no tokens; this dataset has no {split} split")
        windows = TokenWindows(folder, self.block_size + 1)
        if windows.masks is None and self.config.use_loss_mask:
            _log.warning("[DataLoader] split=%s: no loss mask, get_batch returns (x, y): %s", split, windows.no_mask)
        order = random_rows([Group("windows", Span(0, windows.n))], [1], self.config.epoch_seed)
        batching = Batching(self.batch_size, True, self.rank, self.world_size)
        return RandomWindows(windows, order, batching, self.config.use_loss_mask is not False)


@dataclass(frozen=True)
class _File:
    """A file of tokens, and its mask or the reason why it has none."""

    path: Path
    tokens: Tokens
    mask: npt.NDArray[Any] | None
    no_mask: str


class TokenWindows:
    """All windows of the files of a split, numbered through: files with 3 and 5 windows have the numbers 0-2 and 3-7.

    Attributes:
        n: how many windows there are.
        tokens, masks: of all files; `masks` is `None` unless every file has one.
        no_mask: why there are none.
    """

    def __init__(self, folder: Path, width: int) -> None:
        self.folder, self.width, self.name, self.datasets = folder, width, folder.name, [folder.parent]
        self.files = files = _find(folder)
        # A file of 7 tokens has 5 windows of 3; one that is too short has none.
        counts = np.array([max(0, len(file.tokens) - width + 1) for file in files])
        if not counts.any():
            sizes = ", ".join(f"{file.path} {len(file.tokens):,}" for file in files)
            raise UsageError(
                f"block_size + 1 = {width:,} tokens fit into no file (tokens: {sizes}); use a smaller block_size"
            )
        self._first, self.n = np.cumsum(counts) - counts, int(counts.sum())
        self.tokens = Column([file.tokens for file in files])
        masks = [file.mask for file in files if file.mask is not None]
        # Of all files or of none: a batch has windows of several, and returns one kind of tuple.
        self.masks = Column(masks) if len(masks) == len(files) else None
        self.no_mask = next((file.no_mask for file in files if file.mask is None), "")

    def spans(self, numbers: Int64s) -> RowSpans:
        """These windows, one a row; `EMPTY` ones come last."""
        row = np.flatnonzero(numbers != EMPTY)
        found = numbers[row]
        # Files of 3 and 5 windows have first 0 3: window 4 has two entries at or below it, so the file is number 1,
        # and it is window 4 - 3 = 1 there.
        shard = np.searchsorted(self._first, found, side="right") - 1
        return RowSpans(
            len(numbers),
            self.width,
            row=row,
            episode=found,
            shard=shard,
            start=found - self._first[shard],
            length=np.full(len(row), self.width),
            cut=np.zeros(len(row), dtype=np.bool_),  # a window is always whole
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled for another process, the files are opened again there."""
        return type(self), (self.folder, self.width)


@dataclass(eq=False)
class RandomWindows(Source[Batch]):
    """Batches of windows; the masks of the files count if `use_mask` says so, else every target does."""

    split: TokenWindows
    use_mask: bool

    @property
    def masks(self) -> Column | None:
        """The masks that are used."""
        return self.split.masks if self.use_mask else None

    @property
    def n_rows(self) -> int:
        """See `Source`."""
        return self.split.n

    def made(self, rows: Int64s, place: Place, state: dict[str, Any]) -> Batch:
        """See `Source`."""
        spans, masks = self.split.spans(rows[self.batching.own]), self.masks
        x, y = shifted(self.split.tokens.rows(spans, 0))
        # The mask of a target is that of its own token, so the first token's is left out.
        weights = targets_of(spans.token_mask if masks is None else masks.rows(spans, 0))
        mask = weights.astype(np.float32, order="C")
        return Batch(
            x=torch.from_numpy(x),
            y=torch.from_numpy(y),
            mask=torch.from_numpy(mask),
            episodes=spans.episode,
            num_trained_tokens=int(np.count_nonzero(mask)),
            mask_sum=float(mask.sum(dtype=np.float64)),
            num_tokens=int(spans.used.sum()),
            lengths=spans.used,
            state=state,
        )

    @cached_property
    def fingerprint(self) -> str:
        """See `Source`: of the files and the size of windows."""
        digest = hashlib.blake2b(json.dumps(self.order.describe()).encode(), digest_size=16)
        for file in self.split.files:
            for part in samples(file.tokens):
                digest.update(part)
        digest.update(json.dumps(["block_size", self.split.width - 1]).encode())
        return digest.hexdigest()

    def describe(self) -> dict[str, Any]:
        """See `Source`."""
        return {"block_size": self.split.width - 1}

    def log_epoch(self, epoch: int) -> None:
        """See `Source`; there are no epochs."""


def _find(split: Path) -> list[_File]:
    """The files of a split, in any of the three forms; none if it is absent."""
    folders = [split, *sorted(path for path in split.glob("shard_*") if path.is_dir())]
    files = []
    for folder in folders:
        if (folder / TOKENS_NAME).is_file():
            tokens = map_tokens(folder / TOKENS_NAME, EPISODE_TOKENS)
            files.append(_File(folder / TOKENS_NAME, tokens, *open_mask(folder, len(tokens), None)))
    if files:
        return files
    # By name, because windows are numbered through all files and a state refers to these numbers.
    paths = sorted(split.glob("shard_*.bin"))
    # Shards without a meta.json are of the cache format's default dtype.
    meta: Mapping[str, Any] = (meta_beside(split.parent, None) or {}) if paths else {}
    dtype = META_DTYPES[meta.get("token_dtype", "uint16-le")]
    return [_File(path, map_tokens(path, dtype), None, f"{path}: a shard without mask") for path in paths]
