"""`RolloutLoader`: rollouts as batches of one fixed shape, deterministic and resumable as those of episodes are."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from niels_gpt.episodes.iterate.split_iterator import SplitIterator
from niels_gpt.episodes.order.schedule import EveryRow
from niels_gpt.episodes.settings import ensure_log_output, resolve_pad_id
from niels_gpt.episodes.split_loader import CompletionLoader
from niels_gpt.errors import CacheError, UsageError
from niels_gpt.ranges import check_flag
from niels_gpt.rollouts.batches import RolloutBatch, RolloutSource
from niels_gpt.rollouts.dataset import RolloutDataset
from niels_gpt.rollouts.format import SPLIT
from niels_gpt.rollouts.plans import Selection, group_rows, single_rows
from niels_gpt.seeds import DEFAULT_SEED

_log = logging.getLogger("niels_gpt.rollouts")


class RolloutLoader(CompletionLoader[RolloutBatch]):
    """Batches of `batch_size` rows of rollouts.

    The order is a pure function of dataset, options, seed, epoch and position, and states are those of
    `GPTEpisodeDataLoader`. Without `whole_groups` a run continues with any batch size and number of
    ranks; with it the batch size decides which groups share a batch, so a state of another one is refused.

    Args:
        paths: what `RolloutWriter` wrote; several are read as one dataset, such as those of the last steps.
        batch_size: rows per batch and rank. sequence_length: inputs of a row.
        packing: several whole rollouts in a row.
        whole_groups: the rollouts of a group are in one batch, on one rank; several groups share a batch. Rows that are
            left over are padding. Which groups share a batch is the same in every epoch.
        advantages: "stored", "grpo" or "mean", see `RolloutDataset.advantages`. They are computed before anything is
            left out.
        max_age, current_version, drop_zero_variance, too_long: which groups are left out, see `Selection`; how many is
            in `left_out`, and in the log.
        pad_token_id: fills rows; padding is known by its position, so any id of the vocabulary will do. Default the eos
            that the dataset's manifest records.
        seed, shuffle: of the order. drop_last: leave out an epoch's last batch if it is not full; else it is filled up
            with rows of padding.
        rank, world_size: default those of `torch.distributed`, if it is initialised.
        device: where batches are moved.

    Attributes:
        dataset: the opened dataset.
        left_out: how many groups are left out, by reason.

    Raises:
        UsageError: an argument out of range, a batch larger than an epoch with drop_last, or a group larger than a
            batch. CacheError: no dataset, a damaged one, a rollout that is too long, or none is left.
    """

    def __init__(
        self,
        paths: str | Path | Sequence[str | Path],
        *,
        batch_size: int,
        sequence_length: int,
        packing: bool = False,
        whole_groups: bool = False,
        advantages: str | None = None,
        max_age: int | None = None,
        current_version: int | None = None,
        drop_zero_variance: bool = False,
        too_long: str = "error",
        pad_token_id: int | None = None,
        seed: int = DEFAULT_SEED,
        shuffle: bool = True,
        drop_last: bool = True,
        rank: int | None = None,
        world_size: int | None = None,
        device: str = "cpu",
    ) -> None:
        super().__init__(
            batch_size=batch_size,
            sequence_length=sequence_length,
            seed=seed,
            shuffle=shuffle,
            drop_last=drop_last,
            rank=rank,
            world_size=world_size,
            device=device,
        )
        width = self.sequence_length + 1  # the last token of a row is a target only
        selection = Selection(width, too_long, max_age, current_version, drop_zero_variance)
        switches = {"packing": packing, "whole_groups": whole_groups, "drop_zero_variance": drop_zero_variance}
        for name, value in switches.items():
            check_flag(value, name)
        self.dataset = RolloutDataset(paths)
        episodes = self.dataset.episodes
        self.pad_token_id = resolve_pad_id(pad_token_id, None, episodes.eos_id, episodes.vocab_size)
        # Before the selection: the mean of a group is that of all its rollouts, also of those that are left out.
        self._advantages = self.dataset.advantages(advantages)
        self._groups, self.left_out = selection.of(self.dataset)
        plan = group_rows if whole_groups else single_rows
        self._parts = plan(self.dataset, self._groups, width, self.batch_size, packing=packing)
        self._too_long = too_long
        if not self.rank:  # on hundreds of ranks the same line would be repeated hundreds of times
            self._log_opening()
        self._iterators[SPLIT] = SplitIterator(self._source(), self.device)

    def __repr__(self) -> str:
        """One line: the shape of batches, and what is read."""
        left = "".join(f", {n:,} {name}" for name, n in self.left_out.items() if n)
        return (
            f"<RolloutLoader: batches of {self.batch_size} x {self.sequence_length}; {len(self._groups):,} groups in "
            f"{self._parts.plan.rows:,} rows{left}>"
        )

    def _log_opening(self) -> None:
        ensure_log_output()
        left = "".join(f" {name}={n}" for name, n in self.left_out.items())
        plan = self._parts.plan
        if self._too_long == "head":
            left += f" cut={int((self.dataset.lengths[plan.items] > self.sequence_length + 1).sum())}"
        _log.info(
            "[RolloutLoader] rollouts=%d groups=%d used=%d%s rows=%d utilisation=%.4f",
            len(self.dataset),
            self.dataset.n_groups,
            len(self._groups),
            left,
            plan.rows,
            plan.utilisation,
        )

    def _iterator(self, split: str) -> SplitIterator[RolloutBatch]:
        if split not in self._iterators:
            raise UsageError(f"split is {split!r}; rollouts have only {SPLIT!r}")
        return self._iterators[split]

    def _source(self) -> RolloutSource:
        parts, order = self._parts, self._order
        folders = ", ".join(map(str, self.dataset.paths))
        needed = parts.per_batch * self.world_size
        if not parts.n:
            raise CacheError(f"{folders}: no rollouts are left of {len(self.dataset):,}; left out: {self.left_out}")
        # Otherwise an epoch would have no whole batch, and `take` would fill each batch up with empty rows.
        if order.drop_last and parts.n < needed:
            unit = "rows" if parts.begins is None else "batches of whole groups"
            raise UsageError(
                f"{folders}: {parts.n:,} {unit} an epoch, but all ranks together take {needed:,} at a time, so "
                "drop_last would drop everything; use a smaller batch_size, or drop_last=False"
            )
        # Attention kernels take cu_seqlens as int32, which `BatchOptions` checks: with whole groups, for one row only.
        if self.batch_size * self.sequence_length >= 2**31:
            raise UsageError(
                f"a batch of {self.batch_size:,} rows of {self.sequence_length:,}; expected below 2**31 tokens"
            )
        options = self._batch_options(self.dataset.episodes.vocab_size, self._too_long, batch_size=parts.per_batch)
        schedule = EveryRow(parts.n, order.seed, order.shuffle)
        return RolloutSource(self.dataset, options, schedule, parts, self._advantages)


def make_rollout_loader(path: str | Path | Sequence[str | Path], B: int, T: int, **options: Any) -> RolloutLoader:
    """A `RolloutLoader` of batches of B rows of T inputs; `options` are its other arguments."""
    return RolloutLoader(path, batch_size=B, sequence_length=T, **options)
