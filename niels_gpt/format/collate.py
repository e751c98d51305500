"""Rows of ids and masks -> tensors. Targets are shifted here and nowhere else.

A row of S = T + 1 tokens gives T inputs and T targets; the mask is that of the targets::

    ids     a b c d        x  a b c
    mask    . . # #        y  b c d      loss on y:  . # #
"""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
import torch

from niels_gpt.errors import UsageError


def check_batch_size(B: int) -> None:
    """Raise `UsageError` unless `B` is a positive whole number."""
    if B < 1:
        raise UsageError(f"B is {B}; expected a batch size of at least 1")


def check_length(T: int) -> None:
    """Raise `UsageError` unless `T` is a positive whole number."""
    if T < 1:
        raise UsageError(f"T is {T}; expected a window of at least 1 token")


def to_device(tensor: torch.Tensor, device: str | torch.device) -> torch.Tensor:
    """The tensor on `device`; to CUDA through pinned memory, so that the copy need not be waited for."""
    device = torch.device(device)
    if device.type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def inputs_and_targets(rows: npt.NDArray[Any], device: str | torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """`x` and `y`, int64 and contiguous, shape (B, T), from rows of any integer type, shape (B, T + 1)."""
    tokens = torch.from_numpy(rows)  # torch widens on all cores, measured twice as fast as numpy's astype
    x = tokens[:, :-1].to(torch.int64, memory_format=torch.contiguous_format)
    y = tokens[:, 1:].to(torch.int64, memory_format=torch.contiguous_format)
    return to_device(x, device), to_device(y, device)


def masked_targets(y: torch.Tensor, loss_mask: torch.Tensor, ignore_index: int) -> torch.Tensor:
    """`y` with `ignore_index` where `loss_mask` (same shape, True = trained) is False."""
    return torch.where(loss_mask, y, ignore_index)
