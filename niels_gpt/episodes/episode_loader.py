"""`GPTEpisodeDataLoader`: an episodes dataset as batches of one fixed shape, resumable, on any number of ranks.

What the constructor does, in this order::

    keywords, config       resolve (settings.py)     -> settings; a keyword wins over the config
    dataset_dir            open_urls                 -> directories; of a URL, the manifest and the indexes are fetched
    keywords, mixture      order/sampling.py         -> Sampling: order and proportions of the train split
    directories            _open_splits              -> IndexedSplit of train and of val: opened, checked and filtered
    tokenizer, manifests   settings.py               -> vocab_size, pad_token_id

What follows for a split when it is first used, so that a packing plan of val costs nothing where only train is read::

    IndexedSplit           _open                     -> EpisodeSource: place -> batch

`next_batch`, `prefetch`, `state_dict` and other ways to read are methods of `Loader`. `WindowLoader` is the same for
pretraining caches, whose rows are windows of neighbouring tokens.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Final, TypedDict, Unpack

from niels_gpt.episodes.batch import Batch
from niels_gpt.episodes.loader import Loader
from niels_gpt.episodes.order.sampling import SHUFFLE_SHARDS, Sampling, episode_groups, order_of
from niels_gpt.episodes.packing import packing_plan
from niels_gpt.episodes.settings import (
    Dirs,
    check_keywords,
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
from niels_gpt.episodes.source import Batching, EpisodeSource, RowOptions
from niels_gpt.errors import CacheError, UsageError
from niels_gpt.format.fitting import check_policy
from niels_gpt.ranges import check_flag
from niels_gpt.required_torch import torch
from niels_gpt.store.images import ImageSource
from niels_gpt.store.kinds import first_of, open_meta, require_plain_episodes, require_rows
from niels_gpt.store.published import is_url, open_streamed
from niels_gpt.store.schema import META_NAME, SPLITS
from niels_gpt.store.shard_cache import ShardCache
from niels_gpt.store.split import IndexedSplit, open_split

_log = logging.getLogger("niels_gpt.episodes")


class EpisodeKeywords(TypedDict, total=False):
    """The keywords of `GPTEpisodeDataLoader`, which documents them. `None` is as if it was not passed."""

    use_loss_mask: bool | None
    pad_token_id: int | None
    episode_min_tokens: int | None
    batch_sampling_mode: str | None
    epoch_shuffle: bool | None
    epoch_drop_last: bool | None
    epoch_seed: int | None
    sampling: Sampling | None
    too_long: str | None
    packing: bool | None
    images: ImageSource | None
    vocab_size: int | None
    rank: int | None
    world_size: int | None
    shard_cache: ShardCache | None


# Those that a config may also set; the first four are also fields of a `Sampling`.
_ORDER: Final = ("batch_sampling_mode", "epoch_shuffle", "epoch_drop_last", "epoch_seed")
_OF_CONFIGS: Final = (*_ORDER, "use_loss_mask", "pad_token_id", "episode_min_tokens")


class GPTEpisodeDataLoader(Loader[Batch]):
    """Batches of shape `(batch_size, block_size)` from an episodes dataset; no row crosses an episode's end.

    Args:
        config: a mapping or any object with `batch_size`, `block_size` and `device`. Other fields of `TrainingConfig`,
            and `vocab_size`, are also taken from it. A keyword wins over the config.
        tokenizer: its eos id is the pad id if `pad_token_id` is not set; without one, the eos that the dataset's
            manifest records. If the dataset records its tokenizer, the two must agree.
        dataset_dir: the directory that holds `train` and `val`; several as a list; or a mixture as a mapping from
            directory to proportion. A URL names published episodes in a store, whose shards are downloaded as they
            are needed; these cannot be mixed in proportions.
        use_loss_mask: return masks if the dataset has them; default yes.
        batch_sampling_mode: "epoch" (default): every episode once an epoch; "random": drawn with replacement.
        epoch_shuffle, epoch_drop_last, epoch_seed: order of an epoch; with `epoch_drop_last=False` its last batch is
            filled up with empty rows, which hold padding only. Without masks `get_batch` returns `(x, y)`, in which
            empty rows are targets like any other; the mask of `next_batch` is 0 on them.
        sampling: order and proportions of the train split in one value, in place of these four. Proportions are exact
            over an epoch; batches cross the ends of epochs, so that nothing is dropped. Val is never weighted.
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

    # A rejected completion is also an episode, but not one to train on; what only shows rows overrides this.
    reads_preferences: ClassVar[bool] = False
    # Which of `EpisodeKeywords` there are.
    keywords: ClassVar[tuple[str, ...]] = tuple(EpisodeKeywords.__annotations__)

    def __init__(
        self,
        config: Any,
        tokenizer: Any | None = None,
        dataset_dir: Dirs | None = None,
        **keywords: Unpack[EpisodeKeywords],
    ) -> None:
        super().__init__()
        given = check_keywords(type(self).__name__, keywords, self.keywords)
        settings: dict[str, Any] = {name: given[name] for name in _OF_CONFIGS if name in given}
        self.config, self.batch_size, self.block_size = resolve(config, "sft_episode", settings)
        self.packing = check_flag(given.get("packing", False), "packing")
        self.device, self._images = self.config.device, given.get("images")
        # Packing plans lengths before it reads; a row that it would cut silently is refused unless a policy is named. A
        # cut may go through an image.
        whole = self.packing or self._images is not None
        self._too_long = given.get("too_long") or ("error" if whole else "head")
        check_policy(self._too_long)
        if self.batch_size * self.block_size >= 2**31:  # attention kernels take cu_seqlens as int32
            raise UsageError(
                f"a batch of {self.batch_size:,} rows of {self.block_size:,} tokens; expected fewer than 2**31 tokens "
                "together: lower batch_size or block_size"
            )
        self._names, mixture = parse_dataset_dirs(dataset_dir)
        self._dirs, self._streamed = open_urls(self._names, given.get("shard_cache"))
        sampling = given.get("sampling")
        if sampling is not None and (both := [name for name in _ORDER if name in given]):
            raise UsageError(f"sampling and {' and '.join(both)} are given; put all of it into the Sampling")
        sampling = Sampling.of(self.config) if sampling is None else sampling
        sampling = sampling if mixture is None else sampling.mixed(mixture)
        if self._streamed and sampling.shuffle_shards is None:  # all in one order would need all of it here
            sampling = replace(sampling, shuffle_shards=SHUFFLE_SHARDS)
        self._sampling = sampling
        self.rank, self.world_size = ranks(given.get("rank"), given.get("world_size"))
        self._splits = self._open_splits()
        for opened in self._splits.values():
            check_tokenizer(opened, tokenizer)
        train = self._splits["train"]
        self.vocab_size = resolve_vocab_size(given.get("vocab_size"), config, tokenizer, train.vocab_size)
        self.pad_token_id = resolve_pad_id(self.config.pad_token_id, tokenizer, train.eos_id, self.vocab_size)
        self._warned = False
        self._log_splits()
        if train.shards:
            self.batch_source("train")  # raises what is wrong now, not at the first step

    def __repr__(self) -> str:
        """One line: the shape of batches, and the rows of each split."""
        rows = ", ".join(f"{name} {len(split):,} {split.unit}" for name, split in self._splits.items() if split.shards)
        packed = ", packed" if self.packing else ""
        return f"<{type(self).__name__}: batches of {self.batch_size} x {self.block_size}{packed}; {rows or 'no rows'}>"

    def get_batch(self, split: str = "train") -> tuple[torch.Tensor, ...]:
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
        return (batch.x, batch.y, batch.mask) if self.uses_mask(split) else (batch.x, batch.y)

    def has_split(self, split: str) -> bool:
        """Whether the dataset has this split."""
        return split in self._splits and bool(self._splits[split].shards)

    def uses_mask(self, split: str = "train") -> bool:
        """Whether `get_batch` returns masks."""
        return self.batch_source(split).uses_mask

    def batch_source(self, split: str | None = None) -> EpisodeSource:
        source = super().batch_source(split)
        assert isinstance(source, EpisodeSource)
        return source

    # ---- a split, when it is first used

    def _open(self, split: str) -> EpisodeSource:
        opened = self._splits[split]
        folders = ", ".join(str(dataset / split) for dataset in opened.datasets)
        if not opened.shards:
            files = "shard_*.bin" if opened.has_windows else "tokens.bin with an episodes.idx"
            raise CacheError(f"{folders}: no {files}; this dataset has no {split} split")
        if len(opened) == 0 and opened.has_windows:
            raise CacheError(f"{folders}: no shard with two tokens, an input and its target; build from more text")
        if len(opened) == 0:
            raise CacheError(
                f"{folders}: no episode to read: of {opened.n_rows:,} in the index {opened.too_short:,} are too "
                f"short and {opened.too_long:,} too long; lower episode_min_tokens, raise block_size, or build with "
                "more"
            )
        batching = Batching(self.batch_size, self._sampling.drop_last, self.rank, self.world_size)
        # With drop_last a val split without one full batch would have none at all, so its only batch is filled up. How
        # many packed rows there are is known only from their plan.
        if batching.drop_last and split == "val" and not self.packing and len(opened) < batching.rows:
            batching = Batching(self.batch_size, False, self.rank, self.world_size)
            _log.warning(
                "%s split=val: fewer %s than a batch; the only one is filled with padding", opened.log_name, opened.unit
            )
        source = self._source(split, opened, batching)
        source.check_epoch("rows", "epoch_drop_last")
        self._warn_of_padding(split, source)
        if source.plan is not None and not self.rank:
            plan = source.plan
            _log.info("[EpisodeLoader] split=%s rows=%d utilisation=%.4f", split, plan.rows, plan.utilisation)
        return source

    def _source(self, name: str, split: IndexedSplit, batching: Batching) -> EpisodeSource:
        """The split with its rows grouped, packed and ordered."""
        # Val measures the same rows in every run, whatever the mixture.
        sampling = self._sampling if name == "train" else self._sampling.unweighted()
        groups, sampling = episode_groups(split, sampling, self._names)
        # Groups are packed separately: a row with episodes of two groups could not be drawn by either's share.
        members = groups
        if sampling.shuffle_shards is not None:
            # So are shards: a row with episodes of two could not be read before both are here.
            members = {f"shard {number}": span for number, span in enumerate(split.positions_of_shards())}
        plan = packing_plan(split, self.block_size + 1, groups=members) if self.packing else None
        options = RowOptions(
            block_size=self.block_size,
            pad_id=self.pad_token_id,
            too_long=self._too_long,
            vocab_size=self.vocab_size,
            use_mask=self.config.use_loss_mask is not False,
            images=self._images,
        )
        return EpisodeSource(split, order_of(split, plan, sampling, groups), batching, options, plan)

    def _warn_of_padding(self, name: str, source: EpisodeSource) -> None:
        """Without masks `get_batch` returns padding as targets: warn of that in rows, and in an epoch's last batch."""
        if source.uses_mask:
            return
        # A caller who passed use_loss_mask=False knows that there is no mask. Once, for both splits.
        if self.config.use_loss_mask is not False and not self._warned:
            self._warned = True
            _log.warning(
                "[EpisodeLoader] split=%s: no loss mask, get_batch returns (x, y), where padding also counts: %s",
                name,
                source.split.why_no_mask,
            )
        rows = source.order.n
        # Only then can an epoch end with a batch that is not full.
        filled_up = not source.batching.drop_last and not source.order.crosses_epochs and rows is not None
        if filled_up and (rows or 0) % source.batching.rows:
            _log.warning(
                "%s split=%s: the last batch of an epoch is filled with rows of nothing but padding, and without masks "
                "get_batch returns them as targets; use epoch_drop_last=True, or next_batch(), whose mask is 0 there",
                source.split.log_name,
                name,
            )

    # ---- opening the dataset

    def _open_splits(self) -> dict[str, IndexedSplit]:
        """Both splits, so that a damaged val split is found before training, not after the first epoch."""
        splits = {name: self._open_split(name) for name in SPLITS}
        if not any(split.has_images for split in splits.values()):
            return splits
        names = ", ".join(map(str, self._names))
        if self._images is None:
            raise UsageError(
                f"{names}: episodes with images, of which the dataset has names and hashes; pass "
                "images=StoredImages(FOLDER, processor) (niels_gpt.renderers.images.stored) with the model's processor"
            )
        if self._too_long not in ("error", "skip"):
            raise UsageError(
                f"{names}: episodes with images and too_long={self._too_long!r}, which may cut through an image; use "
                "'error' or 'skip'"
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
            more = f"tokens={split.n_tokens}"
            if not split.has_windows:
                mask = flag(split.has_mask and self.config.use_loss_mask is not False)
                more = f"too_short={split.too_short} too_long={split.too_long} {more} mask={mask}"
            _log.info("%s split=%s %s=%d %s", split.log_name, name, split.unit, len(split), more)


class WindowLoader(GPTEpisodeDataLoader):
    """Batches of shape `(batch_size, block_size)` from pretraining caches, as `niels-gpt build` makes.

    Rows are windows of neighbouring tokens, wherever documents begin or end in them. An epoch has every window once, so
    every token of a shard but its first is a target once; only the last window of a shard may be shorter than a row,
    and what fills it is not trained. Arguments, methods and states are those of `GPTEpisodeDataLoader` without what
    windows lack: masks, texts, packing, images. In a batch, `episodes` are the numbers of windows.
    `PretrainTokenStreamDataset` and `GPTDataLoader` draw windows at random places instead, and have no epochs.

    Documents are not separated: a window is one text, without `segment_ids`, and attention sees across the separators.
    Where it must not, the separators say where documents begin; their ids are in `separator_ids` of `meta.json`, the
    `after` each document (eos) and the `before` (bos)::

        ends = torch.isin(batch.x, torch.tensor(meta["separator_ids"]["after"]))
        document = ends.cumsum(1) - ends.int()      # x  a b E c d E    document  0 0 0 1 1 1

    The first token of a document is then a target that its own document does not predict, which `mask` keeps.

    Raises:
        UsageError: an argument out of range, or no pad id. CacheError: no such cache, or a damaged one.
        StorageError: a store, or the disk of the cache of shards, refused.
        Mismatch: a cache was built with another tokenizer.
    """

    keywords: ClassVar[tuple[str, ...]] = tuple(
        name
        for name in GPTEpisodeDataLoader.keywords
        if name not in ("use_loss_mask", "episode_min_tokens", "too_long", "packing", "images")
    )

    def _open_split(self, split: str) -> IndexedSplit:
        if self._sampling.weight_by not in (None, "dataset"):
            raise UsageError(
                f"weight_by is {self._sampling.weight_by!r}; windows have no type or source, only a 'dataset'"
            )
        # Nothing is filtered or too long: a window has two tokens at least, and one row's at most.
        return IndexedSplit(self._dirs, split, streamed=self._streamed, window=self.block_size)


def are_token_caches(names: Any, cache: ShardCache | None) -> bool:
    """Whether the first of some datasets is a pretraining cache, on this disk or in a store.

    Raises:
        CacheError, StorageError: as `open_streamed` and `open_meta`.
    """
    # The first decides. Where others are of another kind, the loader that is chosen says so when it opens them.
    first = first_of(names)
    if first is None:
        return False
    if is_url(first):
        return cache is not None and open_streamed(str(first), cache).is_token_cache
    return (Path(first) / META_NAME).is_file() and open_meta(Path(first))["kind"] == "pretrain"
