"""`RolloutBatch`: rollouts as a step of policy optimisation takes them; `RolloutSource` makes them.

A source is a pure function from a place to the batch there. Values of tokens are shifted by `gather.targets_of`, as the
ids are, so that they belong to targets::

    tokens      P  P  a  b  E        logprobs    nan  nan  -1  -2  -3
    x           P  P  a  b
    y           P  a  b  E           logprobs         0    -1  -2  -3      0 where the mask is 0
    mask        .  #  #  #
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from niels_gpt.episodes.batches import Batches, BatchOptions, hash_of
from niels_gpt.episodes.order.schedule import EveryRow, Schedule
from niels_gpt.episodes.order.states import Place
from niels_gpt.episodes.rows import Column, EpisodeReader, RowSpans, SpanLocator
from niels_gpt.format.collate import TensorFields
from niels_gpt.format.gather import targets_of
from niels_gpt.format.masks import IGNORE_INDEX
from niels_gpt.required_torch import torch
from niels_gpt.rollouts.dataset import RolloutDataset
from niels_gpt.rollouts.format import NO_VERSION
from niels_gpt.rollouts.plans import RowParts


@dataclass(frozen=True)
class RolloutBatch(TensorFields):
    """One rank's part of a global batch: B rows of T inputs, in which K rollouts of G groups lie.

    Column t of `labels`, `mask`, `logprobs`, `advantages`, `versions` and `rollout` belongs to the target of column t,
    which is the token of column t + 1: the output of the model at `input_ids[:, t]` is compared with all of them.

    Attributes:
        input_ids: int64, shape (B, T).
        labels: int64, shape (B, T): the next tokens, -100 where the mask is 0; already shifted.
        mask: float32, shape (B, T): 1 on sampled tokens, 0 on prompts, padding, and the first token of every rollout.
        logprobs: float32, shape (B, T): with which the token was sampled; 0 where the mask is 0. `None`: not stored.
        advantages: float32, shape (B, T): of the token's rollout; 0 where the mask is 0.
        versions: int64, shape (B, T): of the policy that sampled the token; -1 where the mask is 0 or it is not known.
        rollout: int64, shape (B, T): the token's rollout in the batch, 0 to K - 1; -1 on padding.
        segment_ids: int32, shape (B, T): 1, 2, ... along each row; 0 on padding.
        position_ids: int64, shape (B, T): from 0 in every rollout and in the padding.
        cu_seqlens: int32, shape (sequences + 1,): where sequences start in the flattened batch, and its size. The
            padding of a row is a sequence of its own. max_seqlen: the length of the longest.
        rewards: float32, shape (K,).
        group: int64, shape (K,): the rollout's group in the batch, 0 to G - 1.
        rollouts: int64, shape (K,): their numbers in the dataset. groups: int64, shape (G,): likewise.
        num_tokens: tokens that are not padding. num_trained_tokens: the sum of the mask.
        state: what `load_state_dict` takes to continue after this batch.
    """

    input_ids: torch.Tensor
    labels: torch.Tensor
    mask: torch.Tensor
    logprobs: torch.Tensor | None
    advantages: torch.Tensor
    versions: torch.Tensor
    rollout: torch.Tensor
    segment_ids: torch.Tensor
    position_ids: torch.Tensor
    cu_seqlens: torch.Tensor
    max_seqlen: int
    rewards: torch.Tensor
    group: torch.Tensor
    rollouts: npt.NDArray[np.int64]
    groups: npt.NDArray[np.int64]
    num_tokens: int
    num_trained_tokens: int
    state: dict[str, Any]

    def __repr__(self) -> str:
        """One line of shapes and counts; the tensors are attributes."""
        rows, length = self.input_ids.shape
        return (
            f"<RolloutBatch: {len(self.rollouts)} rollouts of {len(self.groups)} groups, {rows} x {length}, "
            f"{self.num_tokens:,} tokens, {self.num_trained_tokens:,} trained, on {self.input_ids.device}>"
        )


class RolloutSource(Batches[RolloutBatch]):
    """Makes one rank's batches of rollouts. Making batches changes nothing here.

    Args:
        dataset: the opened dataset.
        options: `batch_size` is in parts, see `RowParts`.
        schedule: which part comes when.
        parts: the rows.
        advantages: of every rollout of the dataset, float64.
    """

    logger: ClassVar[logging.Logger] = logging.getLogger("niels_gpt.rollouts")

    def __init__(
        self,
        dataset: RolloutDataset,
        options: BatchOptions,
        schedule: Schedule,
        parts: RowParts,
        advantages: npt.NDArray[np.float64],
    ) -> None:
        super().__init__(dataset.episodes, options, schedule)
        # `too_long="head"` below: `Selection` has left out or refused longer rollouts, unless they are to be cut so.
        self.dataset, self.parts, self._advantages = dataset, parts, advantages
        # A row of T inputs has T + 1 tokens, the last of which is a target only.
        width = options.block_size + 1
        self._locator = SpanLocator(dataset.episodes, parts.plan, width, too_long="head")
        self._reader = EpisodeReader(
            dataset.episodes, width, too_long="head", vocab_size=options.vocab_size, use_mask=True
        )
        self._logprobs = None if dataset.logprobs is None else Column(dataset.logprobs)
        self._versions = None if dataset.token_versions is None else Column(dataset.token_versions)
        self.fingerprint = hash_of(
            {
                "rollouts": dataset.fingerprint,
                "rows": schedule.describe(),
                "parts": parts.describe(),
                "cutting": [options.block_size, options.too_long],
            }
        )

    def batch(self, place: Place) -> tuple[RolloutBatch, Place]:
        """See `Batches`.

        Raises:
            CacheError: a token outside the vocabulary, or a mask value that is not 0 or 1 (file and record named).
        """
        drawn, after = self.draw(place)
        spans = self._locator.of_rows(self.parts.rows_of(drawn[self.own_rows]))
        # As rows of episodes are read; segments and cu_seqlens are needed without packing, too, for padding.
        x, y, mask, trained, _, layout = self._reader.training_rows(spans, self.options.pad_id, with_layout=True)
        assert layout is not None
        rollouts = spans.episode
        # Groups 7 3 7 of three rows: `groups` 3 7, and `group` 1 0 1 counts them from 0, for sums by group.
        groups, group = np.unique(self.dataset.groups[rollouts], return_inverse=True)
        arrays = {
            "input_ids": x,
            # For losses that know no mask: they ignore the targets outside of it.
            "labels": np.where(mask > 0, y, IGNORE_INDEX),
            "mask": mask,
            **self._of_targets(spans, mask > 0),
            "segment_ids": layout.segment_ids,
            "position_ids": layout.position_ids,
            "cu_seqlens": layout.cu_seqlens,
            "rewards": self.dataset.rewards[rollouts].astype(np.float32),
            "group": group.astype(np.int64),
        }
        tensors: dict[str, Any] = {name: torch.from_numpy(array) for name, array in arrays.items()}
        batch = RolloutBatch(
            **{"logprobs": None, **tensors},
            max_seqlen=layout.max_seqlen,
            rollouts=rollouts,
            groups=groups,
            num_tokens=int(spans.used.sum()),
            num_trained_tokens=trained,
            state=self.state(after),
        )
        return batch, after

    def _of_targets(self, spans: RowSpans, trained: npt.NDArray[np.bool_]) -> dict[str, npt.NDArray[Any]]:
        """The values that belong to the targets besides their ids, each of shape (B, T)."""
        # The rollout of every token, row by row, then shifted as targets are. Rows of 5 tokens, rollouts of 3 2 | 5
        # tokens:
        #    tokens  0 0 0 1 1 | 2 2 2 2 2      shifted  0 0 1 1 | 2 2 2 2
        tokens = np.full((spans.B, spans.width), -1)
        tokens[spans.token_mask] = np.arange(len(spans.row)).repeat(spans.length)
        rollout = np.ascontiguousarray(targets_of(tokens))
        # -1, the rollout of padding, reads the appended last value.
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

    def in_order(self) -> RolloutSource:
        """See `Batches`."""
        schedule = EveryRow(self.parts.n, self.options.seed, shuffle=False)
        options = replace(self.options, drop_last=False)
        return RolloutSource(self.dataset, options, schedule, self.parts, self._advantages)

    def describe_epoch(self, epoch: int) -> str:
        """See `Batches`."""
        return f"[RolloutLoader] epoch={epoch} rows={self.parts.plan.rows} batches={self.steps_per_epoch()}"

    def __reduce__(self) -> tuple[type[RolloutSource], tuple[Any, ...]]:
        """Pickled for a worker, the source opens its files again there."""
        return type(self), (self.dataset, self.options, self.schedule, self.parts, self._advantages)
