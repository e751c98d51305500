"""Episodes as batches of fixed shape (document 002), resumable and the same on any number of ranks."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from niels_gpt.episodes.batch import EpisodeBatch
from niels_gpt.episodes.cursor import Cursor
from niels_gpt.episodes.dataset import EpisodeSplit
from niels_gpt.episodes.feed import EpisodeFeed, FeedOptions
from niels_gpt.episodes.format import SPLITS, require_episodes
from niels_gpt.episodes.logs import show_lines
from niels_gpt.episodes.opening import Dirs, Sampling, check_tokenizer, named_datasets, open_feed, open_split
from niels_gpt.episodes.prefetch import Prefetch
from niels_gpt.episodes.ranks import ranks
from niels_gpt.episodes.settings import chosen_pad_id, flag, known_vocab_size, resolve
from niels_gpt.episodes.views import EpisodeIterable, EpisodeWorkers
from niels_gpt.errors import CacheError, UsageError
from niels_gpt.format.fitting import check_policy
from niels_gpt.progress import SILENT, Progress

_log = logging.getLogger("niels_gpt.episodes")

Tensors = tuple[torch.Tensor, ...]


class GPTEpisodeDataLoader:
    """Batches of `(batch_size, block_size)` from an episode-indexed dataset; no window crosses an episode's end.

    Args:
        config: a mapping or any object with `batch_size`, `block_size` and `device`; the tags of document 002 are taken
            from it too where it has them, and `vocab_size`. A keyword that is given wins.
        tokenizer: its eos pads where `pad_token_id` is not set; if the dataset records a tokenizer, they must agree.
        dataset_dir: the directory that holds `train` and `val`; several as a list; or a mixture as a mapping from
            directory to proportion.
        use_loss_mask: return masks where the dataset has them; default yes.
        batch_sampling_mode: "epoch" (default): every episode once an epoch; "random": drawn with replacement.
        epoch_shuffle, epoch_drop_last, epoch_seed: order of an epoch; with `epoch_drop_last=False` its last batch is
            filled up with rows of nothing but padding. Where there are no masks `get_batch` returns `(x, y)`, in which
            these rows are targets like any other; the mask of `next_batch` is 0 on them.
        pad_token_id: fills rows; told by position, so it may equal any real id.
        episode_min_tokens: shorter episodes are left out.
        too_long: what becomes of episodes with more than block_size + 1 tokens: "head", "tail", "drop_partial_turn",
            "skip" or "error"; default "head" as document 002 says, and "error" with packing.
        packing: several whole episodes in a row, by best-fit decreasing; read them with `next_batch`.
        weight_by, weights: draw train rows by "type" or "source" (of `episodes.parquet`) or "dataset" in proportion to
            `weights`; or by each episode's own "weight". Exact over an epoch; batches run on from one epoch into the
            next, so that nothing is dropped. Val is never weighted.
        temperature: in place of `weights`: a group of n rows weighs n ** (1 / temperature); 1 is by size, a large one
            makes all alike. Without `weight_by`, of the datasets.
        repeats: in place of `weights`: how often an epoch shows each group, e.g. `{"small": 3, "web": 0.5}`; a group
            that is shown half goes on with the other half. Without `weight_by`, of the datasets.
        epoch_rows: rows in a weighted epoch; default as many as there are.
        epoch_ends: in place of `epoch_rows`: "first", an epoch ends before the first group repeats; "all", once every
            group was shown whole, while smaller ones repeat.
        vocab_size: tokens are checked against it; default the config's, the tokenizer's or the dataset's.
        rank, world_size: default those of torch.distributed where it is initialised. `batch_size` is each rank's.
        global_counts: count trained tokens over all ranks' batches. It costs a look at all their masks, which tells on
            hundreds of ranks, unless `keep_counts` was called once; without it the batches' `global_*` are `None`.

    A val split with fewer rows than a global batch is not dropped whatever `epoch_drop_last` says; the log tells.

    Raises:
        UsageError: an argument out of range, no pad id, or a batch larger than an epoch with drop_last.
        CacheError: no such dataset, or files that are missing, short or damaged. Mismatch: another tokenizer.
    """

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
        weight_by: str | None = None,
        weights: Mapping[str, float] | None = None,
        epoch_rows: int | None = None,
        temperature: float | None = None,
        repeats: Mapping[str, float] | None = None,
        epoch_ends: str | None = None,
        vocab_size: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        global_counts: bool = True,
    ) -> None:
        given = {
            "use_loss_mask": use_loss_mask,
            "batch_sampling_mode": batch_sampling_mode,
            "epoch_shuffle": epoch_shuffle,
            "epoch_drop_last": epoch_drop_last,
            "epoch_seed": epoch_seed,
            "pad_token_id": pad_token_id,
            "episode_min_tokens": episode_min_tokens,
        }
        self.config, self.batch_size, self.block_size = resolve(config, "sft_episode", given)
        settings = self.config
        self.packing, self.device, self._global_counts = packing, settings.device, global_counts
        self._too_long = too_long or ("error" if packing else "head")
        check_policy(self._too_long)
        self._names, self._dirs, mixture = named_datasets(dataset_dir)
        if mixture is not None:
            if weight_by is not None or weights is not None:
                raise UsageError("dataset_dir gives proportions and weight_by or weights too; expected one of them")
            weight_by, weights = "dataset", mixture
        if weight_by is None and (temperature is not None or repeats is not None):
            weight_by = "dataset"
        self._sampling = Sampling(
            settings.sampling_mode,
            settings.epoch_shuffle,
            settings.epoch_seed,
            weight_by,
            weights,
            epoch_rows,
            temperature,
            repeats if repeats is None else {str(name): times for name, times in repeats.items()},
            epoch_ends,
        )
        self.rank, self.world_size = ranks(rank, world_size)
        self._splits = {name: self._open(name) for name in SPLITS}
        for split in self._splits.values():
            check_tokenizer(split, tokenizer)
        self.vocab_size = known_vocab_size(vocab_size, config, tokenizer, self._splits["train"].vocab_size)
        self.pad_token_id = chosen_pad_id(settings.pad_token_id, tokenizer, self.vocab_size)
        self._cursors: dict[str, Cursor] = {}
        self._warned = False
        show_lines()
        self._log_splits()
        if self._splits["train"].shards:
            self.feed("train")  # what cannot work is said now, not at the first step

    def get_batch(self, split: str = "train") -> Tensors:
        """`(x, y, mask)`, or `(x, y)` without masks, each of shape (batch_size, block_size) on the config's device.

        `x` and `y` are int64, `mask` float32 and aligned to `y`; padding has mask 0.

        Raises:
            UsageError: no such split, or rows are packed (see `next_batch`). CacheError: no episodes, or bad values.
        """
        if self.packing:
            raise UsageError(
                "rows are packed, and (x, y, mask) does not say where episodes begin, so attention would cross them; "
                "use next_batch(), which carries segment_ids, position_ids and cu_seqlens"
            )
        batch = self.next_batch(split)
        if self.uses_mask(split):
            return batch.x, batch.y, batch.mask
        return batch.x, batch.y

    def next_batch(self, split: str = "train") -> EpisodeBatch:
        """The next batch with all that is known of it; `get_batch` gives its first three tensors."""
        return self._cursor(split).next_batch()

    def evaluation_batches(self, split: str = "val") -> Iterator[EpisodeBatch]:
        """Every row once, in order, none dropped; the same each time. Does not move `get_batch` on."""
        return self._cursor(split).in_order()

    def batches(self, split: str = "train", *, epoch: int = 0) -> Iterator[EpisodeBatch]:
        """One epoch of training from its start; does not move `get_batch` on.

        Raises:
            UsageError: batch_sampling_mode is "random", which has no epochs.
        """
        return self._cursor(split).epoch(epoch)

    def prefetch(self, split: str = "train", *, depth: int = 2) -> Prefetch:
        """An endless iterator whose batches are made by a background thread, from where `get_batch` stands.

        `state_dict` of both counts what was handed out, never what waits. Close it, or use it in `with`.
        """
        return self._cursor(split).prefetch(depth)

    def as_dataloader(self, split: str = "train", *, epochs: int | None = 1, **options: Any) -> EpisodeWorkers:
        """Batches from worker processes, from where `get_batch` stands; a pass gives `epochs`, or what is left of them.

        `state_dict` of both counts what was handed out. Batches come on the CPU.

        Args:
            options: of `torch.utils.data.DataLoader`: num_workers, prefetch_factor, pin_memory, ...
        """
        return self._cursor(split).workers(epochs, **options)

    def as_iterable(self, split: str = "train", *, epochs: int | None = None) -> EpisodeIterable:
        """The batches from where `get_batch` stands, for `torch.utils.data.DataLoader(..., batch_size=None)`."""
        return self._cursor(split).iterable(epochs)

    def steps_per_epoch(self, split: str = "train") -> int:
        """How many batches an epoch has, on every rank; see `EpisodeFeed.steps_per_epoch`."""
        return self.feed(split).steps_per_epoch()

    def has_split(self, split: str) -> bool:
        """Does the dataset have this split?"""
        return split in self._splits and bool(self._splits[split].shards)

    def uses_mask(self, split: str = "train") -> bool:
        """Does `get_batch` return masks?"""
        return self.feed(split).uses_mask

    def state_dict(self, split: str = "train") -> dict[str, Any]:
        """Where a split stands: version, fingerprint, seed, epoch and position (rows of the epoch, over all ranks)."""
        return self._cursor(split).state()

    def load_state_dict(self, state: dict[str, Any], split: str = "train") -> None:
        """Go on where a state was taken, here or on another number of ranks or batch size. O(1).

        Raises:
            Mismatch: the state is of another dataset, block_size, too_long, packing, order or seed.
            UsageError: it is no state.
        """
        self._cursor(split).move(self.feed(split).place(state))

    def rows_read(self, split: str = "train") -> int:
        """How many rows were read over all ranks, since row 0 of epoch 0; rows that drop_last left out count too."""
        return self._cursor(split).rows_read

    def seek(self, row: int, split: str = "train") -> None:
        """Go to any row of the endless order, over all ranks: the inverse of `rows_read`. O(1), nothing is replayed.

        With `row = tokens // block_size`, where another run has read so many tokens.

        Raises:
            UsageError: below 0 or above 2**62.
        """
        self._cursor(split).move(self.feed(split).place_of(row))

    def keep_counts(self, split: str = "train", *, progress: Progress = SILENT) -> None:
        """Count every episode's trained tokens once, and keep the numbers in `counts/` of the first dataset.

        Loaders of the same data, block size and `too_long` find them when they open; global counts then cost a look at
        these numbers, not at all ranks' masks. Call it in one process, before training.

        Raises:
            StorageError: the file system refused. CacheError: a mask with bad values.
        """
        self.feed(split).keep_counts(progress)

    def feed(self, split: str) -> EpisodeFeed:
        """The split's batches as a pure function of the place."""
        return self._cursor(split).feed

    def _cursor(self, split: str) -> Cursor:
        """Where a split stands; opened when it is first asked for."""
        if split not in self._splits:
            raise UsageError(f"split is {split!r}; expected 'train' or 'val'")
        if split not in self._cursors:
            opened = self._splits[split]
            if not opened.shards:
                place = ", ".join(str(dataset / split) for dataset in opened.datasets)
                raise CacheError(f"{place}: no tokens.bin with an episodes.idx; this dataset has no {split} split")
            self._cursors[split] = Cursor(self._make_feed(split, opened), self.device)
        return self._cursors[split]

    def _make_feed(self, name: str, split: EpisodeSplit) -> EpisodeFeed:
        settings, sampling = self.config, self._sampling
        drop_last = settings.epoch_drop_last
        if name == "val":
            sampling = Sampling(sampling.mode, sampling.shuffle, sampling.seed)
            if drop_last and not self.packing and len(split) < self.batch_size * self.world_size:
                drop_last = False
                _log.warning(
                    "[EpisodeLoader] split=val: fewer episodes than a batch; the only one is filled with padding"
                )
        options = FeedOptions(
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
            global_counts=self._global_counts,
        )
        self._warn_without_mask(name, split)
        feed = open_feed(split, options, sampling, packed=self.packing, names=self._names)
        rows = feed.schedule.n
        if not (drop_last or feed.uses_mask or feed.schedule.runs_on or rows is None) and rows % feed.global_rows:
            _log.warning(
                "[EpisodeLoader] split=%s: the last batch of an epoch is filled with rows of nothing but padding, and "
                "without masks get_batch returns them as targets; use epoch_drop_last=True, or next_batch(), whose "
                "mask is 0 there",
                name,
            )
        if feed.plan is not None and not self.rank:
            _log.info("[EpisodeLoader] split=%s rows=%d utilisation=%.4f", name, feed.plan.rows, feed.plan.utilisation)
        return feed

    def _open(self, split: str) -> EpisodeSplit:
        for folder in self._dirs:
            require_episodes(folder)
        return open_split(
            self._dirs,
            split,
            min_tokens=self.config.episode_min_tokens,
            too_long=self._too_long,
            width=self.block_size + 1,
        )

    def _warn_without_mask(self, name: str, split: EpisodeSplit) -> None:
        if self.config.use_loss_mask is not False and not split.has_mask and not self._warned:
            self._warned = True
            _log.warning(
                "[EpisodeLoader] split=%s: no loss mask, get_batch returns (x, y), where padding counts too: %s",
                name,
                split.why_no_mask,
            )

    def _log_splits(self) -> None:
        """The lines of document 002 when a loader is made; once, by rank 0."""
        if self.rank:
            return
        for name, split in self._splits.items():
            if not split.shards:
                continue
            _log.info(
                "[EpisodeLoader] split=%s episodes=%d too_short=%d too_long=%d tokens=%d mask=%s",
                name,
                len(split),
                split.too_short,
                split.too_long,
                split.n_tokens,
                flag(split.has_mask and self.config.use_loss_mask is not False),
            )
