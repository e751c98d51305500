"""Rows of ids and masks as arrays, and as tensors.

torch is imported only where tensors are made, so that `show` and the explorer read rows of a cache without it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Self

import numpy.typing as npt

from niels_gpt.errors import UsageError, did_you_mean, shown
from niels_gpt.format.gather import shifted

if TYPE_CHECKING:
    import torch

DEVICES: Final = ("cpu", "cuda", "mps", "xpu", "meta")


def check_generator(generator: Any) -> None:
    """Raise `UsageError` unless this is a `torch.Generator`."""
    import torch

    if not isinstance(generator, torch.Generator):
        raise UsageError(f"generator is {shown(generator)}; expected a torch.Generator")


def check_device(device: Any) -> None:
    """As `checked_device`; "cpu" is always there, and torch is not loaded to say so."""
    if device != "cpu":
        checked_device(device)


def checked_device(device: Any) -> torch.device:
    """The torch device for a name, a `torch.device` or the number of a CUDA device.

    Raises:
        UsageError: torch knows no such device, or this machine has no such CUDA device.
    """
    import torch

    try:
        # bool is a subclass of int: `True` would be cuda:1. torch takes text and devices, and raises for anything else.
        if isinstance(device, bool) or not isinstance(device, int | str | torch.device):
            raise TypeError
        found = torch.device(f"cuda:{device}" if isinstance(device, int) else device)
    except (RuntimeError, TypeError) as error:
        near = ""
        if isinstance(device, str):
            near = "; did you mean 'cuda'?" if device.lower().startswith("gpu") else did_you_mean(device, DEVICES)
        raise UsageError(
            f"device is {shown(device)}; expected one that torch knows, such as 'cpu', 'cuda' or 'cuda:1'{near}"
        ) from error
    if found.type == "cuda":
        count = torch.cuda.device_count()  # creates no CUDA context, after which processes could not be forked
        if (found.index or 0) >= count:
            there = (
                f"{count} CUDA devices, cuda:0 to cuda:{count - 1}" if count else "no CUDA device that torch can use"
            )
            raise UsageError(f"device is {shown(str(device))}, but there is {there}; pass one of them, or 'cpu'")
    return found


def to_device(tensor: torch.Tensor, device: str | torch.device) -> torch.Tensor:
    """The tensor on `device`; to CUDA it is copied asynchronously, from pinned memory."""
    import torch

    device = torch.device(device)
    if tensor.device == device:
        return tensor  # the common case, CPU to CPU: `tensor.to` costs more than this comparison
    # Only a copy from pinned memory is asynchronous.
    if device.type == "cuda" and tensor.device.type == "cpu":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


class TensorFields:
    """What batches have in common: a frozen dataclass of which some fields are tensors."""

    def tensors(self) -> dict[str, torch.Tensor]:
        """The fields that are tensors, not `None`, by name."""
        import torch

        # Not `asdict`, which would copy every tensor.
        return {name: value for name, value in self.__dict__.items() if isinstance(value, torch.Tensor)}

    def each(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Self:
        """The batch with every tensor changed."""
        changed: dict[str, Any] = {name: change(tensor) for name, tensor in self.tensors().items()}
        return replace(self, **changed)  # type: ignore[type-var]

    def to(self, device: str | torch.device) -> Self:
        """The batch on another device; copies to CUDA are asynchronous."""
        return self.each(lambda tensor: to_device(tensor, device))

    def pin_memory(self, device: Any = None) -> Self:
        """The batch in page-locked memory; `DataLoader(pin_memory=True)` calls this."""
        del device
        return self.each(lambda tensor: tensor.pin_memory())


def inputs_and_targets(rows: npt.NDArray[Any], device: str | torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """`x` and `y`, int64 and contiguous, shape (B, T), from rows of any integer type, shape (B, T + 1)."""
    import torch

    x, y = (torch.from_numpy(values) for values in shifted(rows))
    return to_device(x, device), to_device(y, device)


def masked_targets(y: torch.Tensor, loss_mask: torch.Tensor, ignore_index: int) -> torch.Tensor:
    """`y` with `ignore_index` where `loss_mask` (same shape, True = trained) is False."""
    import torch

    return torch.where(loss_mask, y, ignore_index)
