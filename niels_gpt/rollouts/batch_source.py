"""`RolloutSource`, a pure function from a place to the batch of rollouts there.

Everything of a target is shifted by `gather.targets_of`, as the targets are::

    tokens      P  P  a  b  E        logprobs    nan  nan  -1  -2  -3
    x           P  P  a  b
    y           P  a  b  E           logprobs         0    -1  -2  -3      0 where the mask is 0
    mask        .  #  #  #
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from niels_gpt.episodes.batches import Batches, BatchOptions, hash_of
from niels_gpt.episodes.index_sets import Int64s, in_chunks
from niels_gpt.episodes.iterate import LOOKAHEAD_TOKENS
from niels_gpt.episodes.rows import Column, EpisodeReader
from niels_gpt.episodes.schedule import EMPTY, EveryRow, Schedule
from niels_gpt.episodes.settings import ensure_log_output
from niels_gpt.episodes.spans import RowSpans, SpanLocator
from niels_gpt.episodes.states import Place
from niels_gpt.forks import cached_property
from niels_gpt.format.gather import targets_of
from niels_gpt.rollouts.batch import RolloutBatch
from niels_gpt.rollouts.dataset import RolloutDataset
from niels_gpt.rollouts.format import NO_VERSION
from niels_gpt.rollouts.plans import RowParts

IGNORED = -100  # the label of a token that is not in the loss
COUNTED = 1 << 10  # rollouts whose trained tokens are counted together

_log = logging.getLogger("niels_gpt.rollouts")


class RolloutSource(Batches[RolloutBatch]):
    """Makes one rank's batches of rollouts. Making batches changes nothing here.

    Args:
        dataset: the opened dataset.
        options: `batch_size` is in parts, see `RowParts`.
        schedule: which part comes when.
        parts: the rows.
        advantages: of every rollout of the dataset, float64.
    """

    def __init__(
        self,
        dataset: RolloutDataset,
        options: BatchOptions,
        schedule: Schedule,
        parts: RowParts,
        advantages: npt.NDArray[np.float64],
    ) -> None:
        super().__init__(dataset.episodes, options, schedule)
        self.dataset, self.parts, self._advantages = dataset, parts, advantages
        width = options.block_size + 1
        self._locator = SpanLocator(dataset.episodes, parts.plan, width, too_long="head")
        self._reader = EpisodeReader(
            dataset.episodes, width, too_long="head", vocab_size=options.vocab_size, use_mask=True
        )
        self._logprobs = None if dataset.logprobs is None else Column(dataset.logprobs, width)
        self._versions = None if dataset.token_versions is None else Column(dataset.token_versions, width)
        self.fingerprint = hash_of(
            {
                "rollouts": dataset.fingerprint,
                "rows": schedule.describe(),
                "parts": parts.describe(),
                "cutting": [options.block_size, options.too_long],
            }
        )

    def batches(self, place: Place, n: int) -> list[tuple[RolloutBatch, Place]]:
        """See `Batches`.

        Raises:
            CacheError: a token outside the vocabulary, or a mask value that is not 0 or 1 (file and record named).
        """
        # A batch may have many more tokens than `options.batch_size` says, which counts parts.
        most = max(1, LOOKAHEAD_TOKENS // (self.parts.rows * self.options.block_size))
        return [(self._batch(drawn, after), after) for drawn, after in self.draw(place, min(n, most))]

    def _batch(self, drawn: Int64s, after: Place) -> RolloutBatch:
        spans = self._locator.of_rows(self.parts.rows_of(drawn[self.own_rows]))
        texts = self._reader.texts(spans)
        targets = self._reader.target_mask(spans, texts)
        x, y = self._reader.inputs_and_targets(spans, self.options.pad_id)
        segment_ids, position_ids, starts = self._reader.numbered(spans, texts)
        mask, trained = targets.values, int(targets.trained.sum())
        rollouts = spans.episode
        groups, group = np.unique(self.dataset.groups[rollouts], return_inverse=True)
        arrays = {
            "input_ids": x,
            "labels": np.where(mask > 0, y, IGNORED),
            "mask": mask,
            **self._of_targets(spans, mask > 0),
            "segment_ids": segment_ids,
            "position_ids": position_ids,
            "cu_seqlens": starts,
            "rewards": self.dataset.rewards[rollouts].astype(np.float32),
            "group": group.astype(np.int64),
        }
        tensors: dict[str, Any] = {name: torch.from_numpy(array) for name, array in arrays.items()}
        return RolloutBatch(
            **{"logprobs": None, **tensors},
            max_seqlen=int(np.diff(starts).max()),
            rollouts=rollouts,
            groups=groups,
            num_tokens=int(spans.used.sum()),
            num_trained_tokens=trained,
            global_num_trained_tokens=self._global_trained(drawn, trained),
            state=self.state(after),
        )

    def _of_targets(self, spans: RowSpans, trained: npt.NDArray[np.bool_]) -> dict[str, npt.NDArray[Any]]:
        """What belongs to the targets besides their ids, each of shape (B, T)."""
        tokens = np.full((spans.B, spans.width), -1)
        tokens[: spans.filled] = np.arange(len(spans.row)).repeat(spans.reach).reshape(spans.filled, spans.width)
        spans.fill_rest(tokens, -1)
        rollout = np.ascontiguousarray(targets_of(tokens))
        # One more value for padding, which -1 finds.
        advantages = np.append(self._advantages[spans.episode], 0.0)[rollout]
        if self._versions is None:
            versions = np.append(self.dataset.versions[spans.episode], NO_VERSION)[rollout]
        else:
            versions = targets_of(self._versions.rows(spans, NO_VERSION)).astype(np.int64)
        found = {
            "rollout": rollout,
            "advantages": np.where(trained, advantages, 0.0).astype(np.float32),
            "versions": np.where(trained, versions, NO_VERSION),
        }
        if self._logprobs is not None:
            found["logprobs"] = np.where(trained, targets_of(self._logprobs.rows(spans, 0.0)), np.float32(0.0))
        return found

    def _global_trained(self, drawn: Int64s, own: int) -> int:
        """The trained tokens of all ranks' rows; `own` are this rank's."""
        if self.options.world_size == 1:
            return own
        per_rank = drawn.reshape(self.options.world_size, -1)
        rows = np.concatenate([self.parts.rows_of(parts) for parts in per_rank])
        return int(self._trained[self._locator.positions(np.append(rows[rows != EMPTY], EMPTY))].sum())

    @cached_property
    def _trained(self) -> Int64s:
        """How many targets of each rollout are trained. Reads all masks once; only several ranks need it."""
        counts = [np.empty(0, np.int64)]
        for numbers in in_chunks(np.arange(len(self.dataset)), COUNTED):
            spans = self._locator.of_positions(numbers)
            counts.append(self._reader.target_mask(spans, self._reader.texts(spans)).trained)
        return np.concatenate(counts)

    def in_order(self) -> RolloutSource:
        """See `Batches`."""
        schedule = EveryRow(self.parts.n, self.options.seed, shuffle=False)
        options = replace(self.options, drop_last=False)
        return RolloutSource(self.dataset, options, schedule, self.parts, self._advantages)

    def log_epoch(self, epoch: int) -> None:
        """See `Batches`."""
        if self.options.rank:
            return
        ensure_log_output()  # a worker process that was spawned, not forked, has not done this
        _log.info("[RolloutLoader] epoch=%d rows=%d batches=%d", epoch, self.parts.plan.rows, self.steps_per_epoch())

    def __reduce__(self) -> tuple[type[RolloutSource], tuple[Any, ...]]:
        """Pickled for a worker, the source opens its files again there."""
        return type(self), (self.dataset, self.options, self.schedule, self.parts, self._advantages)
