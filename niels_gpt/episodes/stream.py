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
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from niels_gpt.episodes.episode_loader import GPTEpisodeDataLoader
from niels_gpt.episodes.order.order import Group, random_rows
from niels_gpt.episodes.order.states import Place, place_in, state_of
from niels_gpt.episodes.rows import Array, Column, RowSpans
from niels_gpt.episodes.settings import dataset_mode, ensure_log_output, ranks, resolve
from niels_gpt.errors import CacheError, UsageError, without_passwords
from niels_gpt.format import gather
from niels_gpt.format.collate import to_device
from niels_gpt.required_torch import torch
from niels_gpt.store.files import samples
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


class GPTDataLoader:
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
        self.dataset_dir = Path(dataset_dir)
        self.rank, self.world_size = ranks(rank, world_size)
        # One more token than inputs: the target of the last input.
        width = self.block_size + 1
        self._splits = {
            name: _Windows(files, width, self.config.epoch_seed)
            for name in SPLITS
            if (files := _find(self.dataset_dir / name))
        }
        if not self._splits:
            raise CacheError(
                f"{self.dataset_dir}: no token stream: expected train/tokens.bin, train/shard_00000/tokens.bin or "
                "train/shard_00000.bin. Build one with: niels-gpt build"
            )
        self._positions = dict.fromkeys(self._splits, 0)
        self._warned = False
        ensure_log_output()
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
        windows = self._split(split)
        B = self.batch_size
        # Positions count windows over all ranks: 2 ranks of 4 read 0-3 and 4-7, then 8-11 and 12-15.
        first = self._positions[split] + self.rank * B
        spans = windows.draw(first, first + B)
        masks = None if self.config.use_loss_mask is False else windows.masks
        if masks is None and self.config.use_loss_mask and not self._warned:
            self._warned = True
            _log.warning("[DataLoader] split=%s: no loss mask, get_batch returns (x, y): %s", split, windows.no_mask)
        arrays = windows.arrays(spans, masks)
        tensors = tuple(to_device(torch.from_numpy(array), self.config.device) for array in arrays)
        self._positions[split] += B * self.world_size  # only now: after an error, the next call makes this batch again
        return tensors

    def state_dict(self, split: str = "train") -> dict[str, Any]:
        """The place of the next batch; `position` counts windows over all ranks, `epoch` is always 0."""
        windows = self._split(split)
        place = Place(0, self._positions[split])
        return state_of(place, fingerprint=windows.fingerprint, seed=self.config.epoch_seed)

    def load_state_dict(self, state: dict[str, Any], split: str = "train") -> None:
        """Continue where a state was taken, perhaps with another number of ranks.

        Raises:
            Mismatch: the state is of other files, another block_size or another seed. UsageError: it is not a state.
        """
        windows = self._split(split)
        place = place_in(
            state,
            fingerprint=windows.fingerprint,
            seed=self.config.epoch_seed,
            rows=None,
        )
        self._positions[split] = place.position

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled for another process, the loader opens its files again there, and continues from the same place."""
        ranks = {"rank": self.rank, "world_size": self.world_size}
        # Rank and world size are passed on: in the other process torch.distributed may not be initialised.
        return _reopen, (self.config, self.dataset_dir, ranks, {name: self.state_dict(name) for name in self._splits})

    def _split(self, split: str) -> _Windows:
        if split not in SPLITS:
            raise UsageError(f"split is {split!r}; expected 'train' or 'val'")
        if split not in self._splits:
            raise CacheError(f"{self.dataset_dir / split}: no tokens; this dataset has no {split} split")
        return self._splits[split]


def _reopen(config: Any, dataset_dir: Path, ranks: dict[str, Any], states: dict[str, dict[str, Any]]) -> GPTDataLoader:
    loader = GPTDataLoader(config, None, dataset_dir, **ranks)
    for split, state in states.items():
        loader.load_state_dict(state, split)
    return loader


@dataclass(frozen=True)
class _File:
    """A file of tokens, and its mask or the reason why it has none."""

    path: Path
    tokens: Tokens
    mask: npt.NDArray[Any] | None
    no_mask: str


class _Windows:
    """All windows of some files, numbered through: files with 3 and 5 windows have the numbers 0-2 and 3-7."""

    def __init__(self, files: list[_File], width: int, seed: int) -> None:
        # A file of 7 tokens has 5 windows of 3; one that is too short has none.
        counts = np.array([max(0, len(file.tokens) - width + 1) for file in files])
        if not counts.any():
            sizes = ", ".join(f"{file.path} {len(file.tokens):,}" for file in files)
            raise UsageError(
                f"block_size + 1 = {width:,} tokens fit into no file (tokens: {sizes}); use a smaller block_size"
            )
        self.width = width
        self._first = np.cumsum(counts) - counts
        self._order = random_rows([Group("windows", Span(0, int(counts.sum())))], [1], seed)
        self.tokens = Column([file.tokens for file in files])
        masks = [file.mask for file in files if file.mask is not None]
        # Of all files or of none: a batch has windows of several, and returns one kind of tuple.
        self.masks = Column(masks) if len(masks) == len(files) else None
        self.no_mask = next((file.no_mask for file in files if file.mask is None), "")
        digest = hashlib.blake2b(json.dumps(self._order.describe()).encode(), digest_size=16)
        for file in files:
            for part in samples(file.tokens):
                digest.update(part)
        digest.update(json.dumps(["block_size", width - 1]).encode())
        self.fingerprint = digest.hexdigest()

    def draw(self, start: int, stop: int) -> RowSpans:
        """The windows at these positions of the endless random sequence, one a row."""
        numbers = self._order.rows(0, start, stop)
        # Files of 3 and 5 windows have first 0 3: window 4 has two entries at or below it, so the file is number 1.
        shard = np.searchsorted(self._first, numbers, side="right") - 1
        n = len(numbers)
        return RowSpans(
            n,
            self.width,
            row=np.arange(n),
            episode=numbers,
            shard=shard,
            # Window 4 of files with 3 and 5 windows is window 4 - 3 = 1 of the second.
            start=numbers - self._first[shard],
            length=np.full(n, self.width),
            # A window is always whole; nothing of it is cut off.
            cut=np.zeros(n, dtype=np.bool_),
        )

    def arrays(self, spans: RowSpans, masks: Column | None) -> tuple[Array, ...]:
        """`x` and `y` of these windows, int64 of shape (windows, width - 1); with `masks` also that of `y`, float32."""
        x_and_y = gather.shifted(self.tokens.rows(spans, 0))
        if masks is None:
            return x_and_y
        # The mask of a target is that of its own token, so the first token's is left out.
        return *x_and_y, gather.targets_of(masks.rows(spans, 0)).astype(np.float32, order="C")


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
