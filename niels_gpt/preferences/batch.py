"""`PreferenceBatch`: the completions of some prompts, as a step of DPO, KTO or reward training takes them."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from niels_gpt.format.collate import to_device

IGNORED = -100  # the label of a token that is not in the loss


@dataclass(frozen=True)
class PreferenceBatch:
    """One rank's part of a global batch: whole groups of completions, a row for each completion.

    The first rows hold the first completion of every group, the next rows the second ones. Of pairs, the first half is
    therefore chosen and the second half rejected, as TRL's trainers have them. B groups of n completions are B * n rows
    (R); of a ranked list with fewer completions the later blocks are shorter::

        groups a (3 completions), b (2)      rows  a0 b0 | a1 b1 | a2

    Attributes:
        input_ids: int64, shape (R, T); not shifted.
        attention_mask: int64, shape (R, T): 0 on padding, by its position.
        completion_mask: int64, shape (R, T): 1 on trained tokens of the completion, aligned to `input_ids`.
        group: int64, shape (R,): the group of each row, 0 to B - 1.
        number: int64, shape (R,): of the completion in its group; 0 is the chosen one, or the best.
        rank: int64, shape (R,): 0 is the best; equal where completions were not told apart; -1: not ranked.
        label: int64, shape (R,): 1 desirable, 0 undesirable, -1: not labelled.
        score: float32, shape (R,); NaN: none.
        margin: float32, shape (B,); NaN: none.
        prompt_length: int64, shape (R,): tokens of the prompt that are in the row, the same for all rows of a group.
        lengths: int64, shape (R,): tokens of each row that are not padding.
        groups: int64, shape (B,): the groups' numbers in the split; -1: none, where an epoch's last batch is filled up.
            Rows of such a group are padding.
        num_groups, global_num_groups: how many groups there are on this rank, and on all ranks.
        num_tokens, num_trained_tokens: of this rank.
        state: what `load_state_dict` takes to continue after this batch.
    """

    input_ids: torch.Tensor
    attention_mask: torch.Tensor
    completion_mask: torch.Tensor
    group: torch.Tensor
    number: torch.Tensor
    rank: torch.Tensor
    label: torch.Tensor
    score: torch.Tensor
    margin: torch.Tensor
    prompt_length: torch.Tensor
    lengths: torch.Tensor
    groups: npt.NDArray[np.int64]
    num_groups: int
    global_num_groups: int
    num_tokens: int
    num_trained_tokens: int
    state: dict[str, Any]

    def __repr__(self) -> str:
        """One line of shapes and counts; the tensors are attributes."""
        rows, length = self.input_ids.shape
        return (
            f"<PreferenceBatch: {self.num_groups} groups, {rows} x {length}, {self.num_tokens:,} tokens, "
            f"{self.num_trained_tokens:,} trained, on {self.input_ids.device}>"
        )

    def labels(self) -> torch.Tensor:
        """The ids with -100 where a token is not trained, int64 of shape (R, T), as `transformers` takes them."""
        return self.input_ids.masked_fill(self.completion_mask == 0, IGNORED)

    def pairs(self) -> torch.Tensor:
        """All pairs of rows of one group of which the first is better: int64, shape (pairs, 2).

        Of a preference the pairs are (chosen, rejected). A ranked list of n has up to n * (n - 1) / 2 of them;
        completions of equal rank form none.
        """
        same = (self.group[:, None] == self.group[None, :]) & (self.lengths > 0)[:, None]
        ranked = (self.rank >= 0)[:, None] & (self.rank >= 0)[None, :]
        return torch.nonzero(same & ranked & (self.rank[:, None] < self.rank[None, :]))

    def tensors(self) -> dict[str, torch.Tensor]:
        """The tensors by name."""
        named = {field.name: self.__dict__[field.name] for field in fields(self)}
        return {name: value for name, value in named.items() if isinstance(value, torch.Tensor)}

    def to(self, device: str | torch.device) -> PreferenceBatch:
        """The batch on another device; copies to CUDA are asynchronous."""
        moved: dict[str, Any] = {name: to_device(value, device) for name, value in self.tensors().items()}
        return replace(self, **moved)

    def pin_memory(self, device: Any = None) -> PreferenceBatch:
        """The batch in page-locked memory; `DataLoader(pin_memory=True)` calls this."""
        del device
        pinned: dict[str, Any] = {name: value.pin_memory() for name, value in self.tensors().items()}
        return replace(self, **pinned)
