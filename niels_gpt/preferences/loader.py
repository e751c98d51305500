"""`PreferenceLoader`: batches of whole groups of completions, deterministic and resumable as those of episodes are."""

from __future__ import annotations

import logging
from pathlib import Path

from niels_gpt.episodes.loader import Loader
from niels_gpt.episodes.order.order import every_row
from niels_gpt.episodes.order.sampling import Sampling, groups_of, order_of_groups
from niels_gpt.episodes.settings import Dirs, ensure_log_output, parse_dataset_dirs, ranks, resolve_pad_id
from niels_gpt.episodes.source import Batching
from niels_gpt.errors import CacheError, UsageError
from niels_gpt.format.collate import checked_device
from niels_gpt.preferences.batches import PreferenceBatch, PreferenceSource
from niels_gpt.preferences.dataset import Fitting, PreferenceSplit
from niels_gpt.ranges import BATCH_SIZE, BLOCK_SIZE
from niels_gpt.seeds import DEFAULT_SEED
from niels_gpt.store.kinds import require_episodes
from niels_gpt.store.published import is_url
from niels_gpt.store.schema import SPLITS

_log = logging.getLogger("niels_gpt.preferences")


class PreferenceLoader(Loader[PreferenceBatch]):
    """Batches of `batch_size` groups: pairs, labelled or scored completions, or ranked lists.

    The order is a pure function of dataset, seed, epoch and position, and states are those of `GPTEpisodeDataLoader`: a
    run continues on another number of ranks, or with another batch size, without a group that is lost or comes twice.

    Args:
        dataset_dir: what `niels-gpt build` wrote; several; or a mapping from directories to their shares.
        batch_size: groups per batch and rank. sequence_length: the most tokens of prompt and completion.
        too_long: "error", "skip", "head" or "tail", see `Fitting`.
        pad_token_id: fills rows; padding is known by its position, so any id of the vocabulary will do. Default the eos
            that the dataset's manifest records.
        pad_to_multiple_of: pad each batch to its longest row, rounded up to such a multiple; `None`: always to
            `sequence_length`, so that all batches have one shape.
        seed, shuffle: of the order. drop_last: leave out an epoch's last batch if it is not full; else fill it
            with rows of padding.
        rank, world_size: default those of `torch.distributed`, if it is initialised.
        device: where batches are moved.

    Attributes:
        vocab_size: ids are below it; `None` if it is not recorded.

    Raises:
        UsageError: an argument out of range, a batch larger than an epoch with drop_last, or a URL.
        CacheError: no such dataset, a damaged one, or a group that is too long.
    """

    def __init__(
        self,
        dataset_dir: Dirs,
        *,
        batch_size: int,
        sequence_length: int,
        too_long: str = "error",
        pad_token_id: int | None = None,
        pad_to_multiple_of: int | None = None,
        seed: int = DEFAULT_SEED,
        shuffle: bool = True,
        drop_last: bool = True,
        rank: int | None = None,
        world_size: int | None = None,
        device: str = "cpu",
    ) -> None:
        super().__init__()
        self.batch_size, self.sequence_length = BATCH_SIZE.whole(batch_size), BLOCK_SIZE.whole(sequence_length)
        self._sampling = Sampling(seed=seed, shuffle=shuffle, drop_last=drop_last)
        self.rank, self.world_size = ranks(rank, world_size)
        self.device = str(checked_device(device))
        self._multiple = None if pad_to_multiple_of is None else BLOCK_SIZE.whole(pad_to_multiple_of)
        self._names, self._mixture = parse_dataset_dirs(dataset_dir)
        for name in self._names:
            if is_url(name):
                raise UsageError(f"{name}: preferences are read from a local directory; download them: niels-gpt fetch")
            require_episodes(Path(name))
        self._fitting = Fitting(self.sequence_length, too_long)
        folders = [Path(name) for name in self._names]
        self._splits = {split: PreferenceSplit(folders, split, self._fitting) for split in SPLITS}
        self.vocab_size = self._splits["train"].episodes.vocab_size
        self.pad_token_id = resolve_pad_id(pad_token_id, None, self._splits["train"].episodes.eos_id, self.vocab_size)
        ensure_log_output()
        for name, split in self._splits.items():
            # Rank 0 only: on hundreds of ranks the same lines would be repeated hundreds of times.
            if split.episodes.shards and not self.rank:
                _log.info(
                    "[PreferenceLoader] split=%s groups=%d too_long=%d (%s) without_completion=%d",
                    name,
                    len(split),
                    split.too_long,
                    too_long,
                    split.without_completion,
                )
        if self._splits["train"].episodes.shards:
            self.batch_source("train")  # raises what is wrong now, not at the first step

    def __repr__(self) -> str:
        """One line: the size of batches, and the groups of each split."""
        groups = ", ".join(f"{name} {len(split):,} groups" for name, split in self._splits.items() if len(split))
        return (
            f"<PreferenceLoader: batches of {self.batch_size} groups x {self.sequence_length}; {groups or 'no groups'}>"
        )

    def split(self, name: str) -> PreferenceSplit:
        """An opened split, with the counts of groups that are left out.

        Raises:
            UsageError: no such name.
        """
        if name not in self._splits:
            raise UsageError(f"split is {name!r}; expected 'train' or 'val'")
        return self._splits[name]

    def _open(self, split: str) -> PreferenceSource:
        opened, sampling = self.split(split), self._sampling
        if not len(opened):
            folders = ", ".join(str(dataset / split) for dataset in opened.episodes.datasets)
            raise CacheError(
                f"{folders}: no preferences to read: {opened.too_long:,} groups are too long; raise sequence_length, "
                "or build with more"
            )
        order = every_row(len(opened), sampling.seed, shuffle=sampling.shuffle)
        if split == "train" and self._mixture is not None:
            # The groups of several datasets in proportion; val is never weighted.
            found = dict(zip(self._names, opened.positions_of_datasets(), strict=True))
            order = order_of_groups(*groups_of(found, sampling.mixed(self._mixture)))
        # A val split smaller than a batch is not dropped as a whole.
        drop_last = sampling.drop_last and not (split == "val" and len(opened) < self.batch_size * self.world_size)
        batching = Batching(self.batch_size, drop_last, self.rank, self.world_size)
        source = PreferenceSource(opened.episodes, order, batching, opened, self.pad_token_id, self._multiple)
        source.check_epoch("groups", "drop_last")
        return source
