"""A batch of episodes: ids, targets, mask, and all that a training step may ask of them."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from niels_gpt.format.collate import to_device


@dataclass(frozen=True)
class EpisodeBatch:
    """One rank's part of a global batch; shapes are (batch_size, block_size).

    Attributes:
        x, y: int64; `y` are the next tokens, not masked.
        mask: float32, aligned to `y`: 0 on padding, on the first token of every episode, and where the dataset says so.
        episodes: int64 of shape (episodes,): which episodes these are, in order (their numbers in the index).
        num_trained_tokens: how many targets of this batch have a mask above 0; `mask_sum` adds the mask up.
        global_num_trained_tokens, global_mask_sum: the same over the batches of all ranks; `None` on several ranks
            with `global_counts=False`.
        num_tokens: how many tokens are no padding.
        state: what `load_state_dict` needs to go on after this batch.
        segment_ids: int32; 1, 2, ... along each row, 0 on padding. This and what follows is `None` unless rows are
            packed or the dataset has `segment_ids.bin`.
        position_ids: int64; from 0 in every segment and in the padding.
        cu_seqlens: int32 of shape (sequences + 1,): where sequences start in the flattened batch, and its size. The
            padding of a row is a sequence of its own.
        max_seqlen: the longest of them.

    The right loss over ranks and accumulated batches is the sum of `mask * loss` over all of them, divided once by the
    sum of their `global_mask_sum`.
    """

    x: torch.Tensor
    y: torch.Tensor
    mask: torch.Tensor
    episodes: npt.NDArray[np.int64]
    num_trained_tokens: int
    mask_sum: float
    global_num_trained_tokens: int | None
    global_mask_sum: float | None
    num_tokens: int
    state: dict[str, Any]
    segment_ids: torch.Tensor | None = None
    position_ids: torch.Tensor | None = None
    cu_seqlens: torch.Tensor | None = None
    max_seqlen: int | None = None

    def tensors(self) -> dict[str, torch.Tensor]:
        """The tensors that are there, by name."""
        named = {field.name: self.__dict__[field.name] for field in fields(self)}
        return {name: value for name, value in named.items() if isinstance(value, torch.Tensor)}

    def to(self, device: str | torch.device) -> EpisodeBatch:
        """The batch on another device; copies to CUDA need not be waited for."""
        if _same_device(self.x.device, torch.device(device)):
            return self
        moved: dict[str, Any] = {name: to_device(value, device) for name, value in self.tensors().items()}
        return replace(self, **moved)

    def pin_memory(self, device: Any = None) -> EpisodeBatch:
        """The batch in page-locked memory, as `DataLoader(pin_memory=True)` asks."""
        del device
        pinned: dict[str, Any] = {name: value.pin_memory() for name, value in self.tensors().items()}
        return replace(self, **pinned)


def _same_device(here: torch.device, wanted: torch.device) -> bool:
    """`cuda` names any CUDA device, so what is on `cuda:1` need not move."""
    return here == wanted or (here.type == wanted.type and wanted.index is None)
