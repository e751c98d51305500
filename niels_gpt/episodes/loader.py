"""`GPTEpisodeDataLoader`: an episodes dataset as batches of one fixed shape, resumable, on any number of ranks.

What the constructor does, in this order::

    keywords, config       resolve (settings.py)     -> settings; a keyword wins over the config
    dataset_dir            open_urls                 -> directories; of a URL, the manifest and the indexes are fetched
    keywords, mixture      order/sampling.py         -> Sampling: order and proportions of the train split
    directories            _open_splits              -> IndexedSplit of train and of val: opened, checked and filtered
    tokenizer, manifests   settings.py               -> vocab_size, pad_token_id

What follows for a split when it is first used, so that a packing plan of val costs nothing where only train is read::

    IndexedSplit           _open_batch_source        -> BatchSource: place -> batch, next place
    BatchSource            iterate.py                -> Reading: the place of the next batch

`next_batch`, `prefetch`, `state_dict` and other ways to read are methods of `SplitLoader` (split_loader.py).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, ClassVar

from niels_gpt.episodes.batch import EpisodeBatch
from niels_gpt.episodes.batch_source import BatchSource, open_batch_source
from niels_gpt.episodes.batches import BatchOptions
from niels_gpt.episodes.iterate import Reading
from niels_gpt.episodes.order.sampling import SHUFFLE_SHARDS, Sampling
from niels_gpt.episodes.settings import (
    Dirs,
    check_tokenizer,
    ensure_log_output,
    flag,
    open_urls,
    parse_dataset_dirs,
    ranks,
    resolve,
    resolve_pad_id,
    resolve_vocab_size,
)
from niels_gpt.episodes.split_loader import SplitLoader
from niels_gpt.errors import CacheError, UsageError
from niels_gpt.format.fitting import check_policy
from niels_gpt.ranges import check_flag
from niels_gpt.required_torch import torch
from niels_gpt.store.images import ImageSource
from niels_gpt.store.kinds import require_plain_episodes, require_rows
from niels_gpt.store.schema import SPLITS
from niels_gpt.store.shard_cache import ShardCache
from niels_gpt.store.split import IndexedSplit, open_split

_log = logging.getLogger("niels_gpt.episodes")

Tensors = tuple[torch.Tensor, ...]


class GPTEpisodeDataLoader(SplitLoader[EpisodeBatch]):
    """Batches of shape `(batch_size, block_size)` from an episodes dataset; no row crosses an episode's end.

    Args:
        config: a mapping or any object with `batch_size`, `block_size` and `device`. Other fields of `TrainingConfig`,
            and `vocab_size`, are taken from it too. A keyword wins over the config.
        tokenizer: its eos id is the pad id if `pad_token_id` is not set; without one, the eos that the dataset's
            manifest records. If the dataset records its tokenizer, the two must agree.
        dataset_dir: the directory that holds `train` and `val`; several as a list; or a mixture as a mapping from
            directory to proportion. A URL names published episodes in a store, whose shards are downloaded as they
            are needed; these cannot be mixed in proportions.
        use_loss_mask: return masks if the dataset has them; default yes.
        sampling: order and proportions in one value, in place of the eight keywords that follow.
        batch_sampling_mode: "epoch" (default): every episode once an epoch; "random": drawn with replacement.
        epoch_shuffle, epoch_drop_last, epoch_seed: order of an epoch; with `epoch_drop_last=False` its last batch is
            filled up with empty rows, which hold padding only. Without masks `get_batch` returns `(x, y)`, in which
            empty rows are targets like any other; the mask of `next_batch` is 0 on them.
        weight_by, weights: draw train rows by "type" or "source" (of `episodes.parquet`) or "dataset" in proportion to
            `weights`. Proportions are exact over an epoch; batches cross the ends of epochs, so that nothing is
            dropped. Val is never weighted. Exact numbers of rows are the `phases` of a `Sampling`.
        temperature: in place of `weights`: a group of n rows weighs n ** (1 / temperature); 1 is by size, a large one
            makes all alike. Without `weight_by`, of the datasets.
        shuffle_shards: shuffle rows within windows of so many shards, see `Sampling`; default 8 for a URL.
        pad_token_id: fills rows; padding is known by position, so this may be the id of a real token.
        episode_min_tokens: shorter episodes are left out.
        too_long: what becomes of episodes with more than block_size + 1 tokens: "head", "tail", "drop_partial_turn",
            "skip" or "error"; default "head", and "error" with packing.
        packing: several whole episodes in a row, by best-fit decreasing; read them with `next_batch`.
        images: makes arrays of the dataset's images, see `renderers.images.stored.StoredImages`; needed where a dataset
            has images, whose episodes are never cut (`too_long` is then "error" or "skip", default "error").
        vocab_size: ids are checked against it; default the config's, the tokenizer's or the dataset's.
        rank, world_size: default those of torch.distributed if it is initialised. `batch_size` is each rank's.
        shard_cache: where shards of a URL are stored, a local directory that all processes of the node share.

    If val has fewer rows than a global batch, they are not dropped whatever `epoch_drop_last` is; the log has a
    warning.

    Raises:
        UsageError: an argument out of range, no pad id, or a batch larger than an epoch with drop_last.
        CacheError: no such dataset, or files that are missing, short or damaged.
        StorageError: a store, or the disk of the cache, refused.
        Mismatch: the dataset was built with another tokenizer.
    """

    # A rejected completion is an episode, too, but not one to train on; what only shows rows overrides this.
    reads_preferences: ClassVar[bool] = False

    def __init__(
        self,
        config: Any,
        tokenizer: Any | None = None,
        dataset_dir: Dirs | None = None,
        *,
        use_loss_mask: bool | None = None,
        batch_sampling_mode: str | None = None,
        epoch_shuffle: bool | None = None,
        epoch_drop_last: bool | None = None,
        epoch_seed: int | None = None,
        pad_token_id: int | None = None,
        episode_min_tokens: int | None = None,
        too_long: str | None = None,
        packing: bool = False,
        images: ImageSource | None = None,
        weight_by: str | None = None,
        weights: Mapping[str, float] | None = None,
        temperature: float | None = None,
        vocab_size: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        sampling: Sampling | None = None,
        shuffle_shards: int | None = None,
        shard_cache: ShardCache | None = None,
    ) -> None:
        # What is `None` was not passed; of these keywords the config then decides.
        settings: dict[str, Any] = {
            "use_loss_mask": use_loss_mask,
            "pad_token_id": pad_token_id,
            "episode_min_tokens": episode_min_tokens,
        }
        # And of these, in whose place a `Sampling` may stand, together with `proportions`.
        order: dict[str, Any] = {
            "batch_sampling_mode": batch_sampling_mode,
            "epoch_shuffle": epoch_shuffle,
            "epoch_drop_last": epoch_drop_last,
            "epoch_seed": epoch_seed,
        }
        proportions: dict[str, Any] = {
            "weight_by": weight_by,
            "weights": weights,
            "temperature": temperature,
            "shuffle_shards": shuffle_shards,
            "phases": None,  # has no keyword of its own
        }
        if sampling is not None:
            keywords = sampling.as_keywords(order | proportions)
            order, proportions = ({name: keywords[name] for name in names} for names in (order, proportions))
        self.config, self.batch_size, self.block_size = resolve(config, "sft_episode", settings | order)
        self.packing = check_flag(packing, "packing")
        self.device, self._images = self.config.device, images
        # Packing plans lengths before it reads; a row that it would cut silently is refused unless a policy is named.
        self._too_long = too_long or ("error" if self.packing else "head")
        check_policy(self._too_long)
        self._names, mixture = parse_dataset_dirs(dataset_dir)
        self._dirs, self._streamed = open_urls(self._names, shard_cache)
        if self._streamed and proportions["shuffle_shards"] is None:
            proportions["shuffle_shards"] = SHUFFLE_SHARDS  # to read it all in one order would need all of it here
        # After the directories, because a mapping of directories is a mixture by dataset.
        self._sampling = Sampling.of(self.config, mixture, proportions)
        self.rank, self.world_size = ranks(rank, world_size)
        self._splits = self._open_splits(too_long)
        for opened in self._splits.values():
            check_tokenizer(opened, tokenizer)
        self.vocab_size = resolve_vocab_size(vocab_size, config, tokenizer, self._splits["train"].vocab_size)
        self.pad_token_id = resolve_pad_id(
            self.config.pad_token_id, tokenizer, self._splits["train"].eos_id, self.vocab_size
        )
        self._readings: dict[str, Reading[EpisodeBatch]] = {}
        self._warned = False
        self._log_splits()
        if self._splits["train"].shards:
            self.batch_source("train")  # raises what is wrong now, not at the first step

    def __repr__(self) -> str:
        """One line: the shape of batches, and the rows of each split."""
        rows = ", ".join(f"{name} {len(split):,} {split.unit}" for name, split in self._splits.items() if split.shards)
        packed = ", packed" if self.packing else ""
        return f"<{type(self).__name__}: batches of {self.batch_size} x {self.block_size}{packed}; {rows or 'no rows'}>"

    def get_batch(self, split: str = "train") -> Tensors:
        """`(x, y, mask)`, or `(x, y)` without masks, each of shape (batch_size, block_size) on the config's device.

        `x` and `y` are int64, `mask` is float32 and aligned to `y`; padding has mask 0.

        Raises:
            UsageError: no such split, or rows are packed or have images (see `next_batch`).
            CacheError: the split has no episodes, or bad values.
        """
        if self.packing:
            raise UsageError(
                "rows are packed, and (x, y, mask) does not say where episodes begin, so attention would cross them; "
                "use next_batch(), which carries segment_ids, position_ids and cu_seqlens"
            )
        if self._images is not None:
            raise UsageError(
                "rows have images, and (x, y, mask) has only their placeholders; use next_batch(), which carries media"
            )
        batch = self.next_batch(split)
        if self.uses_mask(split):
            return batch.x, batch.y, batch.mask
        return batch.x, batch.y

    def has_split(self, split: str) -> bool:
        """Whether the dataset has this split."""
        return split in self._splits and bool(self._splits[split].shards)

    def uses_mask(self, split: str = "train") -> bool:
        """Whether `get_batch` returns masks."""
        return self.batch_source(split).uses_mask

    def batch_source(self, split: str) -> BatchSource:
        """The split's batches as a pure function of the place."""
        source = self._reading(split).source
        # `Reading` serves preferences, too, so its type there is `Batches`.
        assert isinstance(source, BatchSource)
        return source

    # ---- a split, when it is first used

    def _reading(self, split: str) -> Reading[EpisodeBatch]:
        """The split's batches, opened when they are first used."""
        if split not in self._splits:
            raise UsageError(f"split is {split!r}; expected 'train' or 'val'")
        # Opened when first used: a packing plan of val costs time that training alone need not spend.
        if split not in self._readings:
            opened = self._splits[split]
            if not opened.shards:
                place = ", ".join(str(dataset / split) for dataset in opened.datasets)
                files = "shard_*.bin" if opened.has_windows else "tokens.bin with an episodes.idx"
                raise CacheError(f"{place}: no {files}; this dataset has no {split} split")
            self._readings[split] = Reading(self._open_batch_source(split, opened), self.device)
        return self._readings[split]

    def _open_batch_source(self, name: str, split: IndexedSplit) -> BatchSource:
        settings = self.config
        drop_last = settings.epoch_drop_last
        # With drop_last a val split without one full batch would have none at all, so its only batch is filled up. How
        # many packed rows there are is known only from their plan.
        if drop_last and name == "val" and not self.packing and len(split) < self.batch_size * self.world_size:
            drop_last = False
            _log.warning(
                "%s split=val: fewer %s than a batch; the only one is filled with padding", split.log_name, split.unit
            )
        options = BatchOptions(
            batch_size=self.batch_size,
            block_size=self.block_size,
            pad_id=self.pad_token_id,
            seed=settings.epoch_seed,
            drop_last=drop_last,
            too_long=self._too_long,
            vocab_size=self.vocab_size,
            rank=self.rank,
            world_size=self.world_size,
            use_mask=settings.use_loss_mask is not False,
            shuffle=settings.epoch_shuffle,
            images=self._images,
        )
        # Val measures the same rows in every run, whatever the mixture.
        sampling = self._sampling if name == "train" else self._sampling.unweighted()
        source = open_batch_source(split, options, sampling, packed=self.packing, names=self._names)
        self._warn_of_padding(name, source)
        if source.plan is not None and not self.rank:
            plan = source.plan
            _log.info("[EpisodeLoader] split=%s rows=%d utilisation=%.4f", name, plan.rows, plan.utilisation)
        return source

    def _warn_of_padding(self, name: str, source: BatchSource) -> None:
        """Without masks `get_batch` returns padding as targets: warn of that in rows, and in an epoch's last batch."""
        if source.uses_mask:
            return
        # A caller who passed use_loss_mask=False knows that there is no mask. Once, for both splits.
        if self.config.use_loss_mask is not False and not self._warned:
            self._warned = True
            _log.warning(
                "[EpisodeLoader] split=%s: no loss mask, get_batch returns (x, y), where padding counts too: %s",
                name,
                source.split.why_no_mask,
            )
        rows = source.order.n
        # Only then can an epoch end with a batch that is not full.
        filled_up = not source.options.drop_last and not source.order.crosses_epochs and rows is not None
        if filled_up and (rows or 0) % source.global_rows:
            _log.warning(
                "%s split=%s: the last batch of an epoch is filled with rows of nothing but padding, and without masks "
                "get_batch returns them as targets; use epoch_drop_last=True, or next_batch(), whose mask is 0 there",
                source.split.log_name,
                name,
            )

    # ---- opening the dataset

    def _open_splits(self, too_long: str | None) -> dict[str, IndexedSplit]:
        """Both splits, so that a damaged val split is found before training, not after the first epoch.

        Args:
            too_long: as the caller passed it.
        """
        splits = {name: self._open_split(name) for name in SPLITS}
        if not any(split.has_images for split in splits.values()):
            return splits
        names = ", ".join(map(str, self._names))
        if self._images is None:
            raise UsageError(
                f"{names}: episodes with images, of which the dataset has names and hashes; pass "
                "images=StoredImages(FOLDER, processor) (niels_gpt.renderers.images.stored) with the model's processor"
            )
        if too_long is None:
            # The default was "head" until the splits were opened and turned out to have images.
            self._too_long = "error"
            return {name: self._open_split(name) for name in SPLITS}
        if self._too_long not in ("error", "skip"):
            raise UsageError(
                f"{names}: episodes with images and too_long={too_long!r}, which may cut through an image; use 'error' "
                "or 'skip'"
            )
        return splits

    def _open_split(self, split: str) -> IndexedSplit:
        for folder in self._dirs:
            if folder not in self._streamed:  # of which only the manifest and the indexes are here
                require_rows(folder)
        opened = open_split(
            self._dirs,
            split,
            min_tokens=self.config.episode_min_tokens,
            too_long=self._too_long,
            width=self.block_size + 1,
            streamed=self._streamed,
        )
        for folder, manifest in zip(self._dirs, opened.manifests, strict=True):
            if not self.reads_preferences:
                require_plain_episodes(folder, manifest)
        return opened

    def _log_splits(self) -> None:
        """Log what was opened; rank 0 only."""
        ensure_log_output()
        # On hundreds of ranks the same lines would be repeated hundreds of times.
        if self.rank:
            return
        for name, split in self._splits.items():
            if not split.shards:
                continue
            _log.info("%s split=%s %s=%d %s", split.log_name, name, split.unit, len(split), self._more_of(split))

    def _more_of(self, split: IndexedSplit) -> str:
        """What the log says of a split besides its number of episodes."""
        mask = flag(split.has_mask and self.config.use_loss_mask is not False)
        return f"too_short={split.too_short} too_long={split.too_long} tokens={split.n_tokens} mask={mask}"
