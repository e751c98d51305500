"""Rows of ids and masks -> tensors. Targets are shifted here and nowhere else.

A row of S = T + 1 tokens gives T inputs and T targets; the mask is that of the targets::

    ids     a b c d        x  a b c
    mask    . . # #        y  b c d      loss on y:  . # #
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from niels_gpt.errors import UsageError
from niels_gpt.ranges import LENGTH


def check_batch_size(B: int) -> None:
    """Raise `UsageError` unless `B` is a positive whole number."""
    if B < 1:
        raise UsageError(f"B is {B}; expected a batch size of at least 1")


def check_length(T: int) -> None:
    """Raise `UsageError` unless `T` is a positive whole number that rows can have."""
    LENGTH.check(T)


def to_device(tensor: torch.Tensor, device: str | torch.device) -> torch.Tensor:
    """The tensor on `device`; to CUDA through pinned memory, so that the copy need not be waited for."""
    device = torch.device(device)
    if tensor.device == device:
        return tensor  # already there, as CPU batches are: no call into torch
    if device.type == "cuda" and tensor.device.type == "cpu":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def inputs_and_targets(rows: npt.NDArray[Any], device: str | torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """`x` and `y`, int64 and contiguous, shape (B, T), from rows of any integer type, shape (B, T + 1)."""
    x, y = (torch.from_numpy(values) for values in shifted(rows))
    return to_device(x, device), to_device(y, device)


def shifted(rows: npt.NDArray[Any]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The same as arrays.

    One core widens as quickly as it copies. Torch would share the work among threads, a few dozen microseconds quicker
    on an idle machine, but milliseconds slower where it must wait for a core that others use.
    """
    return rows[:, :-1].astype(np.int64, order="C"), rows[:, 1:].astype(np.int64, order="C")


def padded_inputs_and_targets(
    ids: npt.NDArray[Any],
    own: npt.NDArray[np.bool_],
    trained: npt.NDArray[np.bool_],
    *,
    T: int,
    pad_id: int,
    ignore_index: int,
    device: str | torch.device,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`x`, `y` and `y_masked`, int64 and contiguous, shape (B, T), from rows that may be shorter than T + 1.

    ::

        ids      a b c z     own  # # # .     trained  . # # .          (z belongs to another example)
        x        a b c P P            y  b c P P P            y_masked  b c I I I
                                      T = 5, P = pad_id, I = ignore_index

    Args:
        ids: of any integer type, shape (B, n) with n from 1 to T + 1.
        own: which ids count, same shape; the others are replaced by `pad_id`.
        trained: which ids are trained as targets, same shape.
    """
    rows = np.full((len(ids), T + 1), pad_id, dtype=ids.dtype)
    np.copyto(rows[:, : ids.shape[1]], ids, where=own)  # a masked copy skips what is not chosen in whole runs
    targets = np.full((len(ids), T), ignore_index, dtype=np.int64)
    np.copyto(targets[:, : ids.shape[1] - 1], ids[:, 1:], where=trained[:, 1:])
    return *inputs_and_targets(rows, device), to_device(torch.from_numpy(targets), device)


def masked_targets(y: torch.Tensor, loss_mask: torch.Tensor, ignore_index: int) -> torch.Tensor:
    """`y` with `ignore_index` where `loss_mask` (same shape, True = trained) is False."""
    return torch.where(loss_mask, y, ignore_index)
