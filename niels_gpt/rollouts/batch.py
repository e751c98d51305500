"""`RolloutBatch`: rollouts as a step of policy optimisation takes them."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from niels_gpt.format.collate import to_device


@dataclass(frozen=True)
class RolloutBatch:
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
        global_num_trained_tokens: the same over the batches of all ranks.
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
    global_num_trained_tokens: int
    state: dict[str, Any]

    def __repr__(self) -> str:
        """One line of shapes and counts; the tensors are attributes."""
        rows, length = self.input_ids.shape
        return (
            f"<RolloutBatch: {len(self.rollouts)} rollouts of {len(self.groups)} groups, {rows} x {length}, "
            f"{self.num_tokens:,} tokens, {self.num_trained_tokens:,} trained, on {self.input_ids.device}>"
        )

    def tensors(self) -> dict[str, torch.Tensor]:
        """The tensors by name; without log-probabilities where none are stored."""
        named = {field.name: self.__dict__[field.name] for field in fields(self)}
        return {name: value for name, value in named.items() if isinstance(value, torch.Tensor)}

    def to(self, device: str | torch.device) -> RolloutBatch:
        """The batch on another device; copies to CUDA are asynchronous."""
        moved: dict[str, Any] = {name: to_device(value, device) for name, value in self.tensors().items()}
        return replace(self, **moved)

    def pin_memory(self, device: Any = None) -> RolloutBatch:
        """The batch in page-locked memory; `DataLoader(pin_memory=True)` calls this."""
        del device
        pinned: dict[str, Any] = {name: value.pin_memory() for name, value in self.tensors().items()}
        return replace(self, **pinned)
